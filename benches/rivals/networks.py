"""Networks that papers of federated learning train: layers, rows, a model to start from. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .data import FOLDER

# A layer is a name and what it takes: conv (channels, kernel, padding, stride), pool (size), norm (groups), dense
# (outputs), residual (layers, layers around them), embedding (words, width), lstm (width), and relu, flatten, mean
# (over the picture), last (of the steps) alone.
Layer = tuple[Any, ...]
Shape = tuple[int, ...]  # channels, height, width; of tokens, steps; of sequences, width, 1, steps
STEPS, LR, N_CLIENTS, ROWS = 10, 0.01, 4, 100


@dataclass(frozen=True)
class Architecture:
    shape: Shape
    classes: int
    layers: tuple[Layer, ...]


RELU, FLATTEN, POOL = ("relu",), ("flatten",), ("pool", 2)


def basic_block(channels: int, stride: int) -> tuple[Layer, ...]:
    """Two convolutions with norms, and what goes around them."""
    body = (("conv", channels, 3, 1, stride), ("norm", 8), RELU, ("conv", channels, 3, 1, 1), ("norm", 8))
    around = () if stride == 1 else (("conv", channels, 1, 0, stride), ("norm", 8))
    return ("residual", body, around), RELU


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
    "LSTM": Architecture((80,), 80, (("embedding", 80, 8), ("lstm", 256), ("last",), ("dense", 80))),
    "Shakespeare": Architecture(  # LEAF's
        (80,), 80, (("embedding", 80, 8), ("lstm", 256), ("lstm", 256), ("last",), ("dense", 80))
    ),
    "ResNet-8": Architecture(
        (3, 32, 32),
        10,
        (
            *(("conv", 16, 3, 1, 1), ("norm", 8), RELU),
            *(*basic_block(16, 1), *basic_block(32, 2), *basic_block(64, 2), ("mean",), ("dense", 10)),
        ),
    ),
}


# Norms of small activations make rounding errors larger: PyTorch's own float32 is as far from its float64.
TOLERANCE = {"ResNet-8": 2e-2}


def after(layer: Layer, shape: Shape) -> Shape:
    """The shape that a layer makes of this one."""
    if layer[0] == "embedding":
        return layer[2], 1, shape[0]
    (kind, *given), (c, h, w) = layer, shape
    if kind == "conv":
        out, kernel, padding, stride = given
        return out, (h + 2 * padding - kernel) // stride + 1, (w + 2 * padding - kernel) // stride + 1
    if kind == "pool":
        return c, h // given[0], w // given[0]
    if kind == "residual":
        return after_all(given[0], shape)
    return {
        "flatten": (c * h * w, 1, 1),
        "mean": (c, 1, 1),
        "last": (c, 1, 1),
        "dense": (*given, 1, 1),
        "lstm": (*given, 1, w),
    }.get(kind, shape)


def after_all(layers: tuple[Layer, ...], shape: Shape) -> Shape:
    for layer in layers:
        shape = after(layer, shape)
    return shape


def start_of(layers: tuple[Layer, ...], shape: Shape, generator: np.random.Generator) -> list[np.ndarray]:
    """Weights and biases as PyTorch starts: uniform within 1 / sqrt(inputs), of an LSTM within 1 / sqrt(width); norms
    with ones and zeros; embeddings normal."""
    parts: list[np.ndarray] = []
    for layer in layers:
        kind, *given = layer
        if kind in ("conv", "dense"):
            inputs = shape[0] * (given[1] ** 2 if kind == "conv" else 1)
            bound = inputs**-0.5
            parts += [generator.uniform(-bound, bound, n) for n in (inputs * given[0], given[0])]
        elif kind == "embedding":
            parts.append(generator.standard_normal(given[0] * given[1]))
        elif kind == "lstm":
            width = given[0]
            parts += [generator.uniform(-(width**-0.5), width**-0.5, 4 * width * n) for n in (shape[0], width, 1, 1)]
        elif kind == "norm":
            parts += [np.ones(shape[0]), np.zeros(shape[0])]
        elif kind == "residual":
            parts += [part for branch in given for part in start_of(branch, shape, generator)]
        shape = after(layer, shape)
    return parts


def has_tokens(name: str) -> bool:
    """Whether rows are texts, which have no channels."""
    return ARCHITECTURES[name].layers[0][0] == "embedding"


def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """(clients, rows, channels, height, width), or tokens (clients, rows, steps), and labels (clients, rows)."""
    a, generator = ARCHITECTURES[name], np.random.default_rng(3)
    if has_tokens(name):
        X = generator.integers(0, a.layers[0][1], (N_CLIENTS, ROWS, *a.shape))
    else:
        X = generator.standard_normal((N_CLIENTS, ROWS, *a.shape), dtype=np.float32)
    return X, generator.integers(0, a.classes, (N_CLIENTS, ROWS))


def initial_model(name: str) -> np.ndarray:
    a = ARCHITECTURES[name]
    return np.concatenate(start_of(a.layers, a.shape, np.random.default_rng(5))).astype(np.float32)


def batches_of(batch: int) -> np.ndarray:
    """(clients, steps, batch) rows within each client."""
    return np.random.default_rng(7).integers(0, ROWS, (N_CLIENTS, STEPS, batch))


def _answer(name: str, batch: int) -> str:
    return str(FOLDER / f"network-{name}-{batch}.npy")


def write_answer(name: str, batch: int, deltas: np.ndarray) -> None:
    FOLDER.mkdir(exist_ok=True)
    np.save(_answer(name, batch), deltas)


def read_answer(name: str, batch: int) -> np.ndarray:
    """The clients' updates (clients, weights) that fedbuff has computed."""
    return np.load(_answer(name, batch))


def check_answer(name: str, batch: int, delta: np.ndarray) -> None:
    """Compares the update of client 1 with fedbuff's."""
    expected = read_answer(name, batch)[1]
    error = np.abs(delta - expected).max() / np.abs(expected).max()
    if not error < TOLERANCE.get(name, 1e-3):
        raise AssertionError(f"{name}: this rival's delta differs from fedbuff's by {error:.2g} of its largest number")
