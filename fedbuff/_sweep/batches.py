"""Batches of runs of about equal time, and the workers that take them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Generic

from .._base.threads import Item, Result

__all__ = ["Batches", "Crew"]


class Batches(Generic[Item]):
    """Items cut into batches that take about `seconds` each, as far as those that are done tell; the last are shorter.

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
        """The next batch; nothing where all are taken."""
        if self._again:
            return self._again.popleft()
        size = min(self._size(), len(self._items))
        return [self._items.popleft() for _ in range(size)]

    def _size(self) -> int:
        if not self._done:
            return 1
        fitting = self._seconds * self._done / max(self._spent, 1e-9)
        # Half of what is left, shared out: nobody works on for long after the others.
        return max(1, int(min(fitting, len(self._items) / (2 * self._workers))))

    def note(self, items: int, seconds: float) -> None:
        """So many items took so long."""
        # What was seen lately counts most: arms differ.
        self._spent, self._done = 0.5 * self._spent + seconds, 0.5 * self._done + items

    def give_back(self, items: Iterable[Item]) -> None:
        """These are to be done again, each in a batch of its own."""
        self._again.extend([item] for item in items)


class Crew(Generic[Item, Result]):
    """Batches at work on an executor, a few more than it has workers."""

    def __init__(self, submit: Callable[[list[Item]], Future[Result]], batches: Batches[Item], room: int) -> None:
        self._submit, self._batches, self._room = submit, batches, room
        self._at_work: dict[Future[Result], list[Item]] = {}

    def next(self, tend: Callable[[], float | None]) -> list[tuple[list[Item], Future[Result]]]:
        """Keeps everybody busy until a batch ends: those that ended; nothing where all have been let go.

        `tend` is called meanwhile, and says in how many seconds it wants to be called again; None: not before then.
        """
        while len(self._at_work) < self._room and (batch := self._batches.take()):
            self._at_work[self._submit(batch)] = batch
        ended, _ = wait(self._at_work, tend(), FIRST_COMPLETED)
        while self._at_work and not ended:
            ended, _ = wait(self._at_work, tend(), FIRST_COMPLETED)
        return [(self._at_work[future], future) for future in ended]

    def let_go(self, future: Future[Result]) -> None:
        """What this one gave is in good hands."""
        del self._at_work[future]

    def stop(self, patient: bool) -> list[Future[Any]]:
        """Calls off what has not begun; the futures that ended well and were not let go, with those at work where
        `patient`."""
        for future in self._at_work:
            future.cancel()
        if patient:
            wait(self._at_work)
        done = [future for future in self._at_work if future.done() and not future.cancelled()]
        return [future for future in done if future.exception() is None]
