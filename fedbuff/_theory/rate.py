"""`rate`: the slope of what `verify` measures along one argument."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from .._base.checks import choice
from .._problems.base import Problem
from .theorem import (
    min_server_steps,
)
from .verify import Verification, verify

Over = Literal["T", "tau", "Q", "K", "b", "n", "heterogeneity"]


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
        raise ValueError("values: expected at least two, for a slope")
    scaled = over in ("n", "heterogeneity")
    if scaled == isinstance(problem, Problem):
        wanted = "a function of the value" if scaled else "a Problem"
        raise TypeError(f"problem: over {over!r}: expected {wanted}, got {type(problem).__name__}")
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
        raise ValueError("values: expected two that differ, for a slope")
    slope = float(centered @ y) / spread
    rest = y - y.mean() - slope * centered
    return slope, math.sqrt(float(rest @ rest) / max(len(x) - 2, 1) / spread)
