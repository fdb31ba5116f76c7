"""Long calls let other threads run.

Python is told never to take the GIL away. A second thread waits for a signal; the first gives it and makes a long call
at once. Whether the second made progress before the call returned says whether the call let the GIL go: nothing here
depends on how long anything takes, but that a woken thread comes to run within a few tries.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends

TRIES = 300  # a busy machine may take its time to wake a thread


@pytest.fixture
def never_switch() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e6)
    yield
    sys.setswitchinterval(before)


def lets_others_run(call: Callable[[], Any]) -> bool:
    go, counted, stop = threading.Event(), [0], [False]

    def other() -> None:
        while True:
            go.wait()
            go.clear()
            if stop[0]:
                return
            counted[0] += 1

    thread = threading.Thread(target=other)
    thread.start()
    try:
        for _ in range(TRIES):
            before = counted[0]
            go.set()
            call()
            if counted[0] > before:
                return True
        return False
    finally:
        stop[0] = True
        go.set()
        thread.join()


def long_calls() -> dict[str, Callable[[], Any]]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 100)).astype(np.float32)
    problem = fb.Softmax(X, np.arange(2000) % 10, [0, 1000, 2000])
    w, out = problem.init(), np.empty(problem.dim, np.float32)
    local = fb.LocalSGD(steps=200, lr=0.01, batch_size=32)
    large = np.ones(1_000_000, np.float32)
    target = np.empty_like(large)
    server = fb.Server(large, fb.FedBuff(buffer_size=10))
    buffer = fb.DeltaBuffer(large.size, np.float32)
    return {
        "delta": lambda: problem.delta(w, 0, local, out=out),
        "grad": lambda: problem.grad(w, out=out, threads=1),
        "loss": lambda: problem.loss(w, threads=1),
        "client_grad": lambda: problem.client_grad(0, w, out=out),
        "accuracy": lambda: problem.accuracy(w),
        "aggregate": lambda: fb.aggregate(large, [large] * 10, out=target),
        "Server.upload": lambda: server.upload(large, server.download()[0]),
        "DeltaBuffer.add": lambda: buffer.add(large, 0.0),
    }


@pytest.mark.skipif(backends.current().name != "cpp", reason="the compiled backend's promise")
@pytest.mark.parametrize("name", long_calls())
def test_the_gil_is_released(name: str, never_switch: None) -> None:
    assert lets_others_run(long_calls()[name])


def test_the_measure_sees_a_call_that_keeps_it(never_switch: None) -> None:
    assert not lets_others_run(lambda: sum(range(200_000)))
