"""How much an update counts, by its staleness: the s in ``contribution = s(staleness) * e * (base - w_end)``.

Each is a frozen object that maps a staleness (an int, 0 for a fresh update) to a weight. Any other callable that does
so, and always gives the same answer, may stand in its place.

>>> import fedbuff as fb
>>> fb.staleness.Polynomial(0.5)(3)
0.5
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ._base.checks import number

__all__ = ["Constant", "DelayAdaptive", "Hinge", "InverseOnePlusSqrt", "Polynomial", "StalenessFunction", "Threshold"]

StalenessFunction = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Constant:
    """1, however old the update is."""

    def __call__(self, staleness: int) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class Polynomial:
    """((1 + average) / (1 + staleness)) ** exponent; it is 1 at staleness `average`."""

    exponent: float = 0.5
    average: float = 0.0

    def __post_init__(self) -> None:
        number("exponent", self.exponent)
        number("average", self.average)

    def __call__(self, staleness: int) -> float:
        ratio = (1.0 + self.average) / (1.0 + staleness)
        return math.sqrt(ratio) if self.exponent == 0.5 else float(ratio**self.exponent)


@dataclass(frozen=True, slots=True)
class Hinge:
    """1 up to `threshold`, then 1 / (slope * (staleness - threshold) + 1)."""

    slope: float = 10.0
    threshold: float = 4.0

    def __post_init__(self) -> None:
        number("slope", self.slope)
        number("threshold", self.threshold)

    def __call__(self, staleness: int) -> float:
        return 1.0 if staleness <= self.threshold else 1.0 / (self.slope * (staleness - self.threshold) + 1.0)


@dataclass(frozen=True, slots=True)
class Threshold:
    """1 up to `cutoff`, then `after`."""

    cutoff: float
    after: float = 0.0

    def __post_init__(self) -> None:
        number("cutoff", self.cutoff)
        number("after", self.after)

    def __call__(self, staleness: int) -> float:
        return 1.0 if staleness <= self.cutoff else self.after


@dataclass(frozen=True, slots=True)
class InverseOnePlusSqrt:
    """1 / (1 + sqrt(staleness + 1)): a fresh update counts one half, as NVFlare's does."""

    def __call__(self, staleness: int) -> float:
        return 1.0 / (1.0 + math.sqrt(staleness + 1.0))


@dataclass(frozen=True, slots=True)
class DelayAdaptive:
    """limit / max(limit, staleness): step sizes shrink only for updates older than `limit`."""

    limit: float

    def __post_init__(self) -> None:
        number("limit", self.limit, open_low=True)

    def __call__(self, staleness: int) -> float:
        return self.limit / max(self.limit, staleness)
