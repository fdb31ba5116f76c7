# mypy: allow-untyped-calls
"""The replay of local SGD on a problem, in compiled code: Python is crossed once for each stretch of steps.

What it gives is what `python/replay.py` says, and so are its errors. All that a stretch changes lies in the arrays of a
`Job`; everything else is one value that is replaced and never changed, so that an interrupt finds the old one or the
new one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ..._rule.optimizers import SGD, Adam, optimizer_fields
from ..._rule.state import MOMENTS
from ..._rule.strategies import Norm, Rule
from ..python.replay import DIVERGED, NEED_ROWS, STEPS
from ..python.rule import initial_moments
from ..spec import EngineSpec, LocalPlan, LocalTask, UsedRows, Vector
from . import steps as _steps
from .compile import or_empty, reads
from .local_step import Local
from .optimizers import Optimizer
from .problem import NO_ROWS, BoundLoops
from .random import key_words
from .steps import (
    DONE,
    FILL,
    LEFT,
    LIVE,
    LOCK,
    MOST,
    N_FREE,
    PENDING,
    SLOT,
    STATUS,
    TAKEN,
    VERSION,
    Job,
    Server,
)
from .threads import on_threads

__all__ = ["CompiledReplay", "can_replay"]

_LINE = 64  # bytes of the cache
_WINDOW_OF_A_THREAD = 16  # deltas that wait, where there is memory for so many
_MOST_THREADS = 64
LEFT_OUT = ("table", "ring", "hidden", "own")  # fields of rules that are replayed step by step
METHODS = ("sgd", "fednova")  # of rules: those whose clients do local SGD, its deltas scaled


def can_replay(spec: EngineSpec) -> bool:
    """Whether `CompiledReplay` has all that this replay needs."""
    rule, sums = spec.rule, spec.sums
    return (
        isinstance(spec.bound, BoundLoops)
        and spec.function is None
        and spec.roles is None
        and not (sums.modulus or sums.clip > 0 or sums.deviation > 0)
        and all(getattr(rule, name) is None for name in LEFT_OUT)
        and rule.method in METHODS
        and (spec.local is None or spec.local.compress is None)
        and not rule.weighs_numbers
    )


class _Vectors(NamedTuple):
    """Vectors of one size, each at the begin of a line of the cache."""

    blocks: tuple[NDArray[Any], ...]
    address: NDArray[np.int64]

    def grown(self, more: int, like: Vector) -> _Vectors:
        bytes_each = -(-like.nbytes // _LINE) * _LINE
        block = np.empty(more * bytes_each + _LINE, np.uint8)
        block = block[-block.ctypes.data % _LINE :][: more * bytes_each]
        address = block.ctypes.data + bytes_each * np.arange(more, dtype=np.int64)
        return _Vectors((*self.blocks, block), np.concatenate((self.address, address)))

    def at(self, number: int, like: Vector) -> Vector:
        """The vector of this number; the memory belongs to this object."""
        address = int(self.address[number])
        for block in self.blocks:
            begin = address - block.ctypes.data
            if 0 <= begin < len(block):
                return block[begin : begin + like.nbytes].view(like.dtype)
        raise AssertionError("an address of another pool")


_NO_VECTORS = _Vectors((), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class _Held:
    """Where a replay stands: `job` is changed by compiled code alone."""

    job: Job
    models: _Vectors
    steps_known: int = 0
    pieces: int = 0
    passing: bool = False  # over rows of steps that were done before a restore

    @property
    def version(self) -> int:
        return int(self.job.at[VERSION])

    def table(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Versions, and what is known of them."""
        return self.job.first_version + np.arange(self.job.versions.shape[1]), self.job.versions


class CompiledReplay:
    """The methods of `SequentialReplay`."""

    def __init__(self, spec: EngineSpec) -> None:
        assert isinstance(spec.bound, BoundLoops) and spec.local is not None
        self._bound, self._local, self._rule = spec.bound, spec.local, spec.rule
        self._window_bytes = spec.window_bytes
        self._like = spec.w0.copy()
        self._windows = _NO_VECTORS
        self._batches = np.unique(spec.local.batch)
        self._record: tuple[int, int] | None = None  # every, offset
        self._gradients: tuple[float, ...] = ()
        self._noted: tuple[int, float] | None = None  # the gradient at a version, whose step may have been made
        models = _NO_VECTORS.grown(1, self._like)
        models.at(0, self._like)[:] = spec.w0
        versions = np.array([[0], [0], [0]], np.int64)
        at = np.zeros(_steps.N_WORDS, np.int64)
        at[[LIVE, MOST]] = 1
        moments = initial_moments(spec.rule, spec.w0)
        both = np.stack((*moments, *moments)) if moments else np.empty((0, spec.w0.size), spec.w0.dtype)
        self._held = _Held(self._job(spec, versions, at, both, models), models)

    def _job(
        self, spec: EngineSpec, versions: NDArray[np.int64], at: NDArray[np.int64], moments: Vector, models: _Vectors
    ) -> Job:
        local, t = self._local, self._like.dtype.type
        number = max(len(local.steps), len(local.batch), len(local.steps_per_pass))
        tasks = np.stack(
            [np.broadcast_to(column, number) for column in (local.steps, local.batch, local.steps_per_pass)]
        ).astype(np.int64)
        numbers = Local(
            0, 0.0, t(local.momentum), t(local.weight_decay), t(local.prox), reads(local.lr_factors), 0, 1.0,
            or_empty(None, self._like.dtype),
        )  # fmt: skip
        k0, k1 = key_words(spec.seed)
        return Job(
            first_row=0,
            first_step=0,
            first_version=0,
            rows=np.empty((3, 0), np.int64),
            factors=np.empty((4, 0)),
            row_end=np.empty(0, np.int64),
            step_lr=np.empty(0),
            versions=versions,
            address=models.address,
            free=np.empty(len(models.address), np.int64),
            window=np.zeros((2, 1), np.int64),
            at=at,
            sums=np.zeros(2),
            total=np.empty_like(self._like),
            moments=moments,
            tasks=tasks,
            local=numbers,
            k0=k0,
            k1=k1,
            server=_server(spec.rule),
        )

    # Rows

    def add(self, rows: UsedRows, references: NDArray[np.int64], unused: NDArray[np.int64]) -> None:
        self._settle()
        held = self._held
        job, version = held.job, held.version
        known, closed = held.steps_known, held.steps_known + len(references)
        on = np.asarray(rows.version, np.int64)
        skip = int(np.searchsorted(rows.step, version)) if held.passing else 0
        ended = np.concatenate((np.asarray(unused, np.int64), on[:skip]))
        versions, first_version = self._count(held, references, ended, on[skip:])

        done = _rows_of_made_steps(job) + skip
        old = slice(done - skip - job.first_row, None)
        new_rows = np.stack([np.asarray(column[skip:], np.int64) for column in (rows.client, rows.task, on)])
        columns = rows.s[skip:], rows.e[skip:], *_of_tasks(self._local, new_rows)
        new_factors = np.stack([np.asarray(column, np.float64) for column in columns])
        steps = np.arange(max(known, version), closed)
        left = job.rows.shape[1] - old.start
        row_end = done + left + np.searchsorted(rows.step[skip:], steps, side="right")
        old_steps = slice(version - job.first_step, None)
        made = job._replace(
            first_row=done,
            first_step=version,
            first_version=first_version,
            rows=np.concatenate((job.rows[:, old], new_rows), axis=1),
            factors=np.concatenate((job.factors[:, old], new_factors), axis=1),
            row_end=np.concatenate((job.row_end[old_steps], row_end)),
            step_lr=np.concatenate((job.step_lr[old_steps], self._lr_of_steps(rows, skip, steps))),
            versions=versions,
            free=job.free.copy(),
            at=job.at.copy(),
        )
        _forget(made, min(version, closed))
        self._held = replace(held, job=made, steps_known=closed, pieces=held.pieces + 1)

    def _count(
        self, held: _Held, references: NDArray[np.int64], ended: NDArray[np.int64], on: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], int]:
        """What is known of versions with these rows, and the first of them; an error where they do not add up."""
        known, closed, version = held.steps_known, held.steps_known + len(references), held.version
        before, table = held.table()
        alive = before[(table[SLOT] >= 0) | (table[LEFT] != 0) | (table[PENDING] != 0)]
        named = np.concatenate((alive, ended, on, [known, min(version, closed)]))  # it may pass over far more steps
        low, high = int(named.min()), max(int(named.max()), closed) + 2
        made = np.zeros((3, high - low), np.int64)
        made[SLOT] = -1
        here = (before >= low) & (before < high)
        made[:, before[here] - low] = table[:, here]
        told = slice(known - low, closed - low)
        kept = np.bincount(on - low, minlength=high - low)
        gone_now = np.bincount(ended - low, minlength=high - low)
        made[LEFT, told] += references
        made[LEFT] -= gone_now
        made[PENDING] += kept
        touched = (kept > 0) | (gone_now > 0)
        touched[told] = True
        number = low + np.arange(high - low)
        gone = (number <= version) & (kept > 0) & (made[SLOT] < 0) & (not held.passing)
        wrong = touched & (gone | ((number < closed) & (made[PENDING] > made[LEFT])))
        if wrong.any():
            v = int(number[wrong][0])
            raise ValueError(f"the model of version {v} is gone: more tasks end on it than were started")
        return made, low

    def _lr_of_steps(self, rows: UsedRows, skip: int, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        rule = self._rule
        if rule.rate is None and rule.tau_c is None:
            return np.full(len(steps), float(rule.lr))
        step, on = np.asarray(rows.step[skip:], np.int64), np.asarray(rows.version[skip:], np.int64)
        stalest = np.zeros(len(steps), np.int64)
        if len(steps):
            np.maximum.at(stalest, step - steps[0], step - on)
        return np.array([rule.lr_of(int(v), int(tau)) for v, tau in zip(steps, stalest, strict=True)], np.float64)

    def close(self) -> None:
        pass

    def pieces(self) -> int:
        return self._held.pieces

    # Steps

    def run(self, max_steps: int, threads: int) -> int:
        self._settle()
        if self._held.job.at[STATUS] == _steps.DIVERGED:
            return DIVERGED
        target = self._held.version + max_steps
        while (version := self._held.version) < target:
            if version >= self._held.steps_known:
                return NEED_ROWS
            goal = min(target, self._held.steps_known)
            if self._record is not None:
                every, offset = self._record
                if version % every == offset:
                    self._noted = (version, self._squared_gradient())
                    goal = version + 1
                else:
                    goal = min(goal, version + (offset - version) % every)
            self._make_steps(goal, min(threads, _MOST_THREADS))
            self._settle()
            status = int(self._held.job.at[STATUS])
            if status == _steps.DIVERGED:
                return DIVERGED
            if status == _steps.ZERO_NORM:
                raise ValueError(f"step {self._held.version}: the weights of its arrivals sum to zero")
        return STEPS

    def _make_steps(self, goal: int, threads: int) -> None:
        job = self._with_room(goal, threads)
        problem, batches = self._bound.problem, self._batches
        if threads == 1:
            _steps.steps_alone(problem, job, NO_ROWS, self._bound.task_scratch(batches), goal)
            return

        def part() -> None:
            _steps.steps_together(problem, job, NO_ROWS, self._bound.task_scratch(batches), goal)

        on_threads(part, threads)

    def _with_room(self, goal: int, threads: int) -> Job:
        """The job with memory for the models and deltas of the steps up to this version."""
        held, like = self._held, self._like
        job = held.job
        # An interrupt, or a step that could not be made, may have left rows of it behind.
        job.at[DONE] = job.at[TAKEN] = _rows_of_made_steps(job)
        job.at[[FILL, LOCK, STATUS]] = 0
        needed = int(_steps.slots_needed(job, goal))
        size = _window_size(threads, like.nbytes, self._window_bytes)
        if len(self._windows.address) < size:
            self._windows = self._windows.grown(size - len(self._windows.address), like)
        window = np.stack((self._windows.address[:size], np.zeros(size, np.int64)))
        job = job._replace(window=window)
        models = held.models
        have = len(models.address)
        if needed > have:
            more = max(needed - have, have // 2)
            models = models.grown(more, like)
            free, at = np.empty(have + more, np.int64), job.at.copy()
            free[: at[N_FREE]] = job.free[: at[N_FREE]]
            free[at[N_FREE] : at[N_FREE] + more] = np.arange(have, have + more)
            at[N_FREE] += more
            job = job._replace(address=models.address, free=free, at=at)
        self._held = replace(held, job=job, models=models)
        return job

    # Gradients

    def record_gradients(self, every: int, offset: int) -> None:
        """From now on notes |grad f(w^t)|^2 for every t with t % every == offset, when server step t is made."""
        if every < 1 or not 0 <= offset < every:
            raise ValueError(f"every {every}, offset {offset}: expected 0 <= offset < every")
        self._record, self._gradients, self._noted = (every, offset), (), None

    def gradients(self) -> NDArray[np.float64]:
        self._settle()
        return np.array(self._gradients, np.float64)

    def _squared_gradient(self) -> float:
        gradient = np.empty_like(self._like)
        self._bound.gradient(self._model(self._held.version), gradient, 1)
        wide = gradient.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.dot(wide, wide))

    def _settle(self) -> None:
        """A gradient that was noted counts once its step is made; a second time changes nothing."""
        if self._noted is not None and self._held.version > self._noted[0]:
            self._gradients, self._noted = (*self._gradients, self._noted[1]), None

    # Where it stands

    def set_table(self, memory: NDArray[Any]) -> None:
        raise AssertionError("a rule with a table is replayed elsewhere")

    def version(self) -> int:
        return self._held.version

    def _model(self, version: int) -> Vector:
        job = self._held.job
        return self._held.models.at(int(job.versions[SLOT, version - job.first_version]), self._like)

    def w(self) -> Vector:
        return self._model(self._held.version).copy()

    def rule_state(self) -> dict[str, NDArray[Any]]:
        moments = self._held.job.moments
        n = len(moments) // 2
        here = int(self._held.job.at[_steps.WHICH]) * n
        return {name: moments[here + i].copy() for i, name in enumerate(MOMENTS[:n])}

    def divergence(self) -> tuple[int, int]:
        """The step that could not be made, and its first row whose delta is not finite, which is found by making the
        deltas again."""
        job, version = self._held.job, self._held.version
        if job.at[STATUS] != _steps.DIVERGED:
            return -1, -1
        delta, seed = np.empty_like(self._like), int(job.k0) | int(job.k1) << 32
        for row in range(_rows_of_made_steps(job), int(job.row_end[version - job.first_step])):
            client, task, on = (int(number) for number in job.rows[:, row - job.first_row])
            drawn = LocalTask(client, task, seed, self._local.batch_of(client))
            self._bound.local_sgd(self._local.task(client, on), self._model(on), drawn, delta)
            if not np.isfinite(delta).all():
                return version, row
        return version, -1

    def stats(self) -> dict[str, float]:
        at = self._held.job.at
        return {
            "rows": _rows_of_made_steps(self._held.job),
            "live_versions": int(at[LIVE]),
            "most_versions": int(at[MOST]),
            "window": 0,
            "most_window": max(len(self._windows.address), 1),
            "commit_seconds": 0.0,
            "work_seconds": 0.0,
            "wait_seconds": 0.0,
            "secure_seconds": 0.0,
            "cut": 0,
        }

    def check(self) -> None:
        numbers, table = self._held.table()
        if ((numbers <= self._held.version) & (table[PENDING] > 0) & (table[SLOT] < 0)).any():
            raise AssertionError("replay: a needed version is there")

    def live_versions(self) -> list[int]:
        numbers, table = self._held.table()
        live: list[int] = numbers[table[SLOT] >= 0].tolist()
        return live

    def model(self, version: int) -> Vector:
        return self._model(version).copy()

    def waiting_deltas(self) -> Vector:
        return np.empty((0, self._like.size), self._like.dtype)

    # Going on from a checkpoint

    def pass_over(self, version: int) -> None:
        held = self._held
        if held.pieces or held.version:
            raise RuntimeError("replay: only a new one can pass over steps")
        at, versions = held.job.at.copy(), held.job.versions.copy()
        at[VERSION], at[LIVE] = version, 0
        versions[SLOT] = -1
        self._held = replace(held, job=held.job._replace(at=at, versions=versions, first_step=version), passing=True)

    def restore(
        self, w: Vector, live: list[int], models: Vector, rule_state: dict[str, NDArray[Any]], deltas: Vector
    ) -> int:
        held = self._held
        job, version = held.job, held.version
        if not held.passing or held.steps_known < version:
            raise RuntimeError("replay: it has not passed over the steps that are done")
        numbers, table = held.table()
        left = dict(zip(numbers.tolist(), table[LEFT].tolist(), strict=True))
        needed = {v: model for v, model in zip(live, models, strict=True) if left.get(v, 0) != 0}
        for v in numbers[(table[PENDING] > 0) & (numbers < version)].tolist():
            if v not in needed:
                raise ValueError(f"live: the model of version {v} is not there, and a later row needs it")
        held_models = needed | {version: w}
        pool = _NO_VECTORS.grown(len(held_models), self._like)
        versions, at = table.copy(), job.at.copy()
        for slot, (v, model) in enumerate(held_models.items()):
            pool.at(slot, self._like)[:] = model
            versions[SLOT, v - job.first_version] = slot
        at[[LIVE, MOST]], at[N_FREE], at[_steps.WHICH] = len(held_models), 0, 0
        moments = job.moments.copy()
        n = len(moments) // 2
        for i, name in enumerate(MOMENTS[:n]):
            moments[i] = moments[n + i] = rule_state[name]
        made = job._replace(
            versions=versions, at=at, moments=moments, address=pool.address, free=np.empty(len(pool.address), np.int64)
        )
        self._held = replace(held, job=made, models=pool, passing=False)
        return len(needed)


def _server(rule: Rule) -> Server:
    optimizer = rule.optimizer
    kind = _steps.OTHER
    if isinstance(optimizer, SGD):
        kind = _steps.SGD
    elif isinstance(optimizer, Adam) and optimizer.bias_correction:
        kind = _steps.ADAM
    given = optimizer_fields(optimizer)
    numbers: dict[str, Any] = {name: given[name] for name in Optimizer._fields[1:]}
    return Server(
        from_current=rule.base == "current",
        norm=get_args(Norm).index(rule.norm),
        n_clients=float(rule.n_clients or 1),
        optimizer=kind,
        by=Optimizer(code=optimizer.code, **numbers),
    )


def _of_tasks(local: LocalPlan, rows: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each row its local step size, but for the factors of local steps, and the scale of its delta."""
    client, version = rows[_steps.CLIENT], rows[_steps.ON_VERSION]
    lr, scale = (
        np.full(len(client), column[0]) if len(column) == 1 else column[client] for column in (local.lr, local.scale)
    )
    if local.version_rate is not None:
        numbers, which = np.unique(version, return_inverse=True)
        lr = lr * np.array([local.version_rate.at(int(v)) for v in numbers])[which]
    return lr, scale


def _rows_of_made_steps(job: Job) -> int:
    made = int(job.at[VERSION]) - job.first_step
    return int(job.row_end[made - 1]) if made > 0 else job.first_row


def _forget(job: Job, before: int) -> None:
    """Lets go of models of versions before this one that no task needs; the job is not in use yet."""
    number = job.first_version + np.arange(job.versions.shape[1])
    gone = (number < before) & (job.versions[LEFT] == 0) & (job.versions[SLOT] >= 0)
    n = int(gone.sum())
    if n:
        at = job.at
        job.free[at[N_FREE] : at[N_FREE] + n] = job.versions[SLOT, gone]
        job.versions[SLOT, gone] = -1
        at[N_FREE] += n
        at[LIVE] -= n


def _window_size(threads: int, nbytes: int, most_bytes: int) -> int:
    """How many deltas may wait."""
    if threads == 1:
        return 1
    return max(threads, min(_WINDOW_OF_A_THREAD * threads, most_bytes // max(nbytes, 1)))
