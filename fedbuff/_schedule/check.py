"""What a schedule must keep: what a replay depends on, for every schedule that comes from elsewhere, and the rest.

`ChunkCheck` is given a schedule, or one chunk of it after the other, and finds what could lead a replay astray: the
backend's `schedule_check`. `check_schedule` verifies more: all that the event loop promises.

The description tells the strategy's triggers (max_wait, period, trigger, per_client), max_staleness, stop_stale,
restart and distinct_clients, whether in_flight is "allow" (a client may have several tasks at once), and whether there
are queues (it works on one, and the others wait); source.kind
"arrival_log" or "uniform_arrivals" leaves out what only an event loop promises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .. import backends
from ..backends.spec import ScheduleChunk

if TYPE_CHECKING:
    from .schedule import Schedule

USED, LEFT_IN_BUFFER, TOO_STALE, STOPPED = 0, 1, 2, 6

# In the order of ScheduleFault in csrc/core/schedule/check_schedule.hpp: of several faults the first one is reported.
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
_MOST_STEPS = 2**53  # a number of steps that is no mistake, and to which a version can be added


class ChunkCheck:
    """The check of a schedule, or of a stream of its chunks; `add` may be called again for the newest chunk."""

    def __init__(self) -> None:
        self._check = backends.current().schedule_check()

    def add(self, chunk: Schedule, number: int = 0) -> None:
        """Checks the chunk of this number, from 0; ValueError with the first fault."""
        check_scalars(chunk)
        if number < self._check.n_chunks:
            return
        values = {name: getattr(chunk, name) for name in ScheduleChunk._fields}
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                values[name] = np.require(value, requirements=["C", "A"])
        fault, index = self._check.add(ScheduleChunk(**values))
        if fault:
            kind, what = FAULTS[fault]
            raise ValueError(f"{kind} {index}: {what.format(n_clients=chunk.n_clients)}")


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
    timing = s.description.get("strategy", {})
    triggered = timing.get("max_wait") is not None or timing.get("period") is not None
    fills = timing.get("trigger", "buffer") == "buffer"  # a full buffer makes a step
    if s.buffer_size:
        _refuse(count == 0, "no arrival enters it", "step")
    if s.buffer_size and fills:
        _refuse(count > s.buffer_size, f"more than {s.buffer_size} arrivals enter it", "step")
        if left.size >= s.buffer_size:
            last = left[s.buffer_size - 1]
            raise ValueError(f"arrival {last}: it fills a buffer of {s.buffer_size}, and no step follows")
    if timing.get("trigger") == "every_client" and not triggered:
        _refuse(count < s.buffer_size, f"fewer than {s.buffer_size} arrivals enter it", "step")
        _refuse_unheard(s, step, s.client[used], float(timing.get("per_client", 1.0)))
    if s.buffer_size and fills and not triggered:
        _refuse(count < s.buffer_size, f"fewer than {s.buffer_size} arrivals enter it", "step")
    if not triggered and step.size:
        last = np.append(step[1:] != step[:-1], True)
        differs = np.zeros(s.n_steps, dtype=np.bool_)
        differs[step[last]] = arrive[last] != s.step_time[step[last]]
        if s.buffer_size == 0:  # a round may end when the last of its tasks fails
            differs &= ~np.isin(s.step_time, s.arrive_time)
        _refuse(differs, "its time is not that of its last arrival", "step")


def _refuse_unheard(s: Schedule, step: NDArray[np.int64], client: NDArray[np.int32], per_client: float) -> None:
    """Every step has arrivals of all clients, and their harmonic mean is what the strategy asks for."""
    pair, arrivals = np.unique(step * s.n_clients + client, return_counts=True)
    heard = np.bincount(pair // s.n_clients, minlength=s.n_steps)
    _refuse(heard < s.n_clients, "not every client was heard", "step")
    inverses = np.bincount(pair // s.n_clients, 1.0 / arrivals, s.n_steps)
    _refuse(
        inverses * per_client > s.n_clients * (1 + 1e-6), f"the clients were heard less than {per_client:g}", "step"
    )


def _check_staleness(s: Schedule) -> None:
    used = s.status == USED
    timing = s.description.get("strategy", {})
    limit = 1 if timing.get("restart") else timing.get("stop_stale")
    stopped = s.status == STOPPED
    if limit is None:
        _refuse(stopped, "it is stopped, and the strategy stops nothing")
    else:
        _refuse((s.status != STOPPED) & (s.staleness >= limit), f"it ends with a staleness of {limit} or more")
        at_step = np.isin(s.arrive_time, s.step_time)
        if timing.get("period") is None or not timing.get("restart"):
            _refuse(stopped & (s.staleness != limit), f"it is stopped, and its staleness is not {limit}")
            _refuse(stopped & ~at_step & (s.first_step == 0), "it is stopped where no step is made")
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
        raise ValueError(f"tau: expected {max(worst, 0)}, the largest staleness or age, got {s.tau}")


def _check_starts(s: Schedule) -> None:
    """As many tasks as each version says were started on it have ended on it or are in flight."""
    versions = np.concatenate([s.version, s.in_flight_version]) - s.first_step
    found = np.bincount(versions[versions >= 0], minlength=s.n_steps + 1)
    told = np.append(s.started_on_0, s.step_started)
    wrong = np.flatnonzero(found[: told.size] != told) if found.size == told.size else np.array([told.size])
    if wrong.size:
        version = int(wrong[0]) + s.first_step
        raise ValueError(f"version {version}: the tasks started on it are not those that ended or are in flight")


def _check_queues(s: Schedule) -> None:
    """A client works on its tasks in the order in which they were sent; those that fail pass over the server's line."""
    late = np.zeros(s.n_arrivals, dtype=np.bool_)
    handled = np.isin(s.status, (USED, LEFT_IN_BUFFER, TOO_STALE)) | (s.description.get("server_time") is None)
    for some in (handled, ~handled):
        rows = np.flatnonzero((s.status != STOPPED) & some)
        rows = rows[np.argsort(s.client[rows], kind="stable")]
        late[rows[1:]] = (np.diff(s.client[rows]) == 0) & (np.diff(s.start_time[rows]) < 0)
    _refuse(late, "it was sent before one that its client ended earlier")


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
    if s.description.get("queues"):
        _check_queues(s)
    elif s.description.get("in_flight") != "allow":  # waits may let a later task of the same client start first
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
            got = f"{at_work.max()} at {begun[at_work.argmax()]}"
            raise ValueError(f"concurrency: expected at most {s.concurrency} tasks at work, got {got}")
