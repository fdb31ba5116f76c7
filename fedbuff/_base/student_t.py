"""Quantiles of Student's t, for intervals around the mean of few values."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

__all__ = ["student"]

_MANY = 400  # degrees of freedom from which the expansion is exact to about 10 digits


@lru_cache(maxsize=1024)
def student(level: float, freedom: int) -> float:
    """The t for which P(|t_freedom| <= t) = level.

    For whole degrees of freedom P is a finite sum, and t is found by bisection; for many, by Cornish and Fisher's
    expansion around the normal quantile.
    """
    if freedom >= _MANY:
        return _expansion(NormalDist().inv_cdf(0.5 + 0.5 * level), freedom)

    def inside(t: float) -> float:
        angle = math.atan(t / math.sqrt(freedom))
        cosine = math.cos(angle)
        term, total = (cosine, 0.0) if freedom % 2 else (1.0, 0.0)
        for k in range(1 + freedom % 2, freedom, 2):
            total += term
            term *= cosine**2 * k / (k + 1)
        if freedom % 2:
            return 2.0 / math.pi * (angle + math.sin(angle) * total)
        return math.sin(angle) * total

    low, high = 0.0, 1.0
    while inside(high) < level:
        high *= 2.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if inside(middle) < level else (low, middle)
    return high


def _expansion(z: float, freedom: int) -> float:
    z2 = z * z
    terms = (
        (z2 + 1) / 4,
        ((5 * z2 + 16) * z2 + 3) / 96,
        (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384,
        ((((79 * z2 + 776) * z2 + 1482) * z2 - 1920) * z2 - 945) / 92160,
    )
    return z * (1.0 + sum(term / float(freedom) ** k for k, term in enumerate(terms, 1)))
