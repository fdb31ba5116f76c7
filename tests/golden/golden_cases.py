"""Schedules and replays whose bits are written down in hashes.json, so that every machine compares with the same file.

`FEDBUFF_ISA=baseline python tests/golden/golden_cases.py --write` writes the file anew, which is right only after a
change that says so in CHANGELOG.md.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fedbuff as fb

FILE = Path(__file__).parent / "hashes.json"


def fraction(i: np.ndarray | int, j: int = 0) -> Any:
    """Numbers in [0, 1) that look irregular and are exact: no generator, no function of the C library."""
    return (np.asarray(i, np.int64) * 7919 + j * 104729) % 1024 / 1024


def delays(n: int = 50, **parts: Any) -> fb.DelayModel:
    return fb.DelayModel(n_clients=n, **({"compute": fb.Exponential(1.0)} | parts))


def recorded() -> fb.Trace:
    rows = np.arange(120)
    return fb.Trace(
        rows % 12,
        0.5 + fraction(rows),
        download=0.25 * fraction(rows, 1),
        upload=0.5 * fraction(rows, 2),
        ok=(rows % 11 != 5),
    )


def windows(policy: str) -> fb.DelayModel:
    begin = 4.0 * fraction(np.arange(30))
    return delays(
        30,
        availability=fb.Availability(np.arange(30), begin, begin + 3.0, n_clients=30, period=8.0, policy=policy),
    )


def log() -> fb.ArrivalLog:
    rows = np.arange(200)
    return fb.ArrivalLog(rows % 9, arrive_time=rows / 4.0, version=np.maximum(0, rows // 4 - rows % 4))


def of(source: Any, strategy: Any, concurrency: int | None = None, **options: Any) -> Callable[[], fb.Schedule]:
    return lambda: fb.schedule(source, strategy, concurrency, **({"server_steps": 60, "seed": 11} | options))


EVERY_PART = {
    "wait": fb.Uniform(0.0, 0.5),
    "download": fb.Weibull(1.5, 0.25),
    "compute": fb.LogNormal(0.0, 0.75),
    "upload": fb.Pareto(3.0, 0.25),
    "client_speed": fb.TruncatedNormal(1.0, 0.5, 0.25, 2.0),
}
K = fb.FedBuff(4)

SCHEDULES: dict[str, Callable[[], fb.Schedule]] = {
    "every client at work": of(delays(), K),
    "concurrency": of(delays(), K, 12),
    "as many tasks as clients": of(delays(), K, 49),
    "half-normal": of(delays(compute=fb.HalfNormal(1.0)), K, 12),
    "every part drawn": of(delays(**EVERY_PART), K, 12),
    "empirical": of(delays(compute=fb.Empirical(fraction(np.arange(64)) + 0.25)), K, 12),
    "equal delays": of(delays(compute=fb.Constant(1.0)), K, 12),
    "recorded, with failures": of(recorded(), K, 6),
    "timeout and staleness": of(delays(), fb.FedBuff(4, max_staleness=3), 30, timeout=2.5),
    "longest wait": of(delays(), fb.FedBuff(9, max_wait=0.25), 12),
    "FedAsync": of(delays(), fb.FedAsync(0.5), 12),
    "FedAvg": of(delays(), fb.FedAvg(clients_per_round=10, over_selection=0.3)),
    "windows wait": of(windows("wait"), K, 8),
    "windows pause": of(windows("pause"), K, 8),
    "windows abort": of(windows("abort"), K, 8),
    "open loop": of(delays(), K, start_rate=8.0, start_process="poisson"),
    "distinct clients": of(delays(), fb.FedBuff(4, distinct_clients=True), 12),
    "stop and refill": of(delays(), fb.FedBuff(4, refill="step", stop_stale=2), 12),
    "restart": of(delays(), fb.FedBuff(4, restart="step"), 12),
    "period": of(delays(), fb.FedBuff(40, period=0.75), 12),
    "every client heard": of(delays(8), fb.FedBuff(8, trigger="every_client")),
    "weights and queues": of(delays(4), K, 9, selection=[0.5, 0.25, 0.125, 0.125], queues=True),
    "longest idle, capped": of(delays(), K, 12, selection="longest_idle", max_uses=7),
    "arrival log": lambda: fb.schedule(log(), K),
    "uniform arrivals": lambda: fb.uniform_arrivals(40, 4, 9, server_steps=60, seed=11),
}


def rows(n: int, width: int) -> np.ndarray:
    return (fraction(np.arange(n * width)).reshape(n, width) - 0.5) * 2


def problems() -> dict[str, Any]:
    """Numbers of the portable level, with no function of the C library in them."""
    x, clients = rows(120, 7), np.arange(120) % 12
    target, label = x @ np.arange(7.0), (np.arange(120) * 5 // 3) % 3
    return {
        "quadratic": fb.Quadratic(rows(12, 5)),
        "least squares": fb.LeastSquares(x, np.round(target * 64) / 64, clients),
        "logistic": fb.Logistic(x, (label > 0).astype(np.int64), clients, l2=0.125),
        "softmax, float32": fb.Softmax(x.astype(np.float32), label, clients),
    }


def replayed(problem: Any) -> str:
    made = fb.schedule(delays(12), K, 6, server_steps=40, seed=3)
    local = fb.LocalSGD(steps=3, lr=0.0625, batch_size=None if isinstance(problem, fb.Quadratic) else 4)
    run = fb.replay(problem, made, local, strategy=K, seed=5)
    return hashlib.sha256(run.w.astype(run.w.dtype.newbyteorder("<")).tobytes()).hexdigest()


def schedule_hashes() -> dict[str, str]:
    return {name: make().sha256 for name, make in SCHEDULES.items()}


def replay_hashes() -> dict[str, str]:
    return {name: replayed(problem) for name, problem in problems().items()}


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(json.dumps({"schedules": schedule_hashes(), "replays": replay_hashes()}, indent=2) + "\n")
    else:
        print(json.dumps(replay_hashes()))
