"""`sweep`: a configuration, a grid of changes and seeds; every run once, on threads, processes or a cluster.

A run is known by the hash of its arm's tables and its seed. What is asked for and not done yet is cut into batches of
about equal time, and rows are stored as batches end.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import backends
from .._base.checks import count, path_of
from .._base.progress import progress_bar
from .._study.run_folder import first_difference, provenance
from .._study.tables import ConfigError
from .arms import Pair, text_of
from .batches import Batches, WorkerPool
from .check import Checks
from .columns import Row
from .executors import MappedRows, executor_of
from .request import Base, Request, study_of
from .results import SweepResults
from .rows import explain
from .store import FolderStore, MemoryStore
from .worker import Setup, Workshop, run_batch

__all__ = ["SweepInterrupted", "sweep"]

_SECONDS_A_BATCH = 0.05  # on threads here
_SECONDS_A_REMOTE_BATCH = 0.5


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
    allow_code: problems of the kinds "factory", "torch" and "jax" may run the code that they name

    A run that cannot be made has the status "failed" and says why; the others go on. Ctrl-C raises `SweepInterrupted`,
    a KeyboardInterrupt that carries `.results`.
    """
    request = Request(study_of(base, allow_code), grid, configs, seeds)
    workers = backends.default_threads() if threads is None else count("threads", threads)
    return _Sweep(request, executor, workers, progress).go(out, resume)


class _Sweep:
    """One call of `sweep`."""

    def __init__(self, request: Request, executor: Any, threads: int, progress: bool | None) -> None:
        self._request, self._threads, self._progress = request, threads, progress
        self._executor = None if executor is None else executor_of(executor)
        self._workshop = Workshop(request.arms)
        self._checks = Checks(request, self._workshop)
        self._out: Path | None = None

    def go(self, out: str | os.PathLike[str] | None, resume: bool) -> SweepResults:
        request = self._request
        runs = dict(request.arms.runs(request.seeds))
        if len(runs) < len(request.changes) * len(request.seeds):
            raise ConfigError(f"{self._twice()}: two arms are the same configuration")
        if out is None:
            pending = list(runs.values())
            failed, schema = self._checks.run(pending)
            memory = MemoryStore(schema)
            self._work(memory, pending, failed, runs)
            return SweepResults(memory, request.changes)
        if not (path_of("out", out) / "sweep.json").exists():
            self._checks.run(list(runs.values()))  # nothing is written where the grid is wrong
        self._out = Path(out)
        made_of = provenance(request.base, request.tables_of("trace", "problem"))
        store = FolderStore.open(out, {"base": request.tables, **request.about, "provenance": made_of}, resume=resume)
        try:
            renumbered = self._compare(store, runs, made_of["inputs"])
            done = set(store.finished())
            pending = [pair for run, pair in runs.items() if run not in done]
            failed, schema = self._checks.run(pending, {runs[run][0] for run in done})
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

        bar = progress_bar(len(pending), " runs", self._progress)
        with bar:
            keep([_failed_row(pair, failed[pair[0]]) for pair in pending if pair[0] in failed])
            try:
                self._run_all(
                    self._in_order([pair for pair in pending if pair[0] not in failed]), keep, store.flush_if_due
                )
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
        self, pairs: list[Pair], keep: Callable[[Sequence[Row]], None], flush: Callable[[], float | None]
    ) -> None:
        cancel = np.zeros(1, np.uint8)
        if not pairs:
            return
        if self._executor is None:
            inner = max(1, self._threads // len(pairs))
            workers = min(self._threads, len(pairs))
            with ThreadPoolExecutor(workers, thread_name_prefix="fedbuff") as threads:
                batches = Batches(pairs, _SECONDS_A_BATCH, workers)
                pool = WorkerPool(
                    lambda batch: threads.submit(self._workshop.run, batch, inner, cancel), batches, 2 * workers
                )
                self._follow(pool, batches, keep, flush, cancel, wait_for_running=True)
            return
        executor, workers = self._executor
        with MappedRows(self._workshop, pairs, self._out) as mapped:
            base = self._request.base
            setup = Setup(uuid.uuid4().hex, base.tables, base.folder.resolve(), mapped, base.allow_code)
            changes = self._request.changes

            def submit(batch: list[Pair]) -> Any:
                return executor.submit(run_batch, setup, {arm: changes[arm] for arm, _ in batch}, batch)

            batches = Batches(pairs, _SECONDS_A_REMOTE_BATCH, workers)
            pool = WorkerPool(submit, batches, 2 * workers)
            self._follow(pool, batches, keep, flush, cancel, wait_for_running=False)

    def _follow(
        self,
        pool: WorkerPool[Pair, list[Row]],
        batches: Batches[Pair],
        keep: Callable[[Sequence[Row]], None],
        flush: Callable[[], float | None],
        cancel: NDArray[np.uint8],
        wait_for_running: bool,
    ) -> None:
        """Keeps rows as they come; what was done before an error or Ctrl-C is kept too."""
        try:
            while ended := pool.next(flush):
                for pairs, future in ended:
                    error = future.exception()
                    if error is None:
                        rows = future.result()
                        batches.note(len(rows), sum(row["seconds"] for row in rows))
                        keep(rows)
                    elif isinstance(error, BrokenExecutor | CancelledError):
                        raise error
                    elif len(pairs) > 1:
                        # A run killed its worker: each run gets a batch of its own, so that no other fails with it.
                        batches.give_back(pairs)
                    else:
                        arm, _ = pairs[0]
                        keep([_failed_row(pairs[0], explain(self._request.changes[arm], error))])
                    pool.discard(future)
        except BaseException:
            cancel[0] = 1
            for future in pool.stop(wait_for_running):
                keep(future.result())
            raise


def _failed_row(pair: Pair, error: str) -> Row:
    return {"arm": pair[0], "seed": pair[1], "status": "failed", "error": error, "exit_reason": "", "seconds": 0.0}
