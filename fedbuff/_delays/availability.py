"""`Availability`: when clients are available."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.arrays import pick_lists, to_array
from .._base.checks import choice, count
from .bad_rows import TraceError, refuse_times
from .clients import offsets_of
from .immutable import Immutable, digest, float_column, frozen, int_column

Policy = Literal["wait", "pause", "abort"]


# Availability


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Availability(Immutable):
    """When each client can work: half-open windows [begin, end), sorted and disjoint per client.

    Client i has windows offsets[i]:offsets[i + 1] of `begin` and `end`; one without windows never works. With `period`
    (a float, or a float64 array of one for each client where they differ) the windows repeat: a client at time t is as
    at t mod its period, and a window that ends with the period goes on in one that begins with it. `policy` says what
    becomes of a task outside its window: it waits to start and then runs on ("wait"), also stops while the client is
    away and goes on later ("pause"), or is lost when the window closes ("abort").
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
        codes = int_column("client", client, None)
        start = float_column("begin", begin, codes.size)
        stop = float_column("end", end, codes.size)
        outside = np.flatnonzero((codes < 0) | (codes >= n_clients))
        if outside.size:
            raise TraceError(f"client {codes[outside[0]]} is unknown: there are {n_clients}", int(outside[0]) + 1)
        refuse_times({"begin": start, "end": stop})
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
        self._set(n_clients, offsets_of(codes[first], n_clients), start[first], stop[last], periods, policy)

    def _set(self, n: int, offsets: Any, begin: Any, end: Any, period: Any, policy: Policy) -> None:
        for name, value in (("offsets", offsets), ("begin", begin), ("end", end)):
            object.__setattr__(self, name, frozen(value))
        if period is not None and period.size:
            period = float(period[0]) if np.all(period == period[0]) else frozen(period)
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
        rows, offsets = pick_lists(self.offsets, clients)
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
        raise TypeError(f"period: expected a number or one for each client, got {values.dtype}")
    if values.ndim and values.shape != (n_clients,):
        raise ValueError(f"period: expected one number or {n_clients}, got shape {values.shape}")
    periods = np.broadcast_to(values.astype(np.float64), (n_clients,)).copy()
    if not np.all((periods > 0) & (periods < np.inf)):
        raise ValueError(f"period: expected positive, finite numbers, got {periods.min():g} to {periods.max():g}")
    return periods
