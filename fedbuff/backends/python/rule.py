"""The server rule: weights, norm, base, sum and step. `Server`, `DeltaBuffer` and the replay use these functions.

contribution_j = weight_j (delta_j + rebase_j), weight_j = s_j e_j, rebase_j = 0 or current - start_j; contributions are
added in the order of arrival; the optimizer moves the model by sum / norm. Weights and their sums are float64; a weight
is rounded to the model's dtype before it multiplies a delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._rule.optimizers import SGD, Adam, optimizer_fields
from ..._rule.server_errors import overflow_error
from ..._rule.strategies import Rule
from ..spec import EncodeNumbers, Moments, QuantizeNumbers, StepNumbers, Vector, Words
from .compression import Compress
from .philox import Stream

__all__ = [
    "Kernels",
    "WeightSums",
    "accumulate_fixed",
    "add_contribution",
    "fixed_weight",
    "from_units",
    "hidden_after",
    "initial_moments",
    "step_model",
]

Units = NDArray[np.signedinteger[Any]]

_WEIGHT_STEP = 2.0**-24  # weights are multiples of it where deltas are integers
_MOST_WEIGHT = 2.0**29  # sums of such weights are exact below it


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The functions of a backend that a server or a replay needs, as in `Backend`."""

    accumulate: Callable[[Vector, Vector, float, Vector | None, Vector | None, Vector], bool]
    sgd_step: Callable[[Vector, Vector, float, float, float, Vector | None, Vector], None]
    adam_step: Callable[[Vector, Vector, StepNumbers, Moments, Vector], None]
    optimizer_step: Callable[[int, Vector, Vector, StepNumbers, Moments, Vector], None]
    encode_add: Callable[[Words | None, Vector, EncodeNumbers, Words], int]
    decode: Callable[[Words, float, Vector], None]
    dot: Callable[[Vector, Vector], float]
    normals: Callable[[int, int, int, int, int, int], NDArray[np.float64]]
    quantize: Callable[[Vector, QuantizeNumbers, Vector], None]
    compress: Compress


class WeightSums(NamedTuple):
    """Sums over the arrivals of a buffer: how many, of e, and of s e; and the largest staleness."""

    arrivals: int = 0
    e: float = 0.0
    se: float = 0.0
    staleness: int = 0

    def weigh(
        self, s: float, e: float, staleness: int, q: float = 1.0, *, fixed: bool = False
    ) -> tuple[WeightSums, float]:
        """The sums with one more arrival, and its weight; `fixed`: deltas are integers, and weights multiples of
        2**-24, whose sums must be exact."""
        weight = s * e * q
        if fixed:
            e, weight = fixed_weight(e), fixed_weight(weight)
        sums = WeightSums(self.arrivals + 1, self.e + e, self.se + weight, max(self.staleness, staleness))
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


def weight_of_numbers(
    kernels: Kernels,
    rule: Rule,
    delta: Vector,
    w: Vector,
    start: Vector | None,
    last_step: Vector | None,
    total: Vector | None,
) -> float:
    """q of a delta: `start` is None where it is w, `total` for the first arrival of a buffer."""
    made = rule.weight_by
    if not rule.weighs_numbers:
        return 1.0
    norm = math.sqrt(kernels.dot(delta, delta))
    q = 1.0
    if made.by == "norm":
        q = 1.0 / (norm + made.epsilon)
    elif made.needs_start:
        moved = np.zeros_like(w) if start is None else w - start
        way = math.sqrt(kernels.dot(moved, moved))
        if made.by == "ratio" and way > 0:
            way = way / norm if norm > 0 else math.inf
        q = 1.0 / (way + made.epsilon)
    elif made.by in ("last_step", "sum"):
        other = last_step if made.by == "last_step" else total
        length = 0.0 if other is None else norm * math.sqrt(kernels.dot(other, other))
        if other is not None and length > 0:
            q = 0.5 * (1.0 + kernels.dot(delta, other) / length)
    if made.clip is not None and norm > made.clip:
        q *= made.clip / norm
    return q


def initial_moments(rule: Rule, w: Vector) -> Moments:
    """The optimizer's moments before the first step."""
    initial = getattr(rule.optimizer, "initial", 0.0)
    return tuple(np.full_like(w, initial if i > 0 else 0.0) for i in range(len(rule.optimizer.moments)))


def step_model(
    kernels: Kernels, rule: Rule, w: Vector, total: Vector, sums: WeightSums, version: int, moments: Moments
) -> Vector:
    """The model of `version` + 1, from a buffer with these sums. The moments are changed in place."""
    optimizer, out, norm = rule.optimizer, np.empty_like(w), sums.norm(rule)
    lr = rule.lr_of(version, sums.staleness)
    if isinstance(optimizer, SGD):
        kernels.sgd_step(w, total, lr, norm, optimizer.momentum, moments[0] if moments else None, out)
        return out
    given = optimizer_fields(optimizer)
    known = {name: given[name] for name in StepNumbers._fields if name in given}
    numbers = StepNumbers(lr=lr, norm=norm, step=version + 1, **known)  # type: ignore[arg-type]
    if isinstance(optimizer, Adam) and optimizer.bias_correction:
        kernels.adam_step(w, total, numbers, moments, out)
    else:
        kernels.optimizer_step(optimizer.code, w, total, numbers, moments, out)
    return out


def hidden_after(kernels: Kernels, rule: Rule, hidden: Vector, own: Vector, version: int) -> Vector:
    """The hidden model after the step from `version`, when the server's own is `own`: hidden + (own - hidden,
    quantised)."""
    assert rule.hidden is not None
    difference = own - hidden
    norm = math.sqrt(kernels.dot(difference, difference))
    low, high = version & 0xFFFFFFFF, version >> 32
    numbers = QuantizeNumbers(norm, rule.hidden.levels, rule.hidden.seed, low, high, Stream.HIDDEN_MODEL)
    kernels.quantize(difference, numbers, difference)
    result: Vector = difference + hidden
    return result


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
