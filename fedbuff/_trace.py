"""Recorded delays: `Trace`, `Availability` and `ArrivalLog`, checked once, then immutable."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arrays import to_array
from ._checks import choice, count, mapping, number, seed_of, shown
from ._files import FileError, file_format, guarded, open_npz, open_text, optional, reading, replacing
from ._read_columns import FORMATS, Column, Kind, Labels, Missing, Wanted, bad_rows, read_columns
from ._read_columns import TraceError as TraceError
from ._read_columns import refuse_times as _check_times
from .backends._philox import STREAM_DELAYS, multiply_high, philox

if TYPE_CHECKING:
    from ._fit import Fit

End = Literal["wrap", "stop"]
Tasks = Literal["number", "order"]
Policy = Literal["wait", "pause", "abort"]
PARTS = ("wait", "download", "compute", "upload")
_HASH_BLOCK = 1 << 24  # bytes
_RESAMPLE, _ASSIGN = 6, 7  # components of the stream of delays, after those of the resolver
_SECONDS_IN = {"min": 60.0, "h": 3600.0}
_IN_A_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # dividing rounds once; 1e-3 would round twice


def in_seconds(values: NDArray[np.float64], unit: str | float) -> NDArray[np.float64]:
    """`values` of a named unit, or of so many seconds each, in seconds."""
    if isinstance(unit, str):
        if unit in _SECONDS_IN:
            return values * _SECONDS_IN[unit]
        if unit not in _IN_A_SECOND:
            known = ", ".join([*_IN_A_SECOND, *_SECONDS_IN])
            raise ValueError(f"unit {shown(unit)} is unknown: one of {known}, or how many seconds a unit has")
        return values if unit == "s" else values / _IN_A_SECOND[unit]
    return values * number("unit", unit, open_low=True)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


class Immutable:
    """A base of frozen dataclasses whose arrays stay read-only in copies and after pickling."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        for value in state.values():
            if isinstance(value, np.ndarray):
                _frozen(value)
        self.__dict__.update(state)


def digest(*arrays: NDArray[Any] | None) -> str:
    """SHA-256 of the arrays' types, lengths and little-endian bytes."""
    state = hashlib.sha256()
    for array in arrays:
        if array is None:
            state.update(b"none;")
            continue
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        state.update(f"{plain.dtype.str}{plain.shape};".encode())
        update_hash(state, plain)
    return state.hexdigest()


def update_hash(state: Any, array: NDArray[Any]) -> None:
    """Adds the bytes of a contiguous array to a hash, so many at a time that signals are heard in between."""
    content = array.reshape(-1).view(np.uint8)
    for begin in range(0, content.size, _HASH_BLOCK):
        state.update(content[begin : begin + _HASH_BLOCK].data)


# Columns: from what a user gives to arrays of one dtype; errors carry the row


def _numbers(name: str, values: ArrayLike, length: int | None, copy: bool = True) -> NDArray[np.float64]:
    array = to_array(name, values)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be numbers, not {array.dtype}")
    return _vector(name, array, length).astype(np.float64, copy=copy)


def _integers(name: str, values: ArrayLike, length: int | None) -> NDArray[np.int64]:
    array = to_array(name, values)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, not {array.dtype}")
    return _vector(name, array, length).astype(np.int64)


def _vector(name: str, array: NDArray[Any], length: int | None) -> NDArray[Any]:
    if array.ndim != 1 or (length is not None and array.shape[0] != length):
        wanted = "a vector" if length is None else f"a vector of length {length}, as client is"
        raise ValueError(f"{name} must be {wanted}, not of shape {array.shape}")
    return array


def _refuse(rows: NDArray[np.int64], reasons: Callable[[int], str], hint: str = "") -> None:
    """Refuses these rows, counted from 0, where there are any; reasons(row) says why."""
    error = bad_rows([(rows, lambda i: reasons(int(rows[i])))], hint)
    if error is not None:
        raise error


def stable_order(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The stable sorting permutation of codes in 0 .. 2^31 - 1.

    Sorting (code, row) packed into 64 bits is three times as fast as a stable argsort (NumPy 2, 10^7 rows).
    """
    bits = max(codes.size - 1, 1).bit_length()
    packed = codes.astype(np.uint64) << np.uint64(bits)
    packed |= np.arange(codes.size, dtype=np.uint64)
    packed.sort()
    packed &= np.uint64((1 << bits) - 1)
    return packed.view(np.int64)


def _show(label: Any) -> str:
    return repr(str(label)) if isinstance(label, str) else str(label)


def code_clients(
    client: ArrayLike | Labels, clients: int | Sequence[Any] | NDArray[Any] | None
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Client numbers 0 .. n - 1 of the rows, and the id of each number.

    `clients` says which ids may appear and in which order (an int n stands for 0 .. n - 1); without it they are the
    ids found, sorted.
    """
    if not isinstance(client, Labels):
        values = to_array("client", client)
        if values.dtype.kind == "O" and all(isinstance(label, str) for label in values.flat):
            nul = [row for row, label in enumerate(values.flat) if "\0" in label]  # NumPy's strings end at one
            _refuse(np.array(nul, np.int64), lambda row: f"client {values.flat[row]!r} has a NUL character")
            values = values.astype(np.str_)
        if values.dtype.kind not in "iuU":
            raise TypeError(f"client must be integers or strings, not {values.dtype}")
        values = _vector("client", values, None)
        if values.dtype.kind == "U":
            ids, inverse = np.unique(values, return_inverse=True)
            client = Labels(inverse.astype(np.int64), ids)
        else:
            client = _integer_labels(values.astype(np.int64))
    if client.codes.size == 0:
        raise TraceError("there are no rows")
    if client.ids.dtype.kind == "i" and clients is None and client.ids.min() < 0:
        ids, number = client.ids, client.codes
        _refuse(np.flatnonzero((ids < 0)[number]), lambda row: f"client {ids[number[row]]} is negative")
    if clients is None:
        used = np.bincount(client.codes, minlength=client.ids.size) > 0
        order = np.argsort(client.ids, kind="stable")
        order = order[used[order]]
        known = client.ids[order]
        number = np.full(client.ids.size, -1, dtype=np.int64)
        number[order] = np.arange(order.size)
    else:
        if isinstance(clients, int | np.integer):
            known = np.arange(count("clients", clients, high=2**31 - 1), dtype=np.int64)
        else:
            known = to_array("clients", clients)
        if known.ndim != 1 or known.dtype.kind not in "iuU":
            raise TypeError("clients must be a number of clients, or their ids as integers or strings")
        if known.size == 0:
            raise ValueError("clients is empty")
        sorted_order = np.argsort(known, kind="stable")
        ordered = known[sorted_order]
        if np.any(ordered[1:] == ordered[:-1]):
            raise ValueError(f"clients has {_show(ordered[1:][ordered[1:] == ordered[:-1]][0])} twice")
        if (known.dtype.kind == "U") != (client.ids.dtype.kind == "U"):
            row_ids, given = client.ids.dtype, known.dtype
            raise TypeError(f"client ids are {row_ids} in the rows and {given} in clients")
        place = np.minimum(np.searchsorted(ordered, client.ids), known.size - 1)
        number = np.where(ordered[place] == client.ids, sorted_order[place], -1)
    # A copy only where the numbering changes; 10^7 rows cost 30 ms
    codes = client.codes if np.array_equal(number, np.arange(number.size)) else number[client.codes]
    if clients is not None and codes.min() < 0:
        ids, found = client.ids, client.codes
        _refuse(np.flatnonzero(codes < 0), lambda row: f"client {_show(ids[found[row]])} is unknown")
    if known.size >= 2**31:
        raise ValueError(f"{known.size} clients are too many: at most 2^31 - 1")
    return codes, known.copy()


def _integer_labels(values: NDArray[np.int64]) -> Labels:
    if values.size and values.min() >= 0 and values.max() < 4 * values.size + 1024:
        return Labels(values, np.arange(int(values.max()) + 1, dtype=np.int64))
    ids, inverse = np.unique(values, return_inverse=True)
    return Labels(inverse.astype(np.int64), ids)


def _offsets(codes: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    offsets = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(codes, minlength=n), out=offsets[1:])
    return offsets


def _random_words(seed: int, client: NDArray[Any], number: NDArray[Any], component: int) -> NDArray[np.uint64]:
    """A 64-bit word for every (client, number), in the stream of delays."""
    high, low, _, _ = philox(seed, client, number, component, STREAM_DELAYS)
    words: NDArray[np.uint64] = high.astype(np.uint64) << np.uint64(32) | low
    return words


# Availability


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Availability(Immutable):
    """When each client can work: half-open windows [begin, end), sorted and disjoint per client.

    Client i has windows offsets[i]:offsets[i + 1] of `begin` and `end`; one without windows never works. With `period`
    (a float, or a float64 array of one for each client where they differ) the windows repeat: a client at time t is as
    at t mod its period, and windows that touch across its end are one. `policy` says what becomes of a task outside its
    window: it waits to start and then runs on ("wait"), also stops while the client is away and goes on later
    ("pause"), or is lost when the window closes ("abort").
    """

    n_clients: int
    offsets: NDArray[np.int64]
    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    period: float | NDArray[np.float64] | None
    policy: Policy

    def __init__(
        self,
        client: ArrayLike,
        begin: ArrayLike,
        end: ArrayLike,
        *,
        n_clients: int,
        period: float | ArrayLike | None = None,
        policy: Policy = "wait",
    ) -> None:
        """Row r says that client[r] is there from begin[r] until just before end[r]; windows that touch are joined."""
        choice("policy", policy, ("wait", "pause", "abort"))
        n_clients = count("n_clients", n_clients, high=2**31 - 1)
        codes = _integers("client", client, None)
        start = _numbers("begin", begin, codes.size)
        stop = _numbers("end", end, codes.size)
        outside = np.flatnonzero((codes < 0) | (codes >= n_clients))
        if outside.size:
            raise TraceError(f"client {codes[outside[0]]} is unknown: there are {n_clients}", int(outside[0]) + 1)
        _check_times({"begin": start, "end": stop})
        empty = np.flatnonzero(stop <= start)
        if empty.size:
            row = int(empty[0])
            raise TraceError(f"the window ends at {stop[row]}, not after its begin {start[row]}", row + 1)
        periods = None if period is None else _periods(period, n_clients)
        if periods is not None:
            late = np.flatnonzero(stop > periods[codes])
            if late.size:
                row = int(late[0])
                raise TraceError(f"the window ends at {stop[row]}, after the period {periods[codes[row]]}", row + 1)
        order = np.lexsort((start, codes))
        codes, start, stop = codes[order], start[order], stop[order]
        same = codes[1:] == codes[:-1]
        overlap = np.flatnonzero(same & (start[1:] < stop[:-1]))
        if overlap.size:
            at = int(overlap[0])
            raise TraceError(
                f"client {codes[at + 1]}: the window from {start[at + 1]} overlaps that from {start[at]} to {stop[at]}",
                int(order[at + 1]) + 1,
            )
        joined = same & (start[1:] == stop[:-1])
        first, last = np.append(True, ~joined)[: codes.size], np.append(~joined, True)[: codes.size]
        self._set(n_clients, _offsets(codes[first], n_clients), start[first], stop[last], periods, policy)

    def _set(self, n: int, offsets: Any, begin: Any, end: Any, period: Any, policy: Policy) -> None:
        for name, value in (("offsets", offsets), ("begin", begin), ("end", end)):
            object.__setattr__(self, name, _frozen(value))
        if period is not None and period.size:
            period = float(period[0]) if np.all(period == period[0]) else _frozen(period)
        object.__setattr__(self, "period", period)
        object.__setattr__(self, "n_clients", n)
        object.__setattr__(self, "policy", policy)

    @property
    def periods(self) -> NDArray[np.float64] | None:
        """The period of every client, or None."""
        return None if self.period is None else np.broadcast_to(self.period, (self.n_clients,))

    def available(self, client: ArrayLike, time: ArrayLike) -> NDArray[np.bool_]:
        """Whether each client is there at each time, by binary search."""
        codes, at = np.broadcast_arrays(np.asarray(client, dtype=np.int64), np.asarray(time, dtype=np.float64))
        base = np.zeros(at.shape)  # when the current repetition began
        periods = self.periods
        if periods is not None:
            period = periods[codes]
            cycle = np.floor(at / period)
            cycle -= cycle * period > at  # the division may round up to a whole number, or down from one
            cycle += (cycle + 1.0) * period <= at
            base, next_base = cycle * period, (cycle + 1.0) * period
        low, high = self.offsets[codes], self.offsets[codes + 1]
        first = low.copy()
        while np.any(low < high):  # log2(windows) rounds: low becomes the first window that begins after `at`
            middle = (low + high) // 2
            after = np.ones(at.shape, dtype=np.bool_)
            open_ = low < high
            after[open_] = base[open_] + self.begin[middle[open_]] > at[open_]
            low, high = np.where(open_ & ~after, middle + 1, low), np.where(open_ & after, middle, high)
        inside = low > first
        result = np.zeros(at.shape, dtype=np.bool_)
        end = self.end[low[inside] - 1]
        close = base[inside] + end
        if periods is not None:  # the end of a period is the begin of the next one, to the bit
            close = np.where(end == period[inside], next_base[inside], close)
        result[inside] = at[inside] < close
        return result

    def take(self, clients: NDArray[np.int64]) -> Availability:
        """The availability of clients[0], clients[1], ... as that of clients 0, 1, ..."""
        rows, offsets = _take_groups(self.offsets, clients)
        taken = Availability.__new__(Availability)
        periods = self.periods
        period = None if periods is None else periods[clients]
        taken._set(clients.size, offsets, self.begin[rows], self.end[rows], period, self.policy)
        return taken

    def describe(self) -> dict[str, Any]:
        """What it is, as JSON can hold it."""
        content = digest(self.offsets, self.begin, self.end, self.periods)
        return {"kind": "availability", "policy": self.policy, "windows": self.begin.size, "sha256": content}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Availability) and self.describe() == other.describe()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Availability({self.begin.size} windows of {self.n_clients} clients, policy={self.policy!r})"


def _periods(period: float | ArrayLike, n_clients: int) -> NDArray[np.float64]:
    values = to_array("period", period)
    if values.dtype.kind not in "iuf":
        raise TypeError(f"period must be a number or one for each client, not {values.dtype}")
    if values.ndim and values.shape != (n_clients,):
        raise ValueError(f"period must be one number or {n_clients}, not of shape {values.shape}")
    periods = np.broadcast_to(values.astype(np.float64), (n_clients,)).copy()
    if not np.all((periods > 0) & (periods < np.inf)):
        raise ValueError("period must be positive and finite")
    return periods


def _take_groups(offsets: NDArray[np.int64], groups: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of groups[0], groups[1], ... one after the other, and their offsets."""
    sizes = offsets[groups + 1] - offsets[groups]
    taken = np.zeros(groups.size + 1, dtype=np.int64)
    np.cumsum(sizes, out=taken[1:])
    return np.arange(taken[-1]) + np.repeat(offsets[groups] - taken[:-1], sizes), taken


# Trace


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Trace(Immutable):
    """Recorded delays of each client's tasks, in seconds.

    Rows are sorted by client, then task: the k-th task of client i takes row offsets[i] + k of `wait`, `download`,
    `compute`, `upload` and `ok`. After a client's last row it starts over (end="wrap") or leaves (end="stop").
    A task with ok = False never arrives. `client_ids[i]` is the id that client i had in the file.
    """

    n_clients: int
    client_ids: NDArray[Any]
    offsets: NDArray[np.int64]
    wait: NDArray[np.float64]
    download: NDArray[np.float64]
    compute: NDArray[np.float64]
    upload: NDArray[np.float64]
    ok: NDArray[np.bool_]
    end: End
    availability: Availability | None

    def __init__(
        self,
        client: ArrayLike | Labels,
        compute: ArrayLike | None = None,
        *,
        total: ArrayLike | None = None,
        task: ArrayLike | None = None,
        wait: ArrayLike | None = None,
        download: ArrayLike | None = None,
        upload: ArrayLike | None = None,
        ok: ArrayLike | None = None,
        clients: int | Sequence[Any] | NDArray[Any] | None = None,
        end: End = "wrap",
        availability: Availability | None = None,
        tasks: Tasks = "number",
    ) -> None:
        """Rows in any order: a client's go by `task` (0, 1, 2, ... each once) where given, else as they stand.

        With tasks="order" the numbers in `task` may begin anywhere and have gaps: a client's rows go by their order.
        `total` stands for a task's whole time without its wait, where nobody recorded the parts. `clients` lists the
        ids that may appear (an int n means 0 .. n - 1) and gives them numbers in that order; without it they are the
        ids found, sorted.
        """
        if (compute is None) == (total is None):
            raise ValueError("give compute or total, one of them")
        if total is not None and not (download is None and upload is None):
            raise ValueError("total contains download and upload: give compute with them")
        choice("end", end, ("wrap", "stop"))
        choice("tasks", tasks, ("number", "order"))
        codes, ids = code_clients(client, clients)
        given = {"wait": wait, "download": download, "compute": compute, "total": total, "upload": upload}
        times = {
            name: _numbers(name, values, codes.size, copy=False) for name, values in given.items() if values is not None
        }
        _check_times(times)
        if total is not None:
            times["compute"] = times.pop("total")
        flags = None if ok is None else _check_flags(ok, codes.size)
        numbers = None if task is None else _integers("task", task, codes.size)
        offsets = _offsets(codes, ids.size)
        if end == "wrap" and np.any(offsets[1:] == offsets[:-1]):
            missing = ids[int(np.argmax(offsets[1:] == offsets[:-1]))]
            raise ValueError(f"client {_show(missing)} has no rows to repeat; with end='stop' it takes no part")
        order = _row_order(codes, numbers, offsets, ids, tasks)
        given_columns: dict[str, NDArray[Any]] = {**times} if flags is None else {**times, "ok": flags}
        columns = dict(zip(given_columns, _reordered(list(given_columns.values()), order), strict=True))
        flags = columns.pop("ok", np.ones(codes.size, dtype=np.bool_))
        columns |= {name: np.zeros(codes.size) for name in PARTS if name not in columns}
        self._set(ids, offsets, columns, flags, end, availability)

    def _set(
        self,
        ids: NDArray[Any],
        offsets: NDArray[np.int64],
        columns: Mapping[str, NDArray[np.float64]],
        ok: NDArray[np.bool_],
        end: End,
        availability: Availability | None,
    ) -> None:
        if availability is not None:
            if not isinstance(availability, Availability):
                raise TypeError(f"availability must be an Availability, not {type(availability).__name__}")
            if availability.n_clients != ids.size:
                raise ValueError(f"availability is for {availability.n_clients} clients, the trace has {ids.size}")
        for name, array in {"client_ids": ids, "offsets": offsets, **columns, "ok": ok}.items():
            object.__setattr__(self, name, _frozen(array))
        object.__setattr__(self, "n_clients", int(ids.size))
        object.__setattr__(self, "end", end)
        object.__setattr__(self, "availability", availability)

    def _with(self, rows: NDArray[np.int64] | None = None, **changes: Any) -> Trace:
        """A trace of these rows (all) with some attributes changed."""
        made = Trace.__new__(Trace)
        parts = {name: changes.get(name, getattr(self, name)) for name in PARTS}
        ok = self.ok
        if rows is not None:
            parts, ok = {name: values[rows] for name, values in parts.items()}, ok[rows]
        made._set(
            changes.get("client_ids", self.client_ids),
            changes.get("offsets", self.offsets),
            parts,
            ok,
            self.end,
            changes.get("availability", self.availability),
        )
        return made

    @property
    def n_rows(self) -> int:
        return int(self.compute.size)

    @property
    def client(self) -> NDArray[np.int64]:
        """The client number of every row."""
        return np.repeat(np.arange(self.n_clients), np.diff(self.offsets))

    @property
    def total(self) -> NDArray[np.float64]:
        """(download + compute) + upload of every row."""
        return (self.download + self.compute) + self.upload

    def scale(
        self,
        *,
        wait: float | ArrayLike = 1.0,
        download: float | ArrayLike = 1.0,
        compute: float | ArrayLike = 1.0,
        upload: float | ArrayLike = 1.0,
    ) -> Trace:
        """The same trace with parts multiplied, each by one factor or by one for each client."""
        changed = {}
        for name, factor in {"wait": wait, "download": download, "compute": compute, "upload": upload}.items():
            values = to_array(name, factor)
            if values.dtype.kind not in "iuf":
                raise TypeError(f"{name} must be a number or one for each client, not {values.dtype}")
            if values.ndim and values.shape != (self.n_clients,):
                raise ValueError(f"{name} must be one factor or {self.n_clients}, not of shape {values.shape}")
            scaled = getattr(self, name) * (np.repeat(values, np.diff(self.offsets)) if values.ndim else values)
            if scaled.size and not (scaled.min() >= 0 and scaled.max() < np.inf):
                raise ValueError(f"the factor of {name} makes delays that are negative or not finite")
            changed[name] = scaled
        return self._with(**changed)

    def bootstrap(self, tasks: int | None = None, *, seed: int = 0, block: int = 1) -> Trace:
        """A resampled trace: every client gets `tasks` rows (as many as it has) drawn from its own with replacement.

        Whole rows are drawn, in runs of `block` consecutive ones (from the last row on to the first), so that a slow
        spell stays a spell.
        """
        block, seed = count("block", block), seed_of(seed)
        tasks = None if tasks is None else count("tasks", tasks)
        sizes = np.diff(self.offsets)
        counts = sizes if tasks is None else np.where(sizes > 0, tasks, 0)
        offsets = np.zeros(self.n_clients + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets[1:])
        blocks = -(-counts // block)
        first_block = np.cumsum(blocks) - blocks
        owner = np.repeat(np.arange(self.n_clients), blocks)
        words = _random_words(seed, owner, np.arange(owner.size) - first_block[owner], _RESAMPLE)
        starts = multiply_high(words, sizes[owner].astype(np.uint64)).astype(np.int64)
        position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        start = starts[np.repeat(first_block, counts) + position // block]
        rows = np.repeat(self.offsets[:-1], counts) + (start + position % block) % np.repeat(sizes, counts)
        return self._with(rows, offsets=offsets)

    def assign(self, n_clients: int, seed: int = 0) -> Trace:
        """A trace for n_clients clients, each given one recorded device at random.

        No device is used again before all have been used as often. `client_ids` tells which device a client has; two
        clients with the same device have the same delays.
        """
        n_clients, seed = count("n_clients", n_clients, high=2**31 - 1), seed_of(seed)
        passes = -(-n_clients // self.n_clients)
        words = _random_words(seed, np.arange(self.n_clients), np.arange(passes)[:, None], _ASSIGN)
        device = np.argsort(words, axis=1, kind="stable").ravel()[:n_clients]
        rows, offsets = _take_groups(self.offsets, device)
        availability = None if self.availability is None else self.availability.take(device)
        return self._with(rows, offsets=offsets, client_ids=self.client_ids[device], availability=availability)

    def summary(self) -> dict[str, Any]:
        """The size of the trace, its failures, each part's spread, and how much clients differ.

        `between_clients` is the share of the variance of task times that clients' means explain: near 1, clients are
        persistently fast or slow; near 0, slowness comes and goes.
        """
        total, sizes = self.total, np.diff(self.offsets)
        parts = {name: getattr(self, name) for name in PARTS}
        mean = np.add.reduceat(total, self.offsets[:-1][sizes > 0]) / sizes[sizes > 0]
        variance = float(total.var()) if total.min() < total.max() else 0.0  # that of equal numbers rounds above 0
        between = float(np.average((mean - total.mean()) ** 2, weights=sizes[sizes > 0]))
        return {
            "n_clients": self.n_clients,
            "rows": self.n_rows,
            "rows_per_client": {"min": int(sizes.min()), "median": float(np.median(sizes)), "max": int(sizes.max())},
            "failed": float(1 - self.ok.mean()),
            "total": spread(total),
            **{name: spread(values) for name, values in parts.items() if values.any()},
            "client_mean": spread(mean),
            "between_clients": min(between / variance, 1.0) if variance > 0 else 0.0,
        }

    def fit(self, part: str = "total", families: Sequence[str] | None = None) -> list[Fit]:
        """Distributions fitted to a part of all rows (or to "total"), the nearest first; needs scipy."""
        from ._fit import fit

        if part not in (*PARTS, "total"):
            raise ValueError(f"part {part!r} is unknown: total, {', '.join(PARTS)}")
        return fit(getattr(self, part), families)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes .csv, .csv.gz, .npz or .parquet, which `read_trace` reads; availability only into NPZ."""
        form = file_format(path, FORMATS)
        columns: dict[str, NDArray[Any]] = {
            "client": self.client_ids[self.client],
            **{name: getattr(self, name) for name in PARTS},
            "ok": self.ok,
        }
        if form != "npz" and self.availability is not None:
            raise ValueError("only NPZ holds a trace's availability: save to .npz")
        if np.unique(self.client_ids).size < self.n_clients:
            columns["client"] = self.client  # after `assign` several clients may share a device's id
        if self.availability is not None:
            windows = self.availability
            columns |= {"availability_offsets": windows.offsets, "availability_begin": windows.begin}
            columns |= {"availability_end": windows.end, "availability_policy": np.array(windows.policy)}
            columns |= {} if windows.period is None else {"availability_period": np.asarray(windows.period)}
        with replacing(path) as beside:
            write_columns(beside, form, columns, path)

    def describe(self) -> dict[str, Any]:
        """What it is, as JSON can hold it."""
        return {
            "kind": "trace",
            "n_clients": self.n_clients,
            "rows": self.n_rows,
            "end": self.end,
            "sha256": digest(self.offsets, self.wait, self.download, self.compute, self.upload, self.ok),
            "availability": None if self.availability is None else self.availability.describe(),
        }

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Trace)
            and np.array_equal(self.client_ids, other.client_ids)
            and self.describe() == other.describe()
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Trace({self.n_rows} rows of {self.n_clients} clients, end={self.end!r})"


def spread(values: NDArray[Any]) -> dict[str, float]:
    """Mean, extremes and quantiles."""
    names = ("min", "p10", "p50", "p90", "p99", "max")
    quantiles = np.quantile(values, [0.0, 0.1, 0.5, 0.9, 0.99, 1.0])
    return {"mean": float(values.mean()), **dict(zip(names, map(float, quantiles), strict=True))}


def _reordered(columns: list[NDArray[Any]], order: NDArray[np.int64] | None) -> list[NDArray[Any]]:
    """A copy of each column, its rows in the given order; NumPy lets other threads run while it gathers."""
    if order is None:
        return [values.copy() for values in columns]
    with ThreadPoolExecutor(min(len(columns), os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda values: values.take(order, mode="clip"), columns))


def _check_flags(ok: ArrayLike, length: int) -> NDArray[np.bool_]:
    flags = to_array("ok", ok)
    if flags.dtype.kind not in "biu":
        raise TypeError(f"ok must be booleans, not {flags.dtype}")
    flags = _vector("ok", flags, length)
    if flags.dtype.kind != "b":
        odd = np.flatnonzero((flags != 0) & (flags != 1))
        if odd.size:
            _refuse(odd, lambda row: f"ok {flags[row]} is neither true nor false")
    return flags.astype(np.bool_)


def _row_order(
    codes: NDArray[np.int64],
    numbers: NDArray[np.int64] | None,
    offsets: NDArray[np.int64],
    ids: NDArray[Any],
    tasks: Tasks,
) -> NDArray[np.int64] | None:
    """The permutation that sorts rows by client, then task number; None where they are sorted."""
    order = None if bool(np.all(codes[1:] >= codes[:-1])) else stable_order(codes)
    if numbers is None:
        return order
    expected = np.arange(codes.size) - np.repeat(offsets[:-1], np.diff(offsets))
    if np.array_equal(numbers if order is None else numbers[order], expected):
        return order

    def who(row: int) -> str:
        return f"client {_show(ids[codes[row]])} has task {numbers[row]}"

    by_task = np.lexsort((numbers, codes))
    number, begins = numbers[by_task], expected == 0
    again = np.append(False, number[1:] == number[:-1]) & ~begins
    gap = (number != np.append(-1, number[:-1]) + 1) & ~again
    gap = np.where(begins, number != 0, gap) & (number >= 0)
    negative = np.flatnonzero(numbers < 0)
    groups = [(negative, lambda i: f"task {numbers[negative[i]]} is negative")]
    twice = np.sort(by_task[again])
    groups.append((twice, lambda i: f"{who(twice[i])} twice"))
    hint = ""
    if tasks == "number":  # a client's first number is 0, and each other one more than that before
        places = np.flatnonzero(gap)[np.argsort(by_task[gap], kind="stable")]
        missing = np.where(begins, 0, np.append(-1, number[:-1]) + 1)
        rows = by_task[places]
        groups.append((rows, lambda i: f"{who(rows[i])} but no task {missing[places[i]]}"))
        hint = "tasks='order' (--tasks order) takes the numbers by their order" if rows.size else ""
    error = bad_rows(groups, hint)
    if error is not None:
        raise error
    return by_task


# Arrival logs


@dataclass(frozen=True, eq=False, init=False, repr=False)
class ArrivalLog(Immutable):
    """Arrivals as they happened, in their order: who, on which version or since when, and when it arrived.

    `version` or `start_time` may be None, not both. Versions are checked against the order as far as that is possible
    without knowing the server: row r (from 0) cannot hold a version above r, and a later start not an older version.
    `step`, where it was recorded, is the server step that each arrival entered: 0, 1, 2, ... with at least one arrival
    each. A schedule then has these steps.
    """

    n_clients: int
    client_ids: NDArray[Any]
    client: NDArray[np.int64]
    version: NDArray[np.int64] | None
    start_time: NDArray[np.float64] | None
    arrive_time: NDArray[np.float64]
    step: NDArray[np.int64] | None

    def __init__(
        self,
        client: ArrayLike | Labels,
        arrive_time: ArrayLike,
        *,
        version: ArrayLike | None = None,
        start_time: ArrayLike | None = None,
        step: ArrayLike | None = None,
        clients: int | Sequence[Any] | NDArray[Any] | None = None,
    ) -> None:
        if version is None and start_time is None:
            raise ValueError("give version or start_time, or both")
        codes, ids = code_clients(client, clients)
        arrive = _numbers("arrive_time", arrive_time, codes.size)
        start = None if start_time is None else _numbers("start_time", start_time, codes.size)
        made_on = None if version is None else _integers("version", version, codes.size)
        _check_times({"arrive_time": arrive} if start is None else {"start_time": start, "arrive_time": arrive})
        early = np.flatnonzero(arrive[1:] < arrive[:-1]) + 1
        _refuse(early, lambda row: f"arrive_time {arrive[row]} is before the row above, {arrive[row - 1]}")
        if start is not None:
            begin = start
            late = np.flatnonzero(begin > arrive)
            _refuse(late, lambda row: f"start_time {begin[row]} is after arrive_time {arrive[row]}")
        if made_on is not None:
            self._check_versions(made_on, start)
        entered = None if step is None else _integers("step", step, codes.size)
        if entered is not None:
            self._check_steps(entered, made_on)
        fields = {
            "client_ids": ids,
            "client": codes.copy(),
            "version": made_on,
            "start_time": start,
            "arrive_time": arrive,
            "step": entered,
        }
        for name, array in fields.items():
            object.__setattr__(self, name, None if array is None else _frozen(array))
        object.__setattr__(self, "n_clients", int(ids.size))

    @staticmethod
    def _check_versions(version: NDArray[np.int64], start: NDArray[np.float64] | None) -> None:
        wrong = np.flatnonzero((version < 0) | (version > np.arange(version.size)))
        if wrong.size:
            _refuse(
                wrong,
                lambda row: (
                    f"version {version[row]} "
                    + ("is negative" if version[row] < 0 else f"does not exist yet: {row} arrivals came before")
                ),
            )
        if start is not None:
            order = np.lexsort((version, start))
            newest = np.maximum.accumulate(version[order])
            older = np.flatnonzero((version[order] < newest) & np.append(False, start[order][1:] > start[order][:-1]))
            begin = start
            _refuse(
                np.sort(order[older]),
                lambda row: (
                    f"version {version[row]} started at {begin[row]}, when a newer version had already been started on"
                ),
            )

    @staticmethod
    def _check_steps(step: NDArray[np.int64], version: NDArray[np.int64] | None) -> None:
        before = np.append(0, step[:-1])
        wrong = np.flatnonzero((step != before) & (step != before + 1) | (np.arange(step.size) == 0) & (step != 0))
        _refuse(
            wrong,
            lambda row: (
                f"step {step[row]} "
                + (f"follows step {before[row]}: steps rise by 0 or 1" if row else "is the first: steps begin at 0")
            ),
        )
        if version is not None:
            newer = np.flatnonzero(version > step)
            _refuse(newer, lambda row: f"version {version[row]} is newer than step {step[row]}, which it enters")

    def check_versions(self, buffer_size: int) -> None:
        """Refuses the first row whose version a server that steps at every buffer_size arrivals had not made yet."""
        if self.version is None:
            return
        version, made = self.version, np.arange(self.client.size) // buffer_size
        _refuse(
            np.flatnonzero(version > made),
            lambda row: f"version {version[row]} does not exist yet: {row} arrivals make {made[row]} server steps",
        )

    def as_trace(self, end: End = "wrap") -> Trace:
        """How long each client's tasks took, as a trace that any strategy and concurrency can be asked about."""
        if self.start_time is None:
            raise ValueError("the log has no start times: nobody knows how long its tasks took")
        ids = self.client_ids[self.client]
        return Trace(ids, total=self.arrive_time - self.start_time, clients=self.client_ids, end=end)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes .csv, .csv.gz, .npz or .parquet, which `read_arrival_log` reads."""
        columns: dict[str, NDArray[Any]] = {"client": self.client_ids[self.client]}
        for name in ("version", "start_time", "arrive_time", "step"):
            if getattr(self, name) is not None:
                columns[name] = getattr(self, name)
        form = file_format(path, FORMATS)
        with replacing(path) as beside:
            write_columns(beside, form, columns, path)

    def describe(self) -> dict[str, Any]:
        """What it is, as JSON can hold it."""
        recorded = () if self.step is None else (self.step,)
        content = digest(self.client, self.version, self.start_time, self.arrive_time, *recorded)
        return {"kind": "arrival_log", "n_clients": self.n_clients, "rows": self.client.size, "sha256": content}

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ArrivalLog)
            and np.array_equal(self.client_ids, other.client_ids)
            and self.describe() == other.describe()
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ArrivalLog({self.client.size} arrivals of {self.n_clients} clients)"


# Files


def write_columns(beside: Path, form: str, columns: Mapping[str, NDArray[Any]], path: str | os.PathLike[str]) -> None:
    """Writes columns as CSV (tabs for .tsv, compressed for .gz), NPZ or Parquet beside the path that they will have."""
    if form == "npz":
        with beside.open("wb") as file:
            np.savez(file, **columns)  # type: ignore[arg-type]
    elif form == "parquet":
        pa = optional("pyarrow", "parquet", "writing Parquet")
        pq = optional("pyarrow.parquet", "parquet", "writing Parquet")
        pq.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), beside)
    else:
        import csv

        name = Path(path).name.lower()
        with open_text(beside, compressed=name.endswith(".gz")) as text:
            writer = csv.writer(text, lineterminator="\n", delimiter="\t" if ".tsv" in name else ",")
            writer.writerow(columns)
            cells = [
                [guarded(text) for text in values.tolist()] if values.dtype.kind == "U" else values.tolist()
                for values in columns.values()
            ]
            writer.writerows(zip(*cells, strict=True))


def _wanted(
    columns: Mapping[str, str | None] | None, known: Mapping[str, tuple[Kind, bool]], client: int | str | None
) -> dict[str, Wanted]:
    names = {} if columns is None else mapping("columns", columns)
    if client is not None:
        if names.get("client") is not None:
            raise ValueError(f"client: give the one client {client!r} or a column of them, not both")
        names["client"] = None
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"columns: {unknown[0]!r} is not one of {', '.join(known)}")
    wanted = {}
    for name, (kind, required) in known.items():
        in_file = names.get(name, name)
        if in_file is not None:
            wanted[name] = Wanted(in_file, kind, required or name in names)
    return wanted


def _times(columns: Mapping[str, Column], name: str, unit: str | float) -> NDArray[np.float64] | None:
    values = columns.get(name)
    if values is None or isinstance(values, Labels):
        return None
    return in_seconds(values.astype(np.float64, copy=False), unit)


def read_trace(
    path: str | os.PathLike[str],
    *,
    columns: Mapping[str, str | None] | None = None,
    unit: str | float = "s",
    clients: int | Sequence[Any] | NDArray[Any] | None = None,
    end: End = "wrap",
    availability: Availability | None = None,
    client: int | str | None = None,
    tasks: Tasks = "number",
    missing: Missing = "error",
    delimiter: str | None = None,
) -> Trace:
    """Reads a delay trace from .csv, .tsv (also .gz), .npz or .parquet (needs pyarrow).

    The file has columns client, [task], [wait], [download], compute or total, [upload], [ok]; others are ignored.
    `columns` maps these names to the file's ({"compute": "batch_time"}; None leaves one out), `unit` is the unit of the
    times ("s", "ms", "us", "ns", "min", "h", or the seconds in one). The rest is as in `Trace`.

    client     the one client of all rows, where the file has no column of them
    tasks      "number": a client's task numbers are 0, 1, 2, ...; "order": they may begin anywhere and have gaps
    missing    "drop" leaves out rows in which a value is empty, NaN, NA, N/A, null or None; they are errors else
    delimiter  of a text file: a character, or comma, tab, semicolon, pipe or blanks; None finds it by the header

    Errors are `TraceError`s about all bad rows at once. They name the first few by their lines, as an editor shows
    them; by data rows, counted from 1, where the file is not text.
    """
    known: dict[str, tuple[Kind, bool]] = {
        "client": ("label", True),
        "task": ("integer", False),
        "wait": ("number", False),
        "download": ("number", False),
        "compute": ("number", False),
        "total": ("number", False),
        "upload": ("number", False),
        "ok": ("flag", False),
    }
    in_seconds(np.zeros(0), unit)
    table = read_columns(path, _wanted(columns, known, client), missing=missing, delimiter=delimiter)
    read = table.columns
    if availability is None and file_format(path, FORMATS) == "npz":
        try:
            availability = _stored_availability(path)
        except TraceError as error:
            raise TraceError(f"availability: {error.reason}", path=path) from None
        except FileError as error:
            raise TraceError(error.reason, path=path) from error
    if ("compute" in read) == ("total" in read):
        both = (
            "compute and total: leave one out with columns={'total': None}"
            if "compute" in read
            else "neither compute nor total"
        )
        raise TraceError(f"the file has {both}", path=path)
    if "total" in read:
        read = {name: values for name, values in read.items() if name not in ("download", "upload")}
    try:
        return Trace(
            _client_column(read, client),
            **{name: _times(read, name, unit) for name in (*PARTS, "total")},
            task=_plain(read.get("task")),
            ok=_plain(read.get("ok")),
            clients=clients,
            end=end,
            availability=availability,
            tasks=tasks,
        )
    except TraceError as error:
        raise table.located(error) from None


def _client_column(read: Mapping[str, Column], client: int | str | None) -> Column:
    """The column of clients, or the one client as often as there are rows."""
    if client is None:
        return read["client"]
    if isinstance(client, bool) or not isinstance(client, int | str):
        raise TypeError(f"client: expected an int or a string, got {type(client).__name__}")
    n = next(values.size for values in read.values() if isinstance(values, np.ndarray))
    return Labels(np.zeros(n, np.int64), np.array([client]))


def _plain(column: Column | None) -> NDArray[Any] | None:
    return None if isinstance(column, Labels) else column


def _stored_availability(path: str | os.PathLike[str]) -> Availability | None:
    what = "a whole NPZ file"
    with reading(path, what), open_npz(path, what) as file:
        if "availability_offsets" not in file.files:
            return None
        offsets = file["availability_offsets"]
        if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or offsets.size < 2 or offsets[0] != 0:
            raise ValueError(f"availability_offsets is {offsets.dtype} {offsets.shape}")
        if np.any(np.diff(offsets) < 0) or file["availability_begin"].shape != (offsets[-1],):
            raise ValueError("availability_offsets does not fit availability_begin")
        return Availability(
            np.repeat(np.arange(offsets.size - 1), np.diff(offsets)),
            file["availability_begin"],
            file["availability_end"],
            n_clients=offsets.size - 1,
            period=file["availability_period"] if "availability_period" in file.files else None,
            policy=file.text("availability_policy"),  # type: ignore[arg-type]
        )


def read_arrival_log(
    path: str | os.PathLike[str],
    *,
    columns: Mapping[str, str | None] | None = None,
    unit: str | float = "s",
    clients: int | Sequence[Any] | NDArray[Any] | None = None,
    client: int | str | None = None,
    missing: Missing = "error",
    delimiter: str | None = None,
) -> ArrivalLog:
    """Reads an arrival log: columns client, [version], [start_time], arrive_time, [step]; the rest as `read_trace`."""
    known: dict[str, tuple[Kind, bool]] = {
        "client": ("label", True),
        "version": ("integer", False),
        "start_time": ("number", False),
        "arrive_time": ("number", True),
        "step": ("integer", False),
    }
    in_seconds(np.zeros(0), unit)
    table = read_columns(path, _wanted(columns, known, client), missing=missing, delimiter=delimiter)
    read = table.columns
    if "version" not in read and "start_time" not in read:
        raise TraceError("the file has neither version nor start_time", path=path)
    arrive = _times(read, "arrive_time", unit)
    assert arrive is not None
    try:
        return ArrivalLog(
            _client_column(read, client),
            arrive,
            version=_plain(read.get("version")),
            start_time=_times(read, "start_time", unit),
            step=_plain(read.get("step")),
            clients=clients,
        )
    except TraceError as error:
        raise table.located(error) from None
