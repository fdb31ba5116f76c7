"""JAX: the whole run is one jitted scan over server steps, with a ring of past models and the K clients of a buffer
vectorised. The schedule, which does not depend on the model, is made before it with heapq; both are timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import with_heapq
from .data import (
    check_delta,
    initial_model,
    parts_of,
    rows_of,
    workload,
)
from .with_numpy import checked, moved, vectors


def _step(w: Any, parts: Any, x: Any, y: Any) -> Any:
    scale = np.float32(w.lr / w.batch)
    if w.outputs == 1:
        g = jax.nn.sigmoid(x @ parts[0][0]) - y
        return (parts[0] - scale * (g @ x)[None],)
    h = jax.nn.relu(x @ parts[0].T + parts[1]) if w.hidden else x
    z = scale * (jax.nn.softmax(h @ parts[-2].T + parts[-1]) - jax.nn.one_hot(y, w.outputs))
    last = (parts[-2] - z.T @ h, parts[-1] - z.sum(0))
    if not w.hidden:
        return last
    back = (z @ parts[2]) * (h > 0)
    return (parts[0] - back.T @ x, parts[1] - back.sum(0), *last)


def _delta(w: Any, start: Any, X: Any, y: Any, rows: Any) -> Any:
    if w.steps == 1:
        end = _step(w, start, X[rows[0]], y[rows[0]])
    else:
        end, _ = lax.scan(lambda parts, at: (_step(w, parts, X[at], y[at]), None), start, rows)
    return jax.tree.map(jnp.subtract, start, end)


@partial(jax.jit, static_argnames=("w", "ring_size"))
def _whole_run(w: Any, start: Any, X: Any, y: Any, clients: Any, versions: Any, rows: Any, ring_size: int) -> Any:
    ring = jax.tree.map(lambda part: jnp.broadcast_to(part, (ring_size, *part.shape)), start)

    def body(carry: Any, step: Any) -> Any:
        model, ring, t = carry
        client, version, at = step
        weights = (1.0 + t - version).astype(jnp.float32) ** -0.5
        starts = jax.tree.map(lambda part: part[version % ring_size], ring)
        deltas = jax.vmap(partial(_delta, w))(starts, X[client], y[client], at)
        model = jax.tree.map(
            lambda part, delta: part - np.float32(1 / w.buffer_size) * jnp.tensordot(weights, delta, 1), model, deltas
        )
        ring = jax.tree.map(lambda parts, part: parts.at[(t + 1) % ring_size].set(part), ring, model)
        return (model, ring, t + 1), None

    return lax.scan(body, (start, ring, jnp.int32(0)), (clients, versions, rows))[0][0]


def replay(name: str, updates: str) -> Callable[[], dict[str, Any]]:
    w = workload(name)
    n_rounds = int(updates) // w.buffer_size
    X, y = map(jnp.asarray, rows_of(w))
    start = tuple(jnp.asarray(part) for part in parts_of(w, initial_model(w)))

    def flat(parts: Any) -> np.ndarray:
        return np.concatenate([np.asarray(part).reshape(-1) for part in parts])

    def check(model: np.ndarray, client: int, batches: np.ndarray) -> np.ndarray:
        given = tuple(jnp.asarray(part) for part in parts_of(w, model))
        return flat(jax.jit(partial(_delta, w))(given, X[client], y[client], jnp.asarray(batches)))

    check_delta(name, check)

    def run() -> dict[str, Any]:
        buffers = [(c, v) for c, v, _ in with_heapq.rounds(w, n_rounds, 1, [None])]
        clients, versions = (np.array(column, np.int32) for column in zip(*buffers, strict=True))
        generator = np.random.default_rng(1)
        rows = generator.integers(0, w.rows, (n_rounds, w.buffer_size, w.steps, w.batch), dtype=np.int32)
        longest = int((np.arange(n_rounds)[:, None] - versions).max()) + 1
        ring_size = max(128, 1 << (longest - 1).bit_length())
        model = jax.block_until_ready(_whole_run(w, start, X, y, clients, versions, rows, ring_size))
        return {"amount": n_rounds * w.buffer_size, "model": flat(model)}

    return run


def aggregate(dim: str) -> Callable[[], dict[str, Any]]:
    """One jitted expression, fused, on a donated model."""
    deltas, weights, start = vectors(int(dim))
    held = [jnp.asarray(start)]
    arrays, factors = [jnp.asarray(delta) for delta in deltas], jnp.asarray(weights)
    times = max(1, 20_000_000 // len(start))

    @partial(jax.jit, donate_argnums=0)
    def step(model: Any, arrays: Any, factors: Any) -> Any:
        return model - np.float32(0.1) * sum(factors[k] * array for k, array in enumerate(arrays))

    def run() -> dict[str, Any]:
        for _ in range(times):
            held[0] = jax.block_until_ready(step(held[0], arrays, factors))
        return {"amount": moved(deltas) * times}

    return checked(run, lambda: held[0], deltas, weights, times)
