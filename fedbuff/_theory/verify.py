"""`verify`: the theorem's bound beside the mean that runs measure."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .. import backends
from .._base.checks import count
from .._base.student_t import student
from .._base.threads import map_in_threads
from .._problems.base import Problem
from .._problems.constants import Tag, Value
from .._problems.local import LocalSGD
from .._problems.quadratic import Quadratic
from .._replay.history import ExitReason
from .._replay.replay import Replay
from .._rule.strategies import FedBuff, rule_of
from .._schedule.schedule import Schedule
from .._schedule.uniform import uniform_arrivals
from .plan import Arrivals, Plan, make_plan, require_built_in, start_of
from .theorem import (
    Bound,
    Heterogeneity,
    min_server_steps,
    require_inside,
)

Batch = int | Sequence[int] | NDArray[np.integer[Any]] | None
_CONFIDENCE = 0.99
_LEAST_POINTS = 2000  # models at which the gradient is evaluated, for problems where evaluating all costs too much


@dataclass(frozen=True, slots=True)
class Verification:
    """The bound beside the measured mean over t of |grad f(w^t)|^2: its mean over seeds, and a 99 % interval.

    A run that diverged counts as infinite.
    """

    plan: Plan
    per_seed: tuple[float, ...]
    measured: float
    low: float
    high: float
    seconds: float = field(compare=False)

    @property
    def bound(self) -> Bound:
        return self.plan.bound

    @property
    def violated(self) -> bool:
        """Whether even the lower limit of the interval is above the bound."""
        return self.low > self.bound.total

    @property
    def looseness(self) -> float:
        """The bound divided by what was measured."""
        return self.bound.total / self.measured if self.measured > 0 else math.inf


def verify(
    problem: Problem,
    *,
    Q: int = 1,
    K: int | None = None,
    tau: int | None = None,
    b: Batch = 1,
    T: int | None = None,
    seeds: int | Sequence[int] = 8,
    w0: Any = None,
    staleness: Literal["uniform", "max"] = "uniform",
    heterogeneity: Heterogeneity = "average",
    schedule: Callable[[int], Schedule] | None = None,
    strategy: Any = None,
    allow_outside: bool = False,
    allow_estimates: bool = False,
    threads: int | None = None,
) -> Verification:
    """Trains with the theorem's step sizes, once for every seed, and puts the measured left-hand side beside the bound.

    >>> import numpy as np, fedbuff as fb
    >>> problem = fb.Quadratic(np.array([[0.0], [2.0]]), curvature=0.1, noise_variance=1.0)
    >>> found = fb.theory.verify(problem, Q=1, K=2, tau=1, b=4)
    >>> found.plan.T, found.violated, found.low <= found.measured <= found.high < found.bound.total
    (1024, False, True)

    Every seed has its own arrivals, batches and noise. The mean is over every t = 0..T-1 for a `Quadratic`, and over at
    least 2,000 evenly spaced t from a random offset (or all) for other problems; all inside the engine.

    T          server steps; None: as many as the theorem demands
    b          batch size; None: exact local gradients
    seeds      how many (from 0 on), or which
    staleness  that of `uniform_arrivals`
    schedule   a function of the seed, in the place of uniform_arrivals(n, K, tau, T): outside the theorem
    strategy   in the place of FedBuff(K): outside the theorem
    threads    runs at once; each works on one thread

    Infinite constants are refused; so are estimates, without allow_estimates, and what `plan` calls outside, without
    allow_outside.
    """
    began = time.perf_counter()
    require_built_in(problem)
    local = LocalSGD(steps=Q, lr=1.0, batch_size=b)
    start = start_of(problem, w0)
    chosen = list(range(count("seeds", seeds, low=2))) if isinstance(seeds, int) else [*seeds]
    if len(chosen) < 2:
        raise ValueError("seeds: expected at least two, for an interval")
    extra = () if strategy is None else _other_rule(strategy)
    make = schedule
    if make is None:
        if K is None or tau is None:
            raise TypeError("K, tau: expected both, or a schedule")
        size, most = count("K", K), count("tau", tau, low=0)
        least = min_server_steps(problem.constants().L.value, Q, most)
        steps = least if T is None else count("T", T)

        def make(seed: int) -> Schedule:
            return uniform_arrivals(problem.n_clients, size, most, steps, seed, staleness)

        arrivals = Arrivals(size, most, steps)
    else:
        if K is not None or tau is not None or T is not None:
            raise TypeError("K, tau, T: they are the schedule's, leave them out")
        every = [Arrivals.of(make(seed)) for seed in chosen]
        if len({one.T for one in every}) > 1:
            raise ValueError("schedule: expected schedules of as many server steps each, got different numbers")
        arrivals = max(every, key=lambda one: one.tau)
    made = make_plan(problem, local, start, heterogeneity, arrivals, extra)
    _require_known(made, allow_estimates)
    require_inside(made.outside, allow_outside)

    def one(seed: int) -> float:
        return _mean_square(problem, make(seed), made.local, strategy or made.strategy, start, seed)

    workers = backends.default_threads() if threads is None else count("threads", threads)
    values = map_in_threads(one, chosen, workers)
    mean, low, high = _interval(np.array(values))
    return Verification(made, tuple(values), mean, low, high, time.perf_counter() - began)


def _mean_square(
    problem: Problem, schedule: Schedule, local: LocalSGD, strategy: Any, w0: NDArray[np.floating], seed: int
) -> float:
    """The mean of |grad f(w^t)|^2 over the t of one run; infinite where it diverged."""
    every = 1 if isinstance(problem, Quadratic) else max(1, schedule.n_steps // _LEAST_POINTS)
    offset = int(np.random.default_rng(seed).integers(every))
    replay = Replay(problem, schedule, local, strategy=strategy, w0=w0, seed=seed, threads=1)
    replay.record_gradients(every, offset)
    return math.inf if replay.run() == ExitReason.DIVERGED else float(replay.gradients.mean())


def _interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """The mean, and the limits of its 99 % interval by Student's t."""
    if not np.isfinite(values).all():
        return math.inf, math.inf, math.inf
    mean = float(values.mean())
    half = student(_CONFIDENCE, len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean, max(0.0, mean - half), mean + half


def _other_rule(strategy: Any) -> tuple[str, ...]:
    rule = rule_of(strategy)
    plain = rule == FedBuff(rule.buffer_size).rule
    return () if plain else ("the server's rule is not w - (1 / K) sum of the deltas",)


def _require_known(made: Plan, allow_estimates: bool) -> None:
    used: dict[str, Value] = {"L": made.constants.L, "f*": made.constants.f_star}
    if made.b != math.inf:
        used["sigma^2"] = made.constants.sigma2
    used["gamma^2"] = made.constants.gamma2 if made.heterogeneity == "average" else made.constants.gamma2_max
    infinite = [name for name, value in used.items() if value.tag == Tag.INFINITE]
    if infinite:
        raise ValueError(f"problem: its {', '.join(infinite)} is infinite, there is no bound to verify")
    estimated = [name for name, value in used.items() if value.tag == Tag.ESTIMATE]
    if estimated and not allow_estimates:
        raise ValueError(
            f"problem: its {', '.join(estimated)} is only an estimate, and so would be the bound; "
            "allow_estimates=True goes on all the same"
        )
