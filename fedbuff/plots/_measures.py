"""What a trace and a schedule say before any training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._delays.trace import PARTS, Trace
from .._schedule.columns import Status
from .._schedule.schedule import Schedule
from ._style import (
    COLOURS,
    add_legend,
    line_style,
    named,
    new_axes,
)

_POINTS = 2000  # of a line; more could not be seen


def trace(trace: Trace, *, ax: Any = None) -> Any:
    """How long each client's tasks take: from its 10 % to its 90 % quantile, the median marked, the fastest first."""
    ax = new_axes(ax)
    total, sizes = trace.total, np.diff(trace.offsets)
    clients = np.flatnonzero(sizes)
    groups = [total[trace.offsets[i] : trace.offsets[i + 1]] for i in clients]
    low, middle, high = np.array([np.quantile(group, [0.1, 0.5, 0.9]) for group in groups]).T
    order = np.argsort(middle, kind="stable")
    at = np.arange(order.size)
    ax.vlines(at, low[order], high[order], colors=COLOURS[5], linewidth=max(1.0, min(8.0, 200.0 / at.size)))
    ax.plot(at, middle[order], "_" if at.size < 100 else ".", color=COLOURS[0], label="median")
    ax.set_xlabel("clients, from the fastest")
    ax.set_ylabel("task time (s)")
    if at.size <= 20:
        ax.set_xticks(at, [str(name) for name in trace.client_ids[clients[order]]], rotation=45)
    if low.min() > 0 and high.max() > 30 * low.min():
        ax.set_yscale("log")
    parts = ", ".join(f"{name} {getattr(trace, name).mean():.3g} s" for name in PARTS if getattr(trace, name).any())
    ax.set_title(f"{trace.n_rows} tasks of {trace.n_clients} clients; mean {parts}", fontsize=10)
    return ax


def staleness(schedules: Schedule | Mapping[str, Schedule], *, ax: Any = None) -> Any:
    """How stale the used arrivals are: the share of each staleness, as a histogram."""
    ax = new_axes(ax)
    given = named(schedules)
    stale = {name: _used(schedule, "staleness") for name, schedule in given.items()}
    top = max(int(values.max()) for values in stale.values())
    width = -(-(top + 1) // 60)  # whole numbers of steps, and at most 60 bins
    edges = np.arange(0, top + 1 + width, width) - 0.5
    for number, (name, values) in enumerate(stale.items()):
        share, _ = np.histogram(values, edges)
        label = f"{name}: mean {values.mean():.2f}, max {values.max()}".lstrip(": ")
        heights = share / share.sum()
        if len(stale) == 1:
            ax.stairs(heights, edges, fill=True, facecolor=COLOURS[5], edgecolor=COLOURS[0], label=label)
        else:
            ax.stairs(heights, edges, label=label, **line_style(number))
    ax.set_xlabel("staleness (server steps)")
    ax.set_ylabel("share of arrivals")
    ax.legend(frameon=False, fontsize=9)
    return ax


def staleness_over_time(schedule: Schedule, *, bins: int = 100, ax: Any = None) -> Any:
    """Mean staleness of used arrivals along virtual time, with a band from the least to the greatest of each bin."""
    ax = new_axes(ax)
    time, stale = _used(schedule, "arrive_time"), _used(schedule, "staleness")
    edges = np.linspace(0.0, schedule.end_time, bins + 1)
    at = np.searchsorted(time, edges)  # arrivals stand in the order of time
    full = np.flatnonzero(np.diff(at) > 0)
    starts = at[:-1][full]
    middle = 0.5 * (edges[1:] + edges[:-1])[full]
    mean = np.add.reduceat(stale, starts) / np.diff(at)[full]
    low, high = np.minimum.reduceat(stale, starts), np.maximum.reduceat(stale, starts)
    ax.fill_between(middle, low, high, color=COLOURS[5], alpha=0.35, linewidth=0, label="least to greatest")
    ax.plot(middle, mean, label="mean", **line_style(0))
    ax.set_xlabel("virtual time (s)")
    ax.set_ylabel("staleness (server steps)")
    ax.legend(frameon=False, fontsize=9)
    return ax


def in_flight(schedules: Schedule | Mapping[str, Schedule], *, ax: Any = None) -> Any:
    """How many clients are at work along virtual time."""
    ax = new_axes(ax)
    given = named(schedules)
    for number, (name, schedule) in enumerate(given.items()):
        _refuse_without_starts(schedule)
        begins = np.concatenate([schedule.start_time, schedule.in_flight_start_time])
        grid = np.linspace(0.0, schedule.end_time, _POINTS)
        began = np.searchsorted(np.sort(begins), grid, side="right")
        ended = np.searchsorted(np.sort(schedule.arrive_time), grid, side="right")
        ax.step(grid, began - ended, where="post", label=name or None, **line_style(number))
    ax.set_ylim(bottom=0)
    ax.set_xlabel("virtual time (s)")
    ax.set_ylabel("tasks at work")
    add_legend(ax, given)
    return ax


def buffer_fill(schedule: Schedule, *, until: float | None = None, ax: Any = None) -> Any:
    """How full the buffer is along virtual time, up to `until`; it empties at each server step."""
    ax = new_axes(ax)
    used = np.isin(schedule.status, [Status.USED, Status.LEFT_IN_BUFFER])
    events = np.concatenate([schedule.arrive_time[used], schedule.step_time])
    change = np.concatenate([np.ones(int(used.sum())), np.zeros(schedule.n_steps)])
    order = np.lexsort((1 - change, events))  # an arrival comes before the step of its time
    time, arrives = events[order], change[order]
    total = np.cumsum(arrives)
    at_step = np.where(arrives == 0, total, 0.0)
    fill = total - np.maximum.accumulate(at_step)
    shown = time <= (schedule.end_time if until is None else until)
    ax.step(np.append(0.0, time[shown]), np.append(0.0, fill[shown]), where="post", **line_style(1))
    ax.set_ylim(bottom=0)
    ax.set_xlabel("virtual time (s)")
    ax.set_ylabel("arrivals in the buffer")
    return ax


def contribution(schedules: Schedule | Mapping[str, Schedule], *, ax: Any = None) -> Any:
    """Share of the used arrivals divided by the fair share, for groups of clients from the fastest to the slowest.

    The groups are those of `participation_by_speed` in `Schedule.summary`: min(10, n) of equal numbers of clients.
    Schedules with different numbers of groups are drawn as lines.
    """
    ax = new_axes(ax)
    given = named(schedules)
    ratios = {name: schedule.summary()["participation_by_speed"] for name, schedule in given.items()}
    if not all(ratios.values()):
        raise ValueError("schedule: it has no start times, or no used rows, and does not say how fast its clients are")
    hatches = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "++++")
    counts = {len(heights) for heights in ratios.values()}
    for number, (name, heights) in enumerate(ratios.items()):
        groups = len(heights)
        if len(counts) > 1:
            ax.stairs(heights, np.arange(groups + 1) / groups, baseline=None, label=name, **line_style(number))
            continue
        width = 0.8 / (groups * len(given))
        at = (np.arange(groups) + 0.5) / groups + (number - (len(given) - 1) / 2) * width
        style = {"facecolor": COLOURS[(5 - number) % len(COLOURS)], "edgecolor": COLOURS[0], "linewidth": 0.6}
        ax.bar(at, heights, width, label=name or None, hatch=hatches[number % len(hatches)], **style)
    ax.axhline(1.0, color=COLOURS[0], linewidth=1, linestyle=":")
    if len(counts) == 1:
        (groups,) = counts
        names = ["fastest", *map(str, range(2, groups)), "slowest"] if groups > 1 else ["all"]
        ax.set_xticks((np.arange(groups) + 0.5) / groups, names, fontsize=8)
    else:
        ax.set_xticks([0.05, 0.95], ["fastest", "slowest"], fontsize=8)
    ax.set_xlabel("groups of equally many clients, by mean task time")
    ax.set_xlim(0.0, 1.0)
    ax.set_ylim(bottom=0.0)
    ax.margins(y=0.25)  # room for the legend
    ax.set_ylabel("share of used arrivals / fair share")
    add_legend(ax, given)
    return ax


def _used(schedule: Schedule, column: str) -> NDArray[Any]:
    values: NDArray[Any] = getattr(schedule, column)[schedule.status == Status.USED]
    if values.size == 0:
        raise ValueError("schedule: expected used arrivals to draw, got none")
    return values


def _refuse_without_starts(schedule: Schedule) -> None:
    if np.isnan(schedule.start_time).any():
        raise ValueError("schedule: it has no start times, it comes from a log without them")
