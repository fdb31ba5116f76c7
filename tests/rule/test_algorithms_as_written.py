"""Algorithms by name beside loops in NumPy, float64, written from the papers; the others have tests of their own.

A loop gets the arrivals of each step, on the version that each began on, and gives the next model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import fedbuff as fb

Array = NDArray[np.float64]
N, DIM, STEPS = 5, 3, 40
SIZES = np.array([4, 9, 2, 6, 3])
DELAYS = fb.DelayModel(n_clients=N, compute=fb.Exponential(1.0), client_speed=np.array([1.0, 1.0, 2.0, 5.0, 0.5]))
LOCAL = fb.LocalSGD(steps=2, lr=0.05)


class Arrival(NamedTuple):
    client: int
    staleness: int
    start: Array  # the model that the task began on
    delta: Array


Step = Callable[[Array, list[Arrival]], Array]


def rows() -> fb.LeastSquares:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((SIZES.sum(), DIM))
    return fb.LeastSquares(X, X @ [1.0, -2.0, 0.5] + rng.standard_normal(len(X)), np.repeat(np.arange(N), SIZES))


def mean(arrivals: list[Arrival]) -> Array:
    return np.mean([one.delta for one in arrivals], axis=0)


def fedbuff() -> Step:
    return lambda w, arrivals: w - 0.3 * np.sum([one.delta for one in arrivals], axis=0)


def fedasync() -> Step:
    def step(w: Array, arrivals: list[Arrival]) -> Array:
        (one,) = arrivals
        a = 0.6 * (1 + one.staleness) ** -0.5
        return (1 - a) * w + a * (one.start - one.delta)

    return step


def fedavg() -> Step:
    def step(w: Array, arrivals: list[Arrival]) -> Array:
        share = SIZES[[one.client for one in arrivals]]
        return (
            np.sum([s * (one.start - one.delta) for s, one in zip(share, arrivals, strict=True)], axis=0) / share.sum()
        )

    return step


def fedavgm() -> Step:
    v = np.zeros(DIM)

    def step(w: Array, arrivals: list[Arrival]) -> Array:
        share = SIZES[[one.client for one in arrivals]]
        v[:] = 0.8 * v + np.sum([s * one.delta for s, one in zip(share, arrivals, strict=True)], axis=0) / share.sum()
        return w - 0.5 * v

    return step


def adaptive(second: Callable[[Array, Array], Array], beta: float) -> Callable[[], Step]:
    """Algorithm 2 of Reddi et al.: v starts at epsilon^2."""

    def make() -> Step:
        m, v = np.zeros(DIM), np.full(DIM, 1e-6)

        def step(w: Array, arrivals: list[Arrival]) -> Array:
            g = mean(arrivals)
            m[:] = beta * m + (1 - beta) * g
            v[:] = second(v, g)
            return w - 0.1 * m / (np.sqrt(v) + 1e-3)

        return step

    return make


def delayed_nesterov() -> Step:
    """Algorithm 3 of Liu et al. with N = 3 and c = 0."""
    m, kept, seen = np.zeros(DIM), np.zeros(DIM), [0]

    def step(w: Array, arrivals: list[Arrival]) -> Array:
        g = mean(arrivals)
        kept[:] += g
        seen[0] += 1
        if seen[0] % 3 > 0:
            return w - 0.4 * g / 3
        m[:] = 0.9 * m + kept / 3
        kept[:] = 0
        return w - 0.4 * (0.9 * m + g / 3)

    return step


def diloco() -> Step:
    v = np.zeros(DIM)

    def step(w: Array, arrivals: list[Arrival]) -> Array:
        v[:] = 0.9 * v + mean(arrivals)
        return w - 0.2 * (mean(arrivals) + 0.9 * v)

    return step


def delay_adaptive() -> Step:
    def step(w: Array, arrivals: list[Arrival]) -> Array:
        (one,) = arrivals
        return w - 0.5 * min(1.0, 2 / max(2, one.staleness)) * one.delta

    return step


def asyncfeded() -> Step:
    def step(w: Array, arrivals: list[Arrival]) -> Array:
        (one,) = arrivals
        gamma = np.linalg.norm(w - one.start) / np.linalg.norm(one.delta)
        return w - 0.5 / (gamma + 0.8) * one.delta

    return step


def port() -> Step:
    last = np.zeros(DIM)  # the server's last step, which went down

    def step(w: Array, arrivals: list[Arrival]) -> Array:
        weights = []
        for one in arrivals:
            lengths = np.linalg.norm(one.delta) * np.linalg.norm(last)
            cosine = float(one.delta @ last) / lengths if lengths > 0 else 1.0
            weights.append(SIZES[one.client] * 3.0 / (one.staleness + 3.0) * (1 + cosine) / 2)
        total = np.sum([p * one.delta for p, one in zip(weights, arrivals, strict=True)], axis=0)
        last[:] = 0.7 * total / sum(weights)
        return w - last

    return step


def ca2fl() -> Step:
    h = np.zeros((N, DIM))

    def step(w: Array, arrivals: list[Arrival]) -> Array:
        direction = h.mean(axis=0)
        for one in arrivals:
            direction = direction + (one.delta - h[one.client]) / len(arrivals)
            h[one.client] = one.delta
        return w - 0.7 * direction

    return step


def incremental(wait: bool) -> Callable[[], Step]:
    def make() -> Step:
        h, seen = np.zeros((N, DIM)), set[int]()

        def step(w: Array, arrivals: list[Arrival]) -> Array:
            (one,) = arrivals
            h[one.client] = one.delta
            seen.add(one.client)
            return w - 0.4 * h.mean(axis=0) if len(seen) == N or not wait else w

        return step

    return make


def fedstale() -> Step:
    h = np.zeros((N, DIM))

    def step(w: Array, arrivals: list[Arrival]) -> Array:
        direction = 0.6 * h.mean(axis=0)
        for one in arrivals:
            direction = direction + (one.delta - 0.6 * h[one.client]) / (N * 0.4)
            h[one.client] = one.delta
        return w - 0.5 * direction

    return step


def fadas() -> Step:
    m, v, largest = np.zeros(DIM), np.zeros(DIM), np.zeros(DIM)

    def step(w: Array, arrivals: list[Arrival]) -> Array:
        g, tau = mean(arrivals), max(one.staleness for one in arrivals)
        m[:], v[:] = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        largest[:] = np.maximum(largest, v)
        return w - (0.4 if tau <= 1 else min(0.4, 1 / tau)) * m / (np.sqrt(largest) + 1e-3)

    return step


def fresh(lr: float) -> Callable[[], Step]:
    """Rennala and Ringmaster: the mean of what the schedule let through."""

    def make() -> Step:
        return lambda w, arrivals: w - lr * mean(arrivals)

    return make


TWO = {"buffer_size": 2}
ADAPTIVE = {"buffer_size": 2, "server_lr": 0.1}
CASES: dict[str, tuple[dict[str, Any], Callable[[], Step]]] = {
    "fedbuff": ({"buffer_size": 2, "server_lr": 0.3}, fedbuff),
    "fedasync": ({"mixing": 0.6}, fedasync),
    "fedavg": ({"clients_per_round": 3}, fedavg),
    "fedavgm": ({"clients_per_round": 3, "server_lr": 0.5, "momentum": 0.8}, fedavgm),
    "fedadam": (ADAPTIVE, adaptive(lambda v, g: 0.99 * v + 0.01 * g**2, 0.9)),
    "fedyogi": (ADAPTIVE, adaptive(lambda v, g: v - 0.01 * g**2 * np.sign(v - g**2), 0.9)),
    "fedadagrad": (ADAPTIVE, adaptive(lambda v, g: v + g**2, 0.0)),
    "fadas": ({**TWO, "server_lr": 0.4, "tau_c": 1, "epsilon": 1e-3}, fadas),
    "delayed_nesterov": ({"period": 3, "server_lr": 0.4}, delayed_nesterov),
    "diloco": ({**TWO, "server_lr": 0.2}, diloco),
    "delay_adaptive": ({"concurrency": 2, "server_lr": 0.5}, delay_adaptive),
    "asyncfeded": ({"server_lr": 0.5, "epsilon": 0.8}, asyncfeded),
    "port": ({**TWO, "server_lr": 0.7, "omega": 3.0, "weights": "samples"}, port),
    "ca2fl": ({**TWO, "n_clients": N, "server_lr": 0.7}, ca2fl),
    "ia2sgd": ({"n_clients": N, "server_lr": 0.4}, incremental(wait=False)),
    "ace": ({"n_clients": N, "server_lr": 0.4}, incremental(wait=True)),
    "fedstale": ({**TWO, "n_clients": N, "server_lr": 0.5, "beta": 0.6, "participation": 0.4}, fedstale),
    "rennala": ({**TWO, "server_lr": 0.6}, fresh(0.6)),
    "ringmaster": ({"stop_stale": 4, "server_lr": 0.3}, fresh(0.3)),
}
ELSEWHERE = {  # test_algorithms, test_control_variates and test_fednova
    *("malenia", "ringleader", "mindflayer", "generalized_asyncsgd", "fedfa", "qafel"),
    *("scaffold", "feddyn", "fednova"),
}


def test_none_is_left_out() -> None:
    assert CASES.keys() | ELSEWHERE == fb.algorithms().keys()


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_the_paper_has(name: str) -> None:
    options, make = CASES[name]
    problem, strategy, step = rows(), fb.algorithm(name, **options), make()
    schedule = fb.schedule(DELAYS, strategy, server_steps=STEPS, seed=2)
    models: list[Array] = [np.array([0.5, -0.5, 1.0])]
    used = schedule.status == fb.Status.USED
    for t in range(STEPS):
        arrivals = []
        for row in np.flatnonzero(used & (schedule.step == t)):
            client, version = int(schedule.client[row]), int(schedule.version[row])
            delta = problem.delta(models[version], client, LOCAL, task=int(schedule.task[row]), seed=0)
            arrivals.append(Arrival(client, t - version, models[version], delta))
        models.append(step(models[-1], arrivals))
    got = fb.replay(problem, schedule, LOCAL, strategy=strategy, w0=models[0]).w
    np.testing.assert_allclose(got, models[-1], rtol=0, atol=1e-10)
    if name not in ("fedavg", "fedavgm", "rennala"):
        assert schedule.staleness[used].max() > 1


def test_ca2fl_with_all_clients_in_every_buffer_is_fedbuff_and_fedavg() -> None:
    """The rows cancel: with staleness it is FedBuff, and where all start together FedAvg of all clients."""
    problem, work = rows(), {"server_lr": 0.5}
    corrected = fb.FedBuff(N, 0.5, norm="arrivals", n_clients=N, table=fb.ClientTable(), distinct_clients=True)
    plain = fb.FedBuff(N, 0.5, norm="arrivals", distinct_clients=True)
    schedule = fb.schedule(DELAYS, plain, server_steps=STEPS, seed=2)
    assert schedule == fb.schedule(DELAYS, corrected, server_steps=STEPS, seed=2)
    assert schedule.staleness[schedule.status == fb.Status.USED].max() > 0
    found = [fb.replay(problem, schedule, LOCAL, strategy=rule).w for rule in (corrected, plain)]
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-12)

    ca2fl = fb.algorithm("ca2fl", buffer_size=N, n_clients=N, **work)
    together = fb.FedBuff(N, 0.5, norm="arrivals", n_clients=N, table=ca2fl.rule.table, refill="step")
    average = fb.FedAvg(clients_per_round=N, weights="equal", **work)
    found = [
        fb.replay(problem, fb.schedule(DELAYS, rule, server_steps=STEPS, seed=2), LOCAL, strategy=rule).w
        for rule in (together, average)
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-12)
