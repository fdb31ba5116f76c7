"""What every implementation of `Server` refuses, and in which words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._strategy import INVERSE_FREQUENCY, Rule, rule_of

__all__ = ["norm_error", "not_finite", "positive", "server_rule", "version_error"]


def server_rule(strategy: object) -> Rule:
    """The rule of a strategy for a server that is fed by hand, and so sees no schedule."""
    rule = rule_of(strategy)
    if rule.weighting == INVERSE_FREQUENCY:
        rule.sample_weight(1.0)  # raises, in the rule's own words
    return rule


def positive(name: str, value: float) -> float:
    number = float(value)
    if not math.isfinite(number) or number <= 0:
        raise ValueError(f"{name}: expected a finite number > 0, got {number}")
    return number


def version_error(version: int, current: int) -> ValueError:
    """The error for a version with no download due, at a server that is at `current`."""
    if 0 <= version <= current:
        return ValueError(f"version {version} has no download left to return")
    return ValueError(f"version {version} was never given out; the server is at version {current}")


def norm_error() -> ValueError:
    return ValueError("the weights of this buffer sum to zero, there is nothing to divide by; nothing was added")


def not_finite(delta: np.ndarray[Any, Any]) -> ValueError:
    index = int(np.argmin(np.isfinite(delta)))
    return ValueError(f"delta: element {index} is {delta[index]}; nothing was added")
