"""Uploads that share a link: csrc/core/schedule/uplink.hpp."""

from __future__ import annotations

import heapq

import numpy as np


def new_transfers() -> list[tuple[float, int, int]]:
    """An empty heap of times, numbers of transfers and slots."""
    return []


class Uplink:
    """Each of m transfers runs at min(1, capacity / m) of its speed alone: processor sharing.

    `work` is what a transfer has got that has been there since the link was last idle. Each transfer ends at a value of
    it that is known when it begins, so an event costs the logarithm of their number. Numba compiles this source, so
    attributes keep their types.
    """

    def __init__(self, capacity: float, n_slots: int) -> None:
        self.capacity = capacity
        self.active = 0
        self.work = 0.0
        self.now = 0.0  # when `work` was last brought up to date
        self.joined = 0  # transfers so far
        self.number_of = np.full(n_slots, -1, np.int64)  # by slot: of its transfer; others of this slot have ended
        self.ends = new_transfers()  # by the work at which they end
        self.deadlines = new_transfers()  # by the time at which they are given up

    def speed(self) -> float:
        return 1.0 if self.active <= self.capacity else self.capacity / self.active

    def advance(self, now: float) -> None:
        self.work += (now - self.now) * self.speed()
        self.now = now

    def join(self, slot: int, now: float, size: float, deadline: float) -> None:
        """A transfer that takes `size` alone begins, and is given up at the deadline."""
        if self.active == 0:
            self.work, self.now = 0.0, now
        else:
            self.advance(now)
        self.number_of[slot] = self.joined
        heapq.heappush(self.ends, (self.work + size, self.joined, slot))
        if deadline < np.inf:
            heapq.heappush(self.deadlines, (deadline, self.joined, slot))
        self.joined += 1
        self.active += 1

    def leave(self, slot: int, now: float) -> None:
        """The transfer of the slot ends, whatever it has got."""
        self.advance(now)
        self.number_of[slot] = -1
        self.active -= 1

    def next_end(self) -> float:
        """When the next transfer is complete; infinite where there is none."""
        while len(self.ends) > 0:
            work, number, slot = self.ends[0]
            if self.number_of[slot] == number:
                return self.now + max(work - self.work, 0.0) / self.speed()
            heapq.heappop(self.ends)
        return np.inf

    def next_deadline(self) -> float:
        """When the next transfer is given up, if it is not complete until then."""
        while len(self.deadlines) > 0:
            time, number, slot = self.deadlines[0]
            if self.number_of[slot] == number:
                return time
            heapq.heappop(self.deadlines)
        return np.inf

    def next_time(self) -> float:
        return min(self.next_end(), self.next_deadline())

    def take(self) -> tuple[int, bool]:
        """The slot whose transfer ends next, which leaves; and whether it is complete."""
        time = self.next_end()
        complete = time <= self.next_deadline()
        if complete:
            work, _, slot = heapq.heappop(self.ends)
            self.leave(slot, time)
            self.work = work  # to the bit: those that end with it do so at this time
        else:
            time, _, slot = heapq.heappop(self.deadlines)
            self.leave(slot, time)
        return slot, complete

    def clear(self) -> None:
        self.active = 0
        self.number_of[:] = -1
        self.ends.clear()
        self.deadlines.clear()
