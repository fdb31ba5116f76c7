# mypy: allow-untyped-defs, allow-untyped-calls
"""What the families of problems share: one local step, regularisers, losses of one output."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .compile import compiled
from .draws import fill_batch_rows

SQUARED, LOGISTIC, SOFTMAX = 0, 1, 2


class Local(NamedTuple):
    """A `LocalSpec`, its numbers in the problem's dtype."""

    steps: int
    lr: Any
    momentum: Any
    weight_decay: Any
    prox: Any


class Task(NamedTuple):
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
inner = compiled(_sum_of_products, fastmath={"reassoc"})
inner4 = compiled(_four_sums_of_products, fastmath={"reassoc"})


@compiled
def clear(vector):
    for j in range(len(vector)):
        vector[j] = 0


@compiled
def choose_rows(task, step, begin, n_rows, given, rows_out):
    """The rows of one local step, counted over all clients; `given` is empty where they are to be drawn."""
    if task.batch == 0:
        for i in range(n_rows):
            rows_out[i] = begin + i
    elif len(given) > 0:
        for i in range(task.batch):
            rows_out[i] = begin + given[step, i]
    else:
        fill_batch_rows(task.k0, task.k1, task.client, task.number, step, begin, n_rows, rows_out)


@compiled
def move(model, w, gradient, velocity, local):
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


@compiled
def add_regularizer(w, l2, nonconvex, gradient):
    one = w.dtype.type(1)
    if l2 != 0:
        for j in range(len(w)):
            gradient[j] += l2 * w[j]
    if nonconvex != 0:
        for j in range(len(w)):
            square = one + w[j] * w[j]
            gradient[j] += (nonconvex + nonconvex) * w[j] / (square * square)


@compiled
def regularizer_value(w, l2, nonconvex):
    squares = 0.0
    bounded = 0.0
    for j in range(len(w)):
        square = np.float64(w[j]) * np.float64(w[j])
        squares += square
        bounded += square / (1.0 + square)
    return l2 / 2 * squares + nonconvex * bounded


@compiled
def _logistic_loss(z, y):
    """log(1 + exp(z)) - y z."""
    zero = z * 0
    return max(z, zero) + math.log1p(math.exp(-abs(z))) - y * z


@compiled
def single_slope(z, y, head):
    """The derivative of the loss of a head with one output."""
    if head == SQUARED:
        return z - y
    small = math.exp(-abs(z))
    one = small * 0 + 1
    return (one if z >= 0 else small) / (one + small) - y


@compiled
def single_loss(z, y, head):
    return (z - y) * (z - y) / 2 if head == SQUARED else np.float64(_logistic_loss(z, y))
