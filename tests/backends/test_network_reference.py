"""The layers of the reference against mathematics: finite differences, and identities between layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from error_bounds import bounds
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from networks import EVERY_LAYER, networks, spec_of
from numpy.typing import NDArray

from fedbuff.backends import reference
from fedbuff.backends.python.network import Draws
from fedbuff.backends.spec import ProblemSpec
from fedbuff.layers._augment import RandomCrop, RandomFlip
from fedbuff.layers._image import AvgPool2d, Conv2d, Flatten, GlobalAvgPool2d, MaxPool2d
from fedbuff.layers._norm import GroupNorm, LayerNorm
from fedbuff.layers._pointwise import GELU, Dense, Dropout, LeakyReLU, ReLU, Sigmoid, SiLU, Tanh
from fedbuff.layers._sequence import GRU, LSTM, Embedding, LastStep, MeanOverTime
from fedbuff.layers._stack import Residual

Array = NDArray[Any]

few = settings(max_examples=60, deadline=None, derandomize=True)
words = st.integers(0, 2**32 - 1)

STEP = 2.0**-14
DIFFERENCE = 1e-8  # of a fourth-order difference of losses of size 1: rounding by STEP, and STEP^4


def model(spec: ProblemSpec, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(spec.dim) * 0.5


def value_and_gradient(spec: ProblemSpec, w: Array, seed: int) -> tuple[Any, Array]:
    """The loss of client 0's rows with the masks of one local step, and its gradient."""
    problem = reference.bind(spec)
    assert isinstance(problem, reference._Layers)
    rows = np.arange(*problem.range_of(0))
    draws = Draws(seed, 0, 3, 1, np.arange(len(rows)))

    def value(v: Array) -> float:
        return float(problem.losses(problem.forward(rows, v, draws)[0], rows).mean()) + problem.regularizer(v)

    return value, problem.mean_gradient(rows, w, draws) + problem.regularizer_gradient(w)


def check_gradient(spec: ProblemSpec, w: Array, seed: int) -> None:
    value, gradient = value_and_gradient(spec, w, seed)
    rng = np.random.default_rng(0)
    for _ in range(3):
        u = rng.choice([-1.0, 1.0], spec.dim) / math.sqrt(spec.dim)
        near = value(w + STEP * u) - value(w - STEP * u)
        far = value(w + 2 * STEP * u) - value(w - 2 * STEP * u)
        found = (8 * near - far) / (12 * STEP)
        assert abs(found - gradient @ u) <= DIFFERENCE * (1 + abs(value(w)) + np.linalg.norm(gradient))


SMOOTH: dict[str, list[Any]] = {
    "conv": [Conv2d(3, 3), Tanh(), Flatten(), Dense(3)],
    "conv same": [Conv2d(2, (2, 4), padding="same"), Tanh(), Flatten(), Dense(3)],
    "conv stride": [Conv2d(3, (2, 3), (2, 3), (1, 2), bias=False), Tanh(), Flatten(), Dense(3)],
    "conv groups": [Conv2d(6, 3, groups=2, padding=1), Tanh(), Flatten(), Dense(3)],
    "depthwise": [Conv2d(8, 3, groups=4), Tanh(), Conv2d(2, 1), Flatten(), Dense(3)],
    "max": [Conv2d(4, 3), MaxPool2d(2), Flatten(), Dense(3)],
    "max overlapping": [Conv2d(4, 2), MaxPool2d(3, 2, 1), Flatten(), Dense(3)],
    "avg": [Conv2d(4, 3), AvgPool2d(2), Tanh(), Flatten(), Dense(3)],
    "avg padded": [Conv2d(4, 3), AvgPool2d((3, 2), (2, 3), 1), Tanh(), Flatten(), Dense(3)],
    "global": [Conv2d(4, 3), Tanh(), GlobalAvgPool2d(), Dense(3)],
    "leaky": [Conv2d(4, 3), LeakyReLU(0.25), Flatten(), Dense(3)],
    "relu": [Conv2d(4, 3), ReLU(), Flatten(), Dense(3)],
    "gelu": [Conv2d(4, 3), GELU(), Flatten(), Dense(3)],
    "silu": [Conv2d(4, 3), SiLU(), Flatten(), Dense(3)],
    "sigmoid": [Conv2d(4, 3), Sigmoid(), Flatten(), Dense(3)],
    "dropout": [Conv2d(4, 3), Dropout(0.25), Tanh(), Flatten(), Dropout(), Dense(3)],
    "random crop": [Conv2d(4, 3), RandomCrop((1, 3)), Tanh(), RandomCrop(0), Flatten(), Dense(3)],
    "random flip": [RandomFlip(), Conv2d(4, 3), RandomFlip(), Tanh(), Flatten(), Dense(3)],
    "group norm": [Conv2d(4, 3), GroupNorm(2), Tanh(), Flatten(), Dense(3)],
    "group norm of one": [Conv2d(4, 3), GroupNorm(4, affine=False), Tanh(), GroupNorm(1), Flatten(), Dense(3)],
    "layer norm": [Conv2d(4, 3), LayerNorm(), Tanh(), Flatten(), Dense(5), LayerNorm(affine=False), Dense(3)],
    "residual": [Conv2d(4, 3), Residual([Conv2d(4, 3, padding=1), Tanh()]), Flatten(), Dense(3)],
    "residual shortcut": [
        Residual([Conv2d(4, 3, 2, 1), Tanh(), Residual([Tanh()])], [Conv2d(4, 1, 2, bias=False)]), Flatten(), Dense(3),
    ],
}  # fmt: skip


OF_SEQUENCES: dict[str, list[Any]] = {
    "embedding": [Embedding(5, 3), Tanh(), Flatten(), Dense(3)],
    "lstm": [Embedding(5, 4), LSTM(6), Dropout(0.25), LSTM(3, last=True), Dense(3)],
    "lstm without bias": [Embedding(5, 2), LSTM(1, bias=False), MeanOverTime(), Dense(3)],
    "gru": [Embedding(5, 4), GRU(6), Residual([GRU(6)]), LastStep(), Dense(3)],
    "gru without bias": [Embedding(5, 2), GRU(3, bias=False), Flatten(), Dense(3)],
    "mean over time": [Embedding(5, 4), Residual([Sigmoid()]), Dropout(0.25), MeanOverTime(), Dense(3)],
}  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("head", ["squared", "logistic", "softmax"])
def test_every_layer(name: str, head: str) -> None:
    x = np.random.default_rng(5).standard_normal((5, 4, 7, 6))
    smoothing = 0.25 if head == "softmax" else 0.0
    spec = spec_of(SMOOTH[name], x, [5], head, label_smoothing=smoothing, l2=0.125)
    check_gradient(spec, model(spec, 7), seed=11)


@pytest.mark.parametrize("name", OF_SEQUENCES)
def test_every_layer_of_sequences(name: str) -> None:
    """Over tokens; the first of them does not occur."""
    x = np.random.default_rng(5).integers(1, 5, (5, 6))
    spec = spec_of(OF_SEQUENCES[name], x, [5], "softmax", dtype="float64")
    check_gradient(spec, model(spec, 7), seed=11)
    _, gradient = value_and_gradient(spec, model(spec, 7), 11)
    assert not gradient[: OF_SEQUENCES[name][0].width].any()


def test_every_layer_is_there() -> None:
    shown = {type(layer) for layers in (SMOOTH | OF_SEQUENCES).values() for layer in layers}
    assert shown == set(EVERY_LAYER)


SMOOTH_KINDS = tuple(kind for kind in EVERY_LAYER if kind not in (ReLU, LeakyReLU, MaxPool2d))


@given(spec=networks("float64", SMOOTH_KINDS), seed=words)
@few
def test_random_stacks_without_kinks(spec: ProblemSpec, seed: int) -> None:
    check_gradient(spec, model(spec, seed), seed)


KINKED = (
    Conv2d, MaxPool2d, AvgPool2d, GlobalAvgPool2d, Flatten, Dense, ReLU, LeakyReLU, Residual, Embedding, MeanOverTime,
    LastStep, LSTM, GRU,
)  # fmt: skip


@given(spec=networks("float64", KINKED), seed=words)
@few
def test_random_stacks_with_kinks(spec: ProblemSpec, seed: int) -> None:
    w = model(spec, seed)
    assert spec.offsets is not None
    limit = bounds(spec, w, np.arange(spec.offsets[0], spec.offsets[1]))
    assume(limit.safe > 0.01)  # no relu and no largest of a window switches within the differences
    check_gradient(spec, w, seed)
