"""Philox4x32-10: the same words as csrc/core/numbers/philox.hpp.

Every function works on NumPy arrays of unsigned integers, and Numba compiles it for scalars: 32-bit words are carried
in uint64, so that no product overflows.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np


class Stream(IntEnum):
    """What a counter is for: the top four bits of its last word, as `Stream` in csrc/core/numbers/philox.hpp."""

    BATCHES = 0
    DELAYS = 1
    CLIENT_SELECTION = 2
    GRADIENT_NOISE = 3
    PRIVACY_NOISE = 4
    INITIAL_MODEL = 5
    ROUNDING = 6
    DROPOUT = 7
    SHUFFLES = 8
    COMPRESSION = 9
    HIDDEN_MODEL = 10
    AUGMENTATION = 11


STREAM_DELAYS = np.uint64(Stream.DELAYS << 28)  # the last word of a counter, block 0
STREAM_CLIENT_SELECTION = np.uint64(Stream.CLIENT_SELECTION << 28)

_MASK = np.uint64(0xFFFFFFFF)
_U32 = np.uint64(32)
M0 = np.uint64(0xD2511F53)
M1 = np.uint64(0xCD9E8D57)
W0 = np.uint64(0x9E3779B9)
W1 = np.uint64(0xBB67AE85)
_U5 = np.uint64(5)
_U6 = np.uint64(6)


def philox_words(k0: Any, k1: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> Any:
    """The four words (in uint64) of the counter c0..c3 (32-bit values in uint64) under the key k0, k1."""
    for _ in range(10):
        p0 = M0 * c0
        p1 = M1 * c2
        c0 = (p1 >> _U32) ^ c1 ^ k0
        c1 = p1 & _MASK
        c2 = (p0 >> _U32) ^ c3 ^ k1
        c3 = p0 & _MASK
        k0 = (k0 + W0) & _MASK
        k1 = (k1 + W1) & _MASK
    return c0, c1, c2, c3


def unit_double(high: Any, low: Any) -> Any:
    """A double in [0, 1) from 27 bits of the first word and 26 of the second; both in uint64."""
    return ((high >> _U5) * 67108864.0 + (low >> _U6)) * (1.0 / 9007199254740992.0)


def multiply_high(x: Any, n: Any) -> Any:
    """The high 64 bits of the product of two uint64: an index below n from a 64-bit word x."""
    x1, x0 = x >> _U32, x & _MASK
    n1, n0 = n >> _U32, n & _MASK
    middle = x1 * n0 + ((x0 * n0) >> _U32)
    return x1 * n1 + (middle >> _U32) + ((x0 * n1 + (middle & _MASK)) >> _U32)


def key_words(seed: int) -> tuple[np.uint64, np.uint64]:
    """The two key words of a seed."""
    return np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32 & 0xFFFFFFFF)


def philox(seed: int, c0: Any, c1: Any, c2: Any, c3: Any) -> tuple[Any, Any, Any, Any]:
    """Four uint32 arrays: the words of every counter (c0, c1, c2, c3), which are broadcast together."""
    k0, k1 = key_words(seed)
    counters = np.broadcast_arrays(*(np.atleast_1d(np.asarray(c)).astype(np.uint64) for c in (c0, c1, c2, c3)))
    shape = np.broadcast_shapes(*(np.shape(c) for c in (c0, c1, c2, c3)))
    words = philox_words(k0, k1, *counters)
    return tuple(word.astype(np.uint32).reshape(shape) for word in words)
