"""The server rule: weights, norm, base, sum and step. `Server`, `DeltaBuffer` and the replay use these functions.

contribution_j = weight_j (delta_j + rebase_j), weight_j = s_j e_j, rebase_j = 0 or current - start_j; contributions are
added in the order of arrival; the optimizer moves the model by sum / norm. Weights and their sums are float64; a weight
is rounded to the model's dtype before it multiplies a delta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._rule.server_errors import overflow_error
from ..._rule.strategies import Adam, Rule
from ..spec import Vector, Words

__all__ = ["Kernels", "WeightSums", "accumulate_fixed", "add_contribution", "fixed_weight", "from_units", "step_model"]

Units = NDArray[np.signedinteger[Any]]

_WEIGHT_STEP = 2.0**-24  # weights are multiples of it where deltas are integers
_MOST_WEIGHT = 2.0**29  # sums of such weights are exact below it


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The functions of a backend that a server or a replay needs, as in `Backend`."""

    accumulate: Callable[[Vector, Vector, float, Vector | None, Vector | None, Vector], bool]
    sgd_step: Callable[[Vector, Vector, float, float, float, Vector | None, Vector], None]
    adam_step: Callable[
        [Vector, Vector, float, float, tuple[float, float], float, float, int, Vector, Vector, Vector], None
    ]
    encode_add: Callable[[Words | None, Vector, int, float, float, float, tuple[int, int, int] | None, Words], int]
    decode: Callable[[Words, float, Vector], None]
    dot: Callable[[Vector, Vector], float]
    normals: Callable[[int, int, int, int, int, int], NDArray[np.float64]]


class WeightSums(NamedTuple):
    """Sums over the arrivals of a buffer: how many, of e, and of s e."""

    arrivals: int = 0
    e: float = 0.0
    se: float = 0.0

    def weigh(self, s: float, e: float, *, fixed: bool = False) -> tuple[WeightSums, float]:
        """The sums with one more arrival, and its weight; `fixed`: deltas are integers, and weights multiples of
        2**-24, whose sums must be exact."""
        weight = s * e
        if fixed:
            e, weight = fixed_weight(e), fixed_weight(weight)
        sums = WeightSums(self.arrivals + 1, self.e + e, self.se + weight)
        if fixed and max(sums.e, sums.se) > _MOST_WEIGHT:
            raise overflow_error()
        return sums, weight

    def norm(self, rule: Rule) -> float:
        """What the sum of contributions is divided by; 0 must be refused."""
        return rule.norm_of(self.arrivals, self.e, self.se)


def add_contribution(
    kernels: Kernels, total: Vector, delta: Vector, weight: float, w: Vector, start: Vector | None, out: Vector
) -> bool:
    """out = total + weight * (delta + w - start), where `start` is None without the last two; whether it is finite."""
    return kernels.accumulate(total, delta, weight, None if start is None else w, start, out)


def step_model(
    kernels: Kernels,
    rule: Rule,
    w: Vector,
    total: Vector,
    norm: float,
    version: int,
    first: Vector | None,
    second: Vector | None,
) -> Vector:
    """The model of `version` + 1. The velocity or first moment, and the second, are changed in place."""
    optimizer, out = rule.optimizer, np.empty_like(w)
    if isinstance(optimizer, Adam):
        assert first is not None and second is not None
        kernels.adam_step(
            w, total, rule.lr, norm, optimizer.betas, optimizer.epsilon, optimizer.weight_decay, version + 1, first,
            second, out,
        )  # fmt: skip
    else:
        kernels.sgd_step(w, total, rule.lr, norm, optimizer.momentum, first, out)
    return out


def fixed_weight(weight: float) -> float:
    """The nearest multiple of 2**-24, ties to even."""
    return float(np.rint(weight / _WEIGHT_STEP)) * _WEIGHT_STEP


def accumulate_fixed(total: Units, delta: Units, weight: float) -> Units:
    """total + weight * delta: each product to the nearest integer, ties to even; added exactly, or an error."""
    term = delta.astype(np.int64)
    if weight != 1.0:
        product = np.rint(weight * delta.astype(np.float64))
        if not ((product >= -(2.0**63)) & (product < 2.0**63)).all():
            raise overflow_error()
        term = product.astype(np.int64)
    result = total + term
    if (((total ^ result) & (term ^ result)) < 0).any():
        raise overflow_error()
    return result


@np.errstate(over="ignore")
def from_units(total: Units, unit: float, dtype: np.dtype[np.floating]) -> Vector:
    """The sum as numbers of the model's dtype, infinite where it does not fit."""
    return (total * unit).astype(dtype)
