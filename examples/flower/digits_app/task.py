"""The model and the data: softmax regression on handwritten digits, in plain NumPy."""

from __future__ import annotations

from functools import cache

import numpy as np

import fedbuff as fb

N_CLASSES, LR, STEPS = 10, 0.5, 5


@cache
def rows() -> tuple[np.ndarray, np.ndarray]:
    """All images and their labels."""
    X, y = fb.sample_digits()
    return X.astype(np.float32), y


def part(number: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of one client; each sees few digits."""
    X, y = rows()
    mine = fb.partition.dirichlet(y, parts, alpha=0.5, seed=0) == number
    return X[mine], y[mine]


def initial_model() -> list[np.ndarray]:
    return [np.zeros((N_CLASSES, rows()[0].shape[1]), np.float32), np.zeros(N_CLASSES, np.float32)]


def probabilities(model: list[np.ndarray], X: np.ndarray) -> np.ndarray:
    scores = X @ model[0].T + model[1]
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def loss(model: list[np.ndarray], X: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(probabilities(model, X)[np.arange(y.size), y] + 1e-12).mean())


def accuracy(model: list[np.ndarray], X: np.ndarray, y: np.ndarray) -> float:
    return float((probabilities(model, X).argmax(axis=1) == y).mean())


def train(model: list[np.ndarray], X: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """STEPS steps of gradient descent."""
    weight, bias = model
    for _ in range(STEPS):
        errors = probabilities([weight, bias], X)
        errors[np.arange(y.size), y] -= 1.0
        errors /= np.float32(y.size)
        weight, bias = weight - np.float32(LR) * (errors.T @ X), bias - np.float32(LR) * errors.sum(axis=0)
    return [weight, bias]
