"""`tune`: successive halving. Many arms on a small budget, the best of them on a larger one, to a target."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from .._base.checks import (
    count,
    integer,
    list_of,
    mapping,
    path_of,
)
from .._base.files import replacing
from .._replay.history import RISING
from .._study.build import default_metrics, privacy_of
from .._study.config import StudyConfig, check_code, check_repeatable
from .._study.tables import ConfigError, merged, seeds_of, table_of
from .request import Base, arms_of, study_of
from .results import SweepResults
from .statistics import Table, arm_labels
from .sweep import sweep

__all__ = ["TuneResults", "about", "tune"]

_BUDGETS = ("server_steps", "max_time", "arrivals")
_EVALUATIONS = 100


@dataclass(frozen=True)
class Rung:
    """A sweep of the arms that were still in: their numbers in the whole grid, the share of the budget, the seeds."""

    arms: list[int]
    share: float
    seeds: list[int]
    results: SweepResults


@dataclass(frozen=True)
class TuneResults:
    """What `tune` found.

    winner    the changes of the best arm
    ranking   a row for each arm, the best first: the last rung that it was in, how many of its runs there reached the
              target, the median of the virtual time to it, the mean with its interval, and the metric's mean at the end
    rungs     the sweeps, as `SweepResults`
    updates   client updates that were made; `full_updates`, about how many the whole grid would have taken
    notes     what limits the conclusion
    """

    target: tuple[str, float]
    arms: list[dict[str, Any]]
    winner: dict[str, Any]
    ranking: Table
    rungs: list[SweepResults]
    updates: int
    full_updates: int
    notes: list[str]

    def __str__(self) -> str:
        metric, value = self.target
        share = self.updates / self.full_updates if self.full_updates else 1.0
        told = f"best: {arm_labels([self.winner])[0]}, to {metric} {value:g}"
        spent = f"spent: {self.updates:,} client updates, {share:.0%} of what the whole grid would take"
        return "\n".join([*str(self.ranking).splitlines(), told, spent, *(f"note: {text}" for text in self.notes)])

    __repr__ = __str__


def tune(
    base: Base,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    target: Mapping[str, float] | None = None,
    buffer_sizes: Sequence[int] | None = None,
    concurrencies: Sequence[int] | None = None,
    seeds: int | Sequence[int] | str | None = None,
    eta: int = 3,
    executor: Any = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = True,
    threads: int | None = None,
    progress: bool | None = None,
    allow_code: bool = False,
) -> TuneResults:
    """Successive halving over a grid: which arm reaches the target in the least virtual time?

    The first rung runs every arm on a small part of the budget and of the seeds, the best 1/eta go on to eta times as
    much of both, and the last rung, of two arms or more, has all of it. An arm is ranked by the median of its virtual
    time to the target, then by the metric at the end. All arms of a rung meet the same delays and batches.

    >>> import fedbuff as fb
    >>> base = {
    ...     "problem": {"kind": "quadratic", "centers": [[0.0, 0.0], [2.0, 0.0], [4.0, 0.0]]},
    ...     "trace": {"kind": "model", "n_clients": 3, "compute": {"kind": "exponential", "scale": 1.0}},
    ...     "strategy": {"kind": "fedbuff", "buffer_size": 3},
    ...     "local": {"steps": 1, "lr": 0.1},
    ...     "schedule": {"max_time": 200.0},
    ...     "replay": {"eval_every": 1},
    ... }
    >>> found = fb.tune(base, {"local.lr": [0.001, 0.01, 0.1, 0.3]}, target={"loss": 1.4}, seeds=4, eta=2)
    >>> found.winner, len(found.rungs)
    ({'local.lr': 0.3}, 2)

    base           a `StudyConfig`, its tables, or the path of its file; its [schedule] holds the whole budget, best as
                   max_time: as many server steps take longer with a larger buffer
    grid           lists of values by key path; without it, the base's [sweep] grid
    target         the metric and its value, as in {"accuracy": 0.9}; without it, the base's [target]
    buffer_sizes, concurrencies   values of strategy.buffer_size and schedule.concurrency, with the grid or instead
    seeds          how many, a list, or "0:8"; None: the base's
    eta            the best 1/eta go on

    The others are those of `sweep`: with `out`, each rung is a sweep in a folder rung-1, rung-2, ... of it, and the
    same call goes on where it was stopped. A run ends where it reaches the target. An arm that cannot run fails alone.
    """
    config = study_of(base, allow_code)
    if target is not None:
        tables = {name: table for name, table in config.tables.items() if name != "target"}  # instead of its own
        config = StudyConfig({**tables, "target": mapping("target", target)}, config.folder, config.allow_code)
    search = _Search(config, _arms(config, grid, buffer_sizes, concurrencies), seeds, count("eta", eta, low=2))
    folder = None if out is None else _own_folder(path_of("out", out))
    rungs: list[Rung] = []
    arms = list(range(len(search.arms)))
    for number in range(search.n_rungs):
        share = Fraction(1, search.eta ** (search.n_rungs - 1 - number))
        chosen = search.seeds[: search.n_seeds(share)]
        results = sweep(
            search.at(share),
            configs=[search.arms[arm] for arm in arms],
            seeds=chosen,
            executor=executor,
            out=None if folder is None else folder / f"rung-{number + 1}",
            resume=resume,
            threads=threads,
            progress=progress,
        )
        rungs.append(Rung(arms, float(share), chosen, results))
        arms = [arms[at] for at in search.order(results)][: search.n_arms(number + 1)]
    found = search.conclude(rungs)
    if folder is not None:
        with replacing(folder / "tune.json") as beside:
            beside.write_text(json.dumps(about(found), indent=1) + "\n")
    return found


def _own_folder(path: Path) -> Path:
    """Refuses a folder that holds anything but the files of a search, complete or interrupted by a kill."""
    entries = [entry for entry in path.iterdir() if not entry.match(".tune.json.*.part")] if path.is_dir() else []
    names = {entry.name for entry in entries}
    foreign = [name for name in sorted(names) if not name.startswith("rung-") and name != "tune.json"]
    if path.exists() and (foreign or not path.is_dir() or names == {"tune.json"}):
        raise ValueError(f"{path}: it is there already and not a search's; give another folder")
    return path


def _arms(
    config: StudyConfig,
    grid: Mapping[str, Sequence[Any]] | None,
    buffer_sizes: Sequence[int] | None,
    concurrencies: Sequence[int] | None,
) -> list[dict[str, Any]]:
    own = {"strategy.buffer_size": buffer_sizes, "schedule.concurrency": concurrencies}
    for name, values in (("buffer_sizes", buffer_sizes), ("concurrencies", concurrencies)):
        chosen = [1] if values is None else list_of(name, values, "a list of ints")
        if not chosen:
            raise ValueError(f"{name}: expected at least one")
        for value in chosen:
            integer(name, value)
    given = {path: list(values) for path, values in own.items() if values is not None}
    if grid is None and not given:
        grid = config.sweep_options.get("grid")
    twice = [path for path in given if grid is not None and path in grid]
    if twice:
        raise TypeError(f"grid: it has {twice[0]} already, leave it out there or here")
    arms = arms_of({**(grid or {}), **given}, None)
    if len(arms) < 2:
        raise ConfigError("grid: expected two arms or more; give a grid, buffer_sizes or concurrencies")
    return arms


def _check_arm(config: StudyConfig, arm: Mapping[str, Any]) -> None:
    """Refuses errors of the whole search; an arm with an error of its own fails alone, in its rung."""
    try:
        tables = merged(config.tables, arm)
        privacy = privacy_of(table_of(tables, "strategy"))
    except ConfigError:
        return
    check_code(tables, config.allow_code)
    check_repeatable(privacy, "tune")


class _Search:
    """The plan of a search: how many arms, seeds and how much of the budget each rung has, and who goes on."""

    def __init__(self, config: StudyConfig, arms: list[dict[str, Any]], seeds: Any, eta: int) -> None:
        for arm in arms:
            _check_arm(config, arm)
        if config.target is None:
            raise ConfigError('target: missing; give one, as in {"accuracy": 0.9}, or a table [target]')
        self.arms, self.eta, self.target = arms, eta, config.target
        metric, value = config.target
        asked = config.replay_options.metrics
        metrics = default_metrics(config.tables["problem"]) if asked is None else asked
        if metric not in metrics:
            raise ConfigError(f"replay.metrics: the target is of {metric!r}, which is not among them")
        if isinstance(seeds, int) and not isinstance(seeds, bool):
            seeds = list(range(count("seeds", seeds)))
        own = config.sweep_options.get("seeds", config.seeds)
        chosen = seeds if seeds is None or isinstance(seeds, str) else list_of("seeds", seeds, "ints")
        self.seeds: list[int] = list(own) if seeds is None else list(seeds_of(chosen, "seeds"))
        self._budget = {name: v for name in _BUDGETS if (v := config.schedule_options.get(name)) is not None}
        if not self._budget:
            raise ConfigError("schedule: give max_time, server_steps or arrivals, the budget of the last rung")
        changes: dict[str, Any] = {f"replay.stop.{metric}": value}
        if config.replay_options.eval_every is None and "server_steps" in self._budget:
            # The same at every rung, so that a run reaches the target at the same time in all of them.
            changes["replay.eval_every"] = max(1, self._budget["server_steps"] // _EVALUATIONS)
        self._config = config.changed(changes)
        self.n_rungs = 1
        while self.n_arms(self.n_rungs - 1) > max(2, eta):
            self.n_rungs += 1

    def n_arms(self, rung: int) -> int:
        return max(min(2, len(self.arms)), math.ceil(Fraction(len(self.arms), self.eta**rung)))

    def n_seeds(self, share: Fraction) -> int:
        return max(min(2, len(self.seeds)), math.ceil(len(self.seeds) * share))

    def at(self, share: Fraction) -> StudyConfig:
        """The base with a share of its budget."""
        if share == 1:
            return self._config
        parts = {
            name: value * float(share) if name == "max_time" else max(1, round(value * share))
            for name, value in self._budget.items()
        }
        return self._config.changed({f"schedule.{name}": value for name, value in parts.items()})

    def order(self, results: SweepResults) -> list[int]:
        """The arms of a rung, the best first; equals in the order of the grid."""
        if not np.any(results.column("status") == "done"):
            raise ConfigError(f"grid: no arm could run; the first: {results.failed[0]['error']}")
        scores = self.scores(results)
        return sorted(range(len(scores)), key=lambda at: (*scores[at]["key"], at))

    def scores(self, results: SweepResults) -> list[dict[str, Any]]:
        """For each arm of a rung what it is ranked by; `key` is smaller for the better."""
        metric, value = self.target
        times = results.time_to(metric, value).rows
        last = results.table(metric).rows
        arm, reason = results.column("arm"), results.column("exit_reason")
        made = []
        for at, (reached, end) in enumerate(zip(times, last, strict=True)):
            names = ("n", "reached", "median", "mean", "low", "high")
            sign = -1.0 if metric in RISING else 1.0
            diverged = bool(np.any(reason[arm == at] == "diverged"))
            late = math.inf if math.isnan(reached["mean"]) else reached["mean"]
            worth = math.inf if diverged or math.isnan(end["mean"]) else sign * end["mean"]
            key = (reached["n"] == 0, math.inf if math.isnan(reached["median"]) else reached["median"], late, worth)
            made.append({name: reached[name] for name in names} | {"metric": end["mean"], "key": key})
        return made

    def conclude(self, rungs: Sequence[Rung]) -> TuneResults:
        metric = self.target[0]
        rows: list[dict[str, Any]] = []
        placed: set[int] = set()
        for number, rung in reversed(list(enumerate(rungs, 1))):
            scores = self.scores(rung.results)
            for at in self.order(rung.results):
                if rung.arms[at] in placed:
                    continue
                placed.add(rung.arms[at])
                score = scores[at]
                cells = {path: self.arms[rung.arms[at]].get(path) for path in _paths(self.arms)}
                named = {name: score[name] for name in ("n", "reached", "median", "mean", "low", "high")}
                rows.append({**cells, "rung": number, **named, metric: score["metric"]})
        best = self.order(rungs[-1].results)
        winner = self.arms[rungs[-1].arms[best[0]]]
        updates, full = self._spent(rungs)
        return TuneResults(
            self.target,
            self.arms,
            winner,
            Table(rows),
            [rung.results for rung in rungs],
            updates,
            full,
            self._notes(rungs, best),
        )

    def _spent(self, rungs: Sequence[Rung]) -> tuple[int, int]:
        """Client updates made; and those of all arms on the whole budget: a run that ended at the target ends there
        too, others go on at their pace."""
        made, by_arm = 0, dict[int, float]()
        for rung in rungs:
            done = rung.results.column("status") == "done"
            updates = rung.results.column("updates")
            stopped = rung.results.column("exit_reason") == self.target[0]
            made += int(updates[done].sum())
            for at, arm in enumerate(rung.arms):
                mine = done & (rung.results.column("arm") == at)
                if mine.any():
                    whole = np.where(stopped[mine], updates[mine], updates[mine] / rung.share)
                    by_arm[arm] = float(whole.mean()) * len(self.seeds)
        return made, round(sum(by_arm.values()))

    def _notes(self, rungs: Sequence[Rung], best: Sequence[int]) -> list[str]:
        metric, value = self.target
        notes = []
        if self.scores(rungs[-1].results)[best[0]]["median"] == math.inf:
            notes.append(f"fewer than half of the best arm's runs reached {metric} {value:g}: it is best by {metric}")
        ran = [score["n"] for score in self.scores(rungs[0].results)]
        failed = [label for label, n in zip(arm_labels(self.arms), ran, strict=True) if n == 0]
        if failed:
            notes.append(f"{len(failed)} of {len(self.arms)} arms could not run: {'; '.join(failed)}")
        return notes


def _paths(arms: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(path for arm in arms for path in arm))


def about(found: TuneResults) -> dict[str, Any]:
    """What tune.json holds; a median that is infinite is null there."""
    rows = [
        {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in row.items()}
        for row in found.ranking.rows
    ]
    metric, value = found.target
    return {
        "target": {metric: value},
        "winner": found.winner,
        "ranking": rows,
        "updates": found.updates,
        "full_updates": found.full_updates,
        "notes": found.notes,
    }
