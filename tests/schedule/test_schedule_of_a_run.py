"""Schedules as `fb.schedule` makes them: every one passes check(), prefixes are shorter runs, parts add up."""

from __future__ import annotations

import numpy as np
import pytest

import fedbuff as fb

N = 24


def windows(policy: str) -> fb.Availability:
    client = np.repeat(np.arange(N), 2)
    begin = np.tile([0.0, 5.0], N) + 0.05 * client
    return fb.Availability(client, begin, begin + 3.0, n_clients=N, period=10.0 + 0.1 * np.arange(N), policy=policy)


def recorded(**options) -> fb.Trace:
    rng = np.random.default_rng(5)
    client = np.repeat(np.arange(N), 15)
    tenths = {
        name: np.round(rng.exponential(0.5, client.size), 1) for name in ("wait", "compute", "upload")
    }  # with ties
    return fb.Trace(client, **tenths, ok=rng.random(client.size) < 0.9, **options)


SOURCES = {
    "model": fb.DelayModel(N, compute=fb.LogNormal(), upload=fb.Exponential(0.3), client_speed=fb.Pareto(3.0)),
    "constant": fb.DelayModel(N),
    "trace": recorded(),
    "stop": recorded(end="stop"),
    "wait": recorded(availability=windows("wait")),
    "pause": recorded(availability=windows("pause")),
    "abort": recorded(availability=windows("abort")),
}
STRATEGIES = {
    "buffer": fb.FedBuff(buffer_size=3),
    "fresh": fb.FedBuff(buffer_size=3, max_staleness=4),
    "timer": fb.FedBuff(buffer_size=7, max_wait=0.2),
    "async": fb.FedAsync(),
    "rounds": fb.FedAvg(rate=0.3),
    "over": fb.FedAvg(clients_per_round=5, over_selection=0.5),
}
LOOPS = {
    "all": {},
    "closed": {"concurrency": 8},
    "overlapping": {"start_rate": 6.0, "in_flight": "allow"},
    "open": {"start_rate": 6.0, "start_process": "poisson", "in_flight": "skip"},
    "timeout": {"timeout": 1.5},
}
CASES = [
    pytest.param(SOURCES[a], STRATEGIES[b], LOOPS[c], id=f"{a}-{b}-{c}")
    for a in SOURCES
    for b in STRATEGIES
    for c in LOOPS
    if not (isinstance(STRATEGIES[b], fb.FedAvg) and c not in ("all", "timeout"))
]


@pytest.mark.parametrize(("source", "strategy", "loop"), CASES)
def test_check_and_prefixes(source, strategy, loop) -> None:
    whole = fb.schedule(source, strategy, server_steps=20, seed=3, **loop)
    whole.check()
    fb.schedule(source, strategy, max_time=9.0, seed=3, **loop).check()
    fb.schedule(source, strategy, arrivals=50, seed=3, **loop).check()
    for steps in (1, 9):
        assert whole[:steps] == fb.schedule(source, strategy, server_steps=steps, seed=3, **loop)
    whole[5:15].check()


@pytest.mark.parametrize(
    "source",
    [
        SOURCES["trace"],
        fb.DelayModel(
            N,
            wait=fb.Uniform(0.0, 0.1),
            download=fb.HalfNormal(0.2),
            compute=fb.Weibull(1.5, 0.01),
            upload=fb.Empirical([0.1, 0.2, 0.4]),
            client_speed=fb.LogNormal(0.0, 0.3),
            n_samples=np.arange(10, 10 + N),
        ),
    ],
    ids=["trace", "model"],
)
def test_parts_are_the_time_of_the_task(source) -> None:
    schedule = fb.schedule(source, fb.FedBuff(buffer_size=3), concurrency=10, server_steps=200, seed=8)
    parts = schedule.parts(source)
    ended = schedule.start_time + ((parts["download"] + parts["compute"]) + parts["upload"])
    assert np.array_equal(ended, schedule.arrive_time)


def test_a_recorded_run_replays_to_itself() -> None:
    model = SOURCES["model"]
    first = fb.schedule(model, fb.FedBuff(buffer_size=3), concurrency=10, server_steps=50, seed=1)
    again = fb.schedule(first.arrival_log(), fb.FedBuff(buffer_size=3), server_steps=50)
    for name in ("client", "version", "step", "staleness", "start_time", "arrive_time", "status", "step_time"):
        assert np.array_equal(getattr(again, name), getattr(first, name)), name
    again.check()


def test_streamed_parquet_is_the_schedule(tmp_path) -> None:
    pytest.importorskip("pyarrow")
    arguments = (SOURCES["trace"], fb.FedBuff(buffer_size=3), 10)
    for _ in fb.iter_schedule(*arguments, chunk=100, path=tmp_path / "s.parquet", server_steps=300, seed=2):
        assert not (tmp_path / "s.parquet").exists()
    assert fb.load_schedule(tmp_path / "s.parquet") == fb.schedule(*arguments, server_steps=300, seed=2)


def test_the_hash_of_a_run_does_not_change() -> None:
    schedule = fb.schedule(SOURCES["model"], fb.FedBuff(buffer_size=3), concurrency=10, server_steps=100, seed=1)
    assert schedule.sha256 == "6fef5e2727d850277ab42870da6110555dfafbcd4bb148553ed9e1b79a0a4d67"
