"""The parts that a host embeds, on every backend: the event queue, tickets, whole-number deltas, closing."""

from __future__ import annotations

import heapq
import importlib
import itertools
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbuff as fb
from fedbuff import backends

BACKENDS = ["cpp", "numba", "reference"]


@pytest.fixture(params=BACKENDS)
def parts(request: pytest.FixtureRequest) -> Any:
    """A backend: its Server, DeltaBuffer and EventQueue."""
    pytest.importorskip({"cpp": "fedbuff._core", "numba": "numba"}.get(request.param, "numpy"))
    return importlib.import_module(f"fedbuff.backends.{request.param}")


# ---- The event queue


def test_queue_orders_by_time_then_kind_then_creation(parts: Any) -> None:
    queue = parts.EventQueue()
    for time, item, kind in [(2.0, 1, 0), (1.0, 2, 3), (1.0, 3, 1), (1.0, 4, 1), (0.0, 5, 2)]:
        queue.push(time, item, kind)
    assert queue.peek() == (0.0, 5, 2) and len(queue) == 5
    assert [queue.pop()[1] for _ in range(5)] == [5, 3, 4, 2, 1]
    assert len(queue) == 0 and not queue


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), st.tuples(st.floats(0, 8).map(round), st.integers(0, 3))), max_size=300))
@pytest.mark.parametrize("name", BACKENDS)
def test_queue_is_a_heap(name: str, steps: list[tuple[float, int] | None]) -> None:
    """Pushes, and a pop for each None, beside heapq."""
    pytest.importorskip({"cpp": "fedbuff._core", "numba": "numba"}.get(name, "numpy"))
    queue = importlib.import_module(f"fedbuff.backends.{name}").EventQueue()
    heap: list[tuple[float, int, int]] = []
    for number, step in enumerate(steps):
        if step is not None:
            queue.push(float(step[0]), number, step[1])
            heapq.heappush(heap, (float(step[0]), step[1], number))
        elif heap:
            time, kind, item = heapq.heappop(heap)
            assert queue.pop() == (time, item, kind)
    assert len(queue) == len(heap)


@pytest.mark.parametrize(
    ("event", "kind", "text"),
    [
        ((-1.0, 0), ValueError, "time: expected a finite number >= 0, got -1.0"),
        ((float("nan"), 0), ValueError, "time: expected a finite number >= 0, got nan"),
        ((float("inf"), 0), ValueError, "time: expected a finite number >= 0, got inf"),
        ((1.0, 0, 4), ValueError, "kind: expected 0, 1, 2 or 3, got 4"),
        ((1.0, 0, -1), ValueError, "kind: expected 0, 1, 2 or 3, got -1"),
        ((1.0, 2**63), OverflowError, "item: expected an int of 64 bits, got 9223372036854775808"),
        ((1.0, "a"), TypeError, "item: expected an int, got str"),
        ((1.0, 2.9), TypeError, "item: expected an int, got float"),
        ((1.0, 2.0), TypeError, "item: expected an int, got float"),
        ((1.0, np.float32(2.9)), TypeError, "item: expected an int, got float32"),
        ((1.0, 2, 1.9), TypeError, "kind: expected an int, got float"),
        (("1.5", 1), TypeError, "time: expected a number, got str"),
        ((10**400, 1), ValueError, "time: expected a number that float64 holds, got an int of 1329 bits"),
    ],
)
def test_queue_refuses(parts: Any, event: Any, kind: Any, text: str) -> None:
    queue = parts.EventQueue()
    with pytest.raises(kind) as caught:
        queue.push(*event)
    assert text in str(caught.value) and len(queue) == 0
    for take in (queue.pop, queue.peek):
        with pytest.raises(IndexError, match="the event queue is empty"):
            take()
    queue.push(1.0, 1)
    queue.clear()
    assert len(queue) == 0


@pytest.mark.parametrize("wrong", [1.9, 1.0, np.float64(1.9), np.float32(1.9), Decimal("1.9"), "1"])
def test_what_is_no_int_is_never_cut_to_one(parts: Any, wrong: Any) -> None:
    server, buffer = parts.Server(np.zeros(1), fb.FedBuff(buffer_size=9)), parts.DeltaBuffer(1)
    server.download()
    calls: dict[str, Callable[[], Any]] = {
        "version": lambda: server.upload(np.zeros(1), wrong),
        "ticket": lambda: server.upload(np.zeros(1), 0, ticket=wrong),
        "dim": lambda: parts.DeltaBuffer(wrong),
    }
    others = [
        ("version", lambda: server.cancel(wrong)),
        ("ticket", lambda: server.cancel_ticket(wrong)),
        ("ticket", lambda: buffer.add(np.zeros(1), ticket=wrong)),
        ("ticket", lambda: buffer.cancel_ticket(wrong)),
    ]
    for name, call in [*calls.items(), *others]:
        with pytest.raises(TypeError, match=f"^{name}: expected an int, got {type(wrong).__name__}$"):
            call()
    assert server.outstanding == 1 and server.fill == 0 and buffer.count == 0


def test_a_number_is_named(parts: Any) -> None:
    server, buffer = parts.Server(np.zeros(1), fb.FedBuff(buffer_size=9)), parts.DeltaBuffer(1)
    with pytest.raises(TypeError, match=r"^n_samples: expected a number, got str$"):
        server.upload(np.zeros(1), 0, "3")
    with pytest.raises(TypeError, match=r"^weight: expected a number, got list$"):
        buffer.add(np.zeros(1), [])
    with pytest.raises(TypeError, match=r"^lr: expected a number, got NoneType$"):
        buffer.step(np.zeros(1), None)


# ---- Tickets


def in_threads(*calls: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def adder(parts: Any, kind: str) -> tuple[Any, Callable[..., Any], Callable[[], float]]:
    """A server or a buffer of one number; a function that adds to it; and the sum of three."""
    if kind == "server":
        server = parts.Server(np.zeros(1), fb.FedBuff(buffer_size=3, server_lr=1.0))
        for _ in range(9):
            server.download()
        return server, lambda x, **o: server.upload(np.array([x]), 0, **o), lambda: -float(server.w[0])
    buffer = parts.DeltaBuffer(1)
    return buffer, lambda x, **o: buffer.add(np.array([x]), **o), lambda: float(buffer.sum[0])


@pytest.mark.parametrize("kind", ["server", "buffer"])
@pytest.mark.parametrize(("values", "total"), [((1e16, 1.0, -1e16), 0.0), ((1e16, -1e16, 1.0), 1.0)])
def test_deltas_are_added_in_ticket_order(parts: Any, kind: str, values: tuple[float, ...], total: float) -> None:
    """Threads come last ticket first; the order of the tickets decides which of two sums comes out."""
    both, add, result = adder(parts, kind)
    tickets = [both.take_ticket() for _ in values]
    pairs = reversed(list(zip(values, tickets, strict=True)))
    in_threads(*(lambda v=v, t=t: add(v, ticket=t) for v, t in pairs))
    assert result() == total


@pytest.mark.parametrize("kind", ["server", "buffer"])
def test_tickets_are_used_once(parts: Any, kind: str) -> None:
    both, add, _ = adder(parts, kind)
    first, second, third = (both.take_ticket() for _ in range(3))
    both.cancel_ticket(second)
    with pytest.raises(ValueError, match="delta: element 0 is nan"):
        add(np.nan, ticket=first)  # refused in its turn: used up
    add(1.0, ticket=third)
    for used in (first, second, third, 99, -1, 2**70):
        with pytest.raises(ValueError, match=f"ticket {used} was never given out, or was used or cancelled already"):
            add(1.0, ticket=used)
        with pytest.raises(ValueError, match=f"ticket {used} "):
            both.cancel_ticket(used)
    fourth = both.take_ticket()
    with pytest.raises(TypeError):
        add("x", ticket=fourth)  # no delta at all: the ticket stays good
    add(2.0, ticket=fourth)
    add(3.0)


@pytest.mark.parametrize("kind", ["server", "buffer"])
def test_close_frees_who_waits(parts: Any, kind: str) -> None:
    both, add, _ = adder(parts, kind)
    both.take_ticket()
    later = both.take_ticket()
    errors: list[str] = []

    def wait() -> None:
        try:
            add(1.0, ticket=later)
        except ValueError as error:
            errors.append(str(error))

    in_threads(wait, both.close)
    assert errors == [f"the {kind} is closed"]
    calls: list[Callable[[], Any]] = [lambda: add(1.0), both.take_ticket]
    if kind == "server":
        calls += [both.download, lambda: both.cancel(0)]
    for call in calls:
        with pytest.raises(ValueError, match=f"the {kind} is closed"):
            call()
    both.close()
    assert both.w.tolist() == [0.0] if kind == "server" else both.sum.tolist() == [0.0]


@pytest.mark.parametrize("dim", [50, 40_000])
def test_many_producers_equal_one(parts: Any, dim: int) -> None:
    """Eight threads with tickets give the bits of one thread, for small models and for those cut into parts."""
    generator = np.random.default_rng(0)
    deltas = generator.standard_normal((40, dim)).astype(np.float32)
    strategy = fb.FedBuff(buffer_size=7, optimizer=fb.SGD(momentum=0.9))

    def server() -> Any:
        made = parts.Server(np.zeros(dim, np.float32), strategy)
        for _ in deltas:
            made.download()
        return made

    alone, shared = server(), server()
    for delta in deltas:
        alone.upload(delta, 0)
    lock, left = threading.Lock(), iter(deltas)

    def produce() -> None:
        while True:
            with lock:
                delta = next(left, None)
                if delta is None:
                    return
                ticket = shared.take_ticket()
            shared.upload(delta, 0, ticket=ticket)

    in_threads(*[produce] * 8)
    assert shared.version == alone.version == 5 and shared.fill == alone.fill == 5
    assert shared.w.tobytes() == alone.w.tobytes()


def test_a_log_taken_with_the_tickets_replays(parts: Any) -> None:
    """Threads record and take tickets under one lock, and upload outside of it; the log alone gives the model."""
    problem = fb.Quadratic(np.random.default_rng(1).standard_normal((4, 30)), noise_variance=0.5)
    local, strategy = fb.LocalSGD(steps=2, lr=0.1, batch_size=1), fb.FedBuff(buffer_size=3)
    server = parts.Server(problem.init(), strategy)
    recorder = fb.Recorder(clients=4)

    def client(number: int) -> None:
        for task in range(12):
            with recorder.lock:
                version, w = server.download()
                recorder.started(number, version)
            delta = problem.delta(w, number, local, task=task, seed=5)
            with recorder.lock:
                ticket = server.take_ticket()
                recorder.arrived(number)
            server.upload(delta, version, ticket=ticket)

    in_threads(*(lambda i=i: client(i) for i in range(4)))
    again = fb.replay(problem, fb.schedule(recorder.log(), strategy), local, seed=5)
    assert server.version == 16
    if parts.name == backends.current().name:
        assert again.w.tobytes() == server.w.tobytes()
    np.testing.assert_allclose(again.w, server.w, rtol=1e-12)


# ---- Whole-number deltas


def total(parts: Any, arrivals: list[tuple[Any, float]], unit: float | None, **options: Any) -> bytes:
    """The model after one full buffer of (delta, n_samples)."""
    strategy = fb.FedBuff(buffer_size=len(arrivals), **options)
    server = parts.Server(np.zeros(arrivals[0][0].size), strategy, unit=unit)
    for delta, n_samples in arrivals:
        server.download()
        server.upload(delta, 0, n_samples)
    return bytes(server.w.tobytes())


def three_tenths(staleness: int) -> float:
    return 0.3


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "arrivals", "staleness": three_tenths},
        {"norm": "scaled_weights", "weights": "samples", "staleness": three_tenths},
        {"weights": "sqrt_samples", "optimizer": fb.Adam()},
    ],
)
def test_whole_numbers_give_the_same_bits_in_any_order(parts: Any, dtype: Any, options: dict[str, Any]) -> None:
    generator = np.random.default_rng(2)
    deltas = generator.integers(-(2**30), 2**30, (5, 6)).astype(dtype)
    arrivals = list(zip(deltas, (0.1, 7.3, 0.7, 11.9, 2.0), strict=True))
    orders = list(itertools.permutations(arrivals))[::7]
    assert len({total(parts, list(order), 2.0**-20, **options) for order in orders}) == 1
    floats = [[(delta * 0.1, n) for delta, n in order] for order in orders]
    assert len({total(parts, order, None, **options) for order in floats}) > 1  # what whole numbers are for


def test_whole_numbers_mean_their_unit(parts: Any) -> None:
    deltas = [np.array([3, -8], np.int64), np.array([5, 2], np.int64)]
    exact = total(parts, [(d, 1) for d in deltas], 0.25, server_lr=0.5)
    floats = total(parts, [(d * 0.25, 1) for d in deltas], None, server_lr=0.5)
    assert exact == floats
    buffer = parts.DeltaBuffer(2, unit=0.25)
    buffer.add(deltas[0], weight=0.5)  # 1.5 and -4 units: ties go to the even neighbour
    assert buffer.sum.tolist() == [2, -4] and buffer.sum.dtype == np.int64
    assert buffer.step(np.zeros(2), 1.0).tolist() == [-0.5, 1.0] and buffer.unit == 0.25


def test_whole_numbers_that_do_not_fit_change_nothing(parts: Any) -> None:
    most = np.array([2**63 - 1, 0])
    server = parts.Server(np.zeros(2), fb.FedBuff(buffer_size=3, weights="samples"), unit=1.0)
    for _ in range(3):
        server.download()
    server.upload(most, 0)
    for delta, n_samples in ((np.array([1, 0]), 1), (most, 2.0), (np.array([1, 0]), 2.0**30)):
        with pytest.raises(OverflowError, match="delta: the sum does not fit 64 bits; nothing was added"):
            server.upload(delta, 0, n_samples)
    assert server.fill == 1
    server.upload(-most, 0)
    server.upload(np.array([4, 5], np.int32), 0)
    np.testing.assert_allclose(server.w, [-4 / 3, -5 / 3])


def test_whole_numbers_are_refused_elsewhere(parts: Any) -> None:
    server = parts.Server(np.zeros(2), fb.FedBuff(buffer_size=2), unit=1.0)
    server.download()
    for wrong, text in [
        (np.zeros(2), "delta: expected int32 or int64, which count units, got float64"),
        (np.zeros(2, np.uint32), "delta: expected int32 or int64, which count units, got uint32"),
        (np.zeros(2, ">i4"), "delta: expected int32 or int64, which count units, got >i4"),
    ]:
        with pytest.raises(TypeError, match=text):
            server.upload(wrong, 0)
    with pytest.raises(ValueError, match=r"delta: expected shape \(2,\), got \(3,\)"):
        server.upload(np.zeros(3, np.int64), 0)
    with pytest.raises(TypeError, match="delta: expected float64, got int64"):
        parts.DeltaBuffer(2).add(np.zeros(2, np.int64))
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="unit: expected a number > 0"):
            parts.Server(np.zeros(2), fb.FedBuff(buffer_size=2), unit=bad)
    with pytest.raises(ValueError, match='unit: whole-number deltas need base "start"'):
        parts.Server(np.zeros(2), fb.FedBuff(buffer_size=2, base="current"), unit=1.0)


@pytest.mark.parametrize("reader", BACKENDS)
def test_whole_numbers_are_saved(parts: Any, reader: str, tmp_path: Path) -> None:
    server = parts.Server(np.zeros(2), fb.FedBuff(buffer_size=2), unit=0.5)
    server.download(), server.download()
    server.upload(np.array([2**60, 3]), 0)
    server.save(tmp_path / "server.npz")
    other = importlib.import_module(f"fedbuff.backends.{reader}").Server.load(tmp_path / "server.npz")
    assert other.unit == 0.5 and other.fill == 1
    other.upload(np.array([-(2**60), 4]), 0)
    assert other.w.tolist() == [0.0, -1.75]
