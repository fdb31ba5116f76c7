"""When the parts of each task begin and end, as pictures show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .schedule import Schedule

Floats = NDArray[np.float64]


class TaskSpans(NamedTuple):
    """Of every task: it waits behind others of its client until `turn`, downloads until `loaded`, works until `worked`
    and uploads until `sent`; then, until it ends, its upload shares the uplink or is at the server. Where something
    ends it earlier, the later times are beyond its end."""

    turn: Floats
    loaded: Floats
    worked: Floats
    sent: Floats


def task_spans(
    schedule: Schedule,
    parts: Mapping[str, Floats] | None,
    client: NDArray[np.int32],
    task: NDArray[np.uint32],
    start: Floats,
    end: Floats,
) -> TaskSpans:
    """Of these tasks, with the parts of their delays; without them a task is of one piece, up to its end.

    With queues and a server that needs time, or a shared uplink, columns do not tell when a client turned to a task:
    then it is of one piece too.
    """
    made: dict[str, Any] = schedule.description
    queues = bool(made.get("queues"))
    turn = _turns(client, task, start, end) if queues else start
    if queues and is_delayed(schedule):
        return TaskSpans(start, start, end, end)
    if parts is None:
        return TaskSpans(turn, turn, end, end)
    loaded = turn + parts["download"]
    worked = loaded + parts["compute"]
    return TaskSpans(turn, loaded, worked, worked + parts["upload"])


def is_delayed(schedule: Schedule) -> bool:
    """Whether uploads wait for each other, on the uplink or at the server."""
    made = schedule.description
    return made.get("server_time") is not None or made.get("uplink") is not None


def _turns(client: NDArray[np.int32], task: NDArray[np.uint32], start: Floats, end: Floats) -> Floats:
    """When each client turned to each of its tasks: when it was sent, or all before it had ended."""
    order = np.lexsort((task, start, client))
    first = np.append(True, np.diff(client[order]) != 0)
    place = np.argsort(np.argsort(end, kind="stable"), kind="stable")[order]  # of its end among all ends
    latest = np.maximum.accumulate(place + np.cumsum(first) * end.size) - np.cumsum(first) * end.size
    before = np.where(first, -np.inf, np.sort(end)[np.append(0, latest[:-1])])
    turn = np.empty_like(start)
    turn[order] = np.minimum(np.maximum(start[order], before), end[order])
    return turn
