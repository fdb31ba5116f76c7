"""What must survive: each case writes into a folder, and goes on there when the same call is made again.

`go(folder)` returns a digest of all that came out; it is the same whether or not it was killed before. `check(folder)`
reads every file that is there: after a fault each is the old one or the whole new one. All problems are tiny: a case
takes some milliseconds.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas  # noqa: F401 - so that no fork has to, as pyarrow does
import pyarrow.parquet  # noqa: F401

import fedbuff as fb
from fedbuff._replay.checkpoint import read_checkpoint
from fedbuff._report import write_report
from fedbuff._schedule.file import ScheduleWriter
from fedbuff._study.run_folder import find_runs, load_run, run_study
from fedbuff._sweep import store

N_CLIENTS = 5
DELAYS = fb.DelayModel(n_clients=N_CLIENTS, compute=fb.Exponential(1.0))
STRATEGY = fb.FedBuff(2, optimizer=fb.SGD(0.9))
PROBLEM = fb.Quadratic(np.arange(N_CLIENTS * 3, dtype=np.float64).reshape(N_CLIENTS, 3))
LOCAL = fb.LocalSGD(steps=1, lr=0.1)
TABLES: dict[str, Any] = {
    "problem": {"kind": "quadratic", "centers": [[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]]},
    "trace": {"kind": "model", "n_clients": 3, "compute": {"kind": "exponential", "scale": 1.0}},
    "strategy": {"kind": "fedbuff", "buffer_size": 2},
    "local": {"steps": 1, "lr": 0.5},
    "schedule": {"server_steps": 30},
    "replay": {"metrics": ["loss"], "eval_every": 10, "checkpoint_every": 10},
    "seeds": [0, 1],
}


@dataclass(frozen=True)
class Survivor:
    """A case: its name, the call, and the reader of its files."""

    name: str
    go: Callable[[Path], str]
    check: Callable[[Path], object]
    saves_once: bool = False  # its call is one save: there is nothing in it to go on with


def digest(*parts: Any) -> str:
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(repr(part.tolist() if isinstance(part, np.ndarray) else part).encode())
    return hashed.hexdigest()


@functools.cache
def schedule(steps: int = 200) -> fb.Schedule:
    return fb.schedule(DELAYS, STRATEGY, concurrency=4, server_steps=steps, seed=3)


# ---- what goes on ----


def replayed(folder: Path, source: Any) -> str:
    result = fb.replay(
        PROBLEM, source, LOCAL, strategy=STRATEGY, eval_every=20, metrics=("loss", "distance"), threads=1,
        progress=False, checkpoint=folder / "run.npz", checkpoint_every=10,
    )  # fmt: skip
    return digest(result.w, result.history._rows, result.version)


def check_checkpoint(folder: Path) -> None:
    if (folder / "run.npz").exists():
        read_checkpoint(folder / "run.npz")


def replay_of_a_schedule(folder: Path) -> str:
    return replayed(folder, schedule())


def replay_of_a_stream(folder: Path) -> str:
    return replayed(folder, fb.iter_schedule(DELAYS, STRATEGY, 4, server_steps=200, seed=3, chunk=64))


def swept(folder: Path, form: str) -> str:
    default, store.default_format = store.default_format, lambda: form  # type: ignore[assignment,return-value]
    try:
        grid = {"strategy.buffer_size": [1, 2, 3]}
        results = fb.sweep(TABLES, grid=grid, seeds=[0, 1], out=folder / "sweep", progress=False, threads=1)
    finally:
        store.default_format = default
    order = np.argsort(results.column("run"))
    return digest(*(np.asarray(results.column(name))[order] for name in ("arm", "seed", "model_sha256", "loss")))


def check_sweep(folder: Path) -> None:
    if (folder / "sweep" / "sweep.json").exists():
        results = fb.load_sweep(folder / "sweep")
        [results.column(name) for name in results.columns if not name.startswith("history.")]


def sweep_npz(folder: Path) -> str:
    return swept(folder, "npz")


def sweep_parquet(folder: Path) -> str:
    return swept(folder, "parquet")


def run_folder(folder: Path) -> str:
    run = run_study(fb.StudyConfig(TABLES), folder / "run", resume=True, progress=False)
    return digest(
        *(seed.result["model_sha256"] for seed in run.seeds),
        *(list(map(list, seed.history.values())) for seed in run.seeds),
    )


def check_run(folder: Path) -> None:
    if (folder / "run" / "config.json").exists():
        [seed.history for seed in load_run(folder / "run").seeds]


def server(folder: Path) -> str:
    """A server that is saved after every fifth upload, and loaded from there."""
    path = folder / "server.npz"
    kept = fb.Server.load(path) if path.exists() else fb.Server(np.zeros(4), fb.FedBuff(3, optimizer=fb.Adam()))
    while kept.version < 12:
        for _ in range(5):
            version, w = kept.download()
            kept.upload(0.1 * w + np.arange(4.0) + version, version)
        kept.save(path)
    return digest(kept.w, kept.version, kept.fill)


def check_server(folder: Path) -> None:
    if (folder / "server.npz").exists():
        fb.Server.load(folder / "server.npz")


def recorder(folder: Path, ending: str = ".csv") -> str:
    """A recorder whose log is saved after every task; a later process begins anew, as it has lost its tasks."""
    now = iter(range(10_000))
    recorded = fb.Recorder(3, clock=lambda: float(next(now)))
    for task in range(12):
        recorded.started(task % 3, version=task // 2)
        recorded.arrived(task % 3)
        recorded.save(folder / f"log{ending}")
    return digest(recorded.log().arrive_time, recorded.log().version)


def check_log(folder: Path) -> None:
    for path in folder.glob("log*"):
        log = fb.read_arrival_log(path)
        assert np.array_equal(log.client, np.arange(log.client.size) % 3), path


def stream_to_file(folder: Path) -> str:
    """A schedule that is written as it is made."""
    with ScheduleWriter(folder / "schedule.parquet") as writer:
        for chunk in fb.iter_schedule(DELAYS, STRATEGY, 4, server_steps=200, seed=3, chunk=64):
            writer.write(chunk)
    return fb.load_schedule(folder / "schedule.parquet").sha256


def check_schedule(folder: Path) -> None:
    for path in (*folder.glob("*.npz"), *folder.glob("*.parquet")):
        assert fb.load_schedule(path).n_steps in (20, 200)


def tuned(folder: Path) -> str:
    base = {**TABLES, "schedule": {"max_time": 30.0}}
    results = fb.tune(
        base, grid={"local.lr": [0.05, 0.1, 0.2]}, target={"loss": 0.6}, seeds=2, out=folder / "tuned",
        threads=1, progress=False,
    )  # fmt: skip
    return digest(results.winner, results.updates)


def check_tuned(folder: Path) -> None:
    for path in (folder / "tuned").glob("*/sweep.json"):
        fb.load_sweep(path.parent)


# ---- one save ----


def saved(name: str, make: Callable[[], Any], read: Callable[[Path], Any], content: Callable[[Any], Any]) -> Survivor:
    """A thing with a method `save`, under a name that says the format; what is there before is read as well."""

    def go(folder: Path) -> str:
        made = make()
        made.save(folder / name)
        return digest(content(made))

    def check(folder: Path) -> None:
        if (folder / name).exists():
            content(read(folder / name))

    return Survivor(name, go, check, saves_once=True)


def trace() -> fb.Trace:
    return fb.Trace(["a", "b", "c", "a"], [1.0, 2.0, 3.0, 4.0], upload=[0.5, 0.25, 0.1, 0.2])


def log() -> fb.ArrivalLog:
    return fb.ArrivalLog([0, 1, 0, 1], [1.0, 2.0, 3.0, 4.0], version=[0, 0, 1, 1])


def chrome(folder: Path) -> str:
    schedule(20).to_chrome_trace(folder / "trace.json.gz")
    return digest((folder / "trace.json.gz").read_bytes())


@functools.cache
def finished_run() -> Path:
    """A run folder for reports, made once; a fault is not to meet its files."""
    folder = Path(tempfile.mkdtemp(prefix="fedbuff-run-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    run_study(fb.StudyConfig({**TABLES, "seeds": [0]}), folder / "run", progress=False)
    return folder / "run"


def report(folder: Path) -> str:
    write_report(find_runs(finished_run()), folder / "report.html")
    return digest(len((folder / "report.html").read_bytes()) > 100_000)


def nothing(folder: Path) -> None:
    """Its content is compared elsewhere: no reader of ours."""


GO_ON = [
    Survivor("replay", replay_of_a_schedule, check_checkpoint),
    Survivor("stream", replay_of_a_stream, check_checkpoint),
    Survivor("sweep, NPZ", sweep_npz, check_sweep),
    Survivor("sweep, Parquet", sweep_parquet, check_sweep),
    Survivor("run folder", run_folder, check_run),
    Survivor("server", server, check_server),
    Survivor("recorder", recorder, check_log),
    Survivor("schedule written as it is made", stream_to_file, check_schedule),
    Survivor("tune", tuned, check_tuned),
]
SAVES = [
    *(
        saved(f"trace{end}", trace, fb.read_trace, lambda t: t.compute)
        for end in (".csv", ".csv.gz", ".npz", ".parquet")
    ),
    *(
        saved(f"arrivals{end}", log, fb.read_arrival_log, lambda t: t.arrive_time)
        for end in (".csv", ".npz", ".parquet")
    ),
    *(saved(f"made{end}", lambda: schedule(20), fb.load_schedule, lambda s: s.sha256) for end in (".npz", ".parquet")),
    Survivor("trace.json.gz", chrome, nothing, saves_once=True),
    Survivor("report.html", report, nothing, saves_once=True),
]


def leftovers(folder: Path) -> list[str]:
    return [os.path.relpath(path, folder) for path in folder.rglob(".*.part")]
