"""Client i pulls the model to its centre; it says in a file which node it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def trained(client: int, w: np.ndarray) -> np.ndarray:
    center = np.random.default_rng(client).standard_normal(w.size).astype(np.float32)
    for _ in range(3):
        w = w - np.float32(0.1) * (w - center)
    return w


@app.train()
def train(message: Message, context: Context) -> Message:
    client = int(context.node_config["partition-id"])
    Path(str(context.run_config["folder"]), f"node-{context.node_id}").write_text(str(client))
    first, second = message.content["arrays"].to_numpy_ndarrays()
    w = trained(client, np.concatenate([first.ravel(), second]))
    arrays = ArrayRecord([w[: first.size].reshape(first.shape), w[first.size :]])
    metrics = MetricRecord({"num-examples": 10, "client": client})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
