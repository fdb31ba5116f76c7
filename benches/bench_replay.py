"""Schedule and replay together beside the hand-written simulators, and two threads beside one.

Both sides train on the same rows with the same rule; the losses that they reach must agree, as the random numbers of
the two differ.
"""

from __future__ import annotations

import os

import pytest
from conftest import FULL, Beside
from rivals.data import A_SECOND

UPDATES = {"W1": 2000, "W2": 400_000, "W3": 300, "CSR": 20_000}
RIVALS = {
    "W1": ["numba replay W1 2000 blas", "jax replay W1 2000"],
    "W2": ["numba replay W2 400000", "jax replay W2 400000"],
    "W3": ["numba replay W3 300", "jax replay W3 300"],
    "CSR": ["numba replay CSR 20000"],
}
SLOW = [
    "numba replay W1 2000 loops",
    "torch replay W1 1000",
    "torch replay W1 200 module",
    "numpy replay W1 1000",
    "torch replay W2 20000",
    "numpy replay W2 20000",
    "torch replay W3 200",
    "torch replay W3 100 module",
    "numpy replay W3 200",
]


@pytest.mark.parametrize("name", list(RIVALS))
def test_replay(beside: Beside, name: str) -> None:
    _, ratios = beside(f"ours replay {name} {UPDATES[name]}", *RIVALS[name])
    assert all(faster.best > 0.4 for faster in ratios)


@pytest.mark.skipif(not FULL, reason="FEDBUFF_BENCH_FULL=1 runs it")
@pytest.mark.parametrize("rival", SLOW)
def test_replay_beside_slower_ones(beside: Beside, rival: str) -> None:
    _, _, name, updates = rival.split()[:4]
    _, (faster,) = beside(f"ours replay {name} {updates}", rival)
    assert faster.best > 1


@pytest.mark.parametrize("who", ["flsim", "flgo", "fedjax", "pfl", "flwr"])
def test_replay_beside_a_peer(beside: Beside, who: str) -> None:
    _, (faster,) = beside("ours replay W1 1000", f"{who} replay W1 200")
    assert faster.best > 1


def test_the_check_of_a_schedule_costs_little(beside: Beside) -> None:
    """At most 5 % of the replay's time for a row, where rows are cheapest."""
    _, (faster,) = beside("ours check W2 400000", "ours replay_alone W2 400000")
    assert faster.best > 20


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
@pytest.mark.parametrize("name", list(A_SECOND))
def test_two_threads(beside: Beside, name: str) -> None:
    run = f"ours replay_alone {name} {A_SECOND[name]}"
    results, (_,) = beside(f"{run} 2", f"{run} 1", cores=2)
    assert results[0].turns[0]["loss"] == results[1].turns[0]["loss"]


@pytest.mark.parametrize("clients", [100_000, 1_000_000] if FULL else [100_000])
def test_more_clients_cost_nothing(beside: Beside, clients: int) -> None:
    _, (faster,) = beside("ours replay_clients 1000 200000", f"ours replay_clients {clients} 200000")
    assert faster.best < 4
