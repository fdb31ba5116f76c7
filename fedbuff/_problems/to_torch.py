"""A network's layers as a PyTorch module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import layers as L
from .._base.files import optional
from ..layers._layer import Layer, Shape, pair
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
        case L.RandomCrop() | L.RandomFlip():
            return [_augment(nn, layer)]
        case L.Embedding(n_words, width):
            return [nn.Embedding(n_words, width)]
        case L.MeanOverTime() | L.LastStep():
            return [_of_sequence(nn, last=isinstance(layer, L.LastStep))]
        case L.LSTM(width, last, bias) | L.GRU(width, last, bias):
            made = (nn.LSTM if isinstance(layer, L.LSTM) else nn.GRU)(shape[1], width, bias=bias, batch_first=True)
            return [_states(nn, made), *([_of_sequence(nn, last=True)] if last else [])]
        case L.Residual(body, shortcut):
            return [_residual(nn, _sequential(nn, body, shape), _sequential(nn, shortcut, shape))]
    same: dict[type, Any] = {L.ReLU: nn.ReLU, L.GELU: nn.GELU, L.SiLU: nn.SiLU, L.Tanh: nn.Tanh}
    same |= {L.Sigmoid: nn.Sigmoid, L.Flatten: nn.Flatten}
    return [same[type(layer)]()]


def _augment(nn: Any, layer: L.RandomCrop | L.RandomFlip) -> Any:
    torch = optional("torch", "torch", "to_torch")

    class Augment(nn.Module):  # type: ignore[misc]
        """Moves or turns each image by torch's own draws while it trains."""

        def forward(self, x: Any) -> Any:
            if not self.training:
                return x
            if isinstance(layer, L.RandomFlip):
                return torch.where(torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5, x.flip(3), x)
            down, right = pair("", layer.padding, low=0)
            padded = nn.functional.pad(x, (right, right, down, down))
            places = zip(*(torch.randint(0, 2 * n + 1, (len(x),)).tolist() for n in (down, right)), strict=True)
            height, width = x.shape[2:]
            return torch.stack(
                [row[:, v : v + height, u : u + width] for row, (v, u) in zip(padded, places, strict=True)]
            )

    return Augment()


def _of_sequence(nn: Any, last: bool) -> Any:
    class OfSequence(nn.Module):  # type: ignore[misc]
        """The last step of sequences (rows, time, features), or the mean over all steps."""

        def forward(self, x: Any) -> Any:
            return x[:, -1] if last else x.mean(1)

    return OfSequence()


def _states(nn: Any, recurrent: Any) -> Any:
    class States(nn.Module):  # type: ignore[misc]
        """The states of all steps of an LSTM or a GRU."""

        def __init__(self) -> None:
            super().__init__()
            self.recurrent = recurrent

        def forward(self, x: Any) -> Any:
            return self.recurrent(x)[0]

    return States()


def _residual(nn: Any, body: Any, shortcut: Any) -> Any:
    class Residual(nn.Module):  # type: ignore[misc]
        """body(x) + shortcut(x)."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.shortcut = body, shortcut

        def forward(self, x: Any) -> Any:
            return self.body(x) + self.shortcut(x)

    return Residual()
