"""Recording a live asynchronous run as an arrival log, and the recorded log that ships with the package."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import to_array
from .._base.checks import count, instance
from .arrival_log import ArrivalLog
from .read import read_arrival_log

__all__ = ["Recorder", "sample_log"]

Client = int | str


class Recorder:
    """Turns a live asynchronous run into an `ArrivalLog` by two calls: `started(client)` and `arrived(client)`.

    >>> import fedbuff as fb
    >>> recorder = fb.Recorder()
    >>> recorder.started("phone", version=0)
    >>> recorder.started("laptop", version=0)
    >>> recorder.arrived("laptop")
    >>> recorder.log().client_ids[recorder.log().client].tolist(), recorder.in_flight
    (['laptop'], ['phone'])

    clients  the clients that may appear (a number n for 0 .. n - 1, or their ids); None takes them as they come
    clock    a function that gives the time in seconds; None is the time since the recorder was made, on the system's
             monotonic clock, with no two calls at the same nanosecond
    log      arrivals recorded before, by a run that goes on now: they come first, and time goes on where they end

    Client ids are ints or strings. With a `version` the log says which model each task began from; give it always or
    never. Any thread may call. Where the log is to say exactly what the server did, call the recorder and the server
    under one lock, such as `recorder.lock`:

        with recorder.lock:
            version, w = server.download()
            recorder.started(client, version)
    """

    lock: threading.RLock
    """A re-entrant lock, held during each call."""

    def __init__(
        self,
        clients: int | Sequence[Client] | NDArray[Any] | None = None,
        *,
        clock: Callable[[], float] | None = None,
        log: ArrivalLog | None = None,
    ) -> None:
        self.lock = threading.RLock()
        self._clients = clients
        self._known = None if clients is None else _known(clients)
        self._text: bool | None = None
        self._versioned: bool | None = None
        self._now = 0.0
        self._open: dict[Client, tuple[float, int]] = {}
        self._rows: list[tuple[Client, int, float, float]] = []
        if log is not None:
            self._take(log)
        self._clock = _nanosecond_clock(self._now) if clock is None else clock

    def started(self, client: Client, version: int | None = None) -> None:
        """The client begins a task: it has just taken the model, of this version where versions are recorded."""
        with self.lock:
            client = self._checked(client)
            if client in self._open:
                raise ValueError(
                    f"client {client!r}: its task that started at {self._open[client][0]} has not arrived; "
                    "where it is lost, call cancelled(client) first"
                )
            if self._versioned is not None and self._versioned != (version is not None):
                raise ValueError(f"client {client!r}: version: expected one at every start or at none")
            number = -1 if version is None else _version(client, version)
            now = self._tick()
            self._versioned, self._text = version is not None, isinstance(client, str)
            self._open[client] = (now, number)

    def arrived(self, client: Client) -> None:
        """The client's task reached the server."""
        with self.lock:
            start, version = self._pop(client, "arrived")
            try:
                now = self._tick()
            except BaseException:
                self._open[client] = (start, version)
                raise
            self._rows.append((client, version, start, now))

    def cancelled(self, client: Client) -> None:
        """The client's task is lost: it will not arrive, and has no row."""
        with self.lock:
            self._pop(client, "was cancelled")

    @property
    def in_flight(self) -> list[Client]:
        """Clients with a task that has neither arrived nor been cancelled, in the order of their starts."""
        with self.lock:
            return list(self._open)

    def __len__(self) -> int:
        """How many arrivals were recorded."""
        return len(self._rows)

    def log(self) -> ArrivalLog:
        """The arrivals so far; tasks in flight are not in it."""
        with self.lock:
            rows = list(self._rows)
        if not rows:
            raise ValueError("nothing has arrived yet: the log would be empty")
        client, version, start, arrive = zip(*rows, strict=True)
        return ArrivalLog(
            np.array(client),
            np.array(arrive, np.float64),
            version=np.array(version, np.int64) if self._versioned else None,
            start_time=np.array(start, np.float64),
            clients=self._clients,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the log as .csv, .csv.gz, .npz or .parquet, which `read_arrival_log` reads."""
        self.log().save(path)

    def _take_back(self, row: int) -> None:
        """Row `row` was not used after all: its task counts as cancelled."""
        with self.lock:
            del self._rows[row]

    def _take(self, log: ArrivalLog) -> None:
        instance("log", log, ArrivalLog, "an ArrivalLog")
        if log.start_time is None:
            raise ValueError("log: expected one with start times")
        version = np.full(log.client.size, -1) if log.version is None else log.version
        columns = (log.client_ids[log.client], version, log.start_time, log.arrive_time)
        for client, number, start, arrive in zip(*(column.tolist() for column in columns), strict=True):
            self._rows.append((self._checked(client), number, start, arrive))
            self._versioned, self._text, self._now = log.version is not None, isinstance(client, str), arrive

    def _checked(self, client: Client) -> Client:
        if isinstance(client, np.integer | np.str_):
            client = client.item()
        if isinstance(client, bool) or not isinstance(client, int | str):
            raise TypeError(f"client: expected an int or a string, got {type(client).__name__}")
        if self._known is not None:
            # A range looks at each of its numbers for what is not an int.
            if (isinstance(self._known, range) and isinstance(client, str)) or client not in self._known:
                raise ValueError(f"client: expected one of the given clients, got {client!r}")
            return client
        if not isinstance(client, str) and not 0 <= client < 2**63:
            raise ValueError(f"client: expected an int from 0 to 2**63 - 1, got {client}")
        if client == "":
            raise ValueError("client: expected an id, got an empty text")
        if isinstance(client, str) and "\0" in client:  # NumPy's strings end at a NUL character
            raise ValueError(f"client {client!r}: expected an id without NUL characters")
        if self._text is not None and self._text != isinstance(client, str):
            raise TypeError(f"client {client!r}: expected ids that are all ints or all strings")
        return client

    def _pop(self, client: Client, what: str) -> tuple[float, int]:
        try:
            return self._open.pop(client)
        except (KeyError, TypeError):
            raise ValueError(f"client {client!r}: it {what} without a start") from None

    def _tick(self) -> float:
        now = float(self._clock())
        if not self._now <= now < np.inf:
            why = "before 0" if now < 0 else f"after {self._now}"
            raise ValueError(f"clock: expected finite times from 0 that never go back, got {now} {why}")
        self._now = now
        return now


def _nanosecond_clock(start: float) -> Callable[[], float]:
    last = time.monotonic_ns()
    origin = last - math.ceil(start * 1e9)

    def clock() -> float:
        nonlocal last
        last = max(time.monotonic_ns(), last + 1)
        return (last - origin) / 1e9

    return clock


def _known(clients: int | Sequence[Client] | NDArray[Any]) -> range | set[Client]:
    if isinstance(clients, int | np.integer):
        return range(count("clients", clients))
    ids = to_array("clients", clients)
    if ids.ndim != 1 or ids.dtype.kind not in "iuU":
        raise TypeError(f"clients: expected a number of clients, or their ids, got {ids.dtype} of shape {ids.shape}")
    return set(ids.tolist())


def _version(client: Client, version: int) -> int:
    try:
        number = version.__index__()
    except AttributeError:
        raise TypeError(f"client {client!r}: version: expected an int, got {type(version).__name__}") from None
    if number < 0:
        raise ValueError(f"client {client!r}: version: expected an int >= 0, got {number}")
    return number


def sample_log() -> ArrivalLog:
    """A log recorded from four worker processes under different load, by examples/record_processes.py.

    >>> import fedbuff as fb
    >>> log = fb.sample_log()
    >>> log.n_clients, log.client.size
    (4, 300)

    Its server stepped at every third arrival, so that `fb.schedule(log, fb.FedBuff(buffer_size=3))` is what happened.
    """
    return read_arrival_log(Path(__file__).parents[1] / "data" / "recorded_log.csv")
