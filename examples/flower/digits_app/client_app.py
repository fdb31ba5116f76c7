"""A ClientApp as any: it replies with the whole model after training, and knows nothing of FedBuff."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from . import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    X, y = task.part(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    model = task.train(message.content["arrays"].to_numpy_ndarrays(), X, y)
    metrics = MetricRecord({"num-examples": y.size, "loss": task.loss(model, X, y)})
    return Message(RecordDict({"arrays": ArrayRecord(model), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    X, y = task.part(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    model = message.content["arrays"].to_numpy_ndarrays()
    metrics = MetricRecord({"num-examples": y.size, "accuracy": task.accuracy(model, X, y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
