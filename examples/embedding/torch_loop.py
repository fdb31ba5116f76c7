"""A PyTorch training loop whose aggregator is `fb.Server`: tensors go in and out without a copy."""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import fedbuff as fb

N_CLIENTS, N_ARRIVALS, LR = 6, 60, 0.1


def main(path: str = "log.csv") -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    X, direction = torch.randn(N_CLIENTS, 40, 10), torch.randn(10)
    y = (X @ direction > 0).float()
    net = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))

    def delta_of(client: int, w: torch.Tensor) -> torch.Tensor:
        """Three local steps from w: what the client uploads."""
        vector_to_parameters(w.clone(), net.parameters())  # parameters become views of the vector they are given
        optimizer = torch.optim.SGD(net.parameters(), lr=LR)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(net(X[client])[:, 0], y[client]).backward()
            optimizer.step()
        return w - parameters_to_vector(net.parameters()).detach()

    w0 = parameters_to_vector(net.parameters()).detach().clone()
    strategy = fb.FedBuff(buffer_size=3)
    server = fb.Server(w0, strategy)
    recorder, queue = fb.Recorder(N_CLIENTS, clock=lambda: now), fb.EventQueue()
    random, now = np.random.default_rng(0), 0.0
    held: dict[int, tuple[int, torch.Tensor]] = {}

    def start(client: int) -> None:
        version, w = server.download()
        held[client] = version, torch.from_dlpack(w)  # the server's memory; it does not change while it is held
        recorder.started(client, version)
        queue.push(now + random.exponential(1.0 + client), client)

    for client in range(N_CLIENTS):
        start(client)
    for _ in range(N_ARRIVALS):
        now, client, _ = queue.pop()
        version, w = held.pop(client)
        server.upload(delta_of(client, w), version)  # a tensor, taken by DLPack
        recorder.arrived(client)
        start(client)
    recorder.save(path)

    @torch.no_grad()
    def loss(w: np.ndarray) -> float:
        vector_to_parameters(torch.tensor(w), net.parameters())
        return float(nn.functional.binary_cross_entropy_with_logits(net(X)[..., 0], y))

    problem = fb.Callback(
        lambda client, task, w, generator: delta_of(client, torch.tensor(w)).numpy(), w0=w0.numpy(), n_clients=N_CLIENTS
    )
    log = fb.read_arrival_log(path, clients=N_CLIENTS)
    again = fb.replay(problem, fb.schedule(log, strategy), threads=1, metrics=())
    assert again.w.tobytes() == server.w.tobytes() and loss(server.w) < loss(w0.numpy())
    print(f"loss {loss(w0.numpy()):.3f} -> {loss(server.w):.3f}; the replay is equal")


if __name__ == "__main__":
    main(*sys.argv[1:])
