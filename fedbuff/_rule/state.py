"""What a rule keeps between two server steps: the names, shapes and types of its arrays in files and checkpoints.

first second third   (dim) of the model's dtype: the optimizer's moments, as many as it has
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import all_finite
from .strategies import Rule

__all__ = ["MOMENTS", "check_state", "state_names"]

MOMENTS = ("first", "second", "third")


def state_names(rule: Rule) -> tuple[str, ...]:
    """The arrays that a rule keeps."""
    return MOMENTS[: len(rule.optimizer.moments)]


def check_state(rule: Rule, state: dict[str, NDArray[Any]], dim: int, dtype: np.dtype[Any]) -> None:
    """ValueError unless these are the arrays of a rule, for a model of this size and dtype."""
    for name in state_names(rule):
        if name not in state:
            raise ValueError(f"{name} is missing")
        value = state[name]
        if value.dtype != dtype or value.shape != (dim,):
            raise ValueError(f"{name} is {value.dtype} {value.shape}, expected {dtype} ({dim},)")
        if not all_finite(value):
            raise ValueError(f"{name} is not finite")
    for name, moment in zip(rule.optimizer.moments, MOMENTS, strict=False):
        if moment in state and name in ("second", "largest") and np.any(state[moment] < 0):
            raise ValueError(f"{moment} has negative numbers")
    if extra := set(state) - set(state_names(rule)):
        raise ValueError(f"{min(extra)}: its rule keeps none")
