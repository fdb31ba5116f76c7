"""Every published rule against its formula, written out: a buffer of three updates that are 0, 1 and 2 versions old."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedbuff as fb

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Update:
    delta: Array  # model downloaded minus model after the local steps
    start: Array  # the model downloaded
    tau: int
    n: float

    @property
    def end(self) -> Array:
        return self.start - self.delta


Formula = Callable[[Array, Sequence[Update]], Array]


def total(parts: Any) -> Any:
    return sum(parts, np.zeros(4))


def paper(w: Array, u: Sequence[Update]) -> Array:
    return w - (u[0].delta + u[1].delta + u[2].delta) / 3


def nguyen(w: Array, u: Sequence[Update]) -> Array:
    return w - 0.5 * total(x.delta / math.sqrt(1 + x.tau) for x in u) / 3


def flsim(w: Array, u: Sequence[Update]) -> Array:
    return w - 0.001 * total(x.delta for x in u)


def flsim_polynomial(w: Array, u: Sequence[Update]) -> Array:
    # example weights n / average, staleness ((1 + average) / (1 + tau)) ** a
    return w - 0.1 * total((2 / (1 + x.tau)) ** 0.7 * (x.n / 20) * x.delta for x in u)


def flame(w: Array, u: Sequence[Update]) -> Array:
    return w - total(x.delta / (1 + x.tau) ** 0.5 for x in u) / 3


def federatedscope(w: Array, u: Sequence[Update]) -> Array:
    samples = u[0].n + u[1].n + u[2].n
    return w - total(x.n / samples * x.delta / (1 + x.tau) for x in u)


def nvflare(w: Array, u: Sequence[Update]) -> Array:
    return w - total(x.delta for x in u) / 3


def nvflare_staleness(w: Array, u: Sequence[Update]) -> Array:
    return w - 0.01 * total(x.delta / (1 + math.sqrt(x.tau + 1)) for x in u) / 3


def appfl(w: Array, u: Sequence[Update]) -> Array:
    return w + total(0.9 * (1 / 8) * (x.end - w) for x in u)


def appfl_gradient(w: Array, u: Sequence[Update]) -> Array:
    return w - total(0.6 * (x.tau + 1) ** -0.5 * (x.n / 400) * x.delta for x in u)


def fedscale(w: Array, u: Sequence[Update]) -> Array:
    s = [1 / math.sqrt(1 + x.tau) for x in u]
    return total(a * x.end for a, x in zip(s, u, strict=True)) / sum(s)


def plato(w: Array, u: Sequence[Update]) -> Array:
    return w + total(x.end - w for x in u) / 3


def flower_pr(w: Array, u: Sequence[Update]) -> Array:
    return w + total(x.n * (x.end - w) for x in u) / sum(x.n for x in u)


CASES: dict[str, tuple[fb.FedBuff, Formula]] = {
    "paper": (fb.FedBuff.preset("paper", buffer_size=3), paper),
    "the default": (fb.FedBuff(buffer_size=3), paper),
    "nguyen": (fb.FedBuff.preset("nguyen", buffer_size=3, server_lr=0.5), nguyen),
    "flsim": (fb.FedBuff.preset("flsim", buffer_size=3), flsim),
    "flsim, polynomial": (
        fb.FedBuff.preset(
            "flsim",
            buffer_size=3,
            server_lr=0.1,
            weights="samples",
            average_samples=20,
            staleness=fb.staleness.Polynomial(0.7, average=1),
        ),
        flsim_polynomial,
    ),
    "flame": (fb.FedBuff.preset("flame", buffer_size=3), flame),
    "federatedscope": (fb.FedBuff.preset("federatedscope", buffer_size=3), federatedscope),
    "nvflare": (fb.FedBuff.preset("nvflare", buffer_size=3), nvflare),
    "nvflare, staleness on": (
        fb.FedBuff.preset("nvflare", buffer_size=3, server_lr=0.01, staleness=fb.staleness.InverseOnePlusSqrt()),
        nvflare_staleness,
    ),
    "appfl": (fb.FedBuff.preset("appfl", buffer_size=3, n_clients=8), appfl),
    "appfl, gradients": (
        fb.FedBuff.preset(
            "appfl",
            buffer_size=3,
            alpha=0.6,
            base="start",
            weights="samples",
            total_samples=400,
            staleness=fb.staleness.Polynomial(0.5),
        ),
        appfl_gradient,
    ),
    "fedscale": (fb.FedBuff.preset("fedscale", buffer_size=3), fedscale),
    "plato": (fb.FedBuff.preset("plato", buffer_size=3), plato),
    "flower_pr": (fb.FedBuff.preset("flower_pr", buffer_size=3), flower_pr),
}


def test_every_preset_has_a_formula() -> None:
    assert {name.split(",")[0] for name in CASES} - {"the default"} == set(fb.FedBuff.presets())


@pytest.mark.parametrize("name", CASES)
def test_preset(name: str) -> None:
    strategy, formula = CASES[name]
    rng = np.random.default_rng(7)
    models: list[Array] = [rng.standard_normal(4)]
    server = fb.Server(models[0], strategy)
    for _ in range(9):
        server.download()
    # Two full buffers of fresh updates move the model; the third holds one update of each age.
    for step, ages in enumerate([(0, 0, 0), (0, 0, 0), (1, 0, 2)]):
        updates = []
        for age in ages:
            version = step - age
            update = Update(rng.standard_normal(4), models[version], age, float(rng.integers(1, 60)))
            stepped = server.upload(update.delta, version, n_samples=update.n)
            updates.append(update)
        assert stepped
        models.append(formula(models[-1], updates))
        np.testing.assert_array_max_ulp(server.w + 8.0, models[-1] + 8.0, maxulp=4)
        for _ in range(9):
            server.download()


@pytest.mark.parametrize(
    ("function", "s"),
    [
        (fb.staleness.Constant(), lambda tau: 1.0),
        (fb.staleness.Polynomial(0.5), lambda tau: (1 + tau) ** -0.5),
        (fb.staleness.Hinge(10.0, 1.0), lambda tau: 1.0 if tau <= 1 else 1 / (10 * (tau - 1) + 1)),
    ],
)
def test_fedasync(function: Any, s: Callable[[int], float]) -> None:
    rng = np.random.default_rng(8)
    models: list[Array] = [rng.standard_normal(4)]
    server = fb.Server(models[0], fb.FedAsync(mixing=0.6, staleness=function))
    for step, age in enumerate([0, 1, 0, 3]):
        for _ in range(4):
            server.download()
        delta = rng.standard_normal(4)
        assert server.upload(delta, step - age)
        a = 0.6 * s(age)
        models.append((1 - a) * models[-1] + a * (models[step - age] - delta))
        np.testing.assert_array_max_ulp(server.w + 8.0, models[-1] + 8.0, maxulp=4)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: fb.FedBuff.preset("fedbuf"), ValueError, "preset: expected one of paper, nguyen, "),
        (lambda: fb.FedBuff.preset("appfl", buffer_size=3), ValueError, "n_clients: "),
        (
            lambda: fb.FedBuff.preset("appfl", buffer_size=3, n_clients=2, weights="samples"),
            ValueError,
            "total_samples: ",
        ),
        (lambda: fb.FedBuff.preset("flsim", average_samples=0), ValueError, "average_samples: "),
        (lambda: fb.FedBuff(0), ValueError, "buffer_size: "),
        (lambda: fb.FedBuff(2.0), TypeError, "buffer_size: "),  # type: ignore[arg-type]
        (lambda: fb.FedBuff(2, server_lr=0), ValueError, "server_lr: "),
        (lambda: fb.FedBuff(2, server_lr=math.nan), ValueError, "server_lr: "),
        (lambda: fb.FedBuff(2, base="begin"), ValueError, "base: expected one of start, current, got 'begin'"),  # type: ignore[arg-type]
        (lambda: fb.FedBuff(2, norm="two"), ValueError, "norm: "),  # type: ignore[arg-type]
        (lambda: fb.FedBuff(2, norm="clients"), ValueError, "n_clients: "),
        (lambda: fb.FedBuff(2, weights="rows"), ValueError, "weights: "),  # type: ignore[arg-type]
        (lambda: fb.FedBuff(2, staleness=0.5), TypeError, "staleness: "),  # type: ignore[arg-type]
        (lambda: fb.FedBuff(2, optimizer="sgd"), TypeError, "optimizer: "),  # type: ignore[arg-type]
        (lambda: fb.FedBuff(2, max_staleness=-1), ValueError, "max_staleness: "),
        (lambda: fb.FedBuff(2, max_wait=0), ValueError, "max_wait: "),
        (lambda: fb.SGD(momentum=-1), ValueError, "momentum: "),
        (lambda: fb.Adam(betas=(0.9, 1.0)), ValueError, "betas: "),
        (lambda: fb.Adam(epsilon=0), ValueError, "epsilon: "),
        (lambda: fb.FedAsync(mixing=0), ValueError, "mixing: "),
        (lambda: fb.FedAsync(mixing=1.5), ValueError, "mixing: "),
        (lambda: fb.FedAvg(), ValueError, "clients_per_round, rate: "),
        (lambda: fb.FedAvg(rate=0.0), ValueError, "rate: "),
        (lambda: fb.FedAvg(clients_per_round=3, over_selection=-0.1), ValueError, "over_selection: "),
    ],
)
def test_what_strategies_refuse(call: Callable[[], object], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value).startswith(text)
