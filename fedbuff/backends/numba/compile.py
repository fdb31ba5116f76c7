# mypy: allow-untyped-defs, allow-untyped-calls
"""How functions are compiled, and arrays passed so that a call never meets a new type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba as nb
import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F, **options: Any) -> F:
    """njit without the GIL, cached on disk where a folder for that can be written."""
    njit: Any = nb.njit
    try:
        made: F = njit(function, nogil=True, error_model="numpy", cache=True, **options)
    except RuntimeError:  # Numba found no folder for its cache
        made = njit(function, nogil=True, error_model="numpy", **options)
    return made


def reads(array: NDArray[Any]) -> NDArray[Any]:
    """A view that only reads, so that arrays of a user that may and may not be written have one type."""
    view = array.view()
    view.flags.writeable = False
    return view


def or_empty(array: NDArray[Any] | None, dtype: Any, ndim: int = 1) -> NDArray[Any]:
    return reads(np.empty((0,) * ndim, dtype) if array is None else array)
