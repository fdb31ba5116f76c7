"""`plan`: what the theorem says of a problem, a schedule and local steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import as_vector
from .._base.checks import choice
from .._problems.base import Problem
from .._problems.constants import Constants
from .._problems.local import LocalSGD
from .._rule.strategies import FedBuff
from .._schedule.schedule import Schedule
from .._schedule.uniform import UNIFORM_ARRIVALS
from .theorem import (
    Bound,
    Condition,
    Heterogeneity,
    conditions,
    min_server_steps,
    require_inside,
    step_sizes,
    terms,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the theorem says of a problem, a schedule and local steps.

    `local` and `strategy` have the theorem's step sizes; `outside` says why it may not hold, empty where it does.
    """

    constants: Constants
    L: float
    n: int
    K: int
    Q: int
    b: float
    tau: int
    T: int
    min_server_steps: int
    f_gap: float
    bound: Bound
    conditions: dict[str, Condition]
    local: LocalSGD
    strategy: FedBuff
    heterogeneity: Heterogeneity

    @property
    def eta(self) -> float:
        return float(self.local.lr)  # type: ignore[arg-type]

    @property
    def beta(self) -> float:
        return self.strategy.rule.lr

    @property
    def outside(self) -> tuple[str, ...]:
        return self.bound.outside


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What the theorem asks of a schedule."""

    K: int
    tau: int
    T: int
    reasons: tuple[str, ...] = ()

    @staticmethod
    def of(schedule: Schedule) -> Arrivals:
        about = schedule.description
        reasons = []
        if about.get("source", {}).get("kind") != UNIFORM_ARRIVALS:
            reasons.append("the arrivals are not known to be independent and uniform over the clients")
        size = schedule.buffer_size
        if size == 0:
            size = int(np.bincount(schedule.step[schedule.step >= 0]).max(initial=1))  # FedAvg's rounds
        return Arrivals(size, schedule.tau, schedule.n_steps, tuple(reasons))


def plan(
    problem: Problem,
    schedule: Schedule,
    local: LocalSGD,
    *,
    w0: Any = None,
    heterogeneity: Heterogeneity = "average",
    allow_outside: bool = False,
) -> Plan:
    """Step sizes, demanded server steps, conditions and bound, from `problem.constants()`, the schedule's tau, steps
    and buffer, and the smallest batch. The step size of `local` is not looked at: the plan's own has the theorem's.

    >>> import numpy as np, fedbuff as fb
    >>> problem = fb.Quadratic(np.array([[0.0], [2.0]]), curvature=0.5, noise_variance=1.0)
    >>> schedule = fb.uniform_arrivals(n_clients=2, buffer_size=4, max_staleness=1, server_steps=6000)
    >>> made = fb.theory.plan(problem, schedule, fb.LocalSGD(steps=2, lr=1.0, batch_size=8))
    >>> made.min_server_steps, made.beta, round(made.bound.total, 4)
    (5760, 0.25, 0.173)

    Raises `OutsideTheorem` where T is below the demanded one, where the arrivals are not known to be independent and
    uniform (only `uniform_arrivals` makes such a schedule), where clients weigh differently, where the local steps are
    not plain, or where a constant is infinite; with allow_outside=True these are in `outside` instead.
    """
    require_built_in(problem)
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule: expected a Schedule, got {type(schedule).__name__}")
    if not isinstance(local, LocalSGD):
        raise TypeError(f"local: expected fedbuff.LocalSGD, got {type(local).__name__}")
    if schedule.n_clients != problem.n_clients:
        raise ValueError(f"schedule: expected the problem's {problem.n_clients} clients, got {schedule.n_clients}")
    made = make_plan(problem, local, start_of(problem, w0), heterogeneity, Arrivals.of(schedule))
    require_inside(made.outside, allow_outside)
    return made


def make_plan(
    problem: Problem,
    local: LocalSGD,
    w0: NDArray[np.floating],
    heterogeneity: Heterogeneity,
    arrivals: Arrivals,
    extra: tuple[str, ...] = (),
) -> Plan:
    choice("heterogeneity", heterogeneity, get_args(Heterogeneity))
    known = problem.constants()
    gamma2 = known.gamma2 if heterogeneity == "average" else known.gamma2_max
    batches = local.batches(problem.n_clients)
    b = math.inf if batches.max() == 0 else float(batches.min())
    variance = 0.0 if b == math.inf else known.sigma2.value / b
    steps = local.steps_of(problem.n_samples)
    L, Q, n = known.L.value, int(steps.max()), problem.n_clients
    if L <= 0:
        raise ValueError("problem: its L is 0, its gradients are constant; there is nothing to verify")
    demanded = min_server_steps(L, Q, arrivals.tau)
    reasons = [*arrivals.reasons, *extra]
    if demanded > arrivals.T:
        reasons.append(f"T is {arrivals.T}, and the theorem demands at least {demanded}")
    if not np.allclose(problem._spec.client_weight, 1.0 / n, rtol=1e-12, atol=0.0):
        reasons.append("the clients do not weigh the same in f")
    if (steps != Q).any():
        reasons.append(f"clients make from {steps.min()} to {Q} local steps")
    if local.epochs is not None:
        reasons.append("local goes through rows without replacement")
    optional = ("lr_by_version", "lr_by_step", "compress")
    reasons += [f"local has {name}" for name in optional if getattr(local, name) is not None]
    if local.method != "sgd":
        reasons.append(f"local does what {local.method} does")
    reasons += [f"local has {name}" for name in ("momentum", "weight_decay", "prox") if getattr(local, name) != 0]
    for name, value in (("sigma^2 / b", variance), ("gamma^2", gamma2.value)):
        if not math.isfinite(value):
            reasons.append(f"{name} is infinite")
    f_gap = max(0.0, problem.loss(w0) - known.f_star.value)
    eta, beta = step_sizes(L, arrivals.T, Q, arrivals.K)
    return Plan(
        constants=known,
        L=L,
        n=n,
        K=arrivals.K,
        Q=Q,
        b=b,
        tau=arrivals.tau,
        T=arrivals.T,
        min_server_steps=demanded,
        f_gap=f_gap,
        bound=terms(
            L, arrivals.T, Q, arrivals.tau, n, f_gap, variance, gamma2.value, heterogeneity, tuple(reasons)
        ),
        conditions=conditions(L, arrivals.T, Q, arrivals.tau),
        local=LocalSGD(
            steps=Q, lr=eta, batch_size=local.batch_size, momentum=local.momentum, weight_decay=local.weight_decay,
            prox=local.prox,
        ),
        strategy=FedBuff(arrivals.K, server_lr=beta),
        heterogeneity=heterogeneity,
    )  # fmt: skip


def require_built_in(problem: object) -> None:
    if not isinstance(problem, Problem):
        raise TypeError(
            f"problem: expected a built-in problem, whose constants are known, got {type(problem).__name__}"
        )


def start_of(problem: Problem, w0: Any) -> NDArray[np.floating]:
    return problem.init() if w0 is None else as_vector("w0", w0, problem.dim, problem.dtype)
