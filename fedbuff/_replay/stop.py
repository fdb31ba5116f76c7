"""`Stop`: limits of a replay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._base.checks import count, number

__all__ = ["Stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """When to stop before the schedule ends; whatever comes first.

    server_steps, time (virtual, seconds) and updates (client updates) are exact: no step beyond them is made. loss,
    grad_norm_sq (at or below) and accuracy (at or above) are looked at when the model is evaluated.
    """

    server_steps: int | None = None
    time: float | None = None
    updates: int | None = None
    loss: float | None = None
    grad_norm_sq: float | None = None
    accuracy: float | None = None

    def __post_init__(self) -> None:
        for name in ("server_steps", "updates"):
            if getattr(self, name) is not None:
                count(name, getattr(self, name), low=0)
        for name in ("time", "loss", "grad_norm_sq", "accuracy"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), low=-np.inf if name == "loss" else 0.0)
