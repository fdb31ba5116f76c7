# mypy: allow-untyped-defs, allow-untyped-calls
"""Net: dense rows through zero or more hidden layers into a head."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .compile import compiled, helper, inlined
from .dense import add_products, add_row, row_score, scores
from .draws import batch_words
from .lend import read_only
from .local_step import choose_rows, clear, finish, is_plain, lr_of, move
from .losses import SOFTMAX, add_regularizer, powers, regularizer_value, single_loss, single_slope
from .memory import prefetch

RELU, TANH = 0, 1
MOST_FETCHED, MOST_FETCHED_COLUMNS = 16, 32  # rows, and their columns, that are worth fetching ahead
BLOCK = 64  # rows that go through a net together; a multiple of four


class Net(NamedTuple):
    x: Any
    target: Any
    label: Any
    offsets: Any
    sizes: Any
    n_values: int  # sum of the sizes after the first
    intercept: bool
    activation: int
    head: int
    l2: Any
    nonconvex: Any


@helper
def _head_losses(problem, rows, n, score):
    """The sum of the losses of the first n rows."""
    loss = 0.0
    for i in range(n):
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
            loss += single_loss(z[0], problem.target[rows[i]], problem.head)
    return loss


@helper
def _head_slopes(problem, rows, counts, m, score, scale):
    """Turns each score into scale * the row's count * the derivative of its loss."""
    if problem.head == SOFTMAX:
        powers(score.reshape(score.size), m, score.shape[1])
    for i in range(m):
        factor = scale * counts[i]
        if problem.head == SOFTMAX:
            total = score[i, 0] * 0
            for k in range(score.shape[1]):
                total += score[i, k]
            share = factor / total
            for k in range(score.shape[1]):
                score[i, k] *= share
            score[i, problem.label[rows[i]]] -= factor
        else:
            score[i, 0] = single_slope(score[i, 0], problem.target[rows[i]], problem.head) * factor


@helper
def _activate(problem, value):
    zero = value.dtype.type(0)
    for i in range(value.shape[0]):
        for k in range(value.shape[1]):
            value[i, k] = math.tanh(value[i, k]) if problem.activation == TANH else max(value[i, k], zero)


@helper
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


@helper
def _matrix(flat, position, n_rows, n_columns):
    return flat[position : position + n_rows * n_columns].reshape((n_rows, n_columns))


@helper
def _net_scores(problem, w, rows, m, scratch):
    """Runs the first m rows forward, m a multiple of four; returns their scores.

    The first part of scratch.values holds the layers' outputs, (m, size) each, in turn.
    """
    sizes, values = problem.sizes, scratch.values[0]
    n_layers = len(sizes) - 1
    at_w = at_value = 0
    for layer in range(n_layers):
        n_in, n_out = sizes[layer], sizes[layer + 1]
        weight = _matrix(w, at_w, n_out, n_in)
        at_w += n_out * n_in
        made = _matrix(values, at_value, m, n_out)
        if layer == 0:
            scores(problem.x, rows, m, weight, made)
        else:
            scores(_matrix(values, at_value - m * n_in, m, n_in), scratch.identity, m, weight, made)
        if problem.intercept:
            for i in range(m):
                for k in range(n_out):
                    made[i, k] += w[at_w + k]
            at_w += n_out
        if layer < n_layers - 1:
            _activate(problem, made)
        at_value += m * n_out
    return _matrix(values, at_value - m * sizes[-1], m, sizes[-1])


@helper
def _net_backward(problem, w, rows, m, scratch, target):
    """Adds the gradient of the first m rows to the target, after `_net_scores` and `_head_slopes`.

    The target may be w: a layer's weights are read for the last time before they are written.
    """
    sizes = problem.sizes
    at_value = m * problem.n_values
    at_w = len(w)
    slope = _matrix(scratch.values[0], at_value - m * sizes[-1], m, sizes[-1])
    for layer in range(len(sizes) - 2, -1, -1):
        n_in, n_out = sizes[layer], sizes[layer + 1]
        at_value -= m * n_out
        at_w -= n_out * n_in + (n_out if problem.intercept else 0)
        below = slope
        if layer > 0:
            below = _matrix(scratch.values[1], at_value - m * n_in, m, n_in)
            turned = _matrix(scratch.turned, 0, n_out, m)
            for i in range(m):
                clear(below[i])
                for k in range(n_out):
                    turned[k, i] = slope[i, k]
            add_products(_matrix(w, at_w, n_out, n_in), scratch.identity, n_out, turned, below)
        weight = _matrix(target, at_w, n_out, n_in)
        if problem.intercept:
            for i in range(m):
                for k in range(n_out):
                    target[at_w + n_out * n_in + k] += slope[i, k]
        if layer == 0:
            add_products(problem.x, rows, m, slope, weight)
        else:
            value = _matrix(scratch.values[0], at_value - m * n_in, m, n_in)
            add_products(value, scratch.identity, m, slope, weight)
            _deactivate(problem, value, below)
            slope = below


@helper
def _net_pass(problem, w, rows, counts, n, scale, scratch, target):
    """target += scale times the sum of the gradients of the first n rows, times their counts; n at most BLOCK."""
    m = (n + 3) // 4 * 4
    score = _net_scores(problem, w, rows, m, scratch)
    _head_slopes(problem, rows, counts, m, score, scale)
    _net_backward(problem, w, rows, m, scratch, target)


@inlined
def _single_pass(problem, model, rows, counts, n, scale, scratch):
    """As `_net_pass` into the model, for one output and no hidden layer."""
    x, target, n_in = problem.x, problem.target, problem.sizes[0]
    factor = scratch.turned
    for i in range(n):
        z = row_score(x, rows[i], model, n_in)
        if problem.intercept:
            z += model[n_in]
        factor[i] = single_slope(z, target[rows[i]], problem.head) * (scale * counts[i])
    for i in range(n):
        add_row(x, rows[i], factor[i], model, n_in)
        if problem.intercept:
            model[n_in] += factor[i]


@helper
def fetch_rows(x, target, offsets, k0, k1, client, number, batch):
    """Asks the memory for the rows of the first local step of a task, while another one is at work."""
    begin = offsets[client]
    n_rows = np.uint64(offsets[client + 1] - begin)
    for j in range(0, batch, 4):
        words = batch_words(k0, k1, client, number, 0, j)
        for i in range(min(4, batch - j)):
            row = begin + np.int64((words[i] * n_rows) >> np.uint64(32))
            prefetch(x, row * x.shape[1])
            prefetch(x, (row + 1) * x.shape[1] - 1)
            prefetch(target, row)


@compiled
def net_local_sgd(problem, local, task, w, given, scratch, delta_out):
    begin = problem.offsets[task.client]
    n_rows = problem.offsets[task.client + 1] - begin
    rows, counts, gradient, velocity = scratch.rows, scratch.counts, scratch.gradient, scratch.velocity
    one = w.dtype.type(1)
    plain, single = is_plain(problem, local), problem.n_values == 1
    model = delta_out
    for j in range(len(w)):
        model[j] = w[j]
    if local.momentum != 0:
        clear(velocity)
    for step in range(local.steps):
        n, n_all = choose_rows(local, task, step, begin, n_rows, given, scratch, True)
        scale, lr = one / w.dtype.type(n_all), lr_of(local, step, w)
        if plain and n <= BLOCK:
            if single:
                _single_pass(problem, model, rows, counts, n, -lr * scale, scratch)
            else:
                _net_pass(problem, read_only(model), rows, counts, n, -lr * scale, scratch, model)
        else:
            clear(gradient)
            for i in range(0, n, BLOCK):
                _net_pass(problem, read_only(model), rows[i:], counts[i:], min(BLOCK, n - i), scale, scratch, gradient)
            add_regularizer(model, problem.l2, problem.nonconvex, gradient)
            move(model, w, gradient, velocity, local, lr)
    finish(w, local, delta_out)


@helper
def _block_of(begin, end, scratch):
    """Rows begin to end, at most BLOCK, and three of count 0 behind them; returns a multiple of four of them."""
    rows, counts = scratch.rows, scratch.counts
    n = end - begin
    for i in range(n + 3):
        rows[i] = begin + i if i < n else begin
        counts[i] = 1 if i < n else 0
    return (n + 3) // 4 * 4


@compiled
def net_objective(problem, first, weights, w, scratch, total):
    """sum_i weights[i] f_{first + i}(w); its gradient is added to the total, in float64, unless that is empty."""
    gradient = scratch.gradient
    value = 0.0
    for i in range(len(weights)):
        begin, end = problem.offsets[first + i], problem.offsets[first + i + 1]
        scale = w.dtype.type(1) / w.dtype.type(end - begin)
        loss = 0.0
        if len(total) > 0:
            clear(gradient)
        for row in range(begin, end, BLOCK):
            n = min(BLOCK, end - row)
            m = _block_of(row, row + n, scratch)
            score = _net_scores(problem, w, scratch.rows, m, scratch)
            loss += _head_losses(problem, scratch.rows, n, score)
            if len(total) > 0:
                _head_slopes(problem, scratch.rows, scratch.counts, m, score, scale)
                _net_backward(problem, w, scratch.rows, m, scratch, gradient)
        value += weights[i] * (loss / (end - begin))
        if len(total) > 0:
            add_regularizer(w, problem.l2, problem.nonconvex, gradient)
            for j in range(len(total)):
                total[j] += weights[i] * gradient[j]
    return value + np.sum(weights) * regularizer_value(w, problem.l2, problem.nonconvex)


@compiled
def net_count_correct(problem, begin, end, w, scratch):
    rows = scratch.rows
    correct = 0
    for first in range(begin, end, BLOCK):
        n = min(BLOCK, end - first)
        score = _net_scores(problem, w, rows, _block_of(first, first + n, scratch), scratch)
        for i in range(n):
            if problem.head == SOFTMAX:
                best = 0
                for k in range(1, problem.sizes[-1]):
                    if score[i, k] > score[i, best]:
                        best = k
                correct += best == problem.label[rows[i]]
            else:
                correct += (score[i, 0] > 0) == (problem.target[rows[i]] == 1)
    return correct
