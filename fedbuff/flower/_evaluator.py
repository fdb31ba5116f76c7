"""Evaluation beside a run: a function of the user's, called in a thread, one model after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

_MOST_WAITING = 4  # models that wait for their evaluation; a run that is further ahead waits

EvaluateFn = Callable[[int, ArrayRecord], "MetricRecord | None"]


class Evaluator:
    """Calls `function(step, arrays)` off the critical path, in the order of the steps; `results` has what it returned.

    What the function raises is raised by the next call here. With `inline` it is called at once, without a thread.
    """

    def __init__(self, function: EvaluateFn | None, results: dict[int, Any], *, inline: bool) -> None:
        self._inline = inline
        self._function, self._results = function, results
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fedbuff-evaluate")
        self._room = threading.BoundedSemaphore(_MOST_WAITING)
        self._futures: list[tuple[int, Future[Any]]] = []

    def submit(self, step: int, arrays: ArrayRecord) -> None:
        if self._function is None:
            return
        if self._inline:
            self._keep(step, self._function(step, arrays))
            return
        self.collect()
        self._room.acquire()
        future = self._pool.submit(self._function, step, arrays)
        future.add_done_callback(lambda _: self._room.release())
        self._futures.append((step, future))

    def collect(self, *, wait: bool = False) -> None:
        """Takes over what is done; with `wait`, everything."""
        while self._futures and (wait or self._futures[0][1].done()):
            step, future = self._futures.pop(0)
            self._keep(step, future.result())

    def _keep(self, step: int, found: MetricRecord | None) -> None:
        if found is not None:
            self._results[step] = found

    def close(self) -> None:
        """Ends the thread after the call at hand; what waits is given up."""
        self._pool.shutdown(wait=True, cancel_futures=True)
