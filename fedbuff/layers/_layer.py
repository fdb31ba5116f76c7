"""What all layers share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from .._base.checks import count, shown
from ..backends.spec import LayerSpec

__all__ = ["Layer", "Part", "Tokens", "Weight", "described", "image_of", "pair", "sequence_of", "size", "vector_of"]

Shape = tuple[int, ...]  # of a row: (channels, height, width), (time, features), or (features,)

_MOST_OF_A_SIDE = 2**16 - 1  # of kernels, strides and paddings
_MOST_OF_A_ROW = 2**31 - 1


class Tokens(tuple[int, ...]):
    """The shape of a row of tokens, (time,)."""


@dataclass(frozen=True, slots=True)
class Weight:
    """An array of weights of a layer, as PyTorch has it, and how it starts."""

    name: str
    shape: Shape
    start: Literal["zeros", "ones", "normal", "recurrent", "by activation"] = "zeros"
    fan_in: int = 0
    fan_out: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Part:
    """What a layer becomes where rows of a certain shape reach it."""

    records: tuple[LayerSpec, ...]
    shape: Shape  # of a row behind it
    weights: tuple[tuple[Weight, ...], ...] = ((),)  # of each record


class Layer:
    """A layer of a `fedbuff.Network`: a description without weights, which may stand in several networks."""

    __slots__ = ()
    kind: ClassVar[str]  # its name in tables of a configuration
    _takes: ClassVar[str] = ""  # "tokens" or "sequence": what the rows of X are where it is the first layer

    def _part(self, shape: Shape, path: str) -> Part:
        """The layer behind rows of this shape; a ValueError, without the layer's name, where they do not fit."""
        raise NotImplementedError


def size(name: str, value: Any) -> int:
    """A number of channels, outputs or groups."""
    return count(name, value, high=_MOST_OF_A_ROW)


def pair(name: str, value: Any, low: int = 1) -> tuple[int, int]:
    """(height, width) from one number for both, or from two."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if len(value) != 2:
            raise ValueError(f"{name}: expected one int, or two for height and width, got {shown(value)}")
        height, width = value
    else:
        height = width = value
    return count(name, height, low=low, high=_MOST_OF_A_SIDE), count(name, width, low=low, high=_MOST_OF_A_SIDE)


def described(shape: Shape) -> str:
    if isinstance(shape, Tokens):
        return f"tokens of shape {shape}"
    return f"{('a vector', 'a sequence', 'an image')[len(shape) - 1]} of shape {shape}"


def image_of(shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ValueError(f"expected an image of shape (channels, height, width), got {described(shape)}")
    return shape[0], shape[1], shape[2]


def vector_of(shape: Shape) -> int:
    if len(shape) != 1:
        before = "LastStep(), MeanOverTime() or Flatten()" if len(shape) == 2 else "Flatten()"
        raise ValueError(f"expected a vector of shape (features,), got {described(shape)}; put {before} before it")
    return shape[0]


def sequence_of(shape: Shape) -> tuple[int, int]:
    if len(shape) != 2:
        raise ValueError(f"expected a sequence of shape (time, features), got {described(shape)}")
    return shape[0], shape[1]


def check_row(shape: Shape) -> Shape:
    if math.prod(shape) > _MOST_OF_A_ROW:
        raise ValueError(f"{described(shape)} has more than 2**31 - 1 numbers")
    return shape
