# mypy: allow-untyped-defs, allow-untyped-calls
"""The server's kernels: sums of deltas and steps of the model."""

from __future__ import annotations

import math

import numba as nb
import numpy as np
from numba import carray  # type: ignore[attr-defined]
from numba.extending import intrinsic

from ..spec import Moments, StepNumbers, Vector
from .compile import compiled, inlined, or_empty, reads
from .local_step import clear
from .threads import on_threads

_PART = 2048  # numbers that are added while they are in the nearest cache
_STRETCH = 1 << 18  # numbers that a thread takes at a time


@compiled
def _accumulate(total, delta, weight, current, start, out):
    finite = True
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


@compiled
def _vector(address, begin, n, like):
    """Elements begin .. begin + n of the vector at an address."""
    return carray(_pointer(address), begin + n, like.dtype)[begin:]  # type: ignore[call-arg,arg-type,unused-ignore]


@inlined
def vector_at(address, like):
    """The vector at an address, of the size and type of `like`."""
    return carray(_pointer(address), len(like), like.dtype)  # type: ignore[call-arg,arg-type,unused-ignore]


@compiled
def _aggregate(w, addresses, weights, scale, first, last, out):
    """Numbers first to last. Of each part the deltas are added, four at a time, while the sum is in the cache."""
    n_deltas = len(addresses)
    room = np.empty(_PART, w.dtype)
    for begin in range(first, last, _PART):
        n = min(_PART, last - begin)
        total = room[:n]
        clear(total)
        for k in range(0, n_deltas - 3, 4):
            delta0, delta1 = _vector(addresses[k], begin, n, w), _vector(addresses[k + 1], begin, n, w)
            delta2, delta3 = _vector(addresses[k + 2], begin, n, w), _vector(addresses[k + 3], begin, n, w)
            weight0, weight1, weight2, weight3 = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
            for j in range(n):
                two = (total[j] + weight0 * delta0[j]) + weight1 * delta1[j]
                total[j] = (two + weight2 * delta2[j]) + weight3 * delta3[j]
        for k in range(n_deltas - n_deltas % 4, n_deltas):
            delta0, weight0 = _vector(addresses[k], begin, n, w), weights[k]
            for j in range(n):
                total[j] += weight0 * delta0[j]
        for j in range(n):
            out[begin + j] = w[begin + j] - scale * total[j]


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
    addresses = np.array([delta.ctypes.data for delta in deltas], np.intp)
    stretches = iter(range(0, w.size, _STRETCH))

    def work() -> None:
        for first in stretches:  # an iterator gives each number once, also to several threads
            last = min(first + _STRETCH, w.size)
            _aggregate(reads(w), addresses, reads(weights), w.dtype.type(scale), first, last, out)

    on_threads(work, min(threads, -(-w.size // _STRETCH)))


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
