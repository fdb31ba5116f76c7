"""The layers of a network in plain NumPy: what each gives, and how a gradient goes back through it.

A layer is a function of its record, its input and its weights. It returns its output and a function that turns the
gradient by the output into the gradient by the input and those by the weights, in their order. Arrays have a row of the
batch along the first axis: images are (rows, channels, height, width), vectors (rows, features).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ..spec import LayerSpec
from .philox import Stream, philox

__all__ = ["Draws", "network"]

Array = NDArray[Any]
Back = Callable[[Array], tuple[Array, list[Array]]]


@dataclass(frozen=True, slots=True)
class Draws:
    """What the masks of a local step depend on; `position` is the number of each row in the batch."""

    seed: int
    client: int
    task: int
    step: int
    position: Array

    def kept(self, number: int, rate: float, n_elements: int) -> Array:
        """Which elements of each row the dropout layer of this number keeps: (rows, n_elements)."""
        stream = Stream.DROPOUT << 28
        low, high, *_ = philox(self.seed, self.client, self.task, self.step, stream | number)
        blocks = np.arange(-(-n_elements // 4))
        words = philox(int(low) | int(high) << 32, self.position[:, np.newaxis], blocks, 0, stream)
        drawn = np.stack(words, axis=2).reshape(len(self.position), -1)[:, :n_elements]
        return drawn >= np.uint32(math.floor(rate * 2.0**32))


class Weights:
    """The model, taken from its front."""

    def __init__(self, w: Array) -> None:
        self._left = w

    @property
    def left(self) -> int:
        """How many numbers were not taken."""
        return len(self._left)

    def take(self, *shape: int) -> Array:
        n = math.prod(shape)
        taken, self._left = self._left[:n].reshape(shape), self._left[n:]
        return taken


Layer = Callable[[LayerSpec, Array, Weights], tuple[Array, Back]]


def network(layers: Sequence[LayerSpec], x: Array, w: Array, draws: Draws | None) -> tuple[Array, Back]:
    """The scores (rows, outputs); without draws, no layer drops anything."""
    return _Network(draws).chain(list(layers), x, Weights(w))


class _Network:
    def __init__(self, draws: Draws | None) -> None:
        self.draws = draws
        self.dropouts = 0  # those passed so far

    def chain(self, layers: list[LayerSpec], x: Array, weights: Weights) -> tuple[Array, Back]:
        steps: list[Back] = []
        at = 0
        while at < len(layers):
            layer = layers[at]
            if layer.kind == "residual":
                end = _end(layers, at)
                x, step = self.residual(layers[at + 1 : end], x, weights)
                at = end
            elif layer.kind == "dropout":
                x, step = self.dropout(layer, x)
            else:
                x, step = LAYERS[layer.kind](layer, x, weights)
            steps.append(step)
            at += 1

        def back(slope: Array) -> tuple[Array, list[Array]]:
            gradients: list[Array] = []
            for step in reversed(steps):
                slope, own = step(slope)
                gradients = own + gradients
            return slope, gradients

        return x, back

    def residual(self, layers: list[LayerSpec], x: Array, weights: Weights) -> tuple[Array, Back]:
        """body(x) + shortcut(x)."""
        middle = _shortcut(layers)
        long, long_back = self.chain(layers[:middle], x, weights)
        short, short_back = self.chain(layers[middle + 1 :], x, weights)

        def back(slope: Array) -> tuple[Array, list[Array]]:
            (by_long, body), (by_short, shortcut) = long_back(slope), short_back(slope)
            return by_long + by_short, body + shortcut

        return long + short, back

    def dropout(self, layer: LayerSpec, x: Array) -> tuple[Array, Back]:
        number, self.dropouts = self.dropouts, self.dropouts + 1
        if self.draws is None:
            return x, lambda slope: (slope, [])
        kept = self.draws.kept(number, layer.number, x[0].size).reshape(x.shape)
        scale = x.dtype.type(1 / (1 - layer.number))
        return np.where(kept, scale * x, 0), lambda slope: (np.where(kept, scale * slope, 0), [])


def _end(layers: list[LayerSpec], begin: int) -> int:
    """Where the residual block ends that begins here."""
    open_blocks = 0
    for at in range(begin, len(layers)):
        open_blocks += (layers[at].kind == "residual") - (layers[at].kind == "end_residual")
        if open_blocks == 0:
            return at
    raise AssertionError("a residual block has no end")


def _shortcut(layers: list[LayerSpec]) -> int:
    """Where the shortcut begins in the records of a residual block."""
    open_blocks = 0
    for at, layer in enumerate(layers):
        open_blocks += (layer.kind == "residual") - (layer.kind == "end_residual")
        if open_blocks == 0 and layer.kind == "shortcut":
            return at
    raise AssertionError("a residual block has no shortcut")


# Images


def _padded(layer: LayerSpec, x: Array, value: float) -> Array:
    top, bottom, left, right = layer.padding
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)


def _unpadded(layer: LayerSpec, padded: Array) -> Array:
    top, bottom, left, right = layer.padding
    return padded[:, :, top : padded.shape[2] - bottom, left : padded.shape[3] - right]


def _windows(layer: LayerSpec, padded: Array) -> Array:
    """(rows, channels, height out, width out, kernel height, kernel width)."""
    down, right = layer.stride
    return sliding_window_view(padded, layer.kernel, (2, 3))[:, :, ::down, ::right]


def _add_windows(layer: LayerSpec, shape: tuple[int, ...], windows: Array) -> Array:
    """An array of the padded shape in which every pixel is the sum of what the windows have for it."""
    total = np.zeros(shape, windows.dtype)
    (down, right), (height, width) = layer.stride, windows.shape[2:4]
    for i in range(layer.kernel[0]):
        for j in range(layer.kernel[1]):
            total[:, :, i : i + down * height : down, j : j + right * width : right] += windows[..., i, j]
    return total


def conv2d(layer: LayerSpec, x: Array, weights: Weights) -> tuple[Array, Back]:
    """Group g of the outputs is of group g of the channels: y[o, p] = sum of weight[o, c, k] x[c, stride p + k]."""
    rows, channels, g = len(x), x.shape[1], layer.groups
    weight = weights.take(g, layer.out // g, channels // g, *layer.kernel)
    bias = weights.take(layer.out) if layer.bias else None
    padded = _padded(layer, x, 0)
    windows = _windows(layer, padded)
    height, width = windows.shape[2:4]
    windows = windows.reshape(rows, g, channels // g, height, width, *layer.kernel)
    y = np.einsum("ngcyxij,gocij->ngoyx", windows, weight, optimize=True).reshape(rows, layer.out, height, width)

    def back(slope: Array) -> tuple[Array, list[Array]]:
        grouped = slope.reshape(rows, g, layer.out // g, height, width)
        by_windows = np.einsum("ngoyx,gocij->ngcyxij", grouped, weight, optimize=True)
        by_padded = _add_windows(layer, padded.shape, by_windows.reshape(rows, channels, height, width, *layer.kernel))
        by_weight = np.einsum("ngcyxij,ngoyx->gocij", windows, grouped, optimize=True)
        own = [by_weight] if bias is None else [by_weight, slope.sum(axis=(0, 2, 3))]
        return _unpadded(layer, by_padded), own

    return y if bias is None else y + bias[:, np.newaxis, np.newaxis], back


def max_pool(layer: LayerSpec, x: Array, weights: Weights) -> tuple[Array, Back]:
    """The largest of each window; the gradient goes to the first of those, row by row. Padding is never the largest."""
    padded = _padded(layer, x, -np.inf)
    windows = _windows(layer, padded)
    flat = windows.reshape(*windows.shape[:4], -1)
    first = flat.argmax(axis=-1)[..., np.newaxis]  # or the first NaN

    def back(slope: Array) -> tuple[Array, list[Array]]:
        by_windows = np.where(np.arange(flat.shape[-1]) == first, slope[..., np.newaxis], 0).reshape(windows.shape)
        return _unpadded(layer, _add_windows(layer, padded.shape, by_windows)), []

    return np.take_along_axis(flat, first, axis=-1)[..., 0], back


def avg_pool(layer: LayerSpec, x: Array, weights: Weights) -> tuple[Array, Back]:
    """The mean of each window; padding counts as zeros."""
    padded = _padded(layer, x, 0)
    windows = _windows(layer, padded)
    share = x.dtype.type(1 / math.prod(layer.kernel))

    def back(slope: Array) -> tuple[Array, list[Array]]:
        by_windows = np.broadcast_to((share * slope)[..., np.newaxis, np.newaxis], windows.shape)
        return _unpadded(layer, _add_windows(layer, padded.shape, by_windows)), []

    return share * windows.sum(axis=(4, 5)), back


def global_avg(layer: LayerSpec, x: Array, weights: Weights) -> tuple[Array, Back]:
    """The mean of each channel: a vector."""
    share = x.dtype.type(1 / (x.shape[2] * x.shape[3]))

    def back(slope: Array) -> tuple[Array, list[Array]]:
        return np.broadcast_to((share * slope)[:, :, np.newaxis, np.newaxis], x.shape), []

    return share * x.sum(axis=(2, 3)), back


# Vectors


def flatten(layer: LayerSpec, x: Array, weights: Weights) -> tuple[Array, Back]:
    return x.reshape(len(x), -1), lambda slope: (slope.reshape(x.shape), [])


def dense(layer: LayerSpec, x: Array, weights: Weights) -> tuple[Array, Back]:
    value = x.reshape(len(x), -1)
    weight = weights.take(layer.out, value.shape[1])
    bias = weights.take(layer.out) if layer.bias else None
    score = value @ weight.T

    def back(slope: Array) -> tuple[Array, list[Array]]:
        own = [slope.T @ value] if bias is None else [slope.T @ value, slope.sum(axis=0)]
        return (slope @ weight).reshape(x.shape), own

    return score if bias is None else score + bias, back


# Activations: a value and a slope for each number


def _elementwise(function: Callable[[LayerSpec, Array], tuple[Array, Array]]) -> Layer:
    def layer_of(layer: LayerSpec, x: Array, weights: Weights) -> tuple[Array, Back]:
        value, derivative = function(layer, x)
        return value, lambda slope: (slope * derivative, [])

    return layer_of


def relu(layer: LayerSpec, x: Array) -> tuple[Array, Array]:
    return np.maximum(x, 0), (x > 0).astype(x.dtype)


def leaky_relu(layer: LayerSpec, x: Array) -> tuple[Array, Array]:
    below = x.dtype.type(layer.number)
    return np.where(x > 0, x, below * x), np.where(x > 0, x.dtype.type(1), below)


def tanh(layer: LayerSpec, x: Array) -> tuple[Array, Array]:
    value = np.tanh(x)
    return value, 1 - value * value


def sigmoid(layer: LayerSpec, x: Array) -> tuple[Array, Array]:
    value = _sigmoid(x)
    return value, value * (1 - value)


def silu(layer: LayerSpec, x: Array) -> tuple[Array, Array]:
    """x sigmoid(x)."""
    gate = _sigmoid(x)
    return x * gate, gate * (1 + x * (1 - gate))


def gelu(layer: LayerSpec, x: Array) -> tuple[Array, Array]:
    """x Phi(x), Phi the distribution function of a standard normal variable."""
    below = (0.5 * _erfc(-x.astype(np.float64) / math.sqrt(2))).astype(x.dtype)
    density = np.exp(-0.5 * x * x) * x.dtype.type(1 / math.sqrt(2 * math.pi))
    return x * below, below + x * density


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    value: Array = np.where(x >= 0, 1, small) / (1 + small)
    return value


_erfc = np.vectorize(math.erfc, otypes=[np.float64])


# Norms


def group_norm(layer: LayerSpec, x: Array, weights: Weights) -> tuple[Array, Back]:
    """Each group of channels of a row has mean 0 and variance 1; then weight and bias by channel."""
    channels = x.shape[1]
    weight = weights.take(channels) if layer.bias else np.ones(channels, x.dtype)
    bias = weights.take(channels) if layer.bias else np.zeros(channels, x.dtype)
    shape = (channels,) + (1,) * (x.ndim - 2)
    unit, unit_back = _normalised(x.reshape(len(x), layer.out, -1), layer.number)
    unit = unit.reshape(x.shape)

    def back(slope: Array) -> tuple[Array, list[Array]]:
        others = (0, *range(2, x.ndim))
        by_unit = unit_back((slope * weight.reshape(shape)).reshape(len(x), layer.out, -1))
        own = [(slope * unit).sum(axis=others), slope.sum(axis=others)] if layer.bias else []
        return by_unit.reshape(x.shape), own

    return unit * weight.reshape(shape) + bias.reshape(shape), back


def layer_norm(layer: LayerSpec, x: Array, weights: Weights) -> tuple[Array, Back]:
    """All numbers of a row have mean 0 and variance 1; then weight and bias by number."""
    weight = weights.take(*x.shape[1:]) if layer.bias else np.ones(x.shape[1:], x.dtype)
    bias = weights.take(*x.shape[1:]) if layer.bias else np.zeros(x.shape[1:], x.dtype)
    unit, unit_back = _normalised(x.reshape(len(x), -1), layer.number)
    unit = unit.reshape(x.shape)

    def back(slope: Array) -> tuple[Array, list[Array]]:
        by_unit = unit_back((slope * weight).reshape(len(x), -1)).reshape(x.shape)
        return by_unit, [(slope * unit).sum(axis=0), slope.sum(axis=0)] if layer.bias else []

    return unit * weight + bias, back


def _normalised(x: Array, epsilon: float) -> tuple[Array, Callable[[Array], Array]]:
    """(x - mean) / sqrt(variance + epsilon) along the last axis."""
    away = x - x.mean(axis=-1, keepdims=True)
    scale = 1 / np.sqrt((away * away).mean(axis=-1, keepdims=True) + x.dtype.type(epsilon))
    unit = away * scale

    def back(slope: Array) -> Array:
        along = (slope * unit).mean(axis=-1, keepdims=True)
        by_x: Array = scale * (slope - slope.mean(axis=-1, keepdims=True) - unit * along)
        return by_x

    return unit, back


LAYERS: dict[str, Layer] = {
    "conv2d": conv2d,
    "max_pool": max_pool,
    "avg_pool": avg_pool,
    "global_avg": global_avg,
    "flatten": flatten,
    "dense": dense,
    "relu": _elementwise(relu),
    "leaky_relu": _elementwise(leaky_relu),
    "tanh": _elementwise(tanh),
    "sigmoid": _elementwise(sigmoid),
    "silu": _elementwise(silu),
    "gelu": _elementwise(gelu),
    "group_norm": group_norm,
    "layer_norm": layer_norm,
}
