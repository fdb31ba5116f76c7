"""What a host may do wrong from Python and Cython: an exception, never a crash. Under ASan by tests/run_sanitized.sh;
tests/core/abi/test_embedding.cpp does the same for C."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends

pytestmark = pytest.mark.skipif(backends.current().name != "cpp", reason="the compiled backend's own objects")


def local_sgd(problem: Any, **options: Any) -> Any:
    from fedbuff.backends.cpp import LocalSGD

    return LocalSGD(problem, fb.LocalSGD(steps=2, lr=0.1, **options), seed=3)


def quadratic() -> fb.Quadratic:
    return fb.Quadratic(np.random.default_rng(0).standard_normal((3, 4)), noise_variance=0.1)


def test_objects_that_were_never_made() -> None:
    """__new__ without __init__ leaves null handles: every method gives an error or a value."""
    server = fb.Server.__new__(fb.Server)
    buffer = fb.DeltaBuffer.__new__(fb.DeltaBuffer)
    for call in (
        server.download,
        server.take_ticket,
        server.close,
        lambda: server.cancel(0),
        lambda: server.cancel_ticket(0),
        buffer.clear,
        buffer.close,
        buffer.take_ticket,
        lambda: buffer.cancel_ticket(0),
    ):
        with pytest.raises(ValueError, match="null or out of range"):
            call()
    assert server.version == server.fill == server.outstanding == -1
    assert buffer.count == -1
    for touch in (lambda: server.w, lambda: buffer.sum):
        with pytest.raises(ValueError, match="null or out of range"):
            touch()


def test_models_outlive_their_server() -> None:
    server = fb.Server(np.ones(1000), fb.FedBuff(buffer_size=1))
    version, w = server.download()
    view = np.from_dlpack(w)
    server.upload(np.ones(1000), version)
    later = server.w
    del server
    gc.collect()
    assert w.sum() == view.sum() == 1000 and later.sum() == 0
    with pytest.raises(ValueError, match="read-only"):
        w[0] = 5


def test_a_sum_outlives_its_buffer() -> None:
    buffer = fb.DeltaBuffer(1000)
    buffer.add(np.ones(1000))
    total = buffer.sum
    del buffer
    gc.collect()
    assert total.sum() == 1000


def test_local_sgd_equals_the_problem() -> None:
    problem = quadratic()
    local, w = local_sgd(problem, batch_size=2), np.ones(4)
    want = problem.delta(w, 2, fb.LocalSGD(steps=2, lr=0.1, batch_size=2), task=5, seed=3)
    del problem
    gc.collect()  # it keeps the rows that it reads
    assert local.delta(2, 5, w).tobytes() == want.tobytes()
    assert (local.dim, local.n_clients, local.dtype) == (4, 3, np.float64)


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ((3, 0, np.ones(4)), IndexError, "client: there are 3 clients, got 3"),
        ((-1, 0, np.ones(4)), IndexError, "client: there are 3 clients, got -1"),
        ((0, -1, np.ones(4)), ValueError, "task: expected an int from 0 to"),
        ((0, 2**32, np.ones(4)), ValueError, "task: expected an int from 0 to"),
        ((0, 0, np.ones(5)), ValueError, "w: expected shape"),
        ((0, 0, np.ones(4, np.float32)), TypeError, "w: expected float64, got float32"),
        ((0, 0, np.ones(4), np.ones(3)), ValueError, "out: expected shape"),
    ],
)
def test_local_sgd_refuses(arguments: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        local_sgd(quadratic()).delta(*arguments)


def test_local_sgd_needs_a_problem() -> None:
    with pytest.raises(TypeError, match="problem: expected a built-in problem of the compiled backend, got int"):
        local_sgd(3)
    w = np.ones(4)
    with pytest.raises(ValueError, match="out: shares memory"):
        local_sgd(quadratic()).delta(0, 0, w, w)


def test_they_do_not_pickle_or_copy() -> None:
    server = fb.Server(np.zeros(2), fb.FedBuff(buffer_size=1))
    for part in (server, fb.DeltaBuffer(2), fb.EventQueue(), local_sgd(quadratic())):
        for through in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="does not pickle"):
                through(part)


def test_a_buffer_is_made_once() -> None:
    buffer = fb.DeltaBuffer(2)
    with pytest.raises(TypeError, match="made once"):
        buffer.__init__(3)  # type: ignore[misc]


def test_a_staleness_function_that_raises_frees_its_ticket() -> None:
    def only_fresh(staleness: int) -> float:
        if staleness > 0:
            raise RuntimeError("too old for me")
        return 1.0

    server = fb.Server(np.zeros(1), fb.FedBuff(buffer_size=1, staleness=only_fresh))
    server.download(), server.download()
    server.upload(np.ones(1), 0)
    ticket, later = server.take_ticket(), server.take_ticket()
    with pytest.raises(RuntimeError, match="too old for me"):
        server.upload(np.ones(1), 0, ticket=ticket)
    server.download()
    server.upload(np.ones(1), 1, ticket=later)  # does not wait for the one that failed
    assert server.version == 2


def test_uploads_after_close_from_many_threads() -> None:
    server = fb.Server(np.zeros(40_000), fb.FedBuff(buffer_size=1000))
    delta = np.ones(40_000)
    for _ in range(400):
        server.download()
    added: list[int] = []

    def produce() -> None:
        try:
            for _ in range(100):
                server.upload(delta, 0)
                added.append(1)
        except ValueError as error:
            assert str(error) == "the server is closed"

    threads = [threading.Thread(target=produce) for _ in range(4)]
    for thread in threads:
        thread.start()
    server.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert server.fill == len(added)
