"""Reading of files of schedules."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.files import check_parquet, file_format, open_npz, optional, reading
from .check import check_columns
from .columns import FORMAT_VERSION, FORMATS, IN_FLIGHT_COLUMNS, ROW_COLUMNS, SCALARS, STEP_COLUMNS, Status
from .schedule import Schedule, resolved

_WHAT = "a schedule, or not a whole one"


def load_schedule(path: str | os.PathLike[str]) -> Schedule:
    """Reads what `Schedule.save` wrote; a file that is damaged or holds something else is a FileError."""
    load: Callable[[Path], Schedule] = {"npz": _load_npz, "parquet": _load_parquet}[file_format(path, FORMATS)]
    with reading(path, _WHAT):
        loaded = load(Path(path))
        check_columns(loaded)
        return resolved(loaded)


def _read_header(text: str) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(text)
    if not isinstance(header, dict) or not {"format", "description", *SCALARS} >= header.keys():
        raise ValueError("its header is another's")
    form = header.pop("format")
    if form != FORMAT_VERSION:
        raise ValueError(f"its format is {form}, this version reads {FORMAT_VERSION}")
    return header


def _load_npz(path: Path) -> Schedule:
    with open_npz(path, _WHAT) as file:
        header = _read_header(file.text("fedbuff_schedule"))
        columns: dict[str, Any] = {name: file[name] for group in Schedule._GROUPS for name in group}
        return Schedule(**header, **columns, copy=False)


def _load_parquet(path: Path) -> Schedule:
    pq = optional("pyarrow.parquet", "parquet", "reading Parquet")
    metadata = check_parquet(path, _WHAT).metadata or {}
    if b"fedbuff_schedule" not in metadata:
        raise ValueError("its metadata has no entry fedbuff_schedule")
    header = _read_header(metadata[b"fedbuff_schedule"].decode())

    def columns(kind: str, names: Mapping[str, str], types: Mapping[str, type[np.generic]]) -> dict[str, NDArray[Any]]:
        rows = pq.read_table(
            path,
            columns=list(names.values()),
            filters=[("event", "==", kind)],
            partitioning=None,
            page_checksum_verification=True,
        )
        found = {}
        for ours, theirs in names.items():
            column = rows.column(theirs)
            values = _status_codes(column) if ours == "status" else column.to_numpy()
            found[ours] = values.astype(types[ours], copy=False)
        return found

    in_flight = {name: name.removeprefix("in_flight_") for name in IN_FLIGHT_COLUMNS}
    found: dict[str, Any] = {
        **columns("arrival", {name: name for name in ROW_COLUMNS}, ROW_COLUMNS),
        **columns("step", {"step_time": "arrive_time", "step_started": "started"}, STEP_COLUMNS),
        **columns("in_flight", in_flight, IN_FLIGHT_COLUMNS),
    }
    return Schedule(**header, **found, copy=False)


def _status_codes(column: Any) -> NDArray[np.uint8]:
    """Statuses of a dictionary column of their names, whatever order its dictionary has."""
    merged = column.unify_dictionaries().combine_chunks()
    if len(merged) == 0:
        return np.zeros(0, dtype=np.uint8)
    codes = np.array([Status[name.upper()] for name in merged.dictionary.to_pylist()], dtype=np.uint8)
    statuses: NDArray[np.uint8] = codes[merged.indices.to_numpy()]
    return statuses
