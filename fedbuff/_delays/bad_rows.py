"""`TraceError`: which rows of a file are bad, and why."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.files import FileError

_SHOWN = 5  # bad rows that an error lists


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
    """The error about the rows (from 0, sorted) of all groups, or None. reasons(i) is about row i of its group."""
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
    error = bad_rows(bad_times(columns, nan=True))
    if error is not None:
        raise error


def bad_times(columns: Mapping[str, NDArray[np.float64]], nan: bool) -> Iterator[tuple[NDArray[np.int64], Reasons]]:
    for name, values in columns.items():
        if values.size and not (values.min() >= 0 and values.max() < np.inf):  # NaN fails both
            bad = (values < 0) | np.isinf(values)
            rows = np.flatnonzero(bad | np.isnan(values) if nan else bad)
            yield rows, time_reasons(name, values[rows])


def time_reasons(name: str, values: NDArray[np.float64]) -> Reasons:
    def reason(i: int) -> str:
        value = float(values[i])
        if np.isnan(value):
            return f"{name} is NaN"
        return f"{name} {value!r} is {'negative' if value < 0 else 'infinite'}"

    return reason
