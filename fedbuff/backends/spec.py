"""What a backend is given and what it must do.

The three backends (`cpp`, `numba`, `reference`) are modules with the same names in them, listed in `Backend`. They
trust their arguments: every check of a user's input is made once, above them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.floating]
Words = NDArray[np.unsignedinteger[Any]]  # uint32 or uint64


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ProblemSpec:
    """n_clients objectives over one contiguous array of rows, as in csrc/core/problem.hpp.

    net: dense rows through zero or more hidden layers into a head. sparse: CSR rows, one output. quadratic:
    f_i(w) = (w - c_i)' A_i (w - c_i) / 2. Arrays are C-contiguous; floating ones have the problem's dtype unless said.
    """

    family: Literal["net", "sparse", "quadratic"]
    dtype: np.dtype
    n_clients: int
    dim: int
    client_weight: NDArray[np.float64]  # (n_clients), sums to 1
    offsets: NDArray[np.int64] | None = None  # (n_clients + 1): client i owns rows offsets[i]:offsets[i + 1]
    # net and sparse
    x: Vector | None = None  # (n_rows, n_features); sparse: the stored values
    target: Vector | None = None  # (n_rows), squared and logistic heads (0 or 1)
    label: NDArray[np.int32] | None = None  # (n_rows), softmax head
    column: NDArray[np.int32] | None = None  # sparse: the column of each stored value
    row_start: NDArray[np.int64] | None = None  # sparse: (n_rows + 1)
    sizes: tuple[int, ...] = ()  # n_features, hidden sizes, outputs
    intercept: bool = False
    activation: Literal["relu", "tanh"] = "relu"
    head: Literal["squared", "logistic", "softmax"] = "squared"
    l2: float = 0.0  # + l2 / 2 |w|^2
    nonconvex: float = 0.0  # + nonconvex * sum w^2 / (1 + w^2)
    # quadratic
    center: Vector | None = None  # (n_clients, dim)
    curvature: Vector | None = None  # (1 | n_clients, 1 | dim | dim * dim): first axis 1 where shared
    curvature_form: Literal["scalar", "diagonal", "dense"] = "scalar"
    noise_variance: float = 0.0  # E|xi|^2 of one sample's gradient noise


@dataclass(frozen=True, slots=True)
class LocalSpec:
    """steps times w <- w - lr v, v <- momentum v + g + weight_decay w + prox (w - w_start); v is zero at the start."""

    steps: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SumSpec:
    """What stands between updates and their sum, as in csrc/core/secure_sum.hpp."""

    modulus: int = 0  # bits of a word; 0: sums in floating point
    range: float = 0.0  # numbers are cut to [-range, range]
    step: float = 1.0  # what one unit stands for
    stochastic: bool = False
    weight_unit: int = 1  # the integer that a weight of 1 stands for
    clip: float = 0.0  # updates are scaled down to this norm; 0: they are not
    deviation: float = 0.0  # of the noise in a sum
    system_noise: bool = False
    seed: int = 0  # of roundings and noise


class SumRoles(Protocol):
    """Those who make a sum under masks."""

    def add(self, client: int, task: int, version: int, step: int, weight: int, factor: float, delta: Vector) -> int:
        """Adds weight times the update, scaled by factor; returns how many numbers were out of range."""

    def finish(self, step: int, out: Vector) -> None:
        """The sum of what was added since the last call."""


class BoundProblem(Protocol):
    """A problem, made ready for one backend."""

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
        """delta_out = w - (w after local.steps steps).

        batch 0 is the exact local gradient. `rows` (steps, batch) gives the batches as row numbers within the client;
        otherwise they are `batch_rows`. A quadratic has no rows: its gradient of step q is A (w - c) plus, for
        batch > 0, sqrt(noise_variance / (dim * batch)) times `normals` of (client, task, q, GradientNoise).
        """

    def client_gradient(self, client: int, w: Vector, gradient_out: Vector | None) -> float:
        """The value of f_client at w; its gradient into gradient_out, unless None."""

    def gradient(self, w: Vector, gradient_out: Vector | None, threads: int) -> float:
        """The same for f = sum_i client_weight[i] f_i."""

    def count_correct(self, begin: int, end: int, w: Vector) -> int:
        """How many of rows begin:end are put in the right class (logistic: 1 where the score is above 0; softmax: the
        first largest score)."""


class RunState(IntEnum):
    """Why a run came back: an end, or a question to its host. The numbers are those of csrc/core/replay/run.hpp."""

    SCHEDULE_END = 0
    SERVER_STEPS = 1
    TIME = 2
    UPDATES = 3
    LOSS = 4
    GRAD_NORM_SQ = 5
    ACCURACY = 6
    DIVERGED = 7  # the next model would not be finite; the engine says where
    NEED_ROWS = 8  # `add` more rows, or `close`
    EVALUATE = 9  # the host evaluates the model: `note` its values
    EVALUATED = 10  # the history has a new row
    CHECKPOINT = 11  # this version is to be saved
    ANNOUNCE = 12  # the steps up to `announced` are made next: `allow` them
    SLICE = 13  # the steps that were asked for are made, or the time is up

    @property
    def is_end(self) -> bool:
        return self < RunState.NEED_ROWS


class RunLimits(Protocol):
    """Where a run stops; None is no limit. The last three are compared with evaluations that were due."""

    @property
    def server_steps(self) -> int | None: ...
    @property
    def time(self) -> float | None: ...
    @property
    def updates(self) -> int | None: ...
    @property
    def loss(self) -> float | None: ...
    @property
    def grad_norm_sq(self) -> float | None: ...
    @property
    def accuracy(self) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What a run does beside its steps, as in csrc/core/replay/run.hpp."""

    eval_every: int = 0  # server steps; also at the start and the end. 0: at neither
    metrics: tuple[str, ...] = ()  # of loss, grad_norm_sq, accuracy, distance, step_norm
    problem: BoundProblem | None = None  # None: the host evaluates the first three
    held_out: BoundProblem | None = None  # for the accuracy; None: the problem's own rows
    accuracy_rows: int = 0  # of the one that the accuracy is of
    stop: RunLimits | None = None
    show_rows: bool = False  # come back with EVALUATED
    secure: bool = False  # the history says what secure sums cut and how long they took
    announce: bool = False  # come back with ANNOUNCE before steps are made
    checkpoint_every: int = 0  # 0: never come back with CHECKPOINT


class ReplayRun(Protocol):
    """A run: rows are fed to an engine, the model is evaluated on the way, and limits stop it."""

    def add(
        self,
        client: NDArray[Any],
        task: NDArray[Any],
        version: NDArray[Any],
        step: NDArray[Any],
        s: NDArray[Any],
        e: NDArray[Any],
        references: NDArray[np.int64],
        unused: NDArray[np.int64],
        step_time: NDArray[np.float64],
        marks: NDArray[np.uint64] | None,
    ) -> None:
        """More rows, as the engine takes them, and for every step that is complete with them its time and a number that
        is summed up in `mark`."""

    def close(self) -> None:
        """There are no more rows."""

    def advance(self, max_steps: int, seconds: float, threads: int) -> int:
        """Goes on to the next point where the host is asked: a RunState. SLICE comes after max_steps, or about so many
        seconds."""

    def note(self, values: list[float], seconds: float) -> None:
        """The answer to EVALUATE: loss, grad_norm_sq and accuracy, those among the metrics, and what they took."""

    def announced(self) -> int: ...
    def allow(self, version: int) -> None: ...

    def pass_over(self, version: int) -> None:
        """A run that goes on from a checkpoint at `version`: then `add` until its steps are known, `skip_to` the last
        evaluation and `resume`, `skip_to` the version, the engine's `restore`, and `resumed`."""

    def skip_to(self, version: int) -> None: ...
    def resume(
        self,
        n_rows: int,
        values: list[float],
        mean: float,
        evaluated: Vector | None,
        cut: int,
        secure_seconds: float,
    ) -> None:
        """The history has n_rows, and `values` are the metrics of the newest, `mean` its grad_norm_sq_mean, `evaluated`
        its model; cut numbers and seconds are those of secure sums so far."""

    def resumed(self, previous: Vector | None) -> None:
        """`previous` is the model before this version, where it is to be evaluated yet."""

    def version(self) -> int: ...
    def time(self) -> float: ...
    def updates(self) -> int: ...
    def mark(self) -> int: ...
    def steps_known(self) -> int: ...
    def rows_known(self) -> int: ...
    def pieces(self) -> int:
        """Calls of `add` that came to their end."""

    def n_rows(self) -> int: ...
    def rows(self, first: int) -> list[list[float]]:
        """The rows of the history from number `first` on: step, time, updates, mean and largest staleness since the row
        before, the metrics, cut numbers and seconds of secure sums, and the mean of grad_norm_sq; the last three where
        there are such."""

    def eval_seconds(self) -> float: ...
    def cut(self) -> int: ...
    def secure_seconds(self) -> float: ...
    def evaluated(self) -> Vector | None:
        """The model of the newest row of the history, where the distance is a metric."""

    def previous(self) -> Vector | None:
        """The model before this version, where the step's norm is a metric."""


class Backend(Protocol):
    name: str

    def philox(self, seed: int, counter: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Philox4x32-10 of each row of counter (n, 4), with the 64-bit seed as key (low word first)."""

    def batch_rows(self, seed: int, client: int, task: int, step: int, n_rows: int, batch: int) -> NDArray[np.int64]:
        """Row j of the batch: multiply-high of word j % 4 of counter (client, task, step, Batches << 28 | j // 4) and
        n_rows."""

    def normals(self, seed: int, c0: int, c1: int, c2: int, stream: int, n: int) -> NDArray[np.float64]:
        """n standard normals: Box-Muller of counter (c0, c1, c2, stream << 28 | block), two a block.

        u = 1 - unit_double(word 0, word 1), v = unit_double(word 2, word 3), r = sqrt(-2 log u); the first is
        r cos(2 pi v), the second r sin(2 pi v), with the portable log and sincos: the same bits on every backend.
        """

    def bind(self, spec: ProblemSpec) -> BoundProblem: ...

    def accumulate(
        self, total: Vector, delta: Vector, weight: float, current: Vector | None, start: Vector | None, out: Vector
    ) -> bool:
        """out = total + weight * (delta + (current - start)), the bracket only where start is given. Returns whether
        out is finite, which it is not where the delta is not. out may be total."""

    def aggregate(
        self, w: Vector, deltas: list[Vector], weights: Vector, scale: float, out: Vector, threads: int
    ) -> None:
        """out = w - scale * sum_k weights[k] * deltas[k], added in the order of k. out may be w."""

    def sgd_step(
        self, w: Vector, total: Vector, lr: float, norm: float, momentum: float, velocity: Vector | None, out: Vector
    ) -> None:
        """velocity <- momentum velocity + total / norm; out = w - lr velocity.

        momentum 0: out = w - (lr / norm) total.
        """

    def adam_step(
        self,
        w: Vector,
        total: Vector,
        lr: float,
        norm: float,
        betas: tuple[float, float],
        epsilon: float,
        weight_decay: float,
        step: int,
        first: Vector,
        second: Vector,
        out: Vector,
    ) -> None:
        """Adam on g = total / norm + weight_decay w, the step counted from 1:

        first <- b1 first + (1 - b1) g; second <- b2 second + (1 - b2) g^2;
        out = w - (lr / (1 - b1^step)) first / (sqrt(second / (1 - b2^step)) + epsilon).
        """

    def dot(self, x: Vector, y: Vector) -> float:
        """sum of x[j] y[j], in float64."""

    def encode_add(
        self,
        total: Words | None,
        delta: Vector,
        weight: int,
        clip: float,
        step: float,
        factor: float,
        rounding: tuple[int, int, int] | None,
        out: Words,
    ) -> int:
        """out = total + weight * (delta in fixed point), modulo 2^32 or 2^64 by the dtype of out; total None is zero.

        A number is multiplied by factor, in its dtype; cut to [-clip, clip], a NaN to -clip; divided by step, a power
        of two; and rounded to the nearest whole number x', ties to even. With rounding (seed, client, task) it goes on
        to the whole number on the other side of it where (word + 1/2) / 2^32 < |x - x'|, with word j % 4 of the counter
        (client, task, block >> 28, Rounding << 28 | block), block = j // 4. Returns how many were cut. out may be
        total. clip is a float32 number, clip / step at most 2^30 for uint32 and 2^50 for uint64.
        """

    def add_words(self, total: Words, words: Words, weight: int, out: Words) -> None:
        """out = total + weight * words, modulo 2^32 or 2^64; 0 <= weight < that. out may be total or words."""

    def decode(self, words: Words, scale: float, out: Vector) -> None:
        """out = scale * words, taken as signed numbers; the product is made in float64."""
