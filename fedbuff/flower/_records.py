"""Flower's records as vectors: arrays are read where their bytes lie, and written with one copy.

An Array of Flower holds the bytes of an .npy file. `array_of` shows its numbers without copying them; `Layout` knows
which part of a model's vector each array is. Arrays of floats make the vector; others (counters, masks) are
passed on as they are.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from .._base.checks import instance, shown

_MOST_HEADER = 1 << 16  # bytes
_MOST_HEADERS = 1 << 12  # kept at a time
_headers: dict[bytes, tuple[tuple[int, ...], bool, np.dtype[Any]]] = {}

Sample = dict[str, Array]  # arrays by name


class BadReply(ValueError):
    """A reply that cannot be used; its text says why."""


def array_of(name: str, array: Array) -> NDArray[Any]:
    """The numbers of an Array, read-only, in its own memory; ValueError where the bytes are no such array."""
    data = array.data
    if array.stype != "numpy.ndarray":
        raise ValueError(f"array {shown(name)}: expected the serialisation numpy.ndarray, got {shown(array.stype)}")
    length = int.from_bytes(data[8:10], "little") + 10 if data[6:7] == b"\x01" else _MOST_HEADER
    header = _headers.get(data[:length])
    if header is None:
        header, length = _read_header(name, data)
        if len(_headers) >= _MOST_HEADERS:
            _headers.clear()
        _headers[data[:length]] = header
    shape, fortran, dtype = header
    size = math.prod(shape)
    if len(data) - length != size * dtype.itemsize:
        raise ValueError(
            f"array {shown(name)}: {dtype} {shape} takes {size * dtype.itemsize} bytes, "
            f"and {len(data) - length} are there"
        )
    flat: NDArray[Any] = np.frombuffer(data, dtype, size, length) if size else np.empty(0, dtype)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def _read_header(name: str, data: bytes) -> tuple[tuple[tuple[int, ...], bool, np.dtype[Any]], int]:
    stream = io.BytesIO(data[:_MOST_HEADER])
    try:
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise ValueError(f"its .npy format is {version}, not (1, 0)")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=_MOST_HEADER)
    except Exception as error:  # a parser of bytes from outside may raise nearly anything
        raise ValueError(f"array {shown(name)}: not an array of NumPy: {shown(str(error))}") from None
    if dtype.hasobject or any(isinstance(side, bool) or side < 0 for side in shape):
        raise ValueError(f"array {shown(name)}: {dtype} {shape} is not read")
    return (shape, fortran, dtype), stream.tell()


@dataclass(frozen=True, slots=True)
class _Part:
    """An array of floats: its name, its place in the vector, and the head of its .npy file."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    begin: int
    end: int
    head: bytes


class Layout:
    """Where each array of a model lies in its vector.

    The vector is float64 where an array is, else float32. `parts` are the arrays of floats, in the record's order.
    """

    def __init__(self, arrays: ArrayRecord) -> None:
        instance("initial_arrays", arrays, ArrayRecord, "an ArrayRecord")
        self.names = list(arrays)
        self.parts: list[_Part] = []
        end = 0
        for name, array in arrays.items():
            values = array_of(name, array)
            if values.dtype.kind != "f":
                continue
            if values.dtype.itemsize > 8:
                raise TypeError(f"initial_arrays: array {shown(name)} is {values.dtype}; expected at most float64")
            dtype = values.dtype.newbyteorder("=")
            begin, end = end, end + values.size
            self.parts.append(_Part(name, values.shape, dtype, begin, end, _head(values.shape, dtype)))
        if end == 0:
            raise ValueError("initial_arrays: expected an array of floats with numbers in it, got none")
        self.dim = end
        double = any(part.dtype.itemsize == 8 for part in self.parts)
        self.dtype: np.dtype[Any] = np.dtype(np.float64 if double else np.float32)

    def describe(self) -> list[list[Any]]:
        """What it is, as JSON can hold it."""
        return [self.names, *([part.name, list(part.shape), part.dtype.str] for part in self.parts)]

    def vector(self, arrays: ArrayRecord) -> NDArray[Any]:
        """The model in a record."""
        w = np.empty(self.dim, self.dtype)
        for part in self.parts:
            w[part.begin : part.end].reshape(part.shape)[...] = array_of(part.name, arrays[part.name])
        return w

    def others(self, arrays: ArrayRecord) -> Sample:
        """The arrays that are not floats."""
        floats = {part.name for part in self.parts}
        return {name: array for name, array in arrays.items() if name not in floats}

    def record(self, w: NDArray[Any], others: Sample) -> ArrayRecord:
        """A record of the model w; the only copy is the one into the record's bytes."""
        made = dict(others)
        for part in self.parts:
            values = w[part.begin : part.end]
            if values.dtype != part.dtype:
                values = values.astype(part.dtype)
            data = b"".join((part.head, values.view(np.uint8).data))
            made[part.name] = Array(part.dtype.name, part.shape, "numpy.ndarray", data)
        return ArrayRecord({name: made[name] for name in self.names})

    def as_sent(self, w: NDArray[Any]) -> NDArray[Any]:
        """The model w as the numbers of its record are: w itself, or a copy where an array has a narrower dtype."""
        narrow = [part for part in self.parts if part.dtype != self.dtype]
        if narrow:
            w = w.copy()
        for part in narrow:
            w[part.begin : part.end] = w[part.begin : part.end].astype(part.dtype)
        return w

    def vectors(self, arrays: ArrayRecord) -> list[NDArray[Any]]:
        """The floats of a reply, a vector for each part: in the record's memory where they lie there as the server
        adds them. BadReply where they are not those of the model."""
        if len(arrays) != len(self.names) or any(name not in arrays for name in self.names):
            raise BadReply(f"its arrays are {shown(list(arrays))}, not {shown(self.names)}")
        vectors = []
        for part in self.parts:
            try:
                received = array_of(part.name, arrays[part.name])
            except ValueError as error:
                raise BadReply(str(error)) from None
            if received.dtype.kind != "f" or received.shape != part.shape:
                raise BadReply(
                    f"array {shown(part.name)}: expected floats of shape {part.shape}, "
                    f"got {received.dtype} of shape {received.shape}"
                )
            flags = received.flags
            if received.dtype != self.dtype or not (flags.c_contiguous and flags.aligned):
                received = np.array(received, self.dtype, order="C")
            vectors.append(received.reshape(-1))
        return vectors


def _head(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    stream = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()


def content_of(reply: RecordDict, weight_key: str) -> tuple[ArrayRecord, float]:
    """The arrays of a reply and its weight; BadReply where it has not one record of each, or no weight."""
    arrays, metrics = list(reply.array_records.values()), list(reply.metric_records.values())
    if len(arrays) != 1 or len(metrics) != 1:
        raise BadReply(f"expected one ArrayRecord and one MetricRecord, got {len(arrays)} and {len(metrics)}")
    weight = metrics[0].get(weight_key)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise BadReply(f"its MetricRecord has {'no' if weight is None else 'not one number as'} {shown(weight_key)}")
    if not (math.isfinite(weight) and weight > 0):
        raise BadReply(f"{shown(weight_key)}: expected a finite number > 0, got {weight}")
    return arrays[0], float(weight)
