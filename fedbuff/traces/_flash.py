"""FLASH's behaviour trace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base import checks as _checks
from .._base.checks import (
    count,
    path_of,
    seed_of,
    shown,
)
from .._delays.availability import Policy
from .._delays.bad_rows import TraceError
from .._delays.trace import Trace
from ..backends.python.philox import STREAM_DELAYS, multiply_high, philox
from ..backends.python.portable_math import draw
from ._devices import PathLike, field, load_json, text_ids_of, windows_of

_DOWNLOAD, _UPLOAD, _SPEED_CHOICE = 1, 3, 8  # components of the stream of delays
_FLASH_SETS = {
    "battery_charged_on": ("charging", True),
    "battery_charged_off": ("charging", False),
    "wifi": ("wifi", True),
    **dict.fromkeys(("2g", "3g", "4g", "5g", "unknown"), ("wifi", False)),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
}
_FLASH_IGNORED = {"screen_on", "screen_off", "battery_low", "battery_okay", "phone_on", "phone_off"}
_PERCENT = re.compile(r"[0-9.]+%")


def from_flash(
    states: PathLike | Mapping[str, Any],
    *,
    compute: float | Mapping[str, float],
    speeds: PathLike | Mapping[str, Any] | None = None,
    model_bytes: float = 0.0,
    tasks: int = 100,
    seed: int = 0,
    policy: Policy = "pause",
) -> Trace:
    """FLASH's behaviour trace: JSON {id: {"messages": lines of time<TAB>state, "model": ...}}, one client per device.

    A device is ready while locked, charging and on Wi-Fi; it repeats after its own span, by FLASH's calendar (time 0 is
    the first event of all devices). It is locked from screen_lock to screen_unlock, or from screen_off where it records
    no locks. `compute` is a task's seconds, or those of each device model. With `speeds`, FLASH's
    {user: {"down_u", "down_sigma", "up_u", "up_sigma"}} in kB/s (1,024 bytes), each device gets a user at random and
    `tasks` rows whose transfer of model_bytes meets a normal speed, drawn again below 0.
    """
    tasks, seed, model_bytes = count("tasks", tasks), seed_of(seed), _checks.number("model_bytes", model_bytes)
    path = None if isinstance(states, Mapping) else path_of("states", states)
    devices = states if isinstance(states, Mapping) else load_json(states)
    if not isinstance(devices, Mapping) or not devices:
        raise TraceError("not a dictionary of devices", path=path)
    parsed = [_flash_ready(device, number + 1, path) for number, device in enumerate(devices.values())]
    origin = min(first for first, _, _, _ in parsed)
    period = np.array([last - first if last > first else 1.0 for first, last, _, _ in parsed])
    client, begin, end = [], [], []
    for number, (_, _, start, stop) in enumerate(parsed):
        phase = np.fmod(start - origin, period[number])
        until = phase + (stop - start)
        over = until > period[number]  # a window that passes the end of the period goes on at its begin
        begin.append(np.concatenate([phase, np.zeros(int(over.sum()))]))
        end.append(np.concatenate([np.minimum(until, period[number]), until[over] - period[number]]))
        client.append(np.full(begin[-1].size, number))
    windows = windows_of(client, begin, end, period, policy, path)
    seconds = _flash_compute(devices, compute, path)
    n, rows = len(devices), tasks if speeds is not None else 1
    row_client = np.repeat(np.arange(n), rows)
    download = upload = np.zeros(row_client.size)
    if speeds is not None:
        speed_path = None if isinstance(speeds, Mapping) else path_of("speeds", speeds)
        users = speeds if isinstance(speeds, Mapping) else load_json(speeds)
        download, upload = _flash_transfers(users, n, rows, model_bytes, seed, speed_path)
    ids = text_ids_of(devices, path)
    order = np.argsort(ids, kind="stable")
    return Trace(
        ids[row_client],
        seconds[row_client],
        download=download,
        upload=upload,
        clients=ids[order],
        availability=windows.take(order),
    )


def _flash_ready(
    device: Any, number: int, path: PathLike | None
) -> tuple[float, float, NDArray[np.float64], NDArray[np.float64]]:
    """First and last event's time, and the begins and ends of a device's ready windows, in seconds."""
    text = device.get("messages") if isinstance(device, Mapping) else device
    if not isinstance(text, str):
        raise TraceError("the device has no text of messages", number, path)
    lines = [line.split("\t") for line in text.splitlines() if line.strip()]
    if not lines or any(len(line) != 2 for line in lines):
        raise TraceError("messages: expected lines of time<TAB>state", number, path)
    time = _flash_times([line[0].strip() for line in lines], number, path)
    order = np.argsort(time, kind="stable")
    time = time[order]
    state = [lines[i][1].strip().lower() for i in order]
    for name in set(state):
        if name not in _FLASH_SETS and name not in _FLASH_IGNORED and not _PERCENT.fullmatch(name):
            raise TraceError(f"state {shown(name)} is unknown", number, path)
    locks = _FLASH_SETS if "screen_lock" in state else {**_FLASH_SETS, "screen_off": ("locked", True)}
    ready = np.ones(time.size, dtype=np.bool_)
    for flag in ("charging", "wifi", "locked"):
        value = np.array([locks[name][1] if name in locks and locks[name][0] == flag else -1 for name in state])
        last_set = np.maximum.accumulate(np.where(value >= 0, np.arange(value.size), -1))
        ready &= np.where(last_set >= 0, value[last_set] == 1, False)
    stays = np.append(time[1:] > time[:-1], False)  # the state after all events of one time
    time, ready = (
        time[stays | (np.arange(time.size) == time.size - 1)],
        ready[stays | (np.arange(ready.size) == ready.size - 1)],
    )
    opens = ready & np.append(True, ~ready[:-1])
    closes = np.append(False, ready[:-1]) & ~ready
    begin, end = time[opens], time[closes]
    if begin.size > end.size:
        end = np.append(end, time[-1])
    kept = end > begin
    return float(time[0]), float(time[-1]), begin[kept], end[kept]


def _flash_times(text: list[str], number: int, path: PathLike | None) -> NDArray[np.float64]:
    try:
        return np.array(text, dtype=np.float64)
    except ValueError:
        pass
    try:
        return np.array(text, dtype="datetime64[s]").astype(np.float64)
    except ValueError as error:
        raise TraceError(f"a time is neither seconds nor a date: {error}", number, path) from None


def _flash_compute(
    devices: Mapping[str, Any], compute: float | Mapping[str, float], path: PathLike | None
) -> NDArray[np.float64]:
    if not isinstance(compute, Mapping):
        return np.full(len(devices), _checks.number("compute", compute))
    models = [device.get("model") if isinstance(device, Mapping) else None for device in devices.values()]
    for number, model in enumerate(models):
        if model not in compute:
            raise TraceError(f"compute has no time for the model {shown(model)}", number + 1, path)
    return np.array([_checks.number("compute", compute[str(model)]) for model in models])


def _flash_transfers(
    users: Any, n: int, rows: int, model_bytes: float, seed: int, path: PathLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    means, deviations = {}, {}
    for way in ("down", "up"):
        means[way], deviations[way] = field(users, f"{way}_u", path), field(users, f"{way}_sigma", path)
        bad = np.flatnonzero(~((means[way] > 0) & (deviations[way] >= 0)))
        if bad.size:
            raise TraceError(f"{way}_u, {way}_sigma: expected a number > 0 and one >= 0", int(bad[0]) + 1, path)
    high, low, _, _ = philox(seed, np.arange(n), 0, _SPEED_CHOICE, STREAM_DELAYS)
    words = high.astype(np.uint64) << np.uint64(32) | low
    user = multiply_high(words, np.uint64(len(users))).astype(np.int64)
    transfers = []
    for way, component in (("down", _DOWNLOAD), ("up", _UPLOAD)):
        speed = np.empty((n, rows))
        for which in np.unique(user):
            of_user = np.flatnonzero(user == which)
            mean, deviation = means[way][which], deviations[way][which]
            kind, params = ("truncated_normal", (mean, deviation, 0.0, np.inf)) if deviation else ("constant", (mean,))
            speed[of_user] = draw(kind, params, None, seed, of_user[:, None], np.arange(rows), component)
        transfers.append((model_bytes / 1024.0 / speed).ravel())
    return transfers[0], transfers[1]
