"""Text files of delays: bytes, delimiters and cells, by one rule with and without pyarrow."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.files import FileError, open_plain, optional
from .bad_rows import BadRow, Reasons, TraceError
from .table import (
    DTYPES,
    MISSING,
    Column,
    Kind,
    Labels,
    RawTable,
    Wanted,
    cell_reason,
    from_arrow,
    parse_cell,
    present_columns,
)

DELIMITERS = {"comma": ",", "tab": "\t", "semicolon": ";", "pipe": "|", "blanks": " "}
_CHUNK = 1 << 16  # rows that are parsed at once


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
    parts: list[bytes] = []
    try:
        with open_plain(path) as file:
            if isinstance(file.raw, io.FileIO):
                return file.read(), ""
            while part := file.read1(1 << 20):
                parts.append(part)
    except FileError as error:
        raise TraceError(error.reason, path=path) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        return b"".join(parts), str(error)
    return b"".join(parts), ""


def read_csv(text: TextFile, wanted: Mapping[str, Wanted], delimiter: str | None) -> RawTable:
    text.check()
    text.delimiter = _find_delimiter(text, wanted) if delimiter is None else delimiter
    reader = text.reader()
    names = _header(reader)
    if not names:
        raise TraceError("the file is empty")
    present = present_columns(names, wanted)
    if find_spec("pyarrow") is not None:
        columns = _parse_with_arrow(text, reader.line_num, names, present)
        if columns is not None:
            return RawTable(columns)
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
        or (b"\r" in data and data.count(b"\r") != data.count(b"\r\n"))
        or not _quotes_are_plain(data, delimiter)
        or not _lines_are_shorter(data, csv.field_size_limit())  # the rule may refuse such a field
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
        columns = {key: from_arrow(table.column(places[key]), key, column.kind) for key, column in present.items()}
    except (ValueError, OSError, pa.ArrowException):
        return None
    for column in columns.values():
        if isinstance(column, Labels):
            if not all(str(label).strip() for label in column.ids):
                return None
        elif column.dtype.kind == "f" and not (column.min(initial=0) >= 0 and column.max(initial=0) < np.inf):
            return None
    return columns


def _lines_are_shorter(data: bytes, most: int) -> bool:
    """Whether every line is shorter than that: each stretch of so many bytes after a line's end has another."""
    begin = 0
    while len(data) - begin >= most:
        end = data.rfind(b"\n", begin, begin + most)
        if end < 0:
            return False
        begin = end + 1
    return True


def _quotes_are_plain(data: bytes, delimiter: str) -> bool:
    """Whether each quote opens or closes a whole field of one line, with none inside."""
    last = data.rfind(b'"')
    if last < 0:
        return True
    values = np.frombuffer(b"\n" + data[: last + 2].removeprefix(b"\xef\xbb\xbf") + b"\n", dtype=np.uint8)
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


def _parse_rows(text: TextFile, reader: Any, names: list[str], present: Mapping[str, Wanted]) -> RawTable:
    """The rule: what csv.reader gives, each field by its column's kind. Row numbers count rows that are not blank."""
    cells = {key: ColumnCells(key, column.kind) for key, column in present.items()}
    places = {key: names.index(column.name) for key, column in present.items()}
    raw = RawTable({})
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
            values = np.zeros(len(texts), DTYPES[self.kind])
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
            into.append((rows[places], lambda i: cell_reason(self.name, found[i], self.kind)))

    def values(self) -> Column:
        if self.kind == "label":
            return Labels(
                np.concatenate([np.zeros(0, np.int64), *self._parts]), np.array(list(self._codes), np.object_)
            )
        return np.concatenate([np.zeros(0, DTYPES[self.kind]), *self._parts])
