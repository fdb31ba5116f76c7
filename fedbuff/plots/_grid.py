"""What a grid of two options came to: a cell for each pair."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.checks import instance
from .._base.text_table import show
from .._sweep.results import SweepResults
from .._sweep.statistics import Axis, flat_arms
from ._style import new_axes

_AXES = {"time": "virtual time (s)", "step": "server steps", "updates": "client updates"}


def heat_map(
    results: SweepResults,
    target: float,
    *,
    metric: str = "loss",
    x: str = "schedule.concurrency",
    y: str = "strategy.buffer_size",
    axis: Axis = "time",
    ax: Any = None,
) -> Any:
    """When a metric first reached the target, for each pair of values of two options that a sweep varied.

    A cell is the median over the seeds, as `SweepResults.time_to` has it; "never" where less than half of the runs
    reached the target. Other options must not vary: several arms in one cell are refused.
    """
    instance("results", results, SweepResults, "the results of a sweep")
    rows = results.time_to(metric, target, axis=axis).rows
    varied = {path for arm in flat_arms(results.arms) for path in arm}
    if not {x, y} <= varied:
        raise ValueError(f"x, y: expected two of {', '.join(sorted(varied))}, got {x} and {y}")
    columns = sorted({row[x] for row in rows})
    lines = sorted({row[y] for row in rows})
    median = np.full((len(lines), len(columns)), np.nan)
    filled = np.zeros(median.shape, np.int64)
    for row in rows:
        cell = lines.index(row[y]), columns.index(row[x])
        filled[cell] += 1
        median[cell] = row["median"]
    if filled.max() > 1:
        others = ", ".join(sorted(varied - {x, y}))
        raise ValueError(f"results: expected one arm for each {x} and {y}, got several, as {others} varies too")

    ax = new_axes(ax, width=1.6 + 0.9 * len(columns), height=1.4 + 0.5 * len(lines))
    shown = np.ma.masked_invalid(median)
    image = ax.pcolormesh(shown, cmap="viridis_r", edgecolors="white", linewidth=1.5)
    low, high = (float(shown.min()), float(shown.max())) if shown.count() else (0.0, 1.0)
    for i, j in np.ndindex(median.shape):
        reached = np.isfinite(median[i, j])
        text = show(float(median[i, j])) if reached else "never" if filled[i, j] else ""
        dark = reached and median[i, j] > low + 0.55 * (high - low)
        ax.text(j + 0.5, i + 0.5, text, ha="center", va="center", fontsize=9, color="white" if dark else "black")
    ax.set_xticks(np.arange(len(columns)) + 0.5, [show(value) for value in columns])
    ax.set_yticks(np.arange(len(lines)) + 0.5, [show(value) for value in lines])
    ax.tick_params(length=0)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.set_title(f"{_AXES[axis]} until {metric} {show(float(target))}", fontsize=10)
    if shown.count():
        ax.figure.colorbar(image, ax=ax, label=_AXES[axis])
    return ax
