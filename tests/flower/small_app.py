"""A ClientApp of NumPy for the tests: client i pulls the model to its centre, in steps that its task number sets."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedbuff as fb

N_CLIENTS, SHAPES = 12, ((3, 4), (5,))
DIM = 17

app = ClientApp()


def center(client: int) -> np.ndarray:
    return np.random.default_rng(client).standard_normal(DIM).astype(np.float32)


def trained(client: int, task: int, w: np.ndarray) -> np.ndarray:
    for step in range(3):
        w = w - np.float32(0.1 + 0.01 * ((task + step) % 3)) * (w - center(client))
    return w


def vector(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate([each.ravel() for each in arrays.to_numpy_ndarrays()])


def record(w: np.ndarray) -> ArrayRecord:
    return ArrayRecord([w[:12].reshape(SHAPES[0]), w[12:]])


def initial() -> ArrayRecord:
    return record(np.zeros(DIM, np.float32))


def n_examples(client: int) -> int:
    return client % 3 + 1


def problem() -> fb.Callback:
    """The same clients for a replay."""
    return fb.Callback(
        lambda client, task, w, generator: w - trained(client, task, w),
        w0=np.zeros(DIM, np.float32),
        n_clients=N_CLIENTS,
        n_samples=[n_examples(client) for client in range(N_CLIENTS)],
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    client = int(context.node_config["partition-id"])
    counter = context.state.setdefault("counter", MetricRecord({"task": 0}))
    w = trained(client, int(counter["task"]), vector(message.content["arrays"]))
    counter["task"] = int(counter["task"]) + 1
    metrics = MetricRecord({"num-examples": n_examples(client), "client": float(client)})
    return Message(RecordDict({"arrays": record(w), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    client = int(context.node_config["partition-id"])
    distance = float(np.linalg.norm(vector(message.content["arrays"]) - center(client)))
    metrics = MetricRecord({"num-examples": n_examples(client), "distance": distance})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.query()
def broken(message: Message, context: Context) -> Message:
    raise ValueError("no query today")
