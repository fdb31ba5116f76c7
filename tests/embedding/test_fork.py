"""A fork's child and the servers and buffers of its parent: what was idle goes on, what was in use says so."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedbuff as fb

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@pytest.fixture(params=["cpp", "numba", "reference"])
def parts(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip({"cpp": "fedbuff._core", "numba": "numba"}.get(request.param, "numpy"))
    return importlib.import_module(f"fedbuff.backends.{request.param}")


def in_child(body: Callable[[], bool]) -> int:
    """The exit code of a child: 0 where body() is true, a signal's number where it hung."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads, which is what is tested
        child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)
            code = 0 if body() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def refuses(call: Callable[[], Any]) -> bool:
    try:
        call()
    except ValueError as error:
        return "was used by other threads when this process was forked" in str(error)
    return False


def waiting(part: Any, use: Callable[[int], Any]) -> threading.Thread:
    """A thread that waits inside for an earlier ticket. A ticket that is in use cannot be cancelled, which tells."""
    while True:
        ticket, begun = part.take_ticket(), threading.Event()

        def target(ticket: int = ticket, begun: threading.Event = begun) -> None:
            begun.set()
            with contextlib.suppress(ValueError):
                use(ticket)

        thread = threading.Thread(target=target)
        thread.start()
        begun.wait()
        try:
            part.cancel_ticket(ticket)
        except ValueError:
            return thread
        thread.join()


def test_what_was_idle_goes_on(parts: Any) -> None:
    server, buffer = parts.Server(np.zeros(2), fb.FedBuff(1)), parts.DeltaBuffer(2)
    ticket = server.take_ticket()

    def body() -> bool:
        version, _ = server.download()
        buffer.add(np.ones(2))
        return server.upload(np.ones(2), version, ticket=ticket) and server.version == 1 and buffer.count == 1

    assert in_child(body) == 0
    assert server.version == 0 and buffer.count == 0


def test_what_was_in_use_is_refused(parts: Any) -> None:
    """A thread waits for an earlier ticket: it is inside the server, and not in the child."""
    server, buffer = parts.Server(np.zeros(2), fb.FedBuff(3)), parts.DeltaBuffer(2)
    for _ in range(3):
        server.download()
    first, of_buffer = server.take_ticket(), buffer.take_ticket()
    threads = [
        waiting(server, lambda ticket: server.upload(np.ones(2), 0, ticket=ticket)),
        waiting(buffer, lambda ticket: buffer.add(np.ones(2), ticket=ticket)),
    ]

    def body() -> bool:
        return all(
            refuses(call)
            for call in (
                lambda: server.upload(np.ones(2), 0),
                server.download,
                server.take_ticket,
                lambda: server.cancel(0),
                lambda: server.version,
                lambda: server.fill,
                lambda: server.outstanding,
                lambda: server.w,
                server.close,
                lambda: buffer.add(np.ones(2)),
                lambda: buffer.count,
                lambda: buffer.sum,
                buffer.clear,
                buffer.close,
                lambda: buffer.step(np.zeros(2), 1.0),
            )
        )

    assert in_child(body) == 0
    server.upload(np.zeros(2), 0, ticket=first)
    buffer.add(np.zeros(2), ticket=of_buffer)
    for thread in threads:
        thread.join(30)
    assert server.fill == 2 and buffer.count == 2


@pytest.mark.parametrize("attempt", range(5))
def test_a_child_made_during_uploads_does_not_hang(parts: Any, attempt: int) -> None:
    server = parts.Server(np.zeros(100_000), fb.FedBuff(3))
    stop = threading.Event()

    def upload() -> None:
        delta = np.zeros(100_000)
        while not stop.is_set():
            server.upload(delta, server.download()[0])

    threads = [threading.Thread(target=upload) for _ in range(3)]
    for thread in threads:
        thread.start()

    def body() -> bool:
        try:
            server.upload(np.zeros(100_000), server.download()[0])
        except ValueError as error:
            return "forked" in str(error)
        return True

    try:
        while server.version < 2:
            pass
        assert in_child(body) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert server.upload(np.zeros(100_000), server.download()[0]) in (True, False)
