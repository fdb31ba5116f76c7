"""Checks of arrays that come from a user: views where they fit, else an error that names the argument and the fix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .checks import shown

__all__ = [
    "aligned_copy",
    "all_finite",
    "as_array",
    "as_model",
    "as_output",
    "as_units",
    "as_vector",
    "little_endian",
    "model_dtype",
    "number_by_client",
    "pick_lists",
    "read_only",
    "round_down",
    "text_array",
    "to_array",
]

Floats = NDArray[np.floating]

_CACHE_LINE = 64
_FEW_BYTES = 1 << 26
_MOST_PADDING = 256  # bytes of an array of texts for each of their characters
_BLOCK = 1 << 20


def model_dtype(name: str, dtype: DTypeLike) -> np.dtype[np.floating]:
    """float32 or float64 in this machine's byte order, or a TypeError."""
    try:
        given: np.dtype[Any] = np.dtype(dtype)
    except Exception:  # NumPy's errors are of many types and name no argument
        raise TypeError(f"{name}: expected float32 or float64, got {shown(dtype)}") from None
    if given.newbyteorder("=") not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise TypeError(f"{name}: expected float32 or float64, got {given}; convert it, as with .astype(np.float32)")
    if not given.isnative:
        raise TypeError(f"{name}: {given.str} is byte-swapped; pass {name}.astype(np.{given.newbyteorder('=')})")
    return given


def little_endian(array: NDArray[Any]) -> NDArray[Any]:
    """The array with the byte order that files and hashes have on every machine; itself where it has it already."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def text_array(texts: Sequence[str]) -> NDArray[np.str_]:
    """Texts as an array, in which each has the room of the longest; a ValueError where most of that would be empty."""
    longest = max(map(len, texts), default=0)
    room = 4 * longest * len(texts)
    if room > max(_FEW_BYTES, _MOST_PADDING * sum(map(len, texts))):
        raise ValueError(f"a text of {longest} characters among {len(texts)}: together they would take {room} bytes")
    return np.array(texts, np.str_)


def to_array(name: str, value: Any, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """np.asarray, with errors that name the argument."""
    try:
        return np.asarray(value, dtype)
    except OverflowError:
        raise ValueError(f"{name}: expected numbers that {np.dtype(dtype)} holds, got {shown(value)}") from None
    except (TypeError, ValueError) as error:
        wanted = "an array" if dtype is None else f"an array of {np.dtype(dtype)}"
        raise type(error)(f"{name}: expected {wanted}, got {shown(value)}") from None


def as_array(name: str, value: Any) -> NDArray[Any]:
    """A view of anything with the buffer protocol or DLPack: never a copy."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"{name}: DLPack gave no view on the CPU ({error})") from error
    try:
        return np.asarray(memoryview(value))
    except TypeError:
        kind = type(value).__name__
        raise TypeError(
            f"{name}: expected an array (buffer protocol or DLPack), got {kind}; pass np.asarray({name})"
        ) from None


def as_vector(name: str, value: Any, dim: int, dtype: np.dtype[np.floating]) -> Floats:
    """A view of anything with the buffer protocol or DLPack as a vector (dim) of the dtype: never a copy.

    TypeError where it is no array, or of another dtype or byte order; ValueError where shape or layout do not fit.
    """
    array = as_array(name, value)
    if array.dtype != dtype:
        if array.dtype.newbyteorder("=") == dtype:
            raise TypeError(f"{name}: {array.dtype.str} is byte-swapped; pass {name}.astype(np.{dtype})")
        raise TypeError(f"{name}: expected {dtype}, got {array.dtype}; pass {name}.astype(np.{dtype})")
    return _plain(name, array, dim)


def as_units(name: str, value: Any, dim: int) -> NDArray[np.signedinteger[Any]]:
    """As `as_vector`, for whole numbers: a vector (dim) of int32 or int64."""
    array = as_array(name, value)
    if array.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
        raise TypeError(f"{name}: expected int32 or int64, which count units, got {array.dtype}")
    return _plain(name, array, dim)


def _plain(name: str, array: NDArray[Any], dim: int) -> NDArray[Any]:
    if array.shape != (dim,):
        raise ValueError(f"{name}: expected shape ({dim},), got {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name}: not contiguous; pass np.ascontiguousarray({name})")
    if not array.flags.aligned:
        raise ValueError(f"{name}: not aligned; pass {name}.copy()")
    return array


def as_output(name: str, value: Any, dim: int, dtype: np.dtype[np.floating], *inputs: Floats) -> Floats:
    """A vector that may be written and shares no memory with the inputs."""
    array = as_vector(name, value, dim, dtype)
    if not array.flags.writeable:
        raise ValueError(f"{name}: read-only; pass an array that may be written")
    if any(np.may_share_memory(array, given) for given in inputs):
        raise ValueError(f"{name}: shares memory with an input; pass another array")
    return array


def as_model(name: str, value: Any) -> Floats:
    """A private, contiguous copy of a vector of finite float32 or float64 numbers."""
    array = as_array(name, value)
    dtype = model_dtype(name, array.dtype)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name}: expected a vector of at least one number, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: element {int(np.argmin(np.isfinite(array)))} is not finite")
    return np.array(array, dtype, order="C")


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written."""
    view = array.view()
    view.flags.writeable = False
    return view


def aligned_copy(array: NDArray[Any], rows: NDArray[np.int64] | None = None) -> NDArray[Any]:
    """A C-contiguous copy that begins at a cache line, of the given rows in their order where given."""
    shape = array.shape if rows is None else (len(rows), *array.shape[1:])
    n_bytes = int(np.prod(shape, dtype=np.int64)) * array.itemsize
    memory = np.empty(n_bytes + _CACHE_LINE, np.uint8)
    begin = -memory.ctypes.data % _CACHE_LINE
    copy = memory[begin : begin + n_bytes].view(array.dtype).reshape(shape)
    if rows is None:
        copy[...] = array
    else:
        np.take(array, rows, axis=0, out=copy, mode="clip")
    return copy


def all_finite(array: NDArray[Any]) -> bool:
    """Whether no element is NaN or infinite, in blocks: without a mask as large as the array."""
    flat = array.reshape(-1)
    return all(bool(np.isfinite(flat[i : i + _BLOCK]).all()) for i in range(0, flat.size, _BLOCK))


def pick_lists(offsets: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For lists stored end to end, list i from offsets[i] to offsets[i + 1]: the places of the values of these lists,
    in their order, and the offsets of the result."""
    sizes = np.diff(offsets)[rows]
    moved = np.concatenate(([0], np.cumsum(sizes)))
    return np.repeat(offsets[rows] - moved[:-1], sizes) + np.arange(moved[-1]), moved


def round_down(value: float, dtype: DTypeLike) -> float:
    """The largest number of the dtype that is not above a value >= 0.

    >>> import numpy as np
    >>> from fedbuff._base.arrays import round_down
    >>> round_down(0.1, np.float32) <= 0.1 < float(np.float32(0.1))
    True
    """
    scalar: Any = np.dtype(dtype).type
    with np.errstate(over="ignore"):
        near = scalar(value)
    return float(np.nextafter(near, scalar(0))) if float(near) > value else float(near)


def number_by_client(client: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For every row, how many rows of its client come before, and the last of them (-1)."""
    order = np.argsort(client, kind="stable")
    grouped = client[order]
    first = np.append(True, grouped[1:] != grouped[:-1])[: client.size]
    begin = np.maximum.accumulate(np.where(first, np.arange(client.size), 0))
    number, previous = np.empty_like(client), np.empty_like(client)
    number[order] = np.arange(client.size) - begin
    previous[order] = np.where(first, -1, np.append(-1, order[:-1])[: client.size])
    return number, previous
