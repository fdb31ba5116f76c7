"""One pass over the updates of a buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import backends
from .._base.arrays import (
    as_array,
    as_vector,
    model_dtype,
    to_array,
)
from .._base.checks import count, list_of, number

__all__ = ["aggregate"]


def aggregate(
    w: Any,
    deltas: Sequence[Any],
    weights: ArrayLike | None = None,
    *,
    lr: float = 1.0,
    out: NDArray[np.floating] | None = None,
    threads: int = 1,
) -> NDArray[np.floating]:
    """w - lr * sum_k weights[k] * deltas[k], in one pass over memory, added in the order of k.

    >>> import numpy as np, fedbuff as fb
    >>> fb.aggregate(np.zeros(2), [np.ones(2), np.array([1.0, 3.0])], lr=0.5)
    array([-1., -2.])

    The same bits as adding the deltas to a `DeltaBuffer` one by one and stepping, on any number of threads; several
    take stretches of the vectors in turn. `out` may be `w`.
    """
    array = as_array("w", w)
    dtype = model_dtype("w", array.dtype)
    model = as_vector("w", array, array.size, dtype)
    given = list_of("deltas", deltas, "a sequence of vectors")
    views = [as_vector(f"deltas[{k}]", delta, model.size, dtype) for k, delta in enumerate(given)]
    factors = np.ones(len(views), dtype) if weights is None else to_array("weights", weights, np.float64).astype(dtype)
    if factors.shape != (len(views),):
        raise ValueError(f"weights: expected {len(views)} numbers, one for each of deltas, got shape {factors.shape}")
    if not np.isfinite(factors).all():
        raise ValueError(f"weights: number {int(np.argmin(np.isfinite(factors)))} is not finite")
    target = np.empty_like(model) if out is None else as_vector("out", out, model.size, dtype)
    if not target.flags.writeable:
        raise ValueError("out: read-only; pass an array that may be written")
    if any(np.may_share_memory(target, view) for view in views):
        raise ValueError("out: shares memory with a delta; pass another array")
    backends.current().aggregate(model, views, factors, number("lr", lr), target, count("threads", threads))
    return target if out is None else out
