"""What a training came to, and how fast a kernel is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.checks import choice
from .._replay.history import Result
from .._sweep.results import SweepResults
from .._sweep.statistics import Axis, bounded
from ._style import (
    COLOURS,
    add_legend,
    line_style,
    named,
    new_axes,
)

Columns = Mapping[str, NDArray[Any]]
Curves = Result | Columns | Sequence[Result | Columns]

_AGAINST = {"time": "virtual time (s)", "step": "server steps", "updates": "client updates"}
_METRICS = {"loss": "loss", "accuracy": "accuracy", "grad_norm_sq": r"$\|\nabla f(w)\|^2$"}


def convergence(
    runs: Curves | Mapping[str, Curves], *, metric: str = "loss", against: str = "time", ax: Any = None
) -> Any:
    """A metric against virtual "time", server "step" or client "updates".

    A run is a `Result`, its history, or a list of them, one for each seed: then the line is their mean, and a band goes
    from the least to the greatest, as far as all of them reach. Several runs come as a dictionary by name.
    """
    choice("against", against, tuple(_AGAINST))
    ax = new_axes(ax)
    given: dict[str, Any] = dict(cast(Any, runs)) if _is_named(runs) else {"": runs}
    for number, (name, run) in enumerate(given.items()):
        seeds = [_history(each) for each in (run if isinstance(run, Sequence) else [run])]
        x, y = _together(seeds, metric, against)
        style = line_style(number)
        if len(seeds) > 1:
            ax.fill_between(x, y.min(axis=0), y.max(axis=0), color=style["color"], alpha=0.2, linewidth=0)
        ax.plot(x, y.mean(axis=0), label=name or None, **style)
    _label(ax, metric, against)
    add_legend(ax, given)
    return ax


def sweep(
    results: SweepResults, *, metric: str = "loss", axis: Axis = "time", level: float = 0.95, ax: Any = None
) -> Any:
    """The arms of a sweep: the mean of a metric over the seeds, and the band that covers it with probability `level`,
    along virtual "time", server "step" or client "updates"; as far as all runs of an arm reach.

    Two seeds say too little for a band, and have none. Bands of an accuracy end at 0 and 1, those of other metrics that
    were never negative at 0.
    """
    ax = new_axes(ax)
    made = bounded(results.band(metric, axis, level=level), metric)
    for band in made:
        style = line_style(band.arm)
        if np.isfinite(band.low).any():
            ax.fill_between(band.x, band.low, band.high, color=style["color"], alpha=0.2, linewidth=0)
        ax.plot(band.x, band.mean, label=f"{band.label} (n={band.n})", **style)
    _label(ax, metric, axis)
    add_legend(ax, [band.label for band in made])
    return ax


def bound(history: Result | Columns, bound: ArrayLike, *, ax: Any = None) -> Any:
    """The mean of the squared gradient norms so far, and the theorem's bound on it, against server steps.

    `bound` is one number, for the whole run, or one for each evaluation of the history, which must have the metric
    grad_norm_sq.
    """
    ax = new_axes(ax)
    columns = _history(history)
    step, measured = columns["step"], columns["grad_norm_sq_mean"]
    promised = np.broadcast_to(np.asarray(bound, np.float64), step.shape)
    ax.plot(step, promised, label="bound", **line_style(2))
    ax.plot(step, measured, label="measured", **line_style(0))
    ax.fill_between(step, measured, promised, color=COLOURS[6], alpha=0.15, linewidth=0)
    ax.set_yscale("log")
    ax.set_xlabel(_AGAINST["step"])
    ax.set_ylabel(r"mean of $\|\nabla f(w)\|^2$ so far")
    ax.legend(frameon=False, fontsize=9)
    return ax


def rate(
    dims: ArrayLike, rates: ArrayLike | Mapping[str, ArrayLike], *, limit: ArrayLike | None = None, ax: Any = None
) -> Any:
    """Rates (GB/s) against the dimension d, and the limit of the machine: one number, or one for each d."""
    ax = new_axes(ax)
    x = np.asarray(dims, np.float64)
    given = named(rates)
    for number, (name, values) in enumerate(given.items()):
        ax.plot(
            x, np.asarray(values, np.float64), marker="osD^vP*"[number % 7], label=name or None, **line_style(number)
        )
    if limit is not None:
        top = np.broadcast_to(np.asarray(limit, np.float64), x.shape)
        ax.plot(x, top, color="#777777", linewidth=3, alpha=0.6, label="limit")
    ax.set_xscale("log")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("dimension d")
    ax.set_ylabel("GB/s")
    add_legend(ax, [*given, "limit" if limit is not None else ""])
    return ax


def _label(ax: Any, metric: str, against: str) -> None:
    if metric == "grad_norm_sq":
        ax.set_yscale("log")
    ax.set_xlabel(_AGAINST[against])
    ax.set_ylabel(_METRICS.get(metric, metric))


def _is_named(runs: Any) -> bool:
    """A dictionary of runs, not the columns of one."""
    return isinstance(runs, Mapping) and "step" not in runs


def _history(run: Result | Columns) -> Columns:
    return run.history if isinstance(run, Result) else run


def _together(seeds: Sequence[Columns], metric: str, against: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """x, and the metric of each seed at it; the first seed's own points, as far as all reach."""
    for columns in seeds:
        if metric not in columns:
            raise ValueError(f"metric: expected one of {', '.join(columns)}, got {metric!r}")
    reach = min(float(columns[against][-1]) for columns in seeds)
    x = np.asarray(seeds[0][against])
    x = x[x <= reach]
    return x, np.array([np.interp(x, columns[against], columns[metric]) for columns in seeds])
