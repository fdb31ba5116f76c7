"""Many threads at once, with a GIL and without one: the same bits, or an error that says so; never less.

`make test-free-threaded` runs this file under a free-threaded interpreter.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends

N_THREADS = 4
FREE = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

pytestmark = pytest.mark.skipif(backends.current().name != "cpp", reason="this is about the compiled parts")


@pytest.fixture(autouse=True)
def threads_change_places_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*works: Callable[[], None]) -> None:
    """Runs the functions on a thread each, which begin at the same moment; raises what one of them raises."""
    start = threading.Barrier(len(works))
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            start.wait(60)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.mark.skipif(not FREE, reason="this interpreter has a GIL")
def test_importing_leaves_the_gil_off() -> None:
    code = (
        "import sys, numpy as np, fedbuff as fb\n"
        "fb.Server(np.zeros(2), fb.FedBuff(1)), fb.EventQueue(), fb.DeltaBuffer(2)\n"
        "print(sys._is_gil_enabled())"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.stdout == "False\n", child.stderr


def test_an_event_queue_takes_one_thread_at_a_time() -> None:
    queue = fb.EventQueue()
    pushed, popped, refused = [0] * N_THREADS, [0] * N_THREADS, [0] * N_THREADS

    def work(number: int) -> None:
        for i in range(3000):
            try:
                if i % 3 < 2:
                    queue.push(float(i), item=number)
                    pushed[number] += 1
                else:
                    queue.pop()
                    popped[number] += 1
            except ValueError as error:
                assert str(error) == "event queue: expected one thread at a time, another one is inside"
                refused[number] += 1
            except IndexError:
                pass

    together(*(lambda number=number: work(number) for number in range(N_THREADS)))
    assert sum(pushed) - sum(popped) == len(queue)
    times = [queue.pop()[0] for _ in range(len(queue))]
    assert times == sorted(times)
    assert FREE or sum(refused) == 0


def test_uploads_from_all_threads_are_all_taken() -> None:
    strategy = fb.FedBuff(4, staleness=lambda t: 1.0 / (1.0 + t))  # a function of Python, asked as the table grows
    server = fb.Server(np.zeros(300), strategy)

    def work() -> None:
        for _ in range(200):
            version, w = server.download()
            assert np.isfinite(w).all()
            server.upload(np.full(300, 2.0**-10), version)

    together(*[work] * N_THREADS)
    assert (server.version, server.fill, server.outstanding) == (200, 0, 0)
    assert (server.w == server.w[0]).all() and server.w[0] < 0


def test_tickets_decide_the_bits_whichever_thread_comes_first() -> None:
    deltas = np.random.default_rng(3).normal(size=(120, 40_000)).astype(np.float32)

    def fed(n_threads: int) -> bytes:
        server = fb.Server(np.zeros(40_000, np.float32), fb.FedBuff(5))
        buffer = fb.DeltaBuffer(40_000, np.float32)
        places = [(server.take_ticket(), buffer.take_ticket()) for _ in deltas]
        for _ in deltas:
            server.download()

        def work(number: int) -> None:
            for i in range(number, len(deltas), n_threads):
                server.upload(deltas[i], 0, ticket=places[i][0])
                buffer.add(deltas[i], 0.5, ticket=places[i][1])

        together(*(lambda number=number: work(number) for number in range(n_threads)))
        total: bytes = buffer.sum.tobytes()
        return server.w.tobytes() + total

    assert fed(1) == fed(N_THREADS)


def schedule(n: int = 12) -> fb.Schedule:
    model = fb.DelayModel(n_clients=n, compute=fb.Exponential(1.0))
    return fb.schedule(model, fb.FedBuff(3), 9, server_steps=60, seed=2)


@pytest.mark.parametrize("batch", [None, 4])
def test_a_callback_on_all_threads_has_the_bits_of_one(batch: int | None) -> None:
    running, most = [0], [0]
    lock = threading.Lock()

    def delta(client: Any, task: Any, w: Any, generator: Any) -> Any:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        noise = [g.normal(size=w.shape[-1]) for g in generator] if batch else generator.normal(size=w.shape)
        made = 0.125 * w + np.asarray(noise)
        with lock:
            running[0] -= 1
        return made

    def replayed(threads: int) -> bytes:
        problem = fb.Callback(delta, w0=np.ones(50), n_clients=12, batch=batch)
        bits: bytes = fb.replay(problem, schedule(), strategy=fb.FedBuff(3), threads=threads).w.tobytes()
        return bits

    one = replayed(1)
    assert most[0] == 1
    assert replayed(N_THREADS) == one


def test_a_problem_and_a_schedule_may_be_shared() -> None:
    problem = fb.Quadratic(np.random.default_rng(0).normal(size=(12, 30)))
    shared, local = schedule(), fb.LocalSGD(steps=2, lr=0.05)
    expected = fb.replay(problem, shared, local, strategy=fb.FedBuff(3), threads=1).w.tobytes()
    hashes = {shared.sha256}

    def work() -> None:
        for _ in range(4):
            run = fb.replay(problem, shared, local, strategy=fb.FedBuff(3), threads=2)
            assert run.w.tobytes() == expected
            assert problem.loss(run.w) == problem.loss(run.w, threads=2)
            hashes.add(schedule().sha256)

    together(*[work] * N_THREADS)
    assert len(hashes) == 1


def test_one_replay_in_many_threads_goes_on_or_says_that_it_is_busy() -> None:
    problem = fb.Quadratic(np.random.default_rng(0).normal(size=(12, 400)))
    replay = fb.Replay(problem, schedule(), fb.LocalSGD(steps=2, lr=0.05), strategy=fb.FedBuff(3), threads=2)

    def work() -> None:
        while replay_goes_on():
            pass

    def replay_goes_on() -> bool:
        try:
            replay.run(1)
            assert np.isfinite(replay.w).all() and replay.history is not None
            return bool(replay.version < 60)
        except ValueError as error:
            assert "the replay is running already" in str(error)
            return True

    together(*[work] * N_THREADS)
    alone = fb.replay(problem, schedule(), fb.LocalSGD(steps=2, lr=0.05), strategy=fb.FedBuff(3))
    assert replay.version == 60
    assert replay.w.tobytes() == alone.w.tobytes()
