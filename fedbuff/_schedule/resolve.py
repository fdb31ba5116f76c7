"""`schedule` and `iter_schedule`: from delays and a strategy to a schedule."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from .. import backends
from .._base.checks import count, seed_of
from .._delays.arrival_log import ArrivalLog
from .._delays.distributions import Distribution
from .._delays.model import DelayModel
from .._delays.trace import Trace
from ..backends.python import resolver as reference
from ..backends.python.philox import key_words
from ..backends.spec import ROW_NAMES, Columns, Plan, Resolver, new_columns
from .file import ScheduleWriter
from .log import replay_log
from .options import InFlight, ScheduleOptions, Selection, StartProcess
from .plan import Request, Source
from .schedule import Schedule


def schedule(
    source: Source,
    strategy: Any,
    concurrency: int | None = None,
    *,
    server_steps: int | None = None,
    max_time: float | None = None,
    arrivals: int | None = None,
    seed: int = 0,
    start_rate: float | None = None,
    start_process: StartProcess = "constant",
    in_flight: InFlight = "redraw",
    timeout: float | None = None,
    selection: Selection = "uniform",
    max_uses: int | None = None,
    queues: bool = False,
    server_time: float | Distribution | None = None,
    uplink: float | None = None,
) -> Schedule:
    """Resolves who arrives when, on which version and in which server step.

    source: a `Trace` or `DelayModel`, played by an event loop; or an `ArrivalLog`, taken as it happened.
    concurrency: None keeps every client always at work; M keeps M tasks at work, the next client drawn uniformly from
        the idle and available ones. FedAvg starts its own rounds and takes none.
    server_steps, max_time, arrivals: at least one; the first that is reached ends the schedule. `arrivals` counts
        ended tasks, whatever became of them; `max_time` includes what happens at that time.
    start_rate: the open loop: tasks start at this rate (per second), evenly ("constant", the first at 0) or as a
        "poisson" process, whoever is at work. `in_flight` says what happens when a start draws a client: "redraw" draws
        among the idle and available ones, and the start is lost where there is none; "skip" draws once among all, and
        the start is lost where that client is busy or away; "allow" lets a client have several tasks at once.
    selection: which of the eligible clients is next: drawn "uniform"ly; "round_robin", by number; the "longest_idle";
        or a probability per client, which sum to 1: drawn in proportion to them.
    max_uses: a client starts at most so many tasks.
    queues: a task may be sent to a busy client, on the version of that time, and waits there behind those sent before
        it. `selection` is the routing: probabilities, by number, or uniform over all available clients. `start_time` is
        when it was sent, tasks that wait count into the concurrency, and a timeout counts from when the client turns to
        the task.
    server_time: seconds that the server needs for an upload, a number or a distribution. Uploads wait there, first in
        first out; a task arrives, and frees its client and its slot, when the server has handled it. With queues its
        client turns to the next task when the upload has reached the server.
    uplink: a capacity that uploads share: with m of them on their way each runs at min(1, uplink / m) of the speed that
        it has alone, with which its recorded or drawn time is counted.
    timeout: a task that takes longer, without its wait, is given up that long after its start. What has reached the
        server is not given up.
    """
    options = ScheduleOptions(
        *(concurrency, server_steps, max_time, arrivals, start_rate, start_process, in_flight, timeout),
        *(selection, max_uses, queues, server_time, uplink),
    )
    request = Request(source, strategy, options, seed)
    if isinstance(source, ArrivalLog):
        return replay_log(request, source)
    resolver = backends.current().make_resolver(request.plan)
    room = request.expected_rows()
    columns = new_columns(max(room, resolver.rows_needed), max(room, 2) + 2)
    rows, steps, reason = _run(resolver, columns)
    while reason == reference.FULL:
        columns = _grown(columns, rows, steps, resolver.rows_needed)
        more_rows, more_steps, reason = _run(resolver, _slice(columns, slice(rows, None), slice(steps, None)))
        rows, steps = rows + more_rows, steps + more_steps
    request.check_end(reason)
    columns = _slice(columns, slice(0, rows), slice(0, steps))
    return request.build(columns, 0, rows, 0, resolver, last=True)


def iter_schedule(
    source: Source,
    strategy: Any,
    concurrency: int | None = None,
    *,
    chunk: int = 1_000_000,
    path: str | os.PathLike[str] | None = None,
    server_steps: int | None = None,
    max_time: float | None = None,
    arrivals: int | None = None,
    seed: int = 0,
    start_rate: float | None = None,
    start_process: StartProcess = "constant",
    in_flight: InFlight = "redraw",
    timeout: float | None = None,
    selection: Selection = "uniform",
    max_uses: int | None = None,
    queues: bool = False,
    server_time: float | Distribution | None = None,
    uplink: float | None = None,
) -> Iterator[Schedule]:
    """The schedule in chunks of about `chunk` rows, in memory bounded by clients, tasks in flight and the chunk.

    Every chunk is a `Schedule` that goes on where the one before ended (`first_step`). All but the last end at a server
    step and hold no tasks in flight. With `path` (.parquet) each is also written as it comes; the file appears, whole,
    when the last was taken. The other arguments are those of `schedule`.
    """
    options = ScheduleOptions(
        *(concurrency, server_steps, max_time, arrivals, start_rate, start_process, in_flight, timeout),
        *(selection, max_uses, queues, server_time, uplink),
    )
    request = Request(source, strategy, options, seed)
    size = count("chunk", chunk)
    chunks = _iter_chunks(request, size)
    return chunks if path is None else _written(chunks, path)


def _written(chunks: Iterator[Schedule], path: str | os.PathLike[str]) -> Iterator[Schedule]:
    with ScheduleWriter(path) as writer:
        for chunk in chunks:
            writer.write(chunk)
            yield chunk


def _iter_chunks(request: Request, size: int) -> Iterator[Schedule]:
    if isinstance(request.source, ArrivalLog):
        yield replay_log(request, request.source)
        return
    resolver = backends.current().make_resolver(request.plan)
    room = max(size, resolver.rows_needed)
    held = _slice(new_columns(0, 0), slice(0), slice(0))
    first_row = first_step = 0
    while True:
        fresh = new_columns(room, room + 2)
        rows, steps, reason = _run(resolver, fresh)
        request.check_end(reason)
        columns = _joined(held, _slice(fresh, slice(0, rows), slice(0, steps)))
        if reason != reference.FULL:
            yield request.build(columns, first_row, len(columns.client), first_step, resolver, last=True)
            return
        # The last step at hand is kept back: how many tasks start on its version is known when the next is made.
        done = len(columns.step_time) - 1
        held = columns
        if done > 0:
            cut = int(columns.step_rows[done - 1]) - first_row
            yield request.build(
                _slice(columns, slice(0, cut), slice(0, done + 1)), first_row, cut, first_step, resolver, last=False
            )
            held = _slice(columns, slice(cut, None), slice(done, None))
            first_row += cut
            first_step += done


def plans_of(
    source: Trace | DelayModel, strategy: Any, options: ScheduleOptions, seeds: Sequence[int]
) -> tuple[list[Plan], int]:
    """The plans that `schedule` gives to its resolver, one for each seed, and how many rows to make room for."""
    first = Request(source, strategy, options, seeds[0])
    if isinstance(getattr(source, "client_speed", None), Distribution):  # drawn by seed
        return [Request(source, strategy, options, seed).plan for seed in seeds], first.expected_rows()
    words = [key_words(seed_of(seed)) for seed in seeds]
    return [first.plan._replace(seed_low=low, seed_high=high) for low, high in words], first.expected_rows()


def _slice(columns: Columns, rows: slice, steps: slice) -> Columns:
    return Columns(*(array[rows if name in ROW_NAMES else steps] for name, array in columns._asdict().items()))


def _run(resolver: Resolver, columns: Columns) -> tuple[int, int, int]:
    """Runs until the columns are full or the schedule ends; a call of the resolver is short, and signals are heard."""
    rows = steps = 0
    while True:
        space = _slice(columns, slice(rows, None), slice(steps, None))
        if len(space.client) < resolver.rows_needed or len(space.step_time) < 2:
            return rows, steps, reference.FULL
        more_rows, more_steps, reason = resolver.run(space)
        rows, steps = rows + more_rows, steps + more_steps
        if reason != reference.FULL:
            return rows, steps, reason


def _grown(columns: Columns, rows: int, steps: int, least: int) -> Columns:
    """Columns with twice the room, that hold the first rows and steps of these."""
    wide = new_columns(2 * len(columns.client) + least, 2 * len(columns.client) + least + 2)
    for name, array in columns._asdict().items():
        used = rows if name in ROW_NAMES else steps
        getattr(wide, name)[:used] = array[:used]
    return wide


def _joined(first: Columns, second: Columns) -> Columns:
    if len(first.client) == 0 and len(first.step_time) == 0:
        return second
    return Columns(*(np.concatenate(cast(Any, pair)) for pair in zip(first, second, strict=True)))
