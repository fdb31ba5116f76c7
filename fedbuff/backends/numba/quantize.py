# mypy: allow-untyped-defs, allow-untyped-calls
"""QSGD: numbers as multiples of the vector's length over a number of levels."""

from __future__ import annotations

import numpy as np

from ..spec import QuantizeNumbers, Vector
from .compile import compiled, reads
from .random import key_words, philox_words


@compiled
def _quantize(x, to_levels, from_levels, levels, key, counter, out):
    words = (np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0))
    for j in range(len(x)):
        if j % 4 == 0:
            block = np.uint64(j // 4)
            words = philox_words(
                key[0], key[1], counter[0], counter[1], block >> np.uint64(28),
                counter[2] << np.uint64(28) | block & np.uint64(0xFFFFFFF),
            )  # fmt: skip
        value = np.float64(x[j])
        units = abs(value) * to_levels
        size = np.floor(units)
        if (np.float64(words[j % 4]) + 0.5) * (1.0 / 4294967296.0) < units - size:
            size += 1.0
        size = (levels if size > levels else size) * from_levels
        out[j] = -size if value < 0 else size


def quantize(x: Vector, numbers: QuantizeNumbers, out: Vector) -> None:
    norm, levels, seed, first, second, stream = numbers
    to_levels = levels / norm if norm > 0 else norm
    key, counter = np.array(key_words(seed), np.uint64), np.array([first, second, stream], np.uint64)
    _quantize(reads(x), to_levels, norm / levels, np.float64(levels), key, counter, out)
