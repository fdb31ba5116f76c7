"""fedbuff.numba: what @njit code computes through it is what Python computes, and misuse raises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends

numba = pytest.importorskip("numba")
if backends.current().name != "cpp":
    pytest.skip("it calls the compiled core", allow_module_level=True)

from fedbuff import numba as fbn  # noqa: E402


@numba.njit
def fill_and_step(buffer: Any, deltas: Any, w: Any) -> None:
    for k in range(len(deltas)):
        fbn.add(buffer, deltas[k], 0.5)
    fbn.step(buffer, w, 0.1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_buffer(dtype: Any) -> None:
    deltas = np.random.default_rng(0).standard_normal((3, 9)).astype(dtype)
    buffer, other = fb.DeltaBuffer(9, dtype), fb.DeltaBuffer(9, dtype)
    w = np.ones(9, dtype)
    fill_and_step(fbn.handle(buffer), deltas, w)
    for delta in deltas:
        other.add(delta, 0.5)
    assert w.tobytes() == other.step(np.ones(9, dtype), 0.1).tobytes() and len(buffer) == 0


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_whole_numbers(dtype: Any) -> None:
    buffer = fb.DeltaBuffer(2, unit=0.5)
    fbn.add(fbn.handle(buffer), np.array([3, -4], dtype))
    assert buffer.sum.tolist() == [3, -4]


def test_queue() -> None:
    queue = fb.EventQueue()
    for time, item, kind in [(2.5, -7, 3), (0.5, 2**62, 0), (2.5, 1, 1)]:
        fbn.push(fbn.handle(queue), time, item, kind)
    assert fbn.size(fbn.handle(queue)) == 3
    assert [fbn.pop(fbn.handle(queue)) for _ in range(3)] == [(0.5, 2**62, 0), (2.5, 1, 1), (2.5, -7, 3)]


def test_outcomes() -> None:
    server = fb.Server(np.zeros(2), fb.FedBuff(buffer_size=2, max_staleness=0))
    address, w = fbn.handle(server), np.empty(2)
    assert [fbn.download(address, w) for _ in range(4)] == [0] * 4
    assert [fbn.upload(address, np.ones(2), 0) for _ in range(3)] == [0, 1, 2]
    fbn.cancel(address, 0)
    assert server.outstanding == 0 and server.dropped == 1
    assert fbn.download(address, w) == 1 and w.tolist() == [-1.0, -1.0]


def test_kernel_and_local_sgd() -> None:
    total = np.ones(3, np.float32)
    fbn.accumulate(total, np.array([1, 2, 3], np.float32), 2.0)
    assert total.tolist() == [3, 5, 7]
    problem = fb.Quadratic(np.ones((2, 3)), noise_variance=1.0)
    options = fb.LocalSGD(steps=2, lr=0.1, batch_size=3)
    local, delta = fbn.local_sgd(problem, options, seed=4), np.empty(3)
    fbn.delta(fbn.handle(local), 1, 2, np.zeros(3), delta)
    assert delta.tobytes() == problem.delta(np.zeros(3), 1, options, task=2, seed=4).tobytes()


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (lambda s, q, b: fbn.upload(s, np.ones(3), 0), 10),
        (lambda s, q, b: fbn.upload(s, np.ones(2, np.float32), 0), 9),
        (lambda s, q, b: fbn.upload(s, np.ones(2), 5), 3),
        (lambda s, q, b: fbn.upload(s, np.array([1, np.nan]), 0), 5),
        (lambda s, q, b: fbn.upload(0, np.ones(2), 0), 1),
        (lambda s, q, b: fbn.download(s, np.ones(3)), 10),
        (lambda s, q, b: fbn.cancel(s, 1), 3),
        (lambda s, q, b: fbn.pop(q), 14),
        (lambda s, q, b: fbn.push(q, -1.0, 0), 1),
        (lambda s, q, b: fbn.add(b, np.ones(4)), 10),
        (lambda s, q, b: fbn.accumulate(np.ones(2), np.ones(3), 1.0), 10),
    ],
)
def test_misuse_raises(call: Any, status: int) -> None:
    server, queue, buffer = fb.Server(np.zeros(2), fb.FedBuff(buffer_size=2)), fb.EventQueue(), fb.DeltaBuffer(2)
    server.download()
    with pytest.raises(ValueError) as caught:
        call(fbn.handle(server), fbn.handle(queue), fbn.handle(buffer))
    assert caught.value.args[-1] == status and server.fill == 0


def test_wrong_types_do_not_compile() -> None:
    buffer = fb.DeltaBuffer(2)
    for wrong in (np.ones((2, 1)), np.ones(4)[::2], np.ones(2, np.complex128)):
        with pytest.raises(numba.TypingError, match="expected a contiguous vector"):
            fbn.add(fbn.handle(buffer), wrong)
    for part in (3.0, None, np.ones(2)):
        with pytest.raises(TypeError, match="part: expected a part of the compiled backend"):
            fbn.handle(part)


def test_an_upload_may_name_its_client() -> None:
    rule = fb.FedBuff(1, 1.0, n_clients=2, table=fb.ClientTable())
    server, other = fb.Server(np.zeros(2), rule), fb.Server(np.zeros(2), rule)
    w = np.empty(2)
    for client, delta in ((1, [1.0, 2.0]), (0, [3.0, 1.0]), (1, [0.5, 0.5])):
        version = fbn.download(fbn.handle(server), w)
        fbn.upload(fbn.handle(server), np.array(delta), version, 1.0, client)
        other.download()
        other.upload(np.array(delta), version, client=client)
    assert server.w.tolist() == other.w.tolist()
