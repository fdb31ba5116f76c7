"""Weights that a server makes from the numbers of a delta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from .._base.checks import choice, number

__all__ = ["DeltaWeight"]

By = Literal["none", "norm", "way", "ratio", "last_step", "sum"]


@dataclass(frozen=True, slots=True)
class DeltaWeight:
    """q_j, a factor of an arrival's weight s_j e_j, from its delta and the server's model.

    >>> import fedbuff as fb
    >>> fb.FedBuff(1, 0.5, weight_by=fb.DeltaWeight("ratio", epsilon=0.1)).rule.needs_start  # AsyncFedED
    True

    by       "none"       1
             "norm"       1 / (|delta| + epsilon)
             "way"        1 / (|w - start| + epsilon): the way of the server's model since the client's download
             "ratio"      1 / (|w - start| / |delta| + epsilon)
             "last_step"  (1 + cos(delta, last server step)) / 2; 1 before the first step
             "sum"        (1 + cos(delta, sum of the buffer so far)) / 2; 1 for the first arrival of a buffer
    clip     times min(1, clip / |delta|)

    Norms and products are summed in float64. The server's step has the direction of deltas: from the new model to the
    old one.
    """

    by: By = "none"
    epsilon: float = 1e-8
    clip: float | None = None

    def __post_init__(self) -> None:
        choice("by", self.by, get_args(By))
        number("epsilon", self.epsilon, open_low=True)
        if self.clip is not None:
            number("clip", self.clip, open_low=True)

    @property
    def needs_start(self) -> bool:
        """Whether it needs the model that the client downloaded."""
        return self.by in ("way", "ratio")

    def fields(self) -> dict[str, float]:
        """The fields of `fb_rule` that it decides."""
        return {
            "weight_by": get_args(By).index(self.by),
            "weight_epsilon": self.epsilon,
            "weight_clip": self.clip or 0.0,
        }
