"""pfl: its own federated averaging over PyTorch, ten users a round. It has no asynchronous algorithm.

A local epoch of its trainer goes through the rows in order, so that ten steps are five epochs of two batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel

from .data import (
    initial_model,
    learning,
    parts_of,
    rows_of,
    workload,
)


def replay(name: str, updates: str) -> Callable[[], dict[str, Any]]:
    w = workload(name)
    X, y = rows_of(w)
    rows, labels = torch.from_numpy(X), torch.from_numpy(y.astype(np.int64))
    n_rounds = int(updates) // w.buffer_size
    per_epoch = -(-w.rows // w.batch)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers: list[torch.nn.Module] = [torch.nn.Linear(n_in, n_out) for n_in, n_out in w.layers]
            self.net = torch.nn.Sequential(*([layers[0], torch.nn.ReLU(), layers[1]] if w.hidden else layers))
            with torch.no_grad():
                for parameter, part in zip(self.parameters(), parts_of(w, initial_model(w)), strict=True):
                    parameter.copy_(torch.from_numpy(part))

        def loss(self, x: Any, y: Any, eval: bool = False) -> Any:
            return torch.nn.functional.cross_entropy(self.net(x), y)

        def metrics(self, x: Any, y: Any, eval: bool = False) -> dict[str, Any]:
            return {}

    def run() -> dict[str, Any]:
        np.random.seed(1)  # noqa: NPY002, pfl's own samplers use it
        module = Model()
        central = torch.optim.SGD(module.parameters(), lr=1.0)
        model = PyTorchModel(module, torch.optim.SGD, central)
        users = [str(i) for i in range(w.n_clients)]
        data = FederatedDataset(
            lambda user: Dataset((rows[int(user)], labels[int(user)])), get_user_sampler("random", users)
        )
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=n_rounds,
                evaluation_frequency=10 * n_rounds,
                train_cohort_size=w.buffer_size,
                val_cohort_size=0,
            ),
            backend=SimulatedBackend(training_data=data, val_data=data),
            model=model,
            model_train_params=NNTrainHyperParams(
                local_num_epochs=w.steps // per_epoch, local_learning_rate=w.lr, local_batch_size=w.batch
            ),
        )
        end = np.concatenate([part.detach().numpy().ravel() for part in module.parameters()])
        return {"amount": n_rounds * w.buffer_size, "end": end}

    return learning(w, run)
