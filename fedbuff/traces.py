"""Converters: traces that others recorded, in their formats, as a `Trace` or an `ArrivalLog`.

Pickles are read by an unpickler that admits builtin containers, strings and numbers, and nothing that could run code.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._base import checks as _checks
from ._base import pickles as _pickles
from ._base.arrays import to_array
from ._base.checks import (
    count,
    path_of,
    seed_of,
    shortened,
    shown,
)
from ._base.files import (
    FileError,
    file_format,
    read_json,
    read_npy,
)
from ._delays.arrival_log import ArrivalLog
from ._delays.availability import Availability, Policy
from ._delays.bad_rows import Reasons, TraceError, bad_rows
from ._delays.columns import check_missing, in_file
from ._delays.fit import Fit, fit
from ._delays.read import in_seconds
from ._delays.table import (
    MISSING,
    Labels,
    Missing,
    labels_from_text,
    parse_cell,
)
from ._delays.text_file import ColumnCells, TextFile, as_delimiter
from ._delays.trace import End, Trace
from .backends.python.philox import STREAM_DELAYS, multiply_high, philox
from .backends.python.portable_math import draw

__all__ = ["Fit", "fit", "from_delay_matrix", "from_fedscale", "from_flash", "from_gradient_ages", "load_pickle"]

PathLike = str | os.PathLike[str]
_FEW = 1_000_000  # times that any file may hold
_DOWNLOAD, _UPLOAD, _SPEED_CHOICE = 1, 3, 8  # components of the stream of delays


def load_pickle(path: PathLike) -> Any:
    """Reads a pickle of builtin containers, strings and numbers; refuses any other."""
    data = path_of("path", path).read_bytes()
    try:
        return _pickles.loads(data)
    except Exception as error:  # a broken pickle can raise nearly anything
        raise TraceError(f"the pickle is refused: {shortened(str(error))}", path=path) from error


# FedScale


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
    computation = _field(devices, "computation", path)
    communication = _field(devices, "communication", path)
    slow = np.flatnonzero(~(communication > 0))
    if slow.size:
        raise TraceError(f"communication {communication[slow[0]]} is not positive", int(slow[0]) + 1, path)
    sent = model_bytes if upload_bytes is None else upload_bytes
    ids = _ids(devices)
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


def _ids(devices: Mapping[Any, Any]) -> NDArray[Any]:
    keys = list(devices)
    if all(isinstance(key, int) for key in keys):
        return np.array(keys, dtype=np.int64)
    return np.array([str(key) for key in keys], dtype=np.str_)


def _field(devices: Any, name: str, path: PathLike | None) -> NDArray[np.float64]:
    if not isinstance(devices, Mapping) or not devices:
        raise TraceError("not a dictionary of devices", path=path)

    def value(number: int, device: Any) -> float:
        found = device.get(name) if isinstance(device, Mapping) else None
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise TraceError(f"{name} is not a number but {shown(found)}", number, path)
        return float(found)

    return np.fromiter((value(i + 1, device) for i, device in enumerate(devices.values())), np.float64, len(devices))


def _fedscale_windows(source: PathLike | Mapping[Any, Any], n_clients: int, policy: Policy) -> Availability:
    path = None if isinstance(source, Mapping) else source
    devices = source if isinstance(source, Mapping) else load_pickle(path_of("availability", source))
    period = _field(devices, "finish_time", path)
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
    windows = _windows([client[kept]], [active[kept]], [inactive[kept]], period, policy, path)
    return windows.take(np.arange(n_clients) % period.size)


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


def _windows(
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


# FLASH

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
    devices = states if isinstance(states, Mapping) else _load_json(states)
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
    windows = _windows(client, begin, end, period, policy, path)
    seconds = _flash_compute(devices, compute, path)
    n, rows = len(devices), tasks if speeds is not None else 1
    row_client = np.repeat(np.arange(n), rows)
    download = upload = np.zeros(row_client.size)
    if speeds is not None:
        speed_path = None if isinstance(speeds, Mapping) else path_of("speeds", speeds)
        users = speeds if isinstance(speeds, Mapping) else _load_json(speeds)
        download, upload = _flash_transfers(users, n, rows, model_bytes, seed, speed_path)
    ids = np.array([str(key) for key in devices], dtype=np.str_)
    order = np.argsort(ids, kind="stable")
    return Trace(
        ids[row_client],
        seconds[row_client],
        download=download,
        upload=upload,
        clients=ids[order],
        availability=windows.take(order),
    )


def _load_json(path: PathLike) -> Any:
    try:
        return read_json(path, "JSON")
    except FileError as error:
        raise TraceError(error.reason, path=path) from error


def _flash_ready(
    device: Any, number: int, path: PathLike | None
) -> tuple[float, float, NDArray[np.float64], NDArray[np.float64]]:
    """First and last event's time, and the begins and ends of a device's ready windows, in seconds."""
    text = device.get("messages") if isinstance(device, Mapping) else device
    if not isinstance(text, str):
        raise TraceError("the device has no text of messages", number, path)
    lines = [line.split("\t") for line in text.splitlines() if line.strip()]
    if not lines or any(len(line) != 2 for line in lines):
        raise TraceError("messages must be lines of time<TAB>state", number, path)
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
        means[way], deviations[way] = _field(users, f"{way}_u", path), _field(users, f"{way}_sigma", path)
        bad = np.flatnonzero(~((means[way] > 0) & (deviations[way] >= 0)))
        if bad.size:
            raise TraceError(f"{way}_u must be positive and {way}_sigma not negative", int(bad[0]) + 1, path)
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


# Matrices


_MATRICES = {".npy": "npy", ".csv": "text", ".txt": "text", ".dat": "text", ".tsv": "text", ".gz": "text"}


@dataclass(frozen=True)
class _Matrix:
    """Rounds x workers, NaN where a value is missing; the workers' ids where a header has them, and the bad rows."""

    values: NDArray[np.float64]
    ids: NDArray[Any] | None = None
    path: PathLike | None = None
    text: TextFile | None = None
    bad: tuple[tuple[NDArray[np.int64], Reasons], ...] = ()

    @property
    def clients(self) -> NDArray[Any]:
        return np.arange(self.values.shape[1]) if self.ids is None else self.ids

    def worker(self, number: int) -> str:
        return f"worker {number if self.ids is None else self.ids[number]}"

    def refuse(self, groups: Iterable[tuple[NDArray[np.int64], Reasons]], hint: str = "") -> None:
        """Refuses the rows of the groups, all at once, by their lines where the matrix is a text file."""
        error = bad_rows(groups, hint)
        if error is not None:
            raise in_file(error, [bad.row for bad in error.bad], self.path, self.text)

    def cells(self, chosen: NDArray[np.bool_], what: Callable[[str, float], str]) -> list[Any]:
        """The chosen cells as a group for each worker; what(worker, value) says what is wrong with one."""

        def group(number: int) -> tuple[NDArray[np.int64], Reasons]:
            rows = np.flatnonzero(chosen[:, number])
            return rows, lambda i: what(self.worker(number), float(self.values[rows[i], number]))

        return [group(number) for number in np.flatnonzero(chosen.any(axis=0)).tolist()]


def _matrix(source: PathLike | ArrayLike, what: str, delimiter: str | None, header: bool | None) -> _Matrix:
    """A rounds x workers table: an array, a data frame, .npy, or text, with or without a header and an index column."""
    if isinstance(source, str | os.PathLike):
        if file_format(source, _MATRICES, "source") == "text":
            return _text_matrix(Path(source), as_delimiter(delimiter), header)
        try:
            table = read_npy(source, "a whole NPY file")
        except FileError as error:
            raise TraceError(error.reason, path=source) from error
        path, names = source, None
    else:
        table, path, names = to_array("source", source), None, getattr(source, "columns", None)
    if table.dtype.kind not in "iuf":
        if path is None:
            raise TypeError(f"source: the {what} must be numbers, not {table.dtype}")
        raise TraceError(f"the {what} must be numbers, not {table.dtype}", path=path)
    if table.ndim != 2 or 0 in table.shape:
        raise TraceError(
            f"source: the {what} must be a matrix of rounds x workers, not of shape {table.shape}", path=path
        )
    return _Matrix(table.astype(np.float64), None if names is None else _worker_ids(list(names), path), path)


def _worker_ids(names: Sequence[Any], path: PathLike | None) -> NDArray[Any]:
    text = [str(name) for name in names]
    twice = next((name for number, name in enumerate(text) if name in text[:number]), None)
    if twice is not None:
        raise TraceError(f"column {twice!r} appears twice", path=path)
    if "" in text:
        raise TraceError(f"column {text.index('') + 1} has no name", path=path)
    return labels_from_text(text, np.arange(len(text))).ids


def _text_matrix(path: Path, delimiter: str | None, header: bool | None) -> _Matrix:
    text = TextFile(path, comments="#")
    try:
        text.check()
        text.delimiter = _matrix_delimiter(text) if delimiter is None else delimiter
        text.has_header = False
        rows = [fields for chunk in text.rows(text.reader()) for fields in chunk]
        if not rows:
            raise TraceError("the file is empty")
        text.has_header = _has_header(rows) if header is None else header
        names = [name.strip() for name in rows.pop(0)] if text.has_header else None
        if not rows:
            raise TraceError("the file has no rows")
    except TraceError as error:
        if error.path is not None:
            raise
        raise in_file(error, [bad.row for bad in error.bad], path, text) from error.__cause__
    if names is not None and all(len(fields) == len(names) + 1 for fields in rows):
        names.insert(0, "")  # R names every column but that of its row names
    width = len(rows[0]) if names is None else len(names)
    first = 0
    while names is not None and first < width and _INDEX_NAME.fullmatch(names[first]):
        first += 1
    ids = None if names is None else _worker_ids(names[first:], path)
    if first == width:
        raise TraceError("the file has no column of a worker", path=path)
    ragged = np.flatnonzero([len(fields) != width for fields in rows])
    expected = "the header has" if names is not None else "the first row has"
    counts = [len(rows[row]) for row in ragged]
    bad = [(ragged, lambda i: f"{counts[i]} values where {expected} {width}")]
    number = np.delete(np.arange(len(rows)), ragged)
    values = np.zeros((len(rows), width - first))
    for worker in range(first, width):
        name = f"worker {worker if ids is None else ids[worker - first]}"
        column = ColumnCells(name, "number")
        column.add([rows[row][worker] for row in number], number)
        values[number, worker - first] = np.asarray(column.values())
        for absent, _ in column.missing:
            values[absent, worker - first] = np.nan
        bad += column.bad
    return _Matrix(values, ids, path, text, tuple(bad))


_INDEX_NAME = re.compile(r"|Unnamed: \d+(\.\d+)?")  # pandas writes the first, and reads it as the second


def _matrix_delimiter(text: TextFile) -> str:
    """The first of comma, semicolon, pipe and tab that the first row has; blanks where tabs are only some of them."""
    lines = [line for line in text.data.decode("utf-8-sig").splitlines() if line.strip() and line[0] != "#"]
    if not lines:
        return ","
    for delimiter in ",;|":
        if delimiter in lines[0]:
            return delimiter
    tabs = {line.count("\t") for line in lines}
    return "\t" if 0 not in tabs and max(tabs) - min(tabs) <= 1 else " "


def _has_header(rows: list[list[str]]) -> bool:
    """Whether the first row names the workers; refused where that is not certain."""
    first = [name.strip() for name in rows[0]]
    if any(parse_cell(name, "number") is None and name.lower() not in MISSING for name in first):
        return True
    index = [fields[0].strip() for fields in rows[1:] if fields]
    if first[0] == "" and index and (index == list(map(str, range(len(index)))) or not _are_numbers(index)):
        return True
    if len(first) > 1 and len(rows) > 1 and first == list(map(str, range(len(first)))):
        raise TraceError(
            f"the first row is 0 to {len(first) - 1}, which may be names or values; "
            "header=True (--header) or header=False (--no-header) says which",
            1,
        )
    return False


def _are_numbers(fields: Iterable[str]) -> bool:
    return all(parse_cell(field, "number") is not None for field in fields)


def from_delay_matrix(
    source: PathLike | ArrayLike,
    *,
    unit: str | float = "s",
    end: End = "wrap",
    missing: Missing = "error",
    delimiter: str | None = None,
    header: bool | None = None,
) -> Trace:
    """Delays as rounds x workers (an array, a data frame, .npy, .csv, .tsv or text): task k of worker i takes row k,
    column i.

    Names in a header are the client ids, in the order of the columns. A first column without a name, or one that pandas
    called "Unnamed: 0", is an index and no worker. `header` says whether the first row has names; None finds out.
    `missing="drop"` leaves out cells that are empty or NaN: that worker has a task less.
    """
    check_missing(missing)
    matrix = _matrix(source, "delays", delimiter, header)
    values = matrix.values
    bad = matrix.cells(
        (values < 0) | np.isinf(values),
        lambda worker, value: f"the delay {value} of {worker} is {'negative' if value < 0 else 'not finite'}",
    )
    absent = np.isnan(values)
    if missing == "drop":
        matrix.refuse([*matrix.bad, *bad])
    else:
        nan = matrix.cells(absent, lambda worker, value: f"the delay of {worker} is missing")
        hint = "missing='drop' (--missing drop) leaves it out" if absent.any() else ""
        matrix.refuse([*matrix.bad, *bad, *nan], hint)
    worker, row = np.nonzero(~absent.T)
    return Trace(Labels(worker, matrix.clients), in_seconds(values[row, worker], unit), clients=matrix.clients, end=end)


def from_gradient_ages(
    source: PathLike | ArrayLike,
    *,
    seconds_per_iteration: float = 1.0,
    delimiter: str | None = None,
    header: bool | None = None,
) -> ArrivalLog:
    """Ages as server iterations x workers: row t has the age, in iterations, of each worker's latest gradient.

    An entry that is not the one above plus 1 is an arrival at iteration t of a gradient made on version t - age, as is
    a 0 in the first row. Arrivals of one iteration keep the order of the workers.

    The log has the server step that each arrival entered: all arrivals of an iteration enter one step, and an iteration
    without an arrival is none, so that versions count the iterations with one. `fb.schedule` of the log has these
    steps, and their staleness. Where they differ in size it needs FedBuff(buffer_size=n, max_wait=...), n workers.
    """
    _checks.number("seconds_per_iteration", seconds_per_iteration)
    matrix = _matrix(source, "ages", delimiter, header)
    ages = matrix.values
    odd = ~((ages >= 0) & (ages == np.floor(ages)) & (ages < 2**62))
    matrix.refuse(
        [
            *matrix.bad,
            *matrix.cells(odd, lambda worker, value: f"an age is not a whole number from 0: {worker} has {value}"),
        ]
    )
    age = ages.astype(np.int64)
    arrived = np.vstack([age[:1] == 0, age[1:] != age[:-1] + 1])
    iteration, worker = np.nonzero(arrived)
    made_on = iteration - age[iteration, worker]
    early = np.flatnonzero(made_on < 0)
    matrix.refuse(
        [
            (
                iteration[early],
                lambda i: (
                    f"an age of {age[iteration[early[i]], worker[early[i]]]} at iteration {iteration[early[i]]} "
                    "is from before the start"
                ),
            )
        ]
    )
    steps_before = np.append(0, np.cumsum(arrived.any(axis=1)))
    return ArrivalLog(
        Labels(worker, matrix.clients),
        iteration * float(seconds_per_iteration),
        version=steps_before[made_on],
        step=steps_before[iteration],
        clients=matrix.clients,
    )
