"""Server optimizers and step sizes against plain loops in float64, written from the papers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_server import every_implementation

import fedbuff as fb

Array = NDArray[np.float64]
Step = Callable[[Array, Array, int, float], Array]  # (w, direction, step from 0, lr) to the next model


def nesterov() -> Step:
    v = np.zeros(4)

    def step(w: Array, g: Array, t: int, lr: float) -> Array:
        v[:] = 0.8 * v + g
        return w - lr * (g + 0.8 * v)

    return step


def delayed_nesterov(period: int, c: float) -> Callable[[], Step]:
    def make() -> Step:
        m, pending = np.zeros(4), np.zeros(4)

        def step(w: Array, g: Array, t: int, lr: float) -> Array:
            pending[:] += g
            if (t + 1) % period == 0:
                m[:] = 0.9 * m + pending / period
                pending[:] = 0
                return w - lr * ((1 - c * period + c) * 0.9 * m + g / period)
            return w - lr * (c * 0.9 * m + g / period)

        return step

    return make


def adaptive(second_moment: Callable[[Array, Array], Array], initial: float, largest: bool) -> Callable[[], Step]:
    def make() -> Step:
        m, v, most = np.zeros(4), np.full(4, initial), np.full(4, initial)

        def step(w: Array, g: Array, t: int, lr: float) -> Array:
            m[:] = 0.9 * m + 0.1 * g
            v[:] = second_moment(v, g)
            most[:] = np.maximum(most, v)
            return w - lr * m / (np.sqrt(most if largest else v) + 1e-3)

        return step

    return make


def yogi(v: Array, g: Array) -> Array:
    return v - 0.01 * g**2 * np.sign(v - g**2)


def mean(v: Array, g: Array) -> Array:
    return 0.99 * v + 0.01 * g**2


OPTIMIZERS: dict[str, tuple[Any, Callable[[], Step]]] = {
    "nesterov": (fb.Nesterov(0.8), nesterov),
    "delayed_nesterov": (fb.DelayedNesterov(3), delayed_nesterov(3, 0.0)),
    "delayed_nesterov active": (fb.DelayedNesterov(4, 0.9, 0.2), delayed_nesterov(4, 0.2)),
    "fedadam": (fb.Adam((0.9, 0.99), 1e-3, bias_correction=False, initial=1e-6), adaptive(mean, 1e-6, False)),
    "fedadagrad": (fb.Adagrad(0.9, 1e-3, 1e-6), adaptive(lambda v, g: v + g**2, 1e-6, False)),
    "fedyogi": (fb.Yogi((0.9, 0.99), 1e-3, 1e-6), adaptive(yogi, 1e-6, False)),
    "amsgrad": (fb.AMSGrad((0.9, 0.99), 1e-3), adaptive(mean, 0.0, True)),
}
RATES: dict[str, tuple[Any, Callable[[int], float]]] = {
    "constant": (0.1, lambda t: 0.1),
    "warm up": (fb.LearningRate(0.1, warm_up=5), lambda t: 0.1 * min(1, (t + 1) / 5)),
    "step": (fb.LearningRate(0.1, "step", steps=4, factor=0.3), lambda t: 0.1 * 0.3 ** (t // 4)),
    "cosine": (
        fb.LearningRate(0.1, "cosine", steps=12, floor=0.1, warm_up=2),
        lambda t: 0.1 * min(1, (t + 1) / 2) * (0.1 + 0.45 * (1 + math.cos(math.pi * min(max(t - 2, 0) / 12, 1)))),
    ),
    "inverse_sqrt": (fb.LearningRate(0.1, "inverse_sqrt"), lambda t: 0.1 / math.sqrt(1 + t)),
}


def feed(backend: Any, strategy: Any, w0: Array, late: bool = False) -> tuple[Any, list[tuple[Array, int]]]:
    """A server that took 40 deltas in, and the direction and largest staleness of each of its steps."""
    rng = np.random.default_rng(1)
    server = backend.Server(w0, strategy)
    due = [server.download()[0] for _ in range(6)]
    steps, buffer, stale = [], np.zeros(4), 0
    for k in range(40):
        version = due.pop(0 if not late or k % 7 else int(rng.integers(6)))
        delta = rng.standard_normal(4)
        buffer, stale = buffer + delta, max(stale, server.version - version)
        if server.upload(delta, version):
            steps.append((buffer / strategy.buffer_size, stale))
            buffer, stale = np.zeros(4), 0
        due.append(server.download()[0])
    return server, steps


@every_implementation
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(backend: Any, name: str, rate: str) -> None:
    optimizer, make = OPTIMIZERS[name]
    lr, lr_of = RATES[rate]
    strategy = fb.FedBuff(2, server_lr=lr, norm="arrivals", optimizer=optimizer)
    w = np.arange(4.0)
    server, steps = feed(backend, strategy, w)
    step = make()
    for t, (direction, _) in enumerate(steps):
        w = step(w, direction, t, lr_of(t))
    assert len(steps) == 20
    np.testing.assert_allclose(server.w, w, rtol=0, atol=1e-10)


@every_implementation
@pytest.mark.parametrize("delay_lr", ["min", "divide"])
def test_a_step_size_that_follows_the_largest_staleness(backend: Any, delay_lr: Any) -> None:
    strategy = fb.FedBuff(2, server_lr=0.3, norm="arrivals", tau_c=1, delay_lr=delay_lr)
    w = np.arange(4.0)
    server, steps = feed(backend, strategy, w, late=True)
    for direction, tau in steps:
        lr = 0.3 if tau <= 1 else min(0.3, 1 / tau) if delay_lr == "min" else 0.3 / tau
        w = w - lr * direction
    assert {tau for _, tau in steps} >= {1, 2, 3}
    np.testing.assert_allclose(server.w, w, rtol=0, atol=1e-10)


@every_implementation
def test_a_delayed_step_size_is_in_the_file(backend: Any, tmp_path: Any) -> None:
    """Of a buffer that is half full: its largest staleness, the moments and the schedule of the step size."""
    lr = fb.LearningRate(0.5, "cosine", steps=30, warm_up=3)
    server, _ = feed(backend, fb.FedBuff(3, server_lr=lr, optimizer=fb.AMSGrad(), tau_c=1), np.zeros(4), late=True)
    assert server.fill == 1
    server.save(tmp_path / "server.npz")
    again = backend.Server.load(tmp_path / "server.npz")
    for one in (server, again):
        version = one.download()[0]
        one.upload(np.ones(4), version), one.upload(np.arange(4.0), version - 1)
    assert server.version == again.version == 14
    np.testing.assert_array_equal(again.w, server.w, strict=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fb.DelayedNesterov(0), r"^period: "),
        (lambda: fb.DelayedNesterov(4, activation=0.3), r"^activation: "),
        (lambda: fb.Adagrad(beta=1.0), r"^beta: "),
        (lambda: fb.Adam(initial=1e-6), r"^initial: bias correction"),
        (lambda: fb.Yogi(initial=-1.0), r"^initial: "),
        (lambda: fb.LearningRate(0.1, "linear"), r"^decay: "),  # type: ignore[arg-type]
        (lambda: fb.LearningRate(0.1, floor=2.0), r"^floor: "),
        (lambda: fb.FedBuff(2, tau_c=-1), r"^tau_c: "),
        (lambda: fb.FedBuff(2, delay_lr="half"), r"^delay_lr: "),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
