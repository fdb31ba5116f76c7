# mypy: allow-untyped-defs, allow-untyped-calls
"""Layers: rows of one shape through the layers of a network into a head."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .compile import compiled, helper, inlined
from .convolution import (
    avg_pool_backward,
    avg_pool_forward,
    conv_backward,
    conv_forward,
    max_pool_backward,
    max_pool_forward,
)
from .dense import add_products, scores
from .lend import read_only
from .local_step import choose_rows, clear, finish, lr_of, move
from .losses import SOFTMAX, add_regularizer, powers, regularizer_value, single_loss, single_slope
from .pointwise import (
    Place,
    augment_backward,
    augment_forward,
    dropout_backward,
    dropout_forward,
    global_avg_backward,
    global_avg_forward,
    mean_over_time,
    mean_over_time_backward,
    norm_backward,
    norm_forward,
    planes_of_rows,
    pointwise_backward,
    pointwise_forward,
    rows_of_planes,
)
from .program import (
    ADD,
    AVG_POOL,
    BIAS,
    CONV,
    CROP,
    DENSE,
    DROPOUT,
    EMBEDDING,
    FLATTEN,
    FLIP,
    GLOBAL_AVG,
    IN,
    KIND,
    LAST_STEP,
    MAX_POOL,
    MEAN_OVER_TIME,
    NORM,
    OTHER,
    OUT,
    OUT_C,
    OUT_H,
    OUT_W,
    PASSES,
    WEIGHT,
    C,
    H,
    Program,
    W,
)


class Layers(NamedTuple):
    """Of x, byte and token one has the rows; `of_byte` is what each byte stands for."""

    x: Any
    byte: Any
    of_byte: Any
    token: Any
    target: Any  # (rows * outputs)
    label: Any
    offsets: Any
    program: Program
    head: int
    smoothing: Any
    l2: Any
    nonconvex: Any


@inlined
def _part(room, block, m, at, size):
    """A tensor of m rows."""
    return room[at * block : at * block + m * size]


@inlined
def _in(op):
    return op[C] * op[H] * op[W]


@inlined
def _out(op):
    return op[OUT_C] * op[OUT_H] * op[OUT_W]


@helper
def _load(problem, rows, m, values):
    """The rows of x, or what their bytes stand for, as a tensor."""
    n, channels = problem.program.input_size, problem.program.input_channels
    size = n // channels
    for c in range(channels):
        for i in range(m):
            to = values[(c * m + i) * size :][:size]
            if problem.x.shape[0] > 0:
                for j in range(size):
                    to[j] = problem.x[rows[i], c * size + j]
            else:
                for j in range(size):
                    to[j] = problem.of_byte[problem.byte[rows[i], c * size + j]]


@helper
def _embed(op, token, rows, m, w, y):
    steps, width = op[OUT_H], op[OUT_W]
    for i in range(m):
        for t in range(steps):
            at = op[WEIGHT] + token[rows[i], t] * width
            for j in range(width):
                y[(i * steps + t) * width + j] = w[at + j]


@helper
def _embed_backward(op, token, rows, m, by_y, gradient):
    steps, width = op[OUT_H], op[OUT_W]
    for i in range(m):
        for t in range(steps):
            at = op[WEIGHT] + token[rows[i], t] * width
            for j in range(width):
                gradient[at + j] += by_y[(i * steps + t) * width + j]


@helper
def _dense_forward(op, x, w, m, identity, y):
    n_in, n_out = _in(op), _out(op)
    made = y.reshape((m, n_out))
    scores(x.reshape((m, n_in)), identity, m, w[op[WEIGHT] :][: n_out * n_in].reshape((n_out, n_in)), made)
    if op[BIAS] >= 0:
        for i in range(m):
            for k in range(n_out):
                made[i, k] += w[op[BIAS] + k]


@helper
def _dense_backward(op, x, w, m, scratch, by_y, by_x, gradient):
    n_in, n_out, identity = _in(op), _out(op), scratch.identity
    slope = by_y.reshape((m, n_out))
    weight = w[op[WEIGHT] :][: n_out * n_in].reshape((n_out, n_in))
    if op[BIAS] >= 0:
        for i in range(m):
            for k in range(n_out):
                gradient[op[BIAS] + k] += slope[i, k]
    if op[PASSES]:
        turned = scratch.turned[: n_out * m].reshape((n_out, m))
        for i in range(m):
            for k in range(n_out):
                turned[k, i] = slope[i, k]
        add_products(weight, identity, n_out, turned, by_x.reshape((m, n_in)))
    target = gradient[op[WEIGHT] :][: n_out * n_in].reshape((n_out, n_in))
    add_products(x.reshape((m, n_in)), identity, m, slope, target)


@helper
def _forward_image(op, number, x, w, m, place, scratch, choice, y):
    """Operations on images and on single numbers."""
    kind = op[KIND]
    if kind == CONV:
        conv_forward(op, x, w, m, scratch.windows, scratch.factors, y)
    elif kind == MAX_POOL:
        max_pool_forward(op, x, op[C] * m, choice, y)
    elif kind == AVG_POOL:
        avg_pool_forward(op, x, op[C] * m, y)
    elif kind == GLOBAL_AVG:
        global_avg_forward(op, x, m, y)
    elif kind == FLATTEN:
        rows_of_planes(op, x, m, y)
    elif kind == NORM:
        norm_forward(op, number, x, w, m, y)
    elif kind == DROPOUT:
        dropout_forward(op, number, x, m, place, choice, y)
    elif CROP <= kind <= FLIP:
        augment_forward(op, x, m, place, choice, y)
    else:
        pointwise_forward(op, number, x, y)


@helper
def _forward(problem, w, rows, m, place, scratch):
    """Runs m rows forward, a multiple of four, at most a block; returns their scores."""
    program, values = problem.program, scratch.values[0]
    block = program.block
    if problem.token.shape[0] == 0:
        _load(problem, rows, m, values)
    for i in range(len(program.operations)):
        op = program.operations[i]
        x, y = _part(values, block, m, op[IN], _in(op)), _part(values, block, m, op[OUT], _out(op))
        kind = op[KIND]
        if kind == DENSE:
            _dense_forward(op, x, w, m, scratch.identity, y)
        elif kind == EMBEDDING:
            _embed(op, problem.token, rows, m, w, y)
        elif kind == ADD:
            other = _part(values, block, m, op[OTHER], _in(op))
            for j in range(len(y)):
                y[j] = x[j] + other[j]
        elif kind == MEAN_OVER_TIME:
            mean_over_time(op, x, m, y)
        elif kind == LAST_STEP:
            for row in range(m):
                y[row * op[W] : (row + 1) * op[W]] = x[((row + 1) * op[H] - 1) * op[W] : (row + 1) * op[H] * op[W]]
        else:
            choice = scratch.choice[op[OUT] * block :]
            _forward_image(op, program.numbers[i], x, w, m, place, scratch, choice, y)
    return _part(values, block, m, program.score, program.outputs).reshape((m, program.outputs))


@helper
def _backward_image(op, number, x, y, w, m, scratch, choice, by_y, by_x, gradient):
    kind, passes = op[KIND], op[PASSES] == 1
    if kind == CONV:
        conv_backward(op, x, w, m, scratch.windows, by_y, by_x, passes, gradient)
    elif kind == NORM:
        norm_backward(op, number, x, w, m, by_y, by_x, passes, gradient)
    elif not passes:
        return
    elif kind == MAX_POOL:
        max_pool_backward(op, op[C] * m, choice, by_y, by_x)
    elif kind == AVG_POOL:
        avg_pool_backward(op, op[C] * m, by_y, by_x)
    elif kind == GLOBAL_AVG:
        global_avg_backward(op, m, by_y, by_x)
    elif kind == FLATTEN:
        planes_of_rows(op, by_y, m, True, by_x)
    elif kind == DROPOUT:
        dropout_backward(op, number, choice, by_y, by_x)
    elif CROP <= kind <= FLIP:
        augment_backward(op, choice, by_y, by_x)
    else:
        pointwise_backward(op, number, x, y, op[IN] == op[OUT], by_y, by_x)


@helper
def _backward(problem, w, rows, m, scratch, gradient):
    """Adds the gradient of the rows of `_forward`, whose slopes by their scores lie in the place of those."""
    program, values, slopes = problem.program, scratch.values[0], scratch.values[1]
    block = program.block
    score = _part(values, block, m, program.score, program.outputs)
    slopes[: program.size * block] = 0
    _part(slopes, block, m, program.score, program.outputs)[:] = score
    for i in range(len(program.operations) - 1, -1, -1):
        op = program.operations[i]
        x, y = _part(values, block, m, op[IN], _in(op)), _part(values, block, m, op[OUT], _out(op))
        by_x, by_y = _part(slopes, block, m, op[IN], _in(op)), _part(slopes, block, m, op[OUT], _out(op))
        kind = op[KIND]
        if kind == DENSE:
            _dense_backward(op, x, w, m, scratch, by_y, by_x, gradient)
        elif kind == EMBEDDING:
            _embed_backward(op, problem.token, rows, m, by_y, gradient)
        elif kind == ADD:
            other = _part(slopes, block, m, op[OTHER], _in(op))
            for j in range(len(by_y)):
                by_x[j] += by_y[j]
            for j in range(len(by_y)):
                other[j] += by_y[j]
        elif kind == MEAN_OVER_TIME:
            mean_over_time_backward(op, m, by_y, by_x)
        elif kind == LAST_STEP:
            for row in range(m):
                for j in range(op[W]):
                    by_x[((row + 1) * op[H] - 1) * op[W] + j] += by_y[row * op[W] + j]
        else:
            choice = scratch.choice[op[OUT] * block :]
            _backward_image(op, program.numbers[i], x, y, w, m, scratch, choice, by_y, by_x, gradient)


@helper
def _losses(problem, rows, n, score):
    """The sum of the losses of the first n rows."""
    loss, outputs = 0.0, score.shape[1]
    for i in range(n):
        z = score[i]
        if problem.head == SOFTMAX:
            top = z[0]
            for k in range(1, outputs):
                top = max(top, z[k])
            total, away = score.dtype.type(0), score.dtype.type(0)
            for k in range(outputs):
                total += math.exp(z[k] - top)
                away += z[k] - top
            picked = z[problem.label[rows[i]]] - top
            loss += math.log(total) - picked
            if problem.smoothing != 0:
                loss += problem.smoothing * (picked - away / score.dtype.type(outputs))
        else:
            for k in range(outputs):
                loss += single_loss(z[k], problem.target[rows[i] * outputs + k], problem.head)
    return loss


@helper
def _slopes(problem, rows, counts, m, score, scale):
    """Turns each score into scale * the row's count * the derivative of its loss."""
    outputs = score.shape[1]
    if problem.head == SOFTMAX:
        powers(score.reshape(score.size), m, outputs)
    smoothed = problem.smoothing / score.dtype.type(outputs)
    for i in range(m):
        factor = scale * counts[i]
        if problem.head == SOFTMAX:
            total = score.dtype.type(0)
            for k in range(outputs):
                total += score[i, k]
            for k in range(outputs):
                score[i, k] = (score[i, k] / total - smoothed) * factor
            score[i, problem.label[rows[i]]] -= (score.dtype.type(1) - problem.smoothing) * factor
        else:
            for k in range(outputs):
                target = problem.target[rows[i] * outputs + k]
                score[i, k] = single_slope(score[i, k], target, problem.head) * factor


@compiled
def layers_local_sgd(problem, local, task, w, given, scratch, delta_out):
    begin = problem.offsets[task.client]
    n_rows = problem.offsets[task.client + 1] - begin
    gradient, velocity = scratch.gradient, scratch.velocity
    one, block = w.dtype.type(1), problem.program.block
    model = delta_out
    for j in range(len(w)):
        model[j] = w[j]
    seen = read_only(model)
    if local.momentum != 0:
        clear(velocity)
    for step in range(local.steps):
        n, n_all = choose_rows(local, task, step, begin, n_rows, given, scratch, not problem.program.is_random)
        scale = one / w.dtype.type(n_all)
        clear(gradient)
        for first in range(0, n, block):
            rows, counts = scratch.rows[first:], scratch.counts[first:]
            m = (min(block, n - first) + 3) // 4 * 4
            place = Place(True, task.k0, task.k1, task.client, task.number, step, first)
            score = _forward(problem, seen, rows, m, place, scratch)
            _slopes(problem, rows, counts, m, score, scale)
            _backward(problem, seen, rows, m, scratch, gradient)
        add_regularizer(model, problem.l2, problem.nonconvex, gradient)
        move(model, w, gradient, velocity, local, lr_of(local, step, w))
    finish(w, local, delta_out)


@inlined
def _no_draws(w):
    return Place(False, np.uint64(0), np.uint64(0), 0, 0, 0, 0)


@inlined
def _stretch(begin, n, scratch):
    """Rows begin to begin + n, and up to three of count 0 behind them; returns a multiple of four of them."""
    m = (n + 3) // 4 * 4
    for i in range(m):
        scratch.rows[i] = begin + i if i < n else begin
        scratch.counts[i] = 1 if i < n else 0
    return m


@compiled
def layers_objective(problem, first, weights, w, scratch, total):
    """As `net_objective`."""
    gradient, block = scratch.gradient, problem.program.block
    value = 0.0
    for i in range(len(weights)):
        begin, end = problem.offsets[first + i], problem.offsets[first + i + 1]
        scale = w.dtype.type(1) / w.dtype.type(end - begin)
        loss = 0.0
        if len(total) > 0:
            clear(gradient)
        for row in range(begin, end, block):
            n = min(block, end - row)
            m = _stretch(row, n, scratch)
            score = _forward(problem, w, scratch.rows, m, _no_draws(w), scratch)
            loss += _losses(problem, scratch.rows, n, score)
            if len(total) > 0:
                _slopes(problem, scratch.rows, scratch.counts, m, score, scale)
                _backward(problem, w, scratch.rows, m, scratch, gradient)
        value += weights[i] * (loss / (end - begin))
        if len(total) > 0:
            add_regularizer(w, problem.l2, problem.nonconvex, gradient)
            for j in range(len(total)):
                total[j] += weights[i] * gradient[j]
    return value + np.sum(weights) * regularizer_value(w, problem.l2, problem.nonconvex)


@compiled
def layers_count_correct(problem, begin, end, w, scratch):
    block, outputs = problem.program.block, problem.program.outputs
    correct = 0
    for first in range(begin, end, block):
        n = min(block, end - first)
        m = _stretch(first, n, scratch)
        score = _forward(problem, w, scratch.rows, m, _no_draws(w), scratch)
        for i in range(n):
            row = first + i
            if problem.head == SOFTMAX:
                best = 0
                for k in range(1, outputs):
                    if score[i, k] > score[i, best]:
                        best = k
                correct += best == problem.label[row]
            else:
                correct += (score[i, 0] > 0) == (problem.target[row * outputs] == 1)
    return correct
