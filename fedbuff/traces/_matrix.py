"""`Matrix`: a table of rounds x workers, from an array or a file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.arrays import to_array
from .._base.files import (
    MOST_EXPANSION,
    SMALL,
    FileError,
    file_format,
    read_npy,
)
from .._delays.bad_rows import Reasons, TraceError, bad_rows
from .._delays.columns import in_file
from .._delays.table import (
    MISSING,
    labels_from_text,
    parse_cell,
)
from .._delays.text_file import ColumnCells, TextFile, as_delimiter
from ._devices import PathLike

_MATRICES = {".npy": "npy", ".csv": "text", ".txt": "text", ".dat": "text", ".tsv": "text", ".gz": "text"}
_INDEX_NAME = re.compile(r"|Unnamed: \d+(\.\d+)?")  # pandas writes the first, and reads it as the second


@dataclass(frozen=True)
class Matrix:
    """Rounds x workers, NaN where a value is missing; the workers' ids where a header has them, and the bad rows."""

    values: NDArray[np.float64]
    ids: NDArray[Any] | None = None
    path: PathLike | None = None
    text: TextFile | None = None
    bad: tuple[tuple[NDArray[np.int64], Reasons], ...] = ()

    @property
    def clients(self) -> NDArray[Any]:
        return np.arange(self.values.shape[1]) if self.ids is None else self.ids

    def worker(self, number: int) -> str:
        return f"worker {number if self.ids is None else self.ids[number]}"

    def refuse(self, groups: Iterable[tuple[NDArray[np.int64], Reasons]], hint: str = "") -> None:
        """Refuses the rows of the groups, all at once, by their lines where the matrix is a text file."""
        error = bad_rows(groups, hint)
        if error is not None:
            raise in_file(error, [bad.row for bad in error.bad], self.path, self.text)

    def cells(self, chosen: NDArray[np.bool_], what: Callable[[str, float], str]) -> list[Any]:
        """The chosen cells as a group for each worker; what(worker, value) says what is wrong with one."""

        def group(number: int) -> tuple[NDArray[np.int64], Reasons]:
            rows = np.flatnonzero(chosen[:, number])
            return rows, lambda i: what(self.worker(number), float(self.values[rows[i], number]))

        return [group(number) for number in np.flatnonzero(chosen.any(axis=0)).tolist()]


def read_matrix(source: PathLike | ArrayLike, what: str, delimiter: str | None, header: bool | None) -> Matrix:
    """A rounds x workers table: an array, a data frame, .npy, or text, with or without a header and an index column."""
    if isinstance(source, str | os.PathLike):
        if file_format(source, _MATRICES, "source") == "text":
            return _text_matrix(Path(source), as_delimiter(delimiter), header)
        try:
            table = read_npy(source, "a whole NPY file")
        except FileError as error:
            raise TraceError(error.reason, path=source) from error
        path, names = source, None
    else:
        table, path, names = to_array("source", source), None, getattr(source, "columns", None)
    if table.dtype.kind not in "iuf":
        if path is None:
            raise TypeError(f"source: the {what}: expected numbers, got {table.dtype}")
        raise TraceError(f"the {what}: expected numbers, got {table.dtype}", path=path)
    if table.ndim != 2 or 0 in table.shape:
        raise TraceError(
            f"source: the {what}: expected a matrix of rounds x workers, got shape {table.shape}", path=path
        )
    return Matrix(table.astype(np.float64), None if names is None else _worker_ids(list(names), path), path)


def _worker_ids(names: Sequence[Any], path: PathLike | None) -> NDArray[Any]:
    text = [str(name) for name in names]
    seen: set[str] = set()
    twice = next((name for name in text if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]
    if twice is not None:
        raise TraceError(f"column {twice!r} appears twice", path=path)
    if "" in text:
        raise TraceError(f"column {text.index('') + 1} has no name", path=path)
    return labels_from_text(text, np.arange(len(text))).ids


def _text_matrix(path: Path, delimiter: str | None, header: bool | None) -> Matrix:
    text = TextFile(path, comments="#")
    try:
        text.check()
        text.delimiter = _matrix_delimiter(text) if delimiter is None else delimiter
        text.has_header = False
        rows = [fields for chunk in text.rows(text.reader()) for fields in chunk]
        if not rows:
            raise TraceError("the file is empty")
        text.has_header = _has_header(rows) if header is None else header
        names = [name.strip() for name in rows.pop(0)] if text.has_header else None
        if not rows:
            raise TraceError("the file has no rows")
    except TraceError as error:
        if error.path is not None:
            raise
        raise in_file(error, [bad.row for bad in error.bad], path, text) from error.__cause__
    if names is not None and all(len(fields) == len(names) + 1 for fields in rows):
        names.insert(0, "")  # R names every column but that of its row names
    width = len(rows[0]) if names is None else len(names)
    first = 0
    while names is not None and first < width and _INDEX_NAME.fullmatch(names[first]):
        first += 1
    ids = None if names is None else _worker_ids(names[first:], path)
    if first == width:
        raise TraceError("the file has no column of a worker", path=path)
    ragged = np.flatnonzero([len(fields) != width for fields in rows])
    expected = "the header has" if names is not None else "the first row has"
    counts = [len(rows[row]) for row in ragged]
    bad = [(ragged, lambda i: f"{counts[i]} values where {expected} {width}")]
    if ragged.size and 8 * len(rows) * width > max(SMALL, MOST_EXPANSION * len(text.data)):  # a few values, a long row
        Matrix(np.zeros((0, 0)), ids, path, text).refuse(bad)
    number = np.delete(np.arange(len(rows)), ragged)
    values = np.zeros((len(rows), width - first))
    for worker in range(first, width):
        name = f"worker {worker if ids is None else ids[worker - first]}"
        column = ColumnCells(name, "number")
        column.add([rows[row][worker] for row in number], number)
        values[number, worker - first] = np.asarray(column.values())
        for absent, _ in column.missing:
            values[absent, worker - first] = np.nan
        bad += column.bad
    return Matrix(values, ids, path, text, tuple(bad))


def _matrix_delimiter(text: TextFile) -> str:
    """The first of comma, semicolon, pipe and tab that the first row has; blanks where tabs are only some of them."""
    lines = [line for line in text.data.decode("utf-8-sig").splitlines() if line.strip() and line[0] != "#"]
    if not lines:
        return ","
    for delimiter in ",;|":
        if delimiter in lines[0]:
            return delimiter
    tabs = {line.count("\t") for line in lines}
    return "\t" if 0 not in tabs and max(tabs) - min(tabs) <= 1 else " "


def _has_header(rows: list[list[str]]) -> bool:
    """Whether the first row names the workers; refused where that is not certain."""
    first = [name.strip() for name in rows[0]]
    if any(parse_cell(name, "number") is None and name.lower() not in MISSING for name in first):
        return True
    index = [fields[0].strip() for fields in rows[1:] if fields]
    if first[0] == "" and index and (index == list(map(str, range(len(index)))) or not _are_numbers(index)):
        return True
    if len(first) > 1 and len(rows) > 1 and first == list(map(str, range(len(first)))):
        raise TraceError(
            f"the first row is 0 to {len(first) - 1}, which may be names or values; "
            "header=True (--header) or header=False (--no-header) says which",
            1,
        )
    return False


def _are_numbers(fields: Iterable[str]) -> bool:
    return all(parse_cell(field, "number") is not None for field in fields)
