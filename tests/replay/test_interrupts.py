"""An interrupt takes effect between consistent states only, wherever it comes: the same bits after it."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends
from fedbuff._replay import feed

N_CLIENTS = 5
STRATEGY = fb.FedBuff(2, optimizer=fb.SGD(0.9))
DELAYS = fb.DelayModel(n_clients=N_CLIENTS, compute=fb.Exponential(1.0))
PROBLEM = fb.Quadratic(np.arange(N_CLIENTS * 2, dtype=np.float64).reshape(N_CLIENTS, 2))
LOCAL = fb.LocalSGD(steps=1, lr=0.3)
EVERY = float(os.environ.get("FEDBUFF_INTERRUPT_EVERY", "1"))  # a smaller number tries more places
OURS = (
    *(str(path) for path in sorted(Path(feed.__file__).parent.glob("*.py"))),
    *(str(Path(backends.__file__).parent / name) for name in ("python/replay.py", "python/run.py", "numba/replay.py")),
)


def round_up(places: int) -> int:
    return max(1, round(EVERY * places))


class Interrupt(KeyboardInterrupt):
    """Ours, not one from the keyboard."""


class At:
    """Raises at the n-th event of the traced frames: a line, or any instruction."""

    def __init__(self, n: int, event: str, files: tuple[str, ...] = OURS) -> None:
        self._left, self._event, self._files = n, event, files
        self.fired = False

    def __enter__(self) -> At:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: Any, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        if self._event == "opcode":
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        if event == self._event and not self.fired:
            self._left -= 1
            if self._left == 0:
                self.fired = True
                raise Interrupt
        return self._trace


@functools.cache
def schedule() -> fb.Schedule:
    return fb.schedule(DELAYS, STRATEGY, concurrency=4, server_steps=6, seed=1)


@functools.cache
def chunks_of_two() -> list[fb.Schedule]:
    return [schedule()[begin : begin + 2] for begin in range(0, 6, 2)]


def stream() -> Iterator[fb.Schedule]:
    return iter(chunks_of_two())


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_ROWS_AT_ONCE", 4)


SOURCES: dict[str, Callable[[], Any]] = {"schedule": schedule, "stream": stream}


@pytest.mark.parametrize("source", SOURCES)
def test_a_replay_interrupted_at_any_instruction_goes_on(source: str) -> None:
    expected = fb.Replay(PROBLEM, schedule(), LOCAL, strategy=STRATEGY, threads=1)
    expected.run()
    n, fired = 0, True
    step = round_up({"cpp": 7, "numba": 13, "reference": 43}[backends.current().name])  # Python's instructions count
    while fired:
        n += step
        replay = fb.Replay(PROBLEM, SOURCES[source](), LOCAL, strategy=STRATEGY, threads=1)
        interrupt = At(n, "opcode")
        try:
            with interrupt:
                replay.run()
        except Interrupt:
            replay.check()
        fired = interrupt.fired
        before = replay.version, replay.updates, replay.time
        assert before[1] == 2 * before[0]
        assert before[2] == (schedule().step_time[before[0] - 1] if before[0] else 0.0)
        assert replay.run() == fb.ExitReason.SCHEDULE_END
        replay.check()
        assert (replay.version, replay.updates, replay.time) == (6, 12, expected.time)
        np.testing.assert_array_equal(replay.w, expected.w)
    assert n > 40 * step


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # of an interrupt just after it was opened
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("source", SOURCES)
def test_a_checkpoint_written_at_any_interrupt_resumes_to_the_same_bits(source: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "strategy": STRATEGY, "eval_every": 2, "metrics": ("loss", "distance", "step_norm"), "threads": 1,
        "progress": False, "checkpoint_every": 3,
    }  # fmt: skip
    expected = fb.replay(PROBLEM, schedule(), LOCAL, **options)
    n, fired, interrupted = 0, True, 0
    while fired:
        n += round_up({"cpp": 23, "numba": 31, "reference": 71}[backends.current().name])
        path = tmp_path / f"{n}.npz"
        interrupt = At(n, "line")
        try:
            with interrupt:
                fb.replay(PROBLEM, SOURCES[source](), LOCAL, **options, checkpoint=path)
        except KeyboardInterrupt:
            interrupted += 1
        fired = interrupt.fired
        resumed = fb.replay(PROBLEM, SOURCES[source](), LOCAL, **options, checkpoint=path)
        np.testing.assert_array_equal(resumed.w, expected.w)
        assert resumed.history._rows == expected.history._rows, n
    assert interrupted > 10


ROWS = np.linspace(-1.0, 1.0, 60).reshape(20, 3)
KEEPING = {"n_clients": N_CLIENTS, "norm": "arrivals"}


@functools.cache
def network() -> fb.Network:
    layers = [fb.layers.Dense(4), fb.layers.GELU(), fb.layers.Dropout(0.3), fb.layers.Dense(3)]
    return fb.Network(ROWS, np.arange(20) % 3, clients=np.arange(20) % N_CLIENTS, layers=layers)


def moved(number: int, task: int, w: Any, generator: np.random.Generator) -> Any:
    return 0.1 * w + generator.normal(size=w.size)


# What a run keeps beside the model: rows and moments of the rule, noise, rows that are not used, queues, Python's work.
FEATURES: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "table": (PROBLEM, LOCAL, fb.FedBuff(2, table=fb.ClientTable(own=-1.0, mean=1.0), **KEEPING), {}),
    "moments": (PROBLEM, LOCAL, fb.FedBuff(2, optimizer=fb.AMSGrad(), weight_by=fb.DeltaWeight("last_step")), {}),
    "noise": (
        PROBLEM,
        LOCAL,
        fb.FedBuff(2, privacy=fb.secure.Gaussian(clip=1.0, noise_multiplier=0.5, source="simulated")),
        {},
    ),
    "stops": (PROBLEM, LOCAL, fb.FedBuff(2, stop_stale=1, refill="step"), {}),
    "queues": (PROBLEM, LOCAL, fb.FedBuff(2, max_staleness=1), {"concurrency": 9, "queues": True}),
    "epochs of a network": (network, fb.LocalSGD(epochs=2, lr=0.1, batch_size=2), fb.FedBuff(2), {}),
    "callback": (fb.Callback(moved, w0=np.ones(3), n_clients=N_CLIENTS), None, STRATEGY, {}),
}


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # of an interrupt just after it was opened
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("feature", FEATURES)
def test_what_a_run_keeps_survives_interrupts(feature: str, tmp_path: Path) -> None:
    made, local, strategy, how = FEATURES[feature]
    if backends.current().name != "cpp" and feature in ("noise", "epochs of a network"):
        pytest.skip("the C++ engine's")
    problem = made() if made is network else made
    plan = fb.schedule(DELAYS, strategy, **({"concurrency": 4} | how), server_steps=8, seed=1)
    options: dict[str, Any] = {
        "strategy": strategy, "eval_every": 3, "threads": 1, "progress": False, "checkpoint_every": 2,
        "metrics": () if local is None else ("loss",),
    }  # fmt: skip
    expected = fb.replay(problem, plan, local, **options)
    n, fired, interrupted = 0, True, 0
    while fired:
        n += round_up(61 if backends.current().name == "cpp" else 211)
        path = tmp_path / f"{n}.npz"
        interrupt = At(n, "line")
        try:
            with interrupt:
                fb.replay(problem, plan, local, **options, checkpoint=path)
        except KeyboardInterrupt:
            interrupted += 1
        fired = interrupt.fired
        resumed = fb.replay(problem, plan, local, **options, checkpoint=path)
        np.testing.assert_array_equal(resumed.w, expected.w)
        np.testing.assert_equal(resumed.history._rows, expected.history._rows)
    assert interrupted > 3


def test_a_reached_stop_is_seen_again_after_an_interrupt(tmp_path: Path) -> None:
    options: dict[str, Any] = {"strategy": STRATEGY, "eval_every": 2, "checkpoint": tmp_path / "c.npz"}

    def interrupted(row: dict[str, float]) -> None:
        if row["step"] == 4:
            raise KeyboardInterrupt

    def stop(row: dict[str, float]) -> bool:
        return row["step"] >= 4

    with pytest.raises(fb.Interrupted):
        fb.replay(PROBLEM, schedule(), LOCAL, **options, stop=stop, callback=interrupted)
    run = fb.replay(PROBLEM, schedule(), LOCAL, **options, stop=stop)
    assert (run.exit_reason, run.version) == (fb.ExitReason.STOP_FUNCTION, 4)


def test_a_stream_that_is_interrupted_inside_does_not_end_silently() -> None:
    fired = []

    def chunks() -> Iterator[fb.Schedule]:
        for chunk in stream():
            if chunk.first_step == 4 and not fired:
                fired.append(1)
                raise KeyboardInterrupt
            yield chunk

    replay = fb.Replay(PROBLEM, chunks(), LOCAL, strategy=STRATEGY)
    with pytest.raises(KeyboardInterrupt):
        replay.run()
    assert replay.version == 4
    with pytest.raises(ValueError, match="schedule: the stream was interrupted while it made a chunk"):
        replay.run()

    class Again:
        """An iterator that survives."""

        def __init__(self) -> None:
            self.rest, self.fired = list(stream()), False

        def __iter__(self) -> Again:
            return self

        def __next__(self) -> fb.Schedule:
            if len(self.rest) == 1 and not self.fired:
                self.fired = True
                raise KeyboardInterrupt
            if not self.rest:
                raise StopIteration
            return self.rest.pop(0)

    replay = fb.Replay(PROBLEM, Again(), LOCAL, strategy=STRATEGY)
    with pytest.raises(KeyboardInterrupt):
        replay.run()
    assert replay.run() == fb.ExitReason.SCHEDULE_END
    assert replay.version == 6


INTERRUPTED = textwrap.dedent(
    """
    import os, signal, sys
    import numpy as np
    import fedbuff as fb

    def handler(number, frame):
        raise KeyboardInterrupt

    def call(**more):
        return fb.replay(problem, schedule, fb.LocalSGD(steps=1, lr=0.1), strategy=strategy, threads=2, progress=False,
                         eval_every=500, **more)

    problem = fb.Quadratic(np.random.default_rng(0).standard_normal((30, 3)))
    strategy = fb.FedBuff(3)
    delays = fb.DelayModel(n_clients=30, compute=fb.Exponential(1.0))
    schedule = fb.schedule(delays, strategy, concurrency=20, server_steps=20_000, seed=0)
    expected = call()
    signal.signal(signal.SIGALRM, handler)
    interrupts = 0
    for round in range(6):
        path = f"{sys.argv[1]}/{round}.npz"
        while True:
            # whenever it comes: the interrupt of a timer, or Ctrl-C's own signal
            signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.0007 * round)
            try:
                run = call(checkpoint=path)
                signal.setitimer(signal.ITIMER_REAL, 0)
                break
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
                interrupts += 1
                if interrupts % 5 == 0:
                    run = call(checkpoint=path)
                    break
        assert run.w.tobytes() == expected.w.tobytes()
        assert run.history._rows == expected.history._rows
    print("same", interrupts)
    """
)


def test_interrupted_by_signals_it_resumes_to_the_same_bits(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("same")


SIGINT = textwrap.dedent(
    """
    import os, signal, sys
    import numpy as np
    import fedbuff as fb
    problem = fb.Quadratic(np.ones((30, 3)))
    strategy = fb.FedBuff(3)
    delays = fb.DelayModel(n_clients=30, compute=fb.Exponential(1.0))
    schedule = fb.schedule(delays, strategy, concurrency=20, server_steps=3000, seed=0)
    def callback(row):
        if row["step"] == 1000 and sys.argv[2] == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
    try:
        run = fb.replay(problem, schedule, fb.LocalSGD(1, 0.1), strategy=strategy, checkpoint=sys.argv[1],
                        eval_every=100, callback=callback)
        print(run.w.tobytes().hex())
    except fb.Interrupted as interrupt:
        print("interrupted", interrupt.result.version)
    """
)


def test_sigint_then_the_same_call(tmp_path: Path) -> None:
    def call(path: str, mode: str) -> str:
        command = [sys.executable, "-c", SIGINT, str(tmp_path / path), mode]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert call("a.npz", "interrupt").startswith("interrupted 1000")
    assert call("a.npz", "resume") == call("b.npz", "whole")


def test_an_error_of_a_signal_handler_leaves_a_replay_that_can_go_on() -> None:
    class Alarm(Exception):
        pass

    def client(number: int, task: int, w: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        if armed:
            armed.pop()
            os.kill(os.getpid(), signal.SIGUSR1)
        return 0.1 * w

    def handler(number: int, frame: object) -> None:
        raise Alarm

    armed: list[int] = []
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        problem = fb.Callback(client, w0=np.ones(2), n_clients=N_CLIENTS)
        expected = fb.replay(problem, schedule(), strategy=STRATEGY).w
        replay = fb.Replay(problem, schedule(), strategy=STRATEGY, threads=1)
        armed.append(1)
        with pytest.raises(Alarm):
            replay.run()
        replay.check()
        assert replay.run() == fb.ExitReason.SCHEDULE_END
        np.testing.assert_array_equal(replay.w, expected)
    finally:
        signal.signal(signal.SIGUSR1, before)
