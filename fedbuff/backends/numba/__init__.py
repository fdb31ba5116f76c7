# mypy: allow-untyped-defs, allow-untyped-calls
"""The fallback where nothing was compiled: the reference's formulas as loops that Numba compiles.

Each family has two entries: its local SGD loop and its objective (value and gradient over a range of clients). They are
compiled once per dtype: every array that is only read is passed as a read-only view, and one that is not there as an
empty one, so that a call never meets a new type.

Sums run in one fixed order; that of `_inner` and `_inner4` is chosen by the compiler, once, for this CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numba as nb
import numpy as np
from numba import carray  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

from ..python import server as _server
from ..python.event_queue import EventQueue
from ..python.replay import SequentialReplay
from ..python.run import Run
from ..spec import (
    BoundProblem,
    LocalSpec,
    ProblemSpec,
    RunSpec,
    SumRoles,
    SumSpec,
    Vector,
    Words,
)
from .random import (
    key_words,
    log_positive,
    philox_words,
    sincos2pi,
    unit_double,
)

__all__ = [
    "DeltaBuffer",
    "EventQueue",
    "Server",
    "accumulate",
    "adam_step",
    "add_words",
    "aggregate",
    "batch_rows",
    "bind",
    "decode",
    "dot",
    "encode_add",
    "name",
    "normals",
    "philox",
    "replay_engine",
    "replay_run",
    "sgd_step",
]

name = "numba"

F = TypeVar("F", bound=Callable[..., Any])

BATCHES, GRADIENT_NOISE, ROUNDING = 0, 3, 6  # streams, as in csrc/core/philox.hpp
SQUARED, LOGISTIC, SOFTMAX = 0, 1, 2
RELU, TANH = 0, 1
SCALAR, DIAGONAL, DENSE = 0, 1, 2
BLOCK = 64  # rows that go through a net together


def _compiled(function: F, **options: Any) -> F:
    """njit without the GIL, cached on disk where a folder for that can be written."""
    try:
        return nb.njit(function, nogil=True, error_model="numpy", cache=True, **options)  # type: ignore[no-any-return]
    except RuntimeError:  # Numba found no folder for its cache
        return nb.njit(function, nogil=True, error_model="numpy", **options)  # type: ignore[no-any-return]


# Random numbers


@_compiled
def _philox(k0, k1, counter, words_out):
    for i in range(len(counter)):
        c = counter[i]
        words = philox_words(k0, k1, np.uint64(c[0]), np.uint64(c[1]), np.uint64(c[2]), np.uint64(c[3]))
        for j in range(4):
            words_out[i, j] = words[j]


@_compiled
def _batch_rows(k0, k1, client, task, step, begin, n_rows, rows_out):
    """begin + the row numbers of `batch_rows`."""
    c0, c1, c2 = np.uint64(client), np.uint64(task), np.uint64(step)
    for j in range(0, len(rows_out), 4):
        words = philox_words(k0, k1, c0, c1, c2, np.uint64((BATCHES << 28) + j // 4))
        for i in range(min(4, len(rows_out) - j)):
            rows_out[j + i] = begin + np.int64((words[i] * np.uint64(n_rows)) >> np.uint64(32))


@_compiled
def _normals(k0, k1, c0, c1, c2, stream, normals_out):
    n = len(normals_out)
    for j in range(0, n, 2):
        block = np.uint64((stream << 28) + j // 2)
        words = philox_words(k0, k1, np.uint64(c0), np.uint64(c1), np.uint64(c2), block)
        radius = math.sqrt(-2.0 * log_positive(1.0 - unit_double(words[0], words[1])))
        sine, cosine = sincos2pi(unit_double(words[2], words[3]))
        normals_out[j] = radius * cosine
        if j + 1 < n:
            normals_out[j + 1] = radius * sine


def philox(seed: int, counter: NDArray[np.uint32]) -> NDArray[np.uint32]:
    words = np.empty_like(counter)
    _philox(*key_words(seed), _reads(counter), words)
    return words


def batch_rows(seed: int, client: int, task: int, step: int, n_rows: int, batch: int) -> NDArray[np.int64]:
    rows = np.empty(batch, np.int64)
    _batch_rows(*key_words(seed), client, task, step, 0, n_rows, rows)
    return rows


def normals(seed: int, c0: int, c1: int, c2: int, stream: int, n: int) -> NDArray[np.float64]:
    values = np.empty(n, np.float64)
    _normals(*key_words(seed), c0, c1, c2, stream, values)
    return values


# What the families share


class _Local(NamedTuple):
    """A `LocalSpec`, its numbers in the problem's dtype."""

    steps: int
    lr: Any
    momentum: Any
    weight_decay: Any
    prox: Any


class _Task(NamedTuple):
    k0: np.uint64
    k1: np.uint64
    client: int
    number: int
    batch: int


def _sum_of_products(x, y):
    total = x.dtype.type(0)
    for j in range(len(x)):
        total += x[j] * y[j]
    return total


def _four_sums_of_products(x, y0, y1, y2, y3):
    s0 = s1 = s2 = s3 = x.dtype.type(0)
    for j in range(len(x)):
        s0 += x[j] * y0[j]
        s1 += x[j] * y1[j]
        s2 += x[j] * y2[j]
        s3 += x[j] * y3[j]
    return s0, s1, s2, s3


# Ten times as fast as a fixed number of partial sums written out, which LLVM does not turn into vectors.
_inner = _compiled(_sum_of_products, fastmath={"reassoc"})
_inner4 = _compiled(_four_sums_of_products, fastmath={"reassoc"})


@_compiled
def _clear(vector):
    for j in range(len(vector)):
        vector[j] = 0


@_compiled
def _choose_rows(task, step, begin, n_rows, given, rows_out):
    """The rows of one local step, counted over all clients; `given` is empty where they are to be drawn."""
    if task.batch == 0:
        for i in range(n_rows):
            rows_out[i] = begin + i
    elif len(given) > 0:
        for i in range(task.batch):
            rows_out[i] = begin + given[step, i]
    else:
        _batch_rows(task.k0, task.k1, task.client, task.number, step, begin, n_rows, rows_out)


@_compiled
def _move(model, w, gradient, velocity, local):
    """One local step from `model`; velocity is empty where there is no momentum."""
    if local.momentum == 0 and local.weight_decay == 0 and local.prox == 0:
        for j in range(len(model)):
            model[j] -= local.lr * gradient[j]
    else:
        for j in range(len(model)):
            direction = gradient[j] + local.weight_decay * model[j] + local.prox * (model[j] - w[j])
            if local.momentum != 0:
                direction += local.momentum * velocity[j]
                velocity[j] = direction
            model[j] -= local.lr * direction


@_compiled
def _add_regularizer(w, l2, nonconvex, gradient):
    one = w.dtype.type(1)
    if l2 != 0:
        for j in range(len(w)):
            gradient[j] += l2 * w[j]
    if nonconvex != 0:
        for j in range(len(w)):
            square = one + w[j] * w[j]
            gradient[j] += (nonconvex + nonconvex) * w[j] / (square * square)


@_compiled
def _regularizer(w, l2, nonconvex):
    squares = 0.0
    bounded = 0.0
    for j in range(len(w)):
        square = np.float64(w[j]) * np.float64(w[j])
        squares += square
        bounded += square / (1.0 + square)
    return l2 / 2 * squares + nonconvex * bounded


@_compiled
def _logistic_loss(z, y):
    """log(1 + exp(z)) - y z."""
    zero = z * 0
    return max(z, zero) + math.log1p(math.exp(-abs(z))) - y * z


@_compiled
def _single_slope(z, y, head):
    """The derivative of the loss of a head with one output."""
    if head == SQUARED:
        return z - y
    small = math.exp(-abs(z))
    one = small * 0 + 1
    return (one if z >= 0 else small) / (one + small) - y


@_compiled
def _single_loss(z, y, head):
    return (z - y) * (z - y) / 2 if head == SQUARED else np.float64(_logistic_loss(z, y))


# Net: dense rows


class _Net(NamedTuple):
    x: Any
    target: Any
    label: Any
    offsets: Any
    sizes: Any
    widest: int  # of the sizes after the first
    n_values: int  # their sum
    intercept: bool
    activation: int
    head: int
    l2: Any
    nonconvex: Any


@_compiled
def _add_scaled_rows(factor, value, index, out):
    """out (n) += sum_i factor[i] value[index[i]], four rows at a time."""
    m = len(factor)
    for i in range(0, m - 3, 4):
        f0, f1, f2, f3 = factor[i], factor[i + 1], factor[i + 2], factor[i + 3]
        v0, v1, v2, v3 = value[index[i]], value[index[i + 1]], value[index[i + 2]], value[index[i + 3]]
        for j in range(len(out)):
            out[j] += (f0 * v0[j] + f1 * v1[j]) + (f2 * v2[j] + f3 * v3[j])
    for i in range(m - m % 4, m):
        f0, v0 = factor[i], value[index[i]]
        for j in range(len(out)):
            out[j] += f0 * v0[j]


@_compiled
def _layer_forward(value, index, weight, bias, score_out):
    """score_out[i] = weight value[index[i]] + bias, bias empty where there is none."""
    for i in range(len(index)):
        v = value[index[i]]
        n = len(weight) - len(weight) % 4
        for k in range(0, n, 4):
            scores = _inner4(v, weight[k], weight[k + 1], weight[k + 2], weight[k + 3])
            for j in range(4):
                score_out[i, k + j] = scores[j]
        for k in range(n, len(weight)):
            score_out[i, k] = _inner(v, weight[k])
        for k in range(len(bias)):
            score_out[i, k] += bias[k]


@_compiled
def _layer_backward(slope, value, index, weight_gradient, bias_gradient):
    """Adds the gradient by a layer's weights; slope (rows, out) is that by its scores."""
    m = len(index)
    factor = np.empty(m, slope.dtype)
    for k in range(len(weight_gradient)):
        for i in range(m):
            factor[i] = slope[i, k]
        _add_scaled_rows(factor, value, index, weight_gradient[k])
        if len(bias_gradient) > 0:
            for i in range(m):
                bias_gradient[k] += factor[i]


@_compiled
def _head_losses(problem, rows, score):
    """The sum of the rows' losses."""
    loss = 0.0
    for i in range(len(rows)):
        z = score[i]
        if problem.head == SOFTMAX:
            top = z[0]
            for k in range(1, len(z)):
                top = max(top, z[k])
            total = z.dtype.type(0)
            for k in range(len(z)):
                total += math.exp(z[k] - top)
            loss += math.log(total) - (z[problem.label[rows[i]]] - top)
        else:
            loss += _single_loss(z[0], problem.target[rows[i]], problem.head)
    return loss


@_compiled
def _head_slopes(problem, rows, score, scale):
    """Turns each score into scale * the derivative of its row's loss."""
    for i in range(len(rows)):
        z = score[i]
        if problem.head == SOFTMAX:
            top = z[0]
            for k in range(1, len(z)):
                top = max(top, z[k])
            total = z.dtype.type(0)
            for k in range(len(z)):
                z[k] = math.exp(z[k] - top)
                total += z[k]
            for k in range(len(z)):
                z[k] = z[k] / total * scale
            z[problem.label[rows[i]]] -= scale
        else:
            z[0] = _single_slope(z[0], problem.target[rows[i]], problem.head) * scale


@_compiled
def _activate(problem, value):
    zero = value.dtype.type(0)
    for i in range(value.shape[0]):
        for k in range(value.shape[1]):
            value[i, k] = math.tanh(value[i, k]) if problem.activation == TANH else max(value[i, k], zero)


@_compiled
def _deactivate(problem, value, slope):
    """Multiplies the slopes by the activation's derivative, which follows from its value."""
    one = value.dtype.type(1)
    zero = value.dtype.type(0)
    for i in range(value.shape[0]):
        for k in range(value.shape[1]):
            if problem.activation == TANH:
                slope[i, k] *= one - value[i, k] * value[i, k]
            else:
                slope[i, k] = slope[i, k] if value[i, k] > 0 else zero


@_compiled
def _matrix(flat, position, n_rows, n_columns):
    return flat[position : position + n_rows * n_columns].reshape((n_rows, n_columns))


@_compiled
def _net_scores(problem, w, rows, values, identity):
    """Runs the rows forward; returns their scores. `values` holds the layers' outputs, (rows, size) each, in turn."""
    sizes = problem.sizes
    n_layers = len(sizes) - 1
    m = len(rows)
    at_w = at_value = 0
    for layer in range(n_layers):
        n_in, n_out = sizes[layer], sizes[layer + 1]
        weight = _matrix(w, at_w, n_out, n_in)
        at_w += n_out * n_in
        bias = w[at_w : at_w + (n_out if problem.intercept else 0)]
        at_w += len(bias)
        score = _matrix(values, at_value, m, n_out)
        if layer == 0:
            _layer_forward(problem.x, rows, weight, bias, score)
        else:
            _layer_forward(_matrix(values, at_value - m * n_in, m, n_in), identity[:m], weight, bias, score)
        if layer < n_layers - 1:
            _activate(problem, score)
        at_value += m * n_out
    return _matrix(values, at_value - m * sizes[-1], m, sizes[-1])


@_compiled
def _net_backward(problem, w, rows, scratch, identity, gradient):
    """Adds the rows' gradient, after `_net_scores` and `_head_slopes`."""
    sizes = problem.sizes
    m = len(rows)
    at_value = m * problem.n_values
    at_w = len(w)
    slope = _matrix(scratch[0], at_value - m * sizes[-1], m, sizes[-1])
    for layer in range(len(sizes) - 2, -1, -1):
        n_in, n_out = sizes[layer], sizes[layer + 1]
        n_bias = n_out if problem.intercept else 0
        at_value -= m * n_out
        at_w -= n_out * n_in + n_bias
        weight = _matrix(w, at_w, n_out, n_in)
        weight_gradient = _matrix(gradient, at_w, n_out, n_in)
        bias_gradient = gradient[at_w + n_out * n_in : at_w + n_out * n_in + n_bias]
        if layer == 0:
            _layer_backward(slope, problem.x, rows, weight_gradient, bias_gradient)
        else:
            value = _matrix(scratch[0], at_value - m * n_in, m, n_in)
            _layer_backward(slope, value, identity[:m], weight_gradient, bias_gradient)
            below = _matrix(scratch[1], at_value - m * n_in, m, n_in)
            for i in range(m):
                _clear(below[i])
                _add_scaled_rows(slope[i], weight, identity[:n_out], below[i])
            _deactivate(problem, value, below)
            slope = below


@_compiled
def _range(begin, end):
    numbers = np.empty(end - begin, np.int64)
    for i in range(end - begin):
        numbers[i] = begin + i
    return numbers


@_compiled
def _net_scratch(problem, w):
    """Room for the layers' values and slopes of one block, and 0, 1, 2, ..."""
    return np.empty((2, BLOCK * problem.n_values), w.dtype), _range(0, max(BLOCK, problem.widest))


@_compiled
def _net_local_sgd(problem, local, task, w, given, delta_out):
    begin, end = problem.offsets[task.client], problem.offsets[task.client + 1]
    rows = np.empty(task.batch if task.batch > 0 else end - begin, np.int64)
    scale = w.dtype.type(1) / w.dtype.type(len(rows))
    scratch, identity = _net_scratch(problem, w)
    model = w.copy()
    gradient = np.empty_like(model)
    velocity = np.zeros(len(w) if local.momentum != 0 else 0, w.dtype)
    for step in range(local.steps):
        _choose_rows(task, step, begin, end - begin, given, rows)
        _clear(gradient)
        for i in range(0, len(rows), BLOCK):
            block = rows[i : i + BLOCK]
            score = _net_scores(problem, model, block, scratch[0], identity)
            _head_slopes(problem, block, score, scale)
            _net_backward(problem, model, block, scratch, identity, gradient)
        _add_regularizer(model, problem.l2, problem.nonconvex, gradient)
        _move(model, w, gradient, velocity, local)
    for j in range(len(w)):
        delta_out[j] = w[j] - model[j]


@_compiled
def _net_objective(problem, first, weights, w, gradient_out):
    """sum_i weights[i] f_{first + i}(w), and its gradient unless gradient_out is empty; added in float64."""
    scratch, identity = _net_scratch(problem, w)
    model = w.copy()
    gradient = np.empty_like(gradient_out)
    total = np.zeros(len(gradient_out), np.float64)
    value = 0.0
    for i in range(len(weights)):
        begin, end = problem.offsets[first + i], problem.offsets[first + i + 1]
        scale = w.dtype.type(1) / w.dtype.type(end - begin)
        loss = 0.0
        _clear(gradient)
        for row in range(begin, end, BLOCK):
            block = _range(row, min(row + BLOCK, end))
            score = _net_scores(problem, model, block, scratch[0], identity)
            loss += _head_losses(problem, block, score)
            if len(gradient) > 0:
                _head_slopes(problem, block, score, scale)
                _net_backward(problem, model, block, scratch, identity, gradient)
        value += weights[i] * (loss / (end - begin))
        if len(gradient) > 0:
            _add_regularizer(model, problem.l2, problem.nonconvex, gradient)
            for j in range(len(total)):
                total[j] += weights[i] * gradient[j]
    for j in range(len(total)):
        gradient_out[j] = total[j]
    return value + np.sum(weights) * _regularizer(w, problem.l2, problem.nonconvex)


@_compiled
def _net_count_correct(problem, begin, end, w):
    scratch, identity = _net_scratch(problem, w)
    model = w.copy()
    correct = 0
    for first in range(begin, end, BLOCK):
        rows = _range(first, min(first + BLOCK, end))
        score = _net_scores(problem, model, rows, scratch[0], identity)
        for i in range(len(rows)):
            if problem.head == SOFTMAX:
                best = 0
                for k in range(1, problem.sizes[-1]):
                    if score[i, k] > score[i, best]:
                        best = k
                correct += best == problem.label[rows[i]]
            else:
                correct += (score[i, 0] > 0) == (problem.target[rows[i]] == 1)
    return correct


# Sparse: CSR rows, one output


class _Sparse(NamedTuple):
    x: Any
    column: Any
    row_start: Any
    target: Any
    offsets: Any
    intercept: bool
    head: int
    l2: Any
    nonconvex: Any


@_compiled
def _sparse_score(problem, w, row):
    score = w.dtype.type(0)
    for entry in range(problem.row_start[row], problem.row_start[row + 1]):
        score += problem.x[entry] * w[problem.column[entry]]
    return score + w[-1] if problem.intercept else score


@_compiled
def _sparse_add(problem, row, factor, out):
    """out += factor * (the row as a vector, 1 for the intercept)."""
    for entry in range(problem.row_start[row], problem.row_start[row + 1]):
        out[problem.column[entry]] += factor * problem.x[entry]
    if problem.intercept:
        out[-1] += factor


@_compiled
def _sparse_local_sgd(problem, local, task, w, given, delta_out):
    begin, end = problem.offsets[task.client], problem.offsets[task.client + 1]
    rows = np.empty(task.batch if task.batch > 0 else end - begin, np.int64)
    slope = np.empty(len(rows), w.dtype)
    scale = w.dtype.type(1) / w.dtype.type(len(rows))
    model = w.copy()
    # Without a dense term a step touches only the columns of its rows.
    plain = local.momentum == 0 and local.weight_decay == 0 and local.prox == 0
    plain = plain and problem.l2 == 0 and problem.nonconvex == 0
    gradient = np.zeros(0 if plain else len(w), w.dtype)
    velocity = np.zeros(len(w) if local.momentum != 0 else 0, w.dtype)
    for step in range(local.steps):
        _choose_rows(task, step, begin, end - begin, given, rows)
        for i in range(len(rows)):
            z = _sparse_score(problem, model, rows[i])
            slope[i] = _single_slope(z, problem.target[rows[i]], problem.head) * scale
        if plain:
            for i in range(len(rows)):
                _sparse_add(problem, rows[i], -local.lr * slope[i], model)
        else:
            _clear(gradient)
            for i in range(len(rows)):
                _sparse_add(problem, rows[i], slope[i], gradient)
            _add_regularizer(model, problem.l2, problem.nonconvex, gradient)
            _move(model, w, gradient, velocity, local)
    for j in range(len(w)):
        delta_out[j] = w[j] - model[j]


@_compiled
def _sparse_objective(problem, first, weights, w, gradient_out):
    """As `_net_objective`. The rows of all clients go into one float64 sum."""
    total = np.zeros(len(gradient_out), np.float64)
    value = 0.0
    for i in range(len(weights)):
        begin, end = problem.offsets[first + i], problem.offsets[first + i + 1]
        loss = 0.0
        for row in range(begin, end):
            z, y = _sparse_score(problem, w, row), problem.target[row]
            loss += _single_loss(z, y, problem.head)
            if len(total) > 0:
                _sparse_add(problem, row, weights[i] / (end - begin) * _single_slope(z, y, problem.head), total)
        value += weights[i] * (loss / (end - begin))
    if len(total) > 0:
        regularizer = np.zeros(len(w), w.dtype)
        _add_regularizer(w, problem.l2, problem.nonconvex, regularizer)
        for j in range(len(total)):
            gradient_out[j] = total[j] + np.sum(weights) * regularizer[j]
    return value + np.sum(weights) * _regularizer(w, problem.l2, problem.nonconvex)


@_compiled
def _sparse_count_correct(problem, begin, end, w):
    correct = 0
    for row in range(begin, end):
        correct += (_sparse_score(problem, w, row) > 0) == (problem.target[row] == 1)
    return correct


# Quadratic


class _Quadratic(NamedTuple):
    center: Any
    curvature: Any
    form: int
    noise_variance: float


@_compiled
def _curve(problem, client, w, away, gradient):
    """away = w - c, gradient = A away."""
    n = len(w)
    center = problem.center[client]
    curvature = problem.curvature[client if len(problem.curvature) > 1 else 0]
    for j in range(n):
        away[j] = w[j] - center[j]
    if problem.form == DENSE:
        matrix = curvature.reshape((n, n))
        for j in range(n):
            gradient[j] = _inner(matrix[j], away)
    elif problem.form == DIAGONAL:
        for j in range(n):
            gradient[j] = curvature[j] * away[j]
    else:
        for j in range(n):
            gradient[j] = curvature[0] * away[j]


@_compiled
def _quadratic_local_sgd(problem, local, task, w, given, delta_out):
    n = len(w)
    noisy = task.batch > 0 and problem.noise_variance > 0
    deviation = math.sqrt(problem.noise_variance / (n * task.batch)) if noisy else 0.0
    noise = np.empty(n if noisy else 0, np.float64)
    model = w.copy()
    away = np.empty_like(model)
    gradient = np.empty_like(model)
    velocity = np.zeros(n if local.momentum != 0 else 0, w.dtype)
    for step in range(local.steps):
        _curve(problem, task.client, model, away, gradient)
        if noisy:
            _normals(task.k0, task.k1, task.client, task.number, step, GRADIENT_NOISE, noise)
            for j in range(n):
                gradient[j] += w.dtype.type(deviation * noise[j])
        _move(model, w, gradient, velocity, local)
    for j in range(n):
        delta_out[j] = w[j] - model[j]


@_compiled
def _quadratic_objective(problem, first, weights, w, gradient_out):
    """As `_net_objective`."""
    away = np.empty(len(w), w.dtype)
    gradient = np.empty(len(w), w.dtype)
    total = np.zeros(len(gradient_out), np.float64)
    value = 0.0
    for i in range(len(weights)):
        _curve(problem, first + i, w, away, gradient)
        value += weights[i] * (_dot(away, gradient) / 2)
        for j in range(len(total)):
            total[j] += weights[i] * gradient[j]
    for j in range(len(total)):
        gradient_out[j] = total[j]
    return value


# The server's side


@_compiled
def _accumulate(total, delta, weight, current, start, out):
    finite = True
    if len(start) > 0:
        for j in range(len(total)):
            out[j] = total[j] + weight * (delta[j] + (current[j] - start[j]))
            finite &= math.isfinite(out[j])
    else:
        for j in range(len(total)):
            out[j] = total[j] + weight * delta[j]
            finite &= math.isfinite(out[j])
    return finite


@intrinsic
def _pointer(typing_context, address):
    def code(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(nb.types.voidptr))

    return nb.types.voidptr(nb.types.intp), code


@_compiled
def _vector(address, begin, n, like):
    """Elements begin .. begin + n of the vector at an address."""
    start: Any = _pointer(address)  # type: ignore[call-arg]
    return carray(start, begin + n, like.dtype)[begin:]


@_compiled
def _aggregate(w, addresses, weights, scale, out):
    """One pass over memory: a part of every delta is added, two at a time, while the sum is in the cache."""
    size = 2048
    n_deltas = len(addresses)
    room = np.empty(size, w.dtype)
    for begin in range(0, len(w), size):
        n = min(size, len(w) - begin)
        total = room[:n]
        _clear(total)
        for k in range(0, n_deltas - 1, 2):
            delta0, delta1 = _vector(addresses[k], begin, n, w), _vector(addresses[k + 1], begin, n, w)
            weight0, weight1 = weights[k], weights[k + 1]
            for j in range(n):
                total[j] = (total[j] + weight0 * delta0[j]) + weight1 * delta1[j]
        if n_deltas % 2 == 1:
            delta0, weight0 = _vector(addresses[n_deltas - 1], begin, n, w), weights[n_deltas - 1]
            for j in range(n):
                total[j] += weight0 * delta0[j]
        for j in range(n):
            out[begin + j] = w[begin + j] - scale * total[j]


@_compiled
def _sgd_step(w, total, lr, norm, momentum, velocity, out):
    if momentum == 0:
        for j in range(len(w)):
            out[j] = w[j] - lr * total[j]
    else:
        for j in range(len(w)):
            velocity[j] = momentum * velocity[j] + total[j] / norm
            out[j] = w[j] - lr * velocity[j]


@_compiled
def _adam_step(w, total, numbers, first, second, out):
    lr, norm, b1, one_less_b1, b2, one_less_b2, correction, epsilon, weight_decay = numbers
    for j in range(len(w)):
        gradient = total[j] / norm + weight_decay * w[j]
        first[j] = b1 * first[j] + one_less_b1 * gradient
        second[j] = b2 * second[j] + one_less_b2 * (gradient * gradient)
        out[j] = w[j] - lr * first[j] / (math.sqrt(second[j] / correction) + epsilon)


@_compiled
def _dot(x, y):
    total = 0.0
    for j in range(len(x)):
        total += np.float64(x[j]) * np.float64(y[j])
    return total


# The backend's names


@_compiled
def _encode_add(total, has_total, delta, weight, numbers, rounding, counter, out):
    """numbers: clip, 1 / step and factor in the dtype; rounding: key words, or nothing; counter: client and task."""
    clip, scale, factor = numbers[0], numbers[1], numbers[2]
    outside = 0
    words = (np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0))
    for j in range(len(delta)):
        x = factor * delta[j]
        if not abs(x) <= clip:
            outside += 1
        x = x if x > -clip else -clip
        units = np.float64((x if x < clip else clip) * scale)
        whole = np.rint(units)
        if len(rounding) > 0:
            if j % 4 == 0:
                block = np.uint64(j // 4)
                words = philox_words(
                    rounding[0], rounding[1], counter[0], counter[1], block >> np.uint64(28),
                    np.uint64(ROUNDING << 28) | block & np.uint64(0xFFFFFFF),
                )  # fmt: skip
            away = units - whole
            if (np.float64(words[j % 4]) + 0.5) * (1.0 / 4294967296.0) < abs(away):
                whole += -1.0 if away < 0 else 1.0
        term = weight * np.uint64(np.int64(whole))
        out[j] = np.uint64(total[j]) + term if has_total else term
    return outside


@_compiled
def _add_words(total, words, weight, out):
    for j in range(len(out)):
        out[j] = np.uint64(total[j]) + weight * np.uint64(words[j])


@_compiled
def _decode(signed, scale, out):
    for j in range(len(out)):
        out[j] = np.float64(signed[j]) * scale


def _reads(array: NDArray[Any]) -> NDArray[Any]:
    """A view that only reads, so that arrays of a user that may and may not be written have one type."""
    view = array.view()
    view.flags.writeable = False
    return view


def _or_empty(array: NDArray[Any] | None, dtype: Any, ndim: int = 1) -> NDArray[Any]:
    return _reads(np.empty((0,) * ndim, dtype) if array is None else array)


class _Bound:
    def __init__(self, spec: ProblemSpec, problem: NamedTuple, local_sgd: Any, objective: Any, correct: Any) -> None:
        self._dtype = spec.dtype
        self._weights = _reads(spec.client_weight)
        self._one = _reads(np.ones(1))
        self._problem = problem
        self._local_sgd = local_sgd
        self._objective = objective
        self._count_correct = correct
        self._no_rows = _reads(np.empty((0, 0), np.int64))
        self._no_gradient = np.empty(0, spec.dtype)

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
        t = self._dtype.type
        numbers = _Local(local.steps, t(local.lr), t(local.momentum), t(local.weight_decay), t(local.prox))
        given = self._no_rows if rows is None else _reads(rows)
        self._local_sgd(
            self._problem, numbers, _Task(*key_words(seed), client, task, batch), _reads(w), given, delta_out
        )

    def client_gradient(self, client: int, w: Vector, gradient_out: Vector | None) -> float:
        out = self._no_gradient if gradient_out is None else gradient_out
        return float(self._objective(self._problem, client, self._one, _reads(w), out))

    def gradient(self, w: Vector, gradient_out: Vector | None, threads: int) -> float:
        out = self._no_gradient if gradient_out is None else gradient_out
        return float(self._objective(self._problem, 0, self._weights, _reads(w), out))

    def count_correct(self, begin: int, end: int, w: Vector) -> int:
        return int(self._count_correct(self._problem, begin, end, _reads(w)))


def bind(spec: ProblemSpec) -> BoundProblem:
    t = spec.dtype.type
    head = {"squared": SQUARED, "logistic": LOGISTIC, "softmax": SOFTMAX}[spec.head]
    if spec.family == "quadratic":
        quadratic = _Quadratic(
            center=_or_empty(spec.center, spec.dtype, 2),
            curvature=_or_empty(spec.curvature, spec.dtype, 2),
            form={"scalar": SCALAR, "diagonal": DIAGONAL, "dense": DENSE}[spec.curvature_form],
            noise_variance=float(spec.noise_variance),
        )
        return _Bound(spec, quadratic, _quadratic_local_sgd, _quadratic_objective, lambda *_: 0)
    if spec.family == "sparse":
        sparse = _Sparse(
            x=_or_empty(spec.x, spec.dtype),
            column=_or_empty(spec.column, np.int32),
            row_start=_or_empty(spec.row_start, np.int64),
            target=_or_empty(spec.target, spec.dtype),
            offsets=_or_empty(spec.offsets, np.int64),
            intercept=spec.intercept,
            head=head,
            l2=t(spec.l2),
            nonconvex=t(spec.nonconvex),
        )
        return _Bound(spec, sparse, _sparse_local_sgd, _sparse_objective, _sparse_count_correct)
    net = _Net(
        x=_or_empty(spec.x, spec.dtype, 2),
        target=_or_empty(spec.target, spec.dtype),
        label=_or_empty(spec.label, np.int32),
        offsets=_or_empty(spec.offsets, np.int64),
        sizes=_reads(np.array(spec.sizes, np.int64)),
        widest=max(spec.sizes[1:]),
        n_values=sum(spec.sizes[1:]),
        intercept=spec.intercept,
        activation=TANH if spec.activation == "tanh" else RELU,
        head=head,
        l2=t(spec.l2),
        nonconvex=t(spec.nonconvex),
    )
    return _Bound(spec, net, _net_local_sgd, _net_objective, _net_count_correct)


def accumulate(
    total: Vector, delta: Vector, weight: float, current: Vector | None, start: Vector | None, out: Vector
) -> bool:
    dtype = total.dtype
    current, start = (None, None) if start is None else (current, start)
    return bool(
        _accumulate(
            _reads(total), _reads(delta), dtype.type(weight), _or_empty(current, dtype), _or_empty(start, dtype), out
        )
    )


def aggregate(w: Vector, deltas: list[Vector], weights: Vector, scale: float, out: Vector, threads: int) -> None:
    addresses = np.array([delta.ctypes.data for delta in deltas], np.intp)
    _aggregate(_reads(w), addresses, _reads(weights), w.dtype.type(scale), out)


def sgd_step(
    w: Vector, total: Vector, lr: float, norm: float, momentum: float, velocity: Vector | None, out: Vector
) -> None:
    t = w.dtype.type
    rate = t(lr / norm) if momentum == 0 else t(lr)
    room = np.empty(0, w.dtype) if velocity is None else velocity
    _sgd_step(_reads(w), _reads(total), rate, t(norm), t(momentum), room, out)


def adam_step(
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
    t = w.dtype.type
    b1, b2 = betas
    rate, correction = lr / (1 - b1**step), 1 - b2**step
    numbers = tuple(map(t, (rate, norm, b1, 1 - b1, b2, 1 - b2, correction, epsilon, weight_decay)))
    _adam_step(_reads(w), _reads(total), numbers, first, second, out)


def dot(x: Vector, y: Vector) -> float:
    return float(_dot(_reads(x), _reads(y)))


def encode_add(
    total: Words | None,
    delta: Vector,
    weight: int,
    clip: float,
    step: float,
    factor: float,
    rounding: tuple[int, int, int] | None,
    out: Words,
) -> int:
    numbers = np.array([clip, 1.0 / step, factor], delta.dtype)
    seed, client, task = rounding or (0, 0, 0)
    key = np.array(key_words(seed) if rounding is not None else (), np.uint64)
    so_far = _reads(np.empty(0, out.dtype) if total is None else total)
    counter = np.array([client, task], np.uint64)
    return int(_encode_add(so_far, total is not None, _reads(delta), np.uint64(weight), numbers, key, counter, out))


def add_words(total: Words, words: Words, weight: int, out: Words) -> None:
    _add_words(_reads(total), _reads(words), np.uint64(weight), out)


def decode(words: Words, scale: float, out: Vector) -> None:
    _decode(_reads(words.view(np.int32 if words.dtype == np.uint32 else np.int64)), scale, out)


_KERNELS = _server.Kernels(
    accumulate=accumulate,
    sgd_step=sgd_step,
    adam_step=adam_step,
    encode_add=encode_add,
    decode=decode,
    dot=dot,
    normals=normals,
)


class Server(_server.Server):
    kernels = _KERNELS


class DeltaBuffer(_server.DeltaBuffer):
    kernels = _KERNELS


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
) -> SequentialReplay:
    return SequentialReplay(_KERNELS, rule, w0, bound, function, local, seed, batch, sums, roles)


def replay_run(engine: SequentialReplay, spec: RunSpec) -> Run:
    return Run(engine, _KERNELS.dot, spec)
