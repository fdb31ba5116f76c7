"""The constants of the theorem's assumptions, worked out from a problem's own numbers, each with how sure it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..backends.spec import ProblemSpec
from .local import LocalSGD

if TYPE_CHECKING:
    from .base import Problem

__all__ = ["Constants", "Tag", "Value", "constants_of"]

Matrix = NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)
_LARGEST_GRAM = 2000  # beyond it an eigenvalue is bounded, not computed
_PROBED_CLIENTS, _PROBED_ROWS, _PROBES = 32, 64, 8  # what an estimate looks at


class Tag(Enum):
    """How sure a constant is."""

    EXACT = "exact"  # the smallest that will do, to rounding; L is rounded up
    UPPER_BOUND = "upper bound"  # proven, perhaps loose: the truth is not larger
    LOWER_BOUND = "lower bound"  # of f*: the truth is not smaller, so f(w) - f* is at most what it gives
    ESTIMATE = "estimate"  # seen at a few models: the truth may be larger
    INFINITE = "infinite"  # no number will do


@dataclass(frozen=True, slots=True)
class Value:
    value: float
    tag: Tag

    def __repr__(self) -> str:
        return f"{self.value:g} ({self.tag.value})"


@dataclass(frozen=True, slots=True)
class Constants:
    """L, largest over the clients; sigma2, E|gradient of a sample - grad f_i|^2 at the worst client and model;
    gamma2, the mean over clients of |grad f_i - grad f|^2 at the worst model, and gamma2_max, the largest over clients
    in the place of the mean; f_star, the least value of f."""

    L: Value
    sigma2: Value
    gamma2: Value
    gamma2_max: Value
    f_star: Value


_INFINITE = Value(math.inf, Tag.INFINITE)


def constants_of(problem: Problem) -> Constants:
    spec = problem._spec
    if spec.family == "quadratic":
        return _quadratic(spec)
    if len(spec.sizes) > 2 or spec.family == "layers":
        return _estimates(problem)
    return _least_squares(spec) if spec.head == "squared" else _classifier(spec)


def _exact(value: float) -> Value:
    return Value(float(value), Tag.EXACT)


def _at_most(value: float) -> Value:
    return Value(float(value), Tag.UPPER_BOUND)


_F_STAR_OF_A_LOSS = Value(0.0, Tag.LOWER_BOUND)  # losses and regularisers are not negative


def _spread(gradients: Matrix, weight: Matrix) -> tuple[Value, Value]:
    """The weighted mean and the largest of |g_i - mean g|^2, for gradients (clients, dim) that differ by constants."""
    apart = ((gradients - weight @ gradients) ** 2).sum(axis=1)
    return _exact(weight @ apart), _exact(apart.max())


# Quadratics


def _quadratic(spec: ProblemSpec) -> Constants:
    assert spec.center is not None and spec.curvature is not None
    dim, weight, center = spec.dim, spec.client_weight, spec.center.astype(np.float64)
    curvature = spec.curvature.astype(np.float64)
    if (curvature == curvature[0]).all():
        curvature = curvature[:1]
    largest = curvature.max()
    if spec.curvature_form == "dense":
        curvature = curvature.reshape(-1, dim, dim)
        largest = max(_spectral_norm(matrix, dim) for matrix in curvature)
    elif spec.curvature_form == "scalar":
        curvature = np.repeat(curvature, dim, axis=1)

    def times(w: Matrix) -> Matrix:
        """A_i w_i for every client; w is (clients, dim)."""
        if spec.curvature_form == "dense":
            return np.asarray(np.einsum("ijk,ik->ij", np.broadcast_to(curvature, (len(w), dim, dim)), w), np.float64)
        return curvature * w

    if len(curvature) == 1:
        lowest = weight @ center
        gamma2, gamma2_max = _spread(times(center), weight)
    else:
        linear = weight @ times(center)
        mean = np.tensordot(weight, curvature, 1)
        lowest = np.asarray(
            np.linalg.lstsq(np.diag(mean) if mean.ndim == 1 else mean, linear, rcond=None)[0], np.float64
        )
        gamma2 = gamma2_max = _INFINITE
    apart = lowest - center
    return Constants(
        L=_exact(largest),
        sigma2=_exact(spec.noise_variance),
        gamma2=gamma2,
        gamma2_max=gamma2_max,
        f_star=_exact(0.5 * (weight @ (apart * times(apart)).sum(axis=1))),
    )


def _spectral_norm(matrix: Matrix, terms: int) -> float:
    """The largest |eigenvalue| of a symmetric matrix whose entries are sums of so many terms, rounded up.

    LAPACK's eigenvalues are exact for a matrix within a few dim * eps |A| of this one.
    """
    size = float(np.abs(np.linalg.eigvalsh(matrix)).max())
    return size + (terms + 8 * len(matrix)) * _EPS * float(np.abs(matrix).sum(axis=1).max())


# Rows


def _clients(spec: ProblemSpec) -> Iterator[tuple[Matrix, slice]]:
    """Each client's features (rows, those that it uses), ones for the intercept last, and where its rows lie."""
    assert spec.offsets is not None and spec.x is not None
    for begin, end in zip(spec.offsets[:-1].tolist(), spec.offsets[1:].tolist(), strict=True):
        rows = slice(begin, end)
        if spec.family == "sparse":
            assert spec.row_start is not None and spec.column is not None
            first, last = int(spec.row_start[begin]), int(spec.row_start[end])
            used, column = np.unique(spec.column[first:last], return_inverse=True)
            features = np.zeros((end - begin, max(len(used), 1)))
            row = np.repeat(np.arange(end - begin), np.diff(spec.row_start[begin : end + 1]))
            np.add.at(features, (row, column), spec.x[first:last])
        else:
            features = spec.x[rows].astype(np.float64)
        if spec.intercept:
            features = np.column_stack((features, np.ones(len(features))))
        yield features, rows


def _largest_curvature(features: Matrix) -> Value:
    """lambda_max(X' X) / rows, rounded up; beyond a size, the bound |X|_1 |X|_inf or |X|_F^2."""
    rows, columns = features.shape
    if min(rows, columns) > _LARGEST_GRAM:
        size = np.abs(features)
        largest = min(size.sum(axis=0).max() * size.sum(axis=1).max(), (features**2).sum())
        return _at_most(largest * (1.0 + (rows + columns) * _EPS) / rows)
    wide = rows < columns
    gram = features @ features.T if wide else features.T @ features
    return _exact(_spectral_norm(gram, terms=columns if wide else rows) / rows)


def _row_noise(features: Matrix, target: Matrix) -> float:
    """E|gradient of a row - gradient|^2 of least squares at the worst model.

    A row's gradient is x (x' w) - x y. It differs from the mean by more than any number, for some w, unless x x' is the
    same for all rows: one row, or rows that agree up to the sign. Then it is the variance of x y.
    """
    sign = np.where(features @ features[0] < 0, -1.0, 1.0)
    if not (features == sign[:, None] * features[0]).all():
        return math.inf
    pull = features * target[:, None]
    return float(((pull - pull.mean(axis=0)) ** 2).sum(axis=1).mean())


def _least_squares(spec: ProblemSpec) -> Constants:
    assert spec.target is not None
    target, weight = spec.target.astype(np.float64), spec.client_weight
    grams, linear, square, noise = [], [], 0.0, 0.0
    curvatures = []
    for share, (features, rows) in zip(weight, _clients(spec), strict=True):
        y, m = target[rows], len(features)
        grams.append(features.T @ features / m)
        linear.append(features.T @ y / m)
        square += share * float(y @ y) / m
        curvatures.append(_largest_curvature(features))
        noise = max(noise, _row_noise(features, y))
    gram, gradient = np.array(grams), np.array(linear)
    mean = np.tensordot(weight, gram, 1)
    slack = 8 * int(np.diff(spec.offsets if spec.offsets is not None else 0).max()) * _EPS * np.abs(mean).max()
    alike = bool((np.abs(gram - gram[0]) <= slack).all())
    gamma2, gamma2_max = _spread(gradient, weight) if alike else (_INFINITE, _INFINITE)
    hessian, pull = mean + spec.l2 * np.eye(spec.dim), weight @ gradient
    lowest = np.linalg.lstsq(hessian, pull, rcond=None)[0]
    largest = max(curvatures, key=lambda one: (one.value, one.tag == Tag.UPPER_BOUND))
    return Constants(
        L=Value(largest.value + spec.l2, largest.tag),
        sigma2=_exact(noise) if math.isfinite(noise) else _INFINITE,
        gamma2=gamma2,
        gamma2_max=gamma2_max,
        f_star=_exact(max(0.0, 0.5 * float(square + lowest @ hessian @ lowest) - float(pull @ lowest))),
    )


def _has_noise(spec: ProblemSpec) -> bool:
    """Whether a client has more than one row: the gradient of an only row is the client's."""
    assert spec.offsets is not None
    return bool((np.diff(spec.offsets) > 1).any())


def _classifier(spec: ProblemSpec) -> Constants:
    """Logistic and softmax regression. With z the scores and p the probabilities, a row's gradient is (p - y) x'.

    |p - y|^2 <= 1 for one score, 2 for several; the curvature in z is at most 1/4, or 1/2. So a client's |grad| without
    the regularisers, which all clients share, is at most sqrt(that) times the mean |x|, and times
    sqrt(lambda_max(X' X) / rows).
    """
    residual, bend = (1.0, 0.25) if spec.head == "logistic" else (2.0, 0.5)
    largest = noise = 0.0
    steepest = []
    for features, _ in _clients(spec):
        square = (features**2).sum(axis=1)
        curvature = _largest_curvature(features).value
        largest = max(largest, curvature)
        if len(features) > 1:
            noise = max(noise, float(square.mean()))
        steepest.append(math.sqrt(residual * min(float(np.sqrt(square).mean()) ** 2, curvature)))
    size, weight = np.array(steepest), spec.client_weight
    return Constants(
        L=_at_most(bend * largest + spec.l2 + 2.0 * spec.nonconvex),
        sigma2=_at_most(residual * noise) if _has_noise(spec) else _exact(0.0),
        gamma2=_at_most(float(weight @ size**2)) if len(size) > 1 else _exact(0.0),
        gamma2_max=_at_most(float((size + weight @ size).max() ** 2)) if len(size) > 1 else _exact(0.0),
        f_star=_F_STAR_OF_A_LOSS,
    )


# Hidden layers and networks


def _estimates(problem: Problem) -> Constants:
    """What is seen near the first model: no bound for hidden layers is known that says anything."""
    w = problem.init(0)
    rng = np.random.default_rng(0)
    n = problem.n_clients
    clients = np.unique(np.linspace(0, n - 1, min(n, _PROBED_CLIENTS)).astype(int)).tolist()
    radius = 1e-2 * (1.0 + float(np.linalg.norm(w)))
    curvature = noise = 0.0
    gradients = []
    for client in clients:
        here = problem.client_grad(client, w).astype(np.float64)
        gradients.append(here)
        direction = rng.standard_normal(problem.dim)
        for _ in range(_PROBES):  # towards the direction of the largest curvature
            moved = (w + radius * direction / np.linalg.norm(direction)).astype(problem.dtype)
            direction = problem.client_grad(client, moved) - here
            curvature = max(curvature, float(np.linalg.norm(direction)) / radius)
        noise = max(noise, _row_variance(problem, client, w))
    apart = ((np.array(gradients) - problem.grad(w)) ** 2).sum(axis=1)
    return Constants(
        L=Value(curvature, Tag.ESTIMATE),
        sigma2=Value(noise, Tag.ESTIMATE) if _has_noise(problem._spec) else _exact(0.0),
        gamma2=Value(float(apart.mean()), Tag.ESTIMATE) if n > 1 else _exact(0.0),
        gamma2_max=Value(float(apart.max()), Tag.ESTIMATE) if n > 1 else _exact(0.0),
        f_star=_F_STAR_OF_A_LOSS,
    )


def _row_variance(problem: Problem, client: int, w: NDArray[np.floating]) -> float:
    rows = int(problem.n_samples[client])
    one = LocalSGD(steps=1, lr=1.0, batch_size=1)
    seen = np.unique(np.linspace(0, rows - 1, min(rows, _PROBED_ROWS)).astype(int))
    gradients = np.array([problem.delta(w, client, one, batches=[[row]]) for row in seen], np.float64)
    return float(((gradients - gradients.mean(axis=0)) ** 2).sum(axis=1).mean())
