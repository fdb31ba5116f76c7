"""The event queue where nothing was compiled: a heap. It is the specification of the compiled one."""

from __future__ import annotations

import heapq
import math

from ..._base.checks import integer
from ..._rule.server_errors import (
    empty_queue,
    event_kind,
    event_time,
    float_of,
    wide_error,
)

__all__ = ["EventQueue"]


class EventQueue:
    """Events in the order of time, then kind, then creation; for one thread at a time.

    >>> import fedbuff as fb
    >>> queue = fb.EventQueue()
    >>> queue.push(2.0, item=7)
    >>> queue.push(1.5, item=3, kind=1)
    >>> queue.push(1.5, item=4)
    >>> queue.pop(), queue.pop(), len(queue)
    ((1.5, 4, 0), (1.5, 3, 1), 1)

    Times are finite and not negative. An item is an int of 64 bits: a client's number. A kind is 0, 1, 2 or 3, and
    decides between equal times: arrivals before starts, as in a schedule.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, int]] = []
        self._created = 0

    def push(self, time: float, item: int, kind: int = 0) -> None:
        """Adds an event."""
        at, number, which = float_of("time", time), integer("item", item), integer("kind", kind)
        if not -(2**63) <= number < 2**63:
            raise wide_error("item", number)
        if not (math.isfinite(at) and at >= 0):
            raise event_time(at)
        if not 0 <= which <= 3:
            raise event_kind(which)
        heapq.heappush(self._heap, (at, which, self._created, number))
        self._created += 1

    def pop(self) -> tuple[float, int, int]:
        """The earliest event, (time, item, kind), removed; IndexError where there is none."""
        if not self._heap:
            raise empty_queue()
        time, kind, _, item = heapq.heappop(self._heap)
        return time, item, kind

    def peek(self) -> tuple[float, int, int]:
        """The earliest event, left where it is."""
        if not self._heap:
            raise empty_queue()
        time, kind, _, item = self._heap[0]
        return time, item, kind

    def clear(self) -> None:
        """Removes all events."""
        self._heap.clear()

    def __len__(self) -> int:
        return len(self._heap)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} events>"
