"""Problems and LocalSGD as a user meets them: constructors, layouts, and the local loop against one written by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedbuff as fb

Array = NDArray[Any]

every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def rows(dtype: str = "float64", n: int = 12, features: int = 5) -> tuple[Array, Array, Array]:
    """Rows, real targets, and a client per row: of sizes 2, 7 and the rest, mixed up."""
    rng = np.random.default_rng(3)
    clients = np.repeat([0, 1, 2], [2, 7, n - 9])
    return (
        rng.standard_normal((n, features)).astype(dtype),
        rng.standard_normal(n).astype(dtype),
        rng.permutation(clients),
    )


def problems(dtype: str = "float64") -> dict[str, fb.Problem]:
    X, y, clients = rows(dtype)
    label = np.arange(12) % 3
    rng = np.random.default_rng(4)
    return {
        "least squares": fb.LeastSquares(X, y, clients, l2=0.1, intercept=True),
        "logistic": fb.Logistic(X, y > 0, clients, l2=0.1, nonconvex=0.2),
        "softmax": fb.Softmax(X, label, clients),
        "mlp": fb.MLP(X, label, clients, hidden=(4, 3), activation="tanh"),
        "quadratic": fb.Quadratic(rng.standard_normal((3, 5)).astype(dtype), curvature=rng.random(5)),
    }


def near(got: Any, want: Any, dtype: str, n: int = 400) -> None:
    """Within n roundings of numbers of size 10."""
    assert np.abs(np.asarray(got) - np.asarray(want)).max() <= 10 * n * np.finfo(dtype).eps


@every_dtype
@pytest.mark.parametrize("name", problems())
@pytest.mark.parametrize("extras", [{}, {"momentum": 0.9}, {"weight_decay": 0.2}, {"prox": 0.5}, "all"])
def test_local_sgd_is_the_loop(dtype: str, name: str, extras: Any) -> None:
    problem = problems(dtype)[name]
    if extras == "all":
        extras = {"momentum": 0.5, "weight_decay": 0.1, "prox": 0.3}
    local = fb.LocalSGD(steps=4, lr=0.1, **extras)
    start = np.random.default_rng(5).standard_normal(problem.dim).astype(dtype)
    for client in range(3):
        w, v = start.astype(np.float64), np.zeros(problem.dim)
        for _ in range(4):
            g = problem.client_grad(client, w.astype(dtype)).astype(np.float64)
            g += extras.get("weight_decay", 0) * w + extras.get("prox", 0) * (w - start)
            v = extras.get("momentum", 0) * v + g
            w = w - 0.1 * v
        near(problem.delta(start, client, local), start - w, dtype)


@every_dtype
def test_batches_given_are_means_over_those_rows(dtype: str) -> None:
    X, y, clients = rows(dtype)
    problem = fb.LeastSquares(X, y, clients)
    own = np.flatnonzero(clients == 1)
    batches = np.array([[0, 3, 3], [6, 1, 0]])
    w = start = np.linspace(-1, 1, 5).astype(dtype)
    for batch in batches:
        residual = X[own[batch]] @ w - y[own[batch]]
        w = w - dtype_of(dtype)(0.2) * (X[own[batch]].T @ residual) / 3
    got = problem.delta(start, 1, fb.LocalSGD(steps=2, lr=0.2, batch_size=3), batches=batches)
    near(got, start - w, dtype)
    near(problem.delta(start, 1, fb.LocalSGD(steps=2, lr=0.2), batches=batches), start - w, dtype)


def dtype_of(name: str) -> Any:
    return np.dtype(name).type


def test_batch_sizes_may_differ_by_client() -> None:
    X, y, clients = rows()
    problem = fb.LeastSquares(X, y, clients)
    w = np.ones(5)
    mixed = fb.LocalSGD(steps=3, lr=0.1, batch_size=[1, 5, 2])
    for client, size in enumerate([1, 5, 2]):
        alone = fb.LocalSGD(steps=3, lr=0.1, batch_size=size)
        np.testing.assert_array_equal(
            problem.delta(w, client, mixed, task=4, seed=9), problem.delta(w, client, alone, task=4, seed=9)
        )
    with pytest.raises(ValueError, match=r"^batch_size: expected 3 ints, one per client, got 2$"):
        problem.delta(w, 0, fb.LocalSGD(steps=1, lr=0.1, batch_size=[1, 2]))


def test_draws_are_a_function_of_seed_client_task() -> None:
    X, y, clients = rows()
    problem, local = fb.LeastSquares(X, y, clients), fb.LocalSGD(steps=2, lr=0.1, batch_size=2)
    w = np.ones(5)

    def delta(client: int, **options: int) -> bytes:
        return problem.delta(w, client, local, **options).tobytes()

    first = delta(1, task=3, seed=5)
    assert delta(1, task=3, seed=5) == first
    others = [delta(1, task=4, seed=5), delta(1, task=3, seed=6), delta(2, task=3, seed=5)]
    assert first not in others and len(set(others)) == 3
    assert delta(1, task=2**32 - 1, seed=2**64 - 1) == delta(1, task=2**32 - 1, seed=2**64 - 1)


def test_offsets_and_client_numbers_are_the_same() -> None:
    X, y, clients = rows()
    order = np.argsort(clients, kind="stable")
    by_number = fb.LeastSquares(X, y, clients)
    by_offset = fb.LeastSquares(X[order], y[order], [0, 2, 9, 12])
    in_place = fb.LeastSquares(X[order], y[order], [0, 2, 9, 12], copy=False)
    w = np.ones(5)
    assert by_number.n_samples.tolist() == [2, 7, 3]
    assert not by_number.n_samples.flags.writeable
    for other in (by_offset, in_place):
        assert other.loss(w) == by_number.loss(w)
        np.testing.assert_array_equal(other.grad(w), by_number.grad(w))


def test_client_weights() -> None:
    X, y, clients = rows()
    w = np.ones(5)
    losses = np.array([fb.LeastSquares(X, y, clients).client_loss(i, w) for i in range(3)])
    for given, weights in [("equal", [1, 1, 1]), ("samples", [2, 7, 3]), ([0.0, 3.0, 1.0], [0, 3, 1])]:
        problem = fb.LeastSquares(X, y, clients, client_weights=given)  # type: ignore[arg-type]
        near(problem.loss(w), np.average(losses, weights=weights), "float64")


def test_layout_is_that_of_pytorch() -> None:
    X, _, clients = rows()
    label = np.arange(12) % 3
    problem = fb.MLP(X, label, clients, hidden=(4,))
    rng = np.random.default_rng(1)
    w1, b1 = rng.standard_normal((4, 5)), rng.standard_normal(4)
    w2, b2 = rng.standard_normal((3, 4)), rng.standard_normal(3)
    w = np.concatenate([w1.ravel(), b1, w2.ravel(), b2])
    assert problem.dim == w.size == 39
    scores = np.maximum(X @ w1.T + b1, 0) @ w2.T + b2
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(12), label]
    near(problem.loss(w), np.mean([losses[clients == i].mean() for i in range(3)]), "float64")
    assert problem.accuracy(w) == np.mean(scores.argmax(axis=1) == label)
    assert problem.accuracy(w, (X[:4], label[:4])) == np.mean(scores[:4].argmax(axis=1) == label[:4])


def test_starts() -> None:
    assert not problems()["softmax"].init().any()
    X = np.random.default_rng(0).standard_normal((4, 200)).astype(np.float32)
    for activation, deviation in [("relu", np.sqrt(2 / 200)), ("tanh", np.sqrt(2 / 500))]:
        net = fb.MLP(X, [0, 1, 0, 1], [0, 2, 4], hidden=(300,), activation=activation)  # type: ignore[arg-type]
        w = net.init(seed=3)
        assert w.dtype == np.float32
        first = w[: 200 * 300]
        assert abs(first.mean()) < 4 * deviation / np.sqrt(first.size)
        assert abs(first.std() / deviation - 1) < 0.02
        assert not w[200 * 300 : 200 * 300 + 300].any()
        np.testing.assert_array_equal(w, net.init(seed=3))
        assert (w != net.init(seed=4)).any()


def test_csr_rows_are_dense_rows() -> None:
    class Rows:
        format = "csr"

        def __init__(self, dense: Array) -> None:
            self.shape = dense.shape
            self.indptr = np.concatenate(([0], np.cumsum((dense != 0).sum(axis=1))))
            self.data, self.indices = dense[dense != 0], np.nonzero(dense)[1]

    X, y, clients = rows()
    X[np.abs(X) < 0.7] = 0
    dense = fb.Logistic(X, y > 0, clients, l2=0.1, intercept=True)
    sparse = fb.Logistic(Rows(X), y > 0, clients, l2=0.1, intercept=True)
    w = np.linspace(-1, 1, 6)
    near(sparse.grad(w), dense.grad(w), "float64")
    near(sparse.loss(w), dense.loss(w), "float64")
    assert sparse.accuracy(w) == dense.accuracy(w) == dense.accuracy(w, (Rows(X), y > 0))


@pytest.mark.parametrize(
    ("curvature", "per_client"),
    [
        (2.0, False),
        ([1.0, 2.0], False),
        ([[2.0, 1.0], [1.0, 2.0]], False),
        ([1.0, 0.5, 3.0], True),
        ([[1.0, 2.0], [0.0, 1.0], [3.0, 1.0]], True),
    ],
)
def test_quadratic_forms(curvature: Any, per_client: bool) -> None:
    centers = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])
    problem = fb.Quadratic(centers, curvature, per_client=per_client)
    w = np.array([0.5, -1.0])
    for client in range(3):
        a = np.asarray(curvature, float)[client] if per_client else np.asarray(curvature, float)
        matrix = a if a.ndim == 2 else np.eye(2) * a
        away = w - centers[client]
        near(problem.client_grad(client, w), matrix @ away, "float64", 4)
        near(problem.client_loss(client, w), away @ matrix @ away / 2, "float64", 4)


def test_noise_has_the_variance_that_was_asked_for() -> None:
    problem = fb.Quadratic(np.zeros((1, 50)), noise_variance=4.0)
    w = np.zeros(50)

    def sizes(batch: int | None) -> Array:
        local = fb.LocalSGD(steps=1, lr=1.0, batch_size=batch)
        return np.array([np.sum(problem.delta(w, 0, local, task=t) ** 2) for t in range(400)])

    assert abs(sizes(1).mean() / 4 - 1) < 0.05
    assert abs(sizes(8).mean() / 0.5 - 1) < 0.05
    assert sizes(None).max() == 0


def test_threads_do_not_change_bits() -> None:
    for problem in problems("float32").values():
        w = problem.init() + np.float32(0.1)
        results = {(problem.loss(w, threads=t), problem.grad(w, threads=t).tobytes()) for t in (1, 2, 5)}
        assert len(results) == 1


def test_out_is_where_the_answer_goes() -> None:
    problem = problems()["mlp"]
    w, out = problem.init(1), np.full(problem.dim, np.nan)
    assert problem.grad(w, out=out) is out
    np.testing.assert_array_equal(out, problem.grad(w))
    assert problem.client_grad(0, w, out=out) is out
    np.testing.assert_array_equal(out, problem.client_grad(0, w))
    local = fb.LocalSGD(steps=2, lr=0.1)
    assert problem.delta(w, 1, local, out=out) is out
    np.testing.assert_array_equal(out, problem.delta(w, 1, local))
