# mypy: allow-untyped-defs, allow-untyped-calls
"""heapq for compiled code: a heap of tuples, whose numbers lie in arrays of their own.

Importing this teaches Numba heapq.heappush and heappop, len, [0] and clear() for the type `heap_type(key, n)`: of
tuples of a key and n integers, up to three.
"""

from __future__ import annotations

import heapq
import operator
from typing import Any

import numba as nb
import numpy as np
from numba.extending import overload, overload_method, register_jitable

from .struct import Struct, new, struct_kind

_FIRST_ROOM = 16


class Heap(Struct):
    """The numbers of the entries, the first `size` of each array."""


class _NoMethods:
    pass


struct_kind(Heap, _NoMethods)


def heap_type(key: Any, n: int) -> Any:
    integers = nb.types.Array(nb.int64, 1, "C")
    arrays = [("key", nb.types.Array(key, 1, "C")), ("first", integers), ("second", integers), ("third", integers)]
    return Heap([*arrays, ("size", nb.int64), ("entry", nb.types.Tuple((key, *([nb.int64] * n))))])


def heap_maker(made: Any) -> Any:
    """An overload of a function that makes an empty heap of this type."""
    key = made.field_dict["key"].dtype

    def make() -> Any:
        def impl():
            heap = new(made)
            heap.key = np.zeros(_FIRST_ROOM, key)
            heap.first = np.zeros(_FIRST_ROOM, np.int64)
            heap.second = np.zeros(_FIRST_ROOM, np.int64)
            heap.third = np.zeros(_FIRST_ROOM, np.int64)
            heap.size = 0
            return heap

        return impl

    return make


@register_jitable
def _longer(values):
    return np.concatenate((values, np.zeros_like(values)))


@register_jitable
def _push(heap, key, first, second, third):
    n = heap.size
    if n == len(heap.key):
        heap.key, heap.first = _longer(heap.key), _longer(heap.first)
        heap.second, heap.third = _longer(heap.second), _longer(heap.third)
    keys, firsts, seconds, thirds = heap.key, heap.first, heap.second, heap.third
    heap.size = n + 1
    at = n
    while at > 0:
        up = (at - 1) >> 1
        if keys[up] < key or (
            keys[up] == key and (firsts[up] < first or (firsts[up] == first and seconds[up] <= second))
        ):
            break
        keys[at], firsts[at], seconds[at], thirds[at] = keys[up], firsts[up], seconds[up], thirds[up]
        at = up
    keys[at], firsts[at], seconds[at], thirds[at] = key, first, second, third


@register_jitable
def _pop(heap):
    keys, firsts, seconds, thirds = heap.key, heap.first, heap.second, heap.third
    n = heap.size - 1
    heap.size = n
    key, first, second, third = keys[n], firsts[n], seconds[n], thirds[n]
    at = 0
    while True:
        down = 2 * at + 1
        if down >= n:
            break
        if down + 1 < n and (
            keys[down + 1] < keys[down]
            or (
                keys[down + 1] == keys[down]
                and (
                    firsts[down + 1] < firsts[down]
                    or (firsts[down + 1] == firsts[down] and seconds[down + 1] < seconds[down])
                )
            )
        ):
            down += 1
        if key < keys[down] or (
            key == keys[down] and (first < firsts[down] or (first == firsts[down] and second <= seconds[down]))
        ):
            break
        keys[at], firsts[at], seconds[at], thirds[at] = keys[down], firsts[down], seconds[down], thirds[down]
        at = down
    keys[at], firsts[at], seconds[at], thirds[at] = key, first, second, third


@overload(heapq.heappush)
def _heappush(heap, item):
    if not isinstance(heap, Heap):
        return None
    n = len(heap.field_dict["entry"])
    if n == 4:
        return lambda heap, item: _push(heap, item[0], item[1], item[2], item[3])
    if n == 3:
        return lambda heap, item: _push(heap, item[0], item[1], item[2], 0)
    return lambda heap, item: _push(heap, item[0], item[1], 0, 0)


@overload(heapq.heappop)
def _heappop(heap):
    if not isinstance(heap, Heap):
        return None

    def impl(heap):
        top = heap[0]
        _pop(heap)
        return top

    return impl


@overload(operator.getitem)
def _getitem(heap, index):
    if not isinstance(heap, Heap):
        return None
    n = len(heap.field_dict["entry"])
    if n == 4:
        return lambda heap, index: (heap.key[index], heap.first[index], heap.second[index], heap.third[index])
    if n == 3:
        return lambda heap, index: (heap.key[index], heap.first[index], heap.second[index])
    return lambda heap, index: (heap.key[index], heap.first[index])


@overload(len)
def _len(heap):
    return (lambda heap: heap.size) if isinstance(heap, Heap) else None


@overload_method(Heap, "clear")
def _clear(heap):
    def impl(heap):
        heap.size = 0

    return impl
