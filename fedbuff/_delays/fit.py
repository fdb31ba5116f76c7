"""Fitting delay distributions to samples, by maximum likelihood, with their Kolmogorov-Smirnov distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.checks import choice, list_of
from .._base.files import optional
from . import distributions as laws
from .distributions import Distribution

Samples = NDArray[np.float64]
Cdf = Callable[[Samples], Samples]


@dataclass(frozen=True)
class Fit:
    """A fitted distribution, and the largest gap between its distribution function and the samples' own."""

    distribution: Distribution
    ks: float


def fit(samples: ArrayLike, families: Sequence[str] | None = None) -> list[Fit]:
    """Each family's best fit, the smallest Kolmogorov-Smirnov distance first; needs scipy.

    Families: constant, exponential, half_normal, truncated_normal (from 0), log_normal, pareto, weibull, uniform; all
    of them by default. One that cannot hold the samples (a zero under log_normal) is left out, or refused where it was
    asked for.
    """
    optional("scipy.special", "fit", "fitting")
    if families is not None:
        wanted = f"some of {', '.join(_FAMILIES)}"
        families = list_of("families", families, wanted)
        if not families:
            raise ValueError(f"families: expected {wanted}, got none")
        for name in families:
            choice("families", name, tuple(_FAMILIES))
    ordered = laws.Empirical(samples).samples
    fits = []
    for name in families or _FAMILIES:
        try:
            distribution, cdf = _FAMILIES[name](ordered)
        except ValueError as error:
            if families is not None:
                raise ValueError(f"samples: {name} cannot be fitted: {error}") from error
            continue
        distance = 0.0 if name == "constant" else _distance(ordered, cdf(ordered))  # it has a jump
        fits.append(Fit(distribution, distance))
    return sorted(fits, key=lambda found: found.ks)


def _distance(ordered: Samples, model: Samples) -> float:
    """sup |F_n - F| over sorted samples, ties included."""
    n = ordered.size
    return float(max(np.max(np.arange(1, n + 1) / n - model), np.max(model - np.arange(n) / n)))


def _positive_log(x: Samples) -> Samples:
    if x[0] <= 0:
        raise ValueError("a sample is 0")
    return np.log(x)


def _refuse_equal(x: Samples) -> None:
    if x[0] == x[-1]:
        raise ValueError("the samples do not vary")


def _constant(x: Samples) -> tuple[Distribution, Cdf]:
    value = float(x[0])
    if x[-1] != value:
        raise ValueError("the samples vary")
    return laws.Constant(value), lambda at: (at >= value).astype(np.float64)


def _exponential(x: Samples) -> tuple[Distribution, Cdf]:
    scale = float(x.mean())
    if scale == 0:
        raise ValueError("every sample is 0")
    return laws.Exponential(scale), lambda at: -np.expm1(-at / scale)


def _half_normal(x: Samples) -> tuple[Distribution, Cdf]:
    erf = optional("scipy.special", "fit", "fitting").erf

    scale = math.sqrt(float(np.mean(x * x)))
    if scale == 0:
        raise ValueError("every sample is 0")
    return laws.HalfNormal(scale), lambda at: erf(at / (scale * math.sqrt(2.0)))


def _truncated_normal(x: Samples) -> tuple[Distribution, Cdf]:
    minimize = optional("scipy.optimize", "fit", "fitting").minimize
    special = optional("scipy.special", "fit", "fitting")
    log_ndtr, ndtr = special.log_ndtr, special.ndtr

    _refuse_equal(x)  # the deviation of equal numbers may round to more than 0
    mean, deviation = float(x.mean()), float(x.std())

    def cost(point: NDArray[np.float64]) -> float:
        """The negative log-likelihood per sample in units of the deviation; the samples enter by two moments."""
        loc, scale = point[0] * deviation, math.exp(point[1]) * deviation
        square = (deviation**2 + (mean - loc) ** 2) / (2 * scale**2)
        return float(square + math.log(scale) + log_ndtr(loc / scale))

    best: Any = minimize(
        cost, np.array([mean / deviation, 0.0]), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12}
    )
    loc, scale = float(best.x[0]) * deviation, math.exp(float(best.x[1])) * deviation
    below = float(ndtr(-loc / scale))
    return laws.TruncatedNormal(loc, scale), lambda at: (ndtr((at - loc) / scale) - below) / (1.0 - below)


def _log_normal(x: Samples) -> tuple[Distribution, Cdf]:
    ndtr = optional("scipy.special", "fit", "fitting").ndtr

    log = _positive_log(x)
    _refuse_equal(log)
    mean, sigma = float(log.mean()), float(log.std())
    return laws.LogNormal(mean, sigma), lambda at: ndtr((np.log(at) - mean) / sigma)


def _pareto(x: Samples) -> tuple[Distribution, Cdf]:
    excess = float(np.mean(_positive_log(x) - math.log(x[0])))
    if excess == 0:
        raise ValueError("the samples do not vary")
    shape, scale = 1.0 / excess, float(x[0])
    return laws.Pareto(shape, scale), lambda at: -np.expm1(-shape * np.log(at / scale))


def _weibull(x: Samples) -> tuple[Distribution, Cdf]:
    brentq = optional("scipy.optimize", "fit", "fitting").brentq

    log = _positive_log(x)
    log_mean, top = float(log.mean()), float(log[-1])
    _refuse_equal(log)

    def slope(shape: float) -> float:
        """The likelihood's derivative in the shape; it has one root."""
        weight = np.exp(shape * (log - top))
        return float(weight @ log / weight.sum()) - 1.0 / shape - log_mean

    high = 1.0
    while slope(high) < 0:
        high *= 2.0
    low = high / 2.0
    while slope(low) > 0:
        low /= 2.0
    shape = float(brentq(slope, low, high, xtol=1e-12))
    scale = math.exp(top) * float(np.mean(np.exp(shape * (log - top)))) ** (1.0 / shape)
    return laws.Weibull(shape, scale), lambda at: -np.expm1(-((at / scale) ** shape))


def _uniform(x: Samples) -> tuple[Distribution, Cdf]:
    _refuse_equal(x)
    low, high = float(x[0]), float(x[-1])
    return laws.Uniform(low, high), lambda at: (at - low) / (high - low)


_FAMILIES: dict[str, Callable[[Samples], tuple[Distribution, Cdf]]] = {
    "constant": _constant,
    "exponential": _exponential,
    "half_normal": _half_normal,
    "truncated_normal": _truncated_normal,
    "log_normal": _log_normal,
    "pareto": _pareto,
    "weibull": _weibull,
    "uniform": _uniform,
}
