"""NumPy: the K clients whose updates fill a buffer train together, by batched products of matrices.

That is exact: delays do not depend on the model, so all K models to start from are known when the first is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import with_heapq
from .data import (
    check_delta,
    initial_model,
    parts_of,
    rows_of,
    workload,
)


class Trainer:
    def __init__(self, name: str) -> None:
        self.w = w = workload(name)
        X, y = rows_of(w)
        self.X, self.y = X.reshape(-1, w.features), y.ravel()
        self.generator = np.random.default_rng(1)
        check_delta(name, lambda start, client, rows: self.deltas(start[None], np.array([client]), rows[:, None])[0])

    def deltas(self, starts: np.ndarray, clients: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Start models minus models after the local steps, (K, dim); rows (steps, K, batch) within each client."""
        w = self.w
        K = len(clients)
        if rows is None:
            rows = self.generator.integers(0, w.rows, (w.steps, K, w.batch))
        rows = rows + (clients * w.rows)[:, None]
        scale = np.float32(w.lr / w.batch)
        models = starts.copy()
        parts = parts_of(w, models)
        if w.outputs == 1:
            (weight,) = parts
            for at in rows:
                x = self.X[at]
                g = 1 / (1 + np.exp(-(x @ weight.transpose(0, 2, 1))[..., 0])) - self.y[at]
                weight[:, 0] -= np.matmul(g[:, None], x)[:, 0] * scale
            return starts - models
        first, bias = parts[:2]
        x = np.empty((K, w.batch, w.features), np.float32)
        update = np.empty_like(first)
        ks, bs = np.arange(K)[:, None], np.arange(w.batch)
        for at in rows:
            np.take(self.X, at, axis=0, out=x, mode="clip")
            z = x @ first.transpose(0, 2, 1)
            z += bias[:, None]
            if w.hidden:
                h = np.maximum(z, 0, out=z)
                z = h @ parts[2].transpose(0, 2, 1)
                z += parts[3][:, None]
            z -= z.max(2, keepdims=True)
            np.exp(z, out=z)
            z *= scale / z.sum(2, keepdims=True)
            z[ks, bs, self.y[at]] -= scale
            if w.hidden:
                back = z @ parts[2]
                back *= h > 0
                parts[2] -= z.transpose(0, 2, 1) @ h
                parts[3] -= z.sum(1)
                z = back
            np.matmul(z.transpose(0, 2, 1), x, out=update)
            np.subtract(first, update, out=first)
            bias -= z.sum(1)
        return starts - models


def replay(name: str, updates: str) -> Callable[[], dict[str, Any]]:
    trainer = Trainer(name)
    w = trainer.w
    n_rounds = int(updates) // w.buffer_size

    def run() -> dict[str, Any]:
        newest = [initial_model(w)]
        for t, (clients, versions, models) in enumerate(with_heapq.rounds(w, n_rounds, 1, newest)):
            deltas = trainer.deltas(np.stack(models), np.array(clients))
            weights = ((1 + t - np.array(versions)) ** -0.5).astype(np.float32)
            newest[0] = newest[0] - np.float32(1 / w.buffer_size) * (weights @ deltas)
        return {"amount": n_rounds * w.buffer_size, "model": newest[0]}

    return run


def aggregate(dim: str) -> Callable[[], dict[str, Any]]:
    """In place, with a preallocated product."""
    deltas, weights, model = vectors(int(dim))
    total, product = np.empty_like(model), np.empty_like(model)
    times = max(1, 20_000_000 // len(model))

    def run() -> dict[str, Any]:
        for _ in range(times):
            np.multiply(deltas[0], weights[0], out=total)
            for delta, weight in zip(deltas[1:], weights[1:], strict=True):
                np.multiply(delta, weight, out=product)
                np.add(total, product, out=total)
            np.multiply(total, np.float32(0.1), out=total)
            np.subtract(model, total, out=model)
        return {"amount": moved(deltas) * times}

    return checked(run, lambda: model, deltas, weights, times)


def vectors(dim: int, dtype: Any = np.float32) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """K deltas, their weights, and a model of zeros."""
    generator = np.random.default_rng(0)
    deltas = [generator.standard_normal(dim, dtype=dtype) for _ in range(10)]
    return deltas, np.array([(1 + k % 4) ** -0.5 for k in range(10)], dtype), np.zeros(dim, dtype)


def moved(deltas: list[Any]) -> int:
    """Bytes that one pass must move: K deltas and a model in, a model out."""
    return (len(deltas) + 2) * deltas[0].nbytes


def checked(
    run: Callable[[], dict[str, Any]], model: Callable[[], Any], deltas: list[Any], weights: Any, times: int
) -> Callable[[], dict[str, Any]]:
    """Runs once from a model of zeros, and compares with the formula."""
    run()
    expected = -0.1 * times * sum(float(s) * d[:1000].astype(np.float64) for s, d in zip(weights, deltas, strict=True))
    got = np.asarray(model())[:1000]
    if not np.allclose(got, expected, rtol=1e-3, atol=1e-4):
        raise AssertionError(f"the aggregate is wrong: {got[:3]}, expected {expected[:3]}")
    return run


def evaluate(name: str) -> Callable[[], dict[str, Any]]:
    """Loss and gradient over all clients, as one batch: the best that a BLAS can do."""
    w = workload(name)
    rows, labels = rows_of(w)
    X, y = rows.reshape(-1, w.features), labels.ravel()
    model = initial_model(w)
    every = np.arange(len(y))

    def run() -> dict[str, Any]:
        parts = parts_of(w, model)
        h = X
        if w.hidden:
            h = X @ parts[0].T
            h += parts[1]
            np.maximum(h, 0, out=h)
        z = h @ parts[-2].T
        z += parts[-1]
        z -= z.max(1, keepdims=True)
        at_label = z[every, y]
        np.exp(z, out=z)
        sums = z.sum(1)
        loss = float(np.mean(np.log(sums) - at_label))
        z /= sums[:, None]
        z[every, y] -= 1
        gradient = np.empty_like(model)
        out = parts_of(w, gradient)
        np.matmul(z.T, h, out=out[-2])
        out[-1][:] = z.sum(0)
        if w.hidden:
            back = z @ parts[2]
            back *= h > 0
            np.matmul(back.T, X, out=out[0])
            out[1][:] = back.sum(0)
        gradient /= len(y)
        return {"amount": w.gradient_flops, "loss": loss, "norm": float(np.linalg.norm(gradient))}

    return run
