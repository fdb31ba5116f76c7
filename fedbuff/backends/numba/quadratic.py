# mypy: allow-untyped-defs, allow-untyped-calls
"""Quadratic: f(w) = (w - c)' A (w - c) / 2, with gradient noise."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..python.philox import Stream
from .compile import compiled, inlined
from .dense import inner
from .draws import fill_normals
from .local_step import clear, finish, lr_of, move
from .vectors import dot_float64

GRADIENT_NOISE = int(Stream.GRADIENT_NOISE)
SCALAR, DIAGONAL, DENSE = 0, 1, 2


class Quadratic(NamedTuple):
    center: Any
    curvature: Any
    form: int
    noise_variance: float


@inlined
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
            gradient[j] = inner(matrix[j], away)
    elif problem.form == DIAGONAL:
        for j in range(n):
            gradient[j] = curvature[j] * away[j]
    else:
        for j in range(n):
            gradient[j] = curvature[0] * away[j]


@compiled
def quadratic_local_sgd(problem, local, task, w, given, scratch, delta_out):
    n = len(w)
    noisy = task.batch > 0 and problem.noise_variance > 0
    deviation = math.sqrt(problem.noise_variance / (n * task.batch)) if noisy else 0.0
    noise, gradient, velocity, away = scratch.noise, scratch.gradient, scratch.velocity, scratch.turned[:n]
    model = delta_out
    for j in range(n):
        model[j] = w[j]
    if local.momentum != 0:
        clear(velocity)
    for step in range(local.steps):
        _curve(problem, task.client, model, away, gradient)
        if noisy:
            fill_normals(task.k0, task.k1, task.client, task.number, step, GRADIENT_NOISE, noise)
            for j in range(n):
                gradient[j] += w.dtype.type(deviation * noise[j])
        move(model, w, gradient, velocity, local, lr_of(local, step, w))
    finish(w, local, delta_out)


@compiled
def quadratic_count_correct(problem, begin, end, w, scratch):
    return 0


@compiled
def quadratic_objective(problem, first, weights, w, scratch, total):
    """As `net_objective`."""
    away, gradient = scratch.turned[: len(w)], scratch.gradient
    value = 0.0
    for i in range(len(weights)):
        _curve(problem, first + i, w, away, gradient)
        value += weights[i] * (dot_float64(away, gradient) / 2)
        for j in range(len(total)):
            total[j] += weights[i] * gradient[j]
    return value
