"""Work so small that it takes no time, but for compiling: what `fedbuff warmup` does where Numba runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from .._delays.distributions import Exponential
from .._delays.model import DelayModel
from .._problems.base import Problem
from .._problems.linear import Logistic
from .._problems.local import LocalSGD
from .._problems.mlp import MLP
from .._problems.network import Network
from .._problems.quadratic import Quadratic
from .._replay.loop import replay
from .._rule.strategies import FedBuff
from .._schedule.resolve import schedule
from .._schedule.schedule import Schedule
from ..layers import Dense, Flatten

_N = 4  # clients


def warm_up() -> list[tuple[str, Callable[[], object]]]:
    """What is compiled, and the work that compiles it."""
    works: list[tuple[str, Callable[[], object]]] = [
        ("schedules", functools.partial(_schedule, FedBuff(2))),
        (
            "schedules with windows, queues, stops and other options",
            functools.partial(_schedule, FedBuff(2, max_wait=1.0)),
        ),
    ]
    for dtype in ("float32", "float64"):
        for name, make in _PROBLEMS.items():
            works.append((f"{name}, {dtype}", functools.partial(_replay, make, dtype)))
    return works


def _schedule(strategy: FedBuff) -> Schedule:
    delays = DelayModel(n_clients=_N, compute=Exponential(1.0))
    return schedule(delays, strategy, concurrency=2, server_steps=3, seed=0)


def _rows(dtype: str) -> tuple[Any, Any, Any]:
    return np.eye(2 * _N, 3, dtype=dtype), np.arange(2 * _N) % 2, np.repeat(np.arange(_N), 2)


def _sparse(dtype: str) -> Problem:
    x, y, clients = _rows(dtype)
    rows = SimpleNamespace(
        data=np.ones(len(y), dtype), indices=np.zeros(len(y), np.int32), indptr=np.arange(len(y) + 1), shape=x.shape
    )
    return Logistic(rows, y, clients)


def _network(dtype: str) -> Problem:
    rows = np.ones((2 * _N, 1, 3, 3), dtype)
    return Network(rows, np.arange(2 * _N) % 2, np.repeat(np.arange(_N), 2), layers=[Flatten(), Dense(2)])


_PROBLEMS: dict[str, Callable[[str], Problem]] = {
    "dense rows": lambda dtype: MLP(*_rows(dtype), hidden=(2,)),
    "sparse rows": _sparse,
    "networks": _network,
    "quadratics": lambda dtype: Quadratic(np.zeros((_N, 3), dtype)),
}


def _replay(make: Callable[[str], Problem], dtype: str) -> None:
    problem, strategy = make(dtype), FedBuff(2)
    made = _schedule(strategy)
    metrics = ("loss", "grad_norm_sq") if isinstance(problem, Quadratic) else ("loss", "grad_norm_sq", "accuracy")
    for threads in (1, 2):
        local = LocalSGD(steps=1, lr=0.1, batch_size=1)
        replay(problem, made, local, strategy=strategy, eval_every=1, metrics=metrics, threads=threads, progress=False)
