"""Rows in shuffled order, without state: the same order as csrc/core/numbers/shuffle.hpp.

A pass over n rows is a permutation of 0 .. n - 1, of which any element can be had by itself. An index is written as
left * b + right, with a = ceil(sqrt(n)) lefts and b = ceil(n / a) rights. Each round adds a word made of one of the two
to the other, which can be undone, so it is a permutation of a * b numbers; one that is not below n goes through the
rounds again. The four words of the counter (client, task, pass, Shuffles << 28) are the rounds' key.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .philox import Stream, key_words, philox_words

__all__ = ["shuffled"]

ROUNDS = 16
_MASK = np.uint64(0xFFFFFFFF)
_U32 = np.uint64(32)
_M0, _M1, _WEYL = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57), 0x9E3779B9


def shuffled(
    seed: int,
    client: int,
    task: int,
    turn: int,
    n_rows: int,
    index: NDArray[np.int64],
    stream: Stream = Stream.SHUFFLES,
) -> NDArray[np.int64]:
    """The rows at these places of a client's pass number `turn` in a task."""
    counter = (np.uint64(word) for word in (client, task, turn, stream << 28))
    key = philox_words(*key_words(seed), *counter)
    a = math.isqrt(n_rows - 1) + 1
    b = -(-n_rows // a)
    at = index.astype(np.uint64)
    outside = np.ones(len(at), bool)
    while outside.any():
        left, right = np.divmod(at[outside], np.uint64(b))
        for number in range(ROUNDS):
            if number % 2 == 0:
                left = (left + round_word(key, number, right, a)) % np.uint64(a)
            else:
                right = (right + round_word(key, number, left, b)) % np.uint64(b)
        at[outside] = left * np.uint64(b) + right
        outside = at >= n_rows
    return at.astype(np.int64)


def round_word(key: Any, number: int, x: Any, n: Any) -> Any:
    """A word of the round and x, below n. Numba compiles this source for scalars."""
    weyl = np.uint64(number * _WEYL & 0xFFFFFFFF)
    word = ((x ^ key[number % 4]) + weyl) & _MASK
    product = word * _M0
    word = (product >> _U32) ^ (product & _MASK) ^ key[(number + 1) % 4]
    product = word * _M1
    word = (product >> _U32) ^ (product & _MASK)
    return word * np.uint64(n) >> _U32
