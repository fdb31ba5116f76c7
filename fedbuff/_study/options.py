"""The table [replay], as an object."""

from __future__ import annotations

from dataclasses import dataclass

from .._base.checks import count
from .._replay.stop import Stop

__all__ = ["ReplayOptions"]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The table [replay]. eval_every None evaluates about a hundred times; metrics None is the loss, and the accuracy
    where the problem has one."""

    eval_every: int | None = None
    metrics: tuple[str, ...] | None = None
    stop: Stop | None = None
    threads: int | None = None
    checkpoint_every: int = 1000

    def __post_init__(self) -> None:
        for name in ("eval_every", "threads", "checkpoint_every"):
            if getattr(self, name) is not None:
                count(name, getattr(self, name))
        if self.metrics is not None:
            if isinstance(self.metrics, str) or not all(isinstance(name, str) for name in self.metrics):
                raise TypeError("metrics: expected a list of names")
            object.__setattr__(self, "metrics", tuple(self.metrics))
