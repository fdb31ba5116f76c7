"""The numbers of a sweep's page: arms, times to a target, curves."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, get_args

import numpy as np

from .._base.files import reading
from .._sweep.columns import HISTORY
from .._sweep.results import SweepResults, load_sweep
from .._sweep.statistics import Axis, Band, Table, arm_labels, bounded, flat_arms
from ._levels import packed
from ._page import check_plotly, write_page

__all__ = ["is_sweep", "write_sweep_report"]

_CURVES = 20  # arms whose curves are drawn: the best
_POINTS = 60  # of a curve
_TIMES = ("n", "reached", "median")
_METRICS = ("accuracy", "loss", "grad_norm_sq", "distance")
Target = tuple[str, float]  # metric and value


def is_sweep(folder: str | os.PathLike[str]) -> bool:
    """Whether `sweep` or `tune` wrote the folder."""
    return any(Path(folder, name).is_file() for name in ("sweep.json", "tune.json"))


def write_sweep_report(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    title: str = "fedbuff report",
    target: Target | None = None,
) -> int:
    """Writes a sweep, or all rungs of a search, to one HTML file; returns how many runs it shows.

    target: a metric and the value that it is to reach; of a search, its own where None.
    """
    check_plotly()
    place = Path(folder)
    found = place / "tune.json"
    if not found.is_file():
        results = load_sweep(place)
        write_page(path, title, "sweeps", {"sweeps": [_sweep(place.resolve().name, results, target)]})
        return len(results)
    with reading(found, "what a search found"):
        search = json.loads(found.read_text(encoding="utf-8"))
        ((metric, value),) = search["target"].items()
        target = (str(metric), float(value)) if target is None else target
        count = max(int(row["rung"]) for row in search["ranking"])
    rungs = [load_sweep(place / f"rung-{n}") for n in range(1, count + 1)]
    sweeps = [_sweep(f"rung {n}", results, target) for n, results in enumerate(rungs, 1)]
    write_page(path, title, "sweeps", {"sweeps": [_last_of(sweeps), *sweeps]})
    return sum(len(results) for results in rungs)


def _sweep(name: str, results: SweepResults, target: Target | None) -> dict[str, Any]:
    metrics = [metric for metric in _METRICS if f"{HISTORY}{metric}" in results.columns]
    if target is not None and target[0] not in metrics:
        raise ValueError(f"target: expected one of {', '.join(metrics) or 'no metric'}, got {target[0]!r}")
    arms = flat_arms(results.arms)
    ends = {metric: _ends(results.table(metric).rows, metric) for metric in metrics}
    times = None if target is None else results.time_to(*target)
    order = _order(ends, times, target)
    curves = {metric: _curves(results, metric, set(order[:_CURVES])) for metric in metrics}
    return {
        "name": name,
        "varied": list(dict.fromkeys(path for arm in arms for path in arm)),
        "arms": [{"label": label, "values": arm} for arm, label in zip(arms, arm_labels(arms), strict=True)],
        "ends": ends,
        "times": None if times is None else [{key: row[key] for key in _TIMES} for row in times.rows],
        "target": target,
        "order": order,
        "curves": packed(np.frombuffer(json.dumps(curves).encode(), np.uint8)),
        "notes": [] if times is None else times.notes,
    }


def _last_of(sweeps: list[dict[str, Any]]) -> dict[str, Any]:
    """All arms of a search, each as it was in the last rung that it was in; the best first, as the search has them."""
    first, labels = sweeps[0], [arm["label"] for arm in sweeps[0]["arms"]]
    made = {**first, "name": "all rungs", "ends": {}, "notes": [], "curves": None}
    last = {arm["label"]: (n, at) for n, sweep in enumerate(sweeps) for at, arm in enumerate(sweep["arms"])}
    made["arms"] = [{**arm, "rung": last[arm["label"]][0] + 1} for arm in first["arms"]]
    made["times"] = [sweeps[last[label][0]]["times"][last[label][1]] for label in labels]
    for metric in first["ends"]:
        made["ends"][metric] = [sweeps[last[label][0]]["ends"][metric][last[label][1]] for label in labels]
    place = {label: (-n, sweeps[n]["order"].index(at)) for label, (n, at) in last.items()}
    made["order"] = sorted(range(len(labels)), key=lambda arm: place[labels[arm]])
    return made


def _ends(rows: list[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    """Means at the end, with the limits that `bounded` leaves of their intervals."""
    bands = [Band("", 0, row["n"], *(np.array([row[key]]) for key in ("n", "mean", "low", "high"))) for row in rows]
    return [
        {"n": band.n, "mean": band.mean[0], "low": band.low[0], "high": band.high[0]} for band in bounded(bands, metric)
    ]


def _order(ends: dict[str, Any], times: Table | None, target: Target | None) -> list[int]:
    """The arms from the best on: by the time to the target, then by a metric at the end."""
    metric = target[0] if target is not None else next(iter(ends), None)
    if metric is None:
        return []
    sign = -1.0 if metric == "accuracy" else 1.0
    last = [sign * row["mean"] if math.isfinite(row["mean"]) else math.inf for row in ends[metric]]
    first = [0.0] * len(last) if times is None else [row["median"] for row in times.rows]
    return sorted(range(len(last)), key=lambda arm: (math.isnan(first[arm]), first[arm], last[arm]))


def _curves(results: SweepResults, metric: str, arms: set[int]) -> dict[str, list[dict[str, Any]]]:
    """By axis, a curve for each of these arms that has runs."""
    made: dict[str, list[dict[str, Any]]] = {}
    for axis in get_args(Axis):
        bands = bounded(results.band(metric, axis), metric)
        made[axis] = [
            {
                "arm": band.arm,
                "n": band.n,
                **{name: _thinned(getattr(band, name)) for name in ("x", "mean", "low", "high")},
            }
            for band in bands
            if band.arm in arms
        ]
    return made


def _thinned(values: Any) -> list[float | None]:
    """At most so many numbers, the first and the last among them, of four digits."""
    at = sorted({round(k * (len(values) - 1) / (_POINTS - 1)) for k in range(_POINTS)})
    return [float(f"{values[k]:.4g}") if math.isfinite(values[k]) else None for k in at]
