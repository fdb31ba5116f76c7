# mypy: allow-untyped-defs, allow-untyped-calls
"""Sparse: CSR rows, one output."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .compile import compiled, inlined
from .local_step import choose_rows, clear, finish, is_plain, lr_of, move
from .losses import add_regularizer, regularizer_value, single_loss, single_slope


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


@inlined
def _sparse_score(problem, w, row):
    score = w.dtype.type(0)
    for entry in range(problem.row_start[row], problem.row_start[row + 1]):
        score += problem.x[entry] * w[problem.column[entry]]
    return score + w[-1] if problem.intercept else score


@inlined
def _sparse_add(problem, row, factor, out):
    """out += factor * (the row as a vector, 1 for the intercept)."""
    for entry in range(problem.row_start[row], problem.row_start[row + 1]):
        out[problem.column[entry]] += factor * problem.x[entry]
    if problem.intercept:
        out[-1] += factor


@compiled
def sparse_local_sgd(problem, local, task, w, given, scratch, delta_out):
    begin, end = problem.offsets[task.client], problem.offsets[task.client + 1]
    rows, counts, slope = scratch.rows, scratch.counts, scratch.turned
    gradient, velocity = scratch.gradient, scratch.velocity
    one = w.dtype.type(1)
    plain = is_plain(problem, local)  # then a step touches only the columns of its rows
    model = delta_out
    for j in range(len(w)):
        model[j] = w[j]
    if local.momentum != 0:
        clear(velocity)
    for step in range(local.steps):
        n, n_all = choose_rows(local, task, step, begin, end - begin, given, scratch, True)
        scale, lr = one / w.dtype.type(n_all), lr_of(local, step, w)
        for i in range(n):
            z = _sparse_score(problem, model, rows[i])
            slope[i] = single_slope(z, problem.target[rows[i]], problem.head) * (scale * counts[i])
        if plain:
            for i in range(n):
                _sparse_add(problem, rows[i], -lr * slope[i], model)
        else:
            clear(gradient)
            for i in range(n):
                _sparse_add(problem, rows[i], slope[i], gradient)
            add_regularizer(model, problem.l2, problem.nonconvex, gradient)
            move(model, w, gradient, velocity, local, lr)
    finish(w, local, delta_out)


@compiled
def sparse_objective(problem, first, weights, w, scratch, total):
    """As `net_objective`. The rows of all clients go into one float64 sum."""
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
        regularizer = scratch.gradient
        clear(regularizer)
        add_regularizer(w, problem.l2, problem.nonconvex, regularizer)
        for j in range(len(total)):
            total[j] += np.sum(weights) * regularizer[j]
    return value + np.sum(weights) * regularizer_value(w, problem.l2, problem.nonconvex)


@compiled
def sparse_count_correct(problem, begin, end, w, scratch):
    correct = 0
    for row in range(begin, end):
        correct += (_sparse_score(problem, w, row) > 0) == (problem.target[row] == 1)
    return correct
