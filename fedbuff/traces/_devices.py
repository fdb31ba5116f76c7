"""What the recordings of devices share: their files, one field of each, their windows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base import pickles
from .._base.arrays import text_array
from .._base.checks import (
    path_of,
    shortened,
    shown,
)
from .._base.files import (
    FileError,
    read_json,
)
from .._delays.availability import Availability, Policy
from .._delays.bad_rows import TraceError

PathLike = str | os.PathLike[str]


def load_pickle(path: PathLike) -> Any:
    """Reads a pickle of builtin containers, strings and numbers; refuses any other."""
    data = path_of("path", path).read_bytes()
    try:
        return pickles.loads(data)
    except Exception as error:  # a broken pickle can raise nearly anything
        raise TraceError(f"the pickle is refused: {shortened(str(error))}", path=path) from error


def load_json(path: PathLike) -> Any:
    try:
        return read_json(path, "JSON")
    except FileError as error:
        raise TraceError(error.reason, path=path) from error


def ids_of(devices: Mapping[Any, Any], path: PathLike | None) -> NDArray[Any]:
    keys = list(devices)
    if all(type(key) is int and -(2**63) <= key < 2**63 for key in keys):
        return np.array(keys, dtype=np.int64)
    return text_ids_of(devices, path)


def text_ids_of(devices: Mapping[Any, Any], path: PathLike | None) -> NDArray[np.str_]:
    try:
        return text_array([str(key) for key in devices])
    except (ValueError, RecursionError) as error:
        raise TraceError(f"ids: {error}", path=path) from None


def field(devices: Any, name: str, path: PathLike | None) -> NDArray[np.float64]:
    if not isinstance(devices, Mapping) or not devices:
        raise TraceError("not a dictionary of devices", path=path)

    def value(number: int, device: Any) -> float:
        found = device.get(name) if isinstance(device, Mapping) else None
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise TraceError(f"{name} is not a number but {shown(found)}", number, path)
        return float(found)

    return np.fromiter((value(i + 1, device) for i, device in enumerate(devices.values())), np.float64, len(devices))


def windows_of(
    client: Sequence[NDArray[Any]],
    begin: Sequence[NDArray[np.float64]],
    end: Sequence[NDArray[np.float64]],
    period: NDArray[np.float64],
    policy: Policy,
    path: PathLike | None,
) -> Availability:
    owner = np.concatenate(client)
    bad = np.flatnonzero(~((period > 0) & np.isfinite(period)))
    if bad.size:
        raise TraceError(f"the period {period[bad[0]]} is not positive and finite", int(bad[0]) + 1, path)
    try:
        return Availability(
            owner, np.concatenate(begin), np.concatenate(end), n_clients=period.size, period=period, policy=policy
        )
    except TraceError as error:
        number = None if error.row is None else int(owner[error.row - 1]) + 1
        raise TraceError(error.reason, number, path) from None
