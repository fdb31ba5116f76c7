"""The timeline of a schedule as a page can draw it at once: columns of tasks, and levels that aggregate them.

A level cuts virtual time into bins and the clients into groups; a cell holds the mean staleness of the tasks at work in
it. Each level has four times the bins of the one before, up to where a window of `WINDOW_BINS` bins holds few enough
tasks to be drawn one by one. So a page never looks at more than a few thousand cells or tasks, however many there are.
"""

from __future__ import annotations

import base64
import gzip
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._delays.model import DelayModel
from .._delays.trace import Trace
from .._schedule.columns import Status
from .._schedule.schedule import Schedule, task_parts
from .._schedule.spans import is_delayed, task_spans

__all__ = ["Timeline", "packed"]

WINDOW_BINS = 400
MOST_TASKS = 10_000  # that a page draws one by one
MOST_GROUPS = 64
IN_FLIGHT = len(Status)  # the status of a task that had not ended
_TICKS = 2**32 - 1


@dataclass(frozen=True)
class Timeline:
    """Tasks in the order of arrival, then those in flight; times in ticks of `tick` seconds from `begin`."""

    begin: float
    tick: float
    n_clients: int
    start: NDArray[np.uint32]
    end: NDArray[np.uint32]
    client: NDArray[np.uint32]
    task: NDArray[np.uint32]
    version: NDArray[np.int64]
    staleness: NDArray[np.int64]
    status: NDArray[np.uint8]
    queued: NDArray[np.uint32] | None = None  # ticks that it waited behind others of its client,
    shared: NDArray[np.uint32] | None = None  # and that its upload took beyond its time alone

    @classmethod
    def of(cls, schedule: Schedule, source: Trace | DelayModel | None = None) -> Timeline:
        """With the delays that made the schedule it is known how long uploads took beyond their time alone."""
        newest = schedule.first_step + schedule.n_steps
        flying = schedule.in_flight_client.size
        end = np.concatenate([schedule.arrive_time, np.full(flying, schedule.end_time)])
        start = np.concatenate([schedule.start_time, schedule.in_flight_start_time])
        start = np.minimum(np.where(np.isnan(start), end, start), end)
        begin = float(start.min(initial=0.0))
        span = max(float(end.max(initial=0.0)) - begin, np.finfo(np.float64).tiny)

        def ticks(times: NDArray[np.float64]) -> NDArray[np.uint32]:
            return np.round((times - begin) / span * _TICKS).astype(np.uint32)

        client = np.concatenate([schedule.client, schedule.in_flight_client])
        task = np.concatenate([schedule.task, schedule.in_flight_task])
        queued = shared = None
        if schedule.description.get("queues") or is_delayed(schedule):
            parts = None if source is None else task_parts(source, schedule.seed, client, task)
            spans = task_spans(schedule, parts, client, task, start, end)
            if schedule.description.get("queues"):
                queued = ticks(np.minimum(spans.turn, end)) - ticks(start)
            if is_delayed(schedule):
                shared = ticks(end) - ticks(np.minimum(spans.sent, end))
        version = np.concatenate([schedule.version, schedule.in_flight_version])
        return cls(
            begin=begin,
            tick=span / _TICKS,
            n_clients=schedule.n_clients,
            start=ticks(start),
            end=ticks(end),
            client=client.astype(np.uint32),
            task=task.astype(np.uint32),
            version=version,
            staleness=np.concatenate([schedule.staleness, newest - schedule.in_flight_version]),
            status=np.concatenate([schedule.status, np.full(flying, IN_FLIGHT, np.uint8)]),
            queued=queued,
            shared=shared,
        )

    @property
    def n_tasks(self) -> int:
        return int(self.client.size)

    @property
    def groups(self) -> NDArray[np.int64]:
        """The group of every client: consecutive ids, as equal as can be."""
        n = min(self.n_clients, MOST_GROUPS)
        return np.arange(self.n_clients, dtype=np.int64) * n // self.n_clients

    @property
    def n_levels(self) -> int:
        """None where the tasks can be drawn one by one."""
        levels, tasks = 0, self.n_tasks
        while tasks > MOST_TASKS:
            levels, tasks = levels + 1, tasks // 4
        return levels

    @property
    def cap(self) -> int:
        """The staleness from which on all look alike: few are staler, and the others stay apart."""
        return max(1, int(np.quantile(self.staleness, 0.98))) if self.n_tasks else 1

    def level(self, number: int) -> NDArray[np.float64]:
        """Mean staleness of the tasks at work in each (group, bin); NaN where nobody is."""
        bins = WINDOW_BINS * 4**number
        groups = int(self.groups[-1]) + 1
        first = np.minimum(self.start.astype(np.float64) / _TICKS * bins, bins - 1).astype(np.int64)
        last = np.minimum(self.end.astype(np.float64) / _TICKS * bins, bins - 1).astype(np.int64)
        row = self.groups[self.client] * (bins + 1)
        size = groups * (bins + 1)

        def covered(weight: NDArray[Any] | None) -> NDArray[np.float64]:
            """Sum over tasks of their weight, in every bin from their first to their last."""
            change = np.bincount(row + first, weight, size).astype(np.float64)
            change -= np.bincount(row + last + 1, weight, size)
            return np.cumsum(change.reshape(groups, bins + 1), axis=1)[:, :bins]

        count, total = covered(None), covered(self.staleness)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(count > 0.5, total / count, np.nan)

    def payload(self) -> dict[str, Any]:
        """All of it as JSON can hold it: numbers, and columns and levels packed."""
        at = self.version + self.staleness  # rises with the arrivals, so that its differences are small
        columns: dict[str, NDArray[Any]] = {
            "end": np.diff(self.end, prepend=np.uint32(0)),
            "duration": self.end - self.start,
            "client": self.client,
            "task": self.task,
            "staleness": self.staleness.astype(np.uint32),
            "at": np.diff(at, prepend=0).astype(np.int32),
        }
        columns |= {name: given for name in ("queued", "shared") if (given := getattr(self, name)) is not None}
        return {
            "begin": self.begin,
            "tick": self.tick,
            "clients": self.n_clients,
            "groups": int(self.groups[-1]) + 1,
            "tasks": self.n_tasks,
            "most_tasks": MOST_TASKS,
            "cap": self.cap,
            "window_bins": WINDOW_BINS,
            "columns": {name: packed(_planes(values.astype("<u4"))) for name, values in columns.items()},
            "status": packed(self.status),
            "levels": [packed(shades(self.level(number), self.cap)) for number in range(self.n_levels)],
        }


def shades(mean: NDArray[np.float64], cap: int) -> NDArray[np.uint8]:
    """0 where nobody works, else 1 .. 255 by the square root of the staleness: small ones stay apart."""
    scaled = 1 + np.round(254 * np.sqrt(np.minimum(np.nan_to_num(mean) / cap, 1.0)))
    return np.where(np.isnan(mean), 0, scaled).astype(np.uint8)


def _planes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The first bytes of all numbers, then the second ones, ...: this compresses to about half."""
    return np.ascontiguousarray(values.view(np.uint8).reshape(-1, 4).T)


def packed(values: NDArray[Any]) -> str:
    """Bytes as a page can hold and unpack them: gzip, base64."""
    return base64.b64encode(gzip.compress(values.tobytes(), 5, mtime=0)).decode("ascii")
