"""The time of a run: that of the machine, or a VirtualGrid's."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from typing import Any, Protocol

from ._virtual import VirtualGrid

_SHORTEST, _LONGEST = 0.005, 0.25  # seconds between two pulls


class Clock(Protocol):
    """When it is, and how a run waits for replies."""

    rest: float
    """Seconds before a node that failed or timed out may be asked again, where it was listed anew."""

    listing: float
    """Seconds between two looks at the list of nodes."""

    def now(self) -> float: ...

    def pull(self, message_ids: Collection[str], until: float) -> list[Any]:
        """Replies to these messages as soon as there are some; none at the time `until` at the latest."""


class RealClock:
    """Seconds of the machine's monotonic clock. Pulls follow each other after 5 to 250 ms."""

    rest = 60.0  # Flower declares a node dead after two heartbeats of 30 s
    listing = 1.0

    def __init__(self, grid: Any) -> None:
        self._grid = grid
        self._pause = _SHORTEST

    def now(self) -> float:
        return time.monotonic()

    def pull(self, message_ids: Collection[str], until: float) -> list[Any]:
        while True:
            replies = list(self._grid.pull_messages(list(message_ids))) if message_ids else []
            left = until - time.monotonic()
            if replies:
                self._pause = _SHORTEST
                return replies
            if left <= 0:
                return []
            time.sleep(min(self._pause, left))
            self._pause = min(2 * self._pause, _LONGEST)


class VirtualClock:
    """Seconds of a VirtualGrid, which are over as soon as nothing happens in them."""

    rest = 0.0
    listing = 0.0

    def __init__(self, grid: VirtualGrid) -> None:
        self._grid = grid

    def now(self) -> float:
        return self._grid.time

    def pull(self, message_ids: Collection[str], until: float) -> list[Any]:
        if self._grid.next_arrival(message_ids) <= until:
            return self._grid.pull_messages(message_ids)
        if until < math.inf:
            self._grid.advance(until)
        return []


def clock_of(grid: Any) -> Clock:
    return VirtualClock(grid) if isinstance(grid, VirtualGrid) else RealClock(grid)
