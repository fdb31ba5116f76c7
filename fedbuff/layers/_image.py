"""Layers of images: convolutions and pools, and what makes a vector of an image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from .._base.checks import flag
from ..backends.spec import LayerSpec
from ._layer import Layer, Part, Shape, Weight, check_row, image_of, pair, size

__all__ = ["AvgPool2d", "Conv2d", "Flatten", "GlobalAvgPool2d", "MaxPool2d"]

Sides = tuple[int, int, int, int]  # top, bottom, left, right


@dataclass(frozen=True, slots=True)
class Conv2d(Layer):
    """A convolution over images, as torch.nn.Conv2d.

    out_channels  channels behind it
    kernel_size   one int, or (height, width)
    stride        one int, or (height, width)
    padding       zeros on each side: one int, (height, width), or "same", which keeps height and width
    groups        channels are in so many groups, and each output channel sees one of them; as many groups as there are
                  channels make a depthwise convolution
    bias          whether a number is added to each output channel
    """

    out_channels: int
    kernel_size: int | tuple[int, int]
    stride: int | tuple[int, int] = 1
    padding: int | tuple[int, int] | str = 0
    groups: int = 1
    bias: bool = True
    kind: ClassVar[str] = "conv2d"

    def __post_init__(self) -> None:
        _set(self, "out_channels", size("out_channels", self.out_channels))
        _set(self, "kernel_size", pair("kernel_size", self.kernel_size))
        _set(self, "stride", pair("stride", self.stride))
        if isinstance(self.padding, str):
            if self.padding != "same":
                raise ValueError(f"padding: expected an int, two, or 'same', got {self.padding!r}")
            if self.stride != (1, 1):
                raise ValueError(f"padding: expected stride 1 with 'same', got stride {self.stride}")
        else:
            _set(self, "padding", pair("padding", self.padding, low=0))
        _set(self, "groups", size("groups", self.groups))
        _set(self, "bias", flag("bias", self.bias))
        if self.out_channels % self.groups:
            raise ValueError(f"groups: expected a divisor of out_channels={self.out_channels}, got {self.groups}")

    def _part(self, shape: Shape, path: str) -> Part:
        channels, *_ = image_of(shape)
        if channels % self.groups:
            raise ValueError(f"groups={self.groups} does not divide the {channels} channels of {shape}")
        kernel, stride = pair("", self.kernel_size), pair("", self.stride)
        sides = _same(kernel) if isinstance(self.padding, str) else _sides(pair("", self.padding, low=0))
        height, width = _windows(shape, kernel, stride, sides)
        each, area = channels // self.groups, math.prod(kernel)
        weight = Weight(
            "weight", (self.out_channels, each, *kernel), "by activation", each * area, self.out_channels * area
        )
        record = LayerSpec(
            kind="conv2d", out=self.out_channels, kernel=kernel, stride=stride, padding=sides, groups=self.groups,
            bias=self.bias,
        )  # fmt: skip
        weights = (weight, Weight("bias", (self.out_channels,))) if self.bias else (weight,)
        return Part((record,), check_row((self.out_channels, height, width)), (weights,))


@dataclass(frozen=True, slots=True)
class _Pool(Layer):
    """What makes one number of each window of each channel."""

    kernel_size: int | tuple[int, int]
    stride: int | tuple[int, int] | None = None
    padding: int | tuple[int, int] = 0
    record: ClassVar[str]

    def __post_init__(self) -> None:
        kernel = pair("kernel_size", self.kernel_size)
        padding = pair("padding", self.padding, low=0)
        if any(2 * side > whole for side, whole in zip(padding, kernel, strict=True)):
            raise ValueError(f"padding: expected at most half of kernel_size={kernel}, got {padding}")
        _set(self, "kernel_size", kernel)
        _set(self, "stride", kernel if self.stride is None else pair("stride", self.stride))
        _set(self, "padding", padding)

    def _part(self, shape: Shape, path: str) -> Part:
        channels, *_ = image_of(shape)
        kernel, stride = pair("", self.kernel_size), pair("", self.stride)
        sides = _sides(pair("", self.padding, low=0))
        height, width = _windows(shape, kernel, stride, sides)
        record = LayerSpec(kind=self.record, kernel=kernel, stride=stride, padding=sides)
        return Part((record,), (channels, height, width))


@dataclass(frozen=True, slots=True)
class MaxPool2d(_Pool):
    """The largest number of each window, as torch.nn.MaxPool2d; the gradient goes to the first of equal ones.

    kernel_size  one int, or (height, width)
    stride       one int, or (height, width); None is the kernel's size
    padding      on each side, at most half the kernel's size; what is there is never the largest
    """

    kind: ClassVar[str] = "max_pool2d"
    record: ClassVar[str] = "max_pool"


@dataclass(frozen=True, slots=True)
class AvgPool2d(_Pool):
    """The mean of each window, as torch.nn.AvgPool2d: padding counts as zeros. Arguments as for `MaxPool2d`."""

    kind: ClassVar[str] = "avg_pool2d"
    record: ClassVar[str] = "avg_pool"


@dataclass(frozen=True, slots=True)
class GlobalAvgPool2d(Layer):
    """The mean of each channel, which makes a vector of an image: torch.nn.AdaptiveAvgPool2d(1) and Flatten."""

    kind: ClassVar[str] = "global_avg_pool2d"

    def _part(self, shape: Shape, path: str) -> Part:
        return Part((LayerSpec(kind="global_avg"),), image_of(shape)[:1])


@dataclass(frozen=True, slots=True)
class Flatten(Layer):
    """A vector of an image, in the order (channels, height, width), or of a sequence, in the order (time, features)."""

    kind: ClassVar[str] = "flatten"

    def _part(self, shape: Shape, path: str) -> Part:
        return Part((LayerSpec(kind="flatten"),), (math.prod(shape),))


def _set(layer: Layer, name: str, value: Any) -> None:
    object.__setattr__(layer, name, value)


def _same(kernel: tuple[int, int]) -> Sides:
    (top, bottom), (left, right) = (((k - 1) // 2, k - 1 - (k - 1) // 2) for k in kernel)
    return top, bottom, left, right


def _sides(padding: tuple[int, int]) -> Sides:
    return padding[0], padding[0], padding[1], padding[1]


def _windows(shape: Shape, kernel: tuple[int, int], stride: tuple[int, int], sides: Sides) -> tuple[int, int]:
    """How many windows an image has, down and across."""
    _, height, width = shape
    padded = height + sides[0] + sides[1], width + sides[2] + sides[3]
    if kernel[0] > padded[0] or kernel[1] > padded[1]:
        with_padding = f", {padded} with its padding" if any(sides) else ""
        raise ValueError(f"its kernel of {kernel} does not fit into an image of shape {shape}{with_padding}")
    return (padded[0] - kernel[0]) // stride[0] + 1, (padded[1] - kernel[1]) // stride[1] + 1
