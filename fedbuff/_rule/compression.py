"""Compression of uploads: what a client sends in the place of its delta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from .._base.checks import choice, count, flag, number

__all__ = ["Compression"]

Kind = Literal["top_k", "random_k", "qsgd", "sign", "bfloat16"]
MOST_LEVELS = 2**20
_KEEPS = ("top_k", "random_k")


@dataclass(frozen=True, slots=True)
class Compression:
    """What a client sends in the place of its delta.

    >>> import fedbuff as fb
    >>> fb.Compression("top_k", share=0.01, error_feedback=True).upload_bytes(10_000, 4)
    800

    kind            "top_k": the largest numbers, of equals the first; the others are zero
                    "random_k": numbers at random places, times dim / kept; the others are zero. Unbiased
                    "qsgd": whole multiples of the delta's length / levels, rounded by chance. Unbiased
                    "sign": the mean of all sizes, with the number's sign
                    "bfloat16": the nearest numbers of 16 bits
    share           of the numbers that top_k and random_k keep: the nearest whole number, halves up, at least one
    levels          of qsgd
    error_feedback  what was not sent is added to the client's next delta. random_k does not multiply then, and qsgd
                    does not have it
    """

    kind: Kind
    share: float | None = None
    levels: int | None = None
    error_feedback: bool = False

    def __post_init__(self) -> None:
        choice("kind", self.kind, get_args(Kind))
        if self.kind in _KEEPS:
            if self.share is None:
                raise TypeError(f"share: {self.kind} needs it")
            object.__setattr__(self, "share", number("share", self.share, high=1.0, open_low=True))
        elif self.share is not None:
            raise ValueError(f"share: {self.kind} sends all numbers; leave it out")
        if self.kind == "qsgd":
            if self.levels is None:
                raise TypeError("levels: qsgd needs it")
            count("levels", self.levels, high=MOST_LEVELS)
        elif self.levels is not None:
            raise ValueError(f"levels: they are for qsgd; {self.kind} has none")
        if flag("error_feedback", self.error_feedback) and self.kind == "qsgd":
            raise ValueError("error_feedback: qsgd has no bias that it could correct; leave it out")

    def kept(self, dim: int) -> int:
        """How many of so many numbers are sent; 0 where all are."""
        return 0 if self.share is None else max(1, int(self.share * dim + 0.5))

    @property
    def is_unbiased(self) -> bool:
        """Whether the mean of what may be sent is the delta."""
        return self.kind == "qsgd" or (self.kind == "random_k" and not self.error_feedback)

    def upload_bytes(self, dim: int, itemsize: int) -> int:
        """Of one upload, of numbers of so many bytes, without entropy coding.

        top_k: number and place, of 4 bytes. random_k: the numbers; the places follow from client and task. qsgd: the
        length, and a sign and a level for each. sign: the mean, and a bit for each.
        """
        if self.kind == "top_k":
            return self.kept(dim) * (itemsize + 4)
        if self.kind == "random_k":
            return self.kept(dim) * itemsize
        if self.kind == "bfloat16":
            return 2 * dim
        bits = 1 if self.levels is None else 1 + self.levels.bit_length()
        return itemsize + -(-dim * bits // 8)
