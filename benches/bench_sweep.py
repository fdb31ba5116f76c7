"""Sweeps: what the executor adds to the engine's own work, what a cluster adds, and what a resume costs.

`pytest benches/bench_sweep.py -s`. Every bar is a ratio, or a time, of things measured in turn in one run; the answers
are asserted too.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record import note

import fedbuff as fb
from fedbuff import backends
from fedbuff._base.threads import map_in_threads
from fedbuff.backends.spec import new_columns

TURNS = 5
TINY: dict[str, Any] = {
    "problem": {"kind": "quadratic", "centers": [[0.0, 0.0], [2.0, 0.0], [0.0, 1.0]]},
    "trace": {"kind": "model", "n_clients": 3, "compute": {"kind": "exponential", "scale": 1.0}},
    "strategy": {"kind": "fedbuff", "buffer_size": 2},
    "local": {"steps": 1, "lr": 0.5},
    "schedule": {"server_steps": 10},
    "replay": {"eval_every": 10},
}


@pytest.fixture(scope="module")
def w2(tmp_path_factory: pytest.TempPathFactory) -> fb.StudyConfig:
    """Logistic, 20 features, 10,000 clients of 20 samples; K = 10, 100 in flight, exponential delays."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200_000, 20), np.float32)
    y = (X @ rng.standard_normal(20) + rng.standard_normal(200_000) > 0).astype(np.int64)
    file = tmp_path_factory.mktemp("w2") / "rows.npz"
    np.savez(file, X=X, y=y, clients=np.arange(200_000) // 20)
    tables = {
        "problem": {"kind": "logistic", "data": str(file)},
        "trace": {"kind": "model", "n_clients": 10_000, "compute": {"kind": "exponential", "scale": 1.0}},
        "strategy": {"kind": "fedbuff", "buffer_size": 10},
        "local": {"steps": 1, "lr": 0.1, "batch_size": 4},
        "schedule": {"concurrency": 100, "server_steps": 1000},
        "replay": {"eval_every": 10**6, "metrics": []},
    }
    return fb.StudyConfig(tables)


def engine_seconds(config: fb.StudyConfig, seeds: range) -> tuple[float, list[str]]:
    """The mean time of a run in the event loop and in the replay engine alone, on one core; the models' hashes."""
    spent, hashes = 0.0, []
    for seed in seeds:
        (plan,), room = config.plans([seed])
        resolver = backends.current().make_resolver(plan)
        columns = new_columns(room + resolver.rows_needed, room + 2)
        began = time.perf_counter()
        resolver.run(columns)
        spent += time.perf_counter() - began
        schedule = config.make_schedule(seed)
        replay = fb.Replay(config.problem, schedule, config.local, strategy=config.strategy, threads=1, seed=seed)
        while replay._feed.give(replay._run):
            began = time.perf_counter()
            replay._engine.run(2**62, 1)
            spent += time.perf_counter() - began
        hashes.append(hashlib.sha256(replay.w.tobytes()).hexdigest())
    return spent / len(seeds), hashes


def engines_at_once(config: fb.StudyConfig, seeds: range) -> float:
    """The mean time of a run in the two alone while both cores are at it: what the machine itself takes off."""
    ready = []
    for seed in seeds:
        (plan,), room = config.plans([seed])
        resolver = backends.current().make_resolver(plan)
        schedule = config.make_schedule(seed)
        replay = fb.Replay(config.problem, schedule, config.local, strategy=config.strategy, threads=1, seed=seed)
        replay._feed.give(replay._run)
        ready.append((resolver, new_columns(room + resolver.rows_needed, room + 2), replay._engine))

    def run(one: Any) -> None:
        resolver, columns, engine = one
        resolver.run(columns)
        engine.run(2**62, 1)

    began = time.perf_counter()
    map_in_threads(run, ready, 2)
    return 2 * (time.perf_counter() - began) / len(seeds)


def swept(config: fb.StudyConfig, **arguments: Any) -> tuple[float, fb.SweepResults]:
    began = time.perf_counter()
    results = fb.sweep(config, progress=False, **arguments)
    return time.perf_counter() - began, results


def test_two_cores(w2: fb.StudyConfig, benchmark: Any) -> None:
    """1,000 replays of 1,000 server steps: at least 90 % of twice the rate of the engine on one core."""
    engine, pair, sweeps = [], [], []
    for _ in range(TURNS):
        seconds, hashes = engine_seconds(w2, range(100))
        engine.append(seconds)
        pair.append(engines_at_once(w2, range(100)))
        seconds, results = swept(w2, seeds=range(1000), threads=2)
        sweeps.append(seconds / 1000)
        assert results.column("model_sha256")[:100].tolist() == hashes
    share = min(engine) / 2 / min(sweeps)
    note(
        benchmark,
        share=share,
        bar=0.9,
        engine_ms=1e3 * min(engine),
        engine_beside_another_ms=1e3 * min(pair),
        sweep_ms=1e3 * min(sweeps),
    )


@pytest.mark.parametrize("shape", ["seeds", "arms"])
def test_overhead(shape: str, benchmark: Any) -> None:
    """What a run costs beside its engine's work, on one thread: many seeds of an arm, or many arms; bar 200 us."""
    config = fb.StudyConfig(TINY)
    n = 5000
    lrs = [0.1 + i / n for i in range(n)]
    request: dict[str, Any] = {"seeds": range(n)} if shape == "seeds" else {"grid": {"local.lr": lrs}, "seeds": [0]}
    engine, sweeps = [], []
    for _ in range(TURNS):
        seconds, hashes = engine_seconds(config, range(500))
        engine.append(seconds)
        seconds, results = swept(config, threads=1, **request)
        sweeps.append(seconds / n)
        assert len(results) == n and not results.failed
        if shape == "seeds":
            assert results.column("model_sha256")[:500].tolist() == hashes
    overhead = 1e6 * (min(sweeps) - min(engine))
    note(benchmark, overhead_us=overhead, bar=200.0, sweep_us=1e6 * min(sweeps), engine_us=1e6 * min(engine))


def test_dask(w2: fb.StudyConfig, benchmark: Any) -> None:
    """Runs of more than 50 ms on two worker processes: at least 80 % of the rate of two threads here."""
    distributed = pytest.importorskip("distributed")
    config = w2.changed({"schedule.server_steps": 80_000})
    here, there = [], []
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        swept(config, seeds=range(4), executor=client)
        for _ in range(TURNS):
            seconds, results = swept(config, seeds=range(50), threads=2)
            here.append(seconds)
            seconds, remote = swept(config, seeds=range(50), executor=client)
            there.append(seconds)
            assert results.column("model_sha256").tolist() == remote.column("model_sha256").tolist()
            assert results.column("seconds").min() > 0.05
    run_ms = 1e3 * min(here) * 2 / 50
    note(benchmark, share=min(here) / min(there), bar=0.8, run_ms=run_ms)


def test_resume(benchmark: Any) -> None:
    """10^5 finished runs, found in their folder; bar 5 s."""
    config = fb.StudyConfig(TINY)
    request: dict[str, Any] = {"grid": {"local.lr": [0.1 + i / 1000 for i in range(1000)]}, "seeds": range(100)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        first, results = swept(config, out=out, **request)
        again, same = swept(config, out=out, **request)
        assert len(results) == len(same) == 100_000
        assert results.column("model_sha256").tolist() == same.column("model_sha256").tolist()
        n_parts = len(list((out / "parts").iterdir()))
    note(benchmark, seconds=again, bar=5.0, first_seconds=first, parts=n_parts)
