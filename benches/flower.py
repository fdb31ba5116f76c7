"""fedbuff.flower beside Flower's FedAvg, from the records that came in to the record that goes out: make bench-flower.

Aggregation: ten replies of 8 arrays each become the next model. FedAvg averages them; FedBuff uploads each to the
server, with the rule that gives the same average, and the results are compared. Uploads: the same ClientApp on a
VirtualGrid, which has no transport, under both strategies. Both sides alternate; the best of several counts. Every time
is of one thread.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

import fedbuff as fb
from fedbuff.flower import FedBuff, VirtualGrid
from fedbuff.flower._records import Layout, content_of

sys.path.insert(0, str(Path(__file__).parent))
from machine import describe, heading

K, N_ARRAYS, REPEATS = 10, 8, 15
AVERAGE = fb.FedBuff(buffer_size=K, server_lr=1.0, weights="samples", norm="weights")


def random_record(rng: np.random.Generator, dim: int) -> ArrayRecord:
    return ArrayRecord(
        {f"layer{i}": Array(rng.standard_normal(dim // N_ARRAYS, dtype=np.float32)) for i in range(N_ARRAYS)}
    )


def seconds(function: Callable[[], ArrayRecord]) -> tuple[float, ArrayRecord]:
    begin = time.perf_counter()
    made = function()
    return time.perf_counter() - begin, made


def aggregation(dim: int) -> tuple[float, float]:
    """Best seconds of both sides for K replies."""
    rng = np.random.default_rng(0)
    before = random_record(rng, dim)
    replies = [
        RecordDict({"arrays": random_record(rng, dim), "metrics": MetricRecord({"num-examples": 10 + k})})
        for k in range(K)
    ]
    layout = Layout(before)
    w0 = layout.vector(before)

    def fedbuff() -> ArrayRecord:
        held = []
        for reply in replies:
            arrays, weight = content_of(reply, "num-examples")
            held.append((w0, layout.vectors(arrays), 0, weight))
        server._upload_models(held)
        return layout.record(server.w, {})

    ours, theirs = [], []
    for _ in range(REPEATS):
        server = fb.Server(w0, AVERAGE)
        for _ in range(K):
            server.download()
        taken, made = seconds(fedbuff)
        ours.append(taken)
        taken, expected = seconds(lambda: aggregate_arrayrecords(replies, "num-examples"))
        theirs.append(taken)
    for name in expected:
        np.testing.assert_allclose(made[name].numpy(), expected[name].numpy(), rtol=0, atol=1e-5)
    return min(ours), min(theirs)


def uploads(dim: int, steps: int) -> tuple[float, float]:
    """Uploads a second of both sides, with a client that gives back what it got."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    initial, rates = random_record(np.random.default_rng(0), dim), ([], [])
    for _ in range(3):
        for rate, strategy in zip(
            rates,
            (
                FedBuff(AVERAGE, log_path=None),
                FedAvg(min_train_nodes=K, fraction_evaluate=0.0, min_evaluate_nodes=0),
            ),
            strict=True,
        ):
            grid = VirtualGrid(app, fb.DelayModel(n_clients=K, compute=fb.Exponential()))
            begin = time.perf_counter()
            strategy.start(grid, initial, num_rounds=steps)
            rate.append(K * steps / (time.perf_counter() - begin))
    return max(rates[0]), max(rates[1])


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(*heading(describe((1,), 0.02)["setting"]), f"flwr {version('flwr')}", sep="\n")
    print(f"\n{K} replies of {N_ARRAYS} arrays, float32, to the next model")
    for dim in (10**6, 6_600_000):
        ours, theirs = aggregation(dim)
        print(f"d = {dim:>9,}: FedBuff {1e3 * ours:6.1f} ms, FedAvg {1e3 * theirs:6.1f} ms: {theirs / ours:.2f} times")
    print("\nuploads a second on a VirtualGrid, all that Python does included")
    for dim, steps in ((1000, 50), (10**6, 5)):
        ours, theirs = uploads(dim, steps)
        print(f"d = {dim:>9,}: FedBuff {ours:6.0f}, FedAvg {theirs:6.0f}: {ours / theirs:.2f} times")


if __name__ == "__main__":
    main()
