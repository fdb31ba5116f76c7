"""The keys that a table of a configuration may have, by its path."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from .._delays.model import DelayModel
from .._problems.local import LocalSGD
from .._replay.stop import Stop
from .._rule.compression import Compression
from .._rule.optimizers import LearningRate
from .._rule.secure_values import Gaussian
from .._schedule.resolve import schedule
from .build import CODE, KINDS_OF, LOCAL_RATES, PARTITIONS, PROBLEMS, strategy_keys
from .options import ReplayOptions
from .tables import Tables, merged, parameters_of, refuse_unknown, removed_in_vain

__all__ = ["DATA_KEYS", "SECTIONS", "TARGETS", "TOP_KEYS", "partition_keys", "problem_keys", "refuse_unknown_removals"]

SECTIONS = ("problem", "trace", "strategy", "local", "schedule", "replay")
TOP_KEYS = (*SECTIONS, "seed", "seeds", "name", "target", "compare", "sweep")
TARGETS = ("loss", "grad_norm_sq", "accuracy")
DATA_KEYS = ("data", "format", "target", "divide_by", "dtype", "test", "test_seed")
FACTORY_KEYS = ("function", "options")
SWEEP_KEYS = ("grid", "seeds")
UNIFORM_KEYS = ("n_clients", "max_staleness", "staleness")
_FILE_KEYS = ("file", "columns", "unit", "missing", "delimiter", "client", "assign", "bootstrap", "assign_seed")


def problem_keys(kind: str) -> list[str]:
    """The keys of [problem] beside `kind`."""
    if kind == "factory":
        return list(FACTORY_KEYS)
    known = [name for name in inspect.signature(PROBLEMS[kind]).parameters if name not in ("X", "y", "clients")]
    if kind == "quadratic":
        return [*known, "dtype"]
    known.remove("copy")
    if kind in CODE:
        known = [*CODE[kind], "options", *(name for name in known if name not in CODE[kind].values())]
    return [*known, *DATA_KEYS, "partition", *(["shape"] if kind == "network" else [])]


def partition_keys(kind: str) -> list[str]:
    """The keys of problem.partition beside `kind`."""
    return ["column"] if kind == "column" else list(inspect.signature(PARTITIONS[kind]).parameters)[1:]


def schedule_keys() -> list[str]:
    """The keys of [schedule]."""
    return [name for name in parameters_of(schedule) if name not in ("source", "strategy", "seed")]


def trace_keys(kind: str) -> Sequence[str]:
    """The keys of [trace] beside `kind`."""
    if kind == "model":
        return tuple(parameters_of(DelayModel))
    if kind == "uniform":
        return UNIFORM_KEYS
    return (*_FILE_KEYS, *(("end", "tasks") if kind == "recorded" else ("as_trace",)))


def _known_keys(tables: Tables, path: str) -> Sequence[str] | None:
    """The keys of the table at a path; None where its kind is not said, and where there can be no table."""
    fixed: dict[str, Sequence[str]] = {
        "": TOP_KEYS,
        "local": tuple(parameters_of(LocalSGD)),
        **{f"local.{rate}": tuple(parameters_of(LearningRate)) for rate in LOCAL_RATES},
        "local.compress": tuple(parameters_of(Compression)),
        "schedule": schedule_keys(),
        "replay": tuple(parameters_of(ReplayOptions)),
        "replay.stop": tuple(parameters_of(Stop)),
        "strategy.privacy": tuple(parameters_of(Gaussian)),
        "sweep": SWEEP_KEYS,
        "target": TARGETS,
    }
    if path in fixed:
        return fixed[path]
    table: Any = tables
    for name in path.split("."):
        table = table.get(name) if isinstance(table, Mapping) else None
    kind = table.get("kind") if isinstance(table, Mapping) else None
    if not isinstance(kind, str):
        return None
    known: Sequence[str] | None = None
    if path == "problem" and kind in (*PROBLEMS, "factory"):
        known = problem_keys(kind)
    elif path == "problem.partition" and kind in (*PARTITIONS, "column"):
        known = partition_keys(kind)
    elif path == "trace" and kind in ("recorded", "log", "model", "uniform"):
        known = trace_keys(kind)
    elif path == "strategy":
        known = strategy_keys(kind, table.get("preset"))
    elif kind in KINDS_OF.get(path, ()):
        known = tuple(parameters_of(KINDS_OF[path][kind]))
    return None if known is None else ("kind", *known)


def refuse_unknown_removals(tables: Tables, changes: Mapping[str, Any]) -> None:
    """Refuses to remove a key that there cannot be; one that is only not there may be removed."""
    after = merged(tables, changes)
    for path in removed_in_vain(tables, changes):
        *parents, _ = names = path.split(".")
        for depth in range(len(names)):
            above = ".".join(parents[:depth])
            known = _known_keys(after, above)
            if known is None:
                break
            refuse_unknown(above, {names[depth]: None}, known)
