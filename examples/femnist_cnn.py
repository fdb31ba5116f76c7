"""A convolutional network on data shaped like FEMNIST's, trained with FedBuff, FedAvg and FedAsync on the same delays.

    python examples/femnist_cnn.py [--tasks 400]

Pictures of 28 x 28 pixels in 62 classes, made here: each class has a picture, each writer moves it and presses more or
less, and each picture has noise. Writers have different numbers of pictures and prefer some classes.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import fedbuff as fb

L = fb.layers
SIDE, CLASSES = 28, 62


def pictures(n_writers: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X (rows, height, width), y, and the writer of each row."""
    rng = np.random.default_rng(seed)
    coarse = rng.random((CLASSES, 7, 7)) < 0.35
    shapes = np.kron(coarse, np.ones((4, 4))).astype(np.float32)
    counts = np.maximum(10, rng.lognormal(3.3, 0.5, n_writers).astype(int))
    writers = np.repeat(np.arange(n_writers), counts)
    taste = rng.dirichlet(np.full(CLASSES, 0.5), n_writers)
    y = np.concatenate([rng.choice(CLASSES, n, p=taste[i]) for i, n in enumerate(counts)])
    shift = rng.integers(-2, 3, (n_writers, 2))
    moved = np.stack([np.roll(shapes[c], shift[i], (0, 1)) for c, i in zip(y, writers, strict=True)])
    pressure = rng.uniform(0.7, 1.3, n_writers).astype(np.float32)[writers, None, None]
    X = pressure * moved + 0.3 * rng.standard_normal(moved.shape, dtype=np.float32)
    return np.ascontiguousarray(X, np.float32), y, writers


def network(X: np.ndarray, y: np.ndarray, writers: np.ndarray) -> fb.Network:
    layers = [
        L.Conv2d(16, 5, padding="same"),
        L.ReLU(),
        L.MaxPool2d(2),
        L.Conv2d(32, 5, padding="same"),
        L.ReLU(),
        L.MaxPool2d(2),
        L.Flatten(),
        L.Dense(128),
        L.ReLU(),
        L.Dense(CLASSES),
    ]
    return fb.Network(X, y, writers, layers=layers)


def main(tasks: int = 400, n_writers: int = 200) -> dict[str, float]:
    """The accuracy on pictures of other writers, after so many updates of clients by each strategy."""
    X, y, writers = pictures(n_writers, seed=1)
    kept = writers < 0.9 * n_writers
    problem = network(X[kept], y[kept], writers[kept])
    delays = fb.DelayModel(
        n_clients=problem.n_clients,
        compute=fb.LogNormal(0.0, 0.5),
        upload=fb.Exponential(0.3),
        client_speed=fb.LogNormal(0.0, 0.4),
    )
    strategies = {
        "FedBuff": (fb.FedBuff(buffer_size=10), {"concurrency": 20}),
        "FedAvg": (fb.FedAvg(clients_per_round=20, weights="samples"), {}),
        "FedAsync": (fb.FedAsync(mixing=0.4, staleness=fb.staleness.Polynomial(0.5)), {"concurrency": 20}),
    }
    print(f"{problem}, {int(problem.n_samples.sum())} pictures\n")
    print(f"{'':10}{'steps':>7}{'staleness':>11}{'virtual time':>14}{'accuracy':>10}{'seconds':>9}")
    reached = {}
    for name, (strategy, options) in strategies.items():
        began = time.perf_counter()
        schedule = fb.schedule(delays, strategy, arrivals=tasks, seed=0, **options)
        run = fb.replay(
            problem,
            schedule,
            fb.LocalSGD(steps=10, lr=0.05, batch_size=10),
            strategy=strategy,
            seed=0,
            eval_every=schedule.n_steps,
            metrics=("accuracy",),
            test=(X[~kept], y[~kept]),
            progress=False,
        )
        reached[name] = float(run.history["accuracy"][-1])
        staleness, when = schedule.staleness[schedule.step >= 0].mean(), run.history["time"][-1]
        seconds = time.perf_counter() - began
        print(f"{name:10}{run.version:7}{staleness:11.1f}{when:14.1f}{reached[name]:10.3f}{seconds:9.1f}")
    return reached


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=400, help="updates of clients for each strategy")
    main(parser.parse_args().tasks)
