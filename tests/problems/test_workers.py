"""`workers=n`: clients' work in processes, with the bits of this one, whatever dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb

N_CLIENTS = 6
SCHEDULE = fb.schedule(
    fb.DelayModel(N_CLIENTS, compute=fb.Exponential(1.0)), fb.FedBuff(3), concurrency=5, server_steps=20, seed=0
)
W0 = np.linspace(-1, 1, 5)


def one(client: int, task: int, w: Any, generator: Any) -> Any:
    assert not w.flags.writeable
    return w * 0.1 + 1e-3 * client + 1e-4 * generator.standard_normal(w.size)


def many(clients: Any, tasks: Any, W: Any) -> Any:
    W[:] = W * 0.1 + 1e-3 * clients[:, None] + 1e-4 * W.sum() + 1e-5 * tasks[:, None]
    return W


def threads_of_libraries(client: int, task: int, w: Any) -> Any:
    return np.full_like(w, float(os.environ["OMP_NUM_THREADS"]))


def failing(client: int, task: int, w: Any) -> Any:
    if client == 3:
        raise LookupError("client 3 has no data")
    return w * 0.1


class Dying:
    """Ends its process when a file is there to be removed."""

    def __init__(self, folder: Path, always: bool = False) -> None:
        self.folder, self.always = str(folder), always

    def __call__(self, client: int, task: int, w: Any) -> Any:
        if client == 2:
            try:
                if not self.always:
                    os.remove(os.path.join(self.folder, "die"))
            except FileNotFoundError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return w * 0.1


def problem(function: Any, workers: int, batch: int | None = None, dtype: str = "float64") -> fb.Callback:
    return fb.Callback(function, w0=W0.astype(dtype), n_clients=N_CLIENTS, workers=workers, batch=batch)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(("function", "batch"), [(one, None), (many, 4)])
def test_the_bits_are_those_of_this_process(function: Any, batch: int | None) -> None:
    here = fb.replay(problem(function, 0, batch), SCHEDULE, seed=3)
    there = problem(function, 2, batch)
    for threads in (1, 3):
        np.testing.assert_array_equal(fb.replay(there, SCHEDULE, seed=3, threads=threads).w, here.w)
    assert there._pool is not None
    pids = there._pool.pids
    assert len(pids) == 2 and all(is_running(pid) for pid in pids)  # they wait for the next replay
    other = fb.replay(there, SCHEDULE, seed=4)
    assert function is many or (other.w != here.w).any()
    there.close()
    assert not any(is_running(pid) for pid in pids)


def test_a_function_fails_as_it_does_here() -> None:
    there = problem(failing, 1)
    with pytest.raises(LookupError, match="client 3 has no data") as caught:
        fb.replay(there, SCHEDULE)
    assert "in failing" in str(caught.value.__cause__)
    there.close()


def test_one_thread_of_each_library() -> None:
    there = problem(threads_of_libraries, 1)
    before = dict(os.environ)
    assert fb.Replay(there, SCHEDULE).run(1) == fb.ExitReason.SERVER_STEPS
    assert dict(os.environ) == before
    there.close()


def test_a_worker_that_dies_is_named_and_its_tasks_are_done_again(tmp_path: Path) -> None:
    here = fb.replay(problem(Dying(tmp_path), 0), SCHEDULE)
    (tmp_path / "die").touch()
    there = problem(Dying(tmp_path), 2)
    match = r"worker \d \(process \d+\) was ended by signal SIGKILL at task \d+ of client 2; a new one does them again"
    with pytest.warns(RuntimeWarning, match=match):
        run = fb.replay(there, SCHEDULE)
    np.testing.assert_array_equal(run.w, here.w)
    there.close()


def test_tasks_that_kill_every_worker_end_the_replay(tmp_path: Path) -> None:
    there = problem(Dying(tmp_path, always=True), 1)
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(ChildProcessError, match="at task 0 of client 2, and so did 2 before it at the same"),
    ):
        fb.replay(there, SCHEDULE)
    there.close()


def test_a_function_without_a_name_is_refused() -> None:
    with pytest.raises(TypeError, match="workers: the problem cannot be sent to other processes"):
        fb.replay(problem(lambda client, task, w: w, 1), SCHEDULE)


INTERRUPTED = """
import os, time
import numpy as np
import fedbuff as fb

def slow(client, task, w):
    print(os.getpid(), flush=True)
    time.sleep(600 if task else 0)
    return w

if __name__ == "__main__":
    schedule = fb.uniform_arrivals(n_clients=2, buffer_size=1, max_staleness=1, server_steps=50, seed=0)
    problem = fb.Callback(slow, w0=np.ones(3), n_clients=2, workers=1)
    try:
        fb.replay(problem, schedule, threads=1)
    except fb.Interrupted:
        print("interrupted", flush=True)
        assert problem._pool is None
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind(how: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(textwrap.dedent(INTERRUPTED))
    run = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert run.stdout is not None and run.stderr is not None
    workers = {int(run.stdout.readline()) for _ in range(3)}
    run.send_signal(how) if how == signal.SIGKILL else os.killpg(run.pid, how)
    rest, errors = run.communicate(timeout=60)
    if how == signal.SIGINT:
        assert "interrupted" in rest and run.returncode == 0, errors
    deadline = time.monotonic() + 60
    while any(is_running(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)  # the end of a process is another's; there is nothing to wait on
    assert not any(is_running(pid) for pid in workers)
