"""The run of a replay: feed, evaluate, stop. The specification of csrc/core/replay/run.hpp, and what runs elsewhere.

Where a run stands is one value that is replaced and never changed, so that an interrupt finds the old one or the new
one. The engine's version and number of pieces say how far the run really is; `_settle` brings the value there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..spec import PROBLEM_METRICS, ReplayEngine, RunLimits, RunSpec, RunState, UsedRows, Vector
from .replay import DIVERGED, NEED_ROWS

__all__ = ["PythonEngine", "Run"]

_SECONDS_A_STRETCH = 0.1
_LONGEST_STRETCH = 1 << 40


class PythonEngine(ReplayEngine, Protocol):
    """An engine that is not driven by a run in C++."""

    def close(self) -> None:
        """There are no more rows."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows that were given to the engine, and what is known of their steps."""

    n_rows: int
    version: NDArray[np.int64]  # of those that a step uses, and so on
    step: NDArray[np.int64]
    step_time: NDArray[np.float64]
    marks: NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class _Position:
    """Where a run stands."""

    version: int = 0
    time: float = 0.0
    updates: int = 0
    mark: int = 0
    pieces: int = 0
    rows_known: int = 0
    updates_known: int = 0
    # Of steps version, version + 1, ...: time; used rows up to and with the step; sum and maximum of the staleness of
    # the step's rows; its mark.
    step_time: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    step_rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    step_staleness: NDArray[np.int64] = field(default_factory=lambda: np.empty((2, 0), np.int64))
    step_mark: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    # The history's newest row, its metrics and its model; and since it: the updates then, sum and maximum of staleness.
    n_rows: int = 0
    newest: list[float] | None = None
    evaluated_at: int = -1
    values: tuple[float, ...] = ()
    mean: float = 0.0  # of the squared gradient norms in the history
    evaluated: Vector | None = None
    updates_before: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    # What is to be done about the newest row.
    unshown: bool = False
    unjudged: bool = False
    stopped: RunState | None = None
    saved_at: int = 0

    @property
    def steps_known(self) -> int:
        return self.version + len(self.step_time)

    def with_piece(self, piece: _Piece) -> _Position:
        """The engine was given this piece."""
        ends = np.searchsorted(piece.step, self.steps_known + np.arange(len(piece.step_time)), side="right")
        return replace(
            self,
            pieces=self.pieces + 1,
            rows_known=self.rows_known + piece.n_rows,
            updates_known=self.updates_known + len(piece.step),
            step_time=np.concatenate((self.step_time, piece.step_time)),
            step_rows=np.concatenate((self.step_rows, self.updates_known + ends)),
            step_staleness=np.concatenate((self.step_staleness, _by_step(piece.step - piece.version, ends)), axis=1),
            step_mark=np.concatenate((self.step_mark, piece.marks)),
        )

    def at(self, version: int) -> _Position:
        """The server is at this version now."""
        made = version - self.version
        if made <= 0:
            return self
        return replace(
            self,
            version=version,
            time=float(self.step_time[made - 1]),
            updates=int(self.step_rows[made - 1]),
            mark=(self.mark + int(self.step_mark[:made].sum())) % 2**64,
            staleness_sum=self.staleness_sum + int(self.step_staleness[0, :made].sum()),
            staleness_max=max(self.staleness_max, int(self.step_staleness[1, :made].max())),
            step_time=self.step_time[made:],
            step_rows=self.step_rows[made:],
            step_staleness=self.step_staleness[:, made:],
            step_mark=self.step_mark[made:],
        )


def _by_step(staleness: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum and maximum of each step's rows, which end at `ends`; zero for a step without rows."""
    begins = np.concatenate(([0], ends[:-1])).astype(np.int64)
    result = np.zeros((2, len(ends)), np.int64)
    full = begins < ends
    if full.any():
        result[0, full] = np.add.reduceat(staleness, begins[full])
        result[1, full] = np.maximum.reduceat(staleness, begins[full])
    return result


class Run:
    """A run over a new engine: `ReplayRun`."""

    def __init__(self, engine: PythonEngine, dot: Callable[[Vector, Vector], float], spec: RunSpec) -> None:
        self._engine, self._dot, self._spec = engine, dot, spec
        self._at = _Position()
        self._given: _Piece | None = None
        self._history: list[list[float]] = []  # rows that this run noted
        self._rows_before = 0
        self._passing = self._closed = False
        self._stretch = 1  # server steps between two looks at the clock
        self._announced = self._allowed = 0
        self._previous: tuple[int, Vector] | None = None  # a version and its model
        self._eval_seconds = 0.0
        self._secure_before = (0, 0.0)

    def _settle(self) -> _Position:
        """Where the run stands, brought to where the engine is: an interrupt may have come between the two."""
        now = self._at
        if self._engine.pieces() > now.pieces and self._given is not None:
            now = now.with_piece(self._given)
        if not self._passing:
            now = now.at(self._engine.version())
        if now is not self._at:
            self._at = now
        if self._rows_before + len(self._history) < now.n_rows and now.newest is not None:
            self._history.append(now.newest)
        return now

    def add(
        self,
        rows: UsedRows,
        references: NDArray[np.int64],
        unused: NDArray[np.int64],
        step_time: NDArray[np.float64],
        marks: NDArray[np.uint64] | None,
    ) -> None:
        self._settle()
        used = rows.s >= 0
        self._given = _Piece(
            len(used),
            rows.version[used],
            rows.step[used],
            step_time,
            np.zeros(len(step_time), np.uint64) if marks is None else marks,
        )
        self._engine.add(rows, references, unused)
        self._settle()

    def close(self) -> None:
        self._closed = True
        self._engine.close()

    # The loop

    def advance(self, max_steps: int, seconds: float, threads: int) -> int:
        until = time.perf_counter() + seconds
        target = self._settle().version + max_steps
        while (state := self._go_on(target, threads)) is None:
            if time.perf_counter() >= until:
                return RunState.SLICE
        return state

    def _go_on(self, target: int, threads: int) -> RunState | None:
        """Makes what comes next: an evaluation that is due, or a stretch of steps. What the host is asked, if anything,
        or the end."""
        now, spec = self._settle(), self._spec
        if now.stopped is not None:
            return now.stopped
        if spec.eval_every > 0:
            if (asked := self._evaluate(self._is_due(), threads)) is not None:
                return asked
            now = self._settle()
            if now.unjudged:
                self._at = now = replace(now, unjudged=False, stopped=_reached(spec.stop, spec.metrics, now.values))
                if now.stopped is not None:
                    return now.stopped
        if spec.checkpoint_every > 0 and now.version % spec.checkpoint_every == 0 and now.saved_at != now.version:
            self._at = replace(now, saved_at=now.version)
            return RunState.CHECKPOINT
        if now.version >= target:
            return RunState.SLICE
        goal, limit = self._goal()
        if goal > now.version:
            return self._make_steps(goal, target, threads)
        if limit is None and not self._closed:
            return RunState.NEED_ROWS
        asked = self._evaluate(True, threads) if spec.eval_every > 0 else None
        return asked if asked is not None else limit if limit is not None else RunState.SCHEDULE_END

    def _goal(self) -> tuple[int, RunState | None]:
        """The version to go to next, and the limit that it would be, if any."""
        now, stop = self._settle(), self._spec.stop
        goal, limit = now.steps_known, None
        if stop is not None:
            if stop.server_steps is not None and stop.server_steps <= goal:
                goal, limit = max(stop.server_steps, now.version), RunState.SERVER_STEPS
            for most, column, reason in (
                (stop.time, now.step_time, RunState.TIME),
                (stop.updates, now.step_rows, RunState.UPDATES),
            ):
                if most is not None:
                    within = now.version + int(np.searchsorted(column, most, side="right"))
                    if within < goal:
                        goal, limit = within, reason
        for every in (self._spec.eval_every, self._spec.checkpoint_every):
            if every > 0:
                following = (now.version // every + 1) * every
                if following < goal:
                    goal, limit = following, None
        return goal, limit

    def _make_steps(self, goal: int, target: int, threads: int) -> RunState | None:
        """A stretch of steps towards the goal; before the last one the model is kept where its step's norm counts."""
        now = self._settle()
        steps = min(min(goal, target) - now.version, self._stretch)
        if "step_norm" in self._spec.metrics:
            if goal - now.version > 1:
                steps = min(steps, goal - now.version - 1)
            else:
                self._previous = (now.version, self._engine.w())
        if self._spec.announce and self._allowed < now.version + steps:
            self._announced = now.version + steps
            return RunState.ANNOUNCE
        began = time.perf_counter()
        code = self._engine.run(steps, threads)
        if time.perf_counter() - began < _SECONDS_A_STRETCH:
            self._stretch = min(2 * self._stretch, _LONGEST_STRETCH)
        else:
            self._stretch = max(1, self._stretch // 2)
        if code == NEED_ROWS:  # the rows of the steps are known, but not whether a group goes on after them
            return RunState.NEED_ROWS
        return RunState.DIVERGED if code == DIVERGED else None

    # Evaluation

    def _is_due(self) -> bool:
        now = self._at
        return now.n_rows == 0 or now.version % self._spec.eval_every == 0

    def _evaluate(self, due: bool, threads: int) -> RunState | None:
        """Evaluates the model where that is due; what the host is asked, if anything."""
        now, metrics = self._settle(), self._spec.metrics
        if due and now.evaluated_at != now.version:
            if self._spec.problem is None and any(name in PROBLEM_METRICS for name in metrics):
                return RunState.EVALUATE
            began = time.perf_counter()
            w = self._engine.w()
            values = [self._value(name, w, threads) for name in metrics]
            self._append(w, values)
            self._eval_seconds += time.perf_counter() - began
        now = self._settle()
        if not now.unshown:
            return None
        self._at = replace(now, unshown=False)
        return RunState.EVALUATED

    def note(self, values: list[float], seconds: float) -> None:
        metrics, given, w = self._spec.metrics, iter(values), self._engine.w()
        if len(values) != sum(name in PROBLEM_METRICS for name in metrics):
            raise ValueError("values: expected one for every metric that the host evaluates")
        self._append(w, [next(given) if name in PROBLEM_METRICS else self._value(name, w, 1) for name in metrics])
        self._eval_seconds += seconds

    def _value(self, name: str, w: Vector, threads: int) -> float:
        if name in ("distance", "step_norm"):
            origin = self.evaluated() if name == "distance" else self.previous()
            moved = np.zeros_like(w) if origin is None else w - origin
            return float(np.sqrt(self._dot(moved, moved)))
        problem = self._spec.problem
        assert problem is not None
        if name == "accuracy":
            judged, n_rows = self._spec.held_out or problem, self._spec.accuracy_rows
            return judged.count_correct(0, n_rows, w) / n_rows
        gradient = np.empty_like(w) if name == "grad_norm_sq" else None
        loss = problem.gradient(w, gradient, threads)
        return loss if gradient is None else self._dot(gradient, gradient)

    def _append(self, w: Vector, values: list[float]) -> None:
        """A new row of the history, of the model as it is now."""
        now, metrics = self._settle(), self._spec.metrics
        updates = now.updates - now.updates_before
        staleness = now.staleness_sum / updates if updates else 0.0
        row = [float(now.version), now.time, float(now.updates), staleness, float(now.staleness_max), *values]
        if self._spec.secure:
            row += [float(self.cut()), self.secure_seconds()]
        mean = now.mean
        if "grad_norm_sq" in metrics:
            mean += (values[metrics.index("grad_norm_sq")] - mean) / (now.n_rows + 1)
            row.append(mean)
        self._at = replace(
            now,
            n_rows=now.n_rows + 1,
            newest=row,
            evaluated_at=now.version,
            values=tuple(values),
            mean=mean,
            evaluated=w if "distance" in metrics else None,
            updates_before=now.updates,
            staleness_sum=0,
            staleness_max=0,
            unshown=self._spec.show_rows,
            unjudged=self._is_due(),
        )
        self._settle()

    def announced(self) -> int:
        return self._announced

    def allow(self, version: int) -> None:
        self._allowed = version

    # Going on from a checkpoint

    def pass_over(self, version: int) -> None:
        self._passing = True
        self._engine.pass_over(version)

    def skip_to(self, version: int) -> None:
        if version > self._at.steps_known:
            raise ValueError("version: its rows are not known yet")
        self._at = self._at.at(version)

    def resume(
        self, n_rows: int, values: list[float], mean: float, evaluated: Vector | None, cut: int, secure_seconds: float
    ) -> None:
        now = self._at
        self._secure_before, self._rows_before = (cut, secure_seconds), n_rows
        if n_rows > 0:
            now = replace(now, evaluated_at=now.version, updates_before=now.updates, staleness_sum=0, staleness_max=0)
        self._at = replace(now, n_rows=n_rows, values=tuple(values), mean=mean, evaluated=evaluated)

    def resumed(self, previous: Vector | None) -> None:
        now = self._at
        unjudged = now.evaluated_at == now.version and len(now.values) == len(self._spec.metrics)
        self._previous = None if previous is None else (now.version - 1, previous)
        self._at, self._passing = replace(now, saved_at=now.version, unjudged=unjudged), False

    # Where it stands

    def version(self) -> int:
        return self._settle().version

    def time(self) -> float:
        return self._settle().time

    def updates(self) -> int:
        return self._settle().updates

    def mark(self) -> int:
        return self._settle().mark

    def steps_known(self) -> int:
        return self._settle().steps_known

    def rows_known(self) -> int:
        return self._settle().rows_known

    def pieces(self) -> int:
        return self._settle().pieces

    def n_rows(self) -> int:
        return self._settle().n_rows

    def rows(self, first: int) -> list[list[float]]:
        self._settle()
        return self._history[max(0, first - self._rows_before) :]

    def eval_seconds(self) -> float:
        return self._eval_seconds

    def cut(self) -> int:
        return self._secure_before[0] + int(self._engine.stats()["cut"])

    def secure_seconds(self) -> float:
        return self._secure_before[1] + float(self._engine.stats()["secure_seconds"])

    def evaluated(self) -> Vector | None:
        return self._settle().evaluated

    def previous(self) -> Vector | None:
        previous = self._previous
        return previous[1] if previous is not None and previous[0] == self._settle().version - 1 else None


def _reached(stop: RunLimits | None, metrics: tuple[str, ...], values: tuple[float, ...]) -> RunState | None:
    """The limit that the newest row of the history reached."""
    if stop is None:
        return None
    found = dict(zip(metrics, values, strict=True))
    if stop.loss is not None and found["loss"] <= stop.loss:
        return RunState.LOSS
    if stop.grad_norm_sq is not None and found["grad_norm_sq"] <= stop.grad_norm_sq:
        return RunState.GRAD_NORM_SQ
    if stop.accuracy is not None and found["accuracy"] >= stop.accuracy:
        return RunState.ACCURACY
    return None
