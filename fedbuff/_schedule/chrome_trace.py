"""A schedule as a file for Perfetto or chrome://tracing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .._base.files import file_format, open_text, replacing
from .columns import Status
from .spans import is_delayed, task_spans

if TYPE_CHECKING:
    from .schedule import Schedule


def write_chrome_trace(
    schedule: Schedule, path: str | os.PathLike[str], parts: Mapping[str, NDArray[np.float64]] | None
) -> None:
    """Writes .json or .json.gz: the tasks of every client, with their parts where given, and the server's steps."""
    form = file_format(path, {".json": "json", ".json.gz": "gzip"})
    if np.isnan(schedule.start_time).any():
        raise ValueError("schedule: it has no start times, it comes from a log without them")
    with replacing(path) as beside, open_text(beside, compressed=form == "gzip") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        file.write('{"name":"process_name","ph":"M","pid":0,"args":{"name":"server"}},\n')
        file.write('{"name":"process_name","ph":"M","pid":1,"args":{"name":"clients"}}')
        for line in _events(schedule, parts):
            file.write(line)
        file.write("\n]}\n")


def _events(schedule: Schedule, parts: Mapping[str, NDArray[np.float64]] | None) -> Iterator[str]:
    micro = 1e6
    start, end = schedule.start_time * micro, schedule.arrive_time * micro
    names = np.array([status.name.lower() for status in Status])[schedule.status]
    task = (
        ',\n{{"name":"v{}{}","cat":"{}","ph":"X","pid":1,"tid":{},"ts":{:.3f},"dur":{:.3f},'
        '"args":{{"task":{},"version":{},"step":{},"staleness":{},"status":"{}"}}}}'
    )
    titles = np.where(schedule.status == Status.STOPPED, " stopped", "")
    columns = (
        schedule.version,
        titles,
        names,
        schedule.client,
        start,
        end - start,
        schedule.task,
        schedule.version,
        schedule.step,
    )
    yield from map(task.format, *(c.tolist() for c in (*columns, schedule.staleness, names)))
    if parts is not None:
        part = ',\n{{"name":"{}","ph":"X","pid":1,"tid":{},"ts":{:.3f},"dur":{:.3f}}}'
        at = start
        spans = task_spans(schedule, parts, schedule.client, schedule.task, schedule.start_time, schedule.arrive_time)
        named = dict(zip(("queue", "download", "compute", "upload"), spans, strict=True))
        if is_delayed(schedule):
            named["shared uplink or server"] = schedule.arrive_time
        for name, time in named.items():
            until = np.minimum(time * micro, end)
            some = until > at
            text = (np.full(int(some.sum()), name), schedule.client[some], at[some], (until - at)[some])
            yield from map(part.format, *(c.tolist() for c in text))
            at = np.maximum(at, until)
    step = ',\n{{"name":"step {}","ph":"i","s":"g","pid":0,"tid":0,"ts":{:.3f}}}'
    numbers = schedule.first_step + np.arange(schedule.n_steps)
    yield from map(step.format, numbers.tolist(), (schedule.step_time * micro).tolist())
