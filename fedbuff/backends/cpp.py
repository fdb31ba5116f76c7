"""The compiled backend: fedbuff._core for whole-chunk work, fedbuff._server for the objects of single arrivals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import _core
from .._core import (
    ScheduleCheck as schedule_check,
)
from .._core import (
    ScheduleResolver as make_resolver,
)
from .._core import (
    accumulate,
    adam_step,
    add_words,
    aggregate,
    available_levels,
    batch_rows,
    compress,
    decode,
    dot,
    encode_add,
    level,
    normals,
    optimizer_step,
    quantize,
    sgd_step,
    uniform_arrivals,
)
from .._event_queue import EventQueue
from .._local_sgd import LocalSGD
from .._server import DeltaBuffer, Server
from .spec import (
    ArmSpec,
    BoundProblem,
    EngineSpec,
    Limits,
    LocalPlan,
    LocalSpec,
    LocalTask,
    PackedArm,
    PackedRun,
    PackedRuns,
    Plan,
    ProblemSpec,
    ReplayEngine,
    ReplayRun,
    RunSpec,
    Vector,
)

__all__ = [
    "DeltaBuffer",
    "EventQueue",
    "LocalSGD",
    "Server",
    "accumulate",
    "adam_step",
    "add_words",
    "aggregate",
    "available_levels",
    "batch_rows",
    "bind",
    "compress",
    "custom_gradient",
    "decode",
    "dot",
    "encode_add",
    "force_level",
    "level",
    "limits",
    "make_resolver",
    "name",
    "normals",
    "optimizer_step",
    "packed_arm",
    "packed_runs",
    "philox",
    "quantize",
    "replay_engine",
    "replay_run",
    "schedule_check",
    "sgd_step",
    "uniform_arrivals",
]

name = "cpp"


def force_level(level: str) -> None:
    """Runs the kernels of this CPU level from now on."""
    if not _core.force_level(level):
        raise ValueError(f"FEDBUFF_ISA={level!r}: expected one of {', '.join(_core.available_levels())} on this CPU")


def limits(dtype: DTypeLike) -> Limits:
    if np.dtype(dtype) == np.float32:
        return Limits(
            _core.read_seconds_f32, _core.write_seconds_f32, _core.copy_seconds_f32, _core.multiply_add_seconds_f32,
            _core.dependent_additions_seconds, _core.lanes_f32,
        )  # fmt: skip
    return Limits(
        _core.read_seconds_f64, _core.write_seconds_f64, _core.copy_seconds_f64, _core.multiply_add_seconds_f64,
        _core.dependent_additions_seconds, _core.lanes_f64,
    )  # fmt: skip


def philox(seed: int, counter: NDArray[np.uint32]) -> NDArray[np.uint32]:
    words = np.empty_like(counter)
    _core.philox(seed, counter, words)
    return words


class _Bound:
    def __init__(self, spec: ProblemSpec) -> None:
        kind = _core.ProblemF32 if spec.dtype == np.float32 else _core.ProblemF64
        self.problem = kind(spec)
        self.client_gradient = self.problem.client_gradient
        self.gradient = self.problem.gradient
        self.count_correct = self.problem.count_correct

    def local_sgd(self, local: LocalSpec, w: Vector, task: LocalTask, delta_out: Vector) -> None:
        client, number, seed, batch, rows, shift = task
        self.problem.local_sgd(local, w, client, number, seed, batch, rows, delta_out, shift)

    def local_handle(self, plan: LocalPlan, seed: int) -> int:
        """The address of a new fb_local, whose owner destroys it; this problem must outlive it."""
        return self.problem.local_handle(plan, seed)


def bind(spec: ProblemSpec) -> BoundProblem:
    return _Bound(spec)


def custom_gradient(
    gradient: int, context: int, samples: NDArray[np.int64], weight: NDArray[np.float64], w: Vector, out: Vector
) -> None:
    """out = sum_i weight[i] times client i's full gradient at w, by the compiled function at this address."""
    compute = _core.custom_gradient_f32 if w.dtype == np.float32 else _core.custom_gradient_f64
    compute(gradient, context, samples, weight, w, out)


def replay_engine(spec: EngineSpec) -> _core.ReplayF32 | _core.ReplayF64:
    """The threaded replay."""
    problem = None if spec.bound is None else _core_problem(spec.bound)
    kind = _core.ReplayF32 if spec.w0.dtype == np.float32 else _core.ReplayF64
    return kind(
        spec.rule, spec.w0, problem, spec.function, spec.local, spec.seed, spec.window_bytes, spec.sums,
        spec.roles,
    )  # fmt: skip


def replay_run(engine: ReplayEngine, spec: RunSpec) -> ReplayRun:
    """The run of a new engine."""
    assert isinstance(engine, _core.ReplayF32 | _core.ReplayF64)
    kind = _core.RunF32 if isinstance(engine, _core.ReplayF32) else _core.RunF64
    problem, held_out = (None if bound is None else _core_problem(bound) for bound in (spec.problem, spec.held_out))
    return kind(
        engine, spec.eval_every, list(spec.metrics), problem, held_out, spec.stop, spec.show_rows, spec.secure,
        spec.announce, spec.checkpoint_every,
    )  # fmt: skip


def _core_problem(bound: BoundProblem) -> _core.ProblemF32 | _core.ProblemF64:
    assert isinstance(bound, _Bound)
    return bound.problem


def packed_arm(spec: ArmSpec) -> PackedArm:
    core = _core_problem(spec.problem)
    kind = _core.PackedArmF32 if isinstance(core, _core.ProblemF32) else _core.PackedArmF64
    test = None if spec.held_out is None else _core_problem(spec.held_out)
    return kind(
        spec.rule, core, test, spec.local, spec.s, spec.e, spec.window_bytes, spec.eval_every, list(spec.metrics),
        spec.stop,
    )  # fmt: skip


class _PackedRuns:
    def __init__(self, threads: int, cancel: NDArray[np.uint8]) -> None:
        self._runs = _core.PackedRuns(threads, cancel)

    def run(
        self, plans: Sequence[Plan], expected_rows: int, w0: Vector, arms: Sequence[Sequence[PackedArm]]
    ) -> list[PackedRun]:
        run = self._runs.run_f32 if w0.dtype == np.float32 else self._runs.run_f64
        return run(plans, expected_rows, w0, arms)


def packed_runs(threads: int, cancel: NDArray[np.uint8]) -> PackedRuns:
    return _PackedRuns(threads, cancel)
