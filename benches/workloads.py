"""One workload, timed in a process of its own: `python benches/workloads.py WHAT [ARGUMENT ...]` prints a line of JSON.

    sgd W1|W2|W3 UPDATES          local SGD of clients in random order, updates a second
    replay W1|W2|W3 UPDATES N     schedule and replay together with N threads; also the replay's own share
    aggregate D                   one fused pass over K = 10 deltas of D float32, bytes of K + 2 vectors a second
    read D                        reading K + 1 such vectors and nothing else (Numba), bytes a second
    sgemm                         512 x 512 x 512 float32, operations a second
    upload D                      Server.upload, calls a second

The data of W1 to W3 come from the rivals' folder, so that both sides train on the same rows.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import fedbuff as fb

K = 10
REPEATS = 5
FOLDER = next(
    (p / "shared" / "bench" for p in Path(__file__).resolve().parents if (p / "shared" / "bench").is_dir()), None
)


def best(function: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Seconds of the fastest of several runs."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def workload(name: str) -> tuple[Any, fb.Problem, fb.LocalSGD, np.ndarray, Any]:
    """The rivals' workload as a problem of ours, and a model to start from."""
    assert FOLDER is not None
    sys.path.insert(0, str(FOLDER))
    common: Any = __import__("common")
    w = common.WL[name]
    X, y = common.make(name)
    offsets = np.arange(w.n + 1) * w.m
    rows, labels = X.reshape(-1, w.p), y.reshape(-1)
    start = common.init_w(name)
    problem: fb.Problem
    if w.c == 1:
        problem = fb.Logistic(rows, labels, offsets)
    elif w.hid:
        problem = fb.MLP(rows, labels, offsets, hidden=(w.hid,))
        start = transposed(start, (w.p, w.hid, w.c))
    else:
        problem = fb.Softmax(rows, labels, offsets)
        start = transposed(start, (w.p, w.c))
    return w, problem, fb.LocalSGD(w.Q, w.eta, w.b), start, common


def transposed(model: np.ndarray, sizes: tuple[int, ...], *, back: bool = False) -> np.ndarray:
    """The rivals lay weights out (in, out), we (out, in)."""
    parts, at = [], 0
    for n_in, n_out in pairwise(sizes):
        shape = (n_out, n_in) if back else (n_in, n_out)
        parts += [model[at : at + n_in * n_out].reshape(shape).T.ravel(), model[at + n_in * n_out :][:n_out]]
        at += n_in * n_out + n_out
    return np.concatenate(parts)


def operations(w: Any) -> float:
    """Multiplications and additions of one client update, counting every drawn row."""
    outputs = max(w.c, 1)
    layers = [(w.p, w.hid), (w.hid, outputs)] if w.hid else [(w.p, outputs)]
    forward_and_weights = sum(2 * 2 * n_in * n_out for n_in, n_out in layers)
    back = 2 * layers[1][0] * layers[1][1] if w.hid else 0
    return float(w.Q * w.b * (forward_and_weights + back))


def sgd(name: str, updates: str) -> dict[str, float]:
    w, problem, local, start, _ = workload(name)
    n = int(updates)
    clients = np.random.default_rng(1).integers(0, w.n, n).tolist()
    out = np.empty_like(start)

    def run() -> None:
        for task, client in enumerate(clients):
            problem.delta(start, client, local, task=task, out=out)

    run()
    rate = n / best(run)
    return {"rate": rate, "flops": rate * operations(w)}


def replay(name: str, updates: str, threads: str) -> dict[str, float]:
    w, problem, local, start, common = workload(name)
    strategy = fb.FedBuff.preset("nguyen", buffer_size=w.K)
    delays = fb.DelayModel(n_clients=w.n, compute=fb.Exponential(1.0))
    n = int(updates)
    held: dict[str, Any] = {}

    def run(seed: int = 0) -> None:
        held["schedule"] = fb.schedule(delays, strategy, concurrency=w.C, server_steps=n // w.K, seed=seed)
        held["run"] = fb.replay(problem, held["schedule"], local, strategy=strategy, w0=start, threads=int(threads))

    run()
    seconds = best(run)
    schedule = held["schedule"]
    alone = best(lambda: fb.replay(problem, schedule, local, strategy=strategy, w0=start, threads=int(threads)))
    begin = time.perf_counter()
    stats = fb.replay(problem, schedule, local, strategy=strategy, w0=start, threads=int(threads)).stats
    wall = time.perf_counter() - begin
    busy = stats["work_seconds"] + stats["commit_seconds"]
    model = held["run"].w
    if w.c > 1:
        model = transposed(model, (w.p, w.hid, w.c) if w.hid else (w.p, w.c), back=True)
    return {
        "rate": n / seconds,
        "replay_rate": n / alone,
        "outside_kernels": 1 - busy / wall if threads == "1" else float("nan"),
        "loss": common.loss(name, model),
        "most_versions": stats["most_versions"],
        "most_window": stats["most_window"],
        "flops": n / alone * operations(w),
    }


def aggregate(dim: str) -> dict[str, float]:
    d = int(dim)
    rng = np.random.default_rng(0)
    deltas = [rng.standard_normal(d, dtype=np.float32) for _ in range(K)]
    weights = np.array([(1 + k % 4) ** -0.5 for k in range(K)], np.float32)
    w = np.zeros(d, np.float32)
    fb.aggregate(w, deltas, weights, lr=0.1, out=w)
    expected = -0.1 * sum(float(s) * delta[:1000].astype(np.float64) for s, delta in zip(weights, deltas, strict=True))
    assert np.abs(w[:1000] - expected).max() < 1e-5
    times = max(1, 20_000_000 // d)
    seconds = best(lambda: [fb.aggregate(w, deltas, weights, lr=0.1, out=w) for _ in range(times)]) / times
    return {"bytes": (K + 2) * 4 * d / seconds}


def read(dim: str) -> dict[str, float]:
    import numba

    d = int(dim)
    vectors = [np.ones(d, np.float32) for _ in range(K + 1)]

    @numba.njit(fastmath=True)  # type: ignore[untyped-decorator]
    def total(a: Any, b: Any, c: Any, e: Any, f: Any, g: Any, h: Any, i: Any, j: Any, k: Any, m: Any) -> Any:
        s = np.float32(0)
        for q in range(a.shape[0]):
            s += a[q] + b[q] + c[q] + e[q] + f[q] + g[q] + h[q] + i[q] + j[q] + k[q] + m[q]
        return s

    total(*vectors)
    times = max(1, 20_000_000 // d)
    seconds = best(lambda: [total(*vectors) for _ in range(times)]) / times
    return {"bytes": (K + 1) * 4 * d / seconds}


def sgemm() -> dict[str, float]:
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 512, 512), np.float32)
    out = np.empty_like(a)
    seconds = best(lambda: np.matmul(a, b, out=out), 40)
    return {"flops": 2 * 512**3 / seconds}


def upload(dim: str) -> dict[str, float]:
    server = fb.Server(np.zeros(int(dim), np.float32), fb.FedBuff(10))
    delta = np.ones(int(dim), np.float32)
    seconds = []
    for _ in range(300):
        for _ in range(100):
            server.download()
        version = server.version
        begin = time.perf_counter()
        for _ in range(100):
            server.upload(delta, version)
        seconds.append((time.perf_counter() - begin) / 100)
    return {"rate": 1 / float(np.median(seconds))}


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    print(json.dumps(globals()[what](*arguments)))
