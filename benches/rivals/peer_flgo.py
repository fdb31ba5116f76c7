"""FLGo: its FedBuff server, fed with updates of PyTorch modules in the order of our event loop.

Its own simulated clock is left out, which favours it; clients train as its own do, by module and optimiser.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flgo.algorithm.fedbuff import Server
from flgo.utils.fmodule import FModule

from . import with_heapq
from .data import initial_model, learning, parts_of
from .with_torch import Trainer


def replay(name: str, updates: str) -> Callable[[], dict[str, Any]]:
    trainer = Trainer(name)
    w = trainer.w
    n_rounds = int(updates) // w.buffer_size

    class Model(FModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(n_in, n_out) for n_in, n_out in w.layers)

    def model_of(parts: Any) -> Any:
        model = Model()
        with torch.no_grad():
            for parameter, part in zip(model.parameters(), parts, strict=True):
                parameter.copy_(part)
        return model

    def run() -> dict[str, Any]:
        server: Any = object.__new__(Server)
        server.buffer, server.buffer_ratio, server.eta = [], w.buffer_size / w.n_clients, 1.0
        server.num_clients, server.current_round = w.n_clients, 0
        server.model = model_of(torch.from_numpy(part.copy()) for part in parts_of(w, initial_model(w)))
        newest = [[parameter.detach() for parameter in server.model.parameters()]]
        for t, (clients, versions, models) in enumerate(with_heapq.rounds(w, n_rounds, 1, newest)):
            server.current_round = t
            for client, version, start in zip(clients, versions, models, strict=True):
                update = model_of([-part for part in trainer.delta(start, client)])
                update._round = version
                server.package_handler({"model": [update], "__cid": [client]})
            newest[0] = [parameter.detach() for parameter in server.model.parameters()]
        return {
            "amount": n_rounds * w.buffer_size,
            "end": np.concatenate([part.numpy().ravel() for part in newest[0]]),
        }

    return learning(w, run)
