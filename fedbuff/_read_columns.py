"""Columns out of CSV (plain or gzip), NPZ and Parquet files, with errors that name the row.

Row numbers count data rows from 1: the header and blank lines are not counted.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ._files import FileError, check_parquet, file_format, open_npz, optional, reading, unguarded

Kind = Literal["label", "integer", "number", "flag"]

FORMATS = {".csv": "csv", ".csv.gz": "csv", ".npz": "npz", ".parquet": "parquet"}
_FLAGS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


class TraceError(FileError):
    """A delay file or table that cannot be used; `row` counts data rows from 1, `path` is the file."""

    def __init__(self, reason: str, row: int | None = None, path: str | os.PathLike[str] | None = None) -> None:
        FileError.__init__(self, reason, path)
        self.row = row
        where = "" if row is None else f"row {row}: "
        file = "" if path is None else f" ({Path(path).name})"
        ValueError.__init__(self, f"{where}{self.reason}{file}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.row, self.path)


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


def read_columns(path: str | os.PathLike[str], wanted: Mapping[str, Wanted]) -> dict[str, Column]:
    """The wanted columns that the file has, under the keys of `wanted`."""
    readers: dict[str, Callable[[Path, Mapping[str, Wanted]], dict[str, Column]]] = {
        "csv": _read_csv,
        "npz": _read_npz,
        "parquet": _read_parquet,
    }
    form = file_format(path, FORMATS)
    try:
        with reading(path, f"a whole {form.upper() if form != 'parquet' else 'Parquet'} file"):
            columns = readers[form](Path(path), wanted)
    except TraceError as error:
        raise TraceError(error.reason, error.row, path) from error.__cause__
    except FileError as error:
        member = "" if error.member is None else f" (member {error.member})"
        raise TraceError(error.reason + member, path=path) from error
    if form == "csv":
        columns = {key: _without_guard(column) for key, column in columns.items()}
    lengths = {_length(column) for column in columns.values()}
    if len(lengths) > 1:
        each = ", ".join(f"{name} {_length(column)}" for name, column in columns.items())
        raise TraceError(f"columns differ in length: {each}", path=path)
    if lengths == {0}:
        raise TraceError("the file has no rows", path=path)
    return columns


def _without_guard(column: Column) -> Column:
    """Labels as they were before they became cells that no spreadsheet runs."""
    if not isinstance(column, Labels) or column.ids.dtype.kind != "U":
        return column
    plain = [unguarded(label) for label in column.ids.tolist()]
    return Labels(column.codes, np.array(plain)) if len(set(plain)) == len(plain) else column


def _length(column: Column) -> int:
    return column.codes.size if isinstance(column, Labels) else column.shape[0]


def _present(names: list[str], wanted: Mapping[str, Wanted]) -> dict[str, Wanted]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TraceError(f"column {twice[0]!r} appears twice")
    for key, column in wanted.items():
        if column.required and column.name not in names:
            mapped = "" if key == column.name else f" (for {key})"
            raise TraceError(f"no column {column.name!r}{mapped}; the file has {', '.join(map(repr, names))}")
    return {key: column for key, column in wanted.items() if column.name in names}


def labels_from_text(ids: NDArray[Any], codes: NDArray[Any]) -> Labels:
    """Text labels; integers where every one of them is written as an integer is."""
    text = [str(label) for label in ids]
    canonical = all(label.removeprefix("-").isdecimal() and str(int(label)) == label for label in text)
    values = [int(label) for label in text] if canonical else []
    if canonical and all(-(2**63) <= value < 2**63 for value in values):
        return Labels(codes.astype(np.int64), np.array(values, dtype=np.int64))
    return Labels(codes.astype(np.int64), np.array(text, dtype=np.str_))


def _flags(labels: Labels, name: str) -> NDArray[np.bool_]:
    values = [_FLAGS.get(str(label).lower()) for label in labels.ids]
    unknown = [code for code, value in enumerate(values) if value is None]
    if unknown:
        row = int(np.flatnonzero(np.isin(labels.codes, unknown))[0])
        text = str(labels.ids[labels.codes[row]])
        raise TraceError(f"{name} {text!r} is neither true nor false" if text else f"{name} is empty", row + 1)
    return np.array(values, dtype=np.bool_)[labels.codes]


# CSV


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _open_text(path: Path) -> IO[str]:
    if _is_gzip(path):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _read_csv(path: Path, wanted: Mapping[str, Wanted]) -> dict[str, Column]:
    try:
        with _open_text(path) as file:
            names = [name.strip() for name in next(csv.reader(file), [])]
    except (EOFError, zlib.error, UnicodeDecodeError, gzip.BadGzipFile) as error:
        raise TraceError(f"cannot read the header: {error}") from error
    if not names:
        raise TraceError("the file is empty")
    present = _present(names, wanted)
    read = _parse_with_numpy if find_spec("pyarrow") is None else _parse_with_arrow
    try:
        return read(path, names, present)
    except TraceError:
        raise
    except (ValueError, EOFError, zlib.error, OSError, Warning) as error:  # pyarrow's are ValueErrors and OSErrors
        _locate_csv_error(path, names, present)
        raise TraceError(f"cannot read the file: {error}") from error


def _parse_with_arrow(path: Path, names: list[str], present: Mapping[str, Wanted]) -> dict[str, Column]:
    pa = optional("pyarrow", "parquet", "this reader")
    arrow_csv = optional("pyarrow.csv", "parquet", "this reader")
    text = pa.dictionary(pa.int32(), pa.string())
    types = {"label": text, "flag": text, "integer": pa.int64(), "number": pa.float64()}
    with pa.input_stream(str(path), compression="gzip" if _is_gzip(path) else None) as stream:
        table = arrow_csv.read_csv(
            stream,
            read_options=arrow_csv.ReadOptions(column_names=names, skip_rows=1, block_size=1 << 23),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=list({column.name for column in present.values()}),
                column_types={column.name: types[column.kind] for column in present.values()},
                null_values=[""],
            ),
        )
    return {key: _from_arrow(table.column(column.name), key, column.kind) for key, column in present.items()}


def _parse_with_numpy(path: Path, names: list[str], present: Mapping[str, Wanted]) -> dict[str, Column]:
    with _open_text(path) as file:
        next(csv.reader(file))
        text = file.read()
    if '"' in text or _is_ragged(text.encode(), len(names)):
        _locate_csv_error(path, names, present)

    def load(keys: list[str], dtype: Any) -> NDArray[Any]:
        """The columns as rows of one array."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # "no data", and integers that are written as floats
            warnings.filterwarnings("ignore", "Input line")  # a blank line
            table = np.loadtxt(
                io.StringIO(text, newline=None),
                dtype=dtype,
                delimiter=",",
                usecols=[names.index(present[key].name) for key in keys],
                comments=None,
                quotechar='"',
                ndmin=2,
            )
        return np.ascontiguousarray(table.T)

    columns: dict[str, Column] = {}
    for kind, dtype in (("number", np.float64), ("integer", np.int64)):
        keys = [key for key, column in present.items() if column.kind == kind]
        columns |= dict(zip(keys, load(keys, dtype), strict=True)) if keys else {}
    for key, column in present.items():
        if column.kind == "label":
            columns[key] = _text_labels(load([key], np.str_)[0], key)
        elif column.kind == "flag":
            columns[key] = _text_flags(load([key], np.str_)[0], key)
    return columns


def _text_flags(values: NDArray[np.str_], name: str) -> NDArray[np.bool_]:
    lower = np.char.lower(values)
    known, flags = np.zeros(values.size, dtype=np.bool_), np.zeros(values.size, dtype=np.bool_)
    for text, flag in _FLAGS.items():
        same = lower == text
        known |= same
        flags |= same & flag
    if not known.all():
        row = int(np.argmin(known))
        text = str(values[row])
        raise TraceError(f"{name} {text!r} is neither true nor false" if text else f"{name} is empty", row + 1)
    return flags


def _text_labels(values: NDArray[np.str_], name: str) -> Column:
    """What `labels_from_text` gives, without sorting the strings where all are integers from 0."""
    length = np.strings.str_len(values) if hasattr(np, "strings") else np.char.str_len(values)
    if length.min(initial=1) == 0:
        raise TraceError(f"{name} is empty", int(np.argmin(length)) + 1)
    if length.max(initial=0) <= 18:
        try:
            numbers = values.astype(np.int64)
        except ValueError:
            pass
        else:
            digits = np.searchsorted(10 ** np.arange(1, 19), numbers, side="right") + 1
            if numbers.min(initial=0) >= 0 and np.array_equal(length, digits):
                return numbers
    return labels_from_text(*np.unique(values, return_inverse=True))


def _is_ragged(text: bytes, n_fields: int) -> bool:
    """Whether some line that is not blank has another number of fields; quotes are not looked at."""
    data = np.frombuffer(text if text.endswith(b"\n") else text + b"\n", dtype=np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    commas = np.diff(np.searchsorted(np.flatnonzero(data == ord(",")), ends), prepend=0)
    length = np.diff(ends, prepend=-1) - 1
    blank = (length == 0) | ((length == 1) & (data[ends - 1] == ord("\r")))
    return bool(np.any(~blank & (commas != n_fields - 1)))


def _locate_csv_error(path: Path, names: list[str], present: Mapping[str, Wanted]) -> None:
    """Walks the rows to the first one that cannot be read; returns where there is none."""
    row = 0
    places = [(key, names.index(column.name), column.kind) for key, column in present.items()]
    try:
        with _open_text(path) as file:
            lines = csv.reader(file)
            next(lines)
            for fields in lines:
                if not fields:
                    continue
                row += 1
                if len(fields) != len(names):
                    raise TraceError(f"{len(fields)} fields where the header has {len(names)}: is the file cut?", row)
                for key, place, kind in places:
                    _check_text(fields[place].strip(), key, kind, row)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"the compressed file breaks off here: {error}", row + 1) from error
    except UnicodeDecodeError as error:
        raise TraceError(f"not UTF-8 text: {error.reason}", row + 1) from error
    if row == 0:
        raise TraceError("the file has no rows")


def _check_text(text: str, key: str, kind: Kind, row: int) -> None:
    if not text:
        raise TraceError(f"{key} is empty", row)
    if kind == "flag" and text.lower() not in _FLAGS:
        raise TraceError(f"{key} {text!r} is neither true nor false", row)
    if kind in ("integer", "number"):
        try:
            int(text) if kind == "integer" else float(text)
        except ValueError:
            raise TraceError(
                f"{key} {text!r} is not {'an integer' if kind == 'integer' else 'a number'}", row
            ) from None


# NPZ


def _read_npz(path: Path, wanted: Mapping[str, Wanted]) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    with open_npz(path, "a whole NPZ file") as file:
        for key, column in _present(file.files, wanted).items():
            columns[key] = _from_numpy(file[column.name], key, column.kind)
    return columns


def _from_numpy(values: NDArray[Any], name: str, kind: Kind) -> Column:
    allowed = {"label": "iuU", "integer": "iu", "number": "iuf", "flag": "biu"}[kind]
    if values.dtype.kind not in allowed:
        raise TraceError(f"{name} has type {values.dtype}, which is not a {kind}")
    if values.ndim != 1:
        raise TraceError(f"{name} must be a vector, not of shape {values.shape}")
    return values


# Parquet


def _read_parquet(path: Path, wanted: Mapping[str, Wanted]) -> dict[str, Column]:
    pa = optional("pyarrow", "parquet", "reading Parquet")
    pq = optional("pyarrow.parquet", "parquet", "reading Parquet")
    check_parquet(path)
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
        present = _present(list(schema.names), wanted)
        text = [
            column.name
            for column in present.values()
            if pa.types.is_string(schema.field(column.name).type)
            or pa.types.is_large_string(schema.field(column.name).type)
        ]
        table = pq.read_table(
            path, columns=sorted({column.name for column in present.values()}), read_dictionary=text, partitioning=None
        )
    except pa.ArrowException as error:
        raise TraceError(f"not a whole Parquet file: {error}") from error
    except OSError as error:
        if not path.is_file():
            raise
        raise TraceError(f"not a whole Parquet file: {error}") from error
    return {key: _from_arrow(table.column(column.name), key, column.kind) for key, column in present.items()}


def _from_arrow(column: Any, name: str, kind: Kind) -> Column:
    pa = optional("pyarrow", "parquet", "this reader")
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0]) + 1
        raise TraceError(f"{name} is empty", row)
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
    if is_dictionary and (kind == "label" or string):
        merged = column.unify_dictionaries().combine_chunks()
        if isinstance(merged, pa.ChunkedArray):  # no chunks at all
            return np.empty(0, dtype=np.int64)
        ids = merged.dictionary.to_numpy(zero_copy_only=False)
        codes = merged.indices.to_numpy()
        if string:
            labels = labels_from_text(ids, codes)
            if kind == "label" and any(str(label) == "" for label in ids):
                empty = np.array([str(label) == "" for label in ids])
                raise TraceError(f"{name} is empty", int(np.flatnonzero(empty[codes])[0]) + 1)
            return _flags(labels, name) if kind == "flag" else labels
        return Labels(codes.astype(np.int64), ids)
    if is_dictionary:
        column = column.cast(value_type)
    values: NDArray[Any] = column.to_numpy()
    return values
