"""The reference against mathematics: finite differences, closed forms, the definitions of the losses."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from error_bounds import bounds
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from problems import dimension, nets, quadratics, specs, start
from tolerance import Backward, Ulp

from fedbuff.backends import reference
from fedbuff.backends.python.compression import BFLOAT16, RANDOM_K, SIGN, TOP_K
from fedbuff.backends.python.philox import Stream
from fedbuff.backends.spec import CompressNumbers, EncodeNumbers, LocalSpec, LocalTask, ProblemSpec, QuantizeNumbers

Array = NDArray[Any]

few = settings(max_examples=60, deadline=None, derandomize=True)
words = st.integers(0, 2**32 - 1)

STEP = 2.0**-14
# A fourth-order difference: h^4 of truncation, and the value's rounding divided by h.
DIFFERENCE = Backward(64.0)


def check_gradient(spec: ProblemSpec, w: Array, value: Any, gradient: Array, terms: float, n: int) -> None:
    """Along three directions: the derivative by differences against the gradient's inner product."""
    rng = np.random.default_rng(0)
    for _ in range(3):
        u = rng.choice([-1.0, 1.0], spec.dim) / math.sqrt(spec.dim)
        near = value(w + STEP * u) - value(w - STEP * u)
        far = value(w + 2 * STEP * u) - value(w - 2 * STEP * u)
        DIFFERENCE.check((8 * near - far) / (12 * STEP), gradient @ u, terms=terms / STEP, n=n, dtype=np.float64)


@given(spec=specs("float64"), seed=words)
@few
def test_gradients_are_those_of_the_values(spec: ProblemSpec, seed: int) -> None:
    w = start(spec, seed)
    problem = reference.bind(spec)
    gradient = np.empty(spec.dim)
    for client in range(spec.n_clients):
        rows = np.arange(0) if spec.offsets is None else np.arange(spec.offsets[client], spec.offsets[client + 1])
        limit = bounds(spec, w, rows, client)
        assume(limit.safe > 0.01)  # no relu switches within the differences
        problem.client_gradient(client, w, gradient)
        check_gradient(
            spec, w, lambda v, i=client: problem.client_gradient(i, v, None), gradient, limit.value + 1, n=16
        )
    value = problem.gradient(w, gradient, 1)
    check_gradient(spec, w, lambda v: problem.gradient(v, None, 1), gradient, abs(value) + limit.value + 1, n=16)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("hidden", [(), (5,), (4, 3)], ids=str)
@pytest.mark.parametrize("head", ["squared", "logistic", "softmax"])
@pytest.mark.parametrize("intercept", [False, True])
def test_every_head_and_depth(head: Any, hidden: tuple[int, ...], activation: Any, intercept: bool) -> None:
    """The same for a fixed problem of every kind, so that none depends on what Hypothesis drew."""
    rng = np.random.default_rng(1)
    sizes = (3, *hidden, 4 if head == "softmax" else 1)
    spec = ProblemSpec(
        family="net",
        dtype=np.dtype(np.float64),
        n_clients=2,
        dim=dimension(sizes, intercept),
        client_weight=np.array([0.25, 0.75]),
        offsets=np.array([0, 2, 7]),
        x=rng.standard_normal((7, 3)),
        target=None if head == "softmax" else rng.integers(0, 2, 7).astype(float),
        label=rng.integers(0, 4, 7).astype(np.int32) if head == "softmax" else None,
        sizes=sizes,
        intercept=intercept,
        activation=activation,
        head=head,
        l2=0.1,
        nonconvex=0.2,
    )
    problem = reference.bind(spec)
    for seed in range(20):
        w = start(spec, seed)
        if bounds(spec, w, np.arange(7)).safe > 0.01:
            break
    gradient = np.empty(spec.dim)
    value = problem.gradient(w, gradient, 1)
    check_gradient(spec, w, lambda v: problem.gradient(v, None, 1), gradient, abs(value) + 10, n=16)


def test_losses_are_those_of_the_definitions() -> None:
    x, w = np.array([[2.0], [-1.0]]), np.array([0.75])
    common: dict[str, Any] = {
        "family": "net",
        "dtype": np.dtype(np.float64),
        "n_clients": 1,
        "dim": 1,
        "client_weight": np.ones(1),
        "offsets": np.array([0, 2]),
        "x": x,
        "sizes": (1, 1),
    }
    squared = ProblemSpec(head="squared", target=np.array([1.0, 3.0]), l2=0.5, nonconvex=0.25, **common)
    regularizer = 0.25 * 0.75**2 + 0.25 * 0.75**2 / (1 + 0.75**2)
    want = ((1.5 - 1) ** 2 / 2 + (-0.75 - 3) ** 2 / 2) / 2 + regularizer
    Ulp(2).check(np.array(reference.bind(squared).client_gradient(0, w, None)), np.array(want))
    logistic = ProblemSpec(head="logistic", target=np.array([1.0, 0.0]), **common)
    want = (math.log(1 + math.exp(-1.5)) + math.log(1 + math.exp(-0.75))) / 2
    Ulp(2).check(np.array(reference.bind(logistic).client_gradient(0, w, None)), np.array(want))
    softmax = ProblemSpec(
        **{**common, "head": "softmax", "label": np.array([1, 0], np.int32), "sizes": (1, 2), "dim": 2}
    )
    want = (math.log(1 + math.exp(1.5)) + math.log(1 + math.exp(0.75))) / 2
    Ulp(2).check(np.array(reference.bind(softmax).client_gradient(0, np.array([0.75, 0.0]), None)), np.array(want))


@given(spec=quadratics("float64", noise=False), seed=words, steps=st.integers(1, 12))
@few
def test_full_batch_on_a_quadratic_has_a_closed_form(spec: ProblemSpec, seed: int, steps: int) -> None:
    """delta = (I - (I - eta A)^Q) (w - c)."""
    assert spec.center is not None and spec.curvature is not None
    w, eta, dim = start(spec, seed), 0.125, spec.dim
    for client in range(spec.n_clients):
        delta = np.empty(dim)
        reference.bind(spec).local_sgd(LocalSpec(steps, eta), w, LocalTask(client, 0, 0, 0), delta)
        curvature = spec.curvature[client if len(spec.curvature) > 1 else 0]
        matrix = curvature.reshape(dim, dim) if spec.curvature_form == "dense" else np.eye(dim) * curvature
        away = w - spec.center[client]
        want = (np.eye(dim) - np.linalg.matrix_power(np.eye(dim) - eta * matrix, steps)) @ away
        scale = np.linalg.norm(matrix, 2) + 1
        terms = np.full(dim, (np.abs(w).sum() + np.abs(away).sum()) * scale)
        Backward(4.0).check(delta, want, terms=terms, n=dim * steps, dtype=np.float64)


@given(spec=nets("float64"), seed=words, batch=st.integers(1, 9))
@few
def test_rows_given_are_rows_drawn(spec: ProblemSpec, seed: int, batch: int) -> None:
    assert spec.offsets is not None
    w = start(spec, seed)
    n_rows = int(spec.offsets[1])
    rows = np.array([reference.batch_rows(seed, 0, 3, q, n_rows, batch) for q in range(3)])
    drawn, told = np.empty(spec.dim), np.empty(spec.dim)
    for out, given_rows in ((drawn, None), (told, rows)):
        reference.bind(spec).local_sgd(LocalSpec(3, 0.1, 0.9), w, LocalTask(0, 3, seed, batch, given_rows), out)
    np.testing.assert_array_equal(drawn, told)


def test_every_row_once_is_the_full_gradient() -> None:
    """The batch of all rows in order is the exact local gradient."""
    spec = ProblemSpec(
        family="net",
        dtype=np.dtype(np.float64),
        n_clients=1,
        dim=3,
        client_weight=np.ones(1),
        offsets=np.array([0, 5]),
        x=np.arange(15.0).reshape(5, 3),
        target=np.ones(5),
        sizes=(3, 1),
    )
    problem, w = reference.bind(spec), np.array([0.1, 0.2, -0.3])
    full, batch = np.empty(3), np.empty(3)
    problem.local_sgd(LocalSpec(1, 0.5), w, LocalTask(0, 0, 0, 0), full)
    rows = np.arange(5)[np.newaxis]
    problem.local_sgd(LocalSpec(1, 0.5), w, LocalTask(0, 0, 0, 5, rows), batch)
    np.testing.assert_array_equal(full, batch)


def test_normals_are_box_muller() -> None:
    n = 20_001
    got = reference.normals(7, 1, 2, 3, 3, n)
    counter = np.array([[1, 2, 3, 3 << 28 | block] for block in range((n + 1) // 2)], np.uint32)
    w = reference.philox(7, counter).astype(np.float64)
    unit = [(np.floor(w[:, i] / 32) * 2**26 + np.floor(w[:, i + 1] / 64)) / 2**53 for i in (0, 2)]
    radius = np.sqrt(-2 * np.log(1 - unit[0]))
    want = np.stack([radius * np.cos(2 * np.pi * unit[1]), radius * np.sin(2 * np.pi * unit[1])], axis=1).ravel()[:n]
    Backward(4.0).check(got, want, terms=np.repeat(radius + 1, 2)[:n], n=1, dtype=np.float64)
    # five standard errors of the first four moments
    for power, moment, error in ((1, 0, 1), (2, 1, 2**0.5), (3, 0, 15**0.5), (4, 3, 96**0.5)):
        assert abs((got**power).mean() - moment) < 5 * error / math.sqrt(n)


def test_batches_are_uniform() -> None:
    n_rows, batch = 10, 4000
    counts = np.bincount(reference.batch_rows(1, 2, 3, 4, n_rows, batch), minlength=n_rows)
    chi_square = float(((counts - batch / n_rows) ** 2).sum() / (batch / n_rows))
    assert chi_square < 27.9  # 99.9 % of chi-square with 9 degrees of freedom


def test_a_draw_does_not_depend_on_how_many_are_drawn() -> None:
    many = reference.batch_rows(1, 2, 3, 4, 1000, 64)
    np.testing.assert_array_equal(many[:7], reference.batch_rows(1, 2, 3, 4, 1000, 7))
    np.testing.assert_array_equal(reference.normals(1, 2, 3, 4, 3, 64)[:7], reference.normals(1, 2, 3, 4, 3, 7))


@given(
    numbers=st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=9),
    bits=st.integers(2, 20),
    weight=st.integers(1, 9),
    stochastic=st.booleans(),
)
@few
def test_encoding_is_its_definition(numbers: list[float], bits: int, weight: int, stochastic: bool) -> None:
    """In rational numbers: the nearest whole number of steps, or one of the two around it."""
    step, clip = Fraction(1, 2 ** (bits - 1)), 1
    delta = np.array(numbers)
    total = np.arange(2**32 - len(numbers), 2**32, dtype=np.uint32)
    out = np.empty_like(total)
    draws = (1, 2, 3) if stochastic else None
    cut = reference.encode_add(total, delta, EncodeNumbers(weight, clip, float(step), 1.0, draws), out)
    assert cut == sum(abs(x) > clip for x in numbers)
    for x, before, after in zip(numbers, total.tolist(), out.tolist(), strict=True):
        units = max(-clip, min(clip, Fraction(x))) / step
        around = {math.floor(units), math.ceil(units)} if stochastic else {round(units)}
        assert after in {(before + weight * whole) % 2**32 for whole in around}
    decoded = np.empty(len(numbers))
    reference.decode(out - total, float(step), decoded)
    signed = [word - 2**32 * (word >= 2**31) for word in (out - total).tolist()]
    assert decoded.tolist() == [float(word * step) for word in signed]


def test_quantising_has_no_bias_and_moves_to_a_neighbour() -> None:
    x = np.random.default_rng(0).standard_normal(8)
    norm, levels, draws = float(np.linalg.norm(x)), 3, 20_000
    out, total = np.empty_like(x), np.zeros_like(x)
    for draw in range(draws):
        reference.quantize(x, QuantizeNumbers(norm, levels, 7, draw, 0, Stream.COMPRESSION), out)
        if draw < 50:
            units = out / (norm / levels)
            np.testing.assert_allclose(units, np.rint(units), atol=1e-12)
            assert (np.abs(out - x) <= norm / levels).all()
        total += out
    share = np.abs(x) * levels / norm % 1.0
    deviation = norm / levels * np.sqrt(share * (1 - share) / draws)
    assert (np.abs(total / draws - x) < 4.5 * deviation + 1e-12).all()  # 4.5 standard deviations, 8 numbers


def test_compressed_vectors() -> None:
    x = np.array([3.0, -5.0, 0.5, 5.0, -0.25, 0.0, 1.0])
    out = np.empty_like(x)
    reference.compress(x, CompressNumbers(TOP_K, 1), 0, 0, 0, out)
    assert out.tolist() == [0, -5, 0, 0, 0, 0, 0]  # the first of two
    reference.compress(x, CompressNumbers(TOP_K, 3), 0, 0, 0, out)
    assert out.tolist() == [3, -5, 0, 5, 0, 0, 0]
    reference.compress(x, CompressNumbers(SIGN), 0, 0, 0, out)
    assert out.tolist() == [2.10714285714285721, -2.10714285714285721, *[2.10714285714285721] * 2, -2.10714285714285721,
                            *[2.10714285714285721] * 2]  # fmt: skip
    reference.compress(x, CompressNumbers(RANDOM_K, 7), 0, 1, 2, out)
    assert out.tolist() == x.tolist()
    reference.compress(np.array([1.00390625, 1.01171875, -3e-3]), CompressNumbers(BFLOAT16), 0, 0, 0, out[:3])
    assert out[:3].tolist() == [1.0, 1.015625, -0.0030059814453125]  # ties to even


def test_a_vector_of_one_number_is_its_own_length() -> None:
    x, out = np.array([-2.5]), np.empty(1)
    for draw in range(20):
        reference.quantize(x, QuantizeNumbers(2.5, 4, 1, draw, 0, Stream.COMPRESSION), out)
        assert out[0] == -2.5
