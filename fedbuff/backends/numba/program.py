# mypy: allow-untyped-defs, allow-untyped-calls
"""A network as a table of operations that compiled loops walk through, forward and back.

A tensor is (channels, rows, numbers): images have a plane for each channel and row; vectors and sequences are one
channel. Tensors lie one after the other in one room, each by its first number for one row; a layer that works number by
number and needs no look at what it was given writes over it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..spec import LayerSpec, NetworkSpec
from .compile import inlined

__all__ = ["Program", "is_recurrent", "program_of", "rows_of_panel"]

# columns of a program's table
(
    KIND, IN, OUT, OTHER, C, H, W, OUT_C, OUT_H, OUT_W, KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, TOP, LEFT, GROUPS,
    WEIGHT, BIAS, RANDOM, PASSES, N_COLUMNS,
) = range(22)  # fmt: skip
# kinds of operations
(
    CONV, MAX_POOL, AVG_POOL, GLOBAL_AVG, FLATTEN, DENSE, RELU, LEAKY_RELU, TANH, SIGMOID, SILU, GELU, NORM, ADD,
    DROPOUT, CROP, FLIP, EMBEDDING, MEAN_OVER_TIME, LAST_STEP,
) = range(20)  # fmt: skip

_POINTWISE = {"relu": RELU, "leaky_relu": LEAKY_RELU, "tanh": TANH, "sigmoid": SIGMOID, "silu": SILU, "gelu": GELU}
_IN_PLACE = (RELU, TANH, SIGMOID)  # their slopes follow from their values
_RANDOM = {"dropout": DROPOUT, "random_crop": CROP, "random_flip": FLIP}
_POOLS = {"max_pool": MAX_POOL, "avg_pool": AVG_POOL}
_OF_IMAGES = ("conv2d", "max_pool", "avg_pool", "global_avg", "group_norm", "random_crop", "random_flip")
_LEARNS = (CONV, DENSE, NORM, EMBEDDING)
RECURRENT = ("lstm", "gru")

_MOST_ROWS = 64  # that go through a network together
_ROOM = 1 << 18  # numbers that they have together, where a few rows fit into it
_PANEL = 512  # places of a convolution that are worked on together


@inlined
def rows_of_panel(places):
    return max(_PANEL // places, 1)


class _Tensor(NamedTuple):
    at: int
    channels: int
    height: int  # of sequences their steps
    width: int

    @property
    def size(self) -> int:
        return self.channels * self.height * self.width


class Program(NamedTuple):
    """A network; all sizes are of one row."""

    operations: NDArray[np.int64]
    numbers: NDArray[np.float64]
    input_size: int
    input_channels: int
    outputs: int
    score: int  # where the scores lie
    size: int  # of all tensors
    block: int  # rows that go through it together
    widest: int  # numbers that a dense layer takes or gives
    windows: int  # numbers of the largest panel of windows
    factors: int  # weights of the largest group of a convolution
    is_random: bool


@dataclass
class _Maker:
    """Adds operations one by one."""

    rows: list[list[int]] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    size: int = 0
    weights: int = 0
    n_random: int = 0
    kept: set[int] = field(default_factory=set)  # tensors that a later operation reads again

    def tensor(self, channels: int, height: int = 1, width: int = 1) -> _Tensor:
        made = _Tensor(self.size, channels, height, width)
        self.size += made.size
        return made

    def add(
        self, kind: int, before: _Tensor, after: _Tensor, record: LayerSpec | None = None, other: int = -1, **own: int
    ) -> _Tensor:
        row = [0] * N_COLUMNS
        row[KIND], row[IN], row[OUT], row[OTHER], row[BIAS] = kind, before.at, after.at, other, -1
        row[C : W + 1] = before[1:]
        row[OUT_C : OUT_W + 1] = after[1:]
        if record is not None:
            row[KERNEL_H : KERNEL_W + 1], row[STRIDE_H : STRIDE_W + 1] = record.kernel, record.stride
            row[TOP], row[LEFT], row[GROUPS] = record.padding[0], record.padding[2], record.groups
        for name, value in own.items():
            row[globals()[name]] = value
        row[PASSES] = int(any(r[KIND] in _LEARNS for r in self.rows))
        self.rows.append(row)
        self.numbers.append(0.0 if record is None else record.number)
        return after

    def take(self, n: int) -> int:
        at, self.weights = self.weights, self.weights + n
        return at

    def chain(self, layers: Sequence[LayerSpec], x: _Tensor) -> _Tensor:
        at = 0
        while at < len(layers):
            if layers[at].kind == "residual":
                middle, end = _marks(layers, at)
                x = self.residual(layers[at + 1 : middle], layers[middle + 1 : end], x)
                at = end
            else:
                x = self.layer(layers[at], x)
            at += 1
        return x

    def residual(self, body: Sequence[LayerSpec], shortcut: Sequence[LayerSpec], x: _Tensor) -> _Tensor:
        is_outermost = x.at not in self.kept
        self.kept.add(x.at)
        long, short = self.chain(body, x), self.chain(shortcut, x)
        made = self.add(ADD, long, self.tensor(*long[1:]), other=short.at)
        if is_outermost:
            self.kept.discard(x.at)
        return made

    def layer(self, layer: LayerSpec, x: _Tensor) -> _Tensor:
        kind = layer.kind
        if kind in _POINTWISE:
            code = _POINTWISE[kind]
            own = code in _IN_PLACE and x.at not in self.kept
            return self.add(code, x, x if own else self.tensor(*x[1:]), layer)
        if kind in _RANDOM:
            made = self.add(_RANDOM[kind], x, self.tensor(*x[1:]), layer, RANDOM=self.n_random)
            self.n_random += 1
            return made
        if kind == "flatten":
            return self.flat(x)
        if kind == "dense":
            x = self.flat(x)
            weight = self.take(layer.out * x.size)
            bias = self.take(layer.out) if layer.bias else -1
            return self.add(DENSE, x, self.tensor(1, 1, layer.out), layer, WEIGHT=weight, BIAS=bias)
        if kind == "embedding":
            weight = self.take(layer.vocabulary * layer.out)
            return self.add(EMBEDDING, x, self.tensor(1, x.size, layer.out), layer, WEIGHT=weight)
        if kind in ("mean_over_time", "last_step"):
            code = MEAN_OVER_TIME if kind == "mean_over_time" else LAST_STEP
            return self.add(code, x, self.tensor(1, 1, x.width), layer)
        if kind == "global_avg":
            return self.add(GLOBAL_AVG, x, self.tensor(1, 1, x.channels), layer)
        if kind in ("group_norm", "layer_norm"):
            return self.norm(layer, x)
        return self.windowed(layer, x)

    def flat(self, x: _Tensor) -> _Tensor:
        if x.channels == 1:
            return _Tensor(x.at, 1, 1, x.size)
        return self.add(FLATTEN, x, self.tensor(1, 1, x.size))

    def norm(self, layer: LayerSpec, x: _Tensor) -> _Tensor:
        """GROUPS of channels, and by STRIDE_H whether each number has a weight, and not each channel."""
        by_number = layer.kind == "layer_norm"
        n = x.size if by_number else x.channels
        weight, bias = (self.take(n), self.take(n)) if layer.bias else (-1, -1)
        return self.add(
            NORM, x, self.tensor(*x[1:]), layer, GROUPS=1 if by_number else layer.out, WEIGHT=weight, BIAS=bias,
            STRIDE_H=int(by_number),
        )  # fmt: skip

    def windowed(self, layer: LayerSpec, x: _Tensor) -> _Tensor:
        """Convolutions and pools."""
        top, bottom, left, right = layer.padding
        height = (x.height + top + bottom - layer.kernel[0]) // layer.stride[0] + 1
        width = (x.width + left + right - layer.kernel[1]) // layer.stride[1] + 1
        if layer.kind in _POOLS:
            return self.add(_POOLS[layer.kind], x, self.tensor(x.channels, height, width), layer)
        weight = self.take(layer.out * (x.channels // layer.groups) * math.prod(layer.kernel))
        bias = self.take(layer.out) if layer.bias else -1
        return self.add(CONV, x, self.tensor(layer.out, height, width), layer, WEIGHT=weight, BIAS=bias)


def _marks(layers: Sequence[LayerSpec], begin: int) -> tuple[int, int]:
    """Where the shortcut of the residual block begins that begins here, and where the block ends."""
    open_blocks, middle = 0, -1
    for at in range(begin, len(layers)):
        open_blocks += (layers[at].kind == "residual") - (layers[at].kind == "end_residual")
        if open_blocks == 1 and layers[at].kind == "shortcut":
            middle = at
        if open_blocks == 0:
            return middle, at
    raise AssertionError("a residual block has no end")


def _input(network: NetworkSpec, maker: _Maker) -> _Tensor:
    """Vectors come as (features, 1, 1); so do images of one pixel."""
    channels, height, width = network.input_shape
    kinds = [layer.kind for layer in network.layers]
    ends = [kinds.index(kind) for kind in ("dense", "flatten") if kind in kinds]
    if height * width == 1 and not any(kind in _OF_IMAGES for kind in kinds[: min(ends, default=len(kinds))]):
        return maker.tensor(1, 1, channels)
    return maker.tensor(channels, height, width)


def program_of(network: NetworkSpec) -> Program:
    """A network without recurrent layers."""
    maker = _Maker()
    x = _input(network, maker)
    score = maker.chain(network.layers, x)
    operations = np.array(maker.rows, np.int64).reshape(-1, N_COLUMNS)
    conv = operations[operations[:, KIND] == CONV]
    depth = conv[:, C] // conv[:, GROUPS] * conv[:, KERNEL_H] * conv[:, KERNEL_W]
    places = conv[:, OUT_H] * conv[:, OUT_W]
    windows = int((depth * places * np.maximum(_PANEL // np.maximum(places, 1), 1)).max(initial=0))
    block = max(4, min(_MOST_ROWS, _ROOM // max(2 * maker.size, 1)) // 4 * 4)
    return Program(
        operations=operations,
        numbers=np.array(maker.numbers),
        input_size=x.size,
        input_channels=x.channels,
        outputs=score.size,
        score=score.at,
        size=maker.size,
        block=block,
        widest=_widest(operations),
        windows=windows,
        factors=int((depth * conv[:, OUT_C] // conv[:, GROUPS]).max(initial=0)) if len(conv) else 0,
        is_random=maker.n_random > 0,
    )


def _widest(operations: NDArray[np.int64]) -> int:
    dense = operations[operations[:, KIND] == DENSE]
    return int((dense[:, [C, OUT_C]] * dense[:, [H, OUT_H]] * dense[:, [W, OUT_W]]).max(initial=1))


def is_recurrent(network: NetworkSpec) -> bool:
    return any(layer.kind in RECURRENT for layer in network.layers)
