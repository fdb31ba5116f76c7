"""Clients drawn in proportion to their weights: among all, then among those that may be drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..spec import Floats


class WeightedClients:
    """Who may be drawn, in classes of weights. Numba compiles this source, so attributes keep their types.

    Class 0 has the largest weight as its bound, each further one half of that before it, and a client is in the last
    class whose bound is not below its weight. Those of a class that may be drawn stand in an array, at the end of which
    a client enters, and where one leaves, the last one takes its place. A client of weight 0 is in none.
    """

    def __init__(self, weight: Floats) -> None:
        n = len(weight)
        self.weight = weight
        self.until = np.cumsum(weight)
        self.class_of = np.zeros(n, np.int64)
        self.place = np.full(n, -1, np.int64)  # in member, or -1
        self.member = np.zeros(n, np.int64)  # the clients of each class that may be drawn, from its first place on
        bound = np.zeros(1100)  # halves of any double until 0
        bound[0] = np.max(weight) if n > 0 else 0.0
        for k in range(1, len(bound)):
            bound[k] = 0.5 * bound[k - 1]
        n_classes = 1
        for client in range(n):
            if weight[client] > 0.0:
                k = 0
                while bound[k + 1] >= weight[client]:
                    k += 1
                self.class_of[client] = k
                n_classes = max(n_classes, k + 1)
        self.bound = bound[:n_classes].copy()
        self.first = np.zeros(n_classes, np.int64)
        for client in range(n):
            if weight[client] > 0.0:
                self.first[self.class_of[client] + 1 :] += 1
        self.count = np.zeros(n_classes, np.int64)  # of each class, of those that may be drawn
        self.sums = np.zeros(n_classes + 1)  # of bounds, from this class to the last
        self.n_held = 0

    def is_empty(self) -> bool:
        """Whether nobody may be drawn."""
        return self.n_held == 0

    def insert(self, client: int) -> None:
        """The client may be drawn from now on, unless its weight is 0."""
        if self.weight[client] > 0.0:
            k = self.class_of[client]
            self.place[client] = self.first[k] + self.count[k]
            self.member[self.place[client]] = client
            self.count[k] += 1
            self.n_held += 1

    def remove(self, client: int) -> None:
        if self.weight[client] > 0.0:
            k = self.class_of[client]
            self.count[k] -= 1
            last = self.member[self.first[k] + self.count[k]]
            self.member[self.place[client]] = last
            self.place[last] = self.place[client]
            self.place[client] = -1
            self.n_held -= 1

    def add_up(self) -> None:
        total = 0.0
        for k in range(len(self.bound) - 1, -1, -1):
            total += self.count[k] * self.bound[k]
            self.sums[k] = total

    def candidate(self, u: float) -> Any:
        """The client at the place u of 1 where the weights of all lie side by side; -1 where it may not be drawn."""
        client = np.searchsorted(self.until, u * self.until[-1], side="right")
        return client if self.place[client] >= 0 else np.int64(-1)

    def draw(self, u: float) -> Any:
        """The client at the place u of 1 where the bounds of those that may be drawn lie; -1 in the gap behind one."""
        self.add_up()
        place = u * self.sums[0]
        k = 0
        while place < self.sums[k + 1]:
            k += 1
        at = (place - self.sums[k + 1]) / self.bound[k]
        index = min(int(at), self.count[k] - 1)
        client = self.member[self.first[k] + index]
        return client if (at - index) * self.bound[k] < self.weight[client] else np.int64(-1)
