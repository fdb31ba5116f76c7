"""Queues of clients: tasks that wait, closed forms of queueing networks, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import FedBuff, Status

P = np.array([0.3, 0.25, 0.2, 0.15, 0.1])
FACTOR = np.array([0.7, 1.0, 1.4, 1.1, 3.0])


def rows(made: fb.Schedule, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(getattr(made, name).tolist() for name in names), strict=True))


def mean_values(visits: np.ndarray, service: np.ndarray, tasks: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Throughput, mean number and mean sojourn time at each station of a closed network: mean value analysis."""
    number = np.zeros(len(visits))
    for m in range(1, tasks + 1):
        sojourn = service * (1.0 + number)
        throughput = m / (visits @ sojourn)
        number = throughput * visits * sojourn
    return throughput, number, sojourn


@pytest.mark.parametrize("tasks", [1, 4, 25])
def test_closed_network_has_its_mean_values(tasks: int) -> None:
    """Exponential work and routing that does not look at the state: the network of Jackson, Gordon and Newell."""
    model = fb.DelayModel(n_clients=5, compute=fb.Exponential(1.0), client_speed=FACTOR)
    made = fb.schedule(model, FedBuff(3), tasks, arrivals=400_000, selection=P, queues=True, seed=5)
    made[:2000].check()
    throughput, number, sojourn = mean_values(P, FACTOR, tasks)
    spent = made.arrive_time - made.start_time
    assert made.n_arrivals / made.end_time == pytest.approx(throughput, rel=0.01)
    for client in range(5):
        assert spent[made.client == client].mean() == pytest.approx(sojourn[client], rel=0.04)
        assert spent[made.client == client].sum() / made.end_time == pytest.approx(number[client], rel=0.04)


def test_open_network_is_queues_of_their_own() -> None:
    """Poisson starts, routed at random: each client is an M/M/1 queue."""
    model = fb.DelayModel(n_clients=5, compute=fb.Exponential(1.0), client_speed=FACTOR)
    made = fb.schedule(
        model, FedBuff(3), arrivals=400_000, start_rate=1.5, start_process="poisson", selection=P, queues=True
    )
    spent = made.arrive_time - made.start_time
    for client in range(5):
        expected = 1.0 / (1.0 / FACTOR[client] - 1.5 * P[client])
        assert spent[made.client == client].mean() == pytest.approx(expected, rel=0.05)


def test_a_task_waits_on_the_version_it_was_sent_with() -> None:
    trace = fb.Trace([0, 1], [1.0, 2.5])
    made = fb.schedule(trace, FedBuff(1), 3, arrivals=6, selection="round_robin", queues=True)
    made.check()
    assert rows(made, "client", "task", "version", "start_time", "arrive_time") == [
        (0, 0, 0, 0.0, 1.0),
        (0, 1, 0, 0.0, 2.0),  # sent at 0, behind the first
        (1, 0, 0, 0.0, 2.5),
        (0, 2, 2, 2.0, 3.0),
        (0, 3, 4, 3.0, 4.0),
        (1, 1, 1, 1.0, 5.0),
    ]
    assert made.summary()["utilisation"] == pytest.approx(1.0)


def test_a_timeout_counts_from_the_turn_of_the_task() -> None:
    trace = fb.Trace([0, 0, 0], [1.0, 5.0, 1.0])
    made = fb.schedule(trace, FedBuff(1), 3, arrivals=3, queues=True, timeout=2.0)
    assert made.arrive_time.tolist() == [1.0, 3.0, 4.0]
    assert made.status.tolist() == [Status.USED, Status.TIMED_OUT, Status.USED]


def test_a_turn_waits_for_a_window() -> None:
    windows = fb.Availability([0], [0.0], [1.5], n_clients=1, period=4.0)
    trace = fb.Trace([0], [1.0], availability=windows)
    made = fb.schedule(trace, FedBuff(1), 3, arrivals=3, queues=True)
    assert made.start_time.tolist() == [0.0, 0.0, 0.0]
    assert made.arrive_time.tolist() == [1.0, 2.0, 5.0]


def test_stops_reach_tasks_that_wait() -> None:
    trace = fb.Trace([0, 1], [1.0, 10.0])
    made = fb.schedule(trace, FedBuff(1, stop_stale=2), 4, server_steps=3, selection="round_robin", queues=True)
    made.check()
    stopped = made.status == Status.STOPPED
    assert rows(made, "client", "task", "arrive_time", "status")[:4] == [
        (0, 0, 1.0, Status.USED),
        (0, 1, 2.0, Status.USED),
        (1, 0, 2.0, Status.STOPPED),
        (1, 1, 2.0, Status.STOPPED),
    ]
    assert stopped.sum() == 2


@pytest.mark.parametrize("strategy", [FedBuff(4), FedBuff(4, refill="step"), FedBuff(2, stop_stale=2)], ids=str)
def test_files_slices_streams_and_replays(strategy: FedBuff, tmp_path: Path) -> None:
    model = fb.DelayModel(n_clients=5, wait=fb.Exponential(0.01), compute=fb.Exponential(1.0), client_speed=FACTOR)
    options: dict[str, Any] = {"server_steps": 40, "seed": 2, "selection": P, "queues": True}
    made = fb.schedule(model, strategy, 12, **options)
    made.check()
    assert made.description["queues"] is True
    for name in ("s.npz", "s.parquet"):
        made.save(tmp_path / name)
        assert fb.load_schedule(tmp_path / name) == made
    made.to_chrome_trace(tmp_path / "tasks.json", model)
    chunks = list(fb.iter_schedule(model, strategy, 12, chunk=9, **options))
    np.testing.assert_array_equal(np.concatenate([part.start_time for part in chunks]), made.start_time)
    made[10:20].check()
    problem = fb.Quadratic(np.random.default_rng(0).standard_normal((5, 3)), 1.0, noise_variance=0.1)
    local = fb.LocalSGD(2, 0.1, batch_size=1)
    whole = fb.replay(problem, made, local, strategy=strategy, threads=1)
    streamed = fb.replay(problem, iter(chunks), local, strategy=strategy, threads=2)
    np.testing.assert_array_equal(whole.w, streamed.w)


def test_the_check_finds_tasks_out_of_turn() -> None:
    model = fb.DelayModel(n_clients=3, compute=fb.Exponential(1.0))
    state: dict[str, Any] = fb.schedule(model, FedBuff(1), 9, arrivals=40, queues=True)._state()
    rows = np.flatnonzero(state["client"] == state["client"][30])
    a, b = rows[-2:]
    for name in ("task", "version", "start_time", "staleness"):
        state[name] = state[name].copy()
        state[name][[a, b]] = state[name][[b, a]]
    state["staleness"] = np.where(state["step"] >= 0, state["step"] - state["version"], state["staleness"])
    with pytest.raises(ValueError, match=f"arrival {b}: it was sent before one that its client ended earlier"):
        fb.Schedule(**state).check()


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        (fb.FedAvg(clients_per_round=2), {"queues": True}, "queues: FedAvg"),
        (FedBuff(2), {"queues": True}, "queues: every client is always at work"),
        (FedBuff(2), {"queues": True, "start_rate": 1.0, "in_flight": "allow"}, "queues: in_flight"),
        (FedBuff(2), {"queues": True, "concurrency": 2, "selection": "longest_idle"}, "queues: selection"),
        (FedBuff(2, distinct_clients=True), {"queues": True, "concurrency": 2}, "queues: distinct_clients"),
        (FedBuff(2), {"queues": 1, "concurrency": 2}, "queues: expected"),
        (FedBuff(2), {"concurrency": 9}, "concurrency: expected an int up to the 5 clients"),
    ],
    ids=str,
)
def test_refused_queues(strategy: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        fb.schedule(fb.Trace(np.arange(5), np.ones(5)), strategy, arrivals=9, **options)


def test_a_log_has_no_queues() -> None:
    log = fb.ArrivalLog([0, 1], [1.0, 2.0], version=[0, 0])
    with pytest.raises(ValueError, match="queues: an arrival log is replayed as it happened; leave it out"):
        fb.schedule(log, FedBuff(1), queues=True)
