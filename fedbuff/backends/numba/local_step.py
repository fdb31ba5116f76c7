# mypy: allow-untyped-defs, allow-untyped-calls
"""One local step and the task it belongs to: its rows, the step from a gradient, the delta at the end."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .compile import helper, inlined
from .draws import fill_batch_rows, fill_pass_rows

MERGE = 8  # rows that a batch holds twice are visited once where a client has at most so many times its rows


class Local(NamedTuple):
    """A `LocalSpec`; momentum, weight_decay and prox in the problem's dtype."""

    steps: int
    lr: float
    momentum: Any
    weight_decay: Any
    prox: Any
    factors: Any
    steps_per_pass: int
    scale: float
    shift: Any  # taken off every gradient, or empty


class Task(NamedTuple):
    k0: np.uint64
    k1: np.uint64
    client: int
    number: int
    batch: int


class Scratch(NamedTuple):
    """Room for one task at a time."""

    rows: Any  # of a local step, counted over all clients, and three more,
    counts: Any  # and how often each occurs
    place: Any  # by row of the client: where it stands among the rows; -1 between two uses
    identity: Any  # 0, 1, 2, ...
    values: Any  # (2, n): of a net's layers, and slopes by them
    turned: Any  # a layer's slopes by output
    gradient: Any
    velocity: Any
    noise: Any  # float64
    choice: Any  # of a network: by number of each tensor, where it is from, or whether it is kept
    windows: Any  # of a convolution
    factors: Any  # its weights, by number of a window


@inlined
def clear(vector):
    for j in range(len(vector)):
        vector[j] = 0


@inlined
def _merge(rows, n, counts, place):
    """Keeps one of each row, in the order in which they come first, and counts them."""
    different = 0
    for i in range(n):
        row = rows[i]
        at = place[row]
        if at < 0:
            place[row] = different
            rows[different] = row
            counts[different] = 1
            different += 1
        else:
            counts[at] += 1
    for i in range(different):
        place[rows[i]] = -1
    return different


@inlined
def choose_rows(local, task, step, begin, n_rows, given, scratch, merges):
    """Fills the rows of one local step and their counts; `given` is empty where rows are to be drawn. `merges`: one
    that is there twice may be visited once.

    Returns how many different rows there are, and how many in all. Behind them are three of count 0.
    """
    rows, counts = scratch.rows, scratch.counts
    n = n_rows
    if task.batch > 0 and local.steps_per_pass > 0:
        first = step % local.steps_per_pass * task.batch
        n = min(task.batch, n_rows - first)
        turn = step // local.steps_per_pass
        fill_pass_rows(task.k0, task.k1, task.client, task.number, turn, n_rows, first, rows[:n])
    elif task.batch > 0:
        n = task.batch
        if len(given) > 0:
            for i in range(n):
                rows[i] = given[step, i]
        else:
            fill_batch_rows(task.k0, task.k1, task.client, task.number, step, 0, n_rows, rows[:n])
    else:
        for i in range(n):
            rows[i] = i
    different = n
    if merges and task.batch > 0 and n_rows <= MERGE * n:
        different = _merge(rows, n, counts, scratch.place)
    else:
        for i in range(n):
            counts[i] = 1
    for i in range(different):
        rows[i] += begin
    for i in range(different, different + 3):
        rows[i] = rows[0]
        counts[i] = 0
    return different, n


@inlined
def lr_of(local, step, like):
    """The step size of one local step, in the dtype of `like`."""
    return like.dtype.type(local.lr * local.factors[step] if len(local.factors) > 0 else local.lr)


@inlined
def is_plain(problem, local):
    """Whether a local step is nothing but w - lr * the gradient of its rows."""
    return (
        local.momentum == 0
        and local.weight_decay == 0
        and local.prox == 0
        and len(local.shift) == 0
        and problem.l2 == 0
        and problem.nonconvex == 0
    )


@helper
def move(model, w, gradient, velocity, local, lr):
    """One local step from `model`; velocity is used where there is momentum, and the gradient is."""
    if len(local.shift) > 0:
        for j in range(len(model)):
            gradient[j] -= local.shift[j]
    if local.momentum == 0 and local.weight_decay == 0 and local.prox == 0:
        for j in range(len(model)):
            model[j] -= lr * gradient[j]
    else:
        for j in range(len(model)):
            direction = gradient[j] + local.weight_decay * model[j] + local.prox * (model[j] - w[j])
            if local.momentum != 0:
                direction += local.momentum * velocity[j]
                velocity[j] = direction
            model[j] -= lr * direction


@inlined
def finish(w, local, delta_out):
    """Makes the delta of the model that the task ended with, which is in its place."""
    for j in range(len(w)):
        delta_out[j] = w[j] - delta_out[j]
    if local.scale != 1.0:
        scale = w.dtype.type(local.scale)
        for j in range(len(w)):
            delta_out[j] *= scale
