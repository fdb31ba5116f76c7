"""`problem.constants()`: at values worked out by hand, and against gradients taken at many models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fedbuff as fb

Tag = fb.theory.Tag


def heterogeneity(problem: fb.Problem, w: Any) -> np.ndarray:
    """|grad f_i - grad f|^2 of every client."""
    full = problem.grad(w)
    return np.array([((problem.client_grad(i, w) - full) ** 2).sum() for i in range(problem.n_clients)])


def test_quadratic_by_hand() -> None:
    # centers 0 and 4: mean 2; A = 1/2, so each gradient is 1 off the mean's, and f* = (1/2) (1/2) 4
    found = fb.Quadratic(np.array([[0.0], [4.0]]), 0.5, noise_variance=3.0).constants()
    assert [v.value for v in (found.L, found.sigma2, found.gamma2, found.gamma2_max, found.f_star)] == [0.5, 3, 1, 1, 1]
    assert {v.tag for v in (found.L, found.sigma2, found.gamma2, found.gamma2_max, found.f_star)} == {Tag.EXACT}
    assert repr(found.L) == "0.5 (exact)"
    # diag(1, 2): |A (c_i - mean)|^2 = 1 + 0, 1 + 16, ... for c = (1,0), (-1,2), (0,-2), mean 0
    found = fb.Quadratic(np.array([[1.0, 0.0], [-1.0, 2.0], [0.0, -2.0]]), [1.0, 2.0]).constants()
    assert (found.L.value, found.gamma2_max.value) == (2.0, 17.0)
    assert found.gamma2.value == pytest.approx((1 + 17 + 16) / 3)
    assert found.f_star.value == pytest.approx((1 / 2) * (1 + (1 + 8) + 8) / 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dense_quadratic(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    root = rng.normal(size=(6, 6))
    problem = fb.Quadratic(rng.normal(size=(5, 6)).astype(dtype), root @ root.T)
    found = problem.constants()
    A = problem._spec.curvature.reshape(6, 6).astype(float)  # type: ignore[union-attr]
    largest = np.linalg.eigvalsh(A)[-1]
    assert largest <= found.L.value <= largest * (1 + 1e-12) and found.L.tag == Tag.EXACT
    for w in rng.normal(size=(3, 6)).astype(dtype):  # the same at every model
        assert heterogeneity(problem, w).mean() == pytest.approx(found.gamma2.value, rel=1e-4)
        assert heterogeneity(problem, w).max() == pytest.approx(found.gamma2_max.value, rel=1e-4)
    lowest = problem._spec.center.mean(axis=0)  # type: ignore[union-attr]
    assert problem.loss(lowest) == pytest.approx(found.f_star.value, rel=1e-5)


def test_own_curvatures() -> None:
    centers = np.random.default_rng(2).normal(size=(3, 2))
    for curvature in (
        [0.5, 1.0, 2.0],
        [[0.5, 1.0], [1.0, 1.0], [0.1, 3.0]],
        np.array([1.0, 2, 3])[:, None, None] * np.eye(2),
    ):
        problem = fb.Quadratic(centers, curvature, per_client=True)
        found = problem.constants()
        assert found.gamma2 == found.gamma2_max == fb.theory.Value(math.inf, Tag.INFINITE)
        assert found.L.value == pytest.approx(np.max(curvature))
        lowest = centers.mean(axis=0)
        for _ in range(500):
            lowest -= 0.3 * problem.grad(lowest)
        assert problem.loss(lowest) == pytest.approx(found.f_star.value, rel=1e-9)
    alike = fb.Quadratic(centers, [2.0] * 3, per_client=True).constants()
    assert alike == fb.Quadratic(centers, 2.0).constants()


@pytest.mark.parametrize("intercept", [False, True])
def test_least_squares(intercept: bool) -> None:
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(30, 4)), rng.normal(size=30)
    problem = fb.LeastSquares(X, y, np.repeat([0, 1, 2], 10), l2=0.1, intercept=intercept)
    found = problem.constants()
    assert found.sigma2.tag == found.gamma2.tag == Tag.INFINITE
    rows = np.column_stack((X, np.ones(30))) if intercept else X
    largest = max(np.linalg.eigvalsh(part.T @ part)[-1] / 10 for part in np.split(rows, 3)) + 0.1
    assert largest <= found.L.value <= largest * (1 + 1e-12) and found.L.tag == Tag.EXACT
    best = np.linalg.solve(rows.T @ rows / 30 + 0.1 * np.eye(rows.shape[1]), rows.T @ y / 30)
    assert problem.loss(best) == pytest.approx(found.f_star.value, rel=1e-12)
    # the same rows for every client, in another order: the Gram matrices agree, the targets do not
    order = np.concatenate([rng.permutation(10) for _ in range(3)])
    alike = fb.LeastSquares(X[order], y, np.repeat([0, 1, 2], 10), intercept=intercept)
    known = alike.constants()
    assert (known.sigma2.tag, known.gamma2.tag) == (Tag.INFINITE, Tag.EXACT)
    for w in rng.normal(size=(3, alike.dim)):
        assert heterogeneity(alike, w).mean() == pytest.approx(known.gamma2.value)
        assert heterogeneity(alike, w).max() == pytest.approx(known.gamma2_max.value)


def as_csr(X: Any) -> Any:
    return pytest.importorskip("scipy.sparse").csr_array(X)


def classifiers() -> list[Any]:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(40, 5)) * (rng.random((40, 5)) < 0.5)
    y = rng.integers(0, 2, 40)
    owner = np.repeat(np.arange(4), 10)
    options: Any = {"l2": 0.2, "nonconvex": 0.3}
    return [
        pytest.param(lambda: fb.Logistic(X, y, owner, **options), id="dense"),
        pytest.param(lambda: fb.Logistic(as_csr(X), y, owner, **options, intercept=True), id="sparse"),
        pytest.param(lambda: fb.Softmax(X, rng.integers(0, 3, 40), owner, l2=0.2), id="softmax"),
    ]


@pytest.mark.parametrize("make", classifiers())
def test_classifiers_never_exceed_their_bounds(make: Any) -> None:
    problem = make()
    found = problem.constants()
    assert {v.tag for v in (found.L, found.sigma2, found.gamma2, found.gamma2_max)} == {Tag.UPPER_BOUND}
    assert found.f_star == fb.theory.Value(0.0, Tag.LOWER_BOUND)
    rng = np.random.default_rng(5)
    one = fb.LocalSGD(steps=1, lr=1.0, batch_size=1)
    for size in (0.0, 0.1, 1.0, 10.0):
        w = size * rng.normal(size=problem.dim)
        step = rng.normal(size=problem.dim) * 1e-3
        for i in range(problem.n_clients):
            change = problem.client_grad(i, w + step) - problem.client_grad(i, w)
            assert np.linalg.norm(change) <= found.L.value * np.linalg.norm(step)
            rows = np.array([problem.delta(w, i, one, batches=[[r]]) for r in range(10)])
            assert ((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean() <= found.sigma2.value
        assert heterogeneity(problem, w).mean() <= found.gamma2.value
        assert heterogeneity(problem, w).max() <= found.gamma2_max.value


def test_logistic_by_hand() -> None:
    # client 0: x = 1, 3; client 1: x = 2, 2
    problem = fb.Logistic(np.array([[1.0], [3.0], [2.0], [2.0]]), [0, 1, 0, 1], [0, 0, 1, 1], l2=0.5, nonconvex=0.25)
    found = problem.constants()
    assert found.L.value == pytest.approx(10 / 8 + 0.5 + 2 * 0.25, rel=1e-12)
    assert found.sigma2.value == 5.0
    assert found.gamma2.value == pytest.approx((4 + 4) / 2)
    assert problem.constants().gamma2_max.value == pytest.approx((2 + 2) ** 2)


def test_a_large_gram_is_bounded_from_above(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(6).normal(size=(30, 12))
    problem = fb.LeastSquares(X, np.zeros(30), np.zeros(30, int))
    exact = problem.constants().L
    monkeypatch.setattr("fedbuff._problems.constants._LARGEST_GRAM", 5)
    bounded = problem.constants().L
    assert exact.value < bounded.value <= (X**2).sum() / 30 * (1 + 1e-12)
    assert (exact.tag, bounded.tag) == (Tag.EXACT, Tag.UPPER_BOUND)


def test_a_net_is_estimated_and_says_so() -> None:
    rng = np.random.default_rng(7)
    X = rng.normal(size=(60, 5)).astype(np.float32)
    problem = fb.MLP(X, rng.integers(0, 3, 60), np.repeat(np.arange(6), 10), hidden=(8,), activation="tanh")
    found = problem.constants()
    assert {found.L.tag, found.sigma2.tag, found.gamma2.tag, found.gamma2_max.tag} == {Tag.ESTIMATE}
    assert found.f_star == fb.theory.Value(0.0, Tag.LOWER_BOUND)
    w = problem.init()
    step = (1e-2 * rng.normal(size=problem.dim)).astype(np.float32)
    change = np.linalg.norm(problem.client_grad(0, w + step) - problem.client_grad(0, w))
    assert found.L.value > change / np.linalg.norm(step)  # a random direction is not the steepest
    assert heterogeneity(problem, w).mean() == pytest.approx(found.gamma2.value, rel=1e-4)
    assert found == problem.constants()


def row_variance(problem: fb.Problem, client: int, w: Any) -> float:
    """E|gradient of a row - grad f_i|^2, from the gradients of all rows."""
    one = fb.LocalSGD(steps=1, lr=1.0, batch_size=1)
    rows = np.array([problem.delta(w, client, one, batches=[[r]]) for r in range(problem.n_samples[client])])
    return float(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean())


def test_least_squares_with_one_row_per_client_has_no_noise() -> None:
    rng = np.random.default_rng(8)
    found = fb.LeastSquares(rng.normal(size=(4, 3)), rng.normal(size=4), np.arange(4)).constants()
    assert found.sigma2 == fb.theory.Value(0.0, Tag.EXACT) and found.gamma2.tag == Tag.INFINITE
    problem = fb.LeastSquares(np.ones((2, 1)), np.array([0.0, 2.0]), [0, 1])
    assert fb.theory.verify(problem, Q=1, K=1, tau=0, b=1, seeds=2, w0=np.ones(1)).plan.bound.total < math.inf


@pytest.mark.parametrize("intercept", [False, True])
def test_least_squares_whose_rows_agree_up_to_sign_has_a_bounded_noise(intercept: bool) -> None:
    # with an intercept, -x is another row: (x, 1) and (-x, 1)
    sign = np.array([1.0, 1.0, 1.0, 1.0] if intercept else [1.0, -1.0, -1.0, 1.0])
    X = np.repeat([[1.0, 2.0], [3.0, 0.5]], 2, axis=0) * sign[:, None]
    y = np.array([1.0, 4.0, 0.0, 2.0])
    problem = fb.LeastSquares(X, y, [0, 0, 1, 1], intercept=intercept, l2=0.1)
    found = problem.constants().sigma2
    assert found.tag == Tag.EXACT
    for w in np.random.default_rng(9).normal(size=(3, problem.dim)):  # the same at every model
        assert max(row_variance(problem, i, w) for i in range(2)) == pytest.approx(found.value)
    if not intercept:
        other = fb.LeastSquares(X, y, [0, 0, 1, 1], intercept=True)
        assert other.constants().sigma2.tag == Tag.INFINITE


def test_one_row_per_client_or_one_client_is_exact_in_every_family() -> None:
    rng = np.random.default_rng(10)
    X, two, three = rng.normal(size=(6, 3)), np.array([0, 1] * 3), np.array([0, 1, 2] * 2)
    none = fb.theory.Value(0.0, Tag.EXACT)
    makers: list[Any] = [
        lambda owner: fb.Logistic(X, two, owner),
        lambda owner: fb.Softmax(X, three, owner),
        lambda owner: fb.MLP(X, three, owner, hidden=(4,)),
        lambda owner: fb.LeastSquares(X, X[:, 0], owner),
    ]
    for make in makers:
        assert make(np.arange(6)).constants().sigma2 == none
        alone = make(np.zeros(6, int)).constants()
        assert alone.gamma2 == alone.gamma2_max == none and alone.sigma2 != none
    mixed = fb.Logistic(X, two, [0, 0, 1, 2, 3, 4]).constants().sigma2  # only client 0 has noise
    assert mixed == fb.theory.Value(float((X[:2] ** 2).sum(axis=1).mean()), Tag.UPPER_BOUND)
