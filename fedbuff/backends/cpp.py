"""The compiled backend: fedbuff._core for whole-chunk work, fedbuff._server for the objects of single arrivals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import _core
from .._core import (
    accumulate,
    adam_step,
    add_words,
    aggregate,
    batch_rows,
    decode,
    dot,
    encode_add,
    normals,
    sgd_step,
)
from .._event_queue import EventQueue
from .._local_sgd import LocalSGD
from .._server import DeltaBuffer, Server
from .spec import (
    BoundProblem,
    LocalSpec,
    ProblemSpec,
    ReplayRun,
    RunSpec,
    SumRoles,
    SumSpec,
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
    "batch_rows",
    "bind",
    "custom_gradient",
    "decode",
    "dot",
    "encode_add",
    "force_level",
    "limits",
    "name",
    "normals",
    "philox",
    "replay_engine",
    "replay_run",
    "sgd_step",
]

name = "cpp"


def force_level(level: str) -> None:
    """Runs the kernels of this CPU level from now on."""
    if not _core.force_level(level):
        raise ValueError(f"FEDBUFF_ISA={level!r}: expected one of {', '.join(_core.available_levels())} on this CPU")


class Limits(NamedTuple):
    """Loops that measure the machine at the level in force, repeated: seconds, and operations where there is a pair."""

    read: Callable[[list[Vector], int], float]  # vectors side by side
    write: Callable[[Vector, bool, int], float]  # True: past the caches
    copy: Callable[[Vector, Vector, bool, int], float]
    multiply_add: Callable[[int], tuple[float, float]]
    additions: Callable[[int], tuple[float, float]]  # each waits for the one before it: a clock cycle each
    lanes: Callable[[], int]  # numbers in a vector of the level in force


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
        self._problem = kind(spec)
        self.client_gradient = self._problem.client_gradient
        self.gradient = self._problem.gradient
        self.count_correct = self._problem.count_correct

    def local_sgd(
        self,
        local: LocalSpec,
        w: Vector,
        *,
        client: int,
        task: int,
        seed: int,
        batch: int,
        rows: NDArray[np.int64] | None,
        delta_out: Vector,
    ) -> None:
        self._problem.local_sgd(
            local.steps, local.lr, local.momentum, local.weight_decay, local.prox, w, client, task, seed, batch, rows,
            delta_out,
        )  # fmt: skip

    def local_handle(self, local: LocalSpec, seed: int, batch: list[int]) -> int:
        """The address of a new fb_local, whose owner destroys it; this problem must outlive it."""
        return self._problem.local_handle(
            local.steps, local.lr, local.momentum, local.weight_decay, local.prox, seed, batch
        )


def bind(spec: ProblemSpec) -> BoundProblem:
    return _Bound(spec)


def custom_gradient(
    gradient: int, context: int, samples: NDArray[np.int64], weight: NDArray[np.float64], w: Vector, out: Vector
) -> None:
    """out = sum_i weight[i] times client i's full gradient at w, by the compiled function at this address."""
    compute = _core.custom_gradient_f32 if w.dtype == np.float32 else _core.custom_gradient_f64
    compute(gradient, context, samples, weight, w, out)


def replay_engine(
    rule: Any,
    w0: Vector,
    bound: BoundProblem | None,
    function: Any,
    local: LocalSpec | None,
    seed: int,
    batch: NDArray[np.int64] | None,
    window_bytes: int,
    sums: SumSpec,
    roles: SumRoles | None,
) -> _core.ReplayF32 | _core.ReplayF64:
    """The threaded replay of local SGD on a bound problem, or of a function (client, task, w) that returns a delta."""
    problem = bound._problem if isinstance(bound, _Bound) else None
    if w0.dtype == np.float32:
        return _core.ReplayF32(rule, w0, problem, function, local, seed, batch, window_bytes, sums, roles)
    return _core.ReplayF64(rule, w0, problem, function, local, seed, batch, window_bytes, sums, roles)


def replay_run(engine: _core.ReplayF32 | _core.ReplayF64, spec: RunSpec) -> ReplayRun:
    """The run of a new engine."""
    kind = _core.RunF32 if isinstance(engine, _core.ReplayF32) else _core.RunF64
    problem, held_out = (
        bound._problem if isinstance(bound, _Bound) else None for bound in (spec.problem, spec.held_out)
    )
    return kind(
        engine, spec.eval_every, list(spec.metrics), problem, held_out, spec.stop, spec.show_rows, spec.secure,
        spec.announce, spec.checkpoint_every,
    )  # fmt: skip
