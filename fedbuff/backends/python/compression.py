"""What a compressed upload is: the specification of csrc/core/clients/compression.hpp, for `numba` and `reference`.

`compress` gives what x is sent as; `compress_with_feedback` adds what the client has not sent before, its state, first,
and keeps what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._rule.table import bfloat16_of, values_of
from ..spec import CompressNumbers, QuantizeNumbers, Vector
from .philox import Stream
from .shuffle import shuffled

__all__ = ["BFLOAT16", "QSGD", "RANDOM_K", "SIGN", "TOP_K", "compress_with_feedback", "compressor"]

TOP_K, RANDOM_K, QSGD, SIGN, BFLOAT16 = range(1, 6)  # Compressor in csrc/core/clients/compression.hpp

Compress = Callable[[Vector, CompressNumbers, int, int, int, Vector], None]


def compressor(
    dot: Callable[[Vector, Vector], float], quantize: Callable[[Vector, QuantizeNumbers, Vector], None]
) -> Compress:
    """`Backend.compress` over a backend's kernels."""

    def compress(x: Vector, numbers: CompressNumbers, seed: int, client: int, task: int, out: Vector) -> None:
        if numbers.kind == TOP_K:
            out[:] = _largest(x, numbers.kept)
        elif numbers.kind == RANDOM_K:
            out[:] = _random(
                x, numbers, shuffled(seed, client, task, 0, x.size, np.arange(numbers.kept), Stream.COMPRESSION)
            )
        elif numbers.kind == QSGD:
            norm = math.sqrt(dot(x, x))
            quantize(x, QuantizeNumbers(norm, int(numbers.levels), seed, client, task, Stream.COMPRESSION), out)
        elif numbers.kind == SIGN:
            size = x.dtype.type(_sum_of_sizes(x) / x.size)
            out[:] = np.where(x < 0, -size, size)
        else:
            with np.errstate(over="ignore"):
                narrow = x.astype(np.float32)
            out[:] = np.where(np.isfinite(narrow), values_of(bfloat16_of(narrow), x.dtype), narrow)

    return compress


def compress_with_feedback(
    compress: Compress,
    accumulate: Callable[[Vector, Vector, float, Vector | None, Vector | None, Vector], bool],
    numbers: CompressNumbers,
    key: tuple[int, int, int],
    delta: Vector,
    before: Vector | None,
    after: Vector,
) -> None:
    """The delta becomes what is sent; `before` is the client's state, None for zeros, `after` what it is then."""
    accumulate(np.zeros_like(delta) if before is None else before, delta, 1.0, None, None, after)
    compress(after, numbers, *key, delta)
    accumulate(after, delta, -1.0, None, None, after)


def _largest(x: Vector, kept: int) -> Vector:
    """The largest numbers, of equals the first. What is not finite is larger than all others."""
    whole: Any = np.int32 if x.itemsize == 4 else np.int64
    sizes: NDArray[Any] = x.view(whole) & np.iinfo(whole).max
    places = np.argsort(-sizes, kind="stable")[:kept]
    result = np.zeros_like(x)
    result[places] = x[places]
    return result


def _random(x: Vector, numbers: CompressNumbers, places: NDArray[np.int64]) -> Vector:
    factor = x.dtype.type(1.0 if numbers.feedback else x.size / numbers.kept)
    result = np.full_like(x, 0 if np.isfinite(x).all() else np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        result[places] = factor * x[places]
    return result


def _sum_of_sizes(x: Vector) -> float:
    """Eight sums in float64 in turn, added by halves."""
    padded = np.zeros(-(-x.size // 8) * 8)
    padded[: x.size] = np.abs(x.astype(np.float64))
    sums = np.zeros(8)
    for row in padded.reshape(-1, 8):
        sums = sums + row
    for half in (4, 2, 1):
        sums = sums[:half] + sums[half : 2 * half]
    return float(sums[0])
