"""The specification: plain NumPy, one statement per formula of the documentation.

Everything is computed in the problem's dtype T, constants rounded to T first; losses are summed in float64. Weights lie
layer by layer: weight (out, in) row-major, then the bias where there is one. Numbers that are not finite go through
without a warning, as in compiled code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._rule.optimizers import Adagrad, AMSGrad, DelayedNesterov, Nesterov, Yogi
from .python.compression import compressor
from .python.event_loop import EventLoop
from .python.event_queue import EventQueue as EventQueue
from .python.network import Back, Draws, network
from .python.parts import parts_over
from .python.philox import Stream, key_words, philox_words, unit_double
from .python.portable_math import log_positive, sincos2pi
from .python.resolver import check_slots
from .python.schedule_check import ScheduleCheck
from .python.server import Kernels
from .python.shuffle import shuffled
from .python.uniform_arrivals import uniform_arrivals as uniform_arrivals
from .spec import (
    BoundProblem,
    EncodeNumbers,
    LocalSpec,
    LocalTask,
    Moments,
    Plan,
    ProblemSpec,
    QuantizeNumbers,
    Resolver,
    StepNumbers,
    Vector,
    Words,
)

name = "reference"

Rows = NDArray[np.int64]

_quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore")


def philox(seed: int, counter: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return np.stack(philox_words(*key_words(seed), *counter.T.astype(np.uint64)), axis=1).astype(np.uint32)


def batch_rows(seed: int, client: int, task: int, step: int, n_rows: int, batch: int) -> Rows:
    words = philox(seed, _counters(client, task, step, Stream.BATCHES, n_blocks=-(-batch // 4)))
    return (words.ravel()[:batch].astype(np.uint64) * np.uint64(n_rows) >> np.uint64(32)).astype(np.int64)


def normals(seed: int, c0: int, c1: int, c2: int, stream: int, n: int) -> NDArray[np.float64]:
    words = philox(seed, _counters(c0, c1, c2, stream, n_blocks=-(-n // 2))).T.astype(np.uint64)
    radius = np.sqrt(-2.0 * log_positive(1.0 - unit_double(words[0], words[1])))
    sine, cosine = sincos2pi(unit_double(words[2], words[3]))
    return np.stack([radius * cosine, radius * sine], axis=1).ravel()[:n]


def _counters(c0: int, c1: int, c2: int, stream: int, n_blocks: int) -> NDArray[np.uint32]:
    counter = np.empty((n_blocks, 4), np.uint32)
    counter[:, :3] = c0, c1, c2
    counter[:, 3] = np.arange(n_blocks) + (stream << 28)
    return counter


class _Problem(ABC):
    """What the families share: the local loop and the mean over clients."""

    def __init__(self, spec: ProblemSpec) -> None:
        self.spec = spec
        self.scalar: Any = spec.dtype.type

    @abstractmethod
    def step_gradient(
        self, w: Vector, client: int, task: int, step: int, seed: int, batch: int, rows: Rows | None
    ) -> Vector:
        """The stochastic gradient of one local step; `rows` are the batch where it is given."""

    @abstractmethod
    def client_gradient(self, client: int, w: Vector, gradient_out: Vector | None) -> float: ...

    @abstractmethod
    def count_correct(self, begin: int, end: int, w: Vector) -> int: ...

    @_quiet
    def local_sgd(self, local: LocalSpec, w: Vector, task: LocalTask, delta_out: Vector) -> None:
        client, number, seed, batch, rows, shift = task
        momentum = self.scalar(local.momentum)
        weight_decay, prox = self.scalar(local.weight_decay), self.scalar(local.prox)
        model = w.copy()
        velocity = np.zeros_like(w)
        for step in range(local.steps):
            chosen = None if rows is None else rows[step]
            if local.steps_per_pass > 0 and batch > 0:
                chosen = self.rows_of_pass(local.steps_per_pass, client, number, step, seed, batch)
            lr = self.scalar(local.lr * local.lr_factors[step] if len(local.lr_factors) > 0 else local.lr)
            direction = self.step_gradient(model, client, number, step, seed, batch, chosen)
            if shift is not None:
                direction = direction - shift
            if weight_decay:
                direction = direction + weight_decay * model
            if prox:
                direction = direction + prox * (model - w)
            velocity = momentum * velocity + direction if momentum else direction
            model = model - lr * velocity
        np.subtract(w, model, out=delta_out)
        if local.scale != 1.0:
            delta_out *= self.scalar(local.scale)

    def rows_of_pass(self, steps_per_pass: int, client: int, task: int, step: int, seed: int, batch: int) -> Rows:
        """The rows of a step that goes through the client's rows without replacement."""
        assert self.spec.offsets is not None
        n_rows = int(self.spec.offsets[client + 1] - self.spec.offsets[client])
        turn, part = divmod(step, steps_per_pass)
        return shuffled(seed, client, task, turn, n_rows, np.arange(part * batch, min((part + 1) * batch, n_rows)))

    @_quiet
    def gradient(self, w: Vector, gradient_out: Vector | None, threads: int) -> float:
        total = np.zeros(self.spec.dim, np.float64)
        value = 0.0
        part = None if gradient_out is None else np.empty_like(w)
        for client, weight in enumerate(self.spec.client_weight):
            value += weight * self.client_gradient(client, w, part)
            if part is not None:
                total += weight * part.astype(np.float64)
        if gradient_out is not None:
            gradient_out[:] = total
        return float(value)


class _Rows(_Problem):
    """Problems whose clients own rows: f_client is the mean over its rows, plus the regularisers."""

    smoothing: Any = 0  # of labels

    @abstractmethod
    def scores(self, rows: Rows, w: Vector) -> Vector:
        """What the model says of each row: (rows, outputs)."""

    @abstractmethod
    def mean_gradient(self, rows: Rows, w: Vector, draws: Draws | None = None) -> Vector:
        """The gradient of the mean loss over the rows; `draws` where a local step may drop something."""

    def step_gradient(
        self, w: Vector, client: int, task: int, step: int, seed: int, batch: int, rows: Rows | None
    ) -> Vector:
        begin, end = self.range_of(client)
        if batch == 0:
            chosen = np.arange(begin, end)
        elif rows is not None:
            chosen = begin + rows
        else:
            chosen = begin + batch_rows(seed, client, task, step, end - begin, batch)
        draws = Draws(seed, client, task, step, np.arange(len(chosen)))
        return self.mean_gradient(chosen, w, draws) + self.regularizer_gradient(w)

    @_quiet
    def client_gradient(self, client: int, w: Vector, gradient_out: Vector | None) -> float:
        rows = np.arange(*self.range_of(client))
        if gradient_out is not None:
            gradient_out[:] = self.mean_gradient(rows, w) + self.regularizer_gradient(w)
        return float(self.losses(self.scores(rows, w), rows).mean(dtype=np.float64)) + self.regularizer(w)

    @_quiet
    def count_correct(self, begin: int, end: int, w: Vector) -> int:
        if begin == end:
            return 0
        score = self.scores(np.arange(begin, end), w)
        if self.spec.head == "softmax":
            assert self.spec.label is not None
            return int(np.count_nonzero(score.argmax(axis=1) == self.spec.label[begin:end]))
        return int(np.count_nonzero((score[:, 0] > 0) == (self.targets(np.arange(begin, end))[:, 0] == 1)))

    def regularizer(self, w: Vector) -> float:
        squares = w.astype(np.float64) ** 2
        value = self.spec.l2 / 2 * squares.sum()
        if self.spec.nonconvex:
            value += self.spec.nonconvex * (squares / (1 + squares)).sum()
        return float(value)

    def regularizer_gradient(self, w: Vector) -> Vector | float:
        gradient: Vector | float = 0.0
        if self.spec.l2:
            gradient = gradient + self.scalar(self.spec.l2) * w
        if self.spec.nonconvex:
            gradient = gradient + self.scalar(2 * self.spec.nonconvex) * w / (1 + w * w) ** 2
        return gradient

    def range_of(self, client: int) -> tuple[int, int]:
        assert self.spec.offsets is not None
        return int(self.spec.offsets[client]), int(self.spec.offsets[client + 1])

    def losses(self, score: Vector, rows: Rows) -> Vector:
        """The head's loss of each row."""
        if self.spec.head == "softmax":
            assert self.spec.label is not None
            shifted = score - score.max(axis=1, keepdims=True)
            picked = shifted[np.arange(len(rows)), self.spec.label[rows]]
            losses: Vector = np.log(np.exp(shifted).sum(axis=1)) - picked
            if self.smoothing:
                losses += self.smoothing * (picked - shifted.mean(axis=1))
            return losses
        y = self.targets(rows)
        each = (score - y) ** 2 / 2 if self.spec.head == "squared" else np.logaddexp(0, score) - y * score
        summed: Vector = each.sum(axis=1)
        return summed

    def loss_slopes(self, score: Vector, rows: Rows) -> Vector:
        """The derivative of each row's loss by its scores: (rows, outputs)."""
        if self.spec.head == "softmax":
            assert self.spec.label is not None
            slope: Vector = np.exp(score - score.max(axis=1, keepdims=True))
            slope /= slope.sum(axis=1, keepdims=True)
            slope[np.arange(len(rows)), self.spec.label[rows]] -= 1 - self.smoothing
            slope -= self.smoothing / self.scalar(slope.shape[1])
            return slope
        target = self.targets(rows)
        return score - target if self.spec.head == "squared" else _sigmoid(score) - target

    def targets(self, rows: Rows) -> Vector:
        """(rows, outputs)."""
        assert self.spec.target is not None
        return self.spec.target[rows].reshape(len(rows), -1)


class _Net(_Rows):
    def layers(self, w: Vector) -> list[tuple[Vector, Vector | None]]:
        """Views of w: weight (out, in) and bias (out) of each layer."""
        views: list[tuple[Vector, Vector | None]] = []
        position = 0
        for n_in, n_out in pairwise(self.spec.sizes):
            weight = w[position : position + n_out * n_in].reshape(n_out, n_in)
            position += n_out * n_in
            bias = w[position : position + n_out] if self.spec.intercept else None
            position += n_out if self.spec.intercept else 0
            views.append((weight, bias))
        return views

    def forward(self, rows: Rows, w: Vector) -> list[Vector]:
        """The input of every layer, then the scores."""
        assert self.spec.x is not None
        values: list[Vector] = [self.spec.x[rows]]
        for weight, bias in self.layers(w):
            if len(values) > 1:
                values[-1] = np.tanh(values[-1]) if self.spec.activation == "tanh" else np.maximum(values[-1], 0)
            score = values[-1] @ weight.T
            values.append(score if bias is None else score + bias)
        return values

    def scores(self, rows: Rows, w: Vector) -> Vector:
        return self.forward(rows, w)[-1]

    def mean_gradient(self, rows: Rows, w: Vector, draws: Draws | None = None) -> Vector:
        *inputs, score = self.forward(rows, w)
        slope = self.loss_slopes(score, rows) / self.scalar(len(rows))
        gradient = np.empty_like(w)
        layers = list(zip(inputs, self.layers(w), self.layers(gradient), strict=True))
        for depth, (value, (weight, _), (weight_out, bias_out)) in reversed(list(enumerate(layers))):
            weight_out[:] = slope.T @ value
            if bias_out is not None:
                bias_out[:] = slope.sum(axis=0)
            if depth > 0:
                slope = slope @ weight
                slope = slope * (1 - value * value) if self.spec.activation == "tanh" else slope * (value > 0)
        return gradient


class _Layers(_Rows):
    """The layers of a network; see python/network.py."""

    def __init__(self, spec: ProblemSpec) -> None:
        super().__init__(spec)
        assert spec.network is not None
        self.network = spec.network
        self.smoothing = self.scalar(spec.network.label_smoothing)

    def forward(self, rows: Rows, w: Vector, draws: Draws | None) -> tuple[Vector, Back]:
        return network(self.network.layers, self.inputs(rows), w, draws)

    def inputs(self, rows: Rows) -> NDArray[Any]:
        if self.spec.token is not None:
            return self.spec.token[rows]
        if self.spec.byte is not None:
            x = (self.spec.scale * self.spec.byte[rows].astype(np.float64) + self.spec.shift).astype(self.spec.dtype)
        else:
            assert self.spec.x is not None
            x = self.spec.x[rows]
        return x.reshape(len(rows), *self.network.input_shape)

    def scores(self, rows: Rows, w: Vector) -> Vector:
        return self.forward(rows, w, None)[0]

    def mean_gradient(self, rows: Rows, w: Vector, draws: Draws | None = None) -> Vector:
        score, back = self.forward(rows, w, draws)
        _, gradients = back(self.loss_slopes(score, rows) / self.scalar(len(rows)))
        return np.concatenate([gradient.ravel() for gradient in gradients])


class _Sparse(_Rows):
    """One output: the score of a row is its stored values times the weights of their columns."""

    def entries(self, row: int) -> tuple[Vector, NDArray[np.int32]]:
        spec = self.spec
        assert spec.x is not None and spec.column is not None and spec.row_start is not None
        stored = slice(spec.row_start[row], spec.row_start[row + 1])
        return spec.x[stored], spec.column[stored]

    def scores(self, rows: Rows, w: Vector) -> Vector:
        bias = w[-1] if self.spec.intercept else self.scalar(0)
        score = np.empty((len(rows), 1), self.spec.dtype)
        for i, row in enumerate(rows):
            value, column = self.entries(row)
            score[i] = value @ w[column] + bias
        return score

    def mean_gradient(self, rows: Rows, w: Vector, draws: Draws | None = None) -> Vector:
        slope = self.loss_slopes(self.scores(rows, w), rows)[:, 0] / self.scalar(len(rows))
        gradient = np.zeros_like(w)
        for i, row in enumerate(rows):
            value, column = self.entries(row)
            np.add.at(gradient, column, slope[i] * value)
        if self.spec.intercept:
            gradient[-1] = slope.sum()
        return gradient


class _Quadratic(_Problem):
    def step_gradient(
        self, w: Vector, client: int, task: int, step: int, seed: int, batch: int, rows: Rows | None
    ) -> Vector:
        gradient = self.curved(client, w)
        if batch > 0 and self.spec.noise_variance > 0:
            deviation = np.sqrt(self.spec.noise_variance / (self.spec.dim * batch))
            noise = normals(seed, client, task, step, Stream.GRADIENT_NOISE, self.spec.dim)
            gradient = gradient + (deviation * noise).astype(self.spec.dtype)
        return gradient

    @_quiet
    def client_gradient(self, client: int, w: Vector, gradient_out: Vector | None) -> float:
        assert self.spec.center is not None
        curved = self.curved(client, w)
        if gradient_out is not None:
            gradient_out[:] = curved
        return dot(w - self.spec.center[client], curved) / 2

    def count_correct(self, begin: int, end: int, w: Vector) -> int:
        return 0

    def curved(self, client: int, w: Vector) -> Vector:
        """A (w - c)."""
        spec = self.spec
        assert spec.center is not None and spec.curvature is not None
        away = w - spec.center[client]
        curvature: Vector = spec.curvature[client if len(spec.curvature) > 1 else 0]
        dense = spec.curvature_form == "dense"
        curved: Vector = curvature.reshape(spec.dim, spec.dim) @ away if dense else curvature * away
        return curved


def _sigmoid(z: Vector) -> Vector:
    small = np.exp(-np.abs(z))
    value: Vector = np.where(z >= 0, 1, small) / (1 + small)
    return value


def bind(spec: ProblemSpec) -> BoundProblem:
    families: dict[str, type[_Net | _Sparse | _Layers | _Quadratic]] = {
        "net": _Net,
        "sparse": _Sparse,
        "layers": _Layers,
        "quadratic": _Quadratic,
    }
    return families[spec.family](spec)


@_quiet
def accumulate(
    total: Vector, delta: Vector, weight: float, current: Vector | None, start: Vector | None, out: Vector
) -> bool:
    moved = delta if start is None or current is None else delta + (current - start)
    np.add(total, total.dtype.type(weight) * moved, out=out)
    return bool(np.isfinite(out).all())


@_quiet
def aggregate(w: Vector, deltas: list[Vector], weights: Vector, scale: float, out: Vector, threads: int) -> None:
    total = np.zeros_like(w)
    for delta, weight in zip(deltas, weights, strict=True):
        total += weight * delta
    np.subtract(w, w.dtype.type(scale) * total, out=out)


@_quiet
def sgd_step(
    w: Vector, total: Vector, lr: float, norm: float, momentum: float, velocity: Vector | None, out: Vector
) -> None:
    scalar = w.dtype.type
    if momentum == 0:
        np.subtract(w, scalar(lr / norm) * total, out=out)
    else:
        assert velocity is not None
        velocity[:] = scalar(momentum) * velocity + total / scalar(norm)
        np.subtract(w, scalar(lr) * velocity, out=out)


@_quiet
def adam_step(w: Vector, total: Vector, numbers: StepNumbers, moments: Moments, out: Vector) -> None:
    lr, norm, _, b1, b2, epsilon, weight_decay, step, *_ = numbers
    first, second = moments
    scalar = w.dtype.type
    gradient = total / scalar(norm) + scalar(weight_decay) * w
    first[:] = scalar(b1) * first + scalar(1 - b1) * gradient
    second[:] = scalar(b2) * second + scalar(1 - b2) * (gradient * gradient)
    scale = np.sqrt(second / scalar(1 - b2**step)) + scalar(epsilon)
    np.subtract(w, scalar(lr / (1 - b1**step)) * first / scale, out=out)


@_quiet
def optimizer_step(code: int, w: Vector, total: Vector, numbers: StepNumbers, moments: Moments, out: Vector) -> None:
    first, *others = moments
    scalar = w.dtype.type
    lr, keep, b1, b2 = (scalar(x) for x in (numbers.lr, numbers.momentum, numbers.beta1, numbers.beta2))
    gradient = total / scalar(numbers.norm)
    if code == Nesterov.code:
        first[:] = keep * first + gradient
        np.subtract(w, lr * (gradient + keep * first), out=out)
        return
    second = others[0]
    if code == DelayedNesterov.code:
        second += gradient
        active = numbers.activation
        if numbers.step % numbers.period == 0:
            active = 1 - numbers.activation * (numbers.period - 1)
            first[:] = keep * first + second / scalar(numbers.period)
            second[:] = 0
        np.subtract(w, lr * (scalar(active * numbers.momentum) * first + gradient / scalar(numbers.period)), out=out)
        return
    gradient = gradient + scalar(numbers.weight_decay) * w
    first[:] = b1 * first + scalar(1 - numbers.beta1) * gradient
    square = gradient * gradient
    if code == Adagrad.code:
        second += square
    elif code == Yogi.code:
        second -= scalar(1 - numbers.beta2) * square * np.sign(second - square)
    else:
        second[:] = b2 * second + scalar(1 - numbers.beta2) * square
    divisor = second
    if code == AMSGrad.code:
        divisor = np.maximum(others[1], second, out=others[1])
    np.subtract(w, lr * first / (np.sqrt(divisor) + scalar(numbers.epsilon)), out=out)


@_quiet
def dot(x: Vector, y: Vector) -> float:
    return float(np.dot(x.astype(np.float64), y.astype(np.float64)))


def _chances(seed: int, first: int, second: int, stream: int, n: int) -> NDArray[np.float64]:
    """n numbers in (0, 1): (word + 1/2) / 2^32 of the counters (first, second, block >> 28, stream << 28 | block)."""
    block = np.arange((n + 3) // 4)
    counter = np.empty((block.size, 4), np.uint32)
    counter[:, 0], counter[:, 1], counter[:, 2] = first, second, block >> 28
    counter[:, 3] = stream << 28 | block & 0xFFFFFFF
    words = philox(seed, counter).reshape(-1)[:n].astype(np.float64)
    return (words + 0.5) / 2.0**32


@_quiet
def encode_add(total: Words | None, delta: Vector, numbers: EncodeNumbers, out: Words) -> int:
    weight, clip, step, factor, rounding = numbers
    scalar, word = delta.dtype.type, out.dtype.type
    low, high = scalar(-clip), scalar(clip)
    x = scalar(factor) * delta
    inside = np.where(x > low, x, low)
    inside = np.where(inside < high, inside, high)
    units = (inside * scalar(1.0 / step)).astype(np.float64)
    whole = np.rint(units)
    if rounding is not None:
        seed, client, task = rounding
        chance = _chances(seed, client, task, Stream.ROUNDING, delta.size)
        away = units - whole
        whole += np.where(chance < np.abs(away), np.where(away < 0, -1.0, 1.0), 0.0)
    encoded = whole.astype(np.int64).astype(out.dtype)
    np.add(word(0) if total is None else total, word(weight) * encoded, out=out)
    return int(np.count_nonzero(~(np.abs(x) <= high)))


@_quiet
def add_words(total: Words, words: Words, weight: int, out: Words) -> None:
    np.add(total, words.dtype.type(weight) * words, out=out)


def decode(words: Words, scale: float, out: Vector) -> None:
    signed = words.view(np.int32 if words.dtype == np.uint32 else np.int64)
    out[:] = signed.astype(np.float64) * scale


@_quiet
def quantize(x: Vector, numbers: QuantizeNumbers, out: Vector) -> None:
    norm, levels, seed, first, second, stream = numbers
    units = np.abs(x.astype(np.float64)) * (levels / norm if norm > 0 else norm)
    below = np.floor(units)
    up = below + (_chances(seed, first, second, stream, x.size) < units - below)
    out[:] = np.copysign(np.where(up > levels, levels, up) * (norm / levels), x)


compress = compressor(dot, quantize)
Server, DeltaBuffer, replay_engine, replay_run = parts_over(
    Kernels(
        accumulate=accumulate, sgd_step=sgd_step, adam_step=adam_step, encode_add=encode_add, decode=decode, dot=dot,
        normals=normals, optimizer_step=optimizer_step, quantize=quantize, compress=compress,
    ),
    __name__,
)  # fmt: skip
schedule_check = ScheduleCheck


def make_resolver(plan: Plan) -> Resolver:
    check_slots(plan)
    return EventLoop(plan)
