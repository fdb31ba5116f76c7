"""What it costs to cross from Python into the core, on problems so small that nothing else matters."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
from record import note

import fedbuff as fb


def test_upload_of_a_small_delta(benchmark: Any) -> None:
    server = fb.Server(np.zeros(8, np.float32), fb.FedBuff(10))
    delta = np.ones(8, np.float32)
    version = server.version

    def setup() -> None:
        nonlocal version
        for _ in range(100):
            server.download()
        version = server.version

    def upload() -> None:
        for _ in range(100):
            server.upload(delta, version)

    benchmark.pedantic(upload, setup=setup, rounds=300)
    assert server.version == 300 * 100 // 10
    assert benchmark.stats.stats.min / 100 < 1e-5


def test_delta_of_a_small_problem(benchmark: Any) -> None:
    problem = fb.Logistic(np.eye(4, dtype=np.float32), [0, 1, 0, 1], [0, 2, 4])
    w, out, local = problem.init(), np.empty(4, np.float32), fb.LocalSGD(1, 0.1, 1)
    benchmark(lambda: problem.delta(w, 0, local, out=out))
    assert np.count_nonzero(out) == 1


def test_aggregate_of_small_deltas(benchmark: Any) -> None:
    deltas, w = [np.ones(8, np.float32)] * 10, np.zeros(8, np.float32)
    out = benchmark(lambda: fb.aggregate(w, deltas, lr=0.1))
    assert np.allclose(out, -1)


def test_replay_of_one_step(benchmark: Any) -> None:
    """What a replay costs before its first update."""
    problem = fb.Quadratic(np.ones((4, 3)))
    schedule = fb.schedule(fb.DelayModel(n_clients=4, compute=fb.Exponential(1.0)), fb.FedBuff(2), server_steps=1)
    run = benchmark(lambda: fb.replay(problem, schedule, fb.LocalSGD(1, 0.1), threads=1))
    assert run.exit_reason == fb.ExitReason.SCHEDULE_END


def test_import(benchmark: Any) -> None:
    """What `import fedbuff` costs beyond NumPy; a tenth of a second is the most that we want."""
    code = "import numpy, time; t = time.perf_counter(); import fedbuff; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", code]
    seconds = [float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(7)]
    note(benchmark, import_seconds=min(seconds))
