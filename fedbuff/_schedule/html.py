"""A schedule in a notebook: its summary, the staleness of its arrivals, and a timeline of its beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .._base.html import bars, table, timeline
from .._base.text_table import show
from .columns import Status

if TYPE_CHECKING:
    from .schedule import Schedule

__all__ = ["schedule_html"]

_CLIENTS, _BARS, _STEPS = 12, 240, 24
_NEVER_ARRIVED = (Status.TIMED_OUT, Status.FAILED, Status.STOPPED)


def schedule_html(schedule: Schedule) -> str:
    summary = schedule.summary()
    staleness = summary["staleness"]
    rows = {
        "server steps": summary["server_steps"],
        "ended tasks": summary["arrivals"],
        "clients": schedule.n_clients,
        "tasks at work": "unbounded" if summary["at_work"] is None else show(summary["at_work"]),
        "virtual time": f"{show(summary['time'])} s",
        "server steps per second": summary["steps_per_second"],
        "staleness": "none" if staleness is None else f"{show(staleness['mean'])} in the mean, tau = {schedule.tau:,}",
        "what became of tasks": ", ".join(f"{show(n)} {name}" for name, n in summary["status"].items()),
        "wasted work": f"{100 * summary['wasted']:.1f} %",
    }
    counts = np.bincount(schedule.staleness[schedule.status == Status.USED])
    largest = f"staleness of used arrivals, from 0 to {max(len(counts) - 1, 0):,}"
    return table("Schedule", rows, (largest, bars(counts, largest)), ("the first tasks", _beginning(schedule)))


def _beginning(schedule: Schedule) -> str:
    """The tasks of the first clients that ended some, in the time of the first server steps."""
    clients, first = np.unique(schedule.client, return_index=True)
    shown = clients[np.argsort(first)][:_CLIENTS]
    known = np.isin(schedule.client, shown) & ~np.isnan(schedule.start_time)
    if schedule.n_steps > _STEPS:
        known &= schedule.arrive_time <= schedule.step_time[_STEPS - 1]
    rows = np.flatnonzero(known)[:_BARS]
    if not rows.size:
        return ""
    end = float(schedule.arrive_time[rows[-1]])
    tasks = (
        (
            int(schedule.client[row]),
            float(schedule.start_time[row]),
            float(schedule.arrive_time[row]),
            _state(int(schedule.status[row])),
        )
        for row in rows.tolist()
    )
    steps = schedule.step_time[schedule.step_time <= end][:_STEPS].tolist()
    label = f"tasks of {len(shown)} clients until {show(end)} s, a line at each server step"
    return timeline(tasks, steps, end, label)


def _state(status: int) -> str:
    if status == Status.USED:
        return "used"
    return "never arrived" if status in _NEVER_ARRIVED else "other"
