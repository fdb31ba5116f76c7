# mypy: allow-untyped-defs, allow-untyped-calls
"""Tasks, buffer and server steps in compiled code, on one thread or several: what replay.py calls once a stretch.

On several threads each takes the next task, in the order of arrival, as soon as its version is there; its delta waits
in a window. Who finishes a task adds what is ready, in the order of arrival, unless another thread is at it. The oldest
task can always run. So the additions are the same, whatever the threads do. Models and deltas are given by address.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numba.extending import overload

from . import atomics
from .compile import compiled, helper, inlined
from .layers import Layers, layers_local_sgd
from .lend import lend, read_only
from .local_step import Local, Task
from .net import MOST_FETCHED, MOST_FETCHED_COLUMNS, Net, fetch_rows, net_local_sgd
from .optimizers import Optimizer, optimize
from .quadratic import quadratic_local_sgd
from .sparse import Sparse, sparse_local_sgd
from .vectors import vector_at

# `Job.at`, words that threads share, each in a cache line of its own
_LINE = 8
VERSION, DONE, TAKEN, LOCK, STATUS, N_FREE, LIVE, MOST, FILL, WHICH = (i * _LINE for i in range(10))
N_WORDS = 10 * _LINE
# STATUS
GOES_ON, DIVERGED, ZERO_NORM = range(3)
# rows of `Job.rows`, `Job.factors`, `Job.versions`, `Job.tasks` and `Job.window`
CLIENT, TASK, ON_VERSION = range(3)
S, E, LR, SCALE = range(4)
SLOT, LEFT, PENDING = range(3)
STEPS, BATCH, PASSES = range(3)
ADDRESS, READY = range(2)

NORM_ONE, NORM_ARRIVALS, NORM_WEIGHTS, NORM_SCALED, NORM_CLIENTS = range(5)
SGD, ADAM, OTHER = range(3)


class Server(NamedTuple):
    """What the server computes: `Rule`, its numbers in float64."""

    from_current: bool
    norm: int
    n_clients: float
    optimizer: int
    by: Optimizer


class Job(NamedTuple):
    """A replay's state; `first` are the numbers of the first row, step and version in the arrays."""

    first_row: int
    first_step: int
    first_version: int
    rows: Any  # (3, n) CLIENT, TASK, ON_VERSION
    factors: Any  # (4, n) S, E, LR, SCALE
    row_end: Any  # by step: rows up to and with it
    step_lr: Any  # by step
    versions: Any  # (3, n) SLOT of its model or -1, LEFT: tasks on it that will end, PENDING: rows of them
    address: Any  # of a model, by slot
    free: Any  # slots, at[N_FREE] of them
    window: Any  # (2, n) ADDRESS of a delta, READY: the number of its row, plus 1
    at: Any
    sums: Any  # of E, and of the weights, in the buffer
    total: Any  # the buffer
    moments: Any  # (2 n, dim): those in force are the first or the second n, by at[WHICH]
    tasks: Any  # (3, 1 or n_clients) STEPS, BATCH, PASSES
    local: Local  # of which steps, lr, steps_per_pass and scale are those of each task
    k0: Any
    k1: Any
    server: Server


def _local_sgd(problem, local, task, w, given, scratch, delta_out):
    """The loop of the problem's family."""
    raise NotImplementedError


@overload(_local_sgd, jit_options={"forceinline": True})
def _local_sgd_of(problem, local, task, w, given, scratch, delta_out):
    def net(problem, local, task, w, given, scratch, delta_out):
        net_local_sgd(problem, local, task, w, given, scratch, delta_out)

    def sparse(problem, local, task, w, given, scratch, delta_out):
        sparse_local_sgd(problem, local, task, w, given, scratch, delta_out)

    def quadratic(problem, local, task, w, given, scratch, delta_out):
        quadratic_local_sgd(problem, local, task, w, given, scratch, delta_out)

    def layers(problem, local, task, w, given, scratch, delta_out):
        layers_local_sgd(problem, local, task, w, given, scratch, delta_out)

    return {Net: net, Sparse: sparse, Layers: layers}.get(problem.instance_class, quadratic)


@inlined
def _model(job, version):
    return vector_at(job.address[job.versions[SLOT, version - job.first_version]], job.total)


@inlined
def _train(problem, job, row, given, scratch, delta_out):
    """The delta of the task of this row."""
    i = row - job.first_row
    client = job.rows[CLIENT, i]
    c = client if job.tasks.shape[1] > 1 else 0
    local = job.local
    numbers = Local(
        job.tasks[STEPS, c], job.factors[LR, i], local.momentum, local.weight_decay, local.prox, local.factors,
        job.tasks[PASSES, c], job.factors[SCALE, i], local.shift,
    )  # fmt: skip
    task = Task(job.k0, job.k1, client, job.rows[TASK, i], job.tasks[BATCH, c])
    _local_sgd(problem, numbers, task, read_only(_model(job, job.rows[ON_VERSION, i])), given, scratch, delta_out)


def _fetch(problem, k0, k1, client, number, batch):
    """Asks for the rows of a task that comes later, where that pays."""
    raise NotImplementedError


@overload(_fetch, jit_options={"forceinline": True})
def _fetch_of(problem, k0, k1, client, number, batch):
    def net(problem, k0, k1, client, number, batch):
        if problem.n_values == 1 and 0 < batch <= MOST_FETCHED and problem.sizes[0] <= MOST_FETCHED_COLUMNS:
            fetch_rows(problem.x, problem.target, problem.offsets, k0, k1, client, number, batch)

    def nothing(problem, k0, k1, client, number, batch):
        pass

    return net if problem.instance_class is Net else nothing


@inlined
def _add(job, row, delta):
    """The row's delta enters the buffer."""
    at, sums, total = job.at, job.sums, job.total
    i = row - job.first_row
    e = job.factors[E, i]
    weight = job.factors[S, i] * e
    first = at[FILL] == 0
    sums[0] = (0.0 if first else sums[0]) + e
    sums[1] = (0.0 if first else sums[1]) + weight
    at[FILL] += 1
    factor, zero = total.dtype.type(weight), total.dtype.type(0)
    version = job.rows[ON_VERSION, i]
    if job.server.from_current and version != at[VERSION]:
        current, start = _model(job, at[VERSION]), _model(job, version)
        for j in range(len(total)):
            total[j] = (zero if first else total[j]) + factor * (delta[j] + (current[j] - start[j]))
    elif first:
        for j in range(len(total)):
            total[j] = zero + factor * delta[j]
    else:
        for j in range(len(total)):
            total[j] += factor * delta[j]


@inlined
def _norm(job):
    norm = job.server.norm
    if norm == NORM_ARRIVALS:
        return float(job.at[FILL])
    if norm == NORM_WEIGHTS:
        return job.sums[0]
    if norm == NORM_SCALED:
        return job.sums[1]
    return job.server.n_clients if norm == NORM_CLIENTS else 1.0


@helper
def _move(job, w, norm, lr, out):
    """The optimizer's step, with the moments that are not in force."""
    server, by, total, moments = job.server, job.server.by, job.total, job.moments
    scalar = total.dtype.type
    here, there = job.at[WHICH], 1 - job.at[WHICH]
    n = len(moments) // 2
    if server.optimizer == ADAM:
        step = float(job.at[VERSION] + 1)
        rate = scalar(lr / (1.0 - by.beta1**step))
        correction = scalar(1.0 - by.beta2**step)
        b1, b2 = scalar(by.beta1), scalar(by.beta2)
        one_less_b1, one_less_b2 = scalar(1.0 - by.beta1), scalar(1.0 - by.beta2)
        epsilon, weight_decay, divisor = scalar(by.epsilon), scalar(by.weight_decay), scalar(norm)
        for j in range(len(w)):
            gradient = total[j] / divisor + weight_decay * w[j]
            first = b1 * moments[here * n, j] + one_less_b1 * gradient
            second = b2 * moments[here * n + 1, j] + one_less_b2 * (gradient * gradient)
            moments[there * n, j], moments[there * n + 1, j] = first, second
            out[j] = w[j] - rate * first / (math.sqrt(second / correction) + epsilon)
    elif server.optimizer == OTHER:
        for i in range(n):
            for j in range(len(w)):
                moments[there * n + i, j] = moments[here * n + i, j]
        first, none = moments[there * n], moments[there * n, :0]
        second = moments[there * n + 1] if n > 1 else none
        third = moments[there * n + 2] if n > 2 else none
        optimize(by, w, total, lr, norm, job.at[VERSION] + 1, first, second, third, out)
    elif by.momentum == 0:
        rate = scalar(lr / norm)
        for j in range(len(w)):
            out[j] = w[j] - rate * total[j]
    else:
        rate, momentum, divisor = scalar(lr), scalar(by.momentum), scalar(norm)
        for j in range(len(w)):
            velocity = momentum * moments[here, j] + total[j] / divisor
            moments[there, j] = velocity
            out[j] = w[j] - rate * velocity


@helper
def _all_finite(vector):
    finite = True
    for j in range(len(vector)):
        finite &= math.isfinite(vector[j])
    return finite


@inlined
def _release(job, version):
    """Lets go of the model of an older version that no task needs."""
    at, v = job.at, version - job.first_version
    slot = job.versions[SLOT, v]
    if job.versions[LEFT, v] == 0 and slot >= 0:
        job.versions[SLOT, v] = -1
        job.free[at[N_FREE]] = slot
        at[N_FREE] += 1
        at[LIVE] -= 1


@helper
def _step(job):
    """The server step with what is in the buffer; False where it cannot be made."""
    at, versions = job.at, job.versions
    version = at[VERSION]
    w = _model(job, version)
    norm = _norm(job)
    if at[FILL] > 0 and norm == 0.0:
        atomics.store(at, STATUS, ZERO_NORM)
        return False
    slot = job.free[at[N_FREE] - 1]
    made = vector_at(job.address[slot], job.total)
    if at[FILL] > 0:
        _move(job, w, norm, job.step_lr[version - job.first_step], made)
        at[WHICH] = 1 - at[WHICH]
        if not _all_finite(made):
            at[WHICH] = 1 - at[WHICH]
            atomics.store(at, STATUS, DIVERGED)
            return False
    else:
        for j in range(len(w)):
            made[j] = w[j]
    at[N_FREE] -= 1
    at[LIVE] += 1
    at[MOST] = max(at[MOST], at[LIVE])
    versions[SLOT, version + 1 - job.first_version] = slot
    end = job.row_end[version - job.first_step]
    for row in range(end - at[FILL], end):
        v = job.rows[ON_VERSION, row - job.first_row] - job.first_version
        versions[LEFT, v] -= 1
        versions[PENDING, v] -= 1
    for row in range(end - at[FILL], end):
        _release(job, job.rows[ON_VERSION, row - job.first_row])
    _release(job, version)
    at[FILL] = 0
    atomics.store(at, VERSION, version + 1)
    return True


@compiled
def steps_alone(problem, job, given, scratch, goal):
    """Steps up to version `goal` on this thread."""
    problem, job, given, scratch = lend(problem), lend(job), lend(given), lend(scratch)
    at = job.at
    delta = vector_at(job.window[ADDRESS, 0], job.total)
    row = at[DONE]
    last = job.row_end[goal - 1 - job.first_step] - 1
    single = job.tasks.shape[1] == 1
    while at[VERSION] < goal:
        end = job.row_end[at[VERSION] - job.first_step]
        while row < end:
            if row < last:
                i = row + 1 - job.first_row
                client = job.rows[CLIENT, i]
                batch = job.tasks[BATCH, 0 if single else client]
                _fetch(problem, job.k0, job.k1, client, job.rows[TASK, i], batch)
            _train(problem, job, row, given, scratch, delta)
            _add(job, row, delta)
            row += 1
        if not _step(job):
            break
        at[DONE] = row


@helper
def _commit(job, goal):
    """Adds what is ready and makes the steps that are complete, unless another thread is at it."""
    at, window = job.at, job.window
    if not atomics.try_lock(at, LOCK):
        return
    room = window.shape[1]
    row = at[DONE]
    while at[VERSION] < goal and at[STATUS] == GOES_ON:
        if row == job.row_end[at[VERSION] - job.first_step]:
            _step(job)
            continue
        place = row % room
        if atomics.load(window[READY], place) != row + 1:
            break
        _add(job, row, vector_at(window[ADDRESS, place], job.total))
        row += 1
        atomics.store(at, DONE, row)
    atomics.store(at, LOCK, 0)


@compiled
def steps_together(problem, job, given, scratch, goal):
    """One thread's part in the steps up to version `goal`; at[TAKEN] and at[DONE] are the first row at the start."""
    problem, job, given, scratch = lend(problem), lend(job), lend(given), lend(scratch)
    at, window = job.at, job.window
    room = window.shape[1]
    end = job.row_end[goal - 1 - job.first_step]
    while True:
        row = atomics.add(at, TAKEN, 1)
        if row >= end:
            break
        version = job.rows[ON_VERSION, row - job.first_row]
        while atomics.load(at, VERSION) < version or row - atomics.load(at, DONE) >= room:
            if atomics.load(at, STATUS) != GOES_ON:
                return
            _commit(job, goal)
            atomics.yield_core()
        _train(problem, job, row, given, scratch, vector_at(window[ADDRESS, row % room], job.total))
        atomics.store(window[READY], row % room, row + 1)
        _commit(job, goal)
    while atomics.load(at, VERSION) < goal and atomics.load(at, STATUS) == GOES_ON:
        _commit(job, goal)
        atomics.yield_core()


@compiled
def slots_needed(job, goal):
    """The most models that are there at once in the steps up to version `goal`."""
    left = job.versions[LEFT].copy()
    live = most = job.at[LIVE]
    row = job.at[DONE]
    for version in range(job.at[VERSION], goal):
        live += 1
        most = max(most, live)
        first = row
        while row < job.row_end[version - job.first_step]:
            left[job.rows[ON_VERSION, row - job.first_row] - job.first_version] -= 1
            row += 1
        gone = False
        for i in range(first, row):
            v = job.rows[ON_VERSION, i - job.first_row]
            if left[v - job.first_version] == 0:
                left[v - job.first_version] = -1
                live -= 1
                gone |= v == version
        if not gone and left[version - job.first_version] == 0:
            live -= 1
    return most
