"""`ArrivalLog`: what happened at a server, row by row."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.checks import count
from .._base.files import file_format, replacing
from .bad_rows import refuse_times
from .clients import code_clients
from .columns import FORMATS
from .immutable import Immutable, digest, float_column, frozen, int_column, refuse_rows, write_columns
from .table import Labels
from .trace import End, Trace

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
            raise ValueError("version, start_time: expected one of them, or both, got none")
        codes, ids = code_clients(client, clients)
        arrive = float_column("arrive_time", arrive_time, codes.size)
        start = None if start_time is None else float_column("start_time", start_time, codes.size)
        made_on = None if version is None else int_column("version", version, codes.size)
        refuse_times({"arrive_time": arrive} if start is None else {"start_time": start, "arrive_time": arrive})
        early = np.flatnonzero(arrive[1:] < arrive[:-1]) + 1
        refuse_rows(early, lambda row: f"arrive_time {arrive[row]} is before the row above, {arrive[row - 1]}")
        if start is not None:
            begin = start
            late = np.flatnonzero(begin > arrive)
            refuse_rows(late, lambda row: f"start_time {begin[row]} is after arrive_time {arrive[row]}")
        if made_on is not None:
            self._check_versions(made_on, start)
        entered = None if step is None else int_column("step", step, codes.size)
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
            object.__setattr__(self, name, None if array is None else frozen(array))
        object.__setattr__(self, "n_clients", int(ids.size))

    @staticmethod
    def _check_versions(version: NDArray[np.int64], start: NDArray[np.float64] | None) -> None:
        wrong = np.flatnonzero((version < 0) | (version > np.arange(version.size)))
        if wrong.size:
            refuse_rows(
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
            refuse_rows(
                np.sort(order[older]),
                lambda row: (
                    f"version {version[row]} started at {begin[row]}, when a newer version had already been started on"
                ),
            )

    @staticmethod
    def _check_steps(step: NDArray[np.int64], version: NDArray[np.int64] | None) -> None:
        before = np.append(0, step[:-1])
        wrong = np.flatnonzero((step != before) & (step != before + 1) | (np.arange(step.size) == 0) & (step != 0))
        refuse_rows(
            wrong,
            lambda row: (
                f"step {step[row]} "
                + (f"follows step {before[row]}: steps rise by 0 or 1" if row else "is the first: steps begin at 0")
            ),
        )
        if version is not None:
            newer = np.flatnonzero(version > step)
            refuse_rows(newer, lambda row: f"version {version[row]} is newer than step {step[row]}, which it enters")

    def check_versions(self, buffer_size: int) -> None:
        """Refuses the first row whose version a server that steps at every buffer_size arrivals had not made yet."""
        if self.version is None:
            return
        version, made = self.version, np.arange(self.client.size) // count("buffer_size", buffer_size)
        refuse_rows(
            np.flatnonzero(version > made),
            lambda row: f"version {version[row]} does not exist yet: {row} arrivals make {made[row]} server steps",
        )

    def as_trace(self, end: End = "wrap") -> Trace:
        """How long each client's tasks took, as a trace that any strategy and concurrency can be asked about."""
        if self.start_time is None:
            raise ValueError("start_time: the log has none, so that nobody knows how long its tasks took")
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
