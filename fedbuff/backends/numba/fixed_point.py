# mypy: allow-untyped-defs, allow-untyped-calls
"""Numbers as words of 32 or 64 bits: encoded and added, added, decoded."""

from __future__ import annotations

import numpy as np

from ..python.philox import Stream
from ..spec import EncodeNumbers, Vector, Words
from .compile import compiled, reads
from .random import key_words, philox_words

ROUNDING = int(Stream.ROUNDING)


@compiled
def _encode_add(total, has_total, delta, weight, numbers, rounding, counter, out):
    """numbers: clip, 1 / step and factor in the dtype; rounding: key words, or nothing; counter: client and task."""
    clip, scale, factor = numbers[0], numbers[1], numbers[2]
    outside = 0
    words = (np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0))
    for j in range(len(delta)):
        x = factor * delta[j]
        if not abs(x) <= clip:
            outside += 1
        x = x if x > -clip else -clip
        units = np.float64((x if x < clip else clip) * scale)
        whole = np.rint(units)
        if len(rounding) > 0:
            if j % 4 == 0:
                block = np.uint64(j // 4)
                words = philox_words(
                    rounding[0], rounding[1], counter[0], counter[1], block >> np.uint64(28),
                    np.uint64(ROUNDING << 28) | block & np.uint64(0xFFFFFFF),
                )  # fmt: skip
            away = units - whole
            if (np.float64(words[j % 4]) + 0.5) * (1.0 / 4294967296.0) < abs(away):
                whole += -1.0 if away < 0 else 1.0
        term = weight * np.uint64(np.int64(whole))
        out[j] = np.uint64(total[j]) + term if has_total else term
    return outside


@compiled
def _add_words(total, words, weight, out):
    for j in range(len(out)):
        out[j] = np.uint64(total[j]) + weight * np.uint64(words[j])


@compiled
def _decode(signed, scale, out):
    for j in range(len(out)):
        out[j] = np.float64(signed[j]) * scale


def encode_add(total: Words | None, delta: Vector, numbers: EncodeNumbers, out: Words) -> int:
    weight, clip, step, factor, rounding = numbers
    values = np.array([clip, 1.0 / step, factor], delta.dtype)
    seed, client, task = rounding or (0, 0, 0)
    key = np.array(key_words(seed) if rounding is not None else (), np.uint64)
    so_far = reads(np.empty(0, out.dtype) if total is None else total)
    counter = np.array([client, task], np.uint64)
    return int(_encode_add(so_far, total is not None, reads(delta), np.uint64(weight), values, key, counter, out))


def add_words(total: Words, words: Words, weight: int, out: Words) -> None:
    _add_words(reads(total), reads(words), np.uint64(weight), out)


def decode(words: Words, scale: float, out: Vector) -> None:
    _decode(reads(words.view(np.int32 if words.dtype == np.uint32 else np.int64)), scale, out)
