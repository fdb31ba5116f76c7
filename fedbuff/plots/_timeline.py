"""Who works when: Figure 1 of the paper."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.files import optional
from .._delays.model import DelayModel
from .._delays.trace import Trace
from .._schedule.columns import Status
from .._schedule.schedule import Schedule, task_parts
from .._schedule.spans import is_delayed, task_spans

__all__ = ["schedule"]

# Light to dark, so that the parts stay apart in grey; orange against blue, so that they do for the colour-blind.
_DOWNLOAD, _COMPUTE, _UPLOAD = "#fbe3bd", "#eda13f", "#7a4a12"
_LINE, _LINE_EDGE = "#8fc6e8", "#3f87b5"
_UNUSED, _UNUSED_EDGE = "#f4f4f4", "#9a9a9a"
_STOPPED, _STOPPED_EDGE = "#cfcfcf", "#5f5f5f"
_QUEUE, _SHARED = "#e4e2f0", "#b9aed6"
_BAR = 0.30  # half the height of a client's bar


def _boxes(begin: Any, end: Any, low: Any, high: Any) -> NDArray[np.float64]:
    """The corners of rectangles, (n, 4, 2)."""
    begin, end, low, high = np.broadcast_arrays(begin, end, low, high)
    x, y = np.stack([begin, end, end, begin], axis=-1), np.stack([low, low, high, high], axis=-1)
    return np.stack([x, y], axis=-1)


def schedule(
    schedule: Schedule,
    source: Trace | DelayModel | None = None,
    *,
    local_steps: int = 1,
    until: float | None = None,
    ax: Any = None,
    legend: bool = True,
    versions: bool = True,
) -> Any:
    """Draws who works when and when the server steps, as in Figure 1 of the paper; returns the axes.

    Each client is a row; a task is a bar of download, local steps (as many blocks) and upload, if `source`, the delays
    that made the schedule, is given, and of one piece otherwise. Each upload is a vertical line: hatched where it waits
    in the buffer, solid where the server steps. A task that no server step used is drawn pale. With queues a bar begins
    with the wait for its client; with a shared uplink, or a server that needs time, it ends with what the upload took
    beyond its time alone. `versions` writes the version that a task started from into its bar, and the one
    that a step made above its line.
    """
    optional("matplotlib", "plot", "plotting")
    pyplot = optional("matplotlib.pyplot", "plot", "plotting")
    collections = optional("matplotlib.collections", "plot", "plotting")
    if schedule.n_arrivals == 0:
        raise ValueError("schedule: expected arrivals to draw, got none")
    if np.isnan(schedule.start_time).any():
        raise ValueError("schedule: expected start times, got a schedule of a log without them")
    if ax is None:
        _, ax = pyplot.subplots(figsize=(9.0, 0.55 * schedule.n_clients + 1.6), layout="constrained")
    horizon = _known_until(schedule) if until is None else min(float(until), _known_until(schedule))
    first = float(schedule.start_time.min()) if schedule.first_step else 0.0
    span = horizon - first

    _draw_lines(ax, collections, schedule, horizon, span)
    tasks = _Tasks(schedule, source, horizon)
    _draw_tasks(ax, collections, tasks, local_steps)
    if versions:
        _write_versions(ax, schedule, tasks, horizon, span)

    ax.set_xlim(first - 0.005 * span, horizon + 0.012 * span)
    ax.set_ylim(schedule.n_clients - 0.45, -0.6)
    names = [f"client {i + 1}" for i in range(schedule.n_clients)]
    if isinstance(source, Trace) and source.client_ids.dtype.kind == "U":
        names = source.client_ids.tolist()
    ax.set_yticks(np.arange(schedule.n_clients), names)
    ax.set_xlabel("time (s)")
    ax.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    if legend:
        _add_legend(ax, schedule, source is not None)
    return ax


def _known_until(schedule: Schedule) -> float:
    """The time horizon, where that is what ended the schedule; else its last event."""
    made = schedule.description
    by_time = made.get("max_time") is not None and all(
        made.get(key) is None for key in ("server_steps", "arrivals", "slice")
    )
    return float(made["max_time"]) if by_time else schedule.end_time


def _draw_lines(ax: Any, collections: Any, schedule: Schedule, horizon: float, span: float) -> None:
    """A band for every upload that reached the server, hatched or (at a step) solid, and a dot on its client."""
    reached = np.isin(schedule.status, [Status.USED, Status.LEFT_IN_BUFFER]) & (schedule.arrive_time <= horizon)
    rows = np.flatnonzero(reached)
    step = schedule.step[rows]
    time, client = schedule.arrive_time[rows], schedule.client[rows]
    fills = (step >= 0) & np.append(step[1:] != step[:-1], True) & np.isin(time, schedule.step_time)
    made = schedule.step_time[schedule.step_time <= horizon]
    half, low, high = 0.0042 * span, -0.5, schedule.n_clients - 0.5
    hatched = _boxes(time[~fills] - half, time[~fills] + half, low, high)
    solid = _boxes(made - half, made + half, low, high)
    style = {"edgecolors": _LINE_EDGE, "linewidths": 0.6, "zorder": 1}
    ax.add_collection(collections.PolyCollection(hatched, facecolors="white", hatch="/////", **style))
    ax.add_collection(collections.PolyCollection(solid, facecolors=_LINE, **style))
    dot = {"s": 26, "edgecolors": _LINE_EDGE, "linewidths": 1.1, "zorder": 5}
    ax.scatter(time[~fills], client[~fills], color="white", **dot)
    ax.scatter(time[fills], client[fills], color=_LINE_EDGE, **dot)


class _Tasks:
    """Ended tasks and those in flight, cut at the horizon: where each part of a bar begins and ends."""

    def __init__(self, schedule: Schedule, source: Trace | DelayModel | None, horizon: float) -> None:
        n_flying = schedule.in_flight_client.size
        self.client = np.concatenate([schedule.client, schedule.in_flight_client])
        self.version = np.concatenate([schedule.version, schedule.in_flight_version])
        self.start = np.concatenate([schedule.start_time, schedule.in_flight_start_time])
        status = np.concatenate([schedule.status, np.full(n_flying, Status.USED, dtype=np.uint8)])
        self.useful = (status == Status.USED) | (status == Status.LEFT_IN_BUFFER)
        self.is_delayed = is_delayed(schedule)
        self.stopped = status == Status.STOPPED
        self.end = np.minimum(np.concatenate([schedule.arrive_time, np.full(n_flying, np.inf)]), horizon)
        task = np.concatenate([schedule.task, schedule.in_flight_task])
        parts = None if source is None else task_parts(source, schedule.seed, self.client, task)
        self.turn, self.loaded, self.worked, self.sent = task_spans(
            schedule, parts, self.client, task, self.start, self.end
        )


def _draw_tasks(ax: Any, collections: Any, tasks: _Tasks, local_steps: int) -> None:
    edges = [tasks.loaded + (tasks.worked - tasks.loaded) * (q / local_steps) for q in range(local_steps + 1)]
    local = [(_COMPUTE, edges[q], edges[q + 1]) for q in range(local_steps)]
    bars = [
        (_QUEUE, tasks.start, tasks.turn),
        (_DOWNLOAD, tasks.turn, tasks.loaded),
        *local,
        (_UPLOAD, tasks.worked, tasks.sent),
        *([(_SHARED, tasks.sent, tasks.end)] if tasks.is_delayed else []),
    ]
    for colour, begin, end in bars:
        until = np.minimum(end, tasks.end)
        unused = ~(tasks.useful | tasks.stopped)
        for some, face, edge in (
            (tasks.useful, colour, "white"),
            (unused, _UNUSED, _UNUSED_EDGE),
            (tasks.stopped, _STOPPED, _STOPPED_EDGE),
        ):
            rows = np.flatnonzero((until > begin) & some)
            client = tasks.client[rows]
            boxes = _boxes(begin[rows], until[rows], client - _BAR, client + _BAR)
            ax.add_collection(
                collections.PolyCollection(boxes, facecolors=face, edgecolors=edge, linewidths=0.9, zorder=3)
            )


def _write_versions(ax: Any, schedule: Schedule, tasks: _Tasks, horizon: float, span: float) -> None:
    middle = 0.5 * (tasks.loaded + tasks.worked)
    room = 0.012 * span
    for row in np.flatnonzero((middle + room < tasks.end) & (tasks.worked - tasks.loaded > 3 * room)):
        text = f"$w^{{{tasks.version[row]}}}$"
        ax.text(middle[row], tasks.client[row], text, ha="center", va="center", fontsize=9, zorder=4)
    for step, time in enumerate(schedule.step_time[schedule.step_time <= horizon]):
        text = f"$w^{{{schedule.first_step + step + 1}}}$"
        ax.text(time, -0.55, text, ha="center", va="bottom", fontsize=9, color=_LINE_EDGE)


def _add_legend(ax: Any, schedule: Schedule, has_parts: bool) -> None:
    patch = optional("matplotlib.patches", "plot", "plotting").Patch
    waits, steps = "upload that waits", "upload at which the server steps"
    bars = (
        [("download", _DOWNLOAD), ("local step", _COMPUTE), ("upload", _UPLOAD)] if has_parts else [("task", _COMPUTE)]
    )
    handles = [patch(facecolor=colour, edgecolor="#bbbbbb", linewidth=0.5, label=label) for label, colour in bars]
    if schedule.description.get("queues"):
        handles.insert(0, patch(facecolor=_QUEUE, edgecolor="#bbbbbb", linewidth=0.5, label="waits at its client"))
    if has_parts and is_delayed(schedule):
        label = "shared uplink or server"
        handles.append(patch(facecolor=_SHARED, edgecolor="#bbbbbb", linewidth=0.5, label=label))
    handles.append(patch(facecolor="white", edgecolor=_LINE_EDGE, hatch="/////", linewidth=0.6, label=waits))
    handles.append(patch(facecolor=_LINE, edgecolor=_LINE_EDGE, linewidth=0.6, label=steps))
    unused = ~np.isin(schedule.status, [Status.USED, Status.LEFT_IN_BUFFER, Status.STOPPED])
    if unused.any():
        handles.append(patch(facecolor=_UNUSED, edgecolor=_UNUSED_EDGE, linewidth=0.8, label="not used"))
    if (schedule.status == Status.STOPPED).any():
        handles.append(patch(facecolor=_STOPPED, edgecolor=_STOPPED_EDGE, linewidth=0.8, label="stopped"))
    ax.figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
