# mypy: allow-untyped-defs, allow-untyped-calls
"""Sparse: CSR rows, one output."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .compile import compiled
from .shared import add_regularizer, choose_rows, clear, move, regularizer_value, single_loss, single_slope


class Sparse(NamedTuple):
    x: Any
    column: Any
    row_start: Any
    target: Any
    offsets: Any
    intercept: bool
    head: int
    l2: Any
    nonconvex: Any


@compiled
def _sparse_score(problem, w, row):
    score = w.dtype.type(0)
    for entry in range(problem.row_start[row], problem.row_start[row + 1]):
        score += problem.x[entry] * w[problem.column[entry]]
    return score + w[-1] if problem.intercept else score


@compiled
def _sparse_add(problem, row, factor, out):
    """out += factor * (the row as a vector, 1 for the intercept)."""
    for entry in range(problem.row_start[row], problem.row_start[row + 1]):
        out[problem.column[entry]] += factor * problem.x[entry]
    if problem.intercept:
        out[-1] += factor


@compiled
def sparse_local_sgd(problem, local, task, w, given, delta_out):
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
        choose_rows(task, step, begin, end - begin, given, rows)
        for i in range(len(rows)):
            z = _sparse_score(problem, model, rows[i])
            slope[i] = single_slope(z, problem.target[rows[i]], problem.head) * scale
        if plain:
            for i in range(len(rows)):
                _sparse_add(problem, rows[i], -local.lr * slope[i], model)
        else:
            clear(gradient)
            for i in range(len(rows)):
                _sparse_add(problem, rows[i], slope[i], gradient)
            add_regularizer(model, problem.l2, problem.nonconvex, gradient)
            move(model, w, gradient, velocity, local)
    for j in range(len(w)):
        delta_out[j] = w[j] - model[j]


@compiled
def sparse_objective(problem, first, weights, w, gradient_out):
    """As `net_objective`. The rows of all clients go into one float64 sum."""
    total = np.zeros(len(gradient_out), np.float64)
    value = 0.0
    for i in range(len(weights)):
        begin, end = problem.offsets[first + i], problem.offsets[first + i + 1]
        loss = 0.0
        for row in range(begin, end):
            z, y = _sparse_score(problem, w, row), problem.target[row]
            loss += single_loss(z, y, problem.head)
            if len(total) > 0:
                _sparse_add(problem, row, weights[i] / (end - begin) * single_slope(z, y, problem.head), total)
        value += weights[i] * (loss / (end - begin))
    if len(total) > 0:
        regularizer = np.zeros(len(w), w.dtype)
        add_regularizer(w, problem.l2, problem.nonconvex, regularizer)
        for j in range(len(total)):
            gradient_out[j] = total[j] + np.sum(weights) * regularizer[j]
    return value + np.sum(weights) * regularizer_value(w, problem.l2, problem.nonconvex)


@compiled
def sparse_count_correct(problem, begin, end, w):
    correct = 0
    for row in range(begin, end):
        correct += (_sparse_score(problem, w, row) > 0) == (problem.target[row] == 1)
    return correct
