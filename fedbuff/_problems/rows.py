"""Rows grouped by client: dense, sparse, weights."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import (
    aligned_copy,
    all_finite,
    as_array,
    model_dtype,
    pick_lists,
    to_array,
)
from .._base.checks import number
from ..backends.spec import ProblemSpec
from .base import INT32_MAX, ClientWeights, Problem, client_weights_of


class RowsProblem(Problem):
    """Problems made of rows, features and targets."""

    _group: Grouping

    def _prepare(
        self,
        X: Any,
        y: Any,
        clients: Any,
        client_weights: ClientWeights,
        copy: bool,
        l2: float,
    ) -> dict[str, Any]:
        """Checks what all such problems are given; the shared fields of the spec."""
        n_rows, n_features = self._size(X)
        if n_rows == 0 or n_features == 0:
            raise ValueError(f"X: expected at least one row and one feature, got shape {(n_rows, n_features)}")
        if n_features > INT32_MAX:
            raise ValueError(f"X: expected at most {INT32_MAX} features, got {n_features}")
        self._group = Grouping(clients, n_rows, copy)
        shape = to_array("y", y).shape
        if shape != (n_rows,):
            raise ValueError(f"y: expected shape ({n_rows},), one target per row, got {shape}")
        samples = np.diff(self._group.offsets)
        return {
            "n_clients": len(samples),
            "client_weight": client_weights_of(client_weights, samples),
            "offsets": self._group.offsets,
            "l2": number("l2", l2),
            **self._rows(X, copy),
        }

    def _size(self, X: Any) -> tuple[int, int]:
        """How many rows and features X has, where it has a valid dtype and shape."""
        n_rows, n_features = X.shape if is_csr(X) else dense(X).shape
        return n_rows, n_features

    def _rows(self, X: Any, copy: bool) -> dict[str, Any]:
        """The spec's fields that hold the rows in the order of the clients, its family and its dtype."""
        if is_csr(X):
            fields = _csr_fields(X, self._group, copy)
            return {"family": "sparse", "dtype": fields["x"].dtype, **fields}
        rows = dense_rows(X, self._group, copy)
        return {"family": "net", "dtype": rows.dtype, "x": rows}

    def _targets(self, y: NDArray[Any], dtype: Any, copy: bool) -> NDArray[Any]:
        order = self._group.order
        return np.array(y if order is None else y[order], dtype, order="C", copy=copy or None)


class Classifier(RowsProblem):
    classes: NDArray[Any]

    def accuracy(self, w: Any, data: tuple[Any, Any] | None = None) -> float:
        """The share of rows put in the right class: of this problem's rows, or of held-out `data` = (X, y)."""
        model = self._model(w)
        if data is None:
            n = int(self._samples.sum())
            return self.bound.count_correct(0, n, model) / n
        return self.held_out(*data, copy=False).accuracy(model)

    def held_out(self, X: Any, y: Any, *, copy: bool = True) -> Self:
        """The same model over other rows, all of one client: to evaluate on data that nobody trains on."""
        labels = to_array("y", y)
        n = len(labels) if labels.ndim else 0
        if n == 0:
            raise ValueError("y: expected at least one row")
        position = np.searchsorted(self.classes, labels)
        known = self.classes[np.minimum(position, len(self.classes) - 1)] == labels
        if not known.all():
            raise ValueError(f"y: class {labels[np.argmin(known)]!r} is not one of this problem's")
        other = object.__new__(type(self))
        other._like(self)
        fields = other._prepare(X, labels, np.zeros(n, np.int64), "equal", copy, 0.0)
        other.classes = self.classes
        other._finish(fields, position, self._spec)
        if other.dim != self.dim or other.dtype != self.dtype:
            raise ValueError(f"X: {other!r} does not fit {self!r}")
        return other

    def _like(self, other: Self) -> None:
        """Takes from the other what a class keeps beside its spec."""

    @abstractmethod
    def _finish(self, fields: dict[str, Any], index: NDArray[Any], like: ProblemSpec | None = None) -> None:
        """Completes the spec from the shared fields and the class index of each row; `like` is the problem to copy."""


class Grouping:
    """Rows by client: offsets, and the order that puts them so (None where they are so already)."""

    def __init__(self, clients: Any, n_rows: int, copy: bool) -> None:
        given = to_array("clients", clients)
        if given.ndim != 1 or given.dtype.kind not in "iu" or given.size == 0:
            raise TypeError(f"clients: expected one int per row, or offsets, got {given.dtype} of shape {given.shape}")
        self.order: NDArray[np.int64] | None = None
        # A client number is below the number of rows, so an array that ends with that number is offsets.
        if given[0] == 0 and given[-1] == n_rows:
            steps = np.diff(given.astype(np.int64))
            if steps.size == 0 or steps.min() < 1:
                raise ValueError(f"clients: offsets must increase; client {int(np.argmin(steps))} has no rows")
            self.offsets = given.astype(np.int64)
            return
        if given.size != n_rows:
            raise ValueError(
                f"clients: expected {n_rows} client numbers, or offsets from 0 to {n_rows}, got {given.size}"
            )
        if given.min() < 0:
            raise ValueError(f"clients: row {int(np.argmin(given))} has client {given.min()}")
        if given.max() >= n_rows:
            raise ValueError(
                f"clients: row {int(np.argmax(given))} has client {given.max()}, of at most {n_rows} clients"
            )
        counts = np.bincount(given)
        if counts.min() == 0:
            raise ValueError(f"clients: client {int(np.argmin(counts))} has no rows; number them 0 to n - 1")
        self.offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        if (np.diff(given) < 0).any():
            if not copy:
                raise ValueError("clients: expected rows sorted by client with copy=False")
            self.order = np.argsort(given, kind="stable")


def dense(X: Any) -> NDArray[Any]:
    array = as_array("X", X)
    model_dtype("X", array.dtype)
    if array.ndim != 2:
        raise ValueError(f"X: expected shape (rows, features), got {array.shape}")
    return array


def dense_rows(X: Any, group: Grouping, copy: bool) -> NDArray[Any]:
    array = dense(X)
    if not all_finite(array):
        raise ValueError(f"X: row {int(np.argmin(np.isfinite(array).all(axis=1)))} is not finite")
    if copy:
        return aligned_copy(array, group.order)
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise ValueError("X: expected C-contiguous, aligned rows with copy=False")
    return array


def is_csr(X: Any) -> bool:
    if getattr(X, "format", None) in ("bsr", "coo", "csc", "dia", "dok", "lil"):
        raise TypeError(f"X: expected dense or CSR rows, got {X.format}; pass X.tocsr()")
    return all(hasattr(X, name) for name in ("data", "indices", "indptr", "shape"))


def _csr_fields(X: Any, group: Grouping, copy: bool) -> dict[str, Any]:
    values, columns, starts = np.asarray(X.data), np.asarray(X.indices), np.asarray(X.indptr)
    n_rows, n_features = X.shape
    model_dtype("X", values.dtype)
    if starts.shape != (n_rows + 1,) or starts[0] != 0 or starts[-1] > len(values) or (np.diff(starts) < 0).any():
        raise ValueError("X: expected an indptr of n_rows + 1 numbers that rises from 0 to the number of stored values")
    values, columns = values[: starts[-1]], columns[: starts[-1]]
    if len(columns) != len(values):
        raise ValueError(f"X: expected a column for each of {len(values)} stored values, got {len(columns)}")
    if columns.size and (columns.min() < 0 or columns.max() >= n_features):
        bad = int(np.argmax((columns < 0) | (columns >= n_features)))
        row = int(np.searchsorted(starts, bad, side="right")) - 1
        raise ValueError(f"X: row {row} has column {columns[bad]}, of {n_features}")
    if not all_finite(values):
        row = int(np.searchsorted(starts, int(np.argmin(np.isfinite(values))), side="right")) - 1
        raise ValueError(f"X: row {row} is not finite")
    starts = starts.astype(np.int64)
    if group.order is not None:
        where, starts = pick_lists(starts, group.order)
        values, columns = values[where], columns[where]
    if copy:
        values = aligned_copy(values)
    return {
        "x": np.ascontiguousarray(values),
        "column": np.array(columns, np.int32, order="C", copy=copy or None),
        "row_start": starts,
        "n_features": n_features,
    }
