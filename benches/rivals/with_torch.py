"""PyTorch: gradients by hand, the K clients of a buffer batched; or one module, optimiser and client at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from . import with_heapq
from .data import (
    check_delta,
    initial_model,
    parts_of,
    rows_of,
    workload,
)
from .with_numpy import checked, moved, vectors


class Trainer:
    def __init__(self, name: str) -> None:
        self.w = w = workload(name)
        X, y = rows_of(w)
        self.X = torch.from_numpy(X.reshape(-1, w.features))
        self.y = torch.from_numpy(y.ravel()).to(torch.float32 if w.outputs == 1 else torch.int64)
        self.generator = torch.Generator().manual_seed(1)

    def deltas(self, starts: list[torch.Tensor], clients: torch.Tensor, rows: Any = None) -> list[torch.Tensor]:
        """Start models minus models after the local steps, part by part; rows (steps, K, batch) within each client."""
        w = self.w
        K = len(clients)
        if rows is None:
            rows = torch.randint(0, w.rows, (w.steps, K, w.batch), generator=self.generator)
        rows = rows + (clients * w.rows)[:, None]
        scale = w.lr / w.batch
        parts = [part.clone() for part in starts]
        if w.outputs == 1:
            for at in rows:
                x = self.X[at]
                g = torch.sigmoid(torch.bmm(x, parts[0].transpose(1, 2)).squeeze(2)).sub_(self.y[at])
                parts[0].baddbmm_(g.unsqueeze(1), x, alpha=-scale)
            return [start - part for start, part in zip(starts, parts, strict=True)]
        ks, bs = torch.arange(K)[:, None], torch.arange(w.batch)
        for at in rows:
            x = h = self.X[at]
            if w.hidden:
                h = torch.baddbmm(parts[1].unsqueeze(1), x, parts[0].transpose(1, 2)).relu_()
            z = torch.softmax(torch.baddbmm(parts[-1].unsqueeze(1), h, parts[-2].transpose(1, 2)), 2)
            z[ks, bs, self.y[at]] -= 1
            if w.hidden:
                back = torch.bmm(z, parts[2]).mul_(h > 0)
                parts[0].baddbmm_(back.transpose(1, 2), x, alpha=-scale)
                parts[1].sub_(back.sum(1), alpha=scale)
            parts[-2].baddbmm_(z.transpose(1, 2), h, alpha=-scale)
            parts[-1].sub_(z.sum(1), alpha=scale)
        return [start - part for start, part in zip(starts, parts, strict=True)]

    def delta(self, start: list[torch.Tensor], client: int, rows: Any = None) -> list[torch.Tensor]:
        """One client by autograd, module and optimiser: what papers ship."""
        w = self.w
        if rows is None:
            rows = torch.randint(0, w.rows, (w.steps, w.batch), generator=self.generator)
        layers = [torch.nn.Linear(n_in, n_out, bias=w.intercept) for n_in, n_out in w.layers]
        module = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1]) if w.hidden else layers[0]
        optimizer = torch.optim.SGD(module.parameters(), lr=w.lr)
        cost = torch.nn.CrossEntropyLoss() if w.outputs > 1 else torch.nn.BCEWithLogitsLoss()
        with torch.no_grad():
            for parameter, part in zip(module.parameters(), start, strict=True):
                parameter.copy_(part)
        for at in rows + client * w.rows:
            optimizer.zero_grad()
            scores = module(self.X[at])
            cost(scores if w.outputs > 1 else scores.squeeze(1), self.y[at]).backward()
            optimizer.step()
        return [part - after.detach() for part, after in zip(start, module.parameters(), strict=True)]


def _flat(parts: list[torch.Tensor]) -> np.ndarray:
    return np.concatenate([part.reshape(-1).numpy() for part in parts])


def replay(name: str, updates: str, variant: str = "batched") -> Callable[[], dict[str, Any]]:
    """batched: K clients by hand; module: one client after the other by autograd."""
    torch.set_grad_enabled(variant == "module")
    trainer = Trainer(name)
    w = trainer.w
    n_rounds = int(updates) // w.buffer_size

    def start_of(model: np.ndarray) -> list[torch.Tensor]:
        return [torch.from_numpy(part.copy()) for part in parts_of(w, model)]

    def deltas_of(clients: list[int], models: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        if variant == "module":
            each = [trainer.delta(model, client) for model, client in zip(models, clients, strict=True)]
            return [torch.stack(parts) for parts in zip(*each, strict=True)]
        starts = [torch.stack(parts) for parts in zip(*models, strict=True)]
        return trainer.deltas(starts, torch.tensor(clients))

    def check(start: np.ndarray, client: int, batches: np.ndarray) -> np.ndarray:
        rows = torch.from_numpy(batches)
        if variant == "module":
            return _flat(trainer.delta(start_of(start), client, rows))
        one = trainer.deltas([p[None] for p in start_of(start)], torch.tensor([client]), rows[:, None])
        return _flat(one)

    check_delta(name, check)

    def run() -> dict[str, Any]:
        newest = [start_of(initial_model(w))]
        for t, (clients, versions, models) in enumerate(with_heapq.rounds(w, n_rounds, 1, newest)):
            weights = torch.tensor([(1 + t - v) ** -0.5 for v in versions])
            deltas = deltas_of(clients, models)
            newest[0] = [
                part - (1 / w.buffer_size) * torch.tensordot(weights, delta, 1)
                for part, delta in zip(newest[0], deltas, strict=True)
            ]
        return {"amount": n_rounds * w.buffer_size, "model": _flat(newest[0])}

    return run


def aggregate(dim: str, variant: str = "add") -> Callable[[], dict[str, Any]]:
    """add: add_ with a factor, in place; foreach: the same over a list of sixteen layers; blocks: add_ over parts that
    a cache holds; matrix: the deltas are rows of one matrix from the start, and a product with a vector adds them."""
    torch.set_grad_enabled(False)
    deltas, weights, start = vectors(int(dim))
    model = torch.from_numpy(start)
    views = [torch.from_numpy(delta) for delta in deltas]
    total = torch.empty_like(model)
    factors = weights.tolist()
    times = max(1, 20_000_000 // len(start))
    size = {"foreach": -(-len(start) // 16), "blocks": 1 << 15}.get(variant, len(start))
    parts = [model.split(size), *(view.split(size) for view in views)]
    totals = total.split(size)
    matrix = torch.stack(views).t() if variant == "matrix" else None

    def add() -> None:
        for at, one in enumerate(totals):
            torch.mul(parts[1][at], factors[0], out=one)
            for each, factor in zip(parts[2:], factors[1:], strict=True):
                one.add_(each[at], alpha=factor)
            parts[0][at].sub_(one, alpha=0.1)

    def foreach() -> None:
        torch._foreach_zero_(totals)
        for each, factor in zip(parts[1:], factors, strict=True):
            torch._foreach_add_(totals, each, alpha=factor)
        torch._foreach_add_(parts[0], totals, alpha=-0.1)

    def product() -> None:
        model.addmv_(matrix, torch.tensor(factors), alpha=-0.1)

    step = {"foreach": foreach, "matrix": product}.get(variant, add)

    def run() -> dict[str, Any]:
        for _ in range(times):
            step()
        return {"amount": moved(deltas) * times}

    return checked(run, lambda: model.numpy(), deltas, weights, times)
