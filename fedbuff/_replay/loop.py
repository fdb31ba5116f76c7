"""Replay: a schedule and a problem go in, the model and its history come out."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from .. import backends
from .._base.checks import (
    choice,
    count,
    instance,
    list_of,
    path_of,
)
from .._base.progress import progress_bar
from .._problems.base import Problem
from .._problems.local import LocalSGD
from .._rule.strategies import OF_SCHEDULE, Rule
from .._schedule.ahead import Ahead
from .._schedule.columns import Status
from .._schedule.schedule import Schedule
from ..backends.spec import METRICS, PROBLEM_METRICS, RunState
from .check import check_problem, check_stop
from .checkpoint import read_checkpoint
from .engine import AnyProblem, keeps_state
from .history import ExitReason, Interrupted, Result
from .metrics import _Evaluation
from .noise_ledger import NoiseLedger, ledger_path
from .replay import Replay
from .stop import Stop

__all__ = ["replay", "run"]


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
        isinstance(stop, Stop) and any(getattr(stop, name) is not None for name in PROBLEM_METRICS)
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
    current._start(
        **evaluate.options,
        eval_every=eval_every or 0,
        stop=stop if isinstance(stop, Stop) else None,
        show_rows=callback is not None or callable(stop),
        checkpoint_every=0 if path is None else checkpoint_every,
    )
    if path is not None and path.exists():
        about, arrays = read_checkpoint(path)
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
    return _Loop(current, evaluate, None if isinstance(stop, Stop) else stop, path, callback)


class _Loop:
    """Asks a run to go on, and answers what it asks: progress, evaluations, functions of the user's, checkpoints."""

    def __init__(
        self,
        current: Replay,
        evaluate: _Evaluation,
        stop: Callable[[dict[str, float]], bool] | None,
        path: Path | None,
        callback: Callable[[dict[str, float]], object] | None,
    ) -> None:
        self._replay, self._evaluate, self._stop, self._path, self._callback = current, evaluate, stop, path, callback

    def result(self, reason: ExitReason) -> Result:
        current = self._replay
        stats = {**current.stats, "eval_seconds": current._run.eval_seconds()}
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
        run, every = current._run, current._spec.eval_every
        bar.update(current.updates)
        # What the stopping rule said before an interrupt, of the row that the replay went on from.
        if every and current._is_evaluated() and self._stops(current.history.last):
            return ExitReason.STOP_FUNCTION
        while True:
            before = current.updates
            state = current._advance(2**62)
            bar.update(current.updates - before)
            if state.is_end:
                return ExitReason[state.name]
            if state == RunState.EVALUATE:
                began = time.perf_counter()
                values = self._evaluate.values(current.w)
                run.note(values, time.perf_counter() - began)
            elif state == RunState.EVALUATED:
                row = current.history.last
                if self._callback is not None:
                    self._callback(dict(row))
                # The evaluation at the end of a schedule or at a limit does not say why the replay stopped.
                if self._stops(row) and row["step"] % every == 0:
                    return ExitReason.STOP_FUNCTION
            elif state == RunState.CHECKPOINT:
                assert self._path is not None
                current.save(self._path)

    def _stops(self, row: dict[str, float]) -> bool:
        return self._stop is not None and bool(self._stop(dict(row)))


def _progress_bar(progress: bool | None, schedule: Schedule | Iterable[Schedule]) -> Any:
    total = schedule.updates if isinstance(schedule, Ahead) else _updates_of(schedule)
    return progress_bar(total, " arrivals", progress, unit_scale=True, leave=False)


def _updates_of(schedule: Schedule | Iterable[Schedule]) -> int | None:
    return int(np.count_nonzero(schedule.status == Status.USED)) if isinstance(schedule, Schedule) else None


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
    """`schedule` and `replay` in one call; `options` are the other ones of `schedule`, and those of `replay`.

    With several threads a long schedule is made by one of them, a chunk ahead of the replay. The result has the same
    bits.

    >>> import numpy as np, fedbuff as fb
    >>> problem = fb.Quadratic(np.zeros((4, 2)))
    >>> delays = fb.DelayModel(n_clients=4, compute=fb.Exponential(1.0))
    >>> fb.run(problem, delays, fb.FedBuff(2), fb.LocalSGD(steps=1, lr=0.5), server_steps=10).version
    10
    """
    from .._delays.arrival_log import ArrivalLog
    from .._delays.model import DelayModel
    from .._delays.trace import Trace
    from .._schedule.options import ScheduleOptions
    from .._schedule.resolve import iter_schedule, schedule

    instance("trace", trace, (Trace, DelayModel, ArrivalLog), "a Trace, a DelayModel or an ArrivalLog")
    asked: dict[str, Any] = {"concurrency": concurrency, "server_steps": server_steps, "max_time": max_time}
    asked |= {"arrivals": arrivals, "seed": seed}
    asked |= {field.name: options.pop(field.name) for field in fields(ScheduleOptions) if field.name in options}
    if not _is_worth_two_threads(problem, strategy, local, server_steps, arrivals, options):
        made = schedule(trace, strategy, **asked)
        return replay(problem, made, local, strategy=strategy, seed=seed, **options)
    size = getattr(strategy, "buffer_size", 1)
    total = server_steps * size if isinstance(server_steps, int) and arrivals is None and max_time is None else None
    ahead = Ahead(iter_schedule(trace, strategy, chunk=_CHUNK, **asked), total)
    try:
        return replay(problem, ahead, local, strategy=strategy, seed=seed, **options)
    finally:
        ahead.close()


_CHUNK = 1 << 16  # rows of a schedule that are made at a time, ahead of a replay
_WORTH_A_THREAD = 2 * _CHUNK  # rows


def _is_worth_two_threads(
    problem: AnyProblem,
    strategy: Any,
    local: Any,
    server_steps: int | None,
    arrivals: int | None,
    options: dict[str, Any],
) -> bool:
    """Whether the schedule is made in chunks beside the replay: it is long, and nothing looks at the whole of it."""
    threads = options.get("threads")
    threads = backends.default_threads() if threads is None else threads
    rule = getattr(strategy, "rule", None)
    if not isinstance(threads, int) or threads < 2 or not isinstance(problem, Problem) or not isinstance(rule, Rule):
        return False
    steps = server_steps * rule.buffer_size if isinstance(server_steps, int) else math.inf
    rows = min(steps, arrivals if isinstance(arrivals, int) else math.inf)
    return (
        _WORTH_A_THREAD <= rows < math.inf
        and getattr(strategy, "kind", None) != "fedavg"
        and options.get("checkpoint") is None
        and rule.secure is None
        and rule.weighting not in OF_SCHEDULE
        and not keeps_state(local)
    )
