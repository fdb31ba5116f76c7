"""FedJAX: its own federated averaging, ten clients a round. It has no asynchronous algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

if not hasattr(jax, "tree_map"):  # which JAX removed, and FedJAX 0.0.17 still calls
    jax.tree_map = jax.tree.map

from fedjax import ClientDataset, ShuffleRepeatBatchHParams, optimizers
from fedjax.algorithms import fed_avg

from .data import (
    initial_model,
    learning,
    parts_of,
    rows_of,
    workload,
)


def replay(name: str, updates: str) -> Callable[[], dict[str, Any]]:
    w = workload(name)
    X, y = rows_of(w)
    n_rounds = int(updates) // w.buffer_size

    def loss(params: Any, batch: Any, key: Any) -> Any:
        h = batch["x"]
        if w.hidden:
            h = jax.nn.relu(h @ params[0].T + params[1])
        z = jax.nn.log_softmax(h @ params[-2].T + params[-1])
        return -jnp.mean(jnp.take_along_axis(z, batch["y"][:, None], 1))

    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        optimizers.sgd(w.lr),
        optimizers.sgd(1.0),
        ShuffleRepeatBatchHParams(batch_size=w.batch, num_steps=w.steps, num_epochs=None),
    )
    clients = [ClientDataset({"x": X[i], "y": y[i]}) for i in range(w.n_clients)]

    def run() -> dict[str, Any]:
        state = algorithm.init([jnp.asarray(part) for part in parts_of(w, initial_model(w))])
        generator, key = np.random.default_rng(1), jax.random.PRNGKey(1)
        for _ in range(n_rounds):
            key, *keys = jax.random.split(key, w.buffer_size + 1)
            chosen = generator.choice(w.n_clients, w.buffer_size, replace=False)
            cohort = [(str(i), clients[i], k) for i, k in zip(chosen.tolist(), keys, strict=True)]
            state, _ = algorithm.apply(state, cohort)
        model = np.concatenate([np.asarray(part).ravel() for part in state.params])
        return {"amount": n_rounds * w.buffer_size, "end": model}

    return learning(w, run)
