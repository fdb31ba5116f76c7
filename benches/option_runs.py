"""Schedules with each option, source and way to start, and the most that each may cost: times the plain event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import fedbuff as fb
from fedbuff import FedBuff

K = 10
Make = Callable[[int, int], fb.Schedule]  # of so many tasks in flight and ended tasks


def model(in_flight: int, share: float = 0.1, **options: Any) -> fb.DelayModel:
    return fb.DelayModel(n_clients=int(in_flight / share), **{"compute": fb.Exponential(1.0), **options})


def with_options(**options: Any) -> Make:
    def make(in_flight: int, arrivals: int) -> fb.Schedule:
        return fb.schedule(model(in_flight), FedBuff(K), in_flight, arrivals=arrivals, **options)

    return make


def with_strategy(**options: Any) -> Make:
    """An option "at" of a function follows from the tasks in flight."""

    def make(in_flight: int, arrivals: int) -> fb.Schedule:
        given = {name: value(in_flight) if callable(value) else value for name, value in options.items()}
        size = given.pop("buffer_size", K)
        return fb.schedule(model(in_flight), FedBuff(size, **given), in_flight, arrivals=arrivals)

    return make


def weighted(queues: bool) -> Make:
    def make(in_flight: int, arrivals: int) -> fb.Schedule:
        weights = np.arange(1.0, 10 * in_flight + 1)
        options: dict[str, Any] = {"selection": weights / weights.sum(), "queues": queues}
        return fb.schedule(model(in_flight), FedBuff(K), in_flight, arrivals=arrivals, **options)

    return make


def served(in_flight: int, arrivals: int) -> fb.Schedule:
    law = fb.Exponential(0.5 / in_flight)
    return fb.schedule(model(in_flight), FedBuff(K), in_flight, arrivals=arrivals, server_time=law)


def shared(in_flight: int, arrivals: int) -> fb.Schedule:
    delays = model(in_flight, upload=fb.Exponential(0.1))
    return fb.schedule(delays, FedBuff(K), in_flight, arrivals=arrivals, uplink=0.1 * in_flight)


def of_source(change: Callable[[fb.DelayModel], Any]) -> Make:
    def make(in_flight: int, arrivals: int) -> fb.Schedule:
        return fb.schedule(change(model(in_flight)), FedBuff(K), in_flight, arrivals=arrivals)

    return make


def recorded(ok: float) -> Make:
    kept: dict[int, fb.Trace] = {}

    def make(in_flight: int, arrivals: int) -> fb.Schedule:
        if in_flight not in kept:
            rng, n = np.random.default_rng(0), 10 * in_flight
            client = np.repeat(np.arange(n), 5)
            kept[in_flight] = fb.Trace(client, rng.exponential(1.0, 5 * n), ok=rng.random(5 * n) < ok)
        return fb.schedule(kept[in_flight], FedBuff(K), in_flight, arrivals=arrivals)

    return make


def ties(in_flight: int, arrivals: int) -> fb.Schedule:
    delays = model(in_flight, compute=fb.Empirical(np.arange(1.0, 11.0)))
    return fb.schedule(delays, FedBuff(K), in_flight, arrivals=arrivals)


def away(delays: fb.DelayModel) -> fb.DelayModel:
    n = delays.n_clients
    begin = np.linspace(0.0, 12.0, n)
    windows = fb.Availability(np.arange(n), begin, begin + 12.0, n_clients=n, period=24.0)
    return fb.DelayModel(n_clients=n, compute=delays.compute, availability=windows)


def open_loop(in_flight: int, arrivals: int) -> fb.Schedule:
    return fb.schedule(
        *(model(in_flight), FedBuff(K)), arrivals=arrivals, start_rate=float(in_flight), start_process="poisson"
    )


def rounds(in_flight: int, arrivals: int) -> fb.Schedule:
    return fb.schedule(model(in_flight), fb.FedAvg(clients_per_round=in_flight), arrivals=arrivals)


def share_of_clients(share: float) -> Make:
    def make(in_flight: int, arrivals: int) -> fb.Schedule:
        return fb.schedule(model(in_flight, share), FedBuff(K), in_flight, arrivals=arrivals)

    return make


PLAIN = with_options()
GOALS: dict[str, tuple[Make, float]] = {
    "max_wait": (with_strategy(max_wait=lambda m: 30.0 / m), 1.5),
    "period": (with_strategy(period=lambda m: 30.0 / m), 1.5),
    "trigger every_client": (with_strategy(trigger="every_client"), 1.5),
    "trigger ringleader": (with_strategy(trigger="ringleader"), 1.5),
    "refill step": (with_strategy(refill="step"), 1.5),
    "refill 5": (with_strategy(refill=5), 1.5),
    "stop_stale": (with_strategy(stop_stale=lambda m: m // 2), 1.5),
    "distinct_clients": (with_strategy(distinct_clients=True), 1.5),
    "timeout": (with_options(timeout=3.0), 1.5),
    "max_uses": (with_options(max_uses=10**6), 1.5),
    "round_robin": (with_options(selection="round_robin"), 1.5),
    "longest_idle": (with_options(selection="longest_idle"), 1.5),
    "probabilities": (weighted(False), 2.0),
    "queues": (with_options(queues=True), 2.0),
    "queues, probabilities": (weighted(True), 2.0),
    "server_time": (served, 1.5),
    "restart, per stopped task": (with_strategy(restart="step"), 2.0),
    "ties": (ties, 2.0),
    "windows": (of_source(away), 2.0),
    "a recorded trace": (recorded(1.1), 2.0),
    "failures": (recorded(0.8), 2.0),
    "open loop": (open_loop, 2.0),
    "rounds": (rounds, 2.0),
    "all clients at work": (share_of_clients(1.0), 1.5),
    "a client in 100 at work": (share_of_clients(0.01), 1.5),
    "uplink": (shared, np.inf),  # O(log n) for an event
}
