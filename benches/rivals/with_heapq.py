"""The event loop that one writes first: CPython's heapq. The NumPy, PyTorch and JAX rivals train on what it gives."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .data import Workload

BUFFER = 10


def _draws(generator: np.random.Generator, n: int) -> Iterator[tuple[int, float]]:
    while True:
        yield from zip(generator.integers(0, n, 4096).tolist(), generator.exponential(size=4096).tolist(), strict=True)


def rounds(
    w: Workload, n_rounds: int, seed: int, newest: list[Any]
) -> Iterator[tuple[list[int], list[int], list[Any]]]:
    """Clients, versions and models of the arrivals that fill each buffer; newest[0] is the model that a task starts on.

    The caller puts the next model there before it asks for the next buffer. Models that nobody needs are let go.
    """
    draws = _draws(np.random.default_rng(seed), w.n_clients)
    busy = [False] * w.n_clients
    queue: list[tuple[float, int, int, Any]] = []
    all_busy = w.in_flight >= w.n_clients

    def start(now: float, version: int, freed: int) -> tuple[float, int, int, Any]:
        client, delay = next(draws)
        if all_busy:
            return now + delay, freed, version, newest[0]
        while busy[client]:
            client, delay = next(draws)
        busy[client] = True
        return now + delay, client, version, newest[0]

    for slot in range(min(w.in_flight, w.n_clients)):
        heapq.heappush(queue, start(0.0, 0, slot))
    for version in range(n_rounds):
        clients, versions, models = [], [], []
        for k in range(w.buffer_size):
            now, client, started, model = queue[0]
            busy[client] = False
            clients.append(client)
            versions.append(started)
            models.append(model)
            if k < w.buffer_size - 1:
                heapq.heapreplace(queue, start(now, version, client))
        yield clients, versions, models
        heapq.heapreplace(queue, start(now, version + 1, client))


def schedule(in_flight: str, arrivals: str, variant: str = "bulk") -> Callable[[], dict[str, Any]]:
    """An event loop that only counts; the mean staleness is its answer. bulk: NumPy draws thousands at a time; plain:
    the `random` module, one draw after the other."""
    n_tasks, n = int(in_flight), int(arrivals)
    w = Workload("", 10 * n_tasks, 1, 1, 1, 0, 1, 1, buffer_size=BUFFER, in_flight=n_tasks)

    def bulk() -> dict[str, Any]:
        stale = 0
        for version, (_, versions, _) in enumerate(rounds(w, n // BUFFER, 1, [None])):
            stale += BUFFER * version - sum(versions)
        return {"amount": n, "staleness": stale / n}

    def plain() -> dict[str, Any]:
        generator = random.Random(1)
        below, delay = generator.randrange, generator.expovariate
        busy = bytearray(w.n_clients)
        queue: list[tuple[float, int, int]] = []
        version = fill = stale = 0

        def draw() -> int:
            client = below(w.n_clients)
            while busy[client]:
                client = below(w.n_clients)
            busy[client] = 1
            return client

        for _ in range(n_tasks):
            heapq.heappush(queue, (delay(1.0), draw(), 0))
        for _ in range(n):
            now, client, started = queue[0]
            busy[client] = 0
            stale += version - started
            fill += 1
            if fill == BUFFER:
                fill = 0
                version += 1
            heapq.heapreplace(queue, (now + delay(1.0), draw(), version))
        return {"amount": n, "staleness": stale / n}

    return {"bulk": bulk, "plain": plain}[variant]
