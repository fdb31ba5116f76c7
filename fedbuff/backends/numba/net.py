# mypy: allow-untyped-defs, allow-untyped-calls
"""Net: dense rows through zero or more hidden layers into a head."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .compile import compiled
from .shared import (
    SOFTMAX,
    add_regularizer,
    choose_rows,
    clear,
    inner,
    inner4,
    move,
    regularizer_value,
    single_loss,
    single_slope,
)

RELU, TANH = 0, 1
BLOCK = 64  # rows that go through a net together


class Net(NamedTuple):
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


@compiled
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


@compiled
def _layer_forward(value, index, weight, bias, score_out):
    """score_out[i] = weight value[index[i]] + bias, bias empty where there is none."""
    for i in range(len(index)):
        v = value[index[i]]
        n = len(weight) - len(weight) % 4
        for k in range(0, n, 4):
            scores = inner4(v, weight[k], weight[k + 1], weight[k + 2], weight[k + 3])
            for j in range(4):
                score_out[i, k + j] = scores[j]
        for k in range(n, len(weight)):
            score_out[i, k] = inner(v, weight[k])
        for k in range(len(bias)):
            score_out[i, k] += bias[k]


@compiled
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


@compiled
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
            loss += single_loss(z[0], problem.target[rows[i]], problem.head)
    return loss


@compiled
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
            z[0] = single_slope(z[0], problem.target[rows[i]], problem.head) * scale


@compiled
def _activate(problem, value):
    zero = value.dtype.type(0)
    for i in range(value.shape[0]):
        for k in range(value.shape[1]):
            value[i, k] = math.tanh(value[i, k]) if problem.activation == TANH else max(value[i, k], zero)


@compiled
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


@compiled
def _matrix(flat, position, n_rows, n_columns):
    return flat[position : position + n_rows * n_columns].reshape((n_rows, n_columns))


@compiled
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


@compiled
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
                clear(below[i])
                _add_scaled_rows(slope[i], weight, identity[:n_out], below[i])
            _deactivate(problem, value, below)
            slope = below


@compiled
def _range(begin, end):
    numbers = np.empty(end - begin, np.int64)
    for i in range(end - begin):
        numbers[i] = begin + i
    return numbers


@compiled
def _net_scratch(problem, w):
    """Room for the layers' values and slopes of one block, and 0, 1, 2, ..."""
    return np.empty((2, BLOCK * problem.n_values), w.dtype), _range(0, max(BLOCK, problem.widest))


@compiled
def net_local_sgd(problem, local, task, w, given, delta_out):
    begin, end = problem.offsets[task.client], problem.offsets[task.client + 1]
    rows = np.empty(task.batch if task.batch > 0 else end - begin, np.int64)
    scale = w.dtype.type(1) / w.dtype.type(len(rows))
    scratch, identity = _net_scratch(problem, w)
    model = w.copy()
    gradient = np.empty_like(model)
    velocity = np.zeros(len(w) if local.momentum != 0 else 0, w.dtype)
    for step in range(local.steps):
        choose_rows(task, step, begin, end - begin, given, rows)
        clear(gradient)
        for i in range(0, len(rows), BLOCK):
            block = rows[i : i + BLOCK]
            score = _net_scores(problem, model, block, scratch[0], identity)
            _head_slopes(problem, block, score, scale)
            _net_backward(problem, model, block, scratch, identity, gradient)
        add_regularizer(model, problem.l2, problem.nonconvex, gradient)
        move(model, w, gradient, velocity, local)
    for j in range(len(w)):
        delta_out[j] = w[j] - model[j]


@compiled
def net_objective(problem, first, weights, w, gradient_out):
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
        clear(gradient)
        for row in range(begin, end, BLOCK):
            block = _range(row, min(row + BLOCK, end))
            score = _net_scores(problem, model, block, scratch[0], identity)
            loss += _head_losses(problem, block, score)
            if len(gradient) > 0:
                _head_slopes(problem, block, score, scale)
                _net_backward(problem, model, block, scratch, identity, gradient)
        value += weights[i] * (loss / (end - begin))
        if len(gradient) > 0:
            add_regularizer(model, problem.l2, problem.nonconvex, gradient)
            for j in range(len(total)):
                total[j] += weights[i] * gradient[j]
    for j in range(len(total)):
        gradient_out[j] = total[j]
    return value + np.sum(weights) * regularizer_value(w, problem.l2, problem.nonconvex)


@compiled
def net_count_correct(problem, begin, end, w):
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
