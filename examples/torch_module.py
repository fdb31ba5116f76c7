"""A PyTorch module trained by FedBuff: your own training loop as a client, through `fb.Callback`.

Run it with `python examples/torch_module.py`, after `pip install "fedbuff[torch]"`. Forty clients hold small pictures
of a line that lies, stands or leans; each has mostly one kind. A small convolutional network tells them apart.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import fedbuff as fb

N_CLIENTS, N_ROWS, SIDE = 40, 60, 10
LOCAL_STEPS, LR, BATCH = 5, 0.05, 16


def draw(rng: np.random.Generator, labels: np.ndarray) -> torch.Tensor:
    """A noisy picture for each label: 0 a row, 1 a column, 2 a diagonal, anywhere."""
    pictures = rng.normal(scale=0.7, size=(len(labels), 1, SIDE, SIDE)).astype(np.float32)
    steps = np.arange(SIDE)
    for picture, label, at in zip(pictures[:, 0], labels, rng.integers(0, SIDE, len(labels)), strict=True):
        rows = (steps + at) % SIDE if label == 2 else np.full(SIDE, at) if label == 0 else steps
        columns = np.full(SIDE, at) if label == 1 else steps
        picture[rows, columns] += 1.5
    return torch.from_numpy(pictures)


def make_problem(seed: int = 0) -> fb.Callback:
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 8, kernel_size=5), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )
    labels = [rng.choice(3, N_ROWS, p=np.roll([0.8, 0.1, 0.1], client % 3)) for client in range(N_CLIENTS)]
    data = [(draw(rng, y), torch.from_numpy(y)) for y in labels]
    test_labels = rng.integers(0, 3, 600)
    test = draw(rng, test_labels), torch.from_numpy(test_labels)

    def with_model(w: np.ndarray) -> nn.Module:
        """A network of one's own, since clients run on several threads at once."""
        mine = copy.deepcopy(net)
        vector_to_parameters(torch.tensor(w), mine.parameters())
        return mine

    def client(number: int, task: int, w: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        model = with_model(w)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5)
        X, y = data[number]
        for _ in range(LOCAL_STEPS):
            rows = torch.from_numpy(generator.integers(0, len(y), BATCH))  # drawn from (seed, client, task)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X[rows]), y[rows]).backward()
            optimizer.step()
        return w - parameters_to_vector(model.parameters()).detach().numpy()

    def accuracy(w: np.ndarray) -> float:
        with torch.no_grad():
            return float((with_model(w)(test[0]).argmax(dim=1) == test[1]).double().mean())

    def loss(w: np.ndarray) -> float:
        model = with_model(w)
        with torch.no_grad():
            return float(np.mean([float(nn.functional.cross_entropy(model(X), y)) for X, y in data]))

    w0 = parameters_to_vector(net.parameters()).detach().numpy()
    return fb.Callback(client, w0=w0, n_clients=N_CLIENTS, n_samples=[N_ROWS] * N_CLIENTS, loss=loss, accuracy=accuracy)


def train(server_steps: int = 60, threads: int | None = None) -> fb.Result:
    torch.set_num_threads(1)  # the replay has the cores; one thread inside each client
    strategy = fb.FedBuff(buffer_size=5)
    delays = fb.DelayModel(N_CLIENTS, compute=fb.Exponential(1.0), client_speed=fb.LogNormal(0.0, 0.7))
    schedule = fb.schedule(delays, strategy, concurrency=15, server_steps=server_steps, seed=0)
    return fb.replay(
        make_problem(),
        schedule,
        strategy=strategy,
        seed=0,
        threads=threads,
        eval_every=max(1, server_steps // 5),
        metrics=("loss", "accuracy"),
    )


def main() -> None:
    run = train()
    print("seconds  updates   loss  accuracy")
    for row in zip(*(run.history[name] for name in ("time", "updates", "loss", "accuracy")), strict=True):
        print("{:7.1f}{:9.0f}{:7.2f}{:10.2f}".format(*row))


if __name__ == "__main__":
    main()
