"""A run on disk: what was asked, on what it ran, who arrived when, what came out. Each file appears whole.

RUN/config.json       the tables of the StudyConfig
RUN/provenance.json   versions, machine, command, inputs by their hash
RUN/log.txt           what happened when
RUN/seed-0/           schedule.npz, checkpoint.npz, history.csv, and at last result.json: the seed is done
"""

from __future__ import annotations

import csv
import datetime
import hashlib
import io
import json
import math
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import little_endian
from .._base.files import (
    FileError,
    guarded,
    make_folder,
    naming,
    read_json,
    reading,
    replacing,
)
from .._delays.arrival_log import ArrivalLog
from .._delays.model import DelayModel
from .._delays.trace import Trace
from .._machine.config import config as built_config
from .._machine.cpu import cpu_name
from .._replay.history import History, Result, first_reached
from .._schedule.columns import Status
from .._schedule.load import load_schedule
from .._schedule.schedule import Schedule
from .config import StudyConfig
from .data import SAMPLE
from .tables import ConfigError

__all__ = ["Run", "SeedRun", "find_runs", "load_run", "run_study"]

RESULT = ("exit_reason", "server_steps", "last", "schedule")  # keys of result.json that readers look up
_INPUTS = ("file", "data", "test")  # keys of [trace] and [problem] that may name a file


@dataclass(frozen=True)
class SeedRun:
    """One seed of a run that is done."""

    folder: Path
    seed: int
    result: dict[str, Any]

    @cached_property
    def schedule(self) -> Schedule:
        return load_schedule(self.folder / "schedule.npz")

    @cached_property
    def history(self) -> dict[str, NDArray[np.float64]]:
        """Columns by name."""
        path = self.folder / "history.csv"
        with reading(path, "a run's history"), path.open(newline="", encoding="utf-8") as file:
            names, *rows = csv.reader(file)
            values = np.array(rows, np.float64).reshape(len(rows), len(names))
        return {name: values[:, at] for at, name in enumerate(names)}

    @property
    def staleness(self) -> dict[str, float] | None:
        """Mean and max over the arrivals that the run used; None where there are none."""
        found: dict[str, float] | None = self.result.get("staleness", self.result["schedule"]["staleness"])
        return found

    def first(self, metric: str, target: float) -> int | None:
        """The first evaluation at which the metric had reached the target."""
        return first_reached(self.history, metric, target)


@dataclass(frozen=True)
class Run:
    """A run folder: its configuration, and the seeds that are done."""

    folder: Path
    config: StudyConfig
    provenance: dict[str, Any]
    seeds: list[SeedRun] = field(repr=False)

    @property
    def name(self) -> str:
        return self.config.name

    def delays(self) -> Trace | DelayModel | ArrivalLog | None:
        """What made the schedule of the first seed; None where its files are gone, or are others."""
        first = self.seeds[0]
        with suppress(ValueError, OSError):
            source = self.config.source_of(first.seed)
            if source is not None and plain(source.describe()) == first.schedule.description.get("source"):
                return source
        return None


def load_run(folder: str | os.PathLike[str], *, allow_code: bool = False) -> Run:
    """Reads a run folder; a FileError says what is missing or damaged. `allow_code` is that of its configuration."""
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise FileError("not a run folder: it has no config.json", path)
    if not (path / "provenance.json").is_file():
        raise FileError("not a run folder: it has no provenance.json", path)
    provenance = _read_object(path / "provenance.json", "a run's provenance", ("folder",))
    tables = _read_object(path / "config.json", "a run's configuration", ())
    with reading(path / "config.json", "a run's configuration"):
        config = StudyConfig(tables, Path(provenance["folder"]), allow_code)
    done = [
        SeedRun(file.parent, int(seed), _read_object(file, "a run's result", RESULT))
        for file in path.glob("seed-*/result.json")
        if (seed := file.parent.name.removeprefix("seed-")).isdecimal()
    ]
    return Run(path, config, provenance, sorted(done, key=lambda run: run.seed))


def _read_object(path: Path, what: str, keys: Iterable[str]) -> dict[str, Any]:
    """The JSON object in a file, which has these keys."""
    found = read_json(path, what)
    with reading(path, what):
        if not isinstance(found, dict):
            raise ValueError(f"expected an object, got {type(found).__name__}")
        for key in keys:
            found[key]
    return dict(found)


def find_runs(folder: str | os.PathLike[str], *, allow_code: bool = False) -> list[Run]:
    """The run that a folder is, those in a comparison's table, or all that it holds; a seed of each is done."""
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"{path}: there is no such folder")
    if (path / "config.json").is_file():
        inside = [path]
    elif (path / "compare.json").is_file():
        table = path / "compare.json"
        rows = _read_object(table, "a comparison's table", ("rows",))["rows"]
        with reading(table, "a comparison's table"):
            inside = [path / row["folder"] for row in rows]
    else:
        inside = sorted(file.parent for file in path.glob("*/config.json"))
    found = [load_run(each, allow_code=allow_code) for each in inside]
    runs = [run for run in found if run.seeds]
    if not runs:
        raise ValueError(f"{path}: no run that is done: neither it nor a folder in it has seed-*/result.json")
    return runs


def run_study(
    config: StudyConfig,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    progress: bool | None = None,
    report: Callable[[str], object] = lambda text: None,
) -> Run:
    """Runs every seed of a configuration into a folder; `report` is told, a line at a time, what happens.

    The folder must not be there yet. With `resume` it may: it must have been made with the same configuration, seeds
    that are done stay, and the others go on from their checkpoints. What can be wrong with the input is found before
    the folder is made.
    """
    path = Path(folder)
    if path.exists() and not resume:
        raise ValueError(f"{path}: it is there already; give another folder, or go on with --resume")
    first = config.make_schedule(config.seeds[0])
    config.check(first)
    if path.exists() and not _is_barely_begun(path):
        _check_same(config, path)
    else:
        make_folder(path, exist_ok=True)
        write_json(path / "provenance.json", provenance(config))
        write_json(path / "config.json", config.tables)
    log = _Log(path / "log.txt", report)
    for number, seed in enumerate(config.seeds):
        done = path / f"seed-{seed}" / "result.json"
        if done.exists():
            log(f"seed {seed}: done before")
            continue
        schedule = first if number == 0 else config.make_schedule(seed)
        _run_seed(config, schedule, seed, done.parent, progress, log)
    return load_run(path, allow_code=config.allow_code)


def _run_seed(
    config: StudyConfig, schedule: Schedule, seed: int, folder: Path, progress: bool | None, log: Callable[[str], None]
) -> None:
    make_folder(folder, exist_ok=True)
    checkpoint = folder / "checkpoint.npz"
    log(f"seed {seed}: {'resumed' if checkpoint.exists() else 'started'}: {schedule!r}")
    schedule.save(folder / "schedule.npz")
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # divergence is reported by the result and the log
            result = config.make_replay(schedule, seed, checkpoint=checkpoint, progress=progress)
    except BaseException as error:
        log(f"seed {seed}: {type(error).__name__}: {error}")
        raise
    seconds = time.perf_counter() - began
    write_history(folder / "history.csv", result.history)
    write_json(folder / "result.json", summary(result, schedule, seconds))
    log(f"seed {seed}: {result.exit_reason.value} at server step {result.version}, {seconds:.1f} s {result.message}")


def summary(result: Result, schedule: Schedule, seconds: float) -> dict[str, Any]:
    """What a seed came to, as JSON can hold it."""
    return {
        "exit_reason": result.exit_reason.value,
        "message": result.message,
        "server_steps": result.version,
        "seconds": seconds,
        "model_sha256": hashlib.sha256(little_endian(result.w).tobytes()).hexdigest(),
        "repeatable": result.repeatable,
        "last": {name: values[-1].item() for name, values in result.history.items()},
        "staleness": _staleness(schedule, result.version),
        "schedule": schedule.summary(),
        "schedule_sha256": schedule.sha256,
        "stats": result.stats,
    }


def _staleness(schedule: Schedule, steps: int) -> dict[str, float] | None:
    """Of the arrivals that the run used, up to the server step where it ended."""
    used = schedule.staleness[(schedule.status == Status.USED) & (schedule.step < steps)]
    return {"mean": float(used.mean()), "max": int(used.max())} if used.size else None


def _is_barely_begun(folder: Path) -> bool:
    """Whether a run was killed before its configuration was written."""
    first = ("provenance.json", "config.json")
    return folder.is_dir() and all(
        entry.name == first[0] or any(entry.match(f".{name}.*.part") for name in first) for entry in folder.iterdir()
    )


def _check_same(config: StudyConfig, folder: Path) -> None:
    before = load_run(folder).config.tables
    found = first_difference(before, config.tables)
    if found is not None:
        key, old, new = found
        raise ConfigError(f"{key}: {folder} was made with {old}, this is {new}; give another folder")


def first_difference(old: dict[str, Any], new: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """Where two configurations differ first: the key's path, and both values."""
    return next(_differences(old, new), None)


def _differences(old: dict[str, Any], new: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any, Any]]:
    for key in sorted({*old, *new}):
        left, right = old.get(key), new.get(key)
        if isinstance(left, dict) and isinstance(right, dict):
            yield from _differences(left, right, f"{path}{key}.")
        elif left != right:
            yield f"{path}{key}", left, right


class _Log:
    """Lines with the time, appended to a file and given to `report`."""

    def __init__(self, path: Path, report: Callable[[str], object]) -> None:
        self._path, self._report = path, report

    def __call__(self, text: str) -> None:
        with naming(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(f"{_now()} {text.strip()}\n")
        self._report(text.strip())


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def provenance(config: StudyConfig, more: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
    """What a reader needs to make the run again: versions, machine, command, and the inputs by their hash.

    more  tables [trace] and [problem] that are used beside the configuration's own
    """
    tables = [config.tables["trace"], config.tables["problem"], *more]
    names = dict.fromkeys(table[key] for table in tables for key in _INPUTS if isinstance(table.get(key), str))
    files = [name for name in names if not name.startswith(SAMPLE)]
    return {
        "started": _now(),
        "command": sys.argv,
        "folder": str(config.folder.resolve()),
        "config_sha256": config.sha256,
        "inputs": {name: _file_hash(config.path(name)) for name in files if config.path(name).is_file()},
        "fedbuff": built_config(),
        "numpy": np.__version__,
        "machine": platform.platform(),
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
    }


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plain(value: Any) -> Any:
    """What JSON can hold: NaN and infinities, which it cannot, are null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    with replacing(path) as beside:
        beside.write_text(json.dumps(plain(value), indent=1, default=str) + "\n", encoding="utf-8")


def write_history(path: Path, history: History) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(guarded, history))
    writer.writerows(zip(*(history[name].tolist() for name in history), strict=True))
    with replacing(path) as beside:
        beside.write_text(text.getvalue(), encoding="utf-8")
