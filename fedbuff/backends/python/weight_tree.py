"""Weights of clients in a tree of sums: the client at a place among them, in O(log n).

The levels lie in one array, the clients first, each padded to a multiple of eight; the first numbers of the array tell
how many levels there are and where they begin. A node is ((a + b) + (c + d)) + ((e + f) + (g + h)) of its children, so
the sums depend on the weights that are there and not on how they came.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..spec import Floats

WIDTH = 8
HEAD = 16  # numbers before the levels: their count, and where each begins


def new_weights(n: int) -> Floats:
    """n clients of weight 0."""
    begin = np.zeros(HEAD)
    size = HEAD
    levels = 0
    while levels == 0 or n > 1:
        n = (n + WIDTH - 1) // WIDTH
        begin[1 + levels] = size
        levels += 1
        size += max(n, 1) * WIDTH
    begin[0] = levels
    return np.concatenate((begin, np.zeros(size - HEAD)))


def sum_of_eight(tree: Floats, at: int) -> Any:
    a, b, c, d = tree[at], tree[at + 1], tree[at + 2], tree[at + 3]
    e, f, g, h = tree[at + 4], tree[at + 5], tree[at + 6], tree[at + 7]
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


def total_weight(tree: Floats) -> Any:
    return sum_of_eight(tree, int(tree[int(tree[0])]))


def set_weight(tree: Floats, client: int, weight: float) -> None:
    at = client
    tree[int(tree[1]) + at] = weight
    for level in range(1, int(tree[0])):
        at //= WIDTH
        tree[int(tree[1 + level]) + at] = sum_of_eight(tree, int(tree[level]) + at * WIDTH)


def client_at(tree: Floats, place: float) -> Any:
    """The client at `place`, 0 <= place < total, where their weights lie one behind the other."""
    node = 0
    for level in range(int(tree[0]) - 1, -1, -1):
        first = int(tree[1 + level]) + node * WIDTH
        last = 0  # with weight, for a place that rounding moved past the end
        i = 0
        while i < WIDTH and place >= tree[first + i]:
            place -= tree[first + i]
            if tree[first + i] > 0.0:
                last = i
            i += 1
        node = node * WIDTH + (i if i < WIDTH else last)
    return np.int64(node)
