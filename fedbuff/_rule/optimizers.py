"""Server optimizers: how a direction g moves the model, and the step size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from .._base.checks import choice, count, flag, list_of, number

__all__ = ["SGD", "AMSGrad", "Adagrad", "Adam", "DelayedNesterov", "LearningRate", "Nesterov", "Optimizer", "Yogi"]

Decay = Literal["none", "step", "cosine", "inverse_sqrt"]


@dataclass(frozen=True, slots=True)
class SGD:
    """v <- momentum v + g; w <- w - lr v."""

    code: ClassVar[int] = 0

    momentum: float = 0.0

    def __post_init__(self) -> None:
        number("momentum", self.momentum)

    @property
    def moments(self) -> tuple[str, ...]:
        """The vectors that it keeps between steps."""
        return ("velocity",) if self.momentum != 0 else ()


@dataclass(frozen=True, slots=True)
class Nesterov:
    """v <- momentum v + g; w <- w - lr (g + momentum v), the outer step of DiLoCo."""

    code: ClassVar[int] = 2
    moments: ClassVar[tuple[str, ...]] = ("velocity",)

    momentum: float = 0.9

    def __post_init__(self) -> None:
        number("momentum", self.momentum)


@dataclass(frozen=True, slots=True)
class DelayedNesterov:
    """Nesterov's momentum, changed at every `period`-th step only (Liu et al. 2024, Algorithm 3):

    x <- x + g; w <- w - lr (activation momentum m + g / period), and at every period-th step instead
    m <- momentum m + x / period; w <- w - lr ((1 - activation (period - 1)) momentum m + g / period); x <- 0.
    """

    code: ClassVar[int] = 7
    moments: ClassVar[tuple[str, ...]] = ("velocity", "pending")

    period: int
    momentum: float = 0.9
    activation: float = 0.0

    def __post_init__(self) -> None:
        count("period", self.period)
        number("momentum", self.momentum)
        number("activation", self.activation, high=1.0 / self.period)


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam on the direction; `weight_decay` is added to the gradient.

    m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; w <- w - lr m' / (sqrt(v') + epsilon), with m' and v' corrected
    for their start at zero, or, without bias_correction, m and v themselves (FedAdam); v starts at `initial`.
    """

    moments: ClassVar[tuple[str, ...]] = ("first", "second")

    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    bias_correction: bool = True
    initial: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", _check_adaptive(self.betas, self.epsilon, self.initial))
        number("weight_decay", self.weight_decay)
        if flag("bias_correction", self.bias_correction) and self.initial != 0:
            raise ValueError("initial: bias correction is for moments that start at zero")

    @property
    def code(self) -> int:
        return 1 if self.bias_correction else 3


@dataclass(frozen=True, slots=True)
class Adagrad:
    """m <- beta m + (1 - beta) g; v <- v + g^2; w <- w - lr m / (sqrt(v) + epsilon); v starts at `initial`."""

    code: ClassVar[int] = 4
    moments: ClassVar[tuple[str, ...]] = ("first", "second")

    beta: float = 0.0
    epsilon: float = 1e-3
    initial: float = 0.0

    def __post_init__(self) -> None:
        if number("beta", self.beta) >= 1:
            raise ValueError(f"beta: expected a number below 1, got {self.beta}")
        _check_adaptive((self.beta, 0.0), self.epsilon, self.initial)


@dataclass(frozen=True, slots=True)
class Yogi:
    """As Adam without bias correction, but v <- v - (1 - b2) g^2 sign(v - g^2); v starts at `initial`."""

    code: ClassVar[int] = 5
    moments: ClassVar[tuple[str, ...]] = ("first", "second")

    betas: tuple[float, float] = (0.9, 0.99)
    epsilon: float = 1e-3
    initial: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", _check_adaptive(self.betas, self.epsilon, self.initial))


@dataclass(frozen=True, slots=True)
class AMSGrad:
    """As Adam without bias correction, but divides by the root of the largest v so far (the server of FADAS)."""

    code: ClassVar[int] = 6
    moments: ClassVar[tuple[str, ...]] = ("first", "second", "largest")

    betas: tuple[float, float] = (0.9, 0.99)
    epsilon: float = 1e-8
    initial: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", _check_adaptive(self.betas, self.epsilon, self.initial))


Optimizer = SGD | Adam | Nesterov | DelayedNesterov | Adagrad | Yogi | AMSGrad


def _check_adaptive(betas: tuple[float, float], epsilon: float, initial: float) -> tuple[float, ...]:
    """The betas as a tuple."""
    both = list_of("betas", betas, "two numbers")
    if len(both) != 2:
        raise ValueError(f"betas: expected two numbers, got {len(both)}")
    for beta in both:
        if number("betas", beta) >= 1:
            raise ValueError(f"betas: expected numbers below 1, got {betas}")
    number("epsilon", epsilon, open_low=True)
    number("initial", initial)
    return tuple(both)


def optimizer_fields(optimizer: Optimizer) -> dict[str, float]:
    """The fields of `fb_rule` that an optimizer decides."""
    betas = (optimizer.beta, 0.0) if isinstance(optimizer, Adagrad) else getattr(optimizer, "betas", (0.0, 0.0))
    return {
        "optimizer": optimizer.code,
        "momentum": getattr(optimizer, "momentum", 0.0),
        "beta1": betas[0],
        "beta2": betas[1],
        "epsilon": getattr(optimizer, "epsilon", 0.0),
        "weight_decay": getattr(optimizer, "weight_decay", 0.0),
        "initial": getattr(optimizer, "initial", 0.0),
        "period": getattr(optimizer, "period", 1),
        "activation": getattr(optimizer, "activation", 0.0),
    }


@dataclass(frozen=True, slots=True)
class LearningRate:
    """A step size that follows the server's version t.

    >>> import fedbuff as fb
    >>> rate = fb.LearningRate(1.0, "step", steps=10, factor=0.5, warm_up=4)
    >>> [rate.at(t) for t in (0, 3, 13, 14)]
    [0.25, 1.0, 1.0, 0.5]

    With u = max(0, t - warm_up), lr is multiplied by

    "none"          1
    "step"          factor^floor(u / steps)
    "cosine"        floor + (1 - floor) (1 + cos(pi min(u / steps, 1))) / 2
    "inverse_sqrt"  1 / sqrt(1 + u / steps)

    and by (t + 1) / warm_up while that is below 1.
    """

    lr: float
    decay: Decay = "none"
    steps: int = 1
    factor: float = 0.1
    floor: float = 0.0
    warm_up: int = 0

    def __post_init__(self) -> None:
        number("lr", self.lr, open_low=True)
        choice("decay", self.decay, get_args(Decay))
        count("steps", self.steps)
        number("factor", self.factor)
        number("floor", self.floor, high=1.0)
        count("warm_up", self.warm_up, low=0)

    def at(self, version: int) -> float:
        """The step size of the step from this version."""
        lr, after = float(self.lr), float(max(0, version - self.warm_up))
        if self.decay == "step":
            lr *= math.pow(self.factor, math.floor(after / self.steps))
        elif self.decay == "cosine":
            lr *= self.floor + (1.0 - self.floor) * (1.0 + math.cos(math.pi * min(after / self.steps, 1.0))) / 2.0
        elif self.decay == "inverse_sqrt":
            lr *= 1.0 / math.sqrt(1.0 + after / self.steps)
        if version + 1 < self.warm_up:
            lr *= (version + 1) / self.warm_up
        return lr

    def fields(self) -> dict[str, float]:
        """The fields of `fb_rule` beside lr."""
        return {
            "decay": get_args(Decay).index(self.decay),
            "decay_steps": self.steps,
            "decay_factor": self.factor,
            "decay_floor": self.floor,
            "warm_up": self.warm_up,
        }
