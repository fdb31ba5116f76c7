"""From runs to conclusions: means and bands over seeds, differences on common random numbers, times to a target.

The first half knows arrays only; the second looks runs up in `SweepResults`. A run that failed, diverged or is missing
in an arm is left out, and a note says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.arrays import to_array
from .._base.checks import (
    choice,
    count,
    instance,
    number,
)
from .._base.files import optional
from .._base.html import grid
from .._base.student_t import student
from .._base.text_table import aligned, show
from .._replay.history import first_reached

if TYPE_CHECKING:
    from .results import SweepResults

__all__ = [
    "Band",
    "Paired",
    "Table",
    "arm_at",
    "arm_labels",
    "bands",
    "bounded",
    "carried_forward",
    "flat_arms",
    "interval",
    "pair",
    "paired",
    "survival_median",
    "table",
    "time_to",
]

Floats = NDArray[np.float64]
Method = Literal["student", "bootstrap"]
Axis = Literal["step", "time", "updates"]

_PLACES = {"time": "{} s", "step": "server step {}", "updates": "{} client updates"}
_RESAMPLES = 4000
_SEEDS_FOR_A_BAND = 3
_POINTS = 200  # of a band whose runs were evaluated at different places


# ---- arrays ----


def interval(values: ArrayLike, level: float = 0.95, method: Method = "student") -> tuple[Floats, Floats, Floats]:
    """Mean over the first axis, and the limits of the interval that covers the true mean with probability `level`.

    "student" holds exactly for normal values, and nearly for others where there are many; "bootstrap" takes the
    quantiles of the means of resampled values, always the same ones, and is too narrow for fewer than about ten. One
    value has no interval: its limits are NaN.

    >>> from fedbuff._sweep.statistics import interval
    >>> mean, low, high = interval([1.0, 2.0, 3.0])
    >>> float(mean), round(float(low), 2), round(float(high), 2)
    (2.0, -0.48, 4.48)
    """
    checked_level(level)
    choice("method", method, get_args(Method))
    array = np.asarray(values, np.float64)
    n = len(array)
    if n == 0:
        nothing = np.full(array.shape[1:], np.nan)
        return nothing, nothing, nothing
    mean = array.mean(axis=0)
    if n == 1:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    if method == "student":
        half = student(float(level), n - 1) * array.std(axis=0, ddof=1) / math.sqrt(n)
        return mean, mean - half, mean + half
    picks = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=_RESAMPLES) / n
    means = np.tensordot(picks, array, axes=(1, 0))
    low, high = np.quantile(means, [0.5 - 0.5 * level, 0.5 + 0.5 * level], axis=0)
    return mean, low, high


def checked_level(level: float) -> None:
    if not 0 < number("level", level) < 1:
        raise ValueError(f"level: expected a share between 0 and 1, as in 0.95, got {level}")


def carried_forward(x: ArrayLike, y: ArrayLike, at: ArrayLike) -> Floats:
    """The newest y at each place; NaN before the first x and after the last.

    >>> from fedbuff._sweep.statistics import carried_forward
    >>> carried_forward([0, 10, 20], [5.0, 3.0, 1.0], [0, 9, 10, 20, 21]).tolist()
    [5.0, 5.0, 3.0, 1.0, nan]
    """
    known, values, places = (np.asarray(each, np.float64) for each in (x, y, at))
    newest = np.searchsorted(known, places, side="right") - 1
    inside = (newest >= 0) & (places <= (known[-1] if known.size else -np.inf))
    return np.where(inside, values[np.clip(newest, 0, None)] if values.size else np.nan, np.nan)


def pair(
    a: Mapping[int, float], b: Mapping[int, float], level: float = 0.95, method: Method = "student"
) -> tuple[list[int], float, float, float, float]:
    """Values by seed of two arms: the seeds of both, the mean of a - b and its limits, and how often smaller the
    variance of that mean is than of a difference between arms with seeds of their own."""
    seeds = sorted(set(a) & set(b))
    first, second = (np.array([each[seed] for seed in seeds], np.float64) for each in (a, b))
    mean, low, high = (float(each) for each in interval(first - second, level, method))
    if len(seeds) < 2:
        return seeds, mean, low, high, math.nan
    apart = float(first.var(ddof=1) + second.var(ddof=1))
    together = float((first - second).var(ddof=1))
    return seeds, mean, low, high, apart / together if together > 0 else math.inf if apart > 0 else math.nan


def survival_median(times: ArrayLike, reached: ArrayLike) -> float:
    """The time by which half have reached it, by Kaplan and Meier: a run that has not is censored at its time.

    Infinite where fewer than half are seen to reach it.

    >>> from fedbuff._sweep.statistics import survival_median
    >>> survival_median([1.0, 2.0, 3.0], [True, True, False]), survival_median([1.0, 9.0, 9.0], [True, False, False])
    (2.0, inf)
    """
    when, ended = np.asarray(times, np.float64), np.asarray(reached, np.bool_)
    left = 1.0
    for time in np.unique(when[ended]):
        left *= 1.0 - np.count_nonzero(ended & (when == time)) / np.count_nonzero(when >= time)
        if left <= 0.5 + 1e-12:
            return float(time)
    return math.inf


# ---- what is returned ----


@dataclass(frozen=True)
class Table:
    """Rows by name, and notes on what was left out. `str` aligns it; `to_pandas` makes a DataFrame."""

    rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)

    def to_pandas(self) -> Any:
        return optional("pandas", None, "to_pandas").DataFrame(self.rows)

    def __str__(self) -> str:
        return "\n".join([*aligned(self.rows), *(f"note: {text}" for text in self.notes)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return grid(self.rows, self.notes)


@dataclass(frozen=True)
class Band:
    """An arm's mean along an axis, with the limits of its interval, over n seeds; as far as all of its runs reach."""

    label: str
    arm: int
    n: int
    x: Floats
    mean: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Paired:
    """The mean of a - b over the seeds that both arms have, with its interval.

    variance_ratio  how often smaller the variance of this mean is than with other seeds in each arm: what common random
                    numbers gained; below 1 where they did harm
    """

    a: str
    b: str
    metric: str
    level: float
    n: int
    difference: float
    low: float
    high: float
    variance_ratio: float
    notes: list[str]

    def __str__(self) -> str:
        told = f"{self.metric} of {self.a} minus {self.b}: {self.difference:.4g}"
        if self.n > 1:
            told += f" ({100 * self.level:g} % between {self.low:.4g} and {self.high:.4g})"
        told += f" over {self.n} seeds"
        if not math.isnan(self.variance_ratio):
            told += f"; variance {self.variance_ratio:.3g} times smaller than unpaired"
        return "\n".join([told, *(f"note: {text}" for text in self.notes)])

    __repr__ = __str__


# ---- results of a sweep ----


def flat_arms(arms: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The changes of each arm by whole paths: of tables that an arm puts in the place of others, each key."""
    return [{path: value for name in arm for path, value in _flat(name, arm[name])} for arm in arms]


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(f"{path}.{name}", inner)
    else:
        yield path, value


def arm_labels(arms: Sequence[Mapping[str, Any]]) -> list[str]:
    """A short name for each arm: its changes, the paths cut to where they differ."""
    arms = flat_arms(arms)
    paths = list(dict.fromkeys(path for arm in arms for path in arm))
    ends = [path.rpartition(".")[2] for path in paths]
    short = {path: end if ends.count(end) == 1 else path for path, end in zip(paths, ends, strict=True)}
    return [", ".join(f"{short[path]}={value}" for path, value in arm.items()) or "base" for arm in arms]


def arm_at(results: SweepResults, given: int | Mapping[str, Any], name: str) -> int:
    """An arm by number, or by changes that only it has."""
    if isinstance(given, Mapping):
        found = [at for at, arm in enumerate(results.arms) if all(k in arm and arm[k] == v for k, v in given.items())]
        if len(found) != 1:
            raise ValueError(f"{name}: {len(found)} arms have {dict(given)}; give the changes of one, or its number")
        return found[0]
    at = count(name, given, low=0)
    if at >= len(results.arms):
        raise ValueError(f"{name}: there are {len(results.arms)} arms, numbered from 0; got {at}")
    return at


def _values(results: SweepResults, metric: str, notes: list[str]) -> list[dict[int, float]]:
    """By arm, the metric's last value by seed; what is left out goes to the notes."""
    instance("metric", metric, str, "the name of a metric")
    if metric not in results.columns or metric in ("run", "status", "error", "exit_reason", "model_sha256"):
        raise ValueError(f"metric: expected a column of numbers, of {', '.join(results.columns)}, got {metric!r}")
    column, seeds = np.asarray(results.column(metric), np.float64), results.column("seed").tolist()
    found = []
    for rows, label in zip(_kept(results, notes), arm_labels(results.arms), strict=True):
        values = {seeds[row]: float(column[row]) for row in rows if math.isfinite(column[row])}
        if len(values) < len(rows):
            notes.append(f"{label}: {len(rows) - len(values)} of {len(rows)} runs have no finite {metric}, left out")
        found.append(values)
    return found


def _by_arm(results: SweepResults) -> list[NDArray[np.int64]]:
    """The rows of each arm."""
    arm = results.column("arm")
    order = np.argsort(arm, kind="stable")
    return np.split(order, np.searchsorted(arm[order], np.arange(1, len(results.arms))))


def _kept(results: SweepResults, notes: list[str]) -> list[list[int]]:
    """By arm, the rows of runs that came to an end; why others did not goes to the notes."""
    failed, diverged = results.column("status") == "failed", results.column("exit_reason") == "diverged"
    seeds = results.column("seed")
    every = np.unique(seeds)
    kept = []
    for rows, label in zip(_by_arm(results), arm_labels(results.arms), strict=True):
        for left_out, why in ((failed[rows], "failed"), (diverged[rows], "diverged")):
            if left_out.any():
                notes.append(f"{label}: {np.count_nonzero(left_out)} of {len(rows)} runs {why} and are left out")
        missing = np.setdiff1d(every, seeds[rows])
        if missing.size:
            notes.append(f"{label}: no runs of the seeds {_some(missing.tolist())}")
        kept.append(rows[~failed[rows] & ~diverged[rows]].tolist())
    return kept


def _some(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds[:5])) + (f" and {len(seeds) - 5} others" if len(seeds) > 5 else "")


def table(results: SweepResults, metric: str, level: float, method: Method) -> Table:
    """A row for each arm: its changes, how many runs, and the mean with its interval."""
    notes: list[str] = []
    rows = []
    arms = flat_arms(results.arms)
    for arm, values in zip(arms, _values(results, metric, notes), strict=True):
        mean, low, high = (float(each) for each in interval(list(values.values()), level, method))
        rows.append({**_cells(arms, arm), "n": len(values), "mean": mean, "low": low, "high": high})
    return Table(rows, notes)


def _cells(arms: Sequence[Mapping[str, Any]], arm: Mapping[str, Any]) -> dict[str, Any]:
    return {path: arm.get(path) for path in dict.fromkeys(path for one in arms for path in one)}


def bands(
    results: SweepResults, metric: str, axis: Axis, level: float, method: Method, at: ArrayLike | None
) -> list[Band]:
    """A band for each arm that has runs; histories are carried forward onto the axis."""
    choice("axis", axis, get_args(Axis))
    instance("metric", metric, str, "the name of a metric")
    made = []
    for number_, (rows, label) in enumerate(zip(_kept(results, []), arm_labels(results.arms), strict=True)):
        histories = [results.history(row) for row in rows]
        for history in histories:
            if metric not in history:
                raise ValueError(f"metric: expected one of {', '.join(history) or 'no columns'}, got {metric!r}")
        if not histories:
            continue
        x = _places([history[axis] for history in histories]) if at is None else to_array("at", at, np.float64)
        y = np.array([carried_forward(history[axis], history[metric], x) for history in histories])
        mean, low, high = interval(y, level, method)
        made.append(Band(label, number_, len(rows), x, mean, low, high))
    if not made:
        raise ValueError("results: the sweep has no run that came to an end")
    return made


def bounded(bands: Sequence[Band], metric: str) -> list[Band]:
    """Bands as they are drawn: no interval where two seeds or one say too little for it; none of an accuracy outside of
    0 and 1, none of another metric below 0 where no mean is."""
    positive = all(np.nanmin(band.mean, initial=0.0) >= 0.0 for band in bands)
    floor, ceiling = 0.0 if positive else -np.inf, 1.0 if metric == "accuracy" else np.inf
    return [
        replace(band, low=np.clip(band.low, floor, ceiling), high=np.clip(band.high, floor, ceiling))
        if band.n >= _SEEDS_FOR_A_BAND
        else replace(band, low=np.full(band.x.shape, np.nan), high=np.full(band.x.shape, np.nan))
        for band in bands
    ]


def _places(axes: Sequence[NDArray[Any]]) -> Floats:
    """Where all runs were evaluated, or evenly spaced as far as all reach."""
    first = np.asarray(axes[0], np.float64)
    if all(np.array_equal(first, each) for each in axes[1:]):
        return first
    reach = min(float(each[-1]) for each in axes)
    return np.linspace(max(float(each[0]) for each in axes), reach, _POINTS)


def paired(results: SweepResults, a: Any, b: Any, metric: str, level: float, method: Method) -> Paired:
    """Two arms, seed by seed."""
    first, second = arm_at(results, a, "a"), arm_at(results, b, "b")
    notes: list[str] = []
    values = _values(results, metric, notes)
    labels = arm_labels(results.arms)
    seeds, mean, low, high, ratio = pair(values[first], values[second], level, method)
    if not seeds:
        raise ValueError(f"a, b: {labels[first]} and {labels[second]} have no seed in common")
    notes = [text for text in notes if text.startswith((f"{labels[first]}:", f"{labels[second]}:"))]
    alone = sorted(set(values[first]) ^ set(values[second]))
    if alone:
        notes.append(f"{len(alone)} seeds are in one of the two only: {_some(alone)}")
    return Paired(labels[first], labels[second], metric, level, len(seeds), mean, low, high, ratio, notes)


def time_to(results: SweepResults, metric: str, target: float, axis: Axis, level: float, method: Method) -> Table:
    """A row for each arm: how many of its runs reached the target, the median, and the mean with its interval where
    all did. A run that did not reach it is censored at its end; one that diverged, at infinity."""
    choice("axis", axis, get_args(Axis))
    number("target", target, low=-math.inf)
    notes: list[str] = []
    rows = []
    done, diverged = results.column("status") == "done", results.column("exit_reason") == "diverged"
    arms = flat_arms(results.arms)
    for arm, label, of_arm in zip(arms, arm_labels(arms), _by_arm(results), strict=True):
        mine = of_arm[done[of_arm]]
        failed = len(of_arm) - len(mine)
        found = [first_at(results.history(int(row)), metric, target, axis) for row in mine]
        reached = np.array([hit for _, hit in found], np.bool_)
        times = np.array([time for time, _ in found], np.float64)
        times[~reached & diverged[mine]] = math.inf
        if failed:
            notes.append(f"{label}: {failed} of {len(of_arm)} runs failed and are left out")
        if not reached.all():
            never = times[~reached]
            watched = never[np.isfinite(never)]
            after = f" by {_PLACES[axis].format(show(float(watched.min())))}" if watched.size else ""
            notes.append(f"{label}: {never.size} of {len(mine)} runs did not reach it{after}; there is no mean")
        whole = len(mine) > 0 and bool(reached.all())
        mean, low, high = (float(each) for each in interval(times if whole else [], level, method))
        median = survival_median(times, reached) if len(mine) else math.nan
        row = {**_cells(arms, arm), "n": len(mine), "reached": int(reached.sum())}
        rows.append(row | {"median": median, "mean": mean, "low": low, "high": high})
    return Table(rows, notes)


def first_at(history: Mapping[str, NDArray[Any]], metric: str, target: float, axis: str) -> tuple[float, bool]:
    """Where a history first reaches the target, and True; or where it ends, and False."""
    instance("metric", metric, str, "the name of a metric")
    if metric not in history:
        raise ValueError(f"metric: expected one of {', '.join(history) or 'no columns'}, got {metric!r}")
    at = first_reached(history, metric, target)
    return float(history[axis][-1 if at is None else at]), at is not None
