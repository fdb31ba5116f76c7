"""`sweep`: a configuration, a grid of changes and seeds; every run once, on threads, processes or a cluster.

A run is known by the hash of its arm's tables and its seed. What is asked for and not done yet is cut into batches of
about equal time, and rows are kept as batches come back.
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import backends
from .._base.checks import (
    count,
    list_of,
    path_of,
    shown,
)
from .._base.files import optional
from .._study.build import default_metrics
from .._study.config import SECTIONS, StudyConfig, refuse_unknown_removals
from .._study.data import save_rows
from .._study.run_folder import first_difference, provenance
from .._study.tables import (
    UNSET,
    ConfigError,
    ConflictError,
    UnknownKeyError,
    combinations,
    read_tables,
    seeds_of,
)
from .arms import (
    Arms,
    Changes,
    Pair,
    text_of,
)
from .batches import Batches, Crew
from .results import SweepResults
from .store import (
    HISTORY,
    ROWS,
    FolderStore,
    Kind,
    MemoryStore,
    Row,
    Schema,
)
from .worker import (
    HISTORY_COLUMNS,
    Setup,
    Workshop,
    explain,
    run_batch,
)

__all__ = ["SweepInterrupted", "arms_of", "sweep"]

Base = StudyConfig | Mapping[str, Any] | str | os.PathLike[str]

_RUN: Schema = {
    "status": "text",
    "error": "text",
    "exit_reason": "text",
    "server_steps": "int",
    "time": "float",
    "updates": "int",
    "seconds": "float",
    "model_sha256": "text",
}
_SECONDS_A_BATCH = 0.05  # on threads here
_SECONDS_A_REMOTE_BATCH = 0.5


# ---- arms ----


def arms_of(grid: Mapping[str, Sequence[Any]] | None, configs: Sequence[Mapping[str, Any]] | None) -> list[Changes]:
    """The changes of every arm; one without any where there is neither grid nor configs."""
    if configs is not None:
        if grid is not None:
            raise TypeError("grid: give grid or configs, not both")
        configs = list_of("configs", configs, "a list of changes")
        if not all(isinstance(one, Mapping) for one in configs) or not configs:
            raise TypeError("configs: expected a list of changes, each a dictionary by key path")
        return [dict(one) for one in configs]
    if grid is None:
        return [{}]
    if not isinstance(grid, Mapping):
        raise TypeError(f"grid: expected lists by key path, got {type(grid).__name__}")
    lists = {key: list(v) if isinstance(v, tuple | range | np.ndarray) else v for key, v in grid.items()}
    return combinations(lists, "grid")


def _plain(value: Any) -> Any:
    """A value as a table of a file would hold it; None for a key that is to be removed."""
    if isinstance(value, str) and value == UNSET:
        return None
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


# ---- the sweep ----


class SweepInterrupted(KeyboardInterrupt):
    """Ctrl-C during a sweep; `.results` are the runs that were done."""

    def __init__(self, results: SweepResults) -> None:
        super().__init__(f"interrupted after {len(results)} runs")
        self.results = results


def sweep(
    base: Base,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    configs: Sequence[Mapping[str, Any]] | None = None,
    seeds: Sequence[int] | str | None = None,
    executor: Executor | Any | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = True,
    threads: int | None = None,
    progress: bool | None = None,
    allow_code: bool = False,
) -> SweepResults:
    """Runs a configuration for every combination of a grid and every seed.

    All arms meet the same delays and batches where the seed is the same, so that they can be compared pair by pair. A
    run has the bits that `StudyConfig.run` gives it.

    >>> import fedbuff as fb
    >>> base = {
    ...     "problem": {"kind": "quadratic", "centers": [[0.0, 0.0], [2.0, 0.0]]},
    ...     "trace": {"kind": "model", "n_clients": 2, "compute": {"kind": "exponential", "scale": 1.0}},
    ...     "strategy": {"kind": "fedbuff", "buffer_size": 2},
    ...     "local": {"steps": 1, "lr": 0.5},
    ...     "schedule": {"server_steps": 10},
    ... }
    >>> results = fb.sweep(base, {"local.lr": [0.1, 0.5]}, seeds=range(3))
    >>> len(results), results.arms
    (6, [{'local.lr': 0.1}, {'local.lr': 0.5}])

    base      a `StudyConfig`, its tables, or the path of its file
    grid      lists of values by key path, as in {"strategy.buffer_size": [5, 10]}: an arm for every combination
    configs   instead: the changes of each arm
    seeds     instead of the base's: a list, or "0:100"
    executor  None: threads of this process. Or a `concurrent.futures.Executor`, or a `distributed.Client`
    out       a folder for the results, written as they come: the same call goes on where it was stopped, and a larger
              grid or more seeds reuse what is there
    resume    False refuses a folder that holds a sweep
    threads   how many, where there is no executor; None: as everywhere in fedbuff
    progress  a progress bar; None: where the output is a terminal
    allow_code: problems of the kind "factory" may run the code that they name

    A run that cannot be made has the status "failed" and says why; the others go on. Ctrl-C raises `SweepInterrupted`,
    a KeyboardInterrupt that carries `.results`.
    """
    request = _Request(_study(base, allow_code), grid, configs, seeds)
    workers = backends.default_threads() if threads is None else count("threads", threads)
    return _Sweep(request, executor, workers, progress).go(out, resume)


def _study(base: Base, allow_code: bool = False) -> StudyConfig:
    if isinstance(base, StudyConfig):
        return StudyConfig(base.tables, base.folder, True) if allow_code and not base.allow_code else base
    if isinstance(base, Mapping):
        return StudyConfig(dict(base), allow_code=allow_code)
    path = path_of("base", base)
    try:
        return StudyConfig(read_tables(path), path.parent, allow_code)
    except ValueError as error:
        raise ConfigError(f"base: {error}") from None


class _Request:
    """What is asked for: a base, arms and seeds."""

    def __init__(
        self,
        base: StudyConfig,
        grid: Mapping[str, Sequence[Any]] | None,
        configs: Sequence[Mapping[str, Any]] | None,
        seeds: Sequence[int] | str | None,
    ) -> None:
        own = base.sweep_options
        if grid is None and configs is None:
            grid = own.get("grid")
        self.base = base
        self.changes = [{path: _plain(value) for path, value in arm.items()} for arm in arms_of(grid, configs)]
        self.seeds = own.get("seeds", base.seeds) if seeds is None else seeds_of(_listed(seeds), "seeds")
        self.arms = Arms(base, dict(enumerate(self.changes)))
        self.varied = list(dict.fromkeys(path for arm in self.changes for path in arm))
        lists = None if grid is None else {path: _plain(list(values)) for path, values in grid.items()}
        self.tables = {name: base.tables[name] for name in SECTIONS if name in base.tables}
        self.about = {"grid": lists, "configs": self.changes if configs is not None else None, "seeds": self.seeds}

    @cached_property
    def kinds(self) -> Schema:
        """The columns of what varied."""
        return {path: _kind([self.value(arm, path) for arm in range(len(self.changes))]) for path in self.varied}

    def value(self, arm: int, path: str) -> Any:
        """The value at a path: the arm's own, else the base's, else None."""
        if path in self.changes[arm]:
            return self.changes[arm][path]
        table: Any = self.base.tables
        for name in path.split("."):
            table = table.get(name) if isinstance(table, Mapping) else None
        return table

    def tables_of(self, *sections: str) -> list[dict[str, Any]]:
        """The arms' tables of these sections, as far as they are not the base's; each once."""
        found: dict[bytes, Any] = {}
        for arm, changes in enumerate(self.changes):
            for name in {path.partition(".")[0] for path in changes} & set(sections):
                section = self.arms.sections(arm)[name]
                found[section.key] = section.table
        return [table for table in found.values() if isinstance(table, dict)]

    def cells(self, arm: int) -> Row:
        """The arm's number and its values of what varied, as their columns hold them."""
        values = {path: self.value(arm, path) for path in self.varied}
        return {"arm": arm} | {
            path: value if value is None or self.kinds[path] != "text" or isinstance(value, str) else text_of(value)
            for path, value in values.items()
        }


def _listed(seeds: Sequence[int] | str) -> Any:
    if isinstance(seeds, int):
        raise TypeError(f'seeds: expected a list, or a range as "0:{shown(max(seeds, 1))}", got an int')
    return seeds if isinstance(seeds, str | list | tuple | range) else list_of("seeds", seeds, "a list of ints")


def _kind(values: Sequence[Any]) -> Kind:
    """The kind of a column; None, which only text and floats have room for, is a key that is not set."""
    types = {type(value) for value in values}
    if types == {bool}:
        return "bool"
    if types == {int} and all(abs(value) < 2**63 for value in values):
        return "int"
    if any(type(value) is int and abs(value) > 2**53 for value in values):
        return "text"  # a float would be another number
    return "float" if types & {int, float} and types <= {int, float, type(None)} else "text"


class _Sweep:
    """One call of `sweep`."""

    def __init__(self, request: _Request, executor: Any, threads: int, progress: bool | None) -> None:
        self._request, self._threads, self._progress = request, threads, progress
        self._executor = None if executor is None else _executor(executor)
        self._workshop = Workshop(request.arms)
        self._out: Path | None = None
        self._timing_errors: dict[bytes, ConfigError | None] = {}  # by what a schedule follows from

    def go(self, out: str | os.PathLike[str] | None, resume: bool) -> SweepResults:
        request = self._request
        runs = dict(request.arms.runs(request.seeds))
        if len(runs) < len(request.changes) * len(request.seeds):
            raise ConfigError(f"{self._twice()}: two arms are the same configuration")
        if out is None:
            pending = list(runs.values())
            failed, schema = self._check(pending)
            memory = MemoryStore(schema)
            self._work(memory, pending, failed, runs)
            return SweepResults(memory, request.changes)
        if not (path_of("out", out) / "sweep.json").exists():
            self._check(list(runs.values()))  # nothing is written where the grid is wrong
        self._out = Path(out)
        made_of = provenance(request.base, request.tables_of("trace", "problem"))
        store = FolderStore.open(out, {"base": request.tables, **request.about, "provenance": made_of}, resume=resume)
        try:
            renumbered = self._compare(store, runs, made_of["inputs"])
            done = set(store.finished())
            pending = [pair for run, pair in runs.items() if run not in done]
            failed, schema = self._check(pending, {runs[run][0] for run in done})
            before = store.about["provenance"]
            about = {**request.about, "provenance": {**before, "inputs": {**before["inputs"], **made_of["inputs"]}}}
            store.prepare(schema, about, lambda run: request.cells(runs[run][0]), renumbered=renumbered)
            self._work(store, pending, failed, runs)
        finally:
            store.close()
        return SweepResults(FolderStore(out), request.changes)

    def _twice(self) -> str:
        return "configs" if self._request.about["configs"] is not None else "grid"

    def _compare(self, store: FolderStore, runs: Mapping[str, Pair], inputs: Mapping[str, str]) -> bool:
        """Refuses a folder of another sweep; whether arms may have other numbers now."""
        request, about = self._request, store.about
        found = first_difference(about["base"], json.loads(text_of(request.tables)))
        if found is not None:
            key, old, new = found
            raise ConfigError(f"{key}: {store.path} was made with {old}, this is {new}; give another folder")
        for name, sha256 in inputs.items():
            if about["provenance"]["inputs"].get(name, sha256) != sha256:
                raise ConfigError(f"{name}: the file has changed since {store.path} was made; give another folder")
        foreign = [run for run in store.finished() if run not in runs]
        if foreign:
            raise ConfigError(
                f"{self._twice()}: {store.path} has {len(foreign)} runs that are not asked for; "
                "a larger grid and more seeds may go on with it, for others give another folder"
            )
        return any(about[name] != json.loads(text_of(request.about[name])) for name in ("grid", "configs"))

    def _check(self, pending: Sequence[Pair], done: Collection[int] = ()) -> tuple[dict[int, str], Schema]:
        """The arms that cannot be, with their errors, and the columns of the results.

        A key that neither the base nor any arm, those that are done among them, can have is an error of the grid, and
        nothing is run. So is a key of the base that an arm rules out, as FedAvg does schedule.concurrency.
        """
        request, failed = self._request, dict[int, ConfigError]()
        possible: set[str] = set()
        metrics: dict[str, None] = {}
        for arm in dict.fromkeys(arm for arm, _ in pending):
            try:
                config = self._workshop.config(arm)
            except ConfigError as error:
                failed[arm] = error
                continue
            config.check_code()
            config.check_repeatable("sweep")
            possible.update(request.changes[arm])
            metrics |= dict.fromkeys(_metrics(config))
            wrong_timing = self._timing_error(arm, config)
            if wrong_timing is not None:
                failed[arm] = wrong_timing
        if any(isinstance(wrong, UnknownKeyError) for wrong in failed.values()):
            possible.update(path for arm in done for path in request.changes[arm])
        for wrong in failed.values():
            if isinstance(wrong, UnknownKeyError) and not (
                _stands_in(request.tables, wrong.path) or any(_leads_to(path, wrong.path) for path in possible)
            ):
                raise wrong
        for arm, wrong in failed.items():
            if isinstance(wrong, ConflictError) and not any(
                _leads_to(path, wrong.path) for path in request.changes[arm]
            ):
                raise ConfigError(explain(request.changes[arm], wrong))
        for changes in {path: arm for arm in request.changes for path, value in arm.items() if value is None}.values():
            refuse_unknown_removals(request.base.tables, changes)
        schema: Schema = {"run": "text", "arm": "int", "seed": "seed", **request.kinds, **_RUN}
        schema |= dict.fromkeys(metrics, "float")
        mean: Schema = {"grad_norm_sq_mean": "floats"} if "grad_norm_sq" in metrics else {}
        history: Schema = {**HISTORY_COLUMNS, **dict.fromkeys(metrics, "floats"), **mean}
        schema |= {HISTORY + name: kind for name, kind in history.items()}
        return {arm: explain(request.changes[arm], wrong) for arm, wrong in failed.items()}, schema

    def _timing_error(self, arm: int, config: StudyConfig) -> ConfigError | None:
        """Why the arm can have no schedule, as far as that needs no file: as with more tasks at work than clients."""
        if config.tables["trace"]["kind"] != "model":
            return None
        key = self._workshop.schedule_key(arm)
        if key not in self._timing_errors:
            try:
                config.plans([0])
                self._timing_errors[key] = None
            except ConfigError as error:
                self._timing_errors[key] = error
        return self._timing_errors[key]

    def _work(
        self,
        store: FolderStore | MemoryStore,
        pending: Sequence[Pair],
        failed: Mapping[int, str],
        runs: Mapping[str, Pair],
    ) -> None:
        run_of = {pair: run for run, pair in runs.items()}

        def keep(rows: Sequence[Row]) -> None:
            for row in rows:
                row |= {"run": run_of[row["arm"], row["seed"]], **self._request.cells(row["arm"])}
            store.add(rows)
            bar.update(len(rows))

        bar = optional("tqdm", None, "a progress bar").tqdm(
            total=len(pending), unit=" runs", disable=None if self._progress is None else not self._progress
        )
        with bar:
            keep([_failed_row(pair, failed[pair[0]]) for pair in pending if pair[0] in failed])
            try:
                self._run_all(self._in_order([pair for pair in pending if pair[0] not in failed]), keep, store.tend)
            except KeyboardInterrupt as interrupt:
                store.flush()
                raise SweepInterrupted(SweepResults(store, self._request.changes)) from interrupt

    def _in_order(self, pending: Sequence[Pair]) -> list[Pair]:
        """Runs that share a problem stand together, so that few are held at once; so do those of a schedule."""
        place = {seed: at for at, seed in enumerate(self._request.seeds)}
        problems: dict[bytes, int] = {}
        schedules: dict[bytes, int] = {}
        key: dict[int, tuple[int, int]] = {}
        for arm in dict.fromkeys(arm for arm, _ in pending):
            problem = self._request.arms.sections(arm)["problem"].key
            schedule = self._workshop.schedule_key(arm)
            key[arm] = (
                problems.setdefault(problem, len(problems)),
                schedules.setdefault(schedule, len(schedules)),
            )
        return sorted(pending, key=lambda pair: (*key[pair[0]], place[pair[1]], pair[0]))

    def _run_all(
        self, pairs: list[Pair], keep: Callable[[Sequence[Row]], None], tend: Callable[[], float | None]
    ) -> None:
        cancel = np.zeros(1, np.uint8)
        if not pairs:
            return
        if self._executor is None:
            inner = max(1, self._threads // len(pairs))
            workers = min(self._threads, len(pairs))
            with ThreadPoolExecutor(workers, thread_name_prefix="fedbuff") as pool:
                batches = Batches(pairs, _SECONDS_A_BATCH, workers)
                crew = Crew(lambda batch: pool.submit(self._workshop.run, batch, inner, cancel), batches, 2 * workers)
                self._follow(crew, batches, keep, tend, cancel, patient=True)
            return
        executor, workers = self._executor
        with _Mapped(self._workshop, pairs, self._out) as mapped:
            base = self._request.base
            setup = Setup(uuid.uuid4().hex, base.tables, base.folder.resolve(), mapped, base.allow_code)
            changes = self._request.changes

            def submit(batch: list[Pair]) -> Any:
                return executor.submit(run_batch, setup, {arm: changes[arm] for arm, _ in batch}, batch)

            batches = Batches(pairs, _SECONDS_A_REMOTE_BATCH, workers)
            crew = Crew(submit, batches, 2 * workers)
            self._follow(crew, batches, keep, tend, cancel, patient=False)

    def _follow(
        self,
        crew: Crew[Pair, list[Row]],
        batches: Batches[Pair],
        keep: Callable[[Sequence[Row]], None],
        tend: Callable[[], float | None],
        cancel: NDArray[np.uint8],
        patient: bool,
    ) -> None:
        """Keeps rows as they come; what was done before an error or Ctrl-C is kept too."""
        try:
            while ended := crew.next(tend):
                for pairs, future in ended:
                    error = future.exception()
                    if error is None:
                        rows = future.result()
                        batches.note(len(rows), sum(row["seconds"] for row in rows))
                        keep(rows)
                    elif isinstance(error, BrokenExecutor | CancelledError):
                        raise error
                    elif len(pairs) > 1:
                        batches.give_back(pairs)  # one of them killed its worker: each alone, so that it fails alone
                    else:
                        arm, _ = pairs[0]
                        keep([_failed_row(pairs[0], explain(self._request.changes[arm], error))])
                    crew.let_go(future)
        except BaseException:
            cancel[0] = 1
            for future in crew.stop(patient):
                keep(future.result())
            raise


def _failed_row(pair: Pair, error: str) -> Row:
    return {"arm": pair[0], "seed": pair[1], "status": "failed", "error": error, "exit_reason": "", "seconds": 0.0}


def _leads_to(path: str, key: str) -> bool:
    """Whether a change at the path is one of the key, or of a table that holds it."""
    return path == key or key.startswith(f"{path}.")


def _stands_in(tables: Mapping[str, Any], path: str) -> bool:
    value: Any = tables
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return True


def _metrics(config: StudyConfig) -> tuple[str, ...]:
    """The metrics of an arm, as far as they are known without its data."""
    asked = config.replay_options.metrics
    return default_metrics(config.tables["problem"]["kind"]) if asked is None else asked


# ---- elsewhere ----


def _executor(given: Any) -> tuple[Executor, int]:
    """An executor as the standard library has it, and how many workers it has."""
    if isinstance(given, Executor):
        return given, getattr(given, "_max_workers", None) or os.cpu_count() or 1
    if type(given).__module__.partition(".")[0] == "distributed" and hasattr(given, "get_executor"):
        return given.get_executor(pure=False), max(1, sum(given.nthreads().values()))
    raise TypeError(
        f"executor: expected a concurrent.futures.Executor or a distributed.Client, got {type(given).__name__}"
    )


class _Mapped:
    """Folders with the rows of the problems, each array a file that worker processes map into their memory."""

    def __init__(self, workshop: Workshop, pairs: Sequence[Pair], out: Path | None) -> None:
        self._workshop, self._pairs, self._out = workshop, pairs, out

    def __enter__(self) -> dict[str, str]:
        # In the folder of the results where there is one: other machines may see it.
        self._folder = tempfile.TemporaryDirectory(prefix=ROWS, dir=self._out)
        made: dict[str, str] = {}
        sections = self._workshop.arms.sections
        for arm in {sections(arm)["problem"].key: arm for arm, _ in self._pairs}.values():
            config = self._workshop.config(arm)
            key = config.rows_key
            if key is None or key in made:
                continue
            try:
                rows = self._workshop.rows(arm)
            except (ConfigError, OSError):
                continue  # the runs will say it
            made[key] = str(Path(self._folder.name).resolve() / key)
            save_rows(Path(made[key]), rows)
        return made

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()
