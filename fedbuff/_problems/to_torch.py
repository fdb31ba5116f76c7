"""A network's layers as a PyTorch module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import layers as L
from .._base.files import optional
from ..layers._layer import Layer, Shape
from ..layers._stack import stack
from .base import Floats

__all__ = ["module_of"]


def module_of(layers: Sequence[Layer], shape: Shape, w: Floats) -> Any:
    """A torch.nn.Sequential with these weights, for rows of this shape."""
    torch = optional("torch", "torch", "to_torch")
    module = _sequential(torch.nn, layers, shape).to(torch.float64 if w.itemsize == 8 else torch.float32)
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(torch.from_numpy(w.copy()), module.parameters())
    return module


def _sequential(nn: Any, layers: Sequence[Layer], shape: Shape) -> Any:
    modules = []
    for layer in layers:
        modules += _modules(nn, layer, shape)
        shape = stack([layer], shape).shape
    return nn.Sequential(*modules)


def _modules(nn: Any, layer: Layer, shape: Shape) -> list[Any]:
    match layer:
        case L.Conv2d(out, kernel, stride, padding, groups, bias):
            return [nn.Conv2d(shape[0], out, kernel, stride, padding, groups=groups, bias=bias)]
        case L.MaxPool2d(kernel, stride, padding):
            return [nn.MaxPool2d(kernel, stride, padding)]
        case L.AvgPool2d(kernel, stride, padding):
            return [nn.AvgPool2d(kernel, stride, padding)]
        case L.GlobalAvgPool2d():
            return [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        case L.Dense(out, bias):
            return [nn.Linear(shape[0], out, bias)]
        case L.LeakyReLU(slope):
            return [nn.LeakyReLU(slope)]
        case L.Dropout(p):
            return [nn.Dropout(p)]
        case L.GroupNorm(groups, eps, affine):
            return [nn.GroupNorm(groups, shape[0], eps, affine)]
        case L.LayerNorm(eps, affine):
            return [nn.LayerNorm(shape, eps, affine)]
        case L.Residual(body, shortcut):
            return [_residual(nn, _sequential(nn, body, shape), _sequential(nn, shortcut, shape))]
    same: dict[type, Any] = {L.ReLU: nn.ReLU, L.GELU: nn.GELU, L.SiLU: nn.SiLU, L.Tanh: nn.Tanh}
    same |= {L.Sigmoid: nn.Sigmoid, L.Flatten: nn.Flatten}
    return [same[type(layer)]()]


def _residual(nn: Any, body: Any, shortcut: Any) -> Any:
    class Residual(nn.Module):  # type: ignore[misc]
        """body(x) + shortcut(x)."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.shortcut = body, shortcut

        def forward(self, x: Any) -> Any:
            return self.body(x) + self.shortcut(x)

    return Residual()
