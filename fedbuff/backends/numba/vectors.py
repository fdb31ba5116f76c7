# mypy: allow-untyped-defs, allow-untyped-calls
"""The server's kernels: sums of deltas and steps of the model."""

from __future__ import annotations

import math

import numba as nb
import numpy as np
from numba import carray  # type: ignore[attr-defined]

from ..spec import Moments, StepNumbers, Vector
from .compile import compiled, helper, inlined, intrinsic, or_empty, reads
from .local_step import clear
from .threads import on_threads

_LINE = 64  # bytes of the cache
_PART = 16384  # numbers that are added while they are in the nearest cache
_STRETCH = 1 << 18  # numbers that a thread takes at a time


@inlined
def same(x, y):
    """Whether two vectors lie in one place. LLVM makes vector code only of loops whose arrays are apart, so that what
    changes in place needs a loop of its own."""
    return x.ctypes.data == y.ctypes.data


@compiled
def _accumulate(total, delta, weight, current, start, out):
    finite = True
    if same(total, out):
        if len(start) > 0:
            for j in range(len(out)):
                out[j] += weight * (delta[j] + (current[j] - start[j]))
                finite &= math.isfinite(out[j])
        else:
            for j in range(len(out)):
                out[j] += weight * delta[j]
                finite &= math.isfinite(out[j])
        return finite
    if len(start) > 0:
        for j in range(len(total)):
            out[j] = total[j] + weight * (delta[j] + (current[j] - start[j]))
            finite &= math.isfinite(out[j])
    else:
        for j in range(len(total)):
            out[j] = total[j] + weight * delta[j]
            finite &= math.isfinite(out[j])
    return finite


@intrinsic
def _pointer(typing_context, address):
    def code(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(nb.types.voidptr))

    return nb.types.voidptr(nb.types.intp), code


@helper
def _vector(address, begin, n, like):
    """Elements begin .. begin + n of the vector at an address."""
    return carray(_pointer(address), begin + n, like.dtype)[begin:]  # type: ignore[call-arg,arg-type,unused-ignore]


@inlined
def vector_at(address, like):
    """The vector at an address, of the size and type of `like`."""
    return carray(_pointer(address), len(like), like.dtype)  # type: ignore[call-arg,arg-type,unused-ignore]


@inlined
def _five(addresses, k, begin, n, like):
    return (
        _vector(addresses[k], begin, n, like), _vector(addresses[k + 1], begin, n, like),
        _vector(addresses[k + 2], begin, n, like), _vector(addresses[k + 3], begin, n, like),
        _vector(addresses[k + 4], begin, n, like),
    )  # fmt: skip


@inlined
def _plus_five(total, weights, deltas, j):
    (w0, w1, w2, w3, w4), (d0, d1, d2, d3, d4) = weights, deltas
    return ((((total + w0 * d0[j]) + w1 * d1[j]) + w2 * d2[j]) + w3 * d3[j]) + w4 * d4[j]


@inlined
def _five_weights(weights, k):
    return weights[k], weights[k + 1], weights[k + 2], weights[k + 3], weights[k + 4]


def _add_ten(weights, addresses, k, begin, total, minus, scale):
    """Deltas k to k + 9, in one pass: added to the total, or with it, times the scale, taken off `minus`, which is
    empty in the first case; an empty total is zeros."""
    n = max(len(total), len(minus))
    d, e = _five(addresses, k, begin, n, minus), _five(addresses, k + 5, begin, n, minus)
    w, v = _five_weights(weights, k), _five_weights(weights, k + 5)
    zero = minus.dtype.type(0)
    if len(minus) == 0:
        for j in range(n):
            total[j] = _plus_five(_plus_five(total[j], w, d, j), v, e, j)
    elif len(total) == 0:
        for j in range(n):
            minus[j] -= scale * _plus_five(_plus_five(zero, w, d, j), v, e, j)
    else:
        for j in range(n):
            minus[j] -= scale * _plus_five(_plus_five(total[j], w, d, j), v, e, j)


_add_ten = helper(_add_ten, fastmath={"contract", "nsz"})


@helper
def _add_one(weight, delta, total):
    for j in range(len(total)):
        total[j] += weight * delta[j]


@compiled
def _aggregate(w, addresses, weights, scale, first, last, out):
    """Numbers first to last, a part at a time: ten deltas in one pass, while the sum is in the cache."""
    n_deltas = len(addresses)
    tens = n_deltas // 10 * 10
    in_place = same(out, w)
    part = last - first if n_deltas == 10 and in_place else _PART
    room = np.empty(0 if n_deltas == 10 else part, w.dtype)
    begin = first
    while begin < last:
        n = min(part, last - begin)
        away = (addresses[0] + begin * w.itemsize) % _LINE if n_deltas > 0 else 0
        if away > 0:  # from now on whole lines of the cache
            n = min(n, (_LINE - away) // w.itemsize)
        made, total = out[begin : begin + n], room[:n]
        if not in_place:
            for j in range(n):
                made[j] = w[begin + j]
        clear(total)
        for k in range(0, tens, 10):
            ends = k + 10 == n_deltas
            _add_ten(weights, addresses, k, begin, total, made if ends else made[:0], scale)
        for k in range(tens, n_deltas):
            _add_one(weights[k], _vector(addresses[k], begin, n, w), total)
        if tens < n_deltas:
            for j in range(n):
                made[j] -= scale * total[j]
        begin += n


@compiled
def _sgd_step(w, total, lr, norm, momentum, velocity, out):
    if momentum == 0:
        for j in range(len(w)):
            out[j] = w[j] - lr * total[j]
    else:
        for j in range(len(w)):
            velocity[j] = momentum * velocity[j] + total[j] / norm
            out[j] = w[j] - lr * velocity[j]


@compiled
def _adam_step(w, total, numbers, first, second, out):
    lr, norm, b1, one_less_b1, b2, one_less_b2, correction, epsilon, weight_decay = numbers
    for j in range(len(w)):
        gradient = total[j] / norm + weight_decay * w[j]
        first[j] = b1 * first[j] + one_less_b1 * gradient
        second[j] = b2 * second[j] + one_less_b2 * (gradient * gradient)
        out[j] = w[j] - lr * first[j] / (math.sqrt(second[j] / correction) + epsilon)


@compiled
def dot_float64(x, y):
    total = 0.0
    for j in range(len(x)):
        total += np.float64(x[j]) * np.float64(y[j])
    return total


def accumulate(
    total: Vector, delta: Vector, weight: float, current: Vector | None, start: Vector | None, out: Vector
) -> bool:
    dtype = total.dtype
    current, start = (None, None) if start is None else (current, start)
    return bool(
        _accumulate(
            reads(total), reads(delta), dtype.type(weight), or_empty(current, dtype), or_empty(start, dtype), out
        )
    )


def aggregate(w: Vector, deltas: list[Vector], weights: Vector, scale: float, out: Vector, threads: int) -> None:
    addresses = np.array([delta.__array_interface__["data"][0] for delta in deltas], np.intp)
    stretch = max(w.size, 1) if threads == 1 else _STRETCH
    stretches = iter(range(0, w.size, stretch))

    def work() -> None:
        for first in stretches:  # an iterator gives each number once, also to several threads
            last = min(first + stretch, w.size)
            _aggregate(reads(w), addresses, reads(weights), w.dtype.type(scale), first, last, out)

    on_threads(work, min(threads, -(-w.size // stretch)))


def sgd_step(
    w: Vector, total: Vector, lr: float, norm: float, momentum: float, velocity: Vector | None, out: Vector
) -> None:
    t = w.dtype.type
    rate = t(lr / norm) if momentum == 0 else t(lr)
    room = np.empty(0, w.dtype) if velocity is None else velocity
    _sgd_step(reads(w), reads(total), rate, t(norm), t(momentum), room, out)


def adam_step(w: Vector, total: Vector, numbers: StepNumbers, moments: Moments, out: Vector) -> None:
    lr, norm, _, b1, b2, epsilon, weight_decay, step, *_ = numbers
    rate, correction = lr / (1 - b1**step), 1 - b2**step
    first, second = moments
    values = tuple(map(w.dtype.type, (rate, norm, b1, 1 - b1, b2, 1 - b2, correction, epsilon, weight_decay)))
    _adam_step(reads(w), reads(total), values, first, second, out)


def dot(x: Vector, y: Vector) -> float:
    return float(dot_float64(reads(x), reads(y)))
