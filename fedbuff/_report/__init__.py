"""Runs, or a sweep, as one HTML file that needs no network; needs plotly (the extra `report`)."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._delays.arrival_log import ArrivalLog
from .._schedule.columns import Status
from .._schedule.schedule import Schedule
from .._schedule.spans import is_delayed
from .._study.run_folder import Run
from ._levels import Timeline
from ._page import check_plotly, write_page
from ._sweeps import is_sweep, write_sweep_report

__all__ = ["is_sweep", "write_report", "write_sweep_report"]

_BINS = 200  # of a curve over time


def write_report(runs: Sequence[Run], path: str | os.PathLike[str], title: str = "fedbuff report") -> None:
    """Writes the runs' timelines, curves, staleness, configurations and provenance to one HTML file."""
    if not runs:
        raise ValueError("runs: expected one or more, got none")
    check_plotly()
    write_page(path, title, "runs", {"runs": [_run(run) for run in runs]})


def _run(run: Run) -> dict[str, Any]:
    first = run.seeds[0]
    source = run.delays() if is_delayed(first.schedule) else None
    delays = None if isinstance(source, ArrivalLog) else source
    return {
        "name": run.name,
        "folder": str(run.folder),
        "config": _flat({key: value for key, value in run.config.tables.items() if key != "name"}),
        "provenance": run.provenance,
        "results": [{"seed": seed.seed, **seed.result} for seed in run.seeds],
        "histories": [{name: values.tolist() for name, values in seed.history.items()} for seed in run.seeds],
        "timeline": Timeline.of(first.schedule, delays).payload(),
        "steps": first.schedule.step_time.tolist() if first.schedule.n_steps <= 20_000 else [],
        "staleness": _staleness(first.schedule),
        "contribution": first.schedule.summary()["participation_by_speed"],
    }


def _flat(tables: dict[str, Any], path: str = "") -> dict[str, str]:
    """Values by their path."""
    found: dict[str, str] = {}
    for key, value in tables.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{path}{key}.")
        else:
            text = json.dumps(value) if not isinstance(value, str) else value
            found[f"{path}{key}"] = text if len(text) <= 200 else f"{text[:200]} ..."
    return found


def _staleness(schedule: Schedule) -> dict[str, Any]:
    """A histogram of the used arrivals, and mean and greatest along time."""
    used = schedule.status == Status.USED
    stale, time = schedule.staleness[used], schedule.arrive_time[used]
    if stale.size == 0:
        return {"value": [], "share": [], "time": [], "mean": [], "most": []}
    width = max(1, -(-(int(stale.max()) + 1) // 100))
    counts: NDArray[np.int64] = np.bincount(stale // width)
    at = np.searchsorted(time, np.linspace(0.0, schedule.end_time, _BINS + 1))
    full = np.flatnonzero(np.diff(at) > 0)
    middle = (full + 0.5) * (schedule.end_time / _BINS)
    return {
        "value": (np.arange(counts.size) * width).tolist(),
        "width": width,
        "share": (counts / stale.size).tolist(),
        "time": middle.tolist(),
        "mean": (np.add.reduceat(stale, at[:-1][full]) / np.diff(at)[full]).tolist(),
        "most": np.maximum.reduceat(stale, at[:-1][full]).tolist(),
    }
