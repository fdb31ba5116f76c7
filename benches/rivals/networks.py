"""Networks that papers of federated learning train: layers, rows, a model to start from. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .data import FOLDER

# A layer is a name and its numbers: conv (channels, kernel, padding, stride), pool (size), norm (groups), dense
# (outputs).
Layer = tuple[str, *tuple[int, ...]]
STEPS, LR, N_CLIENTS, ROWS = 10, 0.01, 4, 100


@dataclass(frozen=True)
class Architecture:
    shape: tuple[int, int, int]  # channels, height, width
    classes: int
    layers: tuple[Layer, ...]

    def weights(self) -> list[tuple[int, int]]:
        """(numbers of the weight, inputs of one output) of each layer that has weights."""
        (c, h, w), found = self.shape, []
        for kind, *n in self.layers:
            if kind == "conv":
                out, kernel, padding, stride = n
                found.append((out * c * kernel * kernel, c * kernel * kernel))
                c, h, w = out, (h + 2 * padding - kernel) // stride + 1, (w + 2 * padding - kernel) // stride + 1
            elif kind == "pool":
                h, w = h // n[0], w // n[0]
            elif kind == "flatten":
                c, h, w = c * h * w, 1, 1
            elif kind == "dense":
                found.append((c * n[0], c))
                c = n[0]
        return found


RELU, FLATTEN, POOL = ("relu",), ("flatten",), ("pool", 2)

ARCHITECTURES = {
    "W6": Architecture(
        (1, 28, 28), 10, (("conv", 16, 3, 1, 1), RELU, POOL, ("conv", 32, 3, 1, 1), RELU, POOL, FLATTEN, ("dense", 10))
    ),
    "LeNet-5": Architecture(
        (1, 28, 28),
        10,
        (
            *(("conv", 6, 5, 2, 1), RELU, POOL, ("conv", 16, 5, 0, 1), RELU, POOL, FLATTEN),
            *(("dense", 120), RELU, ("dense", 84), RELU, ("dense", 10)),
        ),
    ),
    "FEMNIST": Architecture(
        (1, 28, 28),
        62,
        (
            *(("conv", 32, 5, 2, 1), RELU, POOL, ("conv", 64, 5, 2, 1), RELU, POOL, FLATTEN),
            *(("dense", 2048), RELU, ("dense", 62)),
        ),
    ),
    "CIFAR": Architecture(
        (3, 24, 24),
        10,
        (
            *(("conv", 64, 5, 2, 1), RELU, POOL, ("conv", 64, 5, 2, 1), RELU, POOL, FLATTEN),
            *(("dense", 384), RELU, ("dense", 192), RELU, ("dense", 10)),
        ),
    ),
    "strides": Architecture(  # no pooling
        (3, 32, 32),
        10,
        (
            *(("conv", 16, 3, 1, 1), RELU, ("conv", 32, 3, 1, 2), RELU, ("conv", 32, 3, 1, 1), RELU),
            *(("conv", 64, 3, 1, 2), RELU, ("conv", 64, 3, 1, 1), RELU, FLATTEN, ("dense", 10)),
        ),
    ),
}


def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """(clients, rows, channels, height, width) and labels (clients, rows)."""
    a, generator = ARCHITECTURES[name], np.random.default_rng(3)
    X = generator.standard_normal((N_CLIENTS, ROWS, *a.shape), dtype=np.float32)
    return X, generator.integers(0, a.classes, (N_CLIENTS, ROWS))


def initial_model(name: str) -> np.ndarray:
    """As PyTorch starts: weights and biases uniform within 1 / sqrt(inputs)."""
    generator, parts = np.random.default_rng(5), []
    for n, inputs in ARCHITECTURES[name].weights():
        bound = inputs**-0.5
        parts += [generator.uniform(-bound, bound, n), generator.uniform(-bound, bound, n // inputs)]
    return np.concatenate(parts).astype(np.float32)


def batches_of(batch: int) -> np.ndarray:
    """(clients, steps, batch) rows within each client."""
    return np.random.default_rng(7).integers(0, ROWS, (N_CLIENTS, STEPS, batch))


def write_answer(name: str, batch: int, delta: np.ndarray) -> None:
    FOLDER.mkdir(exist_ok=True)
    np.save(FOLDER / f"network-{name}-{batch}.npy", delta)


def check_answer(name: str, batch: int, delta: np.ndarray) -> None:
    """Compares the update of client 1 with fedbuff's."""
    expected = np.load(FOLDER / f"network-{name}-{batch}.npy")
    error = np.abs(delta - expected).max() / np.abs(expected).max()
    if not error < 1e-3:
        raise AssertionError(f"{name}: this rival's delta differs from fedbuff's by {error:.2g} of its largest number")
