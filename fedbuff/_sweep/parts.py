"""Parts of a sweep's folder: files of many rows each, as Parquet or NPZ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._base.files import NpzReader, check_parquet, open_npz, optional, reading, save_npz
from .columns import MISSING, TYPES, Column, Kind, Ragged, Row, Schema, column_of, is_list

__all__ = ["PartFormat", "default_format", "part_format", "read_part"]

_A_PART = "a whole part of a sweep"


class ParquetParts:
    """Parts as Parquet files, with checksums."""

    ending = ".parquet"

    def __init__(self) -> None:
        self._pa = optional("pyarrow", "parquet", "this sweep's parts")
        self._pq = optional("pyarrow.parquet", "parquet", "this sweep's parts")

    def _type(self, kind: Kind) -> Any:
        pa = self._pa
        whole, number = pa.int64(), pa.float64()
        types = {"text": pa.string(), "bool": pa.bool_(), "int": whole, "seed": pa.uint64(), "float": number}
        return {**types, "ints": pa.list_(whole), "floats": pa.list_(number)}[kind]

    def write(self, path: Path, schema: Schema, rows: Sequence[Row]) -> None:
        pa = self._pa
        arrays = []
        for name, kind in schema.items():
            values = [row.get(name) for row in rows]
            if is_list(kind):
                column = column_of(kind, values)
                assert isinstance(column, Ragged)
                arrays.append(pa.ListArray.from_arrays(column.offsets.astype(np.int32), column.values))
            else:
                arrays.append(pa.array(values, self._type(kind)))
        fields = [pa.field(name, self._type(kind)) for name, kind in schema.items()]
        table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
        with path.open("wb") as file:  # errors of pyarrow's own files have no number
            self._pq.write_table(table, file, compression="zstd", write_page_checksum=True)

    def read(self, path: Path, schema: Schema) -> dict[str, Column]:
        check_parquet(path)
        table = self._pq.read_table(path, columns=list(schema), partitioning=None, page_checksum_verification=True)
        return {name: self._numpy(table.column(name).combine_chunks(), kind) for name, kind in schema.items()}

    def _numpy(self, array: Any, kind: Kind) -> Column:
        if is_list(kind):
            offsets = array.offsets.to_numpy().astype(np.int64)
            return Ragged(array.values.to_numpy(zero_copy_only=False)[offsets[0] : offsets[-1]], offsets - offsets[0])
        if array.null_count:
            array = array.fill_null(MISSING[kind])
        values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return values.astype(TYPES[kind], copy=False)


class NpzParts:
    """Parts as NPZ files: two arrays, values and offsets, for a column of lists."""

    ending = ".npz"

    def write(self, path: Path, schema: Schema, rows: Sequence[Row]) -> None:
        arrays: dict[str, NDArray[Any]] = {}
        for name, kind in schema.items():
            column = column_of(kind, [row.get(name) for row in rows])
            if isinstance(column, Ragged):
                arrays |= {f"{name}/values": column.values, f"{name}/offsets": column.offsets}
            else:
                arrays[f"{name}/values"] = column.astype(np.str_) if kind == "text" else column
        with path.open("wb") as file:
            save_npz(file, arrays, compressed=True)

    def read(self, path: Path, schema: Schema) -> dict[str, Column]:
        with open_npz(path, _A_PART) as file:
            found: dict[str, Column] = {}
            for name, kind in schema.items():
                values = file[f"{name}/values"].astype(TYPES[kind], copy=False)
                found[name] = Ragged(values, _offsets(file, name)) if is_list(kind) else values
                if values.ndim != 1:
                    raise ValueError(f"{name}/values is of shape {values.shape}")
            return found


def _offsets(file: NpzReader, name: str) -> NDArray[np.int64]:
    offsets = file[f"{name}/offsets"]
    if offsets.dtype.kind not in "iu":
        raise ValueError(f"{name}/offsets is of {offsets.dtype}")
    return offsets.astype(np.int64, copy=False)  # else a difference of two unsigned ones would never be negative


PartFormat = ParquetParts | NpzParts


def read_part(form: PartFormat, path: Path, schema: Schema) -> dict[str, Column]:
    """The columns of a part; a damaged one is a FileError."""
    with reading(path, _A_PART):
        found = form.read(path, schema)
        lengths = {len(column) for column in found.values()}
        if len(lengths) > 1:
            raise ValueError(f"its columns differ in length: {', '.join(map(str, sorted(lengths)))}")
        for name, column in found.items():
            if isinstance(column, Ragged):
                ends = column.offsets
                if ends.ndim != 1 or ends.dtype.kind not in "iu" or ends.size == 0 or ends[0] != 0:
                    raise ValueError(f"{name} has no offsets")
                if ends[-1] != len(column.values) or np.any(np.diff(ends) < 0):
                    raise ValueError(f"{name} has offsets that do not fit its values")
        return found


def part_format(name: str) -> PartFormat:
    """The format by its name in sweep.json."""
    return ParquetParts() if name == "parquet" else NpzParts()


def default_format() -> Literal["parquet", "npz"]:
    """Parquet where pyarrow is installed."""
    try:
        optional("pyarrow.parquet", "parquet", "Parquet")
    except ImportError:
        return "npz"
    return "parquet"
