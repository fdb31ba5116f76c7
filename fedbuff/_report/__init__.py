"""Runs as one HTML file that needs no network; needs plotly (the extra `report`), whose script goes into it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import os
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.files import optional, replacing
from .._delays.arrival_log import ArrivalLog
from .._schedule.columns import Status
from .._schedule.schedule import Schedule
from .._schedule.spans import is_delayed
from .._study.run_folder import Run, plain
from ._levels import Timeline

__all__ = ["write_report"]

_BINS = 200  # of a curve over time


def write_report(runs: Sequence[Run], path: str | os.PathLike[str], title: str = "fedbuff report") -> None:
    """Writes the runs' timelines, curves, staleness, configurations and provenance to one HTML file."""
    offline = optional("plotly.offline", "report", "a report")
    if not runs:
        raise ValueError("runs: expected one or more, got none")
    data = json.dumps(plain({"title": title, "runs": [_run(run) for run in runs]}), default=str)
    folder = resources.files(__package__)
    parts = {
        "TITLE": html.escape(title),
        "STYLE": folder.joinpath("page.css").read_text(encoding="utf-8"),
        "DATA": data.replace("<", "\\u003c"),  # no text of a user's can end the script
        "SCRIPT": folder.joinpath("page.js").read_text(encoding="utf-8"),
    }
    plotly = offline.get_plotlyjs()
    parts["PACKED"] = base64.b64encode(gzip.compress(plotly.encode(), 9, mtime=0)).decode()
    parts["POLICY"] = _policy(parts["SCRIPT"], plotly)
    page = folder.joinpath("page.html").read_text(encoding="utf-8")
    with replacing(path) as beside, beside.open("w", encoding="utf-8") as file:
        for number, piece in enumerate(page.split("@@")):  # text, name, text, name, ...
            file.write(parts[piece] if number % 2 else piece)


def _policy(*scripts: str) -> str:
    """What a browser may do for the page: run these scripts and no others, and reach nothing outside of it."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{text}'" for text in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


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
