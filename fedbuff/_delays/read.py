"""Files of recorded delays: `read_trace` and `read_arrival_log`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.checks import mapping, number, shown
from .._base.files import (
    FileError,
    file_format,
    open_npz,
    reading,
)
from .arrival_log import ArrivalLog
from .availability import Availability
from .bad_rows import TraceError
from .clients import Tasks
from .columns import FORMATS, read_columns
from .table import (
    Column,
    Kind,
    Labels,
    Missing,
    Wanted,
)
from .trace import PARTS, End, Trace

_SECONDS_IN = {"min": 60.0, "h": 3600.0}
_IN_A_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # dividing rounds once; 1e-3 would round twice


def in_seconds(values: NDArray[np.float64], unit: str | float) -> NDArray[np.float64]:
    """`values` of a named unit, or of so many seconds each, in seconds."""
    if isinstance(unit, str):
        if unit in _SECONDS_IN:
            return values * _SECONDS_IN[unit]
        if unit not in _IN_A_SECOND:
            known = ", ".join([*_IN_A_SECOND, *_SECONDS_IN])
            raise ValueError(f"unit: expected one of {known}, or how many seconds it has, got {shown(unit)}")
        return values if unit == "s" else values / _IN_A_SECOND[unit]
    return values * number("unit", unit, open_low=True)


def _wanted(
    columns: Mapping[str, str | None] | None, known: Mapping[str, tuple[Kind, bool]], client: int | str | None
) -> dict[str, Wanted]:
    names = {} if columns is None else mapping("columns", columns)
    if client is not None:
        if names.get("client") is not None:
            raise ValueError(f"client: give the one client {client!r} or a column of them, not both")
        names["client"] = None
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"columns: {unknown[0]!r} is not one of {', '.join(known)}")
    wanted = {}
    for name, (kind, required) in known.items():
        in_file = names.get(name, name)
        if in_file is not None:
            wanted[name] = Wanted(in_file, kind, required or name in names)
    return wanted


def _times(columns: Mapping[str, Column], name: str, unit: str | float) -> NDArray[np.float64] | None:
    values = columns.get(name)
    if values is None or isinstance(values, Labels):
        return None
    return in_seconds(values.astype(np.float64, copy=False), unit)


def read_trace(
    path: str | os.PathLike[str],
    *,
    columns: Mapping[str, str | None] | None = None,
    unit: str | float = "s",
    clients: int | Sequence[Any] | NDArray[Any] | None = None,
    end: End = "wrap",
    availability: Availability | None = None,
    client: int | str | None = None,
    tasks: Tasks = "number",
    missing: Missing = "error",
    delimiter: str | None = None,
) -> Trace:
    """Reads a delay trace from .csv, .tsv (also .gz), .npz or .parquet (needs pyarrow).

    The file has columns client, [task], [wait], [download], compute or total, [upload], [ok]; others are ignored.
    `columns` maps these names to the file's ({"compute": "batch_time"}; None leaves one out), `unit` is the unit of the
    times ("s", "ms", "us", "ns", "min", "h", or the seconds in one). The rest is as in `Trace`.

    client     the one client of all rows, where the file has no column of them
    tasks      "number": a client's task numbers are 0, 1, 2, ...; "order": they may begin anywhere and have gaps
    missing    "drop" leaves out rows in which a value is empty, NaN, NA, N/A, null or None; they are errors else
    delimiter  of a text file: a character, or comma, tab, semicolon, pipe or blanks; None finds it by the header

    A `TraceError` is about all bad rows at once. It names the first few by their lines, as an editor shows
    them; by data rows, counted from 1, where the file is not text.
    """
    known: dict[str, tuple[Kind, bool]] = {
        "client": ("label", True),
        "task": ("integer", False),
        "wait": ("number", False),
        "download": ("number", False),
        "compute": ("number", False),
        "total": ("number", False),
        "upload": ("number", False),
        "ok": ("flag", False),
    }
    in_seconds(np.zeros(0), unit)
    table = read_columns(path, _wanted(columns, known, client), missing=missing, delimiter=delimiter)
    read = table.columns
    stored = None
    if availability is None and file_format(path, FORMATS) == "npz":
        try:
            availability = stored = _stored_availability(path)
        except TraceError as error:
            raise TraceError(f"availability: {error.reason}", path=path) from None
        except FileError as error:
            raise TraceError(error.reason, path=path) from error
    if ("compute" in read) == ("total" in read):
        both = (
            "compute and total: leave one out with columns={'total': None}"
            if "compute" in read
            else "neither compute nor total"
        )
        raise TraceError(f"the file has {both}", path=path)
    if "total" in read:
        read = {name: values for name, values in read.items() if name not in ("download", "upload")}
    try:
        return Trace(
            _client_column(read, client),
            **{name: _times(read, name, unit) for name in (*PARTS, "total")},
            task=_plain(read.get("task")),
            ok=_plain(read.get("ok")),
            clients=clients,
            end=end,
            availability=availability,
            tasks=tasks,
        )
    except TraceError as error:
        raise table.located(error) from None
    except ValueError as error:
        if stored is None:
            raise
        raise TraceError(str(error), path=path) from None


def _client_column(read: Mapping[str, Column], client: int | str | None) -> Column:
    """The column of clients, or the one client as often as there are rows."""
    if client is None:
        return read["client"]
    if isinstance(client, bool) or not isinstance(client, int | str):
        raise TypeError(f"client: expected an int or a string, got {type(client).__name__}")
    n = next(values.size for values in read.values() if isinstance(values, np.ndarray))
    return Labels(np.zeros(n, np.int64), np.array([client]))


def _plain(column: Column | None) -> NDArray[Any] | None:
    return None if isinstance(column, Labels) else column


def _stored_availability(path: str | os.PathLike[str]) -> Availability | None:
    what = "a whole NPZ file"
    with reading(path, what), open_npz(path, what) as file:
        if "availability_offsets" not in file.files:
            return None
        offsets = file["availability_offsets"]
        if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or offsets.size < 2 or offsets[0] != 0:
            raise ValueError(f"availability_offsets is {offsets.dtype} {offsets.shape}")
        if np.any(np.diff(offsets) < 0) or file["availability_begin"].shape != (offsets[-1],):
            raise ValueError("availability_offsets does not fit availability_begin")
        return Availability(
            np.repeat(np.arange(offsets.size - 1), np.diff(offsets)),
            file["availability_begin"],
            file["availability_end"],
            n_clients=offsets.size - 1,
            period=file["availability_period"] if "availability_period" in file.files else None,
            policy=file.text("availability_policy"),  # type: ignore[arg-type]
        )


def read_arrival_log(
    path: str | os.PathLike[str],
    *,
    columns: Mapping[str, str | None] | None = None,
    unit: str | float = "s",
    clients: int | Sequence[Any] | NDArray[Any] | None = None,
    client: int | str | None = None,
    missing: Missing = "error",
    delimiter: str | None = None,
) -> ArrivalLog:
    """Reads an arrival log: columns client, [version], [start_time], arrive_time, [step]; the rest as `read_trace`."""
    known: dict[str, tuple[Kind, bool]] = {
        "client": ("label", True),
        "version": ("integer", False),
        "start_time": ("number", False),
        "arrive_time": ("number", True),
        "step": ("integer", False),
    }
    in_seconds(np.zeros(0), unit)
    table = read_columns(path, _wanted(columns, known, client), missing=missing, delimiter=delimiter)
    read = table.columns
    if "version" not in read and "start_time" not in read:
        raise TraceError("the file has neither version nor start_time", path=path)
    arrive = _times(read, "arrive_time", unit)
    assert arrive is not None
    try:
        return ArrivalLog(
            _client_column(read, client),
            arrive,
            version=_plain(read.get("version")),
            start_time=_times(read, "start_time", unit),
            step=_plain(read.get("step")),
            clients=clients,
        )
    except TraceError as error:
        raise table.located(error) from None
