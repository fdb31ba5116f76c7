"""The runs of a sweep in one process: arms, the objects that they share, and a row for each run.

The arms of a sweep differ from the base in a few tables. So tables are made, hashed and turned into objects one by one,
and once: arms with the same table [problem] share the problem, and so on. Runs of small problems take as long as their
set-up in Python would; those are handed to the core many at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import backends
from .._delays.arrival_log import ArrivalLog
from .._delays.trace import PARTS, Trace
from .._problems.base import Problem
from .._problems.local import LocalSGD
from .._replay.check import check_method
from .._replay.engine import WINDOW_BYTES
from .._replay.loop import make_loop
from .._replay.replay import update_weights
from .._rule.server_file import rule_is_known
from .._rule.strategies import OF_SCHEDULE, Rule, rule_of, timing_of
from .._schedule.plan import stall_message
from .._schedule.schedule import Schedule
from .._study.config import StudyConfig, at_replay
from .._study.data import Rows, load_rows
from .._study.tables import ConfigError
from ..backends.spec import METRICS, PROBLEM_METRICS, ArmSpec, CompiledBackend, PackedArm, PackedEnd, PackedRuns
from .arms import Arms, Changes, Pair, Section, digest, text_of
from .columns import Row
from .rows import explain, packed_row, row_of

__all__ = ["Setup", "Workshop", "run_batch"]

# What each property of a StudyConfig is made of.
_MADE_OF: dict[str, tuple[str, ...]] = {
    "strategy": ("strategy",),
    "local": ("local", "problem"),
    "schedule_options": ("schedule",),
    "replay_options": ("replay",),
    "_model": ("trace",),
    "_problem_and_test": ("problem",),
    "held_out_rows": ("problem",),
    "_recorded_source": ("trace",),
    "source": ("trace", "problem"),
}
_LARGE = ("_problem_and_test", "held_out_rows", "_recorded_source", "source")
_LARGE_KEPT = 4
_MOST_PACKED = 10_000
_TABLE_SIZE = 32
_MOST_ARRAYS = 100
_TRACE_BYTES = 64 * 2**20  # of resampled delays that are held at once


class Workshop:
    """Configurations of arms. Arms with an equal table share the object that is made of it."""

    def __init__(self, arms: Arms, mapped: Mapping[str, str] | None = None) -> None:
        self.arms = arms
        self._mapped = mapped or {}  # folders of rows, by their key
        self._shared: dict[tuple[str, bytes], Any] = {}
        self._large: dict[tuple[str, bytes], None] = {}  # in the order of their last use
        self._checked: set[bytes] = set()
        self._lock = threading.RLock()
        self._rows: tuple[str | None, Rows] | None = None
        self._last = threading.local()  # a thread's last schedule, with its key, and its memory for runs in the core
        self._schedule_keys: dict[int, bytes] = {}
        self._packed: dict[int, tuple[Any, tuple[str, ...]]] = {}  # with their metrics
        self._tables: dict[bytes, NDArray[np.float64]] = {}  # staleness weights, by the table [strategy]
        self._by_client: dict[tuple[Any, ...], NDArray[Any]] = {}  # weights and batch sizes
        # Objects that the base has built are used here, and the base gets those that are built of its tables.
        self._of_base = {name: self._key_of(arms.base_sections, parts) for name, parts in _MADE_OF.items()}
        self._keep(arms.base, self._of_base)

    @staticmethod
    def _key_of(sections: Mapping[str, Section], parts: Sequence[str]) -> bytes:
        return b"".join(sections[part].key for part in parts)

    def config(self, arm: int) -> StudyConfig:
        """The arm's configuration; a ConfigError where its tables cannot be."""
        sections = self.arms.sections(arm)
        keys = {name: self._key_of(sections, parts) for name, parts in _MADE_OF.items()}
        with self._lock:
            ready = {name: self._shared[name, key] for name, key in keys.items() if (name, key) in self._shared}
            tables = {name: section.table for name, section in sections.items()}
            problem = sections["problem"].key
            made = self.arms.base.with_sections(tables, ready, checked=problem in self._checked)
            self._checked.add(problem)
            self._keep(made, keys)
        return made

    def _keep(self, config: StudyConfig, keys: Mapping[str, bytes]) -> None:
        for name, key in keys.items():
            if name not in config.__dict__:
                continue
            self._shared[name, key] = config.__dict__[name]
            if name in _LARGE:
                self._large.pop((name, key), None)
                self._large[name, key] = None
                if key == self._of_base[name]:
                    self.arms.base.__dict__.setdefault(name, config.__dict__[name])
        while len(self._large) > _LARGE_KEPT * len(_LARGE):
            oldest = next(iter(self._large))
            del self._large[oldest], self._shared[oldest]

    def ready(self, arm: int) -> StudyConfig:
        """The arm's configuration with its problem and its delays, made by one thread for all."""
        config = self.config(arm)
        if "_problem_and_test" in config.__dict__ and "source" in config.__dict__:
            return config
        with self._lock:
            config = self.config(arm)
            if config.rows_key is not None and "_problem_and_test" not in config.__dict__:
                config.__dict__["rows"] = self.rows(arm)
            _ = config.problem, config.held_out_rows, config.source
            sections = self.arms.sections(arm)
            self._keep(config, {name: self._key_of(sections, _MADE_OF[name]) for name in _LARGE})
        return config

    def rows(self, arm: int) -> Rows:
        """The data of an arm's problem, in order, for all problems that are made of it."""
        config = self.config(arm)
        key = config.rows_key
        with self._lock:
            if self._rows is None or self._rows[0] != key:
                folder = self._mapped.get(str(key))
                there = folder is not None and Path(folder).is_dir()
                self._rows = key, load_rows(Path(str(folder))) if there else config.rows.in_order()
            return self._rows[1]

    def schedule_key(self, arm: int) -> bytes:
        """The hash of all that the arm's schedules follow from, but the seed."""
        known = self._schedule_keys.get(arm)
        if known is not None:
            return known
        sections = self.arms.sections(arm)
        timing = digest(text_of(_timing(self.config(arm).strategy)))
        made = b"".join((sections["trace"].key, sections["schedule"].key, timing, sections["problem"].key))
        self._schedule_keys[arm] = made
        return made

    def run(self, pairs: Sequence[Pair], threads: int, cancel: NDArray[np.uint8]) -> list[Row]:
        """The rows of runs; cancelled ones are left out."""
        rows: list[Row] = []
        others: list[Pair] = []
        for _, group in groupby(pairs, lambda pair: self.schedule_key(pair[0])):
            more, rest = self._run_packed(list(group), threads, cancel)
            rows, others = rows + more, others + rest
        for arm, seed in others:
            began = time.perf_counter()
            try:
                row = self._run(self.ready(arm), arm, seed, threads, cancel)
            except _Cancelled:
                break
            except Exception as error:
                row = self._failed(arm, seed, error)
            rows.append(row | {"arm": arm, "seed": seed, "seconds": time.perf_counter() - began})
        return rows

    def _failed(self, arm: int, seed: int, error: Exception) -> Row:
        said = explain(self.arms.changes[arm], error)
        return {"arm": arm, "seed": seed, "status": "failed", "error": said, "exit_reason": "", "seconds": 0.0}

    def _run_packed(
        self, pairs: Sequence[Pair], threads: int, cancel: NDArray[np.uint8]
    ) -> tuple[list[Row], list[Pair]]:
        """Runs the pairs that can be packed in the core, along one plan; their rows, and the other pairs."""
        rows: list[Row] = []
        others: list[Pair] = []
        by_seed: dict[int, list[int]] = {}
        errors: dict[int, Exception] = {}
        for arm in dict.fromkeys(arm for arm, _ in pairs):
            try:
                self._packed_arm(arm)
            except Exception as error:
                errors[arm] = error
        for arm, seed in pairs:
            if arm in errors:
                rows.append(self._failed(arm, seed, errors[arm]))
            elif self._packed_arm(arm)[0] is None:
                others.append((arm, seed))
            else:
                by_seed.setdefault(seed, []).append(arm)
        if by_seed:
            seeds, most = list(by_seed), _seeds_at_once(self.ready(next(iter(by_seed.values()))[0]))
            for at in range(0, len(seeds), most):
                rows += self._run_seeds({seed: by_seed[seed] for seed in seeds[at : at + most]}, threads, cancel)
        return rows, others

    def _run_seeds(self, by_seed: Mapping[int, list[int]], threads: int, cancel: NDArray[np.uint8]) -> list[Row]:
        """The rows of packed arms for each seed, by one call of the core."""
        first = self.ready(next(iter(by_seed.values()))[0])
        pairs = [(arm, seed) for seed, chosen in by_seed.items() for arm in chosen]
        try:
            plans, expected_rows = first.plans(list(by_seed))
        except ConfigError as error:
            if len(by_seed) == 1:
                return [self._failed(arm, seed, error) for arm, seed in pairs]
            return [row for seed in by_seed for row in self._run_seeds({seed: by_seed[seed]}, threads, cancel)]
        w0 = np.stack([first.problem.init(seed) for seed in by_seed])
        arms = [[self._packed_arm(arm)[0] for arm in chosen] for chosen in by_seed.values()]
        found = self._runs(threads, cancel).run(plans, expected_rows, w0, arms)
        rows: list[Row] = []
        again: dict[int, list[int]] = {}
        for (arm, seed), run in zip(pairs, found, strict=True):
            what, end, raised = run[0], run[1], run[-1]
            if what == PackedEnd.ENDED:
                rows.append({"arm": arm, "seed": seed, **packed_row(end, self._packed_arm(arm)[1], *run[2:9])})
                continue
            try:
                if what == PackedEnd.SHORT_TABLE:
                    self._lengthen(arm, run[4] + 1)
                    again.setdefault(seed, []).append(arm)
                elif what == PackedEnd.STALLED:
                    raise ConfigError(f"schedule: {stall_message(plans[0])}")
                elif what == PackedEnd.FAILED:
                    with at_replay():
                        assert raised is not None
                        raise raised
            except Exception as failure:
                rows.append(self._failed(arm, seed, failure))
        return rows + (self._run_seeds(again, threads, cancel) if again else [])

    def _runs(self, threads: int, cancel: NDArray[np.uint8]) -> PackedRuns:
        """This thread's memory for runs in the core."""
        made = getattr(self._last, "runs", None)
        if made is None or made[0] is not cancel:
            made = self._last.runs = cancel, _compiled().packed_runs(threads, cancel)
        runs: PackedRuns = made[1]
        return runs

    def _packed_arm(self, arm: int) -> tuple[Any, tuple[str, ...]]:
        """An arm as the core takes it, and its metrics; None where it cannot be packed. Raises where it cannot run."""
        known = self._packed.get(arm)
        if known is not None:
            return known
        made: tuple[Any, tuple[str, ...]] = None, ()
        config = self.ready(arm)
        if backends.compiled() is not None and _can_be_packed(config):
            with at_replay():
                made = self._pack(config, arm), config.metrics
        if len(self._packed) >= _MOST_PACKED:
            self._packed.clear()
        self._packed[arm] = made
        return made

    def _pack(self, config: StudyConfig, arm: int) -> PackedArm:
        sections = self.arms.sections(arm)
        problem, local, rule = config.problem, config.local, rule_of(config.strategy)
        assert isinstance(problem, Problem) and isinstance(local, LocalSGD)
        check_method(local, rule)
        options = config.replay_options
        key = sections["problem"].key
        e = self._shared_array((key, rule.weighting, rule.weight_scale), lambda: update_weights(rule, problem, ()))
        test: Any = config.held_out_rows if "accuracy" in config.metrics else None
        spec = ArmSpec(
            rule=rule,
            problem=problem.bound,
            held_out=None if test is None else test.bound,
            local=local.plan(problem),
            s=self._table(sections["strategy"].key, rule, _TABLE_SIZE if rule_is_known(rule) else 0),
            e=e,
            window_bytes=WINDOW_BYTES,
            eval_every=options.eval_every or 0,
            metrics=config.metrics,
            stop=options.stop,
        )
        return _compiled().packed_arm(spec)

    def _shared_array(self, key: tuple[Any, ...], make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        made = self._by_client.get(key)
        if made is None:
            if len(self._by_client) >= _MOST_ARRAYS:
                self._by_client.clear()
            made = self._by_client[key] = make()
        return made

    def _table(self, key: bytes, rule: Rule, size: int) -> NDArray[np.float64]:
        """Staleness weights, at least so many. A user's function is called for those that are needed only."""
        table = self._tables.get(key, np.empty(0))
        if len(table) < size:
            end = max(size, _TABLE_SIZE, 2 * len(table)) if rule_is_known(rule) else size
            more = [rule.staleness_weight(t) for t in range(len(table), end)]
            table = self._tables[key] = np.concatenate((table, more))
        return table

    def _lengthen(self, arm: int, size: int) -> None:
        """Packs the arm again, with so many staleness weights."""
        with at_replay():
            self._table(self.arms.sections(arm)["strategy"].key, rule_of(self.config(arm).strategy), size)
        self._packed.pop(arm, None)

    def _run(self, config: StudyConfig, arm: int, seed: int, threads: int, cancel: NDArray[np.uint8]) -> Row:
        key = self.schedule_key(arm), seed
        if getattr(self._last, "key", None) != key:
            self._last.schedule, self._last.key = config.make_schedule(seed), key
        schedule: Schedule = self._last.schedule
        with at_replay():
            loop = make_loop(
                config.problem, schedule, config.local, **config.replay_arguments(schedule), seed=seed, threads=threads
            )
            return row_of(loop.go(_Watch(cancel)), schedule)


def _compiled() -> CompiledBackend:
    """The compiled backend, which `_packed_arm` has found in force."""
    compiled = backends.compiled()
    assert compiled is not None
    return compiled


def _can_be_packed(config: StudyConfig) -> bool:
    """Whether the core resolves and replays all of it: no host evaluates, no weight needs the whole schedule first."""
    problem, rule, stop = config.problem, rule_of(config.strategy), config.replay_options.stop
    looked_at = [name for name in PROBLEM_METRICS if stop is not None and getattr(stop, name) is not None]
    return (
        isinstance(problem, Problem)
        and config.local is not None
        and not config.local.keeps_state
        and config.local.compress is None
        and config.source is not None
        and not isinstance(config.source, ArrivalLog)
        and config.source.n_clients == problem.n_clients
        and rule.secure is None
        and rule.privacy is None
        and rule.weighting not in OF_SCHEDULE
        and (rule.table is None or (rule.table.path is None and rule.n_clients == problem.n_clients))
        and set(config.metrics) <= set(METRICS)
        and set(looked_at) <= set(config.metrics)
        and ("accuracy" not in config.metrics or hasattr(problem, "accuracy"))
    )


def _seeds_at_once(config: StudyConfig) -> int:
    """For how many seeds delays are held at once: where each seed has its own, as many as fit a bound of bytes."""
    if not config.delays_by_seed or not isinstance(config.source, Trace):
        return _MOST_PACKED
    return max(1, _TRACE_BYTES // (8 * (len(PARTS) + 1) * max(1, config.source.n_rows)))


def _timing(strategy: Any) -> dict[str, Any]:
    """The fields of a strategy that a schedule depends on."""
    return {"kind": strategy.kind, **timing_of(strategy)}


class _Cancelled(Exception):
    """The sweep was interrupted, and this run is cancelled."""


class _Watch:
    """A progress bar that draws nothing and asks ten times a second whether the run is cancelled."""

    def __init__(self, cancel: NDArray[np.uint8]) -> None:
        self._cancel = cancel

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, arrivals: int) -> None:
        if self._cancel[0]:
            raise _Cancelled


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker process needs beside the runs themselves.

    sweep  an id of the sweep, since the numbers of arms mean something within one sweep only
    rows   folders with the data of problems, by its key
    """

    sweep: str
    tables: dict[str, Any]
    folder: Path
    rows: dict[str, str]
    allow_code: bool


_workshops: dict[str, Workshop] = {}  # of this process, by sweep
_workshops_lock = threading.Lock()
_MOST_WORKSHOPS = 2
_NEVER = np.zeros(1, np.uint8)


def run_batch(setup: Setup, changes: dict[int, Changes], pairs: Sequence[Pair]) -> list[Row]:
    """Runs of a sweep in a worker process, which keeps the data for the next ones."""
    with _workshops_lock:
        if setup.sweep not in _workshops:
            while len(_workshops) >= _MOST_WORKSHOPS:
                del _workshops[next(iter(_workshops))]
            base = StudyConfig(setup.tables, setup.folder, setup.allow_code)
            _workshops[setup.sweep] = Workshop(Arms(base, {}), setup.rows)
        workshop = _workshops[setup.sweep]
        workshop.arms.changes.update(changes)
    return workshop.run(pairs, 1, _NEVER)
