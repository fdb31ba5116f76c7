"""What secure sums cost, each beside the plain thing in the same run, on one core.

`pytest benches/bench_secure.py -s`. Bars: the fused clip, encode and add at least half of plain accumulation's rate at
d = 10^6; a simulated secure replay of W1 at most 1.25 times the time of the plain one; real pads at d = 10^6 at least
0.5 GB of delta a second. The assertions compare answers, not times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from record import note

import fedbuff as fb
from fedbuff import backends
from fedbuff.backends.spec import EncodeNumbers
from fedbuff.secure import (
    Aggregator,
    Client,
    FixedPoint,
    OneTimePad,
    Parameters,
    Server,
    Simulate,
)
from fedbuff.secure._cipher import ZEROS, make_key_stream, pieces

DIM = 1_000_000
K = 10


@pytest.fixture(autouse=True)
def one_core() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


def interleaved(turns: int, *runs: Callable[[], Any]) -> list[float]:
    """CPU seconds of the fastest call of each, called in turn."""
    best = [float("inf")] * len(runs)
    for _ in range(turns):
        for i, run in enumerate(runs):
            begin = time.process_time()
            run()
            best[i] = min(best[i], time.process_time() - begin)
    return best


def test_encode_add(benchmark: Any) -> None:
    backend = backends.current()
    delta = np.random.default_rng(0).uniform(-1.1, 1.1, DIM).astype(np.float32)
    total, narrow, wide = np.zeros(DIM, np.float32), np.zeros(DIM, np.uint32), np.zeros(DIM, np.uint64)
    encoding = FixedPoint()
    clip, step = encoding.clip, encoding.step

    def numpy_rival() -> None:
        np.clip(delta, -clip, clip, out=scratch)
        np.multiply(scratch, 1 / step, out=scratch)
        np.rint(scratch, out=scratch)
        np.add(rival, scratch.astype(np.int32).view(np.uint32), out=rival)

    def clipped() -> None:
        norm = backend.dot(delta, delta) ** 0.5
        backend.encode_add(narrow, delta, EncodeNumbers(1, clip, step, min(1.0, 300.0 / norm)), narrow)

    scratch, rival = np.empty(DIM, np.float32), np.zeros(DIM, np.uint32)
    check = np.zeros(DIM, np.uint32)
    backend.encode_add(check, delta, EncodeNumbers(1, clip, step), check)
    numpy_rival()
    np.testing.assert_array_equal(check, rival)
    plain, encode, weighted, long, l2, chance, by_numpy = interleaved(
        30,
        lambda: backend.accumulate(total, delta, 1.0, None, None, total),
        lambda: backend.encode_add(narrow, delta, EncodeNumbers(1, clip, step), narrow),
        lambda: backend.encode_add(narrow, delta, EncodeNumbers(3, clip, step), narrow),
        lambda: backend.encode_add(wide, delta, EncodeNumbers(1, clip, step), wide),
        clipped,
        lambda: backend.encode_add(narrow, delta, EncodeNumbers(1, clip, step, 1.0, (1, 2, 3)), narrow),
        numpy_rival,
    )
    note(
        benchmark,
        share_of_plain_rate=plain / encode,
        with_a_weight=plain / weighted,
        words_of_64_bits=plain / long,
        with_l2_clipping=plain / l2,
        stochastic=plain / chance,
        ratio_to_numpy=by_numpy / encode,
        GB_of_delta_per_second=4e-9 * DIM / encode,
    )


def workload_1() -> tuple[fb.Softmax, fb.LocalSGD, fb.Schedule]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60_000, 784)).astype(np.float32)
    problem = fb.Softmax(X, rng.integers(0, 10, 60_000), np.arange(1001) * 60)
    delays = fb.DelayModel(n_clients=1000, compute=fb.Exponential(1.0))
    schedule = fb.schedule(delays, fb.FedBuff(K), concurrency=100, server_steps=100, seed=0)
    return problem, fb.LocalSGD(steps=10, lr=0.05, batch_size=32), schedule


def test_replay(benchmark: Any) -> None:
    problem, local, schedule = workload_1()
    privacy = fb.secure.Gaussian(clip=1.0, noise_multiplier=0.01, source="simulated")
    strategies = {
        "plain": fb.FedBuff(K),
        "simulated": fb.FedBuff(K, secure="simulate"),
        "private": fb.FedBuff(K, privacy=privacy),
        "both": fb.FedBuff(K, secure=Simulate(), privacy=privacy),
        "real": fb.FedBuff(K, secure=OneTimePad()),
    }
    models: dict[str, Any] = {}

    def run(name: str) -> None:
        models[name] = fb.replay(problem, schedule, local, strategy=strategies[name], threads=1, progress=False).w

    times = dict(zip(strategies, interleaved(5, *(lambda name=name: run(name) for name in strategies)), strict=True))
    note(benchmark, **{f"{name}_to_plain": times[name] / times["plain"] for name in strategies})
    np.testing.assert_array_equal(models["real"], models["simulated"])
    np.testing.assert_allclose(models["simulated"], models["plain"], rtol=0, atol=1e-3)


@pytest.mark.parametrize("cipher", ["chacha20", "aes-ctr"])
def test_pads(benchmark: Any, cipher: Any) -> None:
    agreed = Parameters(dim=DIM, buffer_size=K, secure=OneTimePad(cipher=cipher))
    aggregator = Aggregator(agreed)
    server = Server(agreed, aggregator.hello, dtype=np.float32)
    delta = np.random.default_rng(0).uniform(-1, 1, DIM).astype(np.float32)
    seconds = {"client": float("inf"), "server": float("inf"), "aggregator": float("inf"), "open": float("inf")}

    def timed(role: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        begin = time.process_time()
        result = call(*arguments, **options)
        seconds[role] = min(seconds[role], time.process_time() - begin)
        return result

    client = Client(agreed, aggregator.hello, 0)
    upload = client.upload(delta, task=3 * K, version=0)
    for buffer in range(3):
        for task in range(K):
            timed("client", client.upload, delta, task=buffer * K + task, version=0, out=upload)
            ticket = server.receive(upload)
            receipt = timed("aggregator", aggregator.admit, ticket)
            timed("server", server.settle, receipt)
        total = timed("open", lambda: server.open(aggregator.release(server.request())))
        np.testing.assert_allclose(total, K * delta, rtol=0, atol=agreed.secure.encoding.error(K) + 1e-6)
    pad = bytearray(4 * DIM)
    stream = make_key_stream(cipher, os.urandom(32))
    (cipher_alone,) = interleaved(5, lambda: [stream(ZEROS[: b - a], pad) for a, b in pieces(len(pad))])
    whole = seconds["client"] + seconds["server"] + seconds["aggregator"] + seconds["open"] / K
    note(
        benchmark,
        client_GB_per_second=4e-9 * DIM / seconds["client"],
        aggregator_GB_per_second=4e-9 * DIM / seconds["aggregator"],
        server_GB_per_second=4e-9 * DIM / seconds["server"],
        all_roles_GB_per_second=4e-9 * DIM / whole,
        cipher_alone_GB_per_second=4e-9 * DIM / cipher_alone,
    )
