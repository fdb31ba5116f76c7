"""The layers of a network in plain NumPy: what each gives, and how a gradient goes back through it.

A layer is a function of its record, its input and its weights. It returns its output and a function that turns the
gradient by the output into the gradient by the input and those by the weights, in their order. Arrays have a row of the
batch along the first axis: images are (rows, channels, height, width), sequences (rows, time, features), vectors
(rows, features).
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

    def words(self, number: int) -> tuple[Array, Array]:
        """Two words for each row, for the augmenting layer of this number."""
        stream = Stream.AUGMENTATION << 28
        low, high, *_ = philox(self.seed, self.client, self.task, self.step, stream | number)
        first, second, *_ = philox(int(low) | int(high) << 32, self.position, 0, 0, stream)
        return first.astype(np.uint64), second.astype(np.uint64)


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
        self.drawn = 0  # layers passed so far that depend on chance

    def chain(self, layers: list[LayerSpec], x: Array, weights: Weights) -> tuple[Array, Back]:
        steps: list[Back] = []
        at = 0
        while at < len(layers):
            layer = layers[at]
            if layer.kind == "residual":
                end = _end(layers, at)
                x, step = self.residual(layers[at + 1 : end], x, weights)
                at = end
            elif layer.kind in ("dropout", "random_crop", "random_flip"):
                x, step = self.random(layer, x)
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

    def random(self, layer: LayerSpec, x: Array) -> tuple[Array, Back]:
        """What depends on chance does nothing without draws."""
        number, self.drawn = self.drawn, self.drawn + 1
        if self.draws is None:
            return x, lambda slope: (slope, [])
        if layer.kind == "dropout":
            return self.dropout(layer, x, self.draws, number)
        return _shown(x, augmented(layer, x.shape, *self.draws.words(number)))

    def dropout(self, layer: LayerSpec, x: Array, draws: Draws, number: int) -> tuple[Array, Back]:
        kept = draws.kept(number, layer.number, x[0].size).reshape(x.shape)
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


def augmented(layer: LayerSpec, shape: tuple[int, ...], first: Array, second: Array) -> tuple[Array, Array, Array]:
    """Where each pixel (rows, height, width) of a moved or turned image comes from, down and across, and whether it
    comes from anywhere."""
    rows, _, height, width = shape
    down, right = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    y, x = (np.broadcast_to(place, (rows, height, width)).astype(np.int64) for place in (down, right))
    if layer.kind == "random_flip":
        turned = (first * np.uint64(2) >> np.uint64(32)).astype(bool)[:, np.newaxis, np.newaxis]
        x = np.where(turned, width - 1 - x, x)
    else:
        for place, word, padding in ((y, first, layer.padding[0]), (x, second, layer.padding[2])):
            moved = (word * np.uint64(2 * padding + 1) >> np.uint64(32)).astype(np.int64) - padding
            place += moved[:, np.newaxis, np.newaxis]
    return y, x, (y >= 0) & (y < height) & (x >= 0) & (x < width)


def _shown(x: Array, places: tuple[Array, Array, Array]) -> tuple[Array, Back]:
    """Pixels from their places, zeros where there is none."""
    down, across, there = places
    row, y, right = np.nonzero(there)
    source = (row, slice(None), down[there], across[there])
    value = np.zeros_like(x)
    value[row, :, y, right] = x[source]

    def back(slope: Array) -> tuple[Array, list[Array]]:
        by_x = np.zeros_like(slope)
        by_x[source] = slope[row, :, y, right]
        return by_x, []

    return value, back


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


# Sequences


def embedding(layer: LayerSpec, x: Array, weights: Weights) -> tuple[Array, Back]:
    """A row of the table for each token of x (rows, time); its gradient is summed over where the token stands."""
    table = weights.take(layer.vocabulary, layer.out)

    def back(slope: Array) -> tuple[Array, list[Array]]:
        by_table = np.zeros_like(table)
        np.add.at(by_table, x, slope)
        return np.zeros(x.shape, table.dtype), [by_table]

    return table[x], back


def mean_over_time(layer: LayerSpec, x: Array, weights: Weights) -> tuple[Array, Back]:
    value = as_sequence(x)
    share = x.dtype.type(1 / value.shape[1])

    def back(slope: Array) -> tuple[Array, list[Array]]:
        return np.broadcast_to((share * slope)[:, np.newaxis], value.shape).reshape(x.shape), []

    return share * value.sum(axis=1), back


def last_step(layer: LayerSpec, x: Array, weights: Weights) -> tuple[Array, Back]:
    value = as_sequence(x)

    def back(slope: Array) -> tuple[Array, list[Array]]:
        by_value = np.zeros(value.shape, slope.dtype)
        by_value[:, -1] = slope
        return by_value.reshape(x.shape), []

    return value[:, -1], back


def lstm(layer: LayerSpec, x: Array, weights: Weights) -> tuple[Array, Back]:
    """i, f, o = sigmoid and g = tanh of what input and last state add; c = f c + i g; h = o tanh(c): all h."""
    value = as_sequence(x)
    own = _RecurrentWeights(layer, value, weights, 4)
    rows, steps, _ = value.shape
    states = np.zeros((rows, steps + 1, layer.out), x.dtype)  # the first is that before the first step
    cells, gates = np.zeros_like(states), []
    for t in range(steps):
        z = own.by_input(value[:, t]) + own.by_state(states[:, t])
        i, f, g, o = np.split(z, 4, axis=1)
        i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
        cells[:, t + 1] = f * cells[:, t] + i * g
        states[:, t + 1] = o * np.tanh(cells[:, t + 1])
        gates.append((i, f, g, o))

    def back(slope: Array) -> tuple[Array, list[Array]]:
        by_lines = np.zeros((rows, steps, 4 * layer.out), x.dtype)
        by_state = by_cell = np.zeros((rows, layer.out), x.dtype)
        for t in reversed(range(steps)):
            i, f, g, o = gates[t]
            y = np.tanh(cells[:, t + 1])
            by_h = slope[:, t] + by_state
            by_c = by_cell + by_h * o * (1 - y * y)
            by_i, by_f, by_g, by_o = by_c * g, by_c * cells[:, t], by_c * i, by_h * y
            by_lines[:, t] = np.hstack([by_i * i * (1 - i), by_f * f * (1 - f), by_g * (1 - g * g), by_o * o * (1 - o)])
            by_cell = by_c * f
            by_state = by_lines[:, t] @ own.hidden
        return (by_lines @ own.input).reshape(x.shape), own.gradients(by_lines, by_lines, states)

    return states[:, 1:], back


def gru(layer: LayerSpec, x: Array, weights: Weights) -> tuple[Array, Back]:
    """r, z = sigmoid of what input and last state add; n = tanh(what the input adds + r q), q what the state adds;
    h = (1 - z) n + z h: all h."""
    value = as_sequence(x)
    own = _RecurrentWeights(layer, value, weights, 3)
    rows, steps, _ = value.shape
    states, gates = np.zeros((rows, steps + 1, layer.out), x.dtype), []
    for t in range(steps):
        (a, b, c), (d, e, q) = (np.split(z, 3, axis=1) for z in (own.by_input(value[:, t]), own.by_state(states[:, t])))
        r, z = _sigmoid(a + d), _sigmoid(b + e)
        n = np.tanh(c + r * q)
        states[:, t + 1] = (1 - z) * n + z * states[:, t]
        gates.append((r, z, n, q))

    def back(slope: Array) -> tuple[Array, list[Array]]:
        by_inputs, by_hidden = np.zeros((2, rows, steps, 3 * layer.out), x.dtype)
        by_state = np.zeros((rows, layer.out), x.dtype)
        for t in reversed(range(steps)):
            r, z, n, q = gates[t]
            by_h = slope[:, t] + by_state
            by_n = by_h * (1 - z) * (1 - n * n)
            by_z = by_h * (states[:, t] - n) * z * (1 - z)
            by_r = by_n * q * r * (1 - r)
            by_inputs[:, t] = np.hstack([by_r, by_z, by_n])
            by_hidden[:, t] = np.hstack([by_r, by_z, by_n * r])
            by_state = by_h * z + by_hidden[:, t] @ own.hidden
        return (by_inputs @ own.input).reshape(x.shape), own.gradients(by_inputs, by_hidden, states)

    return states[:, 1:], back


class _RecurrentWeights:
    """The input's weights (gates, features), the last state's (gates, width), then the bias of each."""

    def __init__(self, layer: LayerSpec, value: Array, weights: Weights, gates: int) -> None:
        n = gates * layer.out
        self.value, self.has_bias = value, layer.bias
        self.input, self.hidden = weights.take(n, value.shape[2]), weights.take(n, layer.out)
        none = np.zeros(n, value.dtype)
        self.input_bias = weights.take(n) if layer.bias else none
        self.hidden_bias = weights.take(n) if layer.bias else none

    def by_input(self, x: Array) -> Array:
        added: Array = x @ self.input.T + self.input_bias
        return added

    def by_state(self, h: Array) -> Array:
        added: Array = h @ self.hidden.T + self.hidden_bias
        return added

    def gradients(self, by_inputs: Array, by_hidden: Array, states: Array) -> list[Array]:
        """From those of what the input and the last state add: (rows, steps, gates)."""
        over = ([0, 1], [0, 1])
        by_weights = [np.tensordot(by_inputs, self.value, over), np.tensordot(by_hidden, states[:, :-1], over)]
        by_biases = [by_inputs.sum(axis=(0, 1)), by_hidden.sum(axis=(0, 1))]
        return by_weights + by_biases if self.has_bias else by_weights


def as_sequence(x: Array) -> Array:
    """Rows of the problem that are sequences come as images of one channel."""
    return x[:, 0] if x.ndim == 4 else x


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
    "embedding": embedding,
    "mean_over_time": mean_over_time,
    "last_step": last_step,
    "lstm": lstm,
    "gru": gru,
    "layer_norm": layer_norm,
}
