"""Frozen values: a base class, read-only arrays, their hash, and checks of columns."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.arrays import little_endian, to_array
from .._base.files import guarded, open_text, optional, save_npz
from .bad_rows import bad_rows

_HASH_BLOCK = 1 << 24  # bytes


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


class Immutable:
    """A base of frozen dataclasses whose arrays stay read-only in copies and after pickling."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        for value in state.values():
            if isinstance(value, np.ndarray):
                frozen(value)
        self.__dict__.update(state)


def digest(*arrays: NDArray[Any] | None) -> str:
    """SHA-256 of the arrays' types, lengths and little-endian bytes."""
    state = hashlib.sha256()
    for array in arrays:
        if array is None:
            state.update(b"none;")
            continue
        plain = np.ascontiguousarray(little_endian(array))
        state.update(f"{plain.dtype.str}{plain.shape};".encode())
        update_hash(state, plain)
    return state.hexdigest()


def update_hash(state: Any, array: NDArray[Any]) -> None:
    """Adds the bytes of a contiguous array to a hash, in blocks, so that signals are handled in between."""
    content = array.reshape(-1).view(np.uint8)
    for begin in range(0, content.size, _HASH_BLOCK):
        state.update(content[begin : begin + _HASH_BLOCK].data)


# Columns: from what a user gives to arrays of one dtype; errors carry the row


def float_column(name: str, values: ArrayLike, length: int | None, copy: bool = True) -> NDArray[np.float64]:
    array = to_array(name, values)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name}: expected numbers, got {array.dtype}")
    return check_vector(name, array, length).astype(np.float64, copy=copy)


def int_column(name: str, values: ArrayLike, length: int | None) -> NDArray[np.int64]:
    array = to_array(name, values)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got {array.dtype}")
    return check_vector(name, array, length).astype(np.int64)


def check_vector(name: str, array: NDArray[Any], length: int | None) -> NDArray[Any]:
    if array.ndim != 1 or (length is not None and array.shape[0] != length):
        wanted = "a vector" if length is None else f"a vector of length {length}, as client is"
        raise ValueError(f"{name}: expected {wanted}, got shape {array.shape}")
    return array


def refuse_rows(rows: NDArray[np.int64], reasons: Callable[[int], str], hint: str = "") -> None:
    """Refuses these rows, counted from 0, where there are any; reasons(row) says why."""
    error = bad_rows([(rows, lambda i: reasons(int(rows[i])))], hint)
    if error is not None:
        raise error


def spread(values: NDArray[Any]) -> dict[str, float]:
    """Mean, extremes and quantiles."""
    names = ("min", "p10", "p50", "p90", "p99", "max")
    quantiles = np.quantile(values, [0.0, 0.1, 0.5, 0.9, 0.99, 1.0])
    return {"mean": float(values.mean()), **dict(zip(names, map(float, quantiles), strict=True))}


# Files


def write_columns(beside: Path, form: str, columns: Mapping[str, NDArray[Any]], path: str | os.PathLike[str]) -> None:
    """Writes columns as CSV (tabs for .tsv, compressed for .gz), NPZ or Parquet beside the path that they will have."""
    if form == "npz":
        with beside.open("wb") as file:
            save_npz(file, columns)
    elif form == "parquet":
        pa = optional("pyarrow", "parquet", "writing Parquet")
        pq = optional("pyarrow.parquet", "parquet", "writing Parquet")
        with beside.open("wb") as file:  # errors of pyarrow's own files have no number
            pq.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), file)
    else:
        import csv

        name = Path(path).name.lower()
        with open_text(beside, compressed=name.endswith(".gz")) as text:
            writer = csv.writer(text, lineterminator="\n", delimiter="\t" if ".tsv" in name else ",")
            writer.writerow(columns)
            cells = [
                [guarded(text) for text in values.tolist()] if values.dtype.kind == "U" else values.tolist()
                for values in columns.values()
            ]
            writer.writerows(zip(*cells, strict=True))
