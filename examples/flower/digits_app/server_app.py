"""The ServerApp: FedBuff in the place of FedAvg."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import fedbuff as fb
from fedbuff.flower import FedBuff

from . import task

app = ServerApp()


def evaluate(step: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": task.accuracy(arrays.to_numpy_ndarrays(), *task.rows())})


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedBuff(
        fb.FedBuff(buffer_size=int(config["buffer-size"])),
        concurrency=int(config["concurrency"]),
        evaluate_every=5,
        log_path=str(config["log-path"]),
    )
    strategy.start(
        grid, ArrayRecord(task.initial_model()), num_rounds=int(config["num-server-steps"]), evaluate_fn=evaluate
    )
