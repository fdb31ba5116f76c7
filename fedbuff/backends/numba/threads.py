"""Threads for the length of one call."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["on_threads"]


def on_threads(part: Callable[[], None], threads: int) -> None:
    """Runs the part on this thread and others; what it raises is raised when all have ended, and so is an interrupt."""
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            part()
        except BaseException as error:
            raised.append(error)

    helpers = [threading.Thread(target=guarded, name="fedbuff") for _ in range(threads - 1)]
    try:
        for helper in helpers:
            helper.start()
        part()
    finally:
        for helper in helpers:
            while helper.is_alive():
                try:
                    helper.join()
                except KeyboardInterrupt as error:
                    raised.append(error)
    if raised:
        raise raised[0]
