"""The rows of a network: images, sequences or vectors of numbers or of bytes, or tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import aligned_copy, as_array, model_dtype
from .._base.checks import real
from ..layers import Embedding
from ..layers._layer import Layer, Shape, Tokens
from .rows import Grouping, dense_rows, is_csr

__all__ = ["Inputs", "inputs_of", "row_shape"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a row is, and the dtype of the model."""

    shape: Shape
    dtype: np.dtype[np.floating]
    n_words: int = 0  # where it has tokens
    scale: float = 1.0  # where it has bytes: b stands for scale * b + shift
    shift: float = 0.0

    @property
    def tensor(self) -> tuple[int, int, int]:
        """The shape as the backends have it."""
        if len(self.shape) == 3:
            return self.shape[0], self.shape[1], self.shape[2]
        return (1, self.shape[0], self.shape[1]) if len(self.shape) == 2 else (self.shape[0], 1, 1)

    def fields(self, X: Any, group: Grouping, copy: bool) -> dict[str, Any]:
        """The rows by client, as fields of the spec."""
        array = as_array("X", X)
        if self.n_words:
            return {"family": "layers", "dtype": self.dtype, "token": _tokens(array, group, copy, self.n_words)}
        if array.dtype == np.uint8:
            rows = _bytes(_flat(array, copy), group, copy)
            return {"family": "layers", "dtype": self.dtype, "byte": rows, "scale": self.scale, "shift": self.shift}
        return {"family": "layers", "dtype": self.dtype, "x": dense_rows(_flat(array, copy), group, copy)}


def inputs_of(
    X: Any, layers: Sequence[Layer], dtype: Any = None, scale: float | None = None, shift: float | None = None
) -> Inputs:
    """What the rows of X are, where the first of these layers takes them."""
    first = layers[0]
    shape = row_shape(X, tokens=isinstance(first, Embedding), sequences=first._takes == "sequence")
    given = as_array("X", X).dtype
    if given != np.uint8 or isinstance(first, Embedding):
        for name, value in (("scale", scale), ("shift", shift)):
            if value is not None:
                what = "tokens" if isinstance(first, Embedding) else given
                raise ValueError(f"{name}: expected X of uint8 with it, got X of {what}")
    if isinstance(first, Embedding):
        return Inputs(shape, model_dtype("dtype", "float32" if dtype is None else dtype), first.n_words)
    if given == np.uint8:
        kind = model_dtype("dtype", "float32" if dtype is None else dtype)
        return Inputs(
            shape,
            kind,
            scale=1 / 255 if scale is None else real("scale", scale),
            shift=0.0 if shift is None else real("shift", shift),
        )
    if dtype is not None and model_dtype("dtype", dtype) != given:
        raise TypeError(f"dtype: expected {given}, as X, got {np.dtype(dtype)}; pass X.astype(np.{np.dtype(dtype)})")
    return Inputs(shape, model_dtype("X", given))


def row_shape(X: Any, *, tokens: bool = False, sequences: bool = False) -> Shape:
    """Of a row of X: (channels, height, width), (time, features), or (features,); or of tokens, (time,)."""
    if is_csr(X):
        raise TypeError("X: Network takes dense rows; pass X.toarray()")
    array = as_array("X", X)
    if tokens:
        if array.dtype.kind not in "iu":
            raise TypeError(f"X: expected integers, as Embedding takes tokens, got {array.dtype}")
        if array.ndim != 2:
            raise ValueError(f"X: expected tokens of shape (rows, time), got {array.shape}")
    else:
        if array.dtype.kind in "iu" and array.dtype != np.uint8:
            raise TypeError(
                f"X: expected float32, float64 or uint8, got {array.dtype}; rows of tokens begin with an Embedding"
            )
        if array.dtype != np.uint8:
            model_dtype("X", array.dtype)
        if array.ndim not in (2, 3, 4) or (sequences and array.ndim != 3):
            wanted = "(rows, channels, height, width), (rows, height, width) or (rows, features)"
            raise ValueError(
                f"X: expected shape {'(rows, time, features)' if sequences else wanted}, got {array.shape}"
            )
    if 0 in array.shape:
        raise ValueError(f"X: expected at least one row and one number in each, got shape {array.shape}")
    if tokens:
        return Tokens(array.shape[1:])
    return (1, *array.shape[1:]) if array.ndim == 3 and not sequences else array.shape[1:]


def _flat(array: NDArray[Any], copy: bool) -> NDArray[Any]:
    """(rows, features)."""
    if not copy and not array.flags.c_contiguous:
        raise ValueError("X: expected C-contiguous, aligned rows with copy=False")
    return array.reshape(len(array), -1)


def _bytes(array: NDArray[Any], group: Grouping, copy: bool) -> NDArray[np.uint8]:
    return aligned_copy(array, group.order) if copy else array


def _tokens(array: NDArray[Any], group: Grouping, copy: bool, n_words: int) -> NDArray[np.int32]:
    wrong = (array < 0) | (array >= n_words)
    if wrong.any():
        row = int(np.argmax(wrong.any(axis=1)))
        raise ValueError(f"X: row {row}: expected tokens from 0 to {n_words - 1}, got {array[row][wrong[row]][0]}")
    order = group.order
    return np.array(array if order is None else array[order], np.int32, order="C", copy=copy or None)
