"""Columns out of CSV or TSV (plain or gzip), NPZ and Parquet files, with errors that name the rows.

Rows are data rows, counted from 1 without the header and blank lines. Errors about text files name lines instead, as an
editor shows them.

A text file is read by one rule, whatever is installed: `_parse_rows`. pyarrow reads the files of which it is certain to
give the same (`_parse_with_arrow`), and leaves all others, the faulty ones included, to the rule.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ._files import FileError, check_parquet, file_format, open_npz, optional, reading, unguarded

Kind = Literal["label", "integer", "number", "flag"]
Missing = Literal["error", "drop"]

FORMATS = {
    ".csv": "csv",
    ".csv.gz": "csv",
    ".npz": "npz",
    ".parquet": "parquet",
    ".tsv": "csv",
    ".tsv.gz": "csv",
}
DELIMITERS = {"comma": ",", "tab": "\t", "semicolon": ";", "pipe": "|", "blanks": " "}
_FLAGS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
_INTEGER_LABEL = re.compile("0|-?[1-9][0-9]{0,18}")
_SHOWN = 5  # bad rows that an error lists
_CHUNK = 1 << 16  # rows that are parsed at once


@dataclass(frozen=True)
class BadRow:
    """A data row, counted from 1, what is wrong with it, and the line of a text file that it begins on."""

    row: int
    reason: str
    line: int | None = None

    def __str__(self) -> str:
        return f"row {self.row}: {self.reason}" if self.line is None else f"line {self.line}: {self.reason}"


class TraceError(FileError):
    """A delay file or table that cannot be used.

    `reason`, `row` (data rows from 1) and `line` (of a text file, as an editor shows it) are of the first bad row,
    `count` is how many rows are bad, `bad` has the first of them, and `path` is the file.
    """

    def __init__(
        self,
        reason: str,
        row: int | None = None,
        path: str | os.PathLike[str] | None = None,
        bad: Sequence[BadRow] = (),
        count: int = 0,
        hint: str = "",
    ) -> None:
        FileError.__init__(self, reason, path)
        if row is not None and not bad:
            bad, count = (BadRow(row, self.reason),), max(count, 1)
        self.row, self.bad, self.count, self.hint = row, tuple(bad), count, hint
        self.line = self.bad[0].line if self.bad else None
        text = "; ".join(map(str, self.bad)) if self.bad else self.reason
        if count > 1:
            text += f"{'; ...' if count > len(self.bad) else ''}: {count} bad rows"
        file = "" if path is None else f" ({Path(path).name})"
        ValueError.__init__(self, f"{text}{hint and f'; {hint}'}{file}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.row, self.path, self.bad, self.count, self.hint)


Reasons = Callable[[int], str]


def bad_rows(groups: Iterable[tuple[NDArray[np.int64], Reasons]], hint: str = "") -> TraceError | None:
    """The error about all rows (from 0, sorted) of all groups, or None; reasons(i) is about the i-th of its group."""
    found = [(rows, reasons) for rows, reasons in groups if rows.size]
    if not found:
        return None
    every = np.unique(np.concatenate([rows for rows, _ in found]))
    first = []
    for row in every[:_SHOWN].tolist():
        rows, reasons = next(group for group in found if np.any(group[0] == row))
        first.append(BadRow(row + 1, reasons(int(np.flatnonzero(rows == row)[0]))))
    return TraceError(first[0].reason, first[0].row, None, first, int(every.size), hint)


def refuse_times(columns: Mapping[str, NDArray[np.float64]]) -> None:
    """Refuses the rows with a time that is negative, infinite or NaN."""
    error = bad_rows(_bad_times(columns, nan=True))
    if error is not None:
        raise error


def _bad_times(columns: Mapping[str, NDArray[np.float64]], nan: bool) -> Iterator[tuple[NDArray[np.int64], Reasons]]:
    for name, values in columns.items():
        if values.size and not (values.min() >= 0 and values.max() < np.inf):  # NaN fails both
            bad = (values < 0) | np.isinf(values)
            rows = np.flatnonzero(bad | np.isnan(values) if nan else bad)
            yield rows, _time_reasons(name, values[rows])


def _time_reasons(name: str, values: NDArray[np.float64]) -> Reasons:
    def reason(i: int) -> str:
        value = float(values[i])
        if np.isnan(value):
            return f"{name} is NaN"
        return f"{name} {value!r} is {'negative' if value < 0 else 'infinite'}"

    return reason


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


class _Raw:
    """Columns as they were read, the data row (from 0) of each of their rows, and the rows that are bad or incomplete.

    Rows that cannot even be held (too short, null) are in no column; `rows` is None where there are none.
    """

    def __init__(self, columns: dict[str, Column], rows: NDArray[np.int64] | None = None) -> None:
        self.columns, self.rows = columns, rows
        self.bad: list[tuple[NDArray[np.int64], Reasons]] = []
        self.missing: list[tuple[NDArray[np.int64], Reasons]] = []

    def in_file(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows if self.rows is None else self.rows[rows]


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
    """The error with these data rows (from 1), of a file, instead of its own, and their lines."""
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
                raw = _read_csv(text, wanted, character)
                raw.columns = {key: _without_guard(column) for key, column in raw.columns.items()}
            else:
                raw = _read_npz(file, wanted) if form == "npz" else _read_parquet(file, wanted)
        numbers = [name for name in raw.columns if wanted[name].kind == "number"]
        lengths = {_length(column) for column in raw.columns.values()}
        if len(lengths) > 1:
            each = ", ".join(f"{name} {_length(column)}" for name, column in raw.columns.items())
            raise TraceError(f"columns differ in length: {each}")
        return _without_missing(raw, numbers, missing, file, text)
    except TraceError as error:
        if error.path is not None:
            raise
        raise in_file(error, [bad.row for bad in error.bad], file, text) from error.__cause__
    except FileError as error:
        member = "" if error.member is None else f" (member {error.member})"
        raise TraceError(error.reason + member, path=path) from error


def check_missing(missing: str) -> None:
    if missing not in ("error", "drop"):
        raise ValueError(f"missing: expected 'error' or 'drop', got {missing!r}")


def _without_missing(raw: _Raw, numbers: Sequence[str], missing: Missing, path: Path, text: TextFile | None) -> Table:
    """Refuses bad rows, all at once, and leaves out those with missing values or refuses them as well."""
    times = {name: np.asarray(raw.columns[name]) for name in numbers}
    bad = raw.bad + [(raw.in_file(rows), reasons) for rows, reasons in _bad_times(times, nan=False)]
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
        n = next(map(_length, columns.values()))
        kept = np.flatnonzero(~np.isin(raw.in_file(np.arange(n)), dropped))
        columns, rows = {name: _take(column, kept) for name, column in columns.items()}, raw.in_file(kept)
    if not any(map(_length, columns.values())):
        raise TraceError("a value is missing in every row" if dropped.size else "the file has no rows")
    return Table({name: _plain_labels(column) for name, column in columns.items()}, path, rows, text)


def _missing_values(
    columns: Mapping[str, Column], times: Mapping[str, NDArray[np.float64]]
) -> Iterator[tuple[NDArray[np.int64], Reasons]]:
    for name, values in times.items():
        if values.dtype.kind == "f" and np.isnan(values.min(initial=0)):
            rows = np.flatnonzero(np.isnan(values))
            yield rows, _time_reasons(name, values[rows])
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
    """Labels as they were before they became cells that no spreadsheet runs."""
    if not isinstance(column, Labels) or column.ids.dtype.kind != "U":
        return column
    plain = [unguarded(label) for label in column.ids.tolist()]
    return Labels(column.codes, np.array(plain)) if len(set(plain)) == len(plain) else column


def _length(column: Column) -> int:
    return column.codes.size if isinstance(column, Labels) else column.shape[0]


def _present(names: list[str], wanted: Mapping[str, Wanted]) -> dict[str, Wanted]:
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
        if "\0" in label:  # NumPy's strings end at one
            rows = np.flatnonzero(codes == code)
            row = int(rows[0]) + 1 if rows.size else None
            raise TraceError(f"the label {label!r} has a NUL character", row)
    return Labels(codes.astype(np.int64), np.array(text, dtype=np.str_))


def _flags(labels: Labels, name: str) -> NDArray[np.bool_]:
    values = [parse_cell(str(label), "flag") for label in labels.ids]
    unknown = np.flatnonzero(np.isin(labels.codes, [code for code, value in enumerate(values) if value is None]))
    texts = labels.ids[labels.codes[unknown]]
    error = bad_rows([(unknown, lambda i: _cell_reason(name, str(texts[i]), "flag"))])
    if error is not None:
        raise error
    return np.array(values, dtype=np.bool_)[labels.codes]


# Text


def as_delimiter(delimiter: str | None) -> str | None:
    """The character that a name or a character stands for."""
    if delimiter is None:
        return None
    if not isinstance(delimiter, str):
        raise TypeError(f"delimiter: expected one character or a name, got {type(delimiter).__name__}")
    character = DELIMITERS.get(delimiter, "\t" if delimiter == "\\t" else delimiter)
    if len(character) != 1 or character in '"\r\n\0':
        raise ValueError(f"delimiter: expected one character or one of {', '.join(DELIMITERS)}, got {delimiter!r}")
    return character


class TextFile:
    """A text file of rows, plain or gzip, as bytes; what is wrong with its bytes is an error of the first row there."""

    def __init__(self, path: Path, comments: str | None = None) -> None:
        self.path = path
        self._comments = comments
        self.delimiter = ","
        self.has_header = True
        self.data, self._broken = _read_bytes(path)

    def check(self) -> None:
        """Refuses bytes that are not text, and a compressed file that breaks off."""
        at, what = -1, ""
        if self.data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise TraceError("UTF-16 text; save it as UTF-8")
        if not self.data.isascii():
            try:
                self.data.decode()
            except UnicodeDecodeError as error:
                at, what = error.start, f"not UTF-8 text: {error.reason}"
        null = self.data.find(0)
        if null >= 0 and (at < 0 or null < at):
            at, what = null, "a NUL byte; is this a text file?"
        if at < 0 and self._broken:
            at, what = len(self.data), f"the compressed file breaks off here: {self._broken}"
        if at >= 0:
            line = self.data.count(b"\n", 0, at) + 1
            if not self.data[:at].strip():
                raise TraceError(f"cannot read the header: {what}")
            row = max(line - 1, 1)
            raise TraceError(what, row, self.path, [BadRow(row, what, line)], 1)

    def reader(self, delimiter: str | None = None) -> Any:
        """A csv.reader of all rows, blank ones included."""
        character = self.delimiter if delimiter is None else delimiter
        lines: Iterable[str] = io.TextIOWrapper(io.BytesIO(self.data), encoding="utf-8-sig", newline="")
        if self._comments is not None:
            mark = self._comments
            lines = ("\n" if line.startswith(mark) else line for line in lines)
        if character == " ":
            lines = (line.replace("\t", " ").strip() for line in lines)
        return csv.reader(lines, delimiter=character, strict=True, skipinitialspace=character == " ")

    def rows(self, reader: Any) -> Iterator[list[list[str]]]:
        """The rows that are not blank, in chunks."""
        done = 0
        while True:
            chunk: list[list[str]] = []
            try:
                chunk.extend(islice(reader, _CHUNK))
            except csv.Error as error:
                done += len([fields for fields in chunk if not _is_blank(fields)])
                raise TraceError(f"cannot be read: {error}", done + 1) from error
            if not chunk:
                return
            kept = [fields for fields in chunk if not _is_blank(fields)]
            done += len(kept)
            yield kept

    def lines_of(self, rows: Sequence[int]) -> list[int | None]:
        """The line that each data row (from 1) begins on, both from 1."""
        wanted, found = set(rows), {}
        reader = self.reader()
        number, end = -1 if self.has_header else 0, 0
        try:
            for fields in reader:
                if not _is_blank(fields):
                    number += 1
                    if number in wanted:
                        found[number] = end + 1
                        if len(found) == len(wanted):
                            break
                end = reader.line_num
        except csv.Error:
            found[number + 1] = end + 1
        return [found.get(row) for row in rows]


def _is_blank(fields: list[str]) -> bool:
    return len(fields) < 2 and not (fields and fields[0].strip())


def _read_bytes(path: Path) -> tuple[bytes, str]:
    """The file's bytes, decompressed as far as that goes, and why they break off."""
    data = path.read_bytes()
    if data[:2] != b"\x1f\x8b":
        return data, ""
    parts: list[bytes] = []
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while part := file.read1(1 << 20):
                parts.append(part)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        return b"".join(parts), str(error)
    return b"".join(parts), ""


def _read_csv(text: TextFile, wanted: Mapping[str, Wanted], delimiter: str | None) -> _Raw:
    text.check()
    text.delimiter = _find_delimiter(text, wanted) if delimiter is None else delimiter
    reader = text.reader()
    names = _header(reader)
    if not names:
        raise TraceError("the file is empty")
    present = _present(names, wanted)
    if find_spec("pyarrow") is not None:
        columns = _parse_with_arrow(text, reader.line_num, names, present)
        if columns is not None:
            return _Raw(columns)
    return _parse_rows(text, reader, names, present)


def _header(reader: Any) -> list[str]:
    try:
        return [name.strip() for name in next((fields for fields in reader if not _is_blank(fields)), [])]
    except csv.Error as error:
        raise TraceError(f"cannot read the header: {error}") from error


def _find_delimiter(text: TextFile, wanted: Mapping[str, Wanted]) -> str:
    """That with which the header has the columns that must be there; else that with which it has most fields."""

    def found(delimiter: str) -> tuple[bool, int, int]:
        try:
            names = _header(text.reader(delimiter))
        except TraceError:
            return False, 0, 0
        here = [column.name in names for column in wanted.values() if column.required]
        return all(here), sum(column.name in names for column in wanted.values()), len(names)

    return max(DELIMITERS.values(), key=found)  # the first of equals


def _parse_with_arrow(
    text: TextFile, header_lines: int, names: list[str], present: Mapping[str, Wanted]
) -> dict[str, Column] | None:
    """The columns where pyarrow is certain to read what `_parse_rows` does; None elsewhere."""
    data, delimiter = text.data, text.delimiter
    places = {key: str(names.index(column.name)) for key, column in present.items()}
    integers = any(column.kind == "integer" for column in present.values())
    if (
        delimiter == " "
        or not delimiter.isascii()
        or data.count(b"\r") != data.count(b"\r\n")
        or not _quotes_are_plain(data, delimiter)
        or _longest_line(data) > csv.field_size_limit()  # the rule may refuse such a field
        or (integers and (b"0x" in data or b"0X" in data))  # pyarrow takes these as integers
    ):
        return None
    begin = 0
    for _ in range(header_lines):
        begin = data.find(b"\n", begin) + 1
        if begin == 0:
            return None
    pa = optional("pyarrow", "parquet", "this reader")
    arrow_csv = optional("pyarrow.csv", "parquet", "this reader")
    strings = pa.dictionary(pa.int32(), pa.string())
    types = {"label": strings, "flag": strings, "integer": pa.int64(), "number": pa.float64()}
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(pa.py_buffer(data).slice(begin)),
            read_options=arrow_csv.ReadOptions(column_names=list(map(str, range(len(names)))), block_size=1 << 23),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=list(set(places.values())),
                column_types={places[key]: types[column.kind] for key, column in present.items()},
                null_values=[""],
            ),
        )
        if any(table.column(place).null_count for place in places.values()):
            return None
        columns = {key: _from_arrow(table.column(places[key]), key, column.kind) for key, column in present.items()}
    except (ValueError, OSError, pa.ArrowException):
        return None
    for column in columns.values():
        if isinstance(column, Labels):
            if not all(str(label).strip() for label in column.ids):
                return None
        elif column.dtype.kind == "f" and not (column.min(initial=0) >= 0 and column.max(initial=0) < np.inf):
            return None
    return columns


def _longest_line(data: bytes) -> int:
    ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))
    return int(np.diff(ends, prepend=-1, append=len(data)).max())


def _quotes_are_plain(data: bytes, delimiter: str) -> bool:
    """Whether each quote opens or closes a whole field of one line, with none inside."""
    if b'"' not in data:
        return True
    values = np.frombuffer(b"\n" + data.removeprefix(b"\xef\xbb\xbf") + b"\n", dtype=np.uint8)
    quotes, ends = np.flatnonzero(values == ord('"')), np.flatnonzero(values == ord("\n"))
    if quotes.size % 2:
        return False
    opening, closing = quotes[0::2], quotes[1::2]
    edges = [ord(delimiter), ord("\n"), ord("\r")]
    return bool(
        np.isin(values[opening - 1], edges[:2]).all()
        and np.isin(values[closing + 1], edges).all()
        and np.array_equal(np.searchsorted(ends, opening), np.searchsorted(ends, closing))
    )


def _parse_rows(text: TextFile, reader: Any, names: list[str], present: Mapping[str, Wanted]) -> _Raw:
    """The rule: what csv.reader gives, each field by its column's kind. Row numbers count rows that are not blank."""
    cells = {key: ColumnCells(key, column.kind) for key, column in present.items()}
    places = {key: names.index(column.name) for key, column in present.items()}
    raw = _Raw({})
    numbers, row = [np.zeros(0, np.int64)], 0
    for chunk in text.rows(reader):
        number = np.arange(row, row + len(chunk))
        row += len(chunk)
        width = np.fromiter(map(len, chunk), np.int64, len(chunk))
        if np.any(width != len(names)):
            wrong = np.flatnonzero(width != len(names))
            raw.bad.append((number[wrong], _width_reasons(width[wrong], len(names))))
            chunk = [fields for fields in chunk if len(fields) == len(names)]
            number = np.delete(number, wrong)
        for key, column in cells.items():
            place = places[key]
            column.add([fields[place] for fields in chunk], number)
        numbers.append(number)
    raw.rows = np.concatenate(numbers)
    raw.columns = {key: column.values() for key, column in cells.items()}
    raw.bad += [group for column in cells.values() for group in column.bad]
    raw.missing += [group for column in cells.values() for group in column.missing]
    if raw.rows.size == row:
        raw.rows = None
    return raw


def _width_reasons(width: NDArray[np.int64], expected: int) -> Reasons:
    return lambda i: f"{width[i]} fields where the header has {expected}: is the file cut?"


class ColumnCells:
    """A column that is read chunk by chunk. A cell that is missing or bad holds a place, and is noted."""

    def __init__(self, name: str, kind: Kind) -> None:
        self.name, self.kind = name, kind
        self.bad: list[tuple[NDArray[np.int64], Reasons]] = []
        self.missing: list[tuple[NDArray[np.int64], Reasons]] = []
        self._parts: list[NDArray[Any]] = []
        self._codes: dict[str, int] = {}

    def add(self, texts: list[str], rows: NDArray[np.int64]) -> None:
        if self.kind == "label":
            codes = self._codes
            self._parts.append(np.array([codes.setdefault(text, len(codes)) for text in texts], dtype=np.int64))
            return
        values = self._parsed_at_once(texts)
        if values is None:
            values = np.zeros(len(texts), _DTYPES[self.kind])
            absent: list[int] = []
            wrong: list[int] = []
            for i, text in enumerate(texts):
                value = parse_cell(text, self.kind)
                if value is not None:
                    values[i] = value
                else:
                    (absent if text.strip().lower() in MISSING else wrong).append(i)
            self._note(rows, absent, texts, self.missing)
            self._note(rows, wrong, texts, self.bad)
        self._parts.append(values)

    def _parsed_at_once(self, texts: list[str]) -> NDArray[Any] | None:
        """What `parse_cell` gives for each, or None where that is not certain."""
        if self.kind == "flag":
            flags = {text: parse_cell(text, "flag") for text in set(texts)}
            return None if None in flags.values() else np.array([flags[text] for text in texts], dtype=np.bool_)
        joined = "".join(texts)
        if not joined.isascii() or "_" in joined:
            return None
        try:
            if self.kind == "integer":
                return np.array(list(map(int, texts)), dtype=np.int64)
            return np.array(list(map(float, texts)), dtype=np.float64)
        except (ValueError, OverflowError):
            return None

    def _note(
        self,
        rows: NDArray[np.int64],
        places: list[int],
        texts: list[str],
        into: list[tuple[NDArray[np.int64], Reasons]],
    ) -> None:
        if places:
            found = [texts[i] for i in places]
            into.append((rows[places], lambda i: _cell_reason(self.name, found[i], self.kind)))

    def values(self) -> Column:
        if self.kind == "label":
            return Labels(
                np.concatenate([np.zeros(0, np.int64), *self._parts]), np.array(list(self._codes), np.object_)
            )
        return np.concatenate([np.zeros(0, _DTYPES[self.kind]), *self._parts])


_DTYPES: dict[Kind, Any] = {"integer": np.int64, "number": np.float64, "flag": np.bool_}


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


def _cell_reason(name: str, text: str, kind: Kind) -> str:
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


# NPZ


def _read_npz(path: Path, wanted: Mapping[str, Wanted]) -> _Raw:
    columns: dict[str, Column] = {}
    with open_npz(path, "a whole NPZ file") as file:
        for key, column in _present(file.files, wanted).items():
            columns[key] = _from_numpy(file[column.name], key, column.kind)
    return _Raw(columns)


def _from_numpy(values: NDArray[Any], name: str, kind: Kind) -> Column:
    allowed = {"label": "iuU", "integer": "iu", "number": "iuf", "flag": "biu"}[kind]
    if values.dtype.kind not in allowed:
        raise TraceError(f"{name} has type {values.dtype}, which is not a {kind}")
    if values.ndim != 1:
        raise TraceError(f"{name} must be a vector, not of shape {values.shape}")
    return values


# Parquet


def _read_parquet(path: Path, wanted: Mapping[str, Wanted]) -> _Raw:
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
    raw = _Raw({})
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
            raw.columns[key] = _from_arrow(table.column(column.name), key, column.kind)
    except TraceError as error:
        if raw.rows is None:
            raise
        raise in_file(error, [int(raw.rows[bad.row - 1]) + 1 for bad in error.bad], path, None) from None
    return raw


def _from_arrow(column: Any, name: str, kind: Kind) -> Column:
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
