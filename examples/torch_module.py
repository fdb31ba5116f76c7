"""A PyTorch module trained by FedBuff, brought in three ways, with their speeds: its layers compiled by
`fb.torch.network`, wrapped by `fb.torch.Module`, and as one's own function.

Run it with `python examples/torch_module.py`, after `pip install "fedbuff[torch]"`. Forty clients hold small pictures
of a line that lies, stands or leans; each has mostly one kind. A small convolutional network tells them apart.
"""

from __future__ import annotations

import copy
import time

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import fedbuff as fb

N_CLIENTS, N_ROWS, SIDE = 40, 60, 10
LOCAL = fb.LocalSGD(steps=5, lr=0.05, batch_size=16, momentum=0.5)

Problem = fb.Network | fb.torch.Module | fb.Callback


def make_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, kernel_size=5), nn.ReLU(), nn.MaxPool2d(6), nn.Flatten(), nn.Linear(8, 3))


def draw(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    """A noisy picture for each label: 0 a row, 1 a column, 2 a diagonal, anywhere."""
    pictures = rng.normal(scale=0.7, size=(len(labels), 1, SIDE, SIDE)).astype(np.float32)
    steps = np.arange(SIDE)
    for picture, label, at in zip(pictures[:, 0], labels, rng.integers(0, SIDE, len(labels)), strict=True):
        rows = (steps + at) % SIDE if label == 2 else np.full(SIDE, at) if label == 0 else steps
        columns = np.full(SIDE, at) if label == 1 else steps
        picture[rows, columns] += 1.5
    return pictures


def make_function(wrapped: fb.torch.Module, X: np.ndarray, y: np.ndarray) -> fb.Callback:
    """The same training as a loop of one's own. It may do what LocalSGD does not; here it does the same."""
    net, pictures, labels = make_model(), torch.from_numpy(X), torch.from_numpy(y)

    def client(number: int, task: int, w: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        model = copy.deepcopy(net)  # of its own, since clients run on several threads at once
        vector_to_parameters(torch.tensor(w), model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=LOCAL.lr, momentum=LOCAL.momentum)
        for _ in range(LOCAL.steps):
            rows = torch.from_numpy(N_ROWS * number + generator.integers(0, N_ROWS, LOCAL.batch_size))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pictures[rows]), labels[rows]).backward()
            optimizer.step()
        return w - parameters_to_vector(model.parameters()).detach().numpy()

    return fb.Callback(
        client, w0=wrapped.init(), n_clients=N_CLIENTS, n_samples=wrapped.n_samples,
        loss=wrapped.loss, accuracy=wrapped.accuracy,
    )  # fmt: skip


def make_problems(seed: int = 0) -> dict[str, Problem]:
    """All three start from the same weights; the first two also draw the same batches."""
    rng = np.random.default_rng(seed)
    clients = np.repeat(np.arange(N_CLIENTS), N_ROWS)
    y = np.concatenate([rng.choice(3, N_ROWS, p=np.roll([0.8, 0.1, 0.1], client % 3)) for client in range(N_CLIENTS)])
    X = draw(rng, y)
    wrapped = fb.torch.Module(make_model, X, y, clients)
    compiled = fb.torch.network(wrapped.to_torch(wrapped.init()), X, y, clients)
    return {"compiled": compiled, "wrapped module": wrapped, "own function": make_function(wrapped, X, y)}


def train(problem: Problem, server_steps: int = 60, threads: int | None = None) -> fb.Result:
    strategy = fb.FedBuff(buffer_size=5)
    delays = fb.DelayModel(N_CLIENTS, compute=fb.Exponential(1.0), client_speed=fb.LogNormal(0.0, 0.7))
    schedule = fb.schedule(delays, strategy, concurrency=15, server_steps=server_steps, seed=0)
    return fb.replay(
        problem,
        schedule,
        None if isinstance(problem, fb.Callback) else LOCAL,
        seed=0,
        threads=threads,
        eval_every=server_steps,
        metrics=("loss", "accuracy"),
    )


def main() -> None:
    torch.set_num_threads(1)  # the replay has the cores
    print("                  loss  accuracy  tasks per second")
    for name, problem in make_problems().items():
        train(problem, server_steps=2)  # PyTorch's first calls are slow
        began = time.perf_counter()
        run = train(problem)
        seconds = time.perf_counter() - began - run.stats["eval_seconds"]
        last = run.history.last
        print(f"{name:16}{last['loss']:6.2f}{last['accuracy']:10.2f}{last['updates'] / seconds:18.0f}")


if __name__ == "__main__":
    main()
