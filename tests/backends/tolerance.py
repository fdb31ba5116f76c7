"""How closely the backends agree with the reference: the only place where a tolerance is written.

exact         the same bits (0 and -0, and any two NaNs, are the same)
ulp(n)        n units in the last place, elementwise
backward(c)   |error| <= c n eps sum|terms|, n the length of the longest sum and eps that of the dtype
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class Exact:
    def check(self, got: ArrayLike, want: ArrayLike) -> None:
        np.testing.assert_array_equal(got, want, strict=True)


@dataclass(frozen=True)
class Ulp:
    n: int

    def check(self, got: Floats, want: Floats) -> None:
        """`want` may be more precise than `got`."""
        assert got.shape == want.shape
        error = np.abs(got.astype(np.float64) - want)
        allowed = self.n * np.spacing(np.abs(want).astype(got.dtype)).astype(np.float64)
        _within(error, allowed, got, want)


@dataclass(frozen=True)
class Backward:
    c: float

    def allowed(self, terms: Any, n: int, dtype: Any) -> NDArray[np.float64]:
        return np.asarray(self.c * n * np.finfo(dtype).eps * np.asarray(terms, np.float64))

    def check(self, got: ArrayLike, want: ArrayLike, *, terms: ArrayLike, n: int, dtype: Any) -> None:
        """`terms` is sum|terms| of each element; `want` is in float64."""
        got, want = np.asarray(got), np.asarray(want)
        assert got.shape == want.shape == np.shape(terms)
        error = np.abs(got.astype(np.float64) - want)
        _within(error, self.allowed(terms, n, dtype), got, want)


def _within(error: NDArray[Any], allowed: NDArray[Any], got: NDArray[Any], want: NDArray[Any]) -> None:
    wrong = np.argwhere(~(error <= allowed))
    if len(wrong):
        worst = tuple(wrong[0])
        raise AssertionError(
            f"{len(wrong)} of {error.size} differ; first at {worst}: got {got[worst]!r}, want {want[worst]!r}, "
            f"error {error[worst]:.3g}, allowed {allowed[worst]:.3g}"
        )


# The class of every kernel.
PHILOX = Exact()
BATCH_ROWS = Exact()
NORMALS = Exact()
COUNT_CORRECT = Exact()  # but for rows whose scores are in doubt
FINITE = Exact()
LOCAL_SGD = Backward(0.125)  # one step at a time, from equal states
CLIENT_GRADIENT = Backward(0.125)
GRADIENT = Backward(0.125)
IN_DOUBT = Backward(2.0)  # a score or a relu's input this close to a switch may fall on either side
ACCUMULATE = Backward(1.0)
AGGREGATE = Backward(1.0)
SGD_STEP = Backward(1.0)
ADAM_STEP = Backward(1.0)
OPTIMIZER_STEP = Backward(1.0)
ENCODE_ADD = Exact()
ADD_WORDS = Exact()
DECODE = Exact()
QUANTIZE = Exact()
COMPRESS = Exact()  # qsgd: with the same norm
DOT = Backward(1.0)  # eps of float64, whatever the vectors are
PREFIX = Exact()  # steps=q is the beginning of steps=Q; outputs that alias an input change nothing
