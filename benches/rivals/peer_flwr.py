"""Flower: its federated averaging strategy, ten clients a round, each of whom sends its model as Flower sends it.

Flower trains nothing itself, so that the clients train by our batched NumPy; and they live in this process, since its
own simulation would start Ray. Both favour it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg

from .data import initial_model, learning
from .with_numpy import Trainer


def replay(name: str, updates: str) -> Callable[[], dict[str, Any]]:
    trainer = Trainer(name)
    w = trainer.w
    n_rounds = int(updates) // w.buffer_size

    def run() -> dict[str, Any]:
        strategy = FedAvg()
        generator = np.random.default_rng(1)
        sent = ndarrays_to_parameters([initial_model(w)])
        for round_number in range(1, n_rounds + 1):
            starts = np.stack([parameters_to_ndarrays(sent)[0] for _ in range(w.buffer_size)])
            clients = generator.choice(w.n_clients, w.buffer_size, replace=False)
            ends = starts - trainer.deltas(starts, clients)
            results = [(None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters([end]), w.rows, {})) for end in ends]
            received, _ = strategy.aggregate_fit(round_number, results, [])
            assert received is not None
            sent = received
        return {"amount": n_rounds * w.buffer_size, "end": parameters_to_ndarrays(sent)[0]}

    return learning(w, run)
