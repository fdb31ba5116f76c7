"""Batches of runs of about equal time, and the pool of workers that runs them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Generic

from .._base.threads import Item, Result

__all__ = ["Batches", "WorkerPool"]


class Batches(Generic[Item]):
    """Items cut into batches of about `seconds` each, estimated from the batches that are done; the last are shorter.

    >>> from fedbuff._sweep.batches import Batches
    >>> batches = Batches(range(40), seconds=1.0, workers=2)
    >>> batches.take()
    [0]
    >>> batches.note(1, seconds=0.2)
    >>> batches.take()
    [1, 2, 3, 4, 5]
    """

    def __init__(self, items: Iterable[Item], seconds: float, workers: int) -> None:
        self._items = deque(items)
        self._seconds, self._workers = seconds, workers
        self._spent = self._done = 0.0
        self._again: deque[list[Item]] = deque()

    def take(self) -> list[Item]:
        """The next batch; empty where all items are taken."""
        if self._again:
            return self._again.popleft()
        size = min(self._size(), len(self._items))
        return [self._items.popleft() for _ in range(size)]

    def _size(self) -> int:
        if not self._done:
            return 1
        fitting = self._seconds * self._done / max(self._spent, 1e-9)
        # At most half of a worker's share of the rest: all workers end at about the same time.
        return max(1, int(min(fitting, len(self._items) / (2 * self._workers))))

    def note(self, items: int, seconds: float) -> None:
        """Records that so many items took so long."""
        # The latest batches count most, because arms differ.
        self._spent, self._done = 0.5 * self._spent + seconds, 0.5 * self._done + items

    def give_back(self, items: Iterable[Item]) -> None:
        """These items are done again, each in a batch of its own."""
        self._again.extend([item] for item in items)


class WorkerPool(Generic[Item, Result]):
    """Keeps up to `room` batches submitted to an executor, a few more than it has workers."""

    def __init__(self, submit: Callable[[list[Item]], Future[Result]], batches: Batches[Item], room: int) -> None:
        self._submit, self._batches, self._room = submit, batches, room
        self._running: dict[Future[Result], list[Item]] = {}

    def next(self, flush: Callable[[], float | None]) -> list[tuple[list[Item], Future[Result]]]:
        """Submits batches and waits until one ends: those that ended; empty where none is left.

        `flush` is called while it waits, and returns in how many seconds it must be called again; None: not before a
        batch ends. A batch stays with the pool until `discard`.
        """
        while len(self._running) < self._room and (batch := self._batches.take()):
            self._running[self._submit(batch)] = batch
        ended, _ = wait(self._running, flush(), FIRST_COMPLETED)
        while self._running and not ended:
            ended, _ = wait(self._running, flush(), FIRST_COMPLETED)
        return [(self._running[future], future) for future in ended]

    def discard(self, future: Future[Result]) -> None:
        """Forgets a batch whose result the caller has stored."""
        del self._running[future]

    def stop(self, wait_for_running: bool) -> list[Future[Any]]:
        """Cancels what has not begun; the futures that ended without an error and were not discarded, with those that
        run now where `wait_for_running`."""
        for future in self._running:
            future.cancel()
        if wait_for_running:
            wait(self._running)
        done = [future for future in self._running if future.done() and not future.cancelled()]
        return [future for future in done if future.exception() is None]
