"""An arrival log as a schedule: what happened, under a strategy."""

from __future__ import annotations

import math
import warnings
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import number_by_client
from .._base.checks import count
from .._delays.arrival_log import ArrivalLog
from .._delays.bad_rows import TraceError
from .._rule.strategies import TIMING, timing_of
from ..backends.python import resolver as reference
from ..backends.python.hearing import Hearing
from .columns import Status
from .plan import TRIGGERS, Request
from .schedule import Schedule


def replay_log(request: Request, log: ArrivalLog) -> Schedule:
    """The log as it happened: every buffer_size arrivals that are not too stale make a step."""
    size = count("buffer_size", request.strategy.buffer_size)
    bound = request.strategy.max_staleness
    max_wait = request.strategy.max_wait
    timing = TIMING | timing_of(request.strategy)
    by_arrivals = max_wait is None and timing["period"] is None and timing["trigger"] == "buffer"
    rows = int(log.client.size)
    arrive = log.arrive_time
    if request.options.max_time is not None:
        rows = int(np.searchsorted(arrive, request.options.max_time, side="right"))
    if request.options.arrivals is not None:
        rows = min(rows, request.options.arrivals)
    if log.step is not None:
        at, used, step_ends, step_time = _recorded_steps(log, rows, size, bound, not by_arrivals)
    elif bound is None and by_arrivals:
        log.check_versions(size)
        step_ends = np.arange(size, rows + 1, size)
        step_time = arrive[step_ends - 1]
        at = np.arange(log.client.size) // size
        used = np.ones(rows, np.bool_)
    else:
        at, used, step_ends, step_time = _walk_log(request, log, rows, size, bound, timing)
    if request.options.server_steps is not None and step_ends.size >= request.options.server_steps:
        step_ends, step_time = step_ends[: request.options.server_steps], step_time[: request.options.server_steps]
        rows = int(step_ends[-1])
    n_steps = step_ends.size
    if log.version is not None:
        version = log.version
        if log.step is None:
            _warn_of_other_rule(log, version, at[:rows], step_time, size)
    else:
        version = np.minimum(
            np.searchsorted(step_time, cast(Any, log.start_time), side="right"), np.minimum(at, n_steps)
        )
    step = np.where(used[:rows] & (at[:rows] < n_steps), at[:rows], -1)
    status = np.where(used[:rows], np.where(step >= 0, Status.USED, Status.LEFT_IN_BUFFER), Status.TOO_STALE)
    number, _ = number_by_client(log.client)
    later = np.arange(rows, log.client.size)
    flying = later[version[later] < n_steps]
    if log.start_time is not None and rows:
        flying = flying[log.start_time[flying] <= arrive[rows - 1]]
    flying = flying[np.lexsort((number[flying], log.client[flying]))]
    start = np.full(log.client.size, np.nan) if log.start_time is None else log.start_time
    started = np.bincount(np.concatenate([version[:rows], version[flying]]), minlength=n_steps + 1)
    return Schedule(
        client=log.client[:rows].astype(np.int32),
        task=number[:rows].astype(np.uint32),
        version=version[:rows].astype(np.int64),
        step=step,
        staleness=np.asarray(at[:rows] - version[:rows], np.int64),
        start_time=start[:rows].copy(),
        arrive_time=arrive[:rows].copy(),
        status=status.astype(np.uint8),
        step_time=step_time.astype(np.float64),
        step_started=started[1:],
        in_flight_client=log.client[flying].astype(np.int32),
        in_flight_task=number[flying].astype(np.uint32),
        in_flight_version=version[flying].astype(np.int64),
        in_flight_start_time=start[flying],
        n_clients=log.n_clients,
        buffer_size=size,
        concurrency=0,
        seed=request.seed,
        started_on_0=int(started[0]),
        description=request.describe(),
        copy=False,
    )


def _recorded_steps(
    log: ArrivalLog, rows: int, size: int, bound: int | None, has_ticks: bool
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64], NDArray[np.float64]]:
    """The server steps that the log has, where the strategy could have made them; returns what `_walk_log` does."""
    step = cast(Any, log.step)
    sizes = np.bincount(step)
    if sizes[-1] < size and not has_ticks:
        sizes = sizes[:-1]  # the log ends before the buffer is full
    low, high = int(sizes.min(initial=size)), int(sizes.max(initial=size))
    if high > size or (low < size and not has_ticks):
        low, high = int(sizes.min()), int(sizes.max())
        took = f"{low} arrivals each" if low == high else f"{low} to {high} arrivals each"
        keeps = f"FedBuff(buffer_size={high}{'' if low == high else ', max_wait=...'})"
        raise ValueError(
            f"strategy: the log's server steps took {took}, which buffer_size={size} cannot make; {keeps} takes the "
            "steps as they were recorded"
        )
    if bound is not None and log.version is not None:
        stale = np.flatnonzero(step - log.version > bound)
        if stale.size:
            row = int(stale[0])
            raise ValueError(
                f"strategy: max_staleness={bound} would drop row {row + 1}, with staleness "
                f"{step[row] - log.version[row]}, which entered step {step[row]} of the log"
            )
    ends = np.cumsum(sizes)
    ends = ends[ends <= rows]
    return step, np.ones(rows, np.bool_), ends, log.arrive_time[ends - 1]


def _warn_of_other_rule(
    log: ArrivalLog, version: NDArray[np.int64], at: NDArray[np.int64], step_time: NDArray[np.float64], size: int
) -> None:
    """Warns where the recorded versions are not those of a server with this rule, which is then not what happened.

    With start times, at least a tenth of the tasks began on a version that this server did not have then (its clock and
    its server's may differ by little). Without them, versions fall ever further behind.
    """
    rows = at.size
    if log.start_time is not None:
        start, found = log.start_time[:rows], version[:rows]
        low, high = (np.searchsorted(step_time, start, side=side) for side in ("left", "right"))
        other = np.flatnonzero((found < low) | (found > high))
        if 10 * other.size <= rows:
            return
        row = int(other[0])
        what = (
            f"{other.size} of {rows} tasks began on a version that this server did not have then; row {row + 1} on "
            f"{found[row]}, when it had {low[row]}"
        )
    else:
        newest = np.maximum.accumulate(version[:rows])
        behind, half = at - newest, rows // 2
        if rows < 8 or newest[half] == 0 or behind[-(rows // 4) :].min() <= behind[:half].max():
            return
        what = f"versions fall ever further behind, by {behind[-1]} steps at row {rows}"
    warnings.warn(
        f"strategy: buffer_size={size} is not the rule that made the log: {what}. Its staleness is not what was "
        "recorded. Use the recorded buffer size, or leave the versions out of the log",
        RuntimeWarning,
        stacklevel=4,
    )


def _walk_log(
    request: Request, log: ArrivalLog, rows: int, size: int, bound: int | None, timing: dict[str, Any]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64], NDArray[np.float64]]:
    """Row by row, where drops or a trigger decide what fills the buffer.

    Returns the server's version at every arrival, whether it entered the buffer, and rows and time of every step.
    """
    at = np.zeros(log.client.size, np.int64)
    used = np.zeros(rows, np.bool_)
    ends: list[int] = []
    times: list[float] = []
    fill, base, trigger = 0, 0.0, math.inf
    max_wait, period = timing["max_wait"], timing["period"]
    hearing = None
    if timing["trigger"] != "buffer":
        hearing = Hearing(TRIGGERS[timing["trigger"]], log.n_clients, float(timing["per_client"]))
    for row in range(rows):
        time = float(log.arrive_time[row])
        if trigger < time:
            ends.append(row)
            times.append(trigger)
            fill, base, trigger = 0, trigger, math.inf
            if hearing is not None:
                hearing.on_step()
        now = len(times)
        at[row] = now
        if log.version is not None:
            version = int(log.version[row])
            if version > now:
                raise TraceError(f"version {version} does not exist yet: the server has made {now} steps", row + 1)
        else:
            version = min(now, int(np.searchsorted(times, cast(Any, log.start_time)[row], side="right")))
        used[row] = bound is None or now - version <= bound
        fill += int(used[row])
        steps = fill == size
        if hearing is not None:
            steps = bool(used[row]) and hearing.enter(int(log.client[row]), fill, size)
        if steps:
            ends.append(row + 1)
            times.append(time)
            fill, base, trigger = 0, time, math.inf
            if hearing is not None:
                hearing.on_step()
        elif fill == 1 and used[row]:
            if max_wait is not None:
                trigger = float(reference.next_tick(base, float(max_wait), time, False))
            if period is not None:
                trigger = min(trigger, float(reference.next_tick(0.0, float(period), time, False)))
    if trigger < math.inf and (request.options.max_time is None or trigger <= request.options.max_time):
        ends.append(rows)
        times.append(trigger)
    at[rows:] = len(times)
    return at, used, np.array(ends, np.int64), np.array(times)
