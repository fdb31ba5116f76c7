"""Numba: the whole simulator compiled, event queue, versions with reference counts, local SGD and all.

A row that a batch holds twice is visited once, counted twice, as fedbuff does. W1 has register blocks by hand, W3 calls
NumPy's own OpenBLAS from compiled code, W2 and CSR are plain loops with constant bounds. W2 has a simulator of its own
too, which is the fastest of all that we know.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit, prange

from .data import (
    Workload,
    check_delta,
    initial_model,
    rows_of,
    sparse_rows_of,
    workload,
)
from .with_numpy import checked, moved, vectors

FAST = {"fastmath": True, "nogil": True}


@njit(inline="always")
def _next(state: Any) -> Any:
    z = state[0] + np.uint64(0x9E3779B97F4A7C15)
    state[0] = z
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(inline="always")
def _below(state: Any, n: int) -> Any:
    return np.int64(((_next(state) >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


@njit(inline="always")
def _exponential(state: Any) -> Any:
    return -np.log((np.float64(_next(state) >> np.uint64(11)) + 0.5) * (1.0 / 9007199254740992.0))


@njit(inline="always")
def _softmax_rows(z: Any, n: int, labels: Any, scale: Any, counts: Any) -> None:
    """Scores of n rows become scale * count * (probability - one at the label)."""
    for i in range(n):
        most = z[i, 0]
        for c in range(1, z.shape[1]):
            most = max(most, z[i, c])
        total = np.float32(0)
        for c in range(z.shape[1]):
            z[i, c] = np.exp(z[i, c] - most)
            total += z[i, c]
        factor = scale * counts[i]
        for c in range(z.shape[1]):
            z[i, c] *= factor / total
        z[i, labels[i]] -= factor


def _merge_draws(w: Workload) -> Any:
    n_rows, batch = w.rows, w.batch

    @njit(**FAST)
    def draw(state: Any, given: Any, seen: Any, rows: Any, counts: Any) -> int:
        """The different rows of a batch, given or drawn, and how often each occurs."""
        n = 0
        for i in range(batch):
            row = given[i] if given.shape[0] else _below(state, n_rows)
            if seen[row] < 0:
                seen[row] = n
                rows[n] = row
                counts[n] = 0
                n += 1
            counts[seen[row]] += np.float32(1)
        for i in range(n):
            seen[rows[i]] = -1
        return n

    return draw


def _softmax_kernel(w: Workload) -> Any:
    """W1: scores in blocks of 2 rows by 5 classes, updates in blocks of 4 rows by 2 classes."""
    p, classes, batch, steps, n_rows = w.features, w.outputs, w.batch, w.steps, w.rows
    assert classes % 10 == 0
    scale = np.float32(w.lr / w.batch)
    draw = _merge_draws(w)

    @njit(**FAST)
    def scores(X: Any, rows: Any, n: int, W: Any, bias: Any, z: Any) -> None:
        for i in range(0, n, 2):
            r, s = rows[i], rows[i + 1]
            for c in range(0, classes, 5):
                a0 = a1 = a2 = a3 = a4 = b0 = b1 = b2 = b3 = b4 = np.float32(0)
                for j in range(p):
                    u, v = X[r, j], X[s, j]
                    w0, w1, w2, w3, w4 = W[c, j], W[c + 1, j], W[c + 2, j], W[c + 3, j], W[c + 4, j]
                    a0 += u * w0
                    a1 += u * w1
                    a2 += u * w2
                    a3 += u * w3
                    a4 += u * w4
                    b0 += v * w0
                    b1 += v * w1
                    b2 += v * w2
                    b3 += v * w3
                    b4 += v * w4
                z[i, c], z[i, c + 1], z[i, c + 2] = a0 + bias[c], a1 + bias[c + 1], a2 + bias[c + 2]
                z[i, c + 3], z[i, c + 4] = a3 + bias[c + 3], a4 + bias[c + 4]
                z[i + 1, c], z[i + 1, c + 1], z[i + 1, c + 2] = b0 + bias[c], b1 + bias[c + 1], b2 + bias[c + 2]
                z[i + 1, c + 3], z[i + 1, c + 4] = b3 + bias[c + 3], b4 + bias[c + 4]

    @njit(**FAST)
    def update(X: Any, rows: Any, n: int, z: Any, W: Any, bias: Any) -> None:
        for c in range(0, classes, 2):
            for i in range(0, n, 4):
                r0, r1, r2, r3 = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
                a0, a1, a2, a3 = z[i, c], z[i + 1, c], z[i + 2, c], z[i + 3, c]
                b0, b1, b2, b3 = z[i, c + 1], z[i + 1, c + 1], z[i + 2, c + 1], z[i + 3, c + 1]
                bias[c] -= a0 + a1 + a2 + a3
                bias[c + 1] -= b0 + b1 + b2 + b3
                for j in range(p):
                    x0, x1, x2, x3 = X[r0, j], X[r1, j], X[r2, j], X[r3, j]
                    W[c, j] -= a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                    W[c + 1, j] -= b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3

    @njit(**FAST)
    def train(start: Any, X: Any, y: Any, client: int, state: Any, given: Any, end: Any) -> None:
        end[:] = start
        W, bias = end[: classes * p].reshape((classes, p)), end[classes * p :]
        seen, rows = np.full(n_rows, -1, np.int32), np.zeros(batch + 4, np.int64)
        counts, labels = np.zeros(batch + 4, np.float32), np.zeros(batch + 4, np.int32)
        z = np.empty((batch + 4, classes), np.float32)
        for q in range(steps):
            n = draw(state, given[q], seen, rows, counts)
            while n % 4:  # rows that count for nothing
                rows[n], counts[n] = rows[0], np.float32(0)
                n += 1
            for i in range(n):
                rows[i] += client * n_rows
                labels[i] = y[rows[i]]
            scores(X, rows, n, W, bias, z)
            _softmax_rows(z, n, labels, scale, counts)
            update(X, rows, n, z, W, bias)

    return train


def _sgemm() -> Any:
    """sgemm of the OpenBLAS that NumPy brings, row-major."""
    folder = Path(np.__file__).parents[1] / "numpy.libs"
    library = ctypes.CDLL(str(next(folder.glob("libscipy_openblas64_*.so"))))
    sgemm = library.scipy_cblas_sgemm64_
    flag, size, real, pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
    sgemm.argtypes = [flag] * 3 + [size] * 3 + [real, pointer, size, pointer, size, real, pointer, size]
    sgemm.restype = None
    return sgemm


def _softmax_blas_kernel(w: Workload) -> Any:
    """W1 again: the batch gathered, two products by BLAS."""
    p, classes, batch, steps, n_rows = w.features, w.outputs, w.batch, w.steps, w.rows
    scale, one = np.float32(w.lr / w.batch), np.float32(1)
    draw, sgemm = _merge_draws(w), _sgemm()
    row_major, plain, flipped = 101, 111, 112

    @njit(**FAST)
    def train(start: Any, X: Any, y: Any, client: int, state: Any, given: Any, end: Any) -> None:
        end[:] = start
        W, bias = end[: classes * p].reshape((classes, p)), end[classes * p :]
        seen, rows = np.full(n_rows, -1, np.int32), np.zeros(batch, np.int64)
        counts, labels = np.zeros(batch, np.float32), np.zeros(batch, np.int32)
        x, z = np.empty((batch, p), np.float32), np.empty((batch, classes), np.float32)
        for q in range(steps):
            n = draw(state, given[q], seen, rows, counts)
            for i in range(n):
                row = client * n_rows + rows[i]
                labels[i] = y[row]
                for j in range(p):
                    x[i, j] = X[row, j]
                for j in range(classes):
                    z[i, j] = bias[j]
            # fmt: off
            sgemm(row_major, plain, flipped, n, classes, p, one, x.ctypes.data, p, W.ctypes.data, p,
                  one, z.ctypes.data, classes)
            _softmax_rows(z, n, labels, scale, counts)
            sgemm(row_major, flipped, plain, classes, p, n, -one, z.ctypes.data, classes, x.ctypes.data, p,
                  one, W.ctypes.data, p)
            # fmt: on
            for i in range(n):
                for j in range(classes):
                    bias[j] -= z[i, j]

    return train


def _mlp_kernel(w: Workload) -> Any:
    """W3: the batch gathered, five products by BLAS, updates added straight into the weights."""
    p, hidden, classes, batch, steps, n_rows = w.features, w.hidden, w.outputs, w.batch, w.steps, w.rows
    scale, one, zero = np.float32(w.lr / w.batch), np.float32(1), np.float32(0)
    draw, sgemm = _merge_draws(w), _sgemm()
    row_major, plain, flipped = 101, 111, 112

    @njit(**FAST)
    def train(start: Any, X: Any, y: Any, client: int, state: Any, given: Any, end: Any) -> None:
        end[:] = start
        at = hidden * p
        W1, b1 = end[:at].reshape((hidden, p)), end[at : at + hidden]
        at += hidden
        W2, b2 = end[at : at + classes * hidden].reshape((classes, hidden)), end[at + classes * hidden :]
        seen, rows = np.full(n_rows, -1, np.int32), np.zeros(batch, np.int64)
        counts, labels = np.zeros(batch, np.float32), np.zeros(batch, np.int32)
        x, z = np.empty((batch, p), np.float32), np.empty((batch, classes), np.float32)
        h, back = np.empty((batch, hidden), np.float32), np.empty((batch, hidden), np.float32)
        for q in range(steps):
            n = draw(state, given[q], seen, rows, counts)
            for i in range(n):
                row = client * n_rows + rows[i]
                labels[i] = y[row]
                for j in range(p):
                    x[i, j] = X[row, j]
                for j in range(hidden):
                    h[i, j] = b1[j]
                for j in range(classes):
                    z[i, j] = b2[j]
            # fmt: off
            sgemm(row_major, plain, flipped, n, hidden, p, one, x.ctypes.data, p, W1.ctypes.data, p,
                  one, h.ctypes.data, hidden)
            for i in range(n):
                for j in range(hidden):
                    h[i, j] = max(h[i, j], zero)
            sgemm(row_major, plain, flipped, n, classes, hidden, one, h.ctypes.data, hidden, W2.ctypes.data, hidden,
                  one, z.ctypes.data, classes)
            _softmax_rows(z, n, labels, scale, counts)
            sgemm(row_major, plain, plain, n, hidden, classes, one, z.ctypes.data, classes, W2.ctypes.data, hidden,
                  zero, back.ctypes.data, hidden)
            for i in range(n):
                for j in range(hidden):
                    if h[i, j] <= zero:
                        back[i, j] = zero
            sgemm(row_major, flipped, plain, classes, hidden, n, -one, z.ctypes.data, classes, h.ctypes.data, hidden,
                  one, W2.ctypes.data, hidden)
            sgemm(row_major, flipped, plain, hidden, p, n, -one, back.ctypes.data, hidden, x.ctypes.data, p,
                  one, W1.ctypes.data, p)
            # fmt: on
            for i in range(n):
                for j in range(classes):
                    b2[j] -= z[i, j]
                for j in range(hidden):
                    b1[j] -= back[i, j]

    return train


def _logistic_kernel(w: Workload) -> Any:
    """W2: everything in registers and the first cache."""
    p, batch, steps, n_rows = w.features, w.batch, w.steps, w.rows
    scale = np.float32(w.lr / w.batch)

    @njit(**FAST)
    def train(start: Any, X: Any, y: Any, client: int, state: Any, given: Any, end: Any) -> None:
        for j in range(p):
            end[j] = start[j]
        for q in range(steps):
            step = np.zeros(p, np.float32)
            for i in range(batch):
                row = client * n_rows + (given[q, i] if given.shape[1] else _below(state, n_rows))
                z = np.float32(0)
                for j in range(p):
                    z += X[row, j] * end[j]
                g = (np.float32(1) / (np.float32(1) + np.exp(-z)) - y[row]) * scale
                for j in range(p):
                    step[j] += g * X[row, j]
            for j in range(p):
                end[j] -= step[j]

    return train


def _csr_kernel(w: Workload, sparse: Any) -> Any:
    """CSR: dot products over stored values, then updates of the columns that the batch has."""
    batch, steps, n_rows, p = w.batch, w.steps, w.rows, w.features
    scale = np.float32(w.lr / w.batch)
    columns, starts = sparse.columns, sparse.starts.astype(np.int32)

    @njit(**FAST)
    def train(start: Any, values: Any, y: Any, client: int, state: Any, given: Any, end: Any) -> None:
        for j in range(p):
            end[j] = start[j]
        rows, g = np.empty(batch, np.int64), np.empty(batch, np.float32)
        for q in range(steps):
            for i in range(batch):
                row = client * n_rows + (given[q, i] if given.shape[1] else _below(state, n_rows))
                z = np.float32(0)
                for e in range(starts[row], starts[row + 1]):
                    z += values[e] * end[columns[e]]
                rows[i] = row
                g[i] = (np.float32(1) / (np.float32(1) + np.exp(-z)) - y[row]) * scale
            for i in range(batch):
                row = rows[i]
                for e in range(starts[row], starts[row + 1]):
                    end[columns[e]] -= g[i] * values[e]

    return train


def _simulator(w: Workload, train: Any) -> Any:
    n_clients, in_flight, K, d, steps = w.n_clients, min(w.in_flight, w.n_clients), w.buffer_size, w.dim, w.steps
    fixed = in_flight == n_clients
    rate = np.float32(1 / K)

    @njit(**FAST)
    def run(start: Any, X: Any, y: Any, updates: int, seed: int) -> Any:
        state = np.array([seed], np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        none = np.empty((steps, 0), np.int64)
        models = np.empty((in_flight + 2, d), np.float32)
        readers = np.zeros(in_flight + 2, np.int32)
        free = np.arange(in_flight + 2)
        n_free = in_flight + 1
        newest = free[n_free]
        models[newest] = start
        readers[newest] = 1
        times = np.empty(in_flight + 1)
        who = np.empty(in_flight + 1, np.int32)
        place = np.empty(in_flight + 1, np.int32)
        started = np.empty(in_flight + 1, np.int32)
        busy = np.zeros(n_clients, np.bool_)
        total, end = np.zeros(d, np.float32), np.empty(d, np.float32)
        weights = np.empty(8192, np.float32)
        for i in range(8192):
            weights[i] = (1.0 + i) ** -0.5
        used = fill = version = 0
        now, done, client = 0.0, -in_flight, -1
        while done < updates:
            if done >= 0:
                now, client, at = times[0], who[0], place[0]
                weight = weights[min(version - started[0], 8191)]
                used -= 1
                busy[client] = False
                t, a, b, c = times[used], who[used], place[used], started[used]
                i = 0
                while True:
                    q = 2 * i + 1
                    if q >= used:
                        break
                    if q + 1 < used and times[q + 1] < times[q]:
                        q += 1
                    if times[q] >= t:
                        break
                    times[i], who[i], place[i], started[i] = times[q], who[q], place[q], started[q]
                    i = q
                times[i], who[i], place[i], started[i] = t, a, b, c
                model = models[at]
                train(model, X, y, client, state, none, end)
                for j in range(d):
                    total[j] += weight * (model[j] - end[j])
                readers[at] -= 1
                if readers[at] == 0:
                    free[n_free] = at
                    n_free += 1
                fill += 1
                if fill == K:
                    n_free -= 1
                    after = free[n_free]
                    for j in range(d):
                        models[after, j] = models[newest, j] - rate * total[j]
                        total[j] = 0
                    readers[newest] -= 1
                    if readers[newest] == 0:
                        free[n_free] = newest
                        n_free += 1
                    newest = after
                    readers[newest] = 1
                    version += 1
                    fill = 0
            if fixed:
                client = done + in_flight if done < 0 else client
            else:
                client = _below(state, n_clients)
                while busy[client]:
                    client = _below(state, n_clients)
            busy[client] = True
            readers[newest] += 1
            arrive = now + _exponential(state)
            i = used
            used += 1
            while i > 0:
                q = (i - 1) >> 1
                if times[q] <= arrive:
                    break
                times[i], who[i], place[i], started[i] = times[q], who[q], place[q], started[q]
                i = q
            times[i], who[i], place[i], started[i] = arrive, client, newest, version
            done += 1
        return models[newest].copy()

    return run


@njit(inline="always")
def _mixed(z: Any) -> Any:
    """A random word of 64 bits from a count that moves on: as `_next`, whose state is here a number in a register."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _flat_simulator(w: Workload) -> tuple[Any, Any]:
    """One local step of a logistic regression, all in one function: no views of arrays, and no delta, since what a row
    gives is added to the buffer at once. Also a function that does this for the rows of one client that are given."""
    n_clients, in_flight, K, p = w.n_clients, w.in_flight, w.buffer_size, w.features
    batch, n_rows, scale, rate = w.batch, w.rows, np.float32(w.lr / w.batch), np.float32(1 / w.buffer_size)
    assert w.outputs == w.steps == 1 and not w.intercept and in_flight < n_clients
    move, one = np.uint64(0x9E3779B97F4A7C15), np.float32(1)

    @njit(inline="always")
    def add_row(X: Any, y: Any, client: int, row: int, models: Any, at: int, factor: Any, total: Any) -> None:
        z = np.float32(0)
        for j in range(p):
            z += X[client, row, j] * models[at, j]
        g = (one / (one + np.exp(-z)) - y[client, row]) * factor
        for j in range(p):
            total[j] += g * X[client, row, j]

    @njit(**FAST)
    def given_rows(X: Any, y: Any, client: int, rows: Any, models: Any, total: Any) -> None:
        for i in range(batch):
            add_row(X, y, client, rows[i], models, 0, scale, total)

    @njit(**FAST)
    def run(start: Any, X: Any, y: Any, updates: int, seed: int) -> Any:
        state = np.uint64(seed) * move
        models, readers = np.empty((in_flight + 2, p), np.float32), np.zeros(in_flight + 2, np.int32)
        free, n_free = np.arange(in_flight + 2), in_flight + 1
        newest = free[n_free]
        readers[newest] = 1
        for j in range(p):
            models[newest, j] = start[j]
        times, who = np.empty(in_flight + 1), np.empty(in_flight + 1, np.int32)
        place, started = np.empty(in_flight + 1, np.int32), np.empty(in_flight + 1, np.int32)
        busy, total = np.zeros(n_clients, np.bool_), np.zeros(p, np.float32)
        weights = np.empty(8192, np.float32)
        for i in range(8192):
            weights[i] = (1.0 + i) ** -0.5
        used = fill = version = 0
        now, done = 0.0, -in_flight
        while done < updates:
            if done >= 0:
                now, client, at = times[0], who[0], place[0]
                factor = weights[min(version - started[0], 8191)] * scale
                used -= 1
                busy[client] = False
                t, a, b, c = times[used], who[used], place[used], started[used]
                i = 0
                while True:
                    q = 2 * i + 1
                    if q >= used:
                        break
                    if q + 1 < used and times[q + 1] < times[q]:
                        q += 1
                    if times[q] >= t:
                        break
                    times[i], who[i], place[i], started[i] = times[q], who[q], place[q], started[q]
                    i = q
                times[i], who[i], place[i], started[i] = t, a, b, c
                for _ in range(batch):
                    state += move
                    row = np.int64(((_mixed(state) >> np.uint64(32)) * np.uint64(n_rows)) >> np.uint64(32))
                    add_row(X, y, client, row, models, at, factor, total)
                readers[at] -= 1
                if readers[at] == 0:
                    free[n_free] = at
                    n_free += 1
                fill += 1
                if fill == K:
                    n_free -= 1
                    after = free[n_free]
                    for j in range(p):
                        models[after, j] = models[newest, j] - rate * total[j]
                    for j in range(p):
                        total[j] = 0
                    readers[newest] -= 1
                    if readers[newest] == 0:
                        free[n_free] = newest
                        n_free += 1
                    newest = after
                    readers[newest] = 1
                    version += 1
                    fill = 0
            while True:
                state += move
                client = np.int64(((_mixed(state) >> np.uint64(32)) * np.uint64(n_clients)) >> np.uint64(32))
                if not busy[client]:
                    break
            busy[client] = True
            readers[newest] += 1
            state += move
            arrive = now - np.log((np.float64(_mixed(state) >> np.uint64(11)) + 0.5) * (1.0 / 9007199254740992.0))
            i = used
            used += 1
            while i > 0:
                q = (i - 1) >> 1
                if times[q] <= arrive:
                    break
                times[i], who[i], place[i], started[i] = times[q], who[q], place[q], started[q]
                i = q
            times[i], who[i], place[i], started[i] = arrive, client, newest, version
            done += 1
        return models[newest].copy()

    return run, given_rows


def _flat_replay(name: str, updates: int) -> Callable[[], dict[str, Any]]:
    w = workload(name)
    X, y = rows_of(w)
    simulate, given_rows = _flat_simulator(w)

    def delta(start: np.ndarray, client: int, batches: np.ndarray) -> np.ndarray:
        total = np.zeros_like(start)
        given_rows(X, y, client, batches[0], start[None], total)
        return total

    check_delta(name, delta)
    start = initial_model(w)
    simulate(start, X, y, 100, 5)
    return lambda: {"amount": updates, "model": simulate(start, X, y, updates, 1)}


def _prepared(name: str, variant: str) -> tuple[Workload, Any, np.ndarray, np.ndarray]:
    """The workload, its kernel, and rows and targets as the kernel takes them; the kernel's answer was compared."""
    w = workload(name)
    if w.sparse:
        sparse = sparse_rows_of(w)
        train, X, y = _csr_kernel(w, sparse), sparse.values, sparse.y
    else:
        X, y = rows_of(w)
        X, y = X.reshape(-1, w.features), y.ravel()
        linear = _softmax_blas_kernel if variant == "blas" else _softmax_kernel
        train = (_mlp_kernel if w.hidden else _logistic_kernel if w.outputs == 1 else linear)(w)

    def delta(start: np.ndarray, client: int, batches: np.ndarray) -> np.ndarray:
        end = np.empty_like(start)
        train(start, X, y, client, np.zeros(1, np.uint64), batches, end)
        return start - end

    check_delta(name, delta)
    return w, train, X, y


def replay(name: str, updates: str, variant: str = "loops") -> Callable[[], dict[str, Any]]:
    """The whole simulation; for a softmax regression with `loops` of our own, or with `blas`; for one step of a
    logistic regression also `flat`, all in one function."""
    if variant == "flat":
        return _flat_replay(name, int(updates))
    w, train, X, y = _prepared(name, variant)
    simulate, start = _simulator(w, train), initial_model(w)
    simulate(start, X, y, 100, 5)

    def run() -> dict[str, Any]:
        return {"amount": int(updates), "model": simulate(start, X, y, int(updates), 1)}

    return run


def sgd(name: str, updates: str, variant: str = "loops") -> Callable[[], dict[str, Any]]:
    """Local SGD of clients in random order, without an event loop."""
    w, train, X, y = _prepared(name, variant)
    clients = np.random.default_rng(1).integers(0, w.n_clients, int(updates))
    steps = w.steps

    @njit(**FAST)
    def every(start: Any, X: Any, y: Any, clients: Any, end: Any) -> None:
        state, none = np.ones(1, np.uint64), np.empty((steps, 0), np.int64)
        for client in clients:
            train(start, X, y, client, state, none, end)

    start = initial_model(w)
    end = np.empty_like(start)
    every(start, X, y, clients[:10], end)

    def run() -> dict[str, Any]:
        every(start, X, y, clients, end)
        return {"amount": int(updates)}

    return run


def aggregate(dim: str, threads: str = "1") -> Callable[[], dict[str, Any]]:
    """One loop over ten deltas; with more threads each has its part of the weights."""
    deltas, weights, model = vectors(int(dim))
    times = max(1, 20_000_000 // len(model))
    many = int(threads) > 1

    @njit(**FAST, parallel=many)
    def step(
        w: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any, j: Any, s: Any, lr: Any
    ) -> None:
        s0, s1, s2, s3, s4, s5, s6, s7, s8, s9 = s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9]
        for q in prange(w.shape[0]):
            w[q] -= lr * (
                s0 * a[q] + s1 * b[q] + s2 * c[q] + s3 * d[q] + s4 * e[q]
                + s5 * f[q] + s6 * g[q] + s7 * h[q] + s8 * i[q] + s9 * j[q]
            )  # fmt: skip

    def run() -> dict[str, Any]:
        for _ in range(times):
            step(model, *deltas, weights, np.float32(0.1))
        return {"amount": moved(deltas) * times}

    return checked(run, lambda: model, deltas, weights, times)


@njit(**FAST)
def _event_loop(n: int, in_flight: int, K: int, arrivals: int, seed: int) -> float:
    state = np.array([seed], np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    times, who, started = np.empty(in_flight + 1), np.empty(in_flight + 1, np.int32), np.empty(in_flight + 1, np.int32)
    busy = np.zeros(n, np.bool_)
    used = version = fill = stale = 0
    now, done = 0.0, -in_flight
    while done < arrivals:
        if done >= 0:
            now, client = times[0], who[0]
            stale += version - started[0]
            used -= 1
            busy[client] = False
            t, a, b = times[used], who[used], started[used]
            i = 0
            while True:
                q = 2 * i + 1
                if q >= used:
                    break
                if q + 1 < used and times[q + 1] < times[q]:
                    q += 1
                if times[q] >= t:
                    break
                times[i], who[i], started[i] = times[q], who[q], started[q]
                i = q
            times[i], who[i], started[i] = t, a, b
            fill += 1
            if fill == K:
                fill = 0
                version += 1
        client = _below(state, n)
        while busy[client]:
            client = _below(state, n)
        busy[client] = True
        arrive = now + _exponential(state)
        i = used
        used += 1
        while i > 0:
            q = (i - 1) >> 1
            if times[q] <= arrive:
                break
            times[i], who[i], started[i] = times[q], who[q], started[q]
            i = q
        times[i], who[i], started[i] = arrive, client, version
        done += 1
    return stale / arrivals


@njit(nogil=True, inline="always")
def _philox(k0: int, k1: int, c0: int, c1: int, c2: int, c3: int) -> Any:
    c0, c1, c2, c3 = np.uint64(c0), np.uint64(c1), np.uint64(c2), np.uint64(c3)
    k0, k1 = np.uint64(k0), np.uint64(k1)
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * c0
        p1 = np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (p1 >> shift) ^ c1 ^ k0, p1 & mask, (p0 >> shift) ^ c3 ^ k1, p0 & mask
        k0 = (k0 + np.uint64(0x9E3779B9)) & mask
        k1 = (k1 + np.uint64(0xBB67AE85)) & mask
    return c0, c1


@njit(nogil=True)
def _event_loop_with_columns(n: int, c: int, size: int, arrivals: int, seed: int) -> float:
    """Philox draws of (client, task), task numbers, and the columns of a schedule."""
    times, clients, versions = np.empty(c + 1), np.empty(c + 1, np.int32), np.empty(c + 1, np.int64)
    begins, numbers = np.empty(c + 1), np.empty(c + 1, np.uint32)
    busy, tasks = np.zeros(n, np.bool_), np.zeros(n, np.uint32)
    out_client, out_task = np.empty(arrivals, np.int32), np.empty(arrivals, np.uint32)
    out_version, out_step = np.empty(arrivals, np.int64), np.empty(arrivals, np.int64)
    out_staleness, out_status = np.empty(arrivals, np.int64), np.empty(arrivals, np.uint8)
    out_start, out_arrive = np.empty(arrivals), np.empty(arrivals)
    step_time, step_started = np.empty(arrivals // size + 1), np.empty(arrivals // size + 1, np.int64)
    used = version = fill = start = started = 0
    now, done, stale = 0.0, -c, 0
    while done < arrivals:
        if done >= 0:
            now, client = times[0], clients[0]
            out_client[done], out_task[done], out_version[done] = client, numbers[0], versions[0]
            out_step[done], out_staleness[done] = version, version - versions[0]
            out_start[done], out_arrive[done], out_status[done] = begins[0], now, 0
            stale += version - versions[0]
            used -= 1
            busy[client] = False
            t, a, b, e, f = times[used], clients[used], versions[used], begins[used], numbers[used]
            i = 0
            while True:
                q = 2 * i + 1
                if q >= used:
                    break
                if q + 1 < used and times[q + 1] < times[q]:
                    q += 1
                if times[q] >= t:
                    break
                times[i], clients[i], versions[i] = times[q], clients[q], versions[q]
                begins[i], numbers[i] = begins[q], numbers[q]
                i = q
            times[i], clients[i], versions[i], begins[i], numbers[i] = t, a, b, e, f
            fill += 1
            if fill == size:
                step_time[version], step_started[version] = now, started
                fill = started = 0
                version += 1
        attempt = 0
        while True:
            w0, w1 = _philox(seed, 0, start, 0, attempt, 2 << 28)
            client = np.int64((np.uint64(w0) * np.uint64(n)) >> np.uint64(32))
            if not busy[client]:
                break
            attempt += 1
        start += 1
        busy[client] = True
        task = tasks[client]
        tasks[client] += np.uint32(1)
        w0, w1 = _philox(seed, 0, client, task, 2, 1 << 28)
        u = ((w0 >> np.uint64(5)) * 67108864.0 + (w1 >> np.uint64(6))) * (1.0 / 9007199254740992.0)
        arrive = now - np.log(1.0 - u)
        started += 1
        i = used
        used += 1
        while i > 0:
            q = (i - 1) >> 1
            if times[q] <= arrive:
                break
            times[i], clients[i], versions[i] = times[q], clients[q], versions[q]
            begins[i], numbers[i] = begins[q], numbers[q]
            i = q
        times[i], clients[i], versions[i], begins[i], numbers[i] = arrive, client, version, now, task
        done += 1
    return stale / arrivals


def schedule(in_flight: str, arrivals: str, variant: str = "counts") -> Callable[[], dict[str, Any]]:
    """counts: a cheap generator, nothing written; columns: the draws and the columns of a schedule."""
    loop = {"counts": _event_loop, "columns": _event_loop_with_columns}[variant]
    n_tasks, n = int(in_flight), int(arrivals)
    loop(20, 2, 10, 100, 1)

    def run() -> dict[str, Any]:
        return {"amount": n, "staleness": float(loop(10 * n_tasks, n_tasks, 10, n, 1))}

    return run
