"""Functions of the user's inside a replay: what they keep, what they raise, when the interpreter ends, and one at a
time."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends

STEPS = 60


def schedule(steps: int = STEPS) -> fb.Schedule:
    return fb.uniform_arrivals(n_clients=4, buffer_size=2, max_staleness=3, server_steps=steps, seed=0)


def moving(dim: int, keep: Any) -> fb.Callback:
    """Every model differs from all others, so that memory that is used again shows."""

    def work(client: int, task: int, w: Any, generator: Any) -> Any:
        keep(w)
        return np.full(dim, -1.0 - client)

    return fb.Callback(work, w0=np.zeros(dim), n_clients=4)


# ---- What a function keeps


@pytest.mark.parametrize("dim", [3, 20_000, 300_000])
@pytest.mark.parametrize("form", ["array", "view", "memoryview", "reshaped"])
@pytest.mark.parametrize("threads", [1, 4])
def test_a_model_may_be_kept(dim: int, form: str, threads: int) -> None:
    forms: dict[str, Any] = {
        "array": lambda w: w,
        "view": lambda w: w[1:-1],
        "memoryview": memoryview,
        "reshaped": lambda w: w.reshape(1, -1)[0],
    }
    kept: list[tuple[Any, Any]] = []
    problem = moving(dim, lambda w: kept.append((forms[form](w), w[1])))
    steps = 12 if dim > 100_000 else STEPS
    run = fb.Replay(problem, schedule(steps), threads=threads)
    run.run()
    del run, problem
    gc.collect()
    held = [np.ones(dim) for _ in range(20)]  # takes memory that is free
    assert len(kept) == 2 * steps
    for values, first in kept:
        array = np.asarray(values)
        assert (array == first).all() and not array.flags.writeable
    del held


def test_a_model_that_is_not_kept_costs_no_memory() -> None:
    """Model memory is used again where nobody has it: there are few addresses."""
    seen = set()
    replay = fb.Replay(moving(20_000, lambda w: seen.add(w.ctypes.data)), schedule(200), threads=1)
    replay.run()
    if backends.current().name == "cpp":
        assert len(seen) < 20


def test_an_error_shows_the_model_that_it_had() -> None:
    def work(client: int, task: int, w: Any, generator: Any) -> Any:
        if w[0] > 20:
            raise LookupError("enough")
        return np.full(5, -1.0)

    with pytest.raises(LookupError) as caught:
        fb.replay(fb.Callback(work, w0=np.zeros(5), n_clients=4), schedule())
    last = caught.traceback[-1].frame.f_locals["w"]
    gc.collect()
    held = [np.zeros(5) for _ in range(100)]
    assert last[0] > 20 and (last == last[0]).all()
    del held


# ---- What a function raises


class Payload:
    """Something that can be seen to go."""


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_leaves_nothing_behind(threads: int) -> None:
    def attempt() -> weakref.ref[Payload]:
        payload = Payload()

        def work(client: int, task: int, w: Any, generator: Any) -> Any:
            assert payload is not None
            raise LookupError("no")

        replay = fb.Replay(fb.Callback(work, w0=np.zeros(3), n_clients=4), schedule(), threads=threads)
        with pytest.raises(LookupError):
            replay.run()
        with pytest.raises(LookupError):
            replay.run()  # it can be tried again
        return weakref.ref(payload)

    gone = attempt()
    gc.collect()
    assert gone() is None


def test_nor_does_a_function_that_leads_back_to_its_replay() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.replay = fb.Replay(fb.Callback(self.work, w0=np.zeros(3), n_clients=4), schedule())

        def work(self, client: int, task: int, w: Any, generator: Any) -> Any:
            return np.zeros(3)

    trainer = Trainer()
    trainer.replay.run()
    gone = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert gone() is None


def test_a_delta_of_another_kind_is_named() -> None:
    for wrong, kind, text in (
        (np.zeros(3, np.float32), TypeError, "function: expected a delta of float64, got float32"),
        (np.zeros(4), ValueError, r"function: expected a delta of shape \(3,\), got \(4,\)"),
    ):
        problem = fb.Callback(lambda client, task, w, generator, x=wrong: x, w0=np.zeros(3), n_clients=4)
        with pytest.raises(kind, match=text):
            fb.replay(problem, schedule())
    strided = np.arange(6.0)[::2]
    run = fb.replay(fb.Callback(lambda *given: strided, w0=np.zeros(3), n_clients=4), schedule())
    same = fb.replay(fb.Callback(lambda *given: strided.copy(), w0=np.zeros(3), n_clients=4), schedule())
    np.testing.assert_array_equal(run.w, same.w)


# ---- One at a time


def questions(replay: fb.Replay, path: Path) -> dict[str, Any]:
    return {
        "run": lambda: replay.run(1),
        "w": lambda: replay.w,
        "version": lambda: replay.version,
        "stats": lambda: replay.stats,
        "check": replay.check,
        "save": lambda: replay.save(path),
        "gradients": lambda: replay.gradients,
    }


@pytest.mark.parametrize("name", ["run", "w", "version", "stats", "check", "save", "gradients"])
def test_a_replay_is_not_asked_from_inside(tmp_path: Path, name: str) -> None:
    box: list[fb.Replay] = []
    problem = moving(3, lambda w: questions(box[0], tmp_path / "r.npz")[name]())
    box.append(fb.Replay(problem, schedule()))
    with pytest.raises(ValueError, match="the replay is running already, in another thread or in a function that it"):
        box[0].run()
    assert box[0].version == 0 and not (tmp_path / "r.npz").exists()
    box[0].check()


@pytest.mark.parametrize("name", ["run", "w", "save"])
def test_nor_from_another_thread(tmp_path: Path, name: str) -> None:
    inside, asked = threading.Event(), threading.Event()

    def wait(w: Any) -> None:
        inside.set()
        asked.wait(30)

    replay = fb.Replay(moving(3, wait), schedule())
    runner = threading.Thread(target=replay.run)
    runner.start()
    try:
        assert inside.wait(30)
        with pytest.raises(ValueError, match="the replay is running already"):
            questions(replay, tmp_path / "r.npz")[name]()
    finally:
        asked.set()
        runner.join(30)
    assert replay.version == STEPS
    undisturbed = fb.Replay(moving(3, lambda w: None), schedule())
    undisturbed.run()
    np.testing.assert_array_equal(replay.w, undisturbed.w)


def test_an_interrupt_leaves_a_replay_free() -> None:
    calls = [0]

    def interrupt(w: Any) -> None:
        calls[0] += 1
        if calls[0] == 7:
            raise KeyboardInterrupt

    replay = fb.Replay(moving(3, interrupt), schedule(), threads=1)
    with pytest.raises(KeyboardInterrupt):
        replay.run()
    assert replay.run() == fb.ExitReason.SCHEDULE_END


# ---- The end of the interpreter

AT_THE_END = """
import threading
import numpy as np
import fedbuff as fb

started = threading.Semaphore(0)
schedule = fb.uniform_arrivals(n_clients=4, buffer_size=2, max_staleness=3, server_steps=100_000, seed=0)
problem = fb.LeastSquares(np.ones((8, 50)), np.ones(8), [0, 2, 4, 6, 8])
local = fb.LocalSGD(steps=2, lr=1e-4)

def work(client, task, w, generator):
    started.release()
    return 1e-9 * w

def go(number):
    if number % 2:
        fb.replay(fb.Callback(work, w0=np.ones(3), n_clients=4), schedule, threads=2)
    while True:
        started.release()
        fb.replay(problem, schedule, local, threads=2)

for number in range(6):
    threading.Thread(target=go, args=(number,), daemon=True).start()
for _ in range(12):
    started.acquire()
"""


@pytest.mark.parametrize("attempt", range(3))
def test_daemon_threads_do_not_abort_the_process(attempt: int) -> None:
    done = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
