"""Writing of schedules to Parquet files, whole or chunk by chunk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from .._base.files import file_format, optional, replacing_bytes
from .columns import FORMATS, IN_FLIGHT_COLUMNS, ROW_COLUMNS, Status

if TYPE_CHECKING:
    from .schedule import Schedule

_ROW_GROUP = 1 << 20
_EVENTS = ("arrival", "step", "in_flight")


class ScheduleWriter:
    """Writes a schedule to one Parquet file as its chunks come; the file appears when all is written.

    Every chunk is a `Schedule` that goes on where the one before ended; the last one's tasks in flight are kept.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if file_format(path, FORMATS) != "parquet":
            raise ValueError(f"{Path(path).name}: expected a .parquet file, which alone is written in chunks")
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
            raise ValueError("schedule: no chunk was written")
        last = self._last
        flying = {name.removeprefix("in_flight_"): getattr(last, name) for name in IN_FLIGHT_COLUMNS}
        self._append("in_flight", last.in_flight_client.size, flying)
        self._writer.add_key_value_metadata({"fedbuff_schedule": self._first._header()})


def _parquet_schema(pa: Any) -> Any:
    label = pa.dictionary(pa.int8(), pa.string())
    types = {name: label if name == "status" else pa.from_numpy_dtype(dtype) for name, dtype in ROW_COLUMNS.items()}
    return pa.schema([("event", label), *types.items(), ("started", pa.int64())])
