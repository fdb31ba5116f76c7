"""Delay distributions and `DelayModel`: how slow each client is, as a model.

Parameters are those of numpy.random. A distribution is a description only: its draws are a function of
(seed, client, task, component) and are made where the schedule is resolved, with the same bits everywhere.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.arrays import to_array
from .immutable import Immutable

# A uniform has 53 bits, so 1 - u >= 2^-53: no exponential draw exceeds scale * _LOG_MAX, and no normal _NORMAL_MAX.
_LOG_MAX = 53 * math.log(2.0)
_NORMAL_MAX = math.sqrt(2.0 * _LOG_MAX)
_ACCEPTANCE_MIN = 1e-3


def _number(owner: str, name: str, value: Any) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{owner}: {name}: expected a number, got {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{owner}: {name}: expected a number that float64 holds") from None
    if math.isnan(number):
        raise ValueError(f"{owner}: {name}: expected a number, got NaN")
    return number


@dataclass(frozen=True)
class Distribution(Immutable):
    """A delay distribution: `kind` names it, `params` are its numbers in the order of the constructor."""

    kind: ClassVar[str]

    @property
    def params(self) -> tuple[float, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    def describe(self) -> dict[str, Any]:
        """What it is, as JSON can hold it."""
        return {"kind": self.kind, "params": list(self.params)}

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _number(type(self).__name__, field.name, getattr(self, field.name)))
        self._validate()
        if not math.isfinite(self._largest()):
            raise ValueError(f"{self!r}: expected delays that a float64 holds, got larger ones")

    def _validate(self) -> None:
        """Refuses parameters that mean nothing, or that could give a negative delay."""

    @abstractmethod
    def _largest(self) -> float:
        """An upper bound of what it can draw."""

    def smallest(self) -> float:
        """A lower bound of what it can draw, to within rounding."""
        return 0.0

    def _need(self, condition: bool, what: str) -> None:
        if not condition:
            raise ValueError(f"{self!r}: {what}")


def takes_no_time(law: Distribution) -> bool:
    """Whether all that it draws is 0."""
    return law._largest() == 0.0


@dataclass(frozen=True)
class Constant(Distribution):
    """Always `value`."""

    kind: ClassVar[str] = "constant"
    value: float

    def _validate(self) -> None:
        self._need(self.value >= 0, "value: expected a number >= 0")

    def _largest(self) -> float:
        return self.value

    def smallest(self) -> float:
        return self.value


@dataclass(frozen=True)
class Uniform(Distribution):
    """Uniform on [low, high)."""

    kind: ClassVar[str] = "uniform"
    low: float = 0.0
    high: float = 1.0

    def _validate(self) -> None:
        self._need(0 <= self.low <= self.high, "0 <= low <= high must hold")

    def _largest(self) -> float:
        return self.high

    def smallest(self) -> float:
        return self.low


@dataclass(frozen=True)
class Exponential(Distribution):
    """Exponential with mean `scale`."""

    kind: ClassVar[str] = "exponential"
    scale: float = 1.0

    def _validate(self) -> None:
        self._need(self.scale >= 0, "scale: expected a number >= 0")

    def _largest(self) -> float:
        return self.scale * _LOG_MAX


@dataclass(frozen=True)
class HalfNormal(Distribution):
    """low + |N(0, 1)| * scale."""

    kind: ClassVar[str] = "half_normal"
    scale: float = 1.0
    low: float = 0.0

    def _validate(self) -> None:
        self._need(self.scale >= 0, "scale: expected a number >= 0")
        self._need(self.low >= 0, "low: expected a number >= 0")

    def _largest(self) -> float:
        return self.low + self.scale * _NORMAL_MAX

    def smallest(self) -> float:
        return self.low


@dataclass(frozen=True)
class TruncatedNormal(Distribution):
    """N(loc, scale) given that it falls into [low, high]; at least one draw in a thousand must."""

    kind: ClassVar[str] = "truncated_normal"
    loc: float
    scale: float
    low: float = 0.0
    high: float = math.inf

    def _validate(self) -> None:
        self._need(math.isfinite(self.loc), "loc: expected a finite number")
        self._need(self.scale > 0, "scale: expected a number > 0 (no spread: Constant)")
        self._need(0 <= self.low < self.high, "0 <= low < high must hold")
        below, above = ((bound - self.loc) / (self.scale * math.sqrt(2.0)) for bound in (self.low, self.high))
        inside = 0.5 * (math.erfc(below) - math.erfc(above))
        self._need(inside >= _ACCEPTANCE_MIN, f"only a share {inside:.2g} of the normal lies between low and high")

    def _largest(self) -> float:
        return min(self.high, abs(self.loc) + self.scale * _NORMAL_MAX)

    def smallest(self) -> float:
        return self.low


@dataclass(frozen=True)
class LogNormal(Distribution):
    """exp(N(mean, sigma)): mean and sigma are those of the logarithm."""

    kind: ClassVar[str] = "log_normal"
    mean: float = 0.0
    sigma: float = 1.0

    def _validate(self) -> None:
        self._need(math.isfinite(self.mean), "mean: expected a finite number")
        self._need(self.sigma >= 0, "sigma: expected a number >= 0")

    def _largest(self) -> float:
        exponent = self.mean + self.sigma * _NORMAL_MAX
        return math.exp(exponent) if exponent < 709.0 else math.inf


@dataclass(frozen=True)
class Pareto(Distribution):
    """The classical Pareto: scale / (1 - u)^(1/shape), never below scale (numpy.random.pareto is this minus 1)."""

    kind: ClassVar[str] = "pareto"
    shape: float
    scale: float = 1.0

    def _validate(self) -> None:
        self._need(0 < self.shape < math.inf, "shape: expected a positive, finite number")
        self._need(self.scale > 0, "scale: expected a number > 0")

    def _largest(self) -> float:
        exponent = _LOG_MAX / self.shape + math.log(self.scale)
        return math.exp(exponent) if exponent < 709.0 else math.inf

    def smallest(self) -> float:
        return self.scale


@dataclass(frozen=True)
class Weibull(Distribution):
    """scale * (-log(1 - u))^(1/shape)."""

    kind: ClassVar[str] = "weibull"
    shape: float
    scale: float = 1.0

    def _validate(self) -> None:
        self._need(0 < self.shape < math.inf, "shape: expected a positive, finite number")
        self._need(self.scale >= 0, "scale: expected a number >= 0")

    def _largest(self) -> float:
        exponent = math.log(_LOG_MAX) / self.shape
        return self.scale * math.exp(exponent) if exponent < 709.0 else math.inf


@dataclass(frozen=True, eq=False)
class Empirical(Distribution):
    """One of `samples`, each as likely; kept sorted."""

    kind: ClassVar[str] = "empirical"
    samples: NDArray[np.float64]

    def __init__(self, samples: ArrayLike) -> None:
        values = to_array("samples", samples)
        if values.dtype.kind not in "iuf":
            raise TypeError(f"Empirical: samples: expected numbers, got {values.dtype}")
        if values.ndim != 1 or values.size == 0:
            raise ValueError(f"Empirical: samples: expected a non-empty vector, got shape {values.shape}")
        ordered = np.sort(values.astype(np.float64))
        if not (ordered[0] >= 0 and ordered[-1] < np.inf):  # sorting puts NaN last
            raise ValueError(f"Empirical: samples: expected finite numbers >= 0, got {ordered[0]:g} to {ordered[-1]:g}")
        ordered.flags.writeable = False
        object.__setattr__(self, "samples", ordered)

    @property
    def params(self) -> tuple[float, ...]:
        return ()

    def _largest(self) -> float:
        return float(self.samples[-1])

    def smallest(self) -> float:
        return float(self.samples[0])

    def describe(self) -> dict[str, Any]:
        digest = hashlib.sha256(self.samples.astype("<f8").tobytes()).hexdigest()
        return {"kind": self.kind, "samples": self.samples.size, "sha256": digest}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Empirical) and np.array_equal(self.samples, other.samples)

    def __hash__(self) -> int:
        return hash((self.kind, self.samples.tobytes()))
