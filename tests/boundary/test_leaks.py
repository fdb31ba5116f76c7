"""Memory stays where it is over a hundred thousand calls, of those that work and of those that raise."""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends

CALLS = 100_000
LIMIT = 4_000_000  # bytes: a leak of a single small object per call is 5 MB and more


def resident() -> int:
    """Bytes of this process that are in memory."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def calls() -> dict[str, Callable[[], Any]]:
    problem = fb.LeastSquares(np.eye(3), np.ones(3), [0, 1, 3])
    w, short, local = np.ones(3), np.ones(2), fb.LocalSGD(steps=2, lr=0.1, batch_size=2)
    server = fb.Server(w, fb.FedBuff(buffer_size=3, base="current"))
    buffer = fb.DeltaBuffer(3)
    strategy = fb.FedBuff(buffer_size=2)
    nan = np.array([1.0, np.nan, 1.0])
    return {
        "grad": lambda: problem.grad(w, threads=1),
        "client_grad": lambda: problem.client_grad(1, w),
        "delta": lambda: problem.delta(w, 1, local),
        "delta, wrong": lambda: problem.delta(short, 1, local),
        "aggregate": lambda: fb.aggregate(w, [w, w]),
        "download, upload": lambda: server.upload(w, server.download()[0]),
        "download, cancel": lambda: server.cancel(server.download()[0]),
        "upload, not finite": lambda: server.upload(nan, server.version),
        "upload, wrong": lambda: server.upload(short, server.version),
        "model": lambda: server.w,
        "Server": lambda: fb.Server(w, strategy),
        "Server, wrong": lambda: fb.Server(nan, strategy),
        "DeltaBuffer": lambda: fb.DeltaBuffer(3),
        "add": lambda: buffer.add(w),
        "add, wrong": lambda: buffer.add(short),
        "step": lambda: buffer.step(w, 0.1),
    }


@pytest.mark.skipif(backends.current().name != "cpp", reason="what C and C++ allocate")
@pytest.mark.parametrize("name", calls())
def test_no_leak(name: str) -> None:
    call = calls()[name]

    def many(n: int) -> None:
        for _ in range(n):
            with contextlib.suppress(ValueError):
                call()

    many(CALLS // 10)
    gc.collect()
    before = resident()
    many(CALLS)
    gc.collect()
    assert resident() - before < LIMIT
