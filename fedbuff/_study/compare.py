"""Strategies side by side: run folders of several configurations on the same delays, and what each came to."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from .._rule.strategies import FedAvg
from .config import StudyConfig
from .run_folder import Run, run_study, write_json
from .tables import ConfigError, combinations, merged

__all__ = ["compare", "grid", "outcome"]


def grid(
    config: StudyConfig,
    strategies: Sequence[str] = (),
    buffer_sizes: Sequence[int] = (),
    concurrencies: Sequence[int] = (),
    clients_per_round: Sequence[int] = (),
) -> list[list[StudyConfig]]:
    """One variant for every strategy, buffer size and concurrency; each keeps what it does not name.

    FedAsync has no buffer, and FedAvg neither a buffer nor a concurrency: choices that say the same are made once. All
    have the same number of clients at work: a round of FedAvg has as many clients as the others have tasks at work,
    unless `clients_per_round` says otherwise; and where only the configuration's own FedAvg says how many, the others
    have as many.
    """
    own = config.tables["strategy"]
    kinds = list(strategies) or [own["kind"]]
    if clients_per_round and "fedavg" not in kinds:
        raise ConfigError(f"clients_per_round: expected fedavg among the strategies, got {', '.join(kinds)}")
    if buffer_sizes and set(kinds) == {"fedavg"}:
        raise ConfigError("buffer_size: FedAvg has no buffer; give clients_per_round, or concurrency")
    lists: dict[str, Any] = {"kind": kinds, "size": list(buffer_sizes) or [None]}
    lists["concurrency"] = list(concurrencies) or [None]
    tables = {key: value for key, value in config.tables.items() if key not in ("compare", "name")}
    made: dict[str, StudyConfig] = {}
    for chosen in combinations(lists, "compare"):
        kind, size, concurrency = chosen["kind"], chosen["size"], chosen["concurrency"]
        if kind == "fedavg":
            for round_size in clients_per_round or [concurrency]:
                built = StudyConfig(_rounds(tables, round_size), config.folder, config.allow_code)
                made.setdefault(built.name, built.named(built.name))
            continue
        strategy: dict[str, Any] = dict(own) if kind == own["kind"] else {"kind": kind}
        if kind == "fedbuff" and (size is not None or "buffer_size" not in strategy):
            strategy["buffer_size"] = size if size is not None else 10
        variant = {**tables, "strategy": strategy}
        if concurrency is None and own["kind"] == "fedavg":
            variant = merged(variant, {"schedule.concurrency": _round_size(config)})
        elif concurrency is not None:
            variant = merged(variant, {"schedule.concurrency": concurrency})
        built = StudyConfig(variant, config.folder, config.allow_code)
        name = built.name if concurrency is None else f"{built.name}, C={concurrency}"
        made.setdefault(name, built.named(name))
    return [[variant] for variant in made.values()]


def _rounds(tables: dict[str, Any], size: int | None) -> dict[str, Any]:
    """The tables with FedAvg, of so many clients in a round; None: of as many as the tables have at work."""
    own = tables["strategy"]
    strategy = dict(own) if own["kind"] == "fedavg" else {"kind": "fedavg"}
    if size is None and own["kind"] != "fedavg":
        size = tables.get("schedule", {}).get("concurrency")
        if size is None:
            strategy["rate"] = 1.0  # every client is at work
    if size is not None:
        strategy.pop("rate", None)
        strategy["clients_per_round"] = size
    return merged({**tables, "strategy": strategy}, {"schedule.concurrency": None})


def _round_size(config: StudyConfig) -> int:
    """How many clients the configuration's own FedAvg has at work."""
    strategy = cast(FedAvg, config.strategy)
    return strategy.round_size(config.problem.n_clients)


def compare(
    groups: Sequence[Sequence[StudyConfig]],
    folder: Path,
    target: tuple[str, float] | None,
    *,
    resume: bool = False,
    report: Callable[[str], object] = lambda text: None,
) -> list[dict[str, Any]]:
    """Runs every variant in a folder of its own; the best of each group goes into the table and compare.json.

    All meet the same delays and batches, as those follow from the seed, the client and the task alone.
    """
    if not groups:
        raise ConfigError("compare: nothing to compare; write tables [[compare]] or give options")
    if folder.exists() and not resume:
        raise ValueError(f"{folder}: it is there already; give another folder, or go on with --resume")
    for variant in (variant for group in groups for variant in group):  # all are checked before anything is written
        _check(variant, target)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    number = 0
    for group in groups:
        outcomes = []
        for variant in group:
            number += 1
            path = folder / f"{number:02d}-{re.sub(r'[^a-z0-9.]+', '-', variant.name.lower()).strip('-')}"
            run = run_study(variant, path, resume=path.exists(), report=_prefixed(report, variant.name))
            outcomes.append({"folder": path.name, **outcome(run, target)})
        rows.append(min(outcomes, key=_worth))
    write_json(folder / "compare.json", {"target": target, "rows": rows})
    return rows


def _prefixed(report: Callable[[str], object], name: str) -> Callable[[str], object]:
    return lambda text: report(f"{name}: {text}")


def _check(variant: StudyConfig, target: tuple[str, float] | None) -> None:
    variant.check_repeatable("compare")
    metrics = variant.replay_options.metrics
    if target is not None and metrics is not None and target[0] not in metrics:
        raise ConfigError(f"replay.metrics: the target is of {target[0]!r}, which is not among them")
    variant.check(variant.make_schedule())


def outcome(run: Run, target: tuple[str, float] | None) -> dict[str, Any]:
    """A run in a row: means over its seeds; the time to the target where every seed reached it. "at work" is how many
    clients are, at most."""
    last = [seed.result["last"] for seed in run.seeds]
    staleness = [seed.staleness for seed in run.seeds]
    row: dict[str, Any] = {
        "name": run.name,
        "seeds": len(run.seeds),
        "at work": run.seeds[0].result["schedule"].get("at_work"),
        "steps": float(np.mean([seed.result["server_steps"] for seed in run.seeds])),
        "staleness": _mean([each["mean"] for each in staleness if each]),
        "stalest": max((each["max"] for each in staleness if each), default=None),
    }
    if target is not None:
        metric, value = target
        reached = [seed.first(metric, value) for seed in run.seeds]
        every = [(seed, at) for seed, at in zip(run.seeds, reached, strict=True) if at is not None]
        whole = len(every) == len(run.seeds)
        row["time to target"] = _mean([seed.history["time"][at] for seed, at in every]) if whole else None
        row["updates to target"] = _mean([seed.history["updates"][at] for seed, at in every]) if whole else None
    shown = ("loss", "grad_norm_sq", "accuracy")
    return row | {name: _mean([each[name] for each in last]) for name in shown if name in last[0]}


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _worth(row: dict[str, Any]) -> tuple[float, float]:
    """Smaller is better: the time to the target, then the last value of what was measured."""
    reached = row.get("time to target")
    last = -row["accuracy"] if row.get("accuracy") is not None else row.get("loss") or 0.0
    return (np.inf if reached is None else reached), float(last)
