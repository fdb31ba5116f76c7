"""The theorem as arithmetic: step sizes, the server steps that it demands, its bound, and the conditions of its proof.

The letters are the paper's: L smoothness, T server steps, Q local steps, K buffer size, tau largest staleness, n
clients, b smallest batch, eta and beta the clients' and the server's step size; sigma2, gamma2 variances of a sample's
gradient and of the clients' gradients; f_gap = f(w^0) - f*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from .._base.checks import (
    as_written,
    choice,
    count,
    flag,
    number,
)

__all__ = [
    "TABLE_1",
    "Analysis",
    "Bound",
    "Condition",
    "Heterogeneity",
    "OutsideTheorem",
    "RateTerm",
    "StepSizes",
    "bound",
    "conditions",
    "min_server_steps",
    "server_steps_for",
    "stationary_gradient",
    "step_sizes",
]

Heterogeneity = Literal["average", "uniform"]


class OutsideTheorem(ValueError):
    """The theorem does not cover these arguments; with `allow_outside=True` they are computed all the same."""


class StepSizes(NamedTuple):
    eta: float  # the clients'
    beta: float  # the server's


@dataclass(frozen=True, slots=True)
class Bound:
    """The three terms of the theorem's right-hand side, and why it may not hold here."""

    initial: float
    noise: float
    delay: float
    outside: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        return self.initial + self.noise + self.delay


@dataclass(frozen=True, slots=True)
class Condition:
    """One inequality of the proof: `formula` has this value and must not exceed the limit."""

    name: str
    formula: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.value <= self.limit


MOST_STEPS = 2**1000  # no result is larger, so that exact arithmetic ends


def _positive(name: str, value: float) -> float:
    return number(name, value, open_low=True)


def _batch(b: float) -> float:
    """A batch size; infinity stands for exact local gradients."""
    return b if isinstance(b, float) and b == math.inf else _positive("b", b)


def step_sizes(L: float, T: int, Q: int, K: int) -> StepSizes:
    """eta = 1 / (Q sqrt(L T)) for the clients and beta = 1 / K for the server.

    >>> import fedbuff as fb
    >>> fb.theory.step_sizes(L=4.0, T=2500, Q=2, K=10)
    StepSizes(eta=0.005, beta=0.1)
    """
    root = math.sqrt(_positive("L", L) * count("T", T, high=MOST_STEPS))
    return StepSizes(1.0 / (count("Q", Q) * root), 1.0 / count("K", K))


def min_server_steps(L: float, Q: int, tau: int) -> int:
    """The server steps that the theorem demands: max(1, ceil(160 L (Q + 7) (tau + 1)^3)).

    >>> import fedbuff as fb
    >>> fb.theory.min_server_steps(L=1.0, Q=1, tau=5)
    276480

    It is exact: L counts as the decimal number that it prints as, so that 0.1 is a tenth.
    """
    exact = as_written(_positive("L", L))
    return max(1, math.ceil(160 * exact * (count("Q", Q) + 7) * (count("tau", tau, low=0) + 1) ** 3))


def bound(
    L: float,
    T: int,
    Q: int,
    tau: int,
    n: int,
    f_gap: float,
    sigma2: float,
    gamma2: float,
    b: float,
    heterogeneity: Heterogeneity = "average",
    *,
    allow_outside: bool = False,
) -> Bound:
    """What the mean of E|grad f(w^t)|^2 over t = 0..T-1 does not exceed, as three terms:

        initial  8 sqrt(L) f_gap / sqrt(T)
        noise    16 sqrt(L) (sigma2 / b + gamma2) / sqrt(T)
        delay    320 L (Q + 1) (tau^2 + 1) (sigma2 / b + n gamma2) / T

    >>> import fedbuff as fb
    >>> fb.theory.bound(L=1.0, T=10_000, Q=1, tau=0, n=5, f_gap=1.0, sigma2=2.0, gamma2=1.0, b=2).total
    0.784

    gamma2 bounds the mean over clients of |grad f_i - grad f|^2 ("average"), or the largest of them ("uniform"): the
    last term then has gamma2 in the place of n gamma2. b is the smallest batch, math.inf for exact local gradients. A T
    below `min_server_steps` is outside the theorem.
    """
    steps, size = count("T", T, high=MOST_STEPS), _batch(b)
    _positive("L", L)
    count("n", n)
    for name, value in (("f_gap", f_gap), ("sigma2", sigma2), ("gamma2", gamma2)):
        number(name, value)
    choice("heterogeneity", heterogeneity, get_args(Heterogeneity))
    demanded = min_server_steps(L, Q, tau)
    outside = () if steps >= demanded else (f"T is {steps}, and the theorem demands at least {demanded}",)
    require_inside(outside, allow_outside)
    return terms(L, steps, Q, tau, n, f_gap, sigma2 / size, gamma2, heterogeneity, outside)


def terms(
    L: float,
    T: float,
    Q: int,
    tau: int,
    n: int,
    f_gap: float,
    batch_variance: float,
    gamma2: float,
    heterogeneity: Heterogeneity,
    outside: tuple[str, ...] = (),
) -> Bound:
    """The bound of checked arguments; a variance may be infinite."""
    root = math.sqrt(L) / math.sqrt(T)
    apart = n * gamma2 if heterogeneity == "average" else gamma2
    return Bound(
        initial=8.0 * root * f_gap,
        noise=16.0 * root * (batch_variance + gamma2),
        delay=320.0 * L * (Q + 1) * (tau**2 + 1) * (batch_variance + apart) / T,
        outside=outside,
    )


def require_inside(outside: tuple[str, ...], allow_outside: bool) -> None:
    flag("allow_outside", allow_outside)
    if outside and not allow_outside:
        raise OutsideTheorem(f"outside the theorem: {'; '.join(outside)}. allow_outside=True goes on all the same")


def server_steps_for(
    epsilon: float,
    L: float,
    Q: int,
    tau: int,
    n: int,
    f_gap: float,
    sigma2: float,
    gamma2: float,
    b: float,
    heterogeneity: Heterogeneity = "average",
) -> int:
    """The smallest T that the theorem allows and whose bound is at most epsilon: O(1 / epsilon^2) + O(tau^2 / epsilon).

    >>> import fedbuff as fb
    >>> fb.theory.server_steps_for(0.784, L=1.0, Q=1, tau=0, n=5, f_gap=1.0, sigma2=2.0, gamma2=1.0, b=2)
    10000
    """
    target = _positive("epsilon", epsilon)
    least = min_server_steps(L, Q, tau)
    bound(L, least, Q, tau, n, f_gap, sigma2, gamma2, b, heterogeneity)  # its checks
    variance = sigma2 / _batch(b)

    def total(T: int) -> float:
        return terms(L, T, Q, tau, n, f_gap, variance, gamma2, heterogeneity).total

    # a / sqrt(T) + c / T = epsilon, solved for 1 / sqrt(T) without cancellation; then to the integer.
    at_one = terms(L, 1, Q, tau, n, f_gap, variance, gamma2, heterogeneity)
    a, c = at_one.initial + at_one.noise, at_one.delay
    root = (a + math.sqrt(a * a + 4.0 * c * target)) / (2.0 * target)
    if root > 1e100:
        raise ValueError(f"epsilon: {epsilon} is too small: the server steps would have more than 200 digits")
    low = max(1, math.floor(root * root * (1.0 - 1e-9)) - 1)
    high = max(low, math.ceil(root * root * (1.0 + 1e-9)) + 1)
    while low < high:  # the bound falls with T
        middle = (low + high) // 2
        low, high = (low, middle) if total(middle) <= target else (middle + 1, high)
    return max(least, high)


def stationary_gradient(L: float, eta: float, K: int, gamma2: float, sigma2: float, b: float) -> float:
    """E|grad f(w^t)|^2 for large t, exactly: eta L (gamma2 + sigma2 / b) / (K (2 - eta L)).

    It holds in one special case: every f_i is a quadratic whose Hessian is L times the identity, the clients of a
    buffer are drawn uniformly with replacement, beta = 1 / K, tau = 0 and Q = 1. There |grad f|^2 is L^2 |w - w*|^2,
    and a server step multiplies w - w* by 1 - eta L and adds noise of variance eta^2 (gamma2 + sigma2 / b) / K.

    >>> import fedbuff as fb
    >>> fb.theory.stationary_gradient(L=1.0, eta=0.5, K=2, gamma2=1.0, sigma2=4.0, b=2)
    0.5
    """
    size = _batch(b)
    product = _positive("eta", eta) * _positive("L", L)
    if product >= 2.0:
        raise ValueError(f"eta: expected a number < 2 / L = {2.0 / L:g}, got {eta:g}: the iteration diverges")
    noise = number("gamma2", gamma2) + number("sigma2", sigma2) / size
    return product * noise / (count("K", K) * (2.0 - product))


def conditions(
    L: float, T: int | None, Q: int, tau: int, kappa: float = 1.0, *, eta: float | None = None
) -> dict[str, Condition]:
    """What the proof needs of the step sizes, each inequality by name, for kappa = beta K (1 in the theorem).

    >>> import fedbuff as fb
    >>> T = fb.theory.min_server_steps(L=1.0, Q=1, tau=0)
    >>> all(c.holds for c in fb.theory.conditions(L=1.0, T=T, Q=1, tau=0).values())
    True
    >>> fb.theory.conditions(L=1.0, T=None, Q=1, tau=0, eta=0.1)["local_steps"].value
    0.1

    eta is the theorem's for T server steps, or `eta` with T=None. With phi = 8 eta^2 Q^2 (1 + 2 Q) (1 + kappa^2):

        local_steps  eta <= 1 / (4 L (Q + 1))
        descent      4 eta kappa L Q <= 1/4
        staleness    L^2 (tau^2 + 1) (1 + 4 eta kappa L) phi <= 1/4
        old_steps    L^2 tau (tau + 1)^2 (1 + 4 eta kappa L) phi <= 1/4
    """
    _positive("L", L)
    count("Q", Q)
    count("tau", tau, low=0)
    _positive("kappa", kappa)
    if (T is None) == (eta is None):
        raise ValueError("T, eta: expected exactly one of them; with eta, T=None")
    step = _positive("eta", eta) if eta is not None else step_sizes(L, 0 if T is None else T, Q, 1).eta
    grown = 1.0 + 4.0 * step * kappa * L
    phi = 8.0 * step**2 * Q**2 * (1 + 2 * Q) * (1.0 + kappa**2)
    found = (
        Condition("local_steps", "eta", step, 1.0 / (4.0 * L * (Q + 1))),
        Condition("descent", "4 eta kappa L Q", 4.0 * step * kappa * L * Q, 0.25),
        Condition(
            "staleness", "L^2 (tau^2 + 1) (1 + 4 eta kappa L) phi", L**2 * (tau**2 + 1) * grown * phi, 0.25
        ),
        Condition(
            "old_steps", "L^2 tau (tau + 1)^2 (1 + 4 eta kappa L) phi", L**2 * tau * (tau + 1) ** 2 * grown * phi, 0.25
        ),
    )  # fmt: skip
    return {condition.name: condition for condition in found}


class RateTerm(NamedTuple):
    """O(T^T tau^tau): the exponents of the server steps and of the largest delay."""

    T: float
    tau: float


@dataclass(frozen=True, slots=True)
class Analysis:
    """A row of the paper's Table 1: smooth and non-convex objectives, rates in server steps.

    unbounded_gradient says whether gradients may be unbounded; None, and no rate, where the reference has no analysis.
    """

    algorithm: str
    reference: str
    asynchronous: bool
    buffered: bool
    unbounded_gradient: bool | None
    rate: tuple[RateTerm, ...]


_ROOT, _DELAYED = RateTerm(-0.5, 0.0), RateTerm(-1.0, 2.0)
TABLE_1: tuple[Analysis, ...] = (
    Analysis("FedAvg", "McMahan et al. 2017", False, True, None, ()),
    Analysis("FedAvg", "Yu et al. 2019", False, True, False, (_ROOT,)),
    Analysis("FedAvg", "Wang et al. 2020", False, True, True, (_ROOT,)),
    Analysis("FedAsync", "Xie et al. 2019", True, False, False, (_ROOT, _DELAYED)),
    Analysis("FedBuff", "Nguyen et al. 2022", True, True, False, (_ROOT, _DELAYED)),
    Analysis("FedBuff", "Toghani and Uribe 2022", True, True, True, (_ROOT, _DELAYED)),
)
