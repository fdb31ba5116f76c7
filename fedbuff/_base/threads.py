"""One function over many items on several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["map_in_threads", "split"]

_LINE = 16  # the most numbers in a cache line

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> list[Result]:
    """function of every item, in the order of the items; up to `threads` at once.

    >>> from fedbuff._base.threads import map_in_threads
    >>> map_in_threads(lambda x: x * x, range(4), threads=2)
    [0, 1, 4, 9]

    After an error or Ctrl-C no other item is begun; it is raised when the running items are done.
    """
    if threads == 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads, thread_name_prefix="fedbuff") as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def split(n: int, parts: int) -> list[slice]:
    """0..n cut into at most so many slices, each beginning at a cache line.

    >>> from fedbuff._base.threads import split
    >>> split(100, 2)
    [slice(0, 64, None), slice(64, 100, None)]
    """
    each = max(1, -(-n // (parts * _LINE))) * _LINE
    return [slice(begin, min(begin + each, n)) for begin in range(0, n, each)]
