"""The theorem beside what happens: a plan for a problem and a schedule, its bound measured, and rates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from .. import backends
from .._base.arrays import as_vector
from .._base.checks import choice, count
from .._base.student_t import student
from .._base.threads import map_in_threads
from .._problems.base import Problem
from .._problems.constants import Constants, Tag, Value
from .._problems.local import LocalSGD
from .._problems.quadratic import Quadratic
from .._replay.history import ExitReason
from .._replay.replay import Replay
from .._rule.strategies import FedBuff, rule_of
from .._schedule.schedule import Schedule
from .._schedule.uniform import UNIFORM_ARRIVALS, uniform_arrivals
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

__all__ = ["Plan", "Rate", "Verification", "plan", "rate", "verify"]

Batch = int | Sequence[int] | NDArray[np.integer[Any]] | None
Over = Literal["T", "tau", "Q", "K", "b", "n", "heterogeneity"]

_CONFIDENCE = 0.99
_LEAST_POINTS = 2000  # models at which the gradient is evaluated, where every one would cost too much


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
        return float(self.local.lr)

    @property
    def beta(self) -> float:
        assert self.strategy.server_lr is not None
        return self.strategy.server_lr

    @property
    def outside(self) -> tuple[str, ...]:
        return self.bound.outside


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
    _built_in(problem)
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule: expected a Schedule, got {type(schedule).__name__}")
    if not isinstance(local, LocalSGD):
        raise TypeError(f"local: expected fedbuff.LocalSGD, got {type(local).__name__}")
    if schedule.n_clients != problem.n_clients:
        raise ValueError(f"schedule: it has {schedule.n_clients} clients, the problem {problem.n_clients}")
    made = _plan(problem, local, _start(problem, w0), heterogeneity, _Arrivals.of(schedule))
    require_inside(made.outside, allow_outside)
    return made


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """What the theorem asks of a schedule."""

    K: int
    tau: int
    T: int
    reasons: tuple[str, ...] = ()

    @staticmethod
    def of(schedule: Schedule) -> _Arrivals:
        about = schedule.description
        reasons = []
        if about.get("source", {}).get("kind") != UNIFORM_ARRIVALS:
            reasons.append("the arrivals are not known to be independent and uniform over the clients")
        size = schedule.buffer_size
        if size == 0:
            size = int(np.bincount(schedule.step[schedule.step >= 0]).max(initial=1))  # FedAvg's rounds
        return _Arrivals(size, schedule.tau, schedule.n_steps, tuple(reasons))


def _plan(
    problem: Problem,
    local: LocalSGD,
    w0: NDArray[np.floating],
    heterogeneity: Heterogeneity,
    arrivals: _Arrivals,
    extra: tuple[str, ...] = (),
) -> Plan:
    choice("heterogeneity", heterogeneity, get_args(Heterogeneity))
    known = problem.constants()
    gamma2 = known.gamma2 if heterogeneity == "average" else known.gamma2_max
    batches = local.batches(problem.n_clients)
    b = math.inf if batches.max() == 0 else float(batches.min())
    variance = 0.0 if b == math.inf else known.sigma2.value / b
    L, Q, n = known.L.value, local.steps, problem.n_clients
    if L <= 0:
        raise ValueError("problem: its L is 0, its gradients are constant; there is nothing to verify")
    demanded = min_server_steps(L, Q, arrivals.tau)
    reasons = [*arrivals.reasons, *extra]
    if demanded > arrivals.T:
        reasons.append(f"T is {arrivals.T}, and the theorem demands at least {demanded}")
    if not np.allclose(problem._spec.client_weight, 1.0 / n, rtol=1e-12, atol=0.0):
        reasons.append("the clients do not weigh the same in f")
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


@dataclass(frozen=True, slots=True)
class Verification:
    """The bound beside the measured mean over t of |grad f(w^t)|^2: its mean over seeds, and a 99 % interval.

    A run that left the finite numbers counts as infinite.
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
        """How many times the bound is what was measured."""
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
    _built_in(problem)
    local = LocalSGD(steps=Q, lr=1.0, batch_size=b)
    start = _start(problem, w0)
    chosen = list(range(count("seeds", seeds, low=2))) if isinstance(seeds, int) else [*seeds]
    if len(chosen) < 2:
        raise ValueError("seeds: an interval needs at least two")
    extra = () if strategy is None else _other_rule(strategy)
    make = schedule
    if make is None:
        if K is None or tau is None:
            raise TypeError("K, tau: expected both, or a schedule")
        size, most = count("K", K), count("tau", tau, low=0)
        least = min_server_steps(problem.constants().L.value, local.steps, most)
        steps = least if T is None else count("T", T)

        def make(seed: int) -> Schedule:
            return uniform_arrivals(problem.n_clients, size, most, steps, seed, staleness)

        arrivals = _Arrivals(size, most, steps)
    else:
        if K is not None or tau is not None or T is not None:
            raise TypeError("K, tau, T: they are the schedule's, leave them out")
        every = [_Arrivals.of(make(seed)) for seed in chosen]
        if len({one.T for one in every}) > 1:
            raise ValueError("schedule: its schedules have different numbers of server steps")
        arrivals = max(every, key=lambda one: one.tau)
    made = _plan(problem, local, start, heterogeneity, arrivals, extra)
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


def _built_in(problem: object) -> None:
    if not isinstance(problem, Problem):
        raise TypeError(
            f"problem: expected a built-in problem, whose constants are known, got {type(problem).__name__}"
        )


def _start(problem: Problem, w0: Any) -> NDArray[np.floating]:
    return problem.init() if w0 is None else as_vector("w0", w0, problem.dim, problem.dtype)


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


@dataclass(frozen=True, slots=True)
class Rate:
    """What was measured along one argument, and the slope of a line through its logarithms.

    measured ~ value^slope; for tau the slope is in tau + 1. slope_error is the slope's standard error.
    """

    over: Over
    values: tuple[float, ...]
    found: tuple[Verification, ...]
    slope: float
    slope_error: float

    @property
    def measured(self) -> NDArray[np.float64]:
        return np.array([one.measured for one in self.found])

    @property
    def bounds(self) -> NDArray[np.float64]:
        return np.array([one.bound.total for one in self.found])


def rate(
    problem: Problem | Callable[[Any], Problem],
    over: Over,
    values: Sequence[Any],
    *,
    T: int | None = None,
    **fixed: Any,
) -> Rate:
    """`verify` for each value of one argument, each with its own runs and step sizes, and the slope that they show.

    >>> import numpy as np, fedbuff as fb
    >>> problem = fb.Quadratic(np.zeros((4, 2)), curvature=0.1, noise_variance=1.0)
    >>> found = fb.theory.rate(problem, "T", [2000, 8000, 32000], Q=1, K=2, tau=0)
    >>> -0.6 < found.slope < -0.4
    True

    over    "T", "tau", "Q", "K", "b", "n" or "heterogeneity"; for the last two `problem` is a function of the value
    T       server steps, where T is not what is swept; None: the most that any of the values demands
    fixed   the other arguments of `verify`
    """
    choice("over", over, get_args(Over))
    if over in fixed:
        raise TypeError(f"{over}: it is swept, leave it out")
    if len(values) < 2:
        raise ValueError("values: a slope needs at least two")
    scaled = over in ("n", "heterogeneity")
    if scaled == isinstance(problem, Problem):
        raise TypeError(f"problem: over {over!r} it must be {'a function of the value' if scaled else 'a Problem'}")
    problems = [cast(Any, problem)(value) if scaled else cast(Problem, problem) for value in values]
    options = [fixed | ({} if scaled else {over: value}) for value in values]
    if over != "T":
        demanded = [
            min_server_steps(one.constants().L.value, given.get("Q", 1), given.get("tau", 0))
            for one, given in zip(problems, options, strict=True)
        ]
        options = [given | {"T": max(demanded) if T is None else T} for given in options]
    elif T is not None:
        raise TypeError("T: it is swept, leave it out")
    found = tuple(verify(one, **given) for one, given in zip(problems, options, strict=True))
    x = np.log(np.array(values, np.float64) + (1.0 if over == "tau" else 0.0))
    y = np.log(np.array([one.measured for one in found]))
    slope, error = _line(x, y)
    return Rate(over, tuple(float(value) for value in values), found, slope, error)


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """The least-squares slope, and its standard error (0 through two points)."""
    centered = x - x.mean()
    spread = float(centered @ centered)
    if spread == 0.0:
        raise ValueError("values: a slope needs two that differ")
    slope = float(centered @ y) / spread
    rest = y - y.mean() - slope * centered
    return slope, math.sqrt(float(rest @ rest) / max(len(x) - 2, 1) / spread)
