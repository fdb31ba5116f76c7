"""Norms of single rows, and why there is none over a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from .._base.checks import flag, number
from ..backends.spec import LayerSpec
from ._layer import Layer, Part, Shape, Weight, described, image_of, size

__all__ = ["BatchNorm", "GroupNorm", "LayerNorm"]


@dataclass(frozen=True, slots=True)
class GroupNorm(Layer):
    """Each of num_groups groups of an image's channels gets mean 0 and variance 1, as torch.nn.GroupNorm.

    eps     is added to the variance
    affine  whether each channel is then multiplied by a weight and added to a bias
    """

    num_groups: int
    eps: float = 1e-5
    affine: bool = True
    kind: ClassVar[str] = "group_norm"

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_groups", size("num_groups", self.num_groups))
        object.__setattr__(self, "eps", number("eps", self.eps, open_low=True))
        object.__setattr__(self, "affine", flag("affine", self.affine))

    def _part(self, shape: Shape, path: str) -> Part:
        channels, *_ = image_of(shape)
        if channels % self.num_groups:
            raise ValueError(f"num_groups={self.num_groups} does not divide the {channels} channels of {shape}")
        record = LayerSpec(kind="group_norm", out=self.num_groups, number=self.eps, bias=self.affine)
        return Part((record,), shape, (_affine((channels,)) if self.affine else (),))


@dataclass(frozen=True, slots=True)
class LayerNorm(Layer):
    """All numbers of a row together get mean 0 and variance 1, as torch.nn.LayerNorm over the shape of a row.

    eps     is added to the variance
    affine  whether each number is then multiplied by a weight and added to a bias of its own
    """

    eps: float = 1e-5
    affine: bool = True
    kind: ClassVar[str] = "layer_norm"

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", number("eps", self.eps, open_low=True))
        object.__setattr__(self, "affine", flag("affine", self.affine))

    def _part(self, shape: Shape, path: str) -> Part:
        if len(shape) == 2:
            raise ValueError(f"expected an image or a vector, got {described(shape)}")
        record = LayerSpec(kind="layer_norm", number=self.eps, bias=self.affine)
        return Part((record,), shape, (_affine(shape) if self.affine else (),))


class BatchNorm(Layer):
    """Refused: its running statistics are no weights, so that no delta carries them and clients would not agree.

    Use `GroupNorm`, which works on single rows and has weights only.
    """

    __slots__ = ()
    kind: ClassVar[str] = "batch_norm"

    def __init__(
        self,
        num_features: Any = None,
        eps: Any = None,
        momentum: Any = None,
        affine: Any = None,
        track_running_stats: Any = None,
    ) -> NoReturn:
        raise ValueError(
            "BatchNorm: its running statistics are not part of a delta, so that clients and server would not have the "
            "same model; use GroupNorm"
        )


def _affine(shape: Shape) -> tuple[Weight, ...]:
    return Weight("weight", shape, "ones"), Weight("bias", shape)
