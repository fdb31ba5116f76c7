# mypy: allow-untyped-defs, allow-untyped-calls
"""How functions are compiled and kept, and arrays passed so that a call never meets a new type."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba as nb
import numpy as np
from numba import extending
from numba.core.event import Listener, register
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])

intrinsic: Any = extending.intrinsic  # whose type has the arguments of the function that makes the code


class _Notice(Listener):
    """Says once, on a terminal, that something is compiled."""

    def __init__(self) -> None:
        self._said = False

    def on_start(self, event: Any) -> None:
        ours = (event.data["dispatcher"].py_func.__module__ or "").startswith(__package__)
        if ours and not self._said and sys.stderr is not None and sys.stderr.isatty():
            self._said = True
            print("fedbuff: Numba compiles, which is kept on disk; `fedbuff warmup` does all of it", file=sys.stderr)

    def on_end(self, event: Any) -> None:
        pass


register("numba:compile", _Notice())

FAST = {"reassoc", "contract", "nsz"}  # sums in the order, and with the products fused, that suit the CPU


@cache
def sources() -> str:
    """A hash of all sources that compiled code is made of."""
    package = Path(__file__).parents[1]
    files = sorted([*(package / "numba").glob("*.py"), *(package / "python").glob("*.py")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _forgiving(load: Callable[[], Any]) -> Callable[[], Any]:
    """An index that other sources left, with types of modules that are gone, counts as empty."""

    def load_index() -> Any:
        try:
            return load()
        except (ImportError, AttributeError):
            return {}

    return load_index


def compiled(function: F, **options: Any) -> F:
    """njit without the GIL, cached on disk where a folder for that can be written.

    Numba takes a function from the disk as long as the function's own file is what it was; here all sources must be,
    since compiled functions contain those that they call.
    """
    njit: Any = nb.njit
    try:
        made: Any = njit(function, nogil=True, error_model="numpy", cache=True, **options)
    except RuntimeError:  # Numba found no folder for its cache
        made = njit(function, nogil=True, error_model="numpy", **options)
    else:
        file = made._cache._cache_file
        file._source_stamp = (file._source_stamp, sources())
        file._load_index = _forgiving(file._load_index)
    result: F = made
    return result


def helper(function: F, **options: Any) -> F:
    """`compiled`, for what only compiled code calls: without the code for calls from Python, which takes a while to
    make where arguments hold many arrays."""
    return compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)


def inlined(function: F, **options: Any) -> F:
    """`helper`, and put into its callers by LLVM.

    Numba passes seven words for an array: a call with many arrays costs more than the work on a small model. Its own
    inlining would count references of all of them.
    """
    return helper(function, forceinline=True, **options)


def reads(array: NDArray[Any]) -> NDArray[Any]:
    """A view that only reads, so that arrays of a user that may and may not be written have one type."""
    view = array.view()
    view.flags.writeable = False
    return view


def or_empty(array: NDArray[Any] | None, dtype: Any, ndim: int = 1) -> NDArray[Any]:
    return reads(np.empty((0,) * ndim, dtype) if array is None else array)
