"""Layers that show a client other images than it has, by chance, in local steps only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..backends.spec import LayerSpec
from ._layer import Layer, Part, Shape, image_of, pair

__all__ = ["RandomCrop", "RandomFlip"]


@dataclass(frozen=True, slots=True)
class RandomCrop(Layer):
    """Of the image with zeros around it, as much as it was, at a random place; in local steps only.

    padding  zeros on each side: one int, or (height, width). Every place is as likely as another. It is a function of
             the seed, the client, the task, the local step and the row's place in the batch; `loss`, `grad`,
             `client_grad` and `accuracy` see images as they are.
    """

    padding: int | tuple[int, int]
    kind: ClassVar[str] = "random_crop"

    def __post_init__(self) -> None:
        object.__setattr__(self, "padding", pair("padding", self.padding, low=0))

    def _part(self, shape: Shape, path: str) -> Part:
        image_of(shape)
        down, right = pair("", self.padding, low=0)
        return Part((LayerSpec(kind="random_crop", padding=(down, down, right, right)),), shape)


@dataclass(frozen=True, slots=True)
class RandomFlip(Layer):
    """Left and right change places with probability 1/2; in local steps only, by draws as those of `RandomCrop`."""

    kind: ClassVar[str] = "random_flip"

    def _part(self, shape: Shape, path: str) -> Part:
        image_of(shape)
        return Part((LayerSpec(kind="random_flip"),), shape)
