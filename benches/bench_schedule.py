"""The event loop alone: exponential delays, K = 10, ten clients for each task in flight.

Beside a hand-written Numba loop with a cheap generator that writes nothing, the same loop doing our work (Philox draws
of (client, task), task numbers, columns), and CPython's heapq. Every loop's mean staleness is compared.
FEDBUFF_BENCH_FULL=1 takes the sizes of the performance page.
"""

from __future__ import annotations

import gc
import resource
import time
from typing import Any

import pytest
from conftest import FULL, Beside

import fedbuff as fb
from fedbuff import FedBuff

K = 10
IN_FLIGHT = [100, 10_000, 1_000_000]


@pytest.mark.parametrize("in_flight", IN_FLIGHT)
def test_against_numba(beside: Beside, in_flight: int) -> None:
    arrivals = 3_000_000 if FULL or in_flight == IN_FLIGHT[-1] else 1_000_000
    run = f"schedule {in_flight} {arrivals}"
    _, ratios = beside(f"ours {run}", f"numba {run} counts", f"numba {run} columns")
    assert all(faster.best > 0.4 for faster in ratios)


def test_against_heapq(beside: Beside) -> None:
    run = "schedule 100 200000"
    _, ratios = beside(f"ours {run}", f"heapq {run} plain", f"heapq {run} bulk")
    assert all(faster.best > 4 for faster in ratios)


@pytest.mark.parametrize("in_flight", IN_FLIGHT[:2])
def test_schedule(benchmark: Any, in_flight: int) -> None:
    model = fb.DelayModel(n_clients=10 * in_flight, compute=fb.Exponential(1.0))
    made = benchmark(lambda: fb.schedule(model, FedBuff(K), in_flight, arrivals=1_000_000))
    ages = made.n_steps - made.in_flight_version
    assert made.n_arrivals == 1_000_000
    # The exact staleness sum, 1,000,000 arrivals being whole buffers.
    assert made.staleness.sum() + ages.sum() == (in_flight - 1) * made.n_steps


def peak_memory_after(arrivals: int, n_clients: int, in_flight: int) -> int:
    model = fb.DelayModel(n_clients=n_clients, compute=fb.Exponential(1.0))
    seen = 0
    for chunk in fb.iter_schedule(model, FedBuff(1000), in_flight, arrivals=arrivals, chunk=1_000_000):
        seen += chunk.n_arrivals
    assert seen == arrivals
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize(
    "arrivals", [10_000_000, pytest.param(100_000_000, marks=pytest.mark.skipif(not FULL, reason="minutes"))]
)
def test_memory_is_flat(arrivals: int) -> None:
    """10^7 clients: twenty times the arrivals need no more memory, and less than 2 GiB."""
    first = peak_memory_after(arrivals // 20, 10_000_000, 1_000_000)
    begin = time.perf_counter()
    last = peak_memory_after(arrivals, 10_000_000, 1_000_000)
    seconds = time.perf_counter() - begin
    print(f"\n{arrivals} arrivals, 10^7 clients: {last / 2**30:.2f} GiB, {arrivals / seconds / 1e6:.2f} M/s")
    assert last < 2 * 2**30
    assert last < first + 300 * 2**20
