"""Dense layers, and those that work number by number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .._base.checks import flag, number, real
from ..backends.spec import LayerSpec
from ._layer import Layer, Part, Shape, Weight, size, vector_of

__all__ = ["GELU", "Dense", "Dropout", "LeakyReLU", "ReLU", "SiLU", "Sigmoid", "Tanh"]


@dataclass(frozen=True, slots=True)
class Dense(Layer):
    """weight x + bias for a vector x, as torch.nn.Linear."""

    out_features: int
    bias: bool = True
    kind: ClassVar[str] = "dense"

    def __post_init__(self) -> None:
        object.__setattr__(self, "out_features", size("out_features", self.out_features))
        object.__setattr__(self, "bias", flag("bias", self.bias))

    def _part(self, shape: Shape, path: str) -> Part:
        n_in, n_out = vector_of(shape), self.out_features
        weight = Weight("weight", (n_out, n_in), "by activation", n_in, n_out)
        weights = (weight, Weight("bias", (n_out,))) if self.bias else (weight,)
        return Part((LayerSpec(kind="dense", out=n_out, bias=self.bias),), (n_out,), (weights,))


class _Same(Layer):
    """A layer that changes numbers one by one."""

    __slots__ = ()
    _record: ClassVar[str]

    def _part(self, shape: Shape, path: str) -> Part:
        return Part((LayerSpec(kind=self._record),), shape)


@dataclass(frozen=True, slots=True)
class ReLU(_Same):
    """max(x, 0); its slope at 0 is 0."""

    kind: ClassVar[str] = "relu"
    _record: ClassVar[str] = "relu"


@dataclass(frozen=True, slots=True)
class LeakyReLU(Layer):
    """x above 0, negative_slope x elsewhere."""

    negative_slope: float = 0.01
    kind: ClassVar[str] = "leaky_relu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "negative_slope", real("negative_slope", self.negative_slope))

    def _part(self, shape: Shape, path: str) -> Part:
        return Part((LayerSpec(kind="leaky_relu", number=self.negative_slope),), shape)


@dataclass(frozen=True, slots=True)
class GELU(_Same):
    """x Phi(x), Phi the distribution function of a standard normal variable: torch.nn.GELU without approximation."""

    kind: ClassVar[str] = "gelu"
    _record: ClassVar[str] = "gelu"


@dataclass(frozen=True, slots=True)
class SiLU(_Same):
    """x / (1 + exp(-x))."""

    kind: ClassVar[str] = "silu"
    _record: ClassVar[str] = "silu"


@dataclass(frozen=True, slots=True)
class Tanh(_Same):
    """tanh(x)."""

    kind: ClassVar[str] = "tanh"
    _record: ClassVar[str] = "tanh"


@dataclass(frozen=True, slots=True)
class Sigmoid(_Same):
    """1 / (1 + exp(-x))."""

    kind: ClassVar[str] = "sigmoid"
    _record: ClassVar[str] = "sigmoid"


@dataclass(frozen=True, slots=True)
class Dropout(Layer):
    """Each number of a row is 0 with probability p, else divided by 1 - p; in local steps only.

    What is dropped is a function of the seed, the client, the task and the local step. `loss`, `grad`, `client_grad`
    and `accuracy` drop nothing, as a PyTorch module does after eval().
    """

    p: float = 0.5
    kind: ClassVar[str] = "dropout"

    def __post_init__(self) -> None:
        p = number("p", self.p, high=1.0)
        if p == 1.0:
            raise ValueError("p: expected a number >= 0 and < 1, got 1.0")
        object.__setattr__(self, "p", p)

    def _part(self, shape: Shape, path: str) -> Part:
        return Part((LayerSpec(kind="dropout", number=self.p),), shape)
