"""PyTorch: a client's ten local steps on a network, in the ways that people run them on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from .networks import ARCHITECTURES, LR, N_CLIENTS, batches_of, check_answer, initial_model, rows_of


def module_of(name: str) -> nn.Sequential:
    architecture = ARCHITECTURES[name]
    (channels, height, width), modules = architecture.shape, []
    for kind, *n in architecture.layers:
        if kind == "conv":
            modules.append(nn.Conv2d(channels, n[0], n[1], padding=n[2], stride=n[3]))
            channels, height, width = n[0], *((size + 2 * n[2] - n[1]) // n[3] + 1 for size in (height, width))
        elif kind == "pool":
            modules.append(nn.MaxPool2d(n[0]))
            height, width = height // n[0], width // n[0]
        elif kind == "dense":
            modules.append(nn.Linear(channels, n[0]))
            channels = n[0]
        elif kind == "flatten":
            modules.append(nn.Flatten())
            channels = channels * height * width
        else:
            modules.append(nn.ReLU())
    return nn.Sequential(*modules)


class Trainer:
    def __init__(self, name: str, batch: int, last_channels: bool) -> None:
        X, y = rows_of(name)
        self.format = torch.channels_last if last_channels else torch.contiguous_format
        self.X = [torch.from_numpy(rows).contiguous(memory_format=self.format) for rows in X]
        self.y = torch.from_numpy(y)
        self.batches = torch.from_numpy(batches_of(batch))
        self.net = module_of(name).to(memory_format=self.format)
        self.w0 = torch.from_numpy(initial_model(name))
        assert len(self.w0) == sum(p.numel() for p in self.net.parameters())
        self.names = [key for key, _ in self.net.named_parameters()]

    def steps(self, client: int) -> Any:
        for rows in self.batches[client]:
            yield self.X[client][rows].contiguous(memory_format=self.format), self.y[client][rows]

    def by_module(self, client: int) -> torch.Tensor:
        """What papers ship: a copy of the module and an optimiser."""
        net = copy.deepcopy(self.net)
        vector_to_parameters(self.w0.clone(), net.parameters())
        net = net.to(memory_format=self.format)
        optimizer = torch.optim.SGD(net.parameters(), lr=LR)
        for x, y in self.steps(client):
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()
        return self.w0 - parameters_to_vector([p.contiguous() for p in net.parameters()]).detach()

    def by_step(self, step: Callable[..., Any], client: int) -> torch.Tensor:
        """A function from parameters and a batch to parameters."""
        parts = torch.split(self.w0, [p.numel() for p in self.net.parameters()])
        p = {
            key: part.reshape(own.shape).contiguous(
                memory_format=self.format if own.dim() == 4 else torch.contiguous_format
            )
            for key, part, own in zip(self.names, parts, self.net.parameters(), strict=True)
        }
        for x, y in self.steps(client):
            p = step(p, x, y)
        return self.w0 - torch.cat([part.reshape(-1) for part in p.values()])

    def functional_step(self) -> Callable[..., Any]:
        def loss(p: Any, x: Any, y: Any) -> Any:
            return cross_entropy(torch.func.functional_call(self.net, p, (x,)), y)

        gradient = torch.func.grad(loss)

        def step(p: Any, x: Any, y: Any) -> Any:
            g = gradient(p, x, y)
            return {key: p[key] - LR * g[key] for key in p}

        return step


def network(name: str, batch: str, variant: str = "module") -> Callable[[], dict[str, Any]]:
    """module, functional and compile; module-last and so on have the channels last in memory."""
    torch.set_num_threads(1)
    how, _, last = variant.partition("-")
    trainer = Trainer(name, int(batch), last == "last")
    if how == "module":
        delta_of = trainer.by_module
    else:
        step = trainer.functional_step()
        chosen = torch.compile(step) if how == "compile" else step

        def delta_of(client: int) -> torch.Tensor:
            return trainer.by_step(chosen, client)

    check_answer(name, int(batch), delta_of(1).numpy())
    turn = [0]

    def run() -> dict[str, Any]:
        turn[0] = (turn[0] + 1) % N_CLIENTS
        delta = delta_of(turn[0])
        assert np.isfinite(float(delta[0]))
        return {"amount": 1}

    return run
