"""What a schedule must keep: what a replay depends on, for every schedule that comes from elsewhere, and the rest.

`ScheduleCheck` is given a schedule, or one chunk of it after the other, and finds what could lead a replay astray. It
stands in csrc/core/check_schedule.cpp, in one pass, and here in NumPy, for the other backends and as the specification.
`check_schedule` verifies more: all that the event loop promises.

The description tells strategy.max_wait (a time trigger), strategy.max_staleness, strategy.distinct_clients, and whether
in_flight is "allow" (a client may have several tasks at once); source.kind "arrival_log" or "uniform_arrivals" leaves
out what only an event loop promises.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import backends

if TYPE_CHECKING:
    from .schedule import Schedule

USED, LEFT_IN_BUFFER, TOO_STALE, DISCARDED, N_STATUS = 0, 1, 2, 3, 6

# In the order of ScheduleFault in csrc/core/check_schedule.hpp: of several faults the first one is reported.
FAULTS = (
    ("", ""),
    ("arrival", "its client is not one of {n_clients}"),
    ("arrival", "its status is unknown"),
    ("arrival", "its version is negative"),
    ("arrival", "a step is given where, and only where, the status is used"),
    ("arrival", "its step is not one of the schedule's"),
    ("arrival", "its arrive_time is not finite"),
    ("arrival", "it arrives before the one above"),
    ("task in flight", "its client is not one of {n_clients}"),
    ("task in flight", "its version does not exist"),
    ("step", "its time is not finite"),
    ("step", "it comes before the one above"),
    ("arrival", "it enters an earlier step than an arrival above"),
    ("arrival", "it arrives after the step that it enters"),
    ("arrival", "its staleness is negative"),
    ("arrival", "its staleness is not its step minus its version"),
    ("arrival", "version plus staleness is not the version at its arrival"),
    ("arrival", "its version is newer than the server's at its arrival"),
    ("version", "the tasks started on it are not those that ended or are in flight"),
)
_COLUMNS = (
    "client", "version", "step", "staleness", "arrive_time", "status", "step_time", "step_started", "in_flight_client",
    "in_flight_version",
)  # fmt: skip
_MOST_STEPS = 2**53  # a number of steps that is no mistake, and to which a version can be added


class _Check(Protocol):
    @property
    def n_chunks(self) -> int: ...
    def add(self, chunk: Any) -> tuple[int, int]: ...


class ChunkCheck:
    """The check of a schedule, or of a stream of its chunks; `add` may be called again for the newest chunk."""

    def __init__(self) -> None:
        self._check: _Check = _compiled() if backends.current().name == "cpp" else ScheduleCheck()

    def add(self, chunk: Schedule, number: int = 0) -> None:
        """Checks the chunk of this number, from 0; ValueError with the first fault."""
        check_scalars(chunk)
        if number < self._check.n_chunks:
            return
        columns = {name: np.require(getattr(chunk, name), requirements=["C", "A"]) for name in _COLUMNS}
        scalars = {name: getattr(chunk, name) for name in ("n_clients", "first_step", "started_on_0")}
        fault, index = self._check.add(SimpleNamespace(**columns, **scalars))
        if fault:
            kind, what = FAULTS[fault]
            raise ValueError(f"{kind} {index}: {what.format(n_clients=chunk.n_clients)}")


def _compiled() -> _Check:
    from .. import _core

    return _core.ScheduleCheck()


def check_scalars(s: Schedule) -> None:
    """The numbers beside the columns; ValueError that names the first one that means nothing."""
    ranges = {
        "n_clients": (1, 2**31 - 1),
        "buffer_size": (0, 2**63 - 1),
        "concurrency": (0, 2**63 - 1),
        "seed": (0, 2**64 - 1),
        "started_on_0": (0, 2**63 - 1),
        "first_step": (0, _MOST_STEPS),
    }
    for name, (low, high) in ranges.items():
        if not low <= getattr(s, name) <= high:
            raise ValueError(f"{name}: expected an int from {low} to {high}, got {getattr(s, name)}")
    for name in ("source", "strategy"):
        if not isinstance(s.description.get(name, {}), dict):
            raise ValueError(f"description: expected a dictionary of {name}, got {s.description[name]!r}")


def check_columns(s: Schedule) -> None:
    """All that a replay of this schedule depends on; ValueError with the first fault."""
    ChunkCheck().add(s)


class _Ends(NamedTuple):
    """Where the chunks that were checked end."""

    n_chunks: int = 0
    known_from: int = 0  # of older versions nobody told how many tasks started on them
    oldest: int = 0  # version of left[0]; on those before it, as far as known, all tasks have ended
    left: NDArray[np.int64] = np.zeros(0, np.int64)  # tasks not ended; of the newest version: minus those that ended
    arrive: float = -np.inf
    step_time: float = -np.inf
    step: int = 0


class ScheduleCheck:
    """The rule of csrc/core/check_schedule.cpp, column by column."""

    def __init__(self) -> None:
        self._ends = _Ends()

    @property
    def n_chunks(self) -> int:
        return self._ends.n_chunks

    def add(self, chunk: Any) -> tuple[int, int]:
        """Fault and index, as FAULTS counts them; (0, -1) where there is none."""
        first, n_steps = chunk.first_step, chunk.step_time.size
        after = first + n_steps
        ends = self._ends if self.n_chunks else _Ends(known_from=first, oldest=first, step=first)
        rows = _row_faults(chunk, ends, first, after)
        flights = [
            (chunk.in_flight_client < 0) | (chunk.in_flight_client >= chunk.n_clients),
            (chunk.in_flight_version < 0) | (chunk.in_flight_version > after),
        ]
        before = np.concatenate([[ends.step_time], chunk.step_time])
        steps = [~np.isfinite(chunk.step_time), before[1:] < before[:-1]]
        faults = [*rows, *flights, *steps]
        if not any(bad.any() for bad in faults):
            faults += _entry_faults(chunk, ends, first, after)
        for fault, bad in enumerate(faults, 1):
            if bad.any():
                return fault, int(np.argmax(bad))
        ended = chunk.version[chunk.version >= ends.known_from]
        left = np.zeros(after - ends.oldest + 1, np.int64)
        left[: ends.left.size] = ends.left
        left[first - ends.oldest] += chunk.started_on_0
        left[first - ends.oldest + 1 :] = np.maximum(chunk.step_started, -1)
        flying = chunk.in_flight_version[chunk.in_flight_version >= ends.known_from]
        gone = np.concatenate([ended, flying])
        gone = gone[gone < ends.oldest]
        if gone.size:
            return len(FAULTS) - 1, int(gone.min())
        left -= np.bincount(ended - ends.oldest, minlength=left.size)
        wrong = left < np.bincount(flying - ends.oldest, minlength=left.size)
        if wrong.any():
            return len(FAULTS) - 1, ends.oldest + int(np.argmax(wrong))
        left[-1] -= chunk.step_started[-1] if n_steps else chunk.started_on_0
        keep = int(np.argmax(np.append(left[:-1] != 0, True)))
        used = chunk.step[chunk.status == USED]
        self._ends = _Ends(
            ends.n_chunks + 1,
            ends.known_from,
            ends.oldest + keep,
            left[keep:],
            float(chunk.arrive_time[-1]) if chunk.arrive_time.size else ends.arrive,
            float(before[-1]),
            int(used[-1]) if used.size else ends.step,
        )
        return 0, -1


def _row_faults(chunk: Any, ends: _Ends, first: int, after: int) -> list[NDArray[np.bool_]]:
    """Faults of rows that need no other row's step."""
    arrive = np.concatenate([[ends.arrive], chunk.arrive_time])
    return [
        (chunk.client < 0) | (chunk.client >= chunk.n_clients),
        chunk.status >= N_STATUS,
        chunk.version < 0,
        (chunk.step >= 0) != (chunk.status == USED),
        (chunk.step >= 0) & ((chunk.step < first) | (chunk.step >= after)),
        ~np.isfinite(chunk.arrive_time),
        arrive[1:] < arrive[:-1],
    ]


def _entry_faults(chunk: Any, ends: _Ends, first: int, after: int) -> list[NDArray[np.bool_]]:
    """How rows enter steps, where each by itself is sound."""
    n_rows, version, staleness = chunk.step.size, chunk.version, chunk.staleness
    is_used = chunk.status == USED
    used = np.flatnonzero(is_used)
    step = chunk.step[used]
    back, late = np.zeros(n_rows, np.bool_), np.zeros(n_rows, np.bool_)
    back[used] = step < np.concatenate([[ends.step], step[:-1]])[: step.size]
    late[used] = chunk.arrive_time[used] > chunk.step_time[step - first]
    # the versions that the server had before and after everything that happened at the arrival's time
    low = first + np.searchsorted(chunk.step_time, chunk.arrive_time, side="left")
    high = first + np.searchsorted(chunk.step_time, chunk.arrive_time, side="right")
    exists = (version <= after) & (staleness <= after - np.minimum(version, after))
    at = version + np.where(exists, staleness, 0)
    return [
        back,
        late,
        staleness < 0,
        is_used & (staleness != chunk.step - version),
        ~is_used & (~exists | (at < low) | (at > high)),
        is_used & (version > np.maximum(high, first)),
    ]


def check_schedule(s: Schedule) -> None:
    check_columns(s)
    _refuse(s.start_time > s.arrive_time, "it starts after it arrives")
    _check_steps(s)
    _check_staleness(s)
    _check_starts(s)
    if s.description.get("source", {}).get("kind") not in ("arrival_log", "uniform_arrivals"):
        _check_event_loop(s)


def _refuse(bad: NDArray[np.bool_], what: str, kind: str = "arrival") -> None:
    if bad.any():
        raise ValueError(f"{kind} {int(np.argmax(bad))}: {what}")


def _check_steps(s: Schedule) -> None:
    used = np.flatnonzero(s.step >= 0)
    step, arrive = s.step[used] - s.first_step, s.arrive_time[used]
    count = np.bincount(step, minlength=s.n_steps)
    left = np.flatnonzero(s.status == LEFT_IN_BUFFER)
    if left.size and used.size and left[0] < used[-1]:
        raise ValueError(f"arrival {left[0]}: it is left in the buffer before a step")
    if s.description.get("strategy", {}).get("distinct_clients"):
        order = np.lexsort((s.client[used], step))
        again = (np.diff(step[order]) == 0) & (np.diff(s.client[used][order]) == 0)
        twice = np.zeros(s.n_arrivals, dtype=np.bool_)
        twice[used[order[1:][again]]] = True
        _refuse(twice, "its client is in its buffer already")
    triggered = s.description.get("strategy", {}).get("max_wait") is not None
    if s.buffer_size:
        _refuse(count > s.buffer_size, f"more than {s.buffer_size} arrivals enter it", "step")
        _refuse(count == 0, "no arrival enters it", "step")
        if left.size >= s.buffer_size:
            raise ValueError(f"{left.size} arrivals are left in a buffer of {s.buffer_size}")
    if s.buffer_size and not triggered:
        _refuse(count < s.buffer_size, f"fewer than {s.buffer_size} arrivals enter it", "step")
    if not triggered and step.size:
        last = np.append(step[1:] != step[:-1], True)
        differs = np.zeros(s.n_steps, dtype=np.bool_)
        differs[step[last]] = arrive[last] != s.step_time[step[last]]
        if s.buffer_size == 0:  # a round may end when the last of its tasks fails
            differs &= ~np.isin(s.step_time, s.arrive_time)
        _refuse(differs, "its time is not that of its last arrival", "step")


def _check_staleness(s: Schedule) -> None:
    used = s.status == USED
    if s.buffer_size == 0:
        _refuse(used & (s.staleness != 0), "FedAvg used an arrival of an earlier round")
    bound = s.description.get("strategy", {}).get("max_staleness")
    if bound is not None:
        _refuse(used & (s.staleness > bound), f"it was used with a staleness above {bound}")
        _refuse((s.status == TOO_STALE) & (s.staleness <= bound), f"a staleness up to {bound} is not too stale")
    worst = max(
        int(s.staleness[used].max(initial=0)), s.first_step + s.n_steps - int(s.in_flight_version.min(initial=2**62))
    )
    if s.tau != max(worst, 0):
        raise ValueError(f"tau is {s.tau}, the largest staleness or age is {worst}")


def _check_starts(s: Schedule) -> None:
    """As many tasks as each version says were started on it have ended on it or are in flight."""
    versions = np.concatenate([s.version, s.in_flight_version]) - s.first_step
    found = np.bincount(versions[versions >= 0], minlength=s.n_steps + 1)
    told = np.append(s.started_on_0, s.step_started)
    wrong = np.flatnonzero(found[: told.size] != told) if found.size == told.size else np.array([told.size])
    if wrong.size:
        version = int(wrong[0]) + s.first_step
        raise ValueError(f"version {version}: the tasks started on it are not those that ended or are in flight")


def _check_event_loop(s: Schedule) -> None:
    client = np.concatenate([s.client, s.in_flight_client])
    task = np.concatenate([s.task, s.in_flight_task]).astype(np.int64)
    start = np.concatenate([s.start_time, s.in_flight_start_time])
    end = np.concatenate([s.arrive_time, np.full(s.in_flight_client.size, np.inf)])
    version = np.concatenate([s.version, s.in_flight_version])

    def refuse(bad: NDArray[np.bool_], what: str) -> None:
        _refuse(bad[: s.n_arrivals], what)
        _refuse(bad[s.n_arrivals :], what, "task in flight")

    # version v was there from the step that made it, v - 1, to step v; times tied with a step may be on either side
    made = np.concatenate([[-np.inf], s.step_time, [np.inf]])
    at = version - s.first_step
    early = start < made[np.clip(at, 0, s.n_steps)]
    late = start > made[np.clip(at, -1, s.n_steps) + 1]
    refuse((at >= 0) & (early | late), "its version is not the one there was at its start")
    order = np.argsort(client.astype(np.int64) << 32 | task)
    same = client[order][1:] == client[order][:-1]

    def refuse_pairs(bad: NDArray[np.bool_], what: str) -> None:
        """`bad` is about a task and the one before it, in the order of clients and tasks."""
        at = np.zeros(client.size, dtype=np.bool_)
        at[order[1:]] = same & bad
        refuse(at, what)

    task, start, end = task[order], start[order], end[order]
    refuse_pairs(np.diff(task) == 0, "its client has another task of its number")
    if s.description.get("in_flight") != "allow":  # waits may let a later task of the same client start first
        refuse_pairs(np.diff(task) != 1, "its client's tasks are not numbered 0, 1, 2, ...")
        refuse_pairs(start[1:] < end[:-1], "it starts while its client is at work")
        if s.first_step == 0 and client.size:
            at = np.zeros(client.size, dtype=np.bool_)
            at[order] = np.append(True, ~same) & (task != 0)
            refuse(at, "its client's tasks are not numbered 0, 1, 2, ...")
    if s.concurrency:
        begun = np.sort(start)
        at_work = np.arange(1, begun.size + 1) - np.searchsorted(np.sort(end), begun, side="right")
        if at_work.size and at_work.max() > s.concurrency:
            raise ValueError(f"{at_work.max()} tasks are at work at {begun[at_work.argmax()]}, above {s.concurrency}")
