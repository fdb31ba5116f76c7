"""Columns of a sweep's rows: their kinds, and lists of numbers that lie end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import pick_lists

__all__ = [
    "HISTORY",
    "MISSING",
    "TYPES",
    "Column",
    "Kind",
    "Ragged",
    "Row",
    "Schema",
    "as_cell",
    "column_of",
    "is_list",
    "joined",
    "take",
]

HISTORY = "history."  # begins the names of the list columns

Row = dict[str, Any]
Kind = Literal["text", "bool", "int", "seed", "float", "ints", "floats"]
Schema = dict[str, Kind]

TYPES: dict[str, type[np.generic]] = {
    "text": np.object_,
    "bool": np.bool_,
    "int": np.int64,
    "seed": np.uint64,
    "float": np.float64,
    "ints": np.int64,
    "floats": np.float64,
}
MISSING: dict[str, Any] = {"text": "", "bool": False, "int": 0, "seed": 0, "float": np.nan}  # where a row has no value


def is_list(kind: Kind) -> bool:
    """Whether a row of such a column holds a list."""
    return kind in ("ints", "floats")


@dataclass(frozen=True, slots=True)
class Ragged:
    """A list of numbers per row: row i has values[offsets[i] : offsets[i + 1]]."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def take(self, rows: NDArray[np.int64]) -> Ragged:
        where, offsets = pick_lists(self.offsets, rows)
        return Ragged(self.values[where], offsets)

    @staticmethod
    def join(lists: Sequence[NDArray[Any]], dtype: type[np.generic]) -> Ragged:
        offsets = np.concatenate(([0], np.cumsum([len(one) for one in lists]))).astype(np.int64)
        values = np.concatenate([np.empty(0, dtype), *lists]).astype(dtype, copy=False)
        return Ragged(values, offsets)


Column = NDArray[Any] | Ragged


def take(column: Column, rows: NDArray[np.int64]) -> Column:
    """The column of these rows, in their order."""
    return column.take(rows) if isinstance(column, Ragged) else column[rows]


def column_of(kind: Kind, values: Sequence[Any]) -> Column:
    """A column of the kind from one value per row; None: the row has none."""
    if is_list(kind):
        return Ragged.join([np.empty(0) if value is None else value for value in values], TYPES[kind])
    made = np.empty(len(values), TYPES[kind])
    made[:] = [MISSING[kind] if value is None else value for value in values]
    return made


def joined(columns: Sequence[Column], kind: Kind) -> Column:
    """The columns, all of the kind, one after the other."""
    if is_list(kind):
        lists = [column for column in columns if isinstance(column, Ragged)]
        ends = np.cumsum([0, *(len(column.values) for column in lists)])
        offsets = [column.offsets[1:] + end for column, end in zip(lists, ends[:-1], strict=True)]
        values = np.concatenate([np.empty(0, TYPES[kind]), *(column.values for column in lists)])
        return Ragged(values, np.concatenate([np.zeros(1, np.int64), *offsets]))
    plain = [column for column in columns if not isinstance(column, Ragged)]
    return np.concatenate([np.empty(0, TYPES[kind]), *plain])


def as_cell(value: Any, kind: Kind) -> Any:
    """A value of a column as a row holds it: None where there is none."""
    return None if kind == "float" and np.isnan(value) else value
