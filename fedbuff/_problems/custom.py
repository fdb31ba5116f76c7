"""A problem whose gradient is a compiled function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import backends
from .._base.addresses import address_of
from .._base.arrays import as_vector, model_dtype, to_array
from .._base.checks import count, seed_of
from ..backends.spec import CompiledBackend
from .shown import as_html, as_text

__all__ = ["Custom", "samples_of"]

Floats = NDArray[np.floating[Any]]


def samples_of(n_samples: Any) -> NDArray[np.int64]:
    """Rows per client, as a user gives them."""
    samples = to_array("n_samples", n_samples).copy()
    if samples.ndim != 1 or samples.size == 0 or samples.dtype.kind not in "iu":
        raise TypeError("n_samples: expected one int per client")
    if samples.min() < 1:
        raise ValueError(f"n_samples: client {int(np.argmin(samples))} has {samples.min()}; expected at least 1")
    samples = samples.astype(np.int64)
    samples.flags.writeable = False
    return samples


class Custom:
    """A problem whose gradient is a compiled function; it runs inside the engine, on all threads, without Python.

    `gradient` is an address (int), anything with an `address` (a `numba.cfunc`), or a capsule that holds the pointer:

        int32_t gradient(int64_t client, int64_t n_rows, const int64_t* rows,
                         const T* w, T* gradient_out, void* context)

    It writes the mean gradient over n_rows rows, numbered within the client; it returns 0, or a code that ends the
    replay with an error. Many threads call it at once. T is `dtype`; `context` is an address, or an array that is kept
    alive. `loss` and `accuracy` are Python functions of w, for the metrics that need them. It needs the cpp backend.
    """

    def __init__(
        self,
        gradient: Any,
        *,
        dim: int,
        n_samples: Any,
        dtype: DTypeLike = np.float32,
        context: Any = 0,
        loss: Callable[[Floats], float] | None = None,
        accuracy: Callable[[Floats], float] | None = None,
    ) -> None:
        self._keep = (gradient, context)
        self._gradient = address_of("gradient", gradient)
        if self._gradient == 0:
            raise ValueError("gradient: expected the address of a function, got 0")
        self._context = address_of("context", context)
        self.dim = count("dim", dim)
        self.dtype = model_dtype("dtype", dtype)
        self.n_samples = samples_of(n_samples)
        self.loss, self.accuracy = loss, accuracy

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    @property
    def n_clients(self) -> int:
        return len(self.n_samples)

    def init(self, seed: int = 0) -> Floats:
        """Zeros."""
        seed_of(seed)
        return np.zeros(self.dim, self.dtype)

    def grad(self, w: Any) -> Floats:
        """The mean over clients of their full gradients at w."""
        model = as_vector("w", w, self.dim, self.dtype)
        out = np.empty(self.dim, self.dtype)
        share = np.full(self.n_clients, 1.0 / self.n_clients)
        self._backend().custom_gradient(*self.compiled(), share, model, out)
        return out

    def check_backend(self) -> None:
        """Refuses backends that cannot call a compiled function."""
        self._backend()

    def compiled(self) -> tuple[int, int, NDArray[np.int64]]:
        """The gradient as the engine takes it."""
        self._backend()
        return self._gradient, self._context, self.n_samples

    @staticmethod
    def _backend() -> CompiledBackend:
        compiled = backends.compiled()
        if compiled is None:
            raise ValueError(f"problem: Custom needs the cpp backend, and {backends.current().name} runs")
        return compiled
