"""FLSim: its own asynchronous trainer with its own FedBuff, from the event queue to the server step.

Tasks start at a constant rate and last half-normal times, the setting that its authors published, with the rate that
keeps as many in flight as the workload says. An epoch of its trainer is as many updates as there are users, so that the
users are the workload's first clients, as many as updates are wanted. Evaluation and metrics are off, which favours it.
A local epoch goes through the rows in order, so that ten steps are five epochs of two batches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from .data import (
    initial_model,
    learning,
    parts_of,
    rows_of,
    workload,
)


@contextlib.contextmanager
def hashable_configs() -> Iterator[None]:
    """Lets FLSim's dataclasses be each other's defaults, which Python refuses since 3.11 unless they can be hashed."""
    standard = dataclasses.dataclass

    def dataclass(cls: Any = None, /, **options: Any) -> Any:
        if cls is None:
            return functools.partial(dataclass, **options)
        made: Any = standard(cls, **options)
        if made.__module__.startswith("flsim."):
            made.__hash__ = object.__hash__
        return made

    dataclasses.dataclass = dataclass  # type: ignore[assignment]
    try:
        yield
    finally:
        dataclasses.dataclass = standard


with hashable_configs():
    try:
        from flsim.clients.base_client import ClientConfig
        from flsim.data.data_provider import FLDataProviderFromList
        from flsim.interfaces.model import IFLModel
        from flsim.optimizers.async_aggregators import FedAvgWithLRFedBuffAggregatorConfig
        from flsim.optimizers.local_optimizers import LocalOptimizerSGDConfig
        from flsim.trainers.async_trainer import AsyncTrainer, AsyncTrainerConfig
        from flsim.utils.async_trainer.training_event_generator import (
            AsyncTrainingEventGeneratorConfig,
            ConstantAsyncTrainingStartTimeDistrConfig,
        )
        from flsim.utils.simple_batch_metrics import FLBatchMetrics
        from flsim.utils.timing.training_duration_distribution import PerUserHalfNormalDurationDistributionConfig
        from omegaconf import OmegaConf
    except ValueError as error:
        raise ImportError(f"flsim is there and does not import: {error}", name="flsim") from error


def replay(name: str, updates: str) -> Callable[[], dict[str, Any]]:
    w = workload(name)
    n = int(updates) // w.buffer_size * w.buffer_size
    if n > w.n_clients:
        raise ValueError(f"updates {updates}: {name} has {w.n_clients} clients, and an epoch is one update of each")
    X, y = rows_of(w)
    per_epoch = -(-w.rows // w.batch)
    users = [
        [
            {"x": torch.from_numpy(X[i, at : at + w.batch]), "y": torch.from_numpy(y[i, at : at + w.batch]).long()}
            for at in range(0, w.rows, w.batch)
        ]
        for i in range(n)
    ]
    config = AsyncTrainerConfig(
        epochs=1,
        do_eval=False,
        report_train_metrics=False,
        client=ClientConfig(epochs=w.steps // per_epoch, optimizer=LocalOptimizerSGDConfig(lr=w.lr)),
        aggregator=FedAvgWithLRFedBuffAggregatorConfig(lr=1 / w.buffer_size, buffer_size=w.buffer_size),
        training_event_generator=AsyncTrainingEventGeneratorConfig(
            training_start_time_distribution=ConstantAsyncTrainingStartTimeDistrConfig(
                training_rate=w.in_flight / math.sqrt(2 / math.pi)  # the mean of a half-normal
            ),
            duration_distribution_generator=PerUserHalfNormalDurationDistributionConfig(
                training_duration_sd=1.0, training_duration_min=0.0
            ),
        ),
    )

    class Model(IFLModel):
        def __init__(self) -> None:
            layers: list[torch.nn.Module] = [torch.nn.Linear(n_in, n_out) for n_in, n_out in w.layers]
            self.net = torch.nn.Sequential(*([layers[0], torch.nn.ReLU(), layers[1]] if w.hidden else layers))
            with torch.no_grad():
                for parameter, part in zip(self.net.parameters(), parts_of(w, initial_model(w)), strict=True):
                    parameter.copy_(torch.from_numpy(part))

        def fl_forward(self, batch: Any) -> Any:
            scores = self.net(batch["x"])
            loss = torch.nn.functional.cross_entropy(scores, batch["y"])
            return FLBatchMetrics(
                loss=loss, num_examples=len(scores), predictions=scores, targets=batch["y"], model_inputs=batch["x"]
            )

        def fl_create_training_batch(self, batch: Any = None, **kwargs: Any) -> Any:
            return batch

        def fl_get_module(self) -> Any:
            return self.net

        def fl_cuda(self) -> None:
            raise NotImplementedError("CPU only")

        def get_eval_metrics(self, batch: Any) -> Any:
            with torch.no_grad():
                return self.fl_forward(batch)

        def get_num_examples(self, batch: Any) -> int:
            return len(batch["y"])

    def run() -> dict[str, Any]:
        np.random.seed(1)  # noqa: NPY002, FLSim's own selector uses it
        torch.manual_seed(1)
        model = Model()
        trainer = AsyncTrainer(model=model, cuda_enabled=False, **OmegaConf.structured(config))
        data = FLDataProviderFromList(users, [], [], model)
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bars
            trained, _ = trainer.train(data, None, num_total_users=n)
        assert trainer.aggregator.global_seqnum == n // w.buffer_size
        end = np.concatenate([part.detach().numpy().ravel() for part in trained.fl_get_module().parameters()])
        return {"amount": n, "end": end}

    return learning(w, run)
