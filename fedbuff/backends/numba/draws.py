# mypy: allow-untyped-defs, allow-untyped-calls
"""Philox, batches and normals."""

from __future__ import annotations

import math

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from ..python.philox import Stream
from ..python.shuffle import ROUNDS, round_word
from .compile import compiled, helper, inlined, reads
from .random import key_words, log_positive, philox_words, sincos2pi, unit_double

BATCHES = int(Stream.BATCHES)
SHUFFLES = np.uint64(Stream.SHUFFLES << 28)

register_jitable(round_word)


@compiled
def _philox(k0, k1, counter, words_out):
    for i in range(len(counter)):
        c = counter[i]
        words = philox_words(k0, k1, np.uint64(c[0]), np.uint64(c[1]), np.uint64(c[2]), np.uint64(c[3]))
        for j in range(4):
            words_out[i, j] = words[j]


@inlined
def batch_words(k0, k1, client, task, step, j):
    """The words of elements j to j + 3 of a batch, j a multiple of four."""
    block = np.uint64((BATCHES << 28) + j // 4)
    return philox_words(k0, k1, np.uint64(client), np.uint64(task), np.uint64(step), block)


@inlined
def fill_batch_rows(k0, k1, client, task, step, begin, n_rows, rows_out):
    """begin + the row numbers of `batch_rows`."""
    for j in range(0, len(rows_out), 4):
        words = batch_words(k0, k1, client, task, step, j)
        for i in range(min(4, len(rows_out) - j)):
            rows_out[j + i] = begin + np.int64((words[i] * np.uint64(n_rows)) >> np.uint64(32))


@compiled
def _batch_rows(k0, k1, client, task, step, n_rows, rows_out):
    fill_batch_rows(k0, k1, client, task, step, 0, n_rows, rows_out)


@helper
def fill_pass_rows(k0, k1, client, task, turn, n_rows, first, rows_out):
    """The rows at places first, first + 1, ... of a pass: `shuffled` of python/shuffle.py."""
    key = philox_words(k0, k1, np.uint64(client), np.uint64(task), np.uint64(turn), SHUFFLES)
    lefts = np.int64(math.sqrt(n_rows - 1))
    while lefts * lefts > n_rows - 1:
        lefts -= 1
    while (lefts + 1) * (lefts + 1) <= n_rows - 1:
        lefts += 1
    a = np.uint64(lefts + 1)
    b = np.uint64((n_rows + lefts) // (lefts + 1))
    for i in range(len(rows_out)):
        at = np.uint64(first + i)
        while True:
            left, right = at // b, at % b
            for number in range(ROUNDS):
                if number % 2 == 0:
                    left = (left + round_word(key, number, right, a)) % a
                else:
                    right = (right + round_word(key, number, left, b)) % b
            at = left * b + right
            if at < np.uint64(n_rows):
                break
        rows_out[i] = np.int64(at)


@compiled
def fill_normals(k0, k1, c0, c1, c2, stream, normals_out):
    n = len(normals_out)
    for j in range(0, n, 2):
        block = np.uint64((stream << 28) + j // 2)
        words = philox_words(k0, k1, np.uint64(c0), np.uint64(c1), np.uint64(c2), block)
        radius = math.sqrt(-2.0 * log_positive(1.0 - unit_double(words[0], words[1])))
        sine, cosine = sincos2pi(unit_double(words[2], words[3]))
        normals_out[j] = radius * cosine
        if j + 1 < n:
            normals_out[j + 1] = radius * sine


def philox(seed: int, counter: NDArray[np.uint32]) -> NDArray[np.uint32]:
    words = np.empty_like(counter)
    _philox(*key_words(seed), reads(counter), words)
    return words


def batch_rows(seed: int, client: int, task: int, step: int, n_rows: int, batch: int) -> NDArray[np.int64]:
    rows = np.empty(batch, np.int64)
    _batch_rows(*key_words(seed), client, task, step, n_rows, rows)
    return rows


def normals(seed: int, c0: int, c1: int, c2: int, stream: int, n: int) -> NDArray[np.float64]:
    values = np.empty(n, np.float64)
    fill_normals(*key_words(seed), c0, c1, c2, stream, values)
    return values
