"""Networks on every backend that has them, at every dtype and CPU level, against the reference in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tolerance
from cases import cases, every_dtype
from error_bounds import bounds
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from networks import PUBLIC, networks, spec_of
from numpy.typing import NDArray
from problems import cast, start, summands
from test_conformance import check_local_sgd, check_objective, rows_of, seeds, step_gradient, words

import fedbuff as fb
from fedbuff.backends import reference
from fedbuff.backends.spec import LocalSpec, LocalTask, ProblemSpec

L = fb.layers
Array = NDArray[Any]

pytestmark = pytest.mark.filterwarnings("ignore:LSTM and GRU are not compiled in the numba backend:RuntimeWarning")
few = settings(max_examples=25, deadline=None, derandomize=True)
with_networks = pytest.mark.parametrize("case", cases())


@with_networks
@every_dtype
@given(
    data=st.data(),
    batch=st.sampled_from([0, 1, 3, 9]),
    steps=st.integers(1, 3),
    extras=st.sampled_from([(0.0, 0.0, 0.0), (0.5, 0.0, 0.0), (0.5, 0.25, 0.5)]),
    explicit=st.booleans(),
    seed=seeds,
)
@few
def test_local_sgd(
    case: Any, dtype: str, data: st.DataObject, batch: int, steps: int, extras: Any, explicit: bool, seed: int
) -> None:
    spec = data.draw(
        networks(dtype, tuple(kind for kind in PUBLIC if kind not in (L.Dropout, L.RandomCrop, L.RandomFlip)))
    )
    client = data.draw(st.integers(0, spec.n_clients - 1))
    w0 = start(spec, data.draw(words))
    check_local_sgd(case, spec, w0, LocalSpec(steps, 1.0, *extras), client, data.draw(words), seed, batch, explicit)


@with_networks
@every_dtype
@given(data=st.data(), seed=words)
@few
def test_objective(case: Any, dtype: str, data: st.DataObject, seed: int) -> None:
    spec = data.draw(networks(dtype))
    client = data.draw(st.one_of(st.none(), st.integers(0, spec.n_clients - 1)))
    w = start(spec, seed)
    gradient, again = np.full_like(w, np.nan), np.full_like(w, np.nan)
    with case.use() as backend:
        problem = backend.bind(spec)
        if client is None:
            value, alone = problem.gradient(w, gradient, 1), problem.gradient(w, None, 1)
            tolerance.PREFIX.check(problem.gradient(w, again, 2), value)
            tolerance.PREFIX.check(again, gradient)
        else:
            value, alone = problem.client_gradient(client, w, gradient), problem.client_gradient(client, w, None)
    tolerance.PREFIX.check(alone, value)
    check_objective(spec, w, client, value, gradient, tolerance.GRADIENT)


@with_networks
@every_dtype
@given(spec=networks("float64"))
@few
def test_local_sgd_from_zero(case: Any, dtype: str, spec: ProblemSpec) -> None:
    """All windows tie and all relus are at 0: from a model of zeros the delta is lr times the gradient."""
    spec = cast(spec, dtype)
    delta = np.full(spec.dim, np.nan, dtype)
    with case.use() as backend:
        backend.bind(spec).local_sgd(LocalSpec(1, 0.5), np.zeros(spec.dim, dtype), LocalTask(0, 0, 0, 0), delta)
    rows = rows_of(spec, 0)
    want = 0.5 * step_gradient(spec, np.zeros(spec.dim), 0, None, np.zeros(spec.dim))
    terms = bounds(spec, np.zeros(spec.dim), rows).gradient
    tolerance.LOCAL_SGD.check(delta, want, terms=terms, n=summands(spec, len(rows)), dtype=dtype)


@with_networks
@every_dtype
@given(data=st.data(), seed=words)
@few
def test_count_correct(case: Any, dtype: str, data: st.DataObject, seed: int) -> None:
    kinds = networks(dtype, heads=("softmax",)), networks(dtype, heads=("logistic",), most_outputs=1)
    spec = data.draw(st.one_of(*kinds))
    assert spec.offsets is not None
    n_rows = int(spec.offsets[-1])
    begin = data.draw(st.integers(0, n_rows))
    end = data.draw(st.integers(begin, n_rows))
    w = start(spec, seed)
    with case.use() as backend:
        got = backend.bind(spec).count_correct(begin, end, w)
    if begin < end:
        margin = bounds(spec, w, np.arange(begin, end)).margin
        assume(not np.any(margin <= tolerance.IN_DOUBT.allowed(1.0, summands(spec, 1), dtype)))
    tolerance.COUNT_CORRECT.check(got, reference.bind(cast(spec, np.float64)).count_correct(begin, end, wide(w)))


def wide(w: Array) -> Array:
    return w.astype(np.float64)


@with_networks
@every_dtype
@pytest.mark.parametrize("batch", [0, 1, 6])
def test_dropout(case: Any, dtype: str, batch: int) -> None:
    """The same numbers are dropped, step by step; a row that is drawn twice has two masks."""
    layers = [
        L.Conv2d(5, 3), L.Tanh(), L.Dropout(0.25), L.Flatten(), L.Residual([L.Dropout(0.0), L.Dropout()]), L.Dense(7),
        L.Tanh(), L.Dropout(0.75), L.Dense(3),
    ]  # fmt: skip
    x = np.random.default_rng(1).standard_normal((9, 2, 5, 4)).astype(dtype)
    spec = spec_of(layers, x, [4, 5], "softmax")
    w = (0.5 * np.random.default_rng(2).standard_normal(spec.dim)).astype(dtype)
    for rows in (None, np.array([[1, 1, 0, 4, 1, 2][:batch]] * 3)):
        task = LocalTask(1, 2**32 - 1, 2**64 - 3, batch, rows if batch else None)
        got, want = np.empty_like(w), np.empty(spec.dim)
        with case.use() as backend:
            backend.bind(spec).local_sgd(LocalSpec(3, 0.5), w, task, got)
        reference.bind(cast(spec, np.float64)).local_sgd(LocalSpec(3, 0.5), wide(w), task, want)
        assert np.linalg.norm(got - want) <= 1e3 * np.finfo(dtype).eps * np.linalg.norm(w)


@with_networks
@every_dtype
@pytest.mark.parametrize("batch", [0, 1, 6])
def test_augmentation(case: Any, dtype: str, batch: int) -> None:
    """Images are moved and turned alike, step by step, at the front and behind a layer that learns."""
    layers = [
        L.RandomCrop((2, 1)), L.RandomFlip(), L.Conv2d(5, 3, padding=2), L.Tanh(), L.Dropout(0.25), L.RandomFlip(),
        L.RandomCrop((9, 0)), L.Residual([L.RandomCrop(1)]), L.Flatten(), L.Dense(3),
    ]  # fmt: skip
    x = np.random.default_rng(1).integers(0, 256, (9, 2, 5, 4)).astype(np.uint8)
    spec = spec_of(layers, x, [4, 5], "softmax", dtype=dtype)
    w = (0.25 * np.random.default_rng(2).standard_normal(spec.dim)).astype(dtype)
    for rows in (None, np.array([[1, 1, 0, 4, 1, 2][:batch]] * 3)):
        task = LocalTask(1, 2**32 - 1, 2**64 - 3, batch, rows if batch else None)
        got, want = np.empty_like(w), np.empty(spec.dim)
        with case.use() as backend:
            backend.bind(spec).local_sgd(LocalSpec(3, 0.125), w, task, got)
        reference.bind(cast(spec, np.float64)).local_sgd(LocalSpec(3, 0.125), wide(w), task, want)
        assert np.linalg.norm(got - want) <= 3e3 * np.finfo(dtype).eps * np.linalg.norm(w)


@with_networks
@every_dtype
def test_bytes_are_the_numbers_that_they_stand_for(case: Any, dtype: str) -> None:
    """By bits: the 256 numbers are worked out in double and rounded once."""
    x = np.arange(2 * 3 * 256, dtype=np.uint8).reshape(6, 1, 16, 16)
    spec = spec_of([L.Conv2d(3, 3), L.Tanh(), L.Flatten(), L.Dense(3)], x, [2, 4], "softmax", dtype=dtype)
    numbers = (spec.scale * x.astype(np.float64) + spec.shift).astype(dtype).reshape(6, -1)
    w = start(spec, 5)
    gradients = []
    with case.use() as backend:
        for one in (spec, replace(spec, byte=None, x=numbers)):
            gradient = np.empty_like(w)
            value = backend.bind(one).gradient(w, gradient, 1)
            gradients.append((value, gradient.tobytes()))
    assert gradients[0] == gradients[1]


CNN = [L.Conv2d(16, 3), L.ReLU(), L.MaxPool2d(2), L.Conv2d(32, 3), L.ReLU(), L.MaxPool2d(2), L.Flatten(), L.Dense(10)]
LENET = [
    L.Conv2d(6, 5, padding=2), L.ReLU(), L.MaxPool2d(2), L.Conv2d(16, 5), L.ReLU(), L.MaxPool2d(2), L.Flatten(),
    L.Dense(120), L.ReLU(), L.Dense(84), L.ReLU(), L.Dense(10),
]  # fmt: skip


def block(channels: int, stride: int) -> L.Residual:
    body = [
        L.Conv2d(channels, 3, stride, 1, bias=False), L.GroupNorm(4), L.ReLU(),
        L.Conv2d(channels, 3, padding=1, bias=False), L.GroupNorm(4),
    ]  # fmt: skip
    return L.Residual(body, [L.Conv2d(channels, 1, stride, bias=False), L.GroupNorm(4)] if stride > 1 else [])


RESNET = [
    L.Conv2d(8, 3, 2, 1, bias=False), L.GroupNorm(4), L.ReLU(), block(8, 1), L.ReLU(), block(16, 2), L.ReLU(),
    L.GlobalAvgPool2d(), L.Dense(10),
]  # fmt: skip
WIDE = [L.Conv2d(20, 3), L.ReLU(), L.MaxPool2d(2), L.Flatten(), L.Dense(300), L.ReLU(), L.Dense(62)]


@with_networks
@every_dtype
@pytest.mark.parametrize("name", ["cnn", "lenet", "wide", "resnet"])
def test_networks_of_papers(case: Any, dtype: str, name: str) -> None:
    """Of their sizes: blocks of rows, of channels and of outputs are full and not full."""
    layers = {"cnn": CNN, "lenet": LENET, "wide": WIDE, "resnet": RESNET}[name]
    x = np.random.default_rng(1).standard_normal((45, 1, 28, 28)).astype(dtype)
    spec = spec_of(layers, x, [1, 7, 37], "softmax")
    w = start(spec, 5)
    gradient = np.full_like(w, np.nan)
    rows = np.array([[3, 3, 1, 0, 6, 3, 2, 2, 5, 4, 1]])
    delta = np.full_like(w, np.nan)
    with case.use() as backend:
        problem = backend.bind(spec)
        value = problem.gradient(w, gradient, 2)
        problem.local_sgd(LocalSpec(1, 2.0**-3), 0 * w, LocalTask(1, 0, 0, 11, rows), delta)
        problem.local_sgd(LocalSpec(1, 1.0), w, LocalTask(1, 0, 0, 11, rows), delta)
    want = np.empty(spec.dim)
    truth = reference.bind(cast(spec, np.float64))
    want_value = truth.gradient(wide(w), want, 1)
    close = 2e4 * np.finfo(dtype).eps  # relus and maxima may switch: the distance of the whole, not of each number
    assert math.isclose(value, want_value, rel_tol=close)
    assert np.linalg.norm(gradient - want) <= close * np.linalg.norm(want)
    step = step_gradient(spec, w, 1, rows[0], np.zeros(spec.dim))
    assert np.linalg.norm(delta - step) <= close * (np.linalg.norm(w) + np.linalg.norm(step))


@with_networks
@every_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows(case: Any, dtype: str, bad: float) -> None:
    """In the value and the gradient of the client that has it, and in no other's."""
    layers = [L.Conv2d(5, 3, padding=1), L.ReLU(), L.MaxPool2d(2), L.Flatten(), L.Dense(6), L.ReLU(), L.Dense(3)]
    for row, pixel in ((3, 0), (8, 35), (5, 17)):
        x = np.random.default_rng(1).standard_normal((12, 1, 6, 6)).astype(dtype)
        x[row, 0, pixel // 6, pixel % 6] = bad
        spec = spec_of(layers, x, [3, 6, 3], "squared")
        w = start(spec, 1)
        gradient = np.empty_like(w)
        with case.use() as backend, np.errstate(all="ignore"):
            problem = backend.bind(spec)
            finite = []
            for client in range(3):
                value = problem.client_gradient(client, w, gradient)
                finite.append(math.isfinite(value) and bool(np.isfinite(gradient).all()))
        tolerance.FINITE.check(np.array(finite), np.array([True, False, True]))


@with_networks
@every_dtype
def test_the_first_of_equal_pixels_gets_the_gradient(case: Any, dtype: str) -> None:
    """Windows of equal numbers, overlapping and not, and a relu at exactly 0."""
    x = np.ones((1, 1, 5, 5), dtype)
    for kernel, stride in ((2, 2), (3, 2), (2, 1), (5, 1)):
        layers = [L.Conv2d(2, 1), L.MaxPool2d(kernel, stride), L.Flatten(), L.Dense(1)]
        layers[1:1] = [L.Conv2d(2, (2, 1), padding=(1, 0)), L.ReLU()]
        spec = spec_of(layers, x, [1], "squared")
        w = np.zeros(spec.dim, dtype)
        w[:2] = 1.0  # first convolution: both channels are 1
        w[4:12] = 0.25
        w[14:-1] = np.arange(1, spec.dim - 14)
        gradient = np.empty_like(w)
        with case.use() as backend:
            backend.bind(spec).client_gradient(0, w, gradient)
        want = np.empty(spec.dim)
        reference.bind(cast(spec, np.float64)).client_gradient(0, wide(w), want)
        np.testing.assert_allclose(gradient, want, rtol=1e-5)


def test_numba_runs_recurrent_layers_by_the_reference() -> None:
    numba = pytest.importorskip("fedbuff.backends.numba.problem")
    spec = spec_of([L.LSTM(3, last=True), L.Dense(3)], np.ones((2, 4, 5)), [2], "softmax")
    numba.said_slow.clear()
    with pytest.warns(RuntimeWarning, match="LSTM and GRU are not compiled in the numba backend"):
        bound = numba.bind(spec)
    assert type(bound) is type(reference.bind(spec)) is type(numba.bind(spec))  # it is said once


def test_every_public_layer_is_drawn() -> None:
    assert {kind.__name__ for kind in PUBLIC} == set(L.__all__) - {"BatchNorm"}
