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

from .networks import (
    ARCHITECTURES,
    LR,
    N_CLIENTS,
    Layer,
    Shape,
    after,
    batches_of,
    check_answer,
    has_tokens,
    initial_model,
    read_answer,
    rows_of,
)

Turn = Callable[[], dict[str, Any]]


class Residual(nn.Module):
    def __init__(self, body: nn.Module, around: nn.Module) -> None:
        super().__init__()
        self.body, self.around = body, around

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + self.around(x)


class Last(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, -1]


class States(nn.Module):
    """Those of all steps."""

    def __init__(self, n_in: int, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(n_in, width, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


def sequence(layers: tuple[Layer, ...], shape: Shape) -> nn.Sequential:
    modules: list[nn.Module] = []
    for layer in layers:
        kind, *given = layer
        if kind == "conv":
            out, kernel, padding, stride = given
            modules.append(nn.Conv2d(shape[0], out, kernel, padding=padding, stride=stride))
        elif kind == "residual":
            modules.append(Residual(sequence(given[0], shape), sequence(given[1], shape)))
        else:
            make = {
                "pool": nn.MaxPool2d,
                "norm": lambda groups: nn.GroupNorm(groups, shape[0]),  # noqa: B023, called at once
                "dense": lambda outputs: nn.Linear(shape[0], outputs),  # noqa: B023
                "relu": nn.ReLU,
                "flatten": nn.Flatten,
                "mean": Mean,
                "embedding": nn.Embedding,
                "lstm": lambda width: States(shape[0], width),  # noqa: B023
                "last": Last,
            }
            modules.append(make[kind](*given))
        shape = after(layer, shape)
    return nn.Sequential(*modules)


class Trainer:
    def __init__(self, name: str, batch: int, last_channels: bool, dtype: torch.dtype = torch.float32) -> None:
        architecture, (X, y) = ARCHITECTURES[name], rows_of(name)
        self.format = torch.channels_last if last_channels else torch.contiguous_format
        numbers = torch.int64 if has_tokens(name) else dtype
        self.X = [self.in_format(torch.from_numpy(rows).to(numbers)) for rows in X]
        self.y = torch.from_numpy(y)
        self.batches = torch.from_numpy(batches_of(batch))
        self.net = sequence(architecture.layers, architecture.shape).to(dtype).to(memory_format=self.format)
        self.w0 = torch.from_numpy(initial_model(name)).to(dtype)
        assert len(self.w0) == sum(p.numel() for p in self.net.parameters())
        self.names = [key for key, _ in self.net.named_parameters()]

    def steps(self, client: int) -> Any:
        for rows in self.batches[client]:
            yield self.in_format(self.X[client][rows]), self.y[client][rows]

    def in_format(self, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous(memory_format=self.format) if x.dim() == 4 else x

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


def network(name: str, batch: str, variant: str = "module") -> Turn:
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


def network_loss(name: str, variant: str = "module") -> Turn:
    """The loss over all rows, a client's at a time; module-last has the channels last, compile is compiled."""
    torch.set_num_threads(1)
    how, _, last = variant.partition("-")
    trainer = Trainer(name, 1, last == "last")
    vector_to_parameters(trainer.w0.clone(), trainer.net.parameters())
    net = trainer.net.to(memory_format=trainer.format).eval()
    scores = torch.compile(net) if how == "compile" else net

    def run() -> dict[str, Any]:
        with torch.no_grad():
            losses = [cross_entropy(scores(X), y).item() for X, y in zip(trainer.X, trainer.y, strict=True)]
        return {"amount": 1, "loss": float(np.mean(losses))}

    return run


def network_rounding(name: str, batch: str) -> Turn:
    """The rounding errors of an update in float32, relative to its norm: fedbuff's, and PyTorch's.

    Medians over the clients: where rounding puts one score on the other side of a ReLU, an update jumps.
    """
    torch.set_num_threads(1)
    exact, theirs = (Trainer(name, int(batch), False, dtype) for dtype in (torch.float64, torch.float32))
    ours, errors = read_answer(name, int(batch)), {"ours": [], "theirs": []}
    for client in range(N_CLIENTS):
        expected = exact.by_module(client).numpy()
        for who, made in (("ours", ours[client]), ("theirs", theirs.by_module(client).numpy())):
            errors[who].append(float(np.linalg.norm(made - expected) / np.linalg.norm(expected)))
    medians = {who: float(np.median(each)) for who, each in errors.items()}
    return lambda: {"amount": 1, **medians}
