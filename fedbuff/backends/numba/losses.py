# mypy: allow-untyped-defs, allow-untyped-calls
"""What a local step descends on: losses, and regularisers."""

from __future__ import annotations

import math

import numpy as np

from .compile import helper, inlined
from .power import power

SQUARED, LOGISTIC, SOFTMAX = 0, 1, 2


@helper
def add_regularizer(w, l2, nonconvex, gradient):
    one = w.dtype.type(1)
    if l2 != 0:
        for j in range(len(w)):
            gradient[j] += l2 * w[j]
    if nonconvex != 0:
        for j in range(len(w)):
            square = one + w[j] * w[j]
            gradient[j] += (nonconvex + nonconvex) * w[j] / (square * square)


@helper
def regularizer_value(w, l2, nonconvex):
    squares = 0.0
    bounded = 0.0
    for j in range(len(w)):
        square = np.float64(w[j]) * np.float64(w[j])
        squares += square
        bounded += square / (1.0 + square)
    return l2 / 2 * squares + nonconvex * bounded


@helper
def _logistic_loss(z, y):
    """log(1 + exp(z)) - y z."""
    zero = z * 0
    return max(z, zero) + math.log1p(math.exp(-abs(z))) - y * z


@inlined
def single_slope(z, y, head):
    """The derivative of the loss of a head with one output."""
    if head == SQUARED:
        return z - y
    small = power(-abs(z))
    one = small * 0 + 1
    return (one if z >= 0 else small) / (one + small) - y


@helper
def single_loss(z, y, head):
    return (z - y) * (z - y) / 2 if head == SQUARED else np.float64(_logistic_loss(z, y))


@helper
def powers(score, m, n):
    """Turns m rows of n scores into their exp, but for a factor of each row."""
    for i in range(m):
        top = score[i * n]
        for k in range(i * n + 1, i * n + n):
            top = max(top, score[k])
        for k in range(i * n, i * n + n):
            score[k] -= top
    for k in range(m * n):
        score[k] = power(score[k])
