"""FedBuff on what nodes there are. Its process, the log, the model and the step that was reached go to files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import fedbuff as fb
from fedbuff.flower import FedBuff

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    folder = Path(str(context.run_config["folder"]))
    (folder / "server").write_text(str(os.getpid()))
    evaluated: list[int] = []

    def note(step: int, arrays: ArrayRecord) -> MetricRecord:
        evaluated.append(step)
        (folder / "step").write_text(str(step))
        return MetricRecord({"norm": float(np.linalg.norm(arrays["1"].numpy()))})

    strategy = FedBuff(
        fb.FedBuff(buffer_size=2),
        min_available_nodes=3,
        log_path=folder / "log.csv",
        checkpoint=folder / "run.npz",
        checkpoint_every=1,
    )
    result = strategy.start(
        grid,
        ArrayRecord([np.zeros((3, 4), np.float32), np.zeros(5, np.float32)]),
        num_rounds=int(context.run_config["server-steps"]),
        timeout=float(context.run_config["timeout"]),
        evaluate_fn=note,
    )
    assert list(result.evaluate_metrics_serverapp) == list(range(int(context.run_config["server-steps"]) + 1))
    model = result.arrays.to_numpy_ndarrays()
    begin = evaluated[0]  # the first step that this process made
    np.savez(folder / "model.part.npz", first=model[0], second=model[1], failures=strategy.failures, begin=begin)
    (folder / "model.part.npz").rename(folder / "model.npz")
