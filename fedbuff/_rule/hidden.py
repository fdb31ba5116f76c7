"""The model that clients download, where it is not the server's own."""

from __future__ import annotations

from dataclasses import dataclass

from .._base.checks import count, seed_of

__all__ = ["HiddenModel"]

MOST_LEVELS = 2**20


@dataclass(frozen=True, slots=True)
class HiddenModel:
    """QAFeL's hidden model, which clients download: after a step it moves by the difference from the server's own
    model, quantised by QSGD to so many levels, which is all that has to be sent.

    >>> import fedbuff as fb
    >>> fb.FedBuff(2, hidden=fb.HiddenModel(levels=15)).rule.hidden
    HiddenModel(levels=15, seed=0)

    seed  of the roundings, from 0 to 2^64 - 1; those of step t are the same in every run
    """

    levels: int
    seed: int = 0

    def __post_init__(self) -> None:
        count("levels", self.levels, high=MOST_LEVELS)
        seed_of(self.seed)
