# mypy: allow-untyped-defs, allow-untyped-calls
"""Layers that work number by number or row by row: activations, norms, means, masks and moved images."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..python.philox import Stream
from .compile import helper, inlined
from .program import (
    BIAS,
    FLIP,
    GELU,
    GROUPS,
    KIND,
    LEAKY_RELU,
    LEFT,
    RANDOM,
    RELU,
    SIGMOID,
    STRIDE_H,
    TANH,
    TOP,
    WEIGHT,
    C,
    H,
    W,
)
from .random import philox_words

_DROPOUT, _AUGMENTATION = np.uint64(Stream.DROPOUT << 28), np.uint64(Stream.AUGMENTATION << 28)
_0, _1, _32 = np.uint64(0), np.uint64(1), np.uint64(32)
_ROOT_HALF, _DENSITY = 1 / math.sqrt(2), 1 / math.sqrt(2 * math.pi)


class Place(NamedTuple):
    """What the draws of a block of rows depend on: `first` is the place of its first row in the batch."""

    on: bool
    k0: Any
    k1: Any
    client: Any
    number: Any
    step: Any
    first: int


@inlined
def _sigmoid(x):
    one = x * 0 + 1
    small = math.exp(-abs(x))
    return (one if x >= 0 else small) / (one + small)


@helper
def pointwise_forward(op, number, x, y):
    """y may be x where the slope follows from the value."""
    kind, zero = op[KIND], x.dtype.type(0)
    if kind == RELU:
        for j in range(len(x)):
            y[j] = zero if x[j] < 0 else x[j]
    elif kind == LEAKY_RELU:
        below = x.dtype.type(number)
        for j in range(len(x)):
            y[j] = x[j] if x[j] > 0 else below * x[j]
    elif kind == TANH:
        for j in range(len(x)):
            y[j] = math.tanh(x[j])
    elif kind == SIGMOID:
        for j in range(len(x)):
            y[j] = _sigmoid(x[j])
    elif kind == GELU:
        for j in range(len(x)):
            y[j] = x[j] * x.dtype.type(0.5 * math.erfc(-np.float64(x[j]) * _ROOT_HALF))
    else:
        for j in range(len(x)):
            y[j] = x[j] * _sigmoid(x[j])


@inlined
def _slope(kind, number, x, y):
    one = x * 0 + 1
    if kind == LEAKY_RELU:
        return one if x > 0 else x * 0 + number
    if kind == TANH:
        return one - y * y
    if kind == SIGMOID:
        return y * (one - y)
    if kind == GELU:
        below = 0.5 * math.erfc(-np.float64(x) * _ROOT_HALF)
        return below + x * math.exp(-0.5 * x * x) * _DENSITY
    gate = _sigmoid(x)
    return gate * (one + x * (one - gate))


@helper
def pointwise_backward(op, number, x, y, in_place, by_y, by_x):
    """Adds to the gradient by x, or turns that by y into it."""
    kind, zero = op[KIND], y.dtype.type(0)
    if kind == RELU:
        if in_place:
            for j in range(len(y)):
                by_y[j] = by_y[j] if y[j] > 0 else by_y[j] * zero
        else:
            for j in range(len(y)):
                by_x[j] += by_y[j] if y[j] > 0 else by_y[j] * zero
    elif in_place:
        for j in range(len(y)):
            by_y[j] *= y.dtype.type(_slope(kind, number, y[j], y[j]))
    else:
        for j in range(len(y)):
            by_x[j] += by_y[j] * y.dtype.type(_slope(kind, number, x[j], y[j]))


@inlined
def _moments(x, channel, n_channels, row, m, size, epsilon):
    """Mean, and one by the standard deviation, of these channels of a row."""
    total = x.dtype.type(0)
    for c in range(channel, channel + n_channels):
        for j in range((c * m + row) * size, (c * m + row + 1) * size):
            total += x[j]
    n = x.dtype.type(n_channels * size)
    mean = total / n
    squares = x.dtype.type(0)
    for c in range(channel, channel + n_channels):
        for j in range((c * m + row) * size, (c * m + row + 1) * size):
            squares += (x[j] - mean) * (x[j] - mean)
    return mean, x.dtype.type(1) / math.sqrt(squares / n + x.dtype.type(epsilon))


@helper
def norm_forward(op, epsilon, x, w, m, y):
    size, n_channels = op[H] * op[W], op[C] // op[GROUPS]
    one, zero = x.dtype.type(1), x.dtype.type(0)
    by_number, affine = op[STRIDE_H] == 1, op[BIAS] >= 0
    for row in range(m):
        for channel in range(0, op[C], n_channels):
            mean, scale = _moments(x, channel, n_channels, row, m, size, epsilon)
            for c in range(channel, channel + n_channels):
                begin = (c * m + row) * size
                for j in range(size):
                    which = c * size + j if by_number else c
                    weight = w[op[WEIGHT] + which] if affine else one
                    bias = w[op[BIAS] + which] if affine else zero
                    y[begin + j] = (x[begin + j] - mean) * scale * weight + bias


@helper
def norm_backward(op, epsilon, x, w, m, by_y, by_x, passes, gradient):
    size, n_channels = op[H] * op[W], op[C] // op[GROUPS]
    one = x.dtype.type(1)
    by_number, affine = op[STRIDE_H] == 1, op[BIAS] >= 0
    n = x.dtype.type(n_channels * size)
    for row in range(m):
        for channel in range(0, op[C], n_channels):
            mean, scale = _moments(x, channel, n_channels, row, m, size, epsilon)
            total, along = x.dtype.type(0), x.dtype.type(0)
            for c in range(channel, channel + n_channels):
                begin = (c * m + row) * size
                for j in range(size):
                    which = c * size + j if by_number else c
                    unit, slope = (x[begin + j] - mean) * scale, by_y[begin + j]
                    if affine:
                        gradient[op[WEIGHT] + which] += slope * unit
                        gradient[op[BIAS] + which] += slope
                        slope *= w[op[WEIGHT] + which]
                    total += slope
                    along += slope * unit
            if not passes:
                continue
            total, along = total / n, along / n
            for c in range(channel, channel + n_channels):
                begin = (c * m + row) * size
                for j in range(size):
                    which = c * size + j if by_number else c
                    weight = w[op[WEIGHT] + which] if affine else one
                    unit = (x[begin + j] - mean) * scale
                    by_x[begin + j] += scale * (by_y[begin + j] * weight - total - unit * along)


@helper
def global_avg_forward(op, x, m, y):
    """(channels, rows, places) to (rows, channels)."""
    size, share = op[H] * op[W], x.dtype.type(1.0 / (op[H] * op[W]))
    for c in range(op[C]):
        for row in range(m):
            total = x.dtype.type(0)
            for j in range((c * m + row) * size, (c * m + row + 1) * size):
                total += x[j]
            y[row * op[C] + c] = share * total


@helper
def global_avg_backward(op, m, by_y, by_x):
    size, share = op[H] * op[W], by_y.dtype.type(1.0 / (op[H] * op[W]))
    for c in range(op[C]):
        for row in range(m):
            for j in range((c * m + row) * size, (c * m + row + 1) * size):
                by_x[j] += share * by_y[row * op[C] + c]


@helper
def planes_of_rows(op, x, m, adds, y):
    """(rows, channels, places) to (channels, rows, places); adds, or sets."""
    size = op[H] * op[W]
    for c in range(op[C]):
        for row in range(m):
            to, source = y[(c * m + row) * size :][:size], x[(row * op[C] + c) * size :][:size]
            if adds:
                for j in range(size):
                    to[j] += source[j]
            else:
                for j in range(size):
                    to[j] = source[j]


@helper
def rows_of_planes(op, x, m, y):
    """(channels, rows, places) to (rows, channels, places)."""
    size = op[H] * op[W]
    for c in range(op[C]):
        for row in range(m):
            to, source = y[(row * op[C] + c) * size :][:size], x[(c * m + row) * size :][:size]
            for j in range(size):
                to[j] = source[j]


@helper
def mean_over_time(op, x, m, y):
    """(rows, steps, features) to (rows, features)."""
    steps, width = op[H], op[W]
    share = x.dtype.type(1.0 / steps)
    for row in range(m):
        for j in range(width):
            total = x.dtype.type(0)
            for t in range(steps):
                total += x[(row * steps + t) * width + j]
            y[row * width + j] = share * total


@helper
def mean_over_time_backward(op, m, by_y, by_x):
    steps, width = op[H], op[W]
    share = by_y.dtype.type(1.0 / steps)
    for row in range(m):
        for t in range(steps):
            for j in range(width):
                by_x[(row * steps + t) * width + j] += share * by_y[row * width + j]


@inlined
def _key(op, place, stream):
    """The key of this layer's draws in a local step."""
    w0, w1, _, _ = philox_words(
        place.k0, place.k1, np.uint64(place.client), np.uint64(place.number), np.uint64(place.step),
        stream | np.uint64(op[RANDOM]),
    )  # fmt: skip
    return w0, w1


@helper
def dropout_forward(op, rate, x, m, place, choice, y):
    """choice gets 1 where a number is kept. The numbers of a row are counted channel by channel."""
    size = op[H] * op[W]
    n = op[C] * size
    if not place.on:
        y[:] = x
        choice[: len(x)] = 2
        return
    k0, k1 = _key(op, place, _DROPOUT)
    bound = np.uint64(math.floor(rate * 2.0**32))
    scale, zero = x.dtype.type(1 / (1 - rate)), x.dtype.type(0)
    for row in range(m):
        for block in range((n + 3) // 4):
            words = philox_words(k0, k1, np.uint64(place.first + row), np.uint64(block), _0, _DROPOUT)
            for i in range(min(4, n - 4 * block)):
                c, j = divmod(4 * block + i, size)
                at = (c * m + row) * size + j
                kept = words[i] >= bound
                choice[at] = kept
                y[at] = scale * x[at] if kept else zero


@helper
def dropout_backward(op, rate, choice, by_y, by_x):
    scale = by_y.dtype.type(1 / (1 - rate))
    for j in range(len(by_y)):
        if choice[j] == 2:
            by_x[j] += by_y[j]
        elif choice[j] == 1:
            by_x[j] += scale * by_y[j]


@helper
def augment_forward(op, x, m, place, choice, y):
    """Images moved or turned. choice gets the place in its plane that each number is from, or -1."""
    h, w = op[H], op[W]
    size = h * w
    k0, k1 = _key(op, place, _AUGMENTATION)
    for row in range(m):
        down, across, turned = 0, 0, False
        if place.on:
            first, second, _, _ = philox_words(k0, k1, np.uint64(place.first + row), _0, _0, _AUGMENTATION)
            if op[KIND] == FLIP:
                turned = (first * np.uint64(2) >> _32) == _1
            else:
                down = np.int64(first * np.uint64(2 * op[TOP] + 1) >> _32) - op[TOP]
                across = np.int64(second * np.uint64(2 * op[LEFT] + 1) >> _32) - op[LEFT]
        for c in range(op[C]):
            begin = (c * m + row) * size
            for v in range(h):
                for u in range(w):
                    i, j = v + down, w - 1 - u if turned else u + across
                    there = 0 <= i < h and 0 <= j < w
                    at = begin + v * w + u
                    choice[at] = i * w + j if there else -1
                    y[at] = x[begin + i * w + j] if there else x.dtype.type(0)


@helper
def augment_backward(op, choice, by_y, by_x):
    size = op[H] * op[W]
    for begin in range(0, len(by_y), size):
        for j in range(size):
            if choice[begin + j] >= 0:
                by_x[begin + choice[begin + j]] += by_y[begin + j]
