"""Quadratics with a known minimum."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.arrays import (
    aligned_copy,
    all_finite,
    as_array,
    model_dtype,
    to_array,
)
from .._base.checks import number
from ..backends.spec import ProblemSpec
from .base import ClientWeights, Problem, client_weights_of

__all__ = ["Quadratic"]


class Quadratic(Problem):
    """f_i(w) = (w - c_i)' A (w - c_i) / 2 with Gaussian gradient noise: its gradients are unbounded, its answers known.

    >>> import numpy as np, fedbuff as fb
    >>> problem = fb.Quadratic(np.array([[0.0, 0.0], [2.0, 0.0]]), curvature=0.5)
    >>> problem.grad(np.array([3.0, 1.0]))
    array([1. , 0.5])

    centers         (clients, dim), float32 or float64
    curvature       A, positive semidefinite: a number, a diagonal (dim) or a matrix (dim, dim); with
                    per_client=True one of these for each client, along a first axis
    noise_variance  E|xi|^2 of the noise of one sample; a batch of b has noise_variance / b, batch_size=None none
    """

    def __init__(
        self,
        centers: Any,
        curvature: ArrayLike = 1.0,
        *,
        per_client: bool = False,
        noise_variance: float = 0.0,
        client_weights: ClientWeights = "equal",
    ) -> None:
        given = as_array("centers", centers)
        dtype = model_dtype("centers", given.dtype)
        if given.ndim != 2 or given.size == 0:
            raise ValueError(f"centers: expected shape (clients, dim), got {given.shape}")
        if not all_finite(given):
            raise ValueError(f"centers: client {int(np.argmin(np.isfinite(given).all(axis=1)))} is not finite")
        n_clients, dim = given.shape
        form, matrices = _curvature(curvature, n_clients, dim, per_client)
        samples = np.ones(n_clients, np.int64)
        spec = ProblemSpec(
            family="quadratic",
            dtype=dtype,
            n_clients=n_clients,
            dim=dim,
            client_weight=client_weights_of(client_weights, samples),
            center=aligned_copy(given),
            curvature=aligned_copy(matrices.astype(dtype)),
            curvature_form=form,
            noise_variance=number("noise_variance", noise_variance),
        )
        self._set(spec, samples)


def _curvature(
    given: ArrayLike, n_clients: int, dim: int, per_client: bool
) -> tuple[Literal["scalar", "diagonal", "dense"], NDArray[np.float64]]:
    array = to_array("curvature", given, np.float64)
    if per_client:
        if array.ndim == 0 or array.shape[0] != n_clients:
            raise ValueError(f"curvature: per_client=True expects a first axis of {n_clients}, got shape {array.shape}")
    else:
        array = array[np.newaxis]
    forms: dict[tuple[int, ...], Literal["scalar", "diagonal", "dense"]] = {
        (): "scalar", (dim,): "diagonal", (dim, dim): "dense",
    }  # fmt: skip
    if array.shape[1:] not in forms:
        raise ValueError(
            f"curvature: expected a number, ({dim},) or ({dim}, {dim}){' per client' if per_client else ''}, "
            f"got shape {np.shape(given)}"
        )
    form = forms[array.shape[1:]]
    if not np.isfinite(array).all():
        raise ValueError("curvature: expected finite numbers")
    if form == "dense":
        if not np.allclose(array, np.swapaxes(array, 1, 2), rtol=1e-6, atol=0):
            raise ValueError("curvature: expected symmetric matrices")
        smallest = np.linalg.eigvalsh(array)
        if (smallest[:, 0] < -1e-6 * np.abs(smallest).max(axis=1)).any():
            raise ValueError(f"curvature: expected eigenvalues >= 0, got {smallest.min():.3g}")
    elif array.min() < 0:
        raise ValueError(f"curvature: expected numbers >= 0, got {array.min():.3g}")
    return form, array.reshape(len(array), -1)
