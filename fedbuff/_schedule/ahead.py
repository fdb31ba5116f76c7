"""`Ahead`: the chunks of a schedule, made by a thread of its own while those before them are replayed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from .schedule import Schedule

__all__ = ["Ahead"]

_READY = 2  # chunks that wait at most
_LOOK = 0.05  # seconds from one look at whether anybody still wants them to the next


class Ahead:
    """An iterator over chunks that are made ahead of who takes them. `close` it, also after an error.

    Chunk after chunk is the same as from `chunks`; what goes wrong there is raised where it would have been.
    """

    def __init__(self, chunks: Iterator[Schedule], updates: int | None = None) -> None:
        self.updates = updates  # how many the whole schedule has, where that is known
        self._ready: queue.Queue[Schedule | BaseException | None] = queue.Queue(_READY)
        self._unwanted = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._make, args=(chunks,), name="fedbuff-schedule", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether the thread still makes chunks, and so has a core."""
        return self._thread.is_alive()

    def __iter__(self) -> Ahead:
        return self

    def __next__(self) -> Schedule:
        if self._over:
            raise StopIteration
        made = self._ready.get()
        if isinstance(made, Schedule):
            return made
        self._over = True
        if made is None:
            raise StopIteration
        raise made

    def close(self) -> None:
        """Lets the thread end, and waits for it."""
        self._unwanted.set()
        self._thread.join()

    def _make(self, chunks: Iterator[Schedule]) -> None:
        try:
            for chunk in chunks:
                if not self._give(chunk):
                    return
        except BaseException as error:
            self._give(error)
        else:
            self._give(None)

    def _give(self, made: Schedule | BaseException | None) -> bool:
        while not self._unwanted.is_set():
            try:
                self._ready.put(made, timeout=_LOOK)
            except queue.Full:
                continue
            return True
        return False
