"""FedScale's device capacity and availability."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base import checks as _checks
from .._base.checks import (
    path_of,
)
from .._delays.availability import Availability, Policy
from .._delays.bad_rows import TraceError
from .._delays.trace import Trace
from ._devices import PathLike, field, ids_of, load_pickle, windows_of

_FEW = 1_000_000  # times that any file may hold
_MOST_WINDOWS = 100_000_000  # of all clients, who share the windows of fewer devices


def from_fedscale(
    capacity: PathLike | Mapping[Any, Any],
    availability: PathLike | Mapping[Any, Any] | None = None,
    *,
    model_bytes: float,
    samples_per_task: float,
    upload_bytes: float | None = None,
    training_factor: float = 3.0,
    policy: Policy = "wait",
) -> Trace:
    """FedScale's device capacity {id: {"computation": ms per sample, "communication": kbit/s}}, one row per device.

    compute = training_factor * samples_per_task * computation (FedScale counts a training step as three inferences);
    download = model_bytes and upload = upload_bytes (model_bytes) over communication, with 8 bits a byte and 1,000 bits
    a kbit. availability {id: {"active": [...], "inactive": [...], "finish_time": s, ...}} repeats after each device's
    own finish_time; as in FedScale, client number i takes entry i modulo their number. Both are pickles, or what is in
    them.
    """
    _checks.number("samples_per_task", samples_per_task), _checks.number("training_factor", training_factor)
    _checks.number("model_bytes", model_bytes), upload_bytes is None or _checks.number("upload_bytes", upload_bytes)
    devices = capacity if isinstance(capacity, Mapping) else load_pickle(path_of("capacity", capacity))
    path = None if isinstance(capacity, Mapping) else capacity
    computation = field(devices, "computation", path)
    communication = field(devices, "communication", path)
    slow = np.flatnonzero(~(communication > 0))
    if slow.size:
        raise TraceError(f"communication {communication[slow[0]]} is not positive", int(slow[0]) + 1, path)
    sent = model_bytes if upload_bytes is None else upload_bytes
    ids = ids_of(devices, path)
    order = np.argsort(ids, kind="stable")
    windows = None
    if availability is not None:
        windows = _fedscale_windows(availability, ids.size, policy)
    try:
        return Trace(
            ids,
            computation * (training_factor * samples_per_task / 1000.0),
            download=model_bytes * 8.0 / (communication * 1000.0),
            upload=sent * 8.0 / (communication * 1000.0),
            clients=ids[order],
            availability=windows,
        )
    except TraceError as error:
        raise TraceError(error.reason, error.row, path) from None


def _fedscale_windows(source: PathLike | Mapping[Any, Any], n_clients: int, policy: Policy) -> Availability:
    path = None if isinstance(source, Mapping) else source
    devices = source if isinstance(source, Mapping) else load_pickle(path_of("availability", source))
    period = field(devices, "finish_time", path)
    active, begins = _lists(devices, "active", path)
    inactive, ends = _lists(devices, "inactive", path)
    still_there = begins == ends + 1  # when the recording ended
    wrong = np.flatnonzero((begins != ends) & ~still_there)
    if wrong.size:
        number = int(wrong[0])
        raise TraceError(f"{begins[number]} times active but {ends[number]} inactive", number + 1, path)
    inactive = np.insert(inactive, np.cumsum(ends)[still_there], period[still_there])
    client = np.repeat(np.arange(period.size), begins)
    backward = np.flatnonzero(inactive < active)
    if backward.size:
        row = int(backward[0])
        raise TraceError(f"inactive {inactive[row]} comes before active {active[row]}", int(client[row]) + 1, path)
    inactive = np.minimum(inactive, period[client])
    kept = inactive > active  # the recordings have windows of no length
    windows = windows_of([client[kept]], [active[kept]], [inactive[kept]], period, policy, path)
    chosen = np.arange(n_clients) % period.size
    n_windows = int(np.diff(windows.offsets)[chosen].sum())
    if n_windows > _MOST_WINDOWS:
        raise TraceError(
            f"{n_clients} clients would have {n_windows} windows, at most {_MOST_WINDOWS} are made", path=path
        )
    return windows.take(chosen)


def _lists(
    devices: Mapping[Any, Mapping[str, Any]], name: str, path: PathLike | None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The times of all devices one after the other, and how many each has."""
    lists = [device.get(name, ()) for device in devices.values()]
    for number, times in enumerate(lists):
        if not isinstance(times, list | tuple):
            raise TraceError(f"{name} is not a list of times", number + 1, path)
    counts = np.fromiter(map(len, lists), np.int64, len(lists))
    if path is not None and counts.sum() > max(_FEW, os.stat(path).st_size):  # a list that many devices refer to
        raise TraceError(f"{counts.sum()} times {name} are more than the file can hold", path=path)
    flat = list(chain.from_iterable(lists))
    if not {type(time) for time in flat} <= {int, float}:
        numbers = [all(type(time) in (int, float) for time in times) for times in lists]
        raise TraceError(f"{name} is not a list of times", numbers.index(False) + 1, path)
    return np.array(flat, dtype=np.float64), counts
