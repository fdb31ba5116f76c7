"""Files of schedules."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .._base.files import (
    check_parquet,
    file_format,
    open_npz,
    optional,
    reading,
    replacing_bytes,
)
from .check import check_columns
from .columns import FORMAT_VERSION, FORMATS, IN_FLIGHT_COLUMNS, ROW_COLUMNS, SCALARS, STEP_COLUMNS, Status
from .schedule import _ROW_GROUP, _WHAT, Schedule, _from_state, resolved


class ScheduleWriter:
    """Writes a schedule to one Parquet file as its chunks come; the file appears when all is written.

    Every chunk is a `Schedule` that goes on where the one before ended; the last one's tasks in flight are kept.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if file_format(path, FORMATS) != "parquet":
            raise ValueError(f"{Path(path).name}: only .parquet can be written in chunks")
        self._pa = optional("pyarrow", "parquet", "writing Parquet")
        self._pq = optional("pyarrow.parquet", "parquet", "writing Parquet")
        self._replacing = replacing_bytes(path)
        self._writer: Any = None
        self._last: Schedule | None = None
        self._first: Schedule | None = None

    def __enter__(self) -> Self:
        file = self._replacing.__enter__()
        try:
            self._writer = self._pq.ParquetWriter(
                file, _parquet_schema(self._pa), use_dictionary=["event", "status"], write_page_checksum=True
            )
        except BaseException as error:
            self._replacing.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def write(self, chunk: Schedule) -> None:
        self._first = self._first or chunk
        self._last = chunk
        rows = {name: getattr(chunk, name) for name in ROW_COLUMNS}
        self._append("arrival", chunk.n_arrivals, rows)
        steps = chunk.first_step + np.arange(chunk.n_steps)
        self._append(
            "step", chunk.n_steps, {"step": steps, "arrive_time": chunk.step_time, "started": chunk.step_started}
        )

    def _append(self, event: str, length: int, columns: Mapping[str, NDArray[Any]]) -> None:
        """A row group at a time, so that signals are heard in between."""
        for begin in range(0, length, _ROW_GROUP):
            part = {name: column[begin : begin + _ROW_GROUP] for name, column in columns.items()}
            self._append_rows(event, min(_ROW_GROUP, length - begin), part)

    def _append_rows(self, event: str, length: int, columns: Mapping[str, NDArray[Any]]) -> None:
        pa = self._pa
        schema = _parquet_schema(pa)
        arrays = []
        for field in schema:
            if field.name == "event":
                code = pa.array(np.full(length, _EVENTS.index(event), dtype=np.int8))
                arrays.append(pa.DictionaryArray.from_arrays(code, list(_EVENTS)))
            elif field.name == "status" and field.name in columns:
                codes = pa.array(columns["status"].astype(np.int8))
                arrays.append(pa.DictionaryArray.from_arrays(codes, [status.name.lower() for status in Status]))
            elif field.name in columns:
                arrays.append(pa.array(columns[field.name], type=field.type))
            else:
                arrays.append(pa.nulls(length, type=field.type))
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=schema))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            try:
                if error is None:
                    self._finish()
            finally:
                self._writer.close()
        except BaseException as failure:
            kind, error, where = type(failure), failure, failure.__traceback__
            raise
        finally:
            self._replacing.__exit__(kind, error, where)

    def _finish(self) -> None:
        if self._first is None or self._last is None:
            raise ValueError("no chunk was written")
        last = self._last
        flying = {name.removeprefix("in_flight_"): getattr(last, name) for name in IN_FLIGHT_COLUMNS}
        self._append("in_flight", last.in_flight_client.size, flying)
        self._writer.add_key_value_metadata({"fedbuff_schedule": self._first._header()})


_EVENTS = ("arrival", "step", "in_flight")


def _parquet_schema(pa: Any) -> Any:
    label = pa.dictionary(pa.int8(), pa.string())
    types = {name: label if name == "status" else pa.from_numpy_dtype(dtype) for name, dtype in ROW_COLUMNS.items()}
    return pa.schema([("event", label), *types.items(), ("started", pa.int64())])


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
    return _from_state(
        {
            **header,
            **columns("arrival", {name: name for name in ROW_COLUMNS}, ROW_COLUMNS),
            **columns("step", {"step_time": "arrive_time", "step_started": "started"}, STEP_COLUMNS),
            **columns("in_flight", in_flight, IN_FLIGHT_COLUMNS),
        }
    )


def _status_codes(column: Any) -> NDArray[np.uint8]:
    """Statuses of a dictionary column of their names, whatever order its dictionary has."""
    merged = column.unify_dictionaries().combine_chunks()
    if len(merged) == 0:
        return np.zeros(0, dtype=np.uint8)
    codes = np.array([Status[name.upper()] for name in merged.dictionary.to_pylist()], dtype=np.uint8)
    statuses: NDArray[np.uint8] = codes[merged.indices.to_numpy()]
    return statuses
