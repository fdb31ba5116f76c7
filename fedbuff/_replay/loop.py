"""Replay: a schedule and a problem go in, the model and its history come out."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._base.checks import (
    choice,
    count,
    flag,
    instance,
    list_of,
    path_of,
)
from .._base.files import optional
from .._problems.base import Problem
from .._problems.local import LocalSGD
from .._schedule.columns import Status
from .._schedule.schedule import Schedule
from .check import METRICS, STOP_METRICS, check_problem, check_stop
from .checkpoint import _read_checkpoint
from .engine import AnyProblem
from .history import ExitReason, Interrupted, Result
from .metrics import _Evaluation
from .noise_ledger import NoiseLedger, ledger_path
from .replay import Replay
from .stop import Stop

__all__ = ["replay", "run"]
_SECONDS_A_RUN = 0.1  # how long Ctrl-C and the progress bar may wait


def replay(
    problem: AnyProblem,
    schedule: Schedule | Iterable[Schedule],
    local: LocalSGD | None = None,
    *,
    strategy: object | None = None,
    w0: Any = None,
    seed: int = 0,
    eval_every: int | None = None,
    metrics: Sequence[str] = ("loss",),
    test: tuple[Any, Any] | None = None,
    stop: Stop | Callable[[dict[str, float]], bool] | None = None,
    threads: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1000,
    progress: bool | None = None,
    callback: Callable[[dict[str, float]], object] | None = None,
) -> Result:
    """Trains along a schedule: local SGD for every arrival, the buffer, the server's steps.

    The result has the same bits for every number of threads, and across a checkpoint; but for noise that is drawn from
    the operating system (`secure.Gaussian`), where `Result.repeatable` is False.

    >>> import numpy as np, fedbuff as fb
    >>> problem = fb.Quadratic(np.zeros((4, 2)))
    >>> schedule = fb.uniform_arrivals(n_clients=4, buffer_size=2, max_staleness=1, server_steps=50, seed=0)
    >>> run = fb.replay(problem, schedule, fb.LocalSGD(steps=1, lr=0.5), w0=np.ones(2), eval_every=10)
    >>> run.exit_reason, bool(run.history["loss"][-1] < 1e-6)
    (<ExitReason.SCHEDULE_END: 'schedule_end'>, True)

    schedule      a `Schedule`, or an iterator of its chunks (`iter_schedule`), for one longer than memory
    strategy      what the server computes; None: what the schedule's own strategy does
    eval_every    evaluate the model every so many server steps, and at the start and the end; None: at neither
    metrics       of "loss", "grad_norm_sq" (squared norm of the full gradient), "accuracy", "distance" (from the
                  model of the evaluation before) and "step_norm" (how far the last server step went)
    test          (X, y) held out: "accuracy" is of these rows
    stop          a `Stop`, or a function of the newest history row that says whether to stop
    checkpoint    a file: written every checkpoint_every server steps and at the end; where it is there already and was
                  made from the same inputs, the replay goes on from it
    progress      a progress bar; None: where the output is a terminal
    callback      called with the newest history row after each evaluation

    Ctrl-C raises `Interrupted`, and an error of the callback propagates; both carry `.result`. A model that is not
    finite ends the replay with a warning and exit_reason DIVERGED.
    """
    loop = make_loop(
        problem,
        schedule,
        local,
        strategy=strategy,
        w0=w0,
        seed=seed,
        eval_every=eval_every,
        metrics=metrics,
        test=test,
        stop=stop,
        threads=threads,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        callback=callback,
    )
    result = loop.go(_progress_bar(progress, schedule))
    if result.exit_reason == ExitReason.DIVERGED:
        warnings.warn(f"{result.message}; the history up to there is kept", RuntimeWarning, stacklevel=3)
    return result


def make_loop(
    problem: AnyProblem,
    schedule: Schedule | Iterable[Schedule],
    local: LocalSGD | None,
    *,
    strategy: object | None,
    w0: Any = None,
    seed: int,
    eval_every: int | None,
    metrics: Sequence[str],
    test: tuple[Any, Any] | Problem | None,
    stop: Stop | Callable[[dict[str, float]], bool] | None,
    threads: int | None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1000,
    callback: Callable[[dict[str, float]], object] | None = None,
) -> _Loop:
    """A replay that is ready to go, from the arguments of `replay`; `test` may be what `held_out` of a problem gave."""
    check_problem(problem)
    if eval_every is not None:
        count("eval_every", eval_every)
    count("checkpoint_every", checkpoint_every)
    metrics = list_of("metrics", metrics, "names of metrics")
    for name in metrics:
        choice("metrics", name, METRICS)
    if stop is not None and not isinstance(stop, Stop) and not callable(stop):
        raise TypeError(f"stop: expected fedbuff.Stop or a function, got {type(stop).__name__}")
    needs_evaluation = callable(stop) or (
        isinstance(stop, Stop) and any(getattr(stop, name) is not None for name in STOP_METRICS)
    )
    if eval_every is None and (needs_evaluation or callback is not None):
        raise ValueError("eval_every: stop and callback look at evaluations; say how often to make them")
    if isinstance(stop, Stop):
        check_stop(stop, metrics)
    evaluate = _Evaluation(problem, metrics if eval_every is not None else (), test)
    path = None if checkpoint is None else path_of("checkpoint", checkpoint)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback: expected a function, got {type(callback).__name__}")
    options: dict[str, Any] = {"strategy": strategy, "threads": threads}
    current = Replay(problem, schedule, local, w0=w0, seed=seed, **options)
    current._metrics = None if eval_every is None else list(metrics)
    if path is not None and path.exists():
        about, arrays = _read_checkpoint(path)
        expected = current._about()
        for name in ("problem", "schedule", "w0", "rule", "local", "seed", "metrics"):
            if about[name] != expected[name]:
                what = "other metrics" if name == "metrics" else f"another {name}"
                raise ValueError(f"{path}: it was made with {what}; remove it, or give another file")
        current._restore(path, about, arrays)
        if current._ledger is not None:
            current._ledger = NoiseLedger.read(path, about["noise"])
    elif path is not None and current._ledger is not None:
        if ledger_path(path).exists():
            raise ValueError(
                f"{ledger_path(path)}: it says what noise a run drew whose {path.name} is gone; "
                "move it away, and count its releases too, or give another file"
            )
        current.save(path)  # noise is noted beside it before it is drawn
    return _Loop(current, evaluate, eval_every, stop, path, checkpoint_every, callback)


class _Loop:
    """Runs a replay in pieces short enough for Ctrl-C, up to the next evaluation, checkpoint or limit."""

    def __init__(
        self,
        current: Replay,
        evaluate: _Evaluation,
        eval_every: int | None,
        stop: Stop | Callable[[dict[str, float]], bool] | None,
        path: Path | None,
        checkpoint_every: int,
        callback: Callable[[dict[str, float]], object] | None,
    ) -> None:
        self._replay, self._evaluate, self._every = current, evaluate, eval_every
        self._stop, self._path, self._checkpoint_every, self._callback = stop, path, checkpoint_every, callback
        self._steps_a_run = 1
        self._wants_previous = "step_norm" in evaluate.metrics

    def result(self, reason: ExitReason) -> Result:
        current = self._replay
        stats = {**current.stats, "eval_seconds": self._evaluate.seconds}
        return Result(
            current.w,
            current.version,
            current.history,
            reason,
            current.message,
            stats,
            repeatable=current._ledger is None,
            releases=current.releases,
        )

    def go(self, bar: Any) -> Result:
        current = self._replay
        try:
            with bar:
                reason = self._run(bar)
        except KeyboardInterrupt as interrupt:
            if self._path is not None:
                current.save(self._path)
            raise Interrupted(self.result(ExitReason.INTERRUPTED)) from interrupt
        except Exception as error:
            error.result = self.result(ExitReason.INTERRUPTED)  # type: ignore[attr-defined]
            raise
        if self._path is not None and reason != ExitReason.DIVERGED:
            current.save(self._path)
        return self.result(reason)

    def _run(self, bar: Any) -> ExitReason:
        current = self._replay
        bar.update(current.updates)
        if self._every is not None:
            # An evaluation that was due when the replay was interrupted, or what its row says to the stopping rule.
            history, is_due = current.history, current.version % self._every == 0
            if history.n_rows == 0 or (is_due and not current._is_evaluated()):
                reason = self._look()
            else:
                reason = self._reached(history.last) if current._is_evaluated() else None
            if reason is not None:
                return reason
        while True:
            before = current.updates
            goal, limit = self._goal()
            if goal == current.version:
                if limit is not None:
                    return self._end(limit)
                if current._more():
                    continue
                return self._end(ExitReason.SCHEDULE_END)
            steps = min(goal - current.version, self._steps_a_run)
            if self._wants_previous:
                if goal - current.version == 1:
                    current._previous = (current.version, current.w)
                else:
                    steps = min(steps, goal - current.version - 1)
            began = time.perf_counter()
            reason = current.run(steps)
            if time.perf_counter() - began < _SECONDS_A_RUN:
                self._steps_a_run *= 2
            else:
                self._steps_a_run = max(1, self._steps_a_run // 2)
            bar.update(current.updates - before)
            if reason == ExitReason.DIVERGED:
                return reason
            due = self._every is not None and current.version % self._every == 0
            if due and (found := self._look()) is not None:
                return found
            if self._path is not None and current.version % self._checkpoint_every == 0:
                current.save(self._path)

    def _goal(self) -> tuple[int, ExitReason | None]:
        """The version to run to next, and the limit that it would be, if any."""
        current, stop = self._replay, self._stop
        goal = current.version + current.steps_within(time=None, updates=None)
        limit = None
        if isinstance(stop, Stop):
            if stop.server_steps is not None and stop.server_steps <= goal:
                goal, limit = max(stop.server_steps, current.version), ExitReason.SERVER_STEPS
            for name, reason in (("time", ExitReason.TIME), ("updates", ExitReason.UPDATES)):
                most = getattr(stop, name)
                if most is not None:
                    within = current.version + current.steps_within(
                        time=most if name == "time" else None, updates=most if name == "updates" else None
                    )
                    if within < goal:
                        goal, limit = within, reason
        for every in (self._every, self._checkpoint_every if self._path is not None else None):
            if every is not None:
                following = (current.version // every + 1) * every
                if following < goal:
                    goal, limit = following, None
        return goal, limit

    def _end(self, reason: ExitReason) -> ExitReason:
        """The last evaluation, where it was not made at this step already."""
        current = self._replay
        if self._every is not None and not current._is_evaluated():
            self._look()
        return reason

    def _look(self) -> ExitReason | None:
        """Evaluates, notes it in the history, and asks the callback and the stopping rule."""
        current, history = self._replay, self._replay.history
        w, books, previous = current.w, current._settle(), current._previous
        before = previous[1] if previous is not None and previous[0] == books.version - 1 else None
        values = self._evaluate(w, books.evaluated, before, current.threads)
        updates = books.updates - books.updates_before
        row: dict[str, float] = {
            "step": books.version,
            "time": books.time,
            "updates": books.updates,
            "staleness_mean": books.staleness_sum / updates if updates else 0.0,
            "staleness_max": books.staleness_max,
            **values,
            **current.secure_columns(),
        }
        if "grad_norm_sq" in values:
            seen = history.n_rows
            mean = history.last["grad_norm_sq_mean"] if seen else 0.0
            row["grad_norm_sq_mean"] = mean + (values["grad_norm_sq"] - mean) / (seen + 1)
        current._note(row, w if "distance" in values else None)
        if self._callback is not None:
            self._callback(dict(row))
        return self._reached(row)

    def _reached(self, row: dict[str, float]) -> ExitReason | None:
        """What the stopping rule says to this row of the history."""
        stop = self._stop
        if isinstance(stop, Stop):
            if stop.loss is not None and row["loss"] <= stop.loss:
                return ExitReason.LOSS
            if stop.grad_norm_sq is not None and row["grad_norm_sq"] <= stop.grad_norm_sq:
                return ExitReason.GRAD_NORM_SQ
            if stop.accuracy is not None and row["accuracy"] >= stop.accuracy:
                return ExitReason.ACCURACY
        elif stop is not None and stop(dict(row)):
            return ExitReason.STOP_FUNCTION
        return None


def _progress_bar(progress: bool | None, schedule: Schedule | Iterable[Schedule]) -> Any:
    total = int(np.count_nonzero(schedule.status == Status.USED)) if isinstance(schedule, Schedule) else None
    tqdm = optional("tqdm", None, "a progress bar").tqdm
    disable = None if progress is None else not flag("progress", progress)
    return tqdm(total=total, unit=" arrivals", unit_scale=True, disable=disable, leave=False)


def run(
    problem: AnyProblem,
    trace: Any,
    strategy: Any,
    local: LocalSGD | None = None,
    *,
    concurrency: int | None = None,
    server_steps: int | None = None,
    max_time: float | None = None,
    arrivals: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Result:
    """`schedule` and `replay` in one call; `options` are those of `replay`.

    >>> import numpy as np, fedbuff as fb
    >>> problem = fb.Quadratic(np.zeros((4, 2)))
    >>> delays = fb.DelayModel(n_clients=4, compute=fb.Exponential(1.0))
    >>> fb.run(problem, delays, fb.FedBuff(2), fb.LocalSGD(steps=1, lr=0.5), server_steps=10).version
    10
    """
    from .._delays.arrival_log import ArrivalLog
    from .._delays.model import DelayModel
    from .._delays.trace import Trace
    from .._schedule.resolve import schedule

    instance("trace", trace, (Trace, DelayModel, ArrivalLog), "a Trace, a DelayModel or an ArrivalLog")
    made = schedule(
        trace, strategy, concurrency, server_steps=server_steps, max_time=max_time, arrivals=arrivals, seed=seed
    )
    return replay(problem, made, local, strategy=strategy, seed=seed, **options)
