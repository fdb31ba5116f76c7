"""Columns of a file of delays: labels, numbers, flags, and what a reader wants of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import text_array
from .._base.files import optional
from .bad_rows import Reasons, TraceError, bad_rows

Kind = Literal["label", "integer", "number", "flag"]
Missing = Literal["error", "drop"]
_FLAGS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
_INTEGER_LABEL = re.compile("0|-?[1-9][0-9]{0,18}")


@dataclass(frozen=True)
class Labels:
    """A column of labels: row r has ids[codes[r]]."""

    codes: NDArray[np.int64]
    ids: NDArray[Any]


@dataclass(frozen=True)
class Wanted:
    """A column to read: its name in the file, what it holds, and whether the file must have it."""

    name: str
    kind: Kind
    required: bool


Column = NDArray[Any] | Labels


class RawTable:
    """Columns as they were read, the data row (from 0) of each of their rows, and the rows that are bad or incomplete.

    Rows that cannot even be held (too short, null) are in no column; `rows` is None where there are none.
    """

    def __init__(self, columns: dict[str, Column], rows: NDArray[np.int64] | None = None) -> None:
        self.columns, self.rows = columns, rows
        self.bad: list[tuple[NDArray[np.int64], Reasons]] = []
        self.missing: list[tuple[NDArray[np.int64], Reasons]] = []

    def in_file(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows if self.rows is None else self.rows[rows]


def length_of(column: Column) -> int:
    return column.codes.size if isinstance(column, Labels) else column.shape[0]


def present_columns(names: list[str], wanted: Mapping[str, Wanted]) -> dict[str, Wanted]:
    for key, column in wanted.items():
        if names.count(column.name) > 1:
            raise TraceError(f"column {column.name!r} appears twice")
        if column.required and column.name not in names:
            mapped = "" if key == column.name else f" (for {key})"
            raise TraceError(f"no column {column.name!r}{mapped}; the file has {', '.join(map(repr, names))}")
    return {key: column for key, column in wanted.items() if column.name in names}


def labels_from_text(ids: Iterable[Any], codes: NDArray[Any]) -> Labels:
    """Text labels; integers where every one of them is written as an integer is, in ASCII."""
    text = [str(label) for label in ids]
    if all(map(_INTEGER_LABEL.fullmatch, text)):
        values = [int(label) for label in text]
        if all(-(2**63) <= value < 2**63 for value in values):
            return Labels(codes.astype(np.int64), np.array(values, dtype=np.int64))
    for code, label in enumerate(text):
        if "\0" in label:  # NumPy's strings end at a NUL character
            rows = np.flatnonzero(codes == code)
            row = int(rows[0]) + 1 if rows.size else None
            raise TraceError(f"the label {label!r} has a NUL character", row)
    try:
        return Labels(codes.astype(np.int64), text_array(text))
    except ValueError as error:
        raise TraceError(f"labels: {error}") from None


def _flags(labels: Labels, name: str) -> NDArray[np.bool_]:
    values = [parse_cell(str(label), "flag") for label in labels.ids]
    unknown = np.flatnonzero(np.isin(labels.codes, [code for code, value in enumerate(values) if value is None]))
    texts = labels.ids[labels.codes[unknown]]
    error = bad_rows([(unknown, lambda i: cell_reason(name, str(texts[i]), "flag"))])
    if error is not None:
        raise error
    return np.array(values, dtype=np.bool_)[labels.codes]


DTYPES: dict[Kind, Any] = {"integer": np.int64, "number": np.float64, "flag": np.bool_}


def parse_cell(text: str, kind: Kind) -> Any:
    """The value of a cell, blanks around it left out; None where it has none. Digits are ASCII."""
    if kind == "flag":
        return _FLAGS.get(text.strip().lower())
    if not text.isascii() or "_" in text:
        return None
    try:
        if kind == "number":
            return float(text)
        value = int(text)
    except ValueError:
        return None
    return value if -(2**63) <= value < 2**63 else None


def cell_reason(name: str, text: str, kind: Kind) -> str:
    plain = text.strip()
    if not plain or (kind != "label" and plain.lower() in MISSING):
        return f"{name} is {plain or 'empty'}"
    shown = repr(plain if len(plain) <= 40 else f"{plain[:37]}...")
    if kind == "flag":
        return f"{name} {shown} is neither true nor false"
    if kind == "integer":
        return f"{name} {shown} is not an integer{' of 64 bits' if plain.lstrip('+-').isdecimal() else ''}"
    point = "; decimals are written with a point" if re.fullmatch("[+-]?[0-9]+,[0-9]+", plain) else ""
    return f"{name} {shown} is not a number{point}"


def from_arrow(column: Any, name: str, kind: Kind) -> Column:
    pa = optional("pyarrow", "parquet", "this reader")
    is_dictionary = pa.types.is_dictionary(column.type)
    value_type = column.type.value_type if is_dictionary else column.type
    integer, number = pa.types.is_integer(value_type), pa.types.is_floating(value_type)
    string = pa.types.is_string(value_type) or pa.types.is_large_string(value_type)
    right = {
        "label": integer or string,
        "integer": integer,
        "number": integer or number,
        "flag": integer or string or pa.types.is_boolean(value_type),
    }[kind]
    if not right:
        raise TraceError(f"{name} has type {value_type}, which is not a {kind}")
    if is_dictionary:
        try:
            column.validate(full=True)  # a damaged file's codes are those of no label
        except ValueError as error:
            raise TraceError(f"{name} cannot be read: {error}") from None
    if is_dictionary and (kind == "label" or string):
        merged = column.unify_dictionaries().combine_chunks()
        if isinstance(merged, pa.ChunkedArray):  # no chunks at all
            return np.empty(0, dtype=np.int64)
        ids = merged.dictionary.to_numpy(zero_copy_only=False)
        codes = merged.indices.to_numpy()
        if string:
            labels = Labels(codes.astype(np.int64), ids)
            return _flags(labels, name) if kind == "flag" else labels
        return Labels(codes.astype(np.int64), ids)
    if is_dictionary:
        column = column.cast(value_type)
    values: NDArray[Any] = column.to_numpy()
    return values
