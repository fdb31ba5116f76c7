"""Columns out of CSV or TSV (plain or gzip), NPZ and Parquet files, with errors that name the rows.

Rows are data rows, counted from 1 without the header and blank lines. Errors about text files name lines instead, as an
editor shows them.

A text file is read by one rule, whatever is installed: `_parse_rows`. pyarrow reads the files of which it is certain to
give the same (`_parse_with_arrow`), and leaves all others, the faulty ones included, to the rule.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.files import (
    FileError,
    check_parquet,
    file_format,
    open_npz,
    optional,
    reading,
    unguarded,
)
from .bad_rows import BadRow, Reasons, TraceError, bad_rows, bad_times, time_reasons
from .table import (
    Column,
    Kind,
    Labels,
    Missing,
    RawTable,
    Wanted,
    from_arrow,
    labels_from_text,
    length_of,
    present_columns,
)
from .text_file import TextFile, as_delimiter, read_csv

FORMATS = {
    ".csv": "csv",
    ".csv.gz": "csv",
    ".npz": "npz",
    ".parquet": "parquet",
    ".tsv": "csv",
    ".tsv.gz": "csv",
}


@dataclass(frozen=True)
class Table:
    """The columns of a file, and where their rows stand in it."""

    columns: dict[str, Column]
    path: Path
    rows: NDArray[np.int64] | None
    text: TextFile | None

    def located(self, error: TraceError) -> TraceError:
        """The error about rows of the columns, with the file's rows and lines."""
        rows = [bad.row if self.rows is None else int(self.rows[bad.row - 1]) + 1 for bad in error.bad]
        return in_file(error, rows, self.path, self.text)


def in_file(
    error: TraceError, rows: Sequence[int], path: str | os.PathLike[str] | None, text: TextFile | None
) -> TraceError:
    """The error with these data rows (from 1) of a file instead of its own, and with their lines. An error that names
    its file stays as it is."""
    if error.path is not None:
        return error
    lines: Sequence[int | None] = [None] * len(rows) if text is None or not rows else text.lines_of(rows)
    bad = [BadRow(row, old.reason, line) for row, old, line in zip(rows, error.bad, lines, strict=True)]
    return TraceError(error.reason, bad[0].row if bad else None, path, bad, error.count, error.hint)


def read_columns(
    path: str | os.PathLike[str],
    wanted: Mapping[str, Wanted],
    *,
    missing: Missing = "error",
    delimiter: str | None = None,
) -> Table:
    """The wanted columns that the file has, under the keys of `wanted`; numbers are times, from 0 and finite.

    Rows in which a value is missing are bad, or left out (missing="drop"). `delimiter` is that of a text file: one
    character or a name out of DELIMITERS; None finds it.
    """
    check_missing(missing)
    character = as_delimiter(delimiter)
    form = file_format(path, FORMATS)
    file = Path(path)
    text = TextFile(file) if form == "csv" else None
    try:
        with reading(path, f"a whole {form.upper() if form != 'parquet' else 'Parquet'} file"):
            if text is not None:
                raw = read_csv(text, wanted, character)
                raw.columns = {key: _without_guard(column) for key, column in raw.columns.items()}
            else:
                raw = _read_npz(file, wanted) if form == "npz" else _read_parquet(file, wanted)
        numbers = [name for name in raw.columns if wanted[name].kind == "number"]
        lengths = {length_of(column) for column in raw.columns.values()}
        if len(lengths) > 1:
            each = ", ".join(f"{name} {length_of(column)}" for name, column in raw.columns.items())
            raise TraceError(f"columns differ in length: {each}")
        return _without_missing(raw, numbers, missing, file, text)
    except TraceError as error:
        raise in_file(error, [bad.row for bad in error.bad], file, text) from error.__cause__
    except FileError as error:
        member = "" if error.member is None else f" (member {error.member})"
        raise TraceError(error.reason + member, path=path) from error


def check_missing(missing: str) -> None:
    if missing not in ("error", "drop"):
        raise ValueError(f"missing: expected 'error' or 'drop', got {missing!r}")


def _without_missing(
    raw: RawTable, numbers: Sequence[str], missing: Missing, path: Path, text: TextFile | None
) -> Table:
    """Refuses bad rows, all at once, and leaves out those with missing values or refuses them as well."""
    times = {name: np.asarray(raw.columns[name]) for name in numbers}
    bad = raw.bad + [(raw.in_file(rows), reasons) for rows, reasons in bad_times(times, nan=False)]
    absent = raw.missing + [(raw.in_file(rows), reasons) for rows, reasons in _missing_values(raw.columns, times)]
    dropped = np.unique(np.concatenate([np.zeros(0, np.int64), *(rows for rows, _ in absent)]))
    if missing == "drop":
        error = bad_rows(_except(group, dropped) for group in bad)
    else:
        hint = "missing='drop' (--missing drop) leaves out the rows with missing values" if dropped.size else ""
        error = bad_rows([*bad, *absent], hint)
    if error is not None:
        raise in_file(error, [each.row for each in error.bad], path, text)
    columns, rows = raw.columns, raw.rows
    if dropped.size:
        n = next(map(length_of, columns.values()))
        kept = np.flatnonzero(~np.isin(raw.in_file(np.arange(n)), dropped))
        columns, rows = {name: _take(column, kept) for name, column in columns.items()}, raw.in_file(kept)
    if not any(map(length_of, columns.values())):
        raise TraceError("a value is missing in every row" if dropped.size else "the file has no rows")
    return Table({name: _plain_labels(column) for name, column in columns.items()}, path, rows, text)


def _missing_values(
    columns: Mapping[str, Column], times: Mapping[str, NDArray[np.float64]]
) -> Iterator[tuple[NDArray[np.int64], Reasons]]:
    for name, values in times.items():
        if values.dtype.kind == "f" and np.isnan(values.min(initial=0)):
            rows = np.flatnonzero(np.isnan(values))
            yield rows, time_reasons(name, values[rows])
    for name, column in columns.items():
        if isinstance(column, Labels):
            empty = [code for code, label in enumerate(column.ids) if not str(label).strip()]
            if empty:
                yield np.flatnonzero(np.isin(column.codes, empty)), _empty_reasons(name)
        elif column.dtype.kind == "U":
            yield np.flatnonzero(column == ""), _empty_reasons(name)


def _empty_reasons(name: str) -> Reasons:
    return lambda i: f"{name} is empty"


def _except(group: tuple[NDArray[np.int64], Reasons], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Reasons]:
    kept = np.flatnonzero(~np.isin(group[0], rows))
    return group[0][kept], lambda i: group[1](int(kept[i]))


def _take(column: Column, rows: NDArray[np.int64]) -> Column:
    if not isinstance(column, Labels):
        return column[rows]
    codes = column.codes[rows]
    used = np.flatnonzero(np.bincount(codes, minlength=column.ids.size))
    place = np.zeros(column.ids.size, np.int64)
    place[used] = np.arange(used.size)
    return Labels(place[codes], column.ids[used])


def _plain_labels(column: Column) -> Column:
    """Labels that were read as text: integers where every one of them is written as an integer is."""
    if isinstance(column, Labels) and column.ids.dtype.kind == "O":
        return labels_from_text(column.ids, column.codes)
    return column


def _without_guard(column: Column) -> Column:
    """Labels without the apostrophe that `guarded` puts before formulas."""
    if not isinstance(column, Labels) or column.ids.dtype.kind not in "OU":
        return column
    plain = [unguarded(label) for label in column.ids.tolist()]
    if len(set(plain)) < len(plain):
        return column
    return Labels(column.codes, np.array(plain, np.object_ if column.ids.dtype.kind == "O" else None))


# NPZ


def _read_npz(path: Path, wanted: Mapping[str, Wanted]) -> RawTable:
    columns: dict[str, Column] = {}
    with open_npz(path, "a whole NPZ file") as file:
        for key, column in present_columns(file.files, wanted).items():
            columns[key] = _from_numpy(file[column.name], key, column.kind)
    return RawTable(columns)


def _from_numpy(values: NDArray[Any], name: str, kind: Kind) -> Column:
    allowed = {"label": "iuU", "integer": "iu", "number": "iuf", "flag": "biu"}[kind]
    if values.dtype.kind not in allowed:
        raise TraceError(f"{name} has type {values.dtype}, which is not a {kind}")
    if values.ndim != 1:
        raise TraceError(f"{name}: expected a vector, got shape {values.shape}")
    return values


# Parquet


def _read_parquet(path: Path, wanted: Mapping[str, Wanted]) -> RawTable:
    pa = optional("pyarrow", "parquet", "reading Parquet")
    pq = optional("pyarrow.parquet", "parquet", "reading Parquet")
    check_parquet(path)
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
        present = present_columns(list(schema.names), wanted)
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
    raw = RawTable({})
    for key, column in present.items():
        if table.column(column.name).null_count:
            rows = np.flatnonzero(table.column(column.name).is_null().to_numpy())
            raw.missing.append((rows, _empty_reasons(key)))
    if raw.missing:
        whole = np.ones(table.num_rows, dtype=np.bool_)
        whole[np.concatenate([rows for rows, _ in raw.missing])] = False
        raw.rows, table = np.flatnonzero(whole), table.filter(pa.array(whole))
    try:
        for key, column in present.items():
            raw.columns[key] = from_arrow(table.column(column.name), key, column.kind)
    except TraceError as error:
        if raw.rows is None:
            raise
        raise in_file(error, [int(raw.rows[bad.row - 1]) + 1 for bad in error.bad], path, None) from None
    return raw
