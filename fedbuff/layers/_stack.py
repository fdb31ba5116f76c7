"""A list of layers, followed by the shape of a row: what a network becomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .._base.checks import shown
from ..backends.spec import LayerSpec
from ._layer import Layer, Part, Shape, Tokens, described

__all__ = ["MOST_RECORDS", "Residual", "layers_of", "stack"]

MOST_RECORDS = 512  # kMostNetworkLayers in csrc/core/kernels/network.hpp


def layers_of(name: str, given: Any) -> tuple[Layer, ...]:
    """Layers in a list, or an error that names the argument."""
    if isinstance(given, Layer | str | bytes | Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"{name}: expected a list of layers, got {shown(given)}")
    layers = tuple(given)
    for at, layer in enumerate(layers):
        if not isinstance(layer, Layer):
            hint = "()" if isinstance(layer, type) and issubclass(layer, Layer) else ""
            said = f"; write {layer.__name__}{hint}" if hint else ""
            raise TypeError(f"{name}[{at}]: expected a layer of fedbuff.layers, got {shown(layer)}{said}")
    return layers


def stack(layers: Sequence[Layer], shape: Shape, path: str = "layers", shapes: list[Shape] | None = None) -> Part:
    """All layers together; a ValueError names the first whose input does not fit. `shapes` gets those behind each."""
    records: list[LayerSpec] = []
    weights: list[Any] = []
    for at, layer in enumerate(layers):
        here = f"{path}[{at}]"
        try:
            if isinstance(shape, Tokens) and layer._takes != "tokens":
                raise ValueError("expected an Embedding as first layer, as X has tokens")
            part = layer._part(shape, here)
        except _Located:
            raise
        except ValueError as error:
            raise _Located(f"{here} ({type(layer).__name__}): {error}") from None
        records += part.records
        weights += part.weights
        shape = part.shape
        if shapes is not None:
            shapes.append(shape)
    if len(records) > MOST_RECORDS:
        raise ValueError(f"{path}: expected at most {MOST_RECORDS} layers, got {len(records)}")
    return Part(tuple(records), shape, tuple(weights))


class _Located(ValueError):
    """A misfit whose text names the layer already."""


@dataclass(frozen=True, slots=True)
class Residual(Layer):
    """The layers' output plus the shortcut's: what goes through a list of layers is added to what goes around them.

    Without layers in `shortcut`, the input itself is added. Both must have the same shape.
    """

    layers: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()
    kind: ClassVar[str] = "residual"

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", layers_of("layers", self.layers))
        object.__setattr__(self, "shortcut", layers_of("shortcut", self.shortcut))
        if not self.layers:
            raise ValueError("layers: expected at least one layer")

    def _part(self, shape: Shape, path: str) -> Part:
        body = stack(self.layers, shape, f"{path}.layers")
        around = stack(self.shortcut, shape, f"{path}.shortcut")
        if body.shape != around.shape:
            raise ValueError(
                f"its layers give {described(body.shape)}, its shortcut {described(around.shape)}; "
                "a Conv2d(channels, 1, stride=...) in shortcut makes them alike"
            )
        marks = tuple(LayerSpec(kind=kind) for kind in ("residual", "shortcut", "end_residual"))
        records = (marks[0], *body.records, marks[1], *around.records, marks[2])
        return Part(records, body.shape, ((), *body.weights, (), *around.weights, ()))
