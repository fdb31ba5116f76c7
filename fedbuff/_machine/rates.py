"""Rates: the best of many turns.

A turn is a function that does some work and says how much. What disturbs a measurement can only make it slower, so a
rate is that of the fastest turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Turn = Callable[[], dict[str, Any]]
Row = dict[str, Any]


def best_rate(turn: Turn, seconds: float = 0.3, at_least: int = 3) -> float:
    """Amount per second of the fastest turn, of as many as fit into `seconds`."""
    turn()
    best, turns, begin = 0.0, 0, time.perf_counter()
    while turns < at_least or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        amount = float(turn()["amount"])
        best = max(best, amount / (time.perf_counter() - start))
        turns += 1
    return best


def best_rates(turns: Sequence[Turn], seconds: float = 0.3) -> list[float]:
    """The same of several, in turn, so that whatever disturbs one disturbs the others."""
    best = [0.0] * len(turns)
    for _ in range(3):
        for i, turn in enumerate(turns):
            best[i] = max(best[i], best_rate(turn, seconds / 3, 1))
    return best


def in_threads(works: Sequence[Callable[[int], object]]) -> Callable[[int], object]:
    """One call of all of them, each on a thread of its own where there are several."""
    if len(works) == 1:
        return works[0]
    pool = ThreadPoolExecutor(len(works))

    def run(repeats: int) -> None:
        for done in [pool.submit(work, repeats) for work in works]:
            done.result()

    return run


def long_enough(works: Sequence[Callable[[int], object]], amount: float, seconds: float) -> Turn:
    """A turn that runs all works at once, each repeated so often that the turn lasts about `seconds`."""
    run, repeats = in_threads(works), 1
    run(1)
    while True:
        begin = time.perf_counter()
        run(repeats)
        took = time.perf_counter() - begin
        if took > seconds / 2 or repeats > 1 << 30:
            break
        repeats = repeats * 10 if took < seconds / 10 else int(repeats * seconds / took) + 1
    return fixed_amount(lambda: run(repeats), repeats * amount)


def fixed_amount(run: Callable[[], object], amount: float) -> Turn:
    def turn() -> dict[str, Any]:
        run()
        return {"amount": amount}

    return turn
