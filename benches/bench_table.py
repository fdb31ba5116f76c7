"""A table with a row per client: what it costs a replay, and its server step beside the memory's bandwidth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Beside

import fedbuff as fb
from fedbuff._machine import limits

DIM, BUFFER, CLIENTS, STEPS = 1_000_000, 10, 40, 40
MOST = {"W1": 1.35, "W3": 1.2}  # of the time without a table
UPDATES = {"W1": 4000, "W3": 400}
BUSY = 0.85  # of the bandwidth


@pytest.mark.parametrize("name", list(MOST))
def test_a_replay_with_a_table(beside: Beside, name: str) -> None:
    _, (slower,) = beside(f"ours replay_table {name} {UPDATES[name]}", f"ours replay_alone {name} {UPDATES[name]}")
    assert 1 / slower.best <= MOST[name]


def bandwidth() -> float:
    """GB/s of copying from memory to memory."""
    return limits._bandwidth(256 << 20, 1, np.dtype(np.float32), False, 0.2)["copy"]


def step_rate() -> float:
    """GB/s of a step over the vectors that it reads and writes: K deltas, K rows (both ways), model, total (both)."""
    delta = np.full(DIM, 1e-6, np.float32)
    start = np.zeros(DIM, np.float32)
    problem = fb.Callback(lambda client, task, w, generator: delta, w0=start, n_clients=CLIENTS)
    delays = fb.DelayModel(n_clients=CLIENTS, compute=fb.Exponential(1.0))
    strategy = fb.algorithm("ca2fl", buffer_size=BUFFER, n_clients=CLIENTS)
    schedule = fb.schedule(delays, strategy, server_steps=STEPS, seed=0)
    replay = fb.Replay(problem, schedule, strategy=strategy, threads=1)
    replay.run(STEPS // 2)  # all clients have a row
    before = replay.stats["commit_seconds"]
    replay.run(STEPS // 2)
    seconds = replay.stats["commit_seconds"] - before
    return (3 * BUFFER + 4) * DIM * 4 * (STEPS // 2) / seconds / 1e9


def test_the_step_of_ca2fl_beside_the_bandwidth(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    limit = bandwidth()
    rate = benchmark.pedantic(lambda: max(step_rate() for _ in range(3)), rounds=1)
    again = bandwidth()
    with capsys.disabled():
        print(f"\n  a step of CA2FL at {DIM} weights, K = {BUFFER}: {rate:.3g} GB/s of {limit:.3g}, {again:.3g}")
    assert rate >= BUSY * min(limit, again)
