"""The file of a saved server: an uncompressed .npz, the same for every implementation of `Server`.

format               "fedbuff-server"
format_number        1; a reader refuses other numbers
rule                 the aggregation rule as JSON: its fields; a staleness function or optimizer as [class, fields]
version fill dropped int64
weight_sum           float64, sum of e over the buffer
scaled_weight_sum    float64, sum of s e over the buffer
w total              (dim) the current model; the sum of the buffer. Their dtype is the server's
unit                 float64, only where deltas are whole numbers that count it; total is int64 then
outstanding_version  int64 (m), ascending; the versions with downloads not yet returned
outstanding_count    int64 (m), >= 1; how many
kept_version kept_w  int64 (k) ascending, (k, dim): older models that are outstanding, where the rule needs them
buffer_staleness     int64, the largest staleness in the buffer; absent: 0
first second third   what the rule keeps, as `state.py` lists it; a lone velocity of SGD is named velocity
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import staleness as _staleness
from .._base.arrays import Floats as Vector
from .._base.arrays import all_finite
from .._base.files import open_npz, reading, write_npz
from . import delta_weight as _delta_weight
from . import hidden as _hidden
from . import optimizers as _optimizers
from . import table as _table
from .own import OwnRule
from .secure_values import (
    FixedPoint,
    Gaussian,
    OneTimePad,
    Simulate,
)
from .server_errors import unit_of
from .state import check_state, state_names
from .strategies import Rule

__all__ = [
    "FORMAT",
    "FORMAT_NUMBER",
    "ServerState",
    "read_server",
    "rule_from_json",
    "rule_is_known",
    "rule_to_json",
    "write_server",
]

FORMAT = "fedbuff-server"
FORMAT_NUMBER = 1
MOST_COUNT = 2**62  # of steps and downloads: what adds to one stays within 64 bits

_CLASSES = {cls.__name__: cls for cls in (FixedPoint, Gaussian, OneTimePad, Simulate)} | {
    name: getattr(module, name)
    for module in (_staleness, _optimizers, _table, _delta_weight, _hidden)
    for name in module.__all__
    if isinstance(getattr(module, name), type)
}


@dataclass(slots=True, kw_only=True)
class ServerState:
    """All that a server knows."""

    rule: Rule
    w: Vector
    total: NDArray[Any]
    unit: float | None = None
    version: int = 0
    fill: int = 0
    dropped: int = 0
    weight_sum: float = 0.0
    scaled_weight_sum: float = 0.0
    outstanding: dict[int, int] = field(default_factory=dict)
    kept: dict[int, Vector] = field(default_factory=dict)
    buffer_staleness: int = 0
    kept_by_rule: dict[str, NDArray[Any]] = field(default_factory=dict)


def write_server(path: str | os.PathLike[str], state: ServerState) -> None:
    """Writes the state beside `path`, then renames: a kill at any moment leaves the old file or the new one."""
    outstanding = sorted(state.outstanding.items())
    kept = sorted(state.kept.items())
    arrays: dict[str, Any] = {
        "format": FORMAT,
        "format_number": np.int64(FORMAT_NUMBER),
        "rule": rule_to_json(state.rule),
        "version": np.int64(state.version),
        "fill": np.int64(state.fill),
        "dropped": np.int64(state.dropped),
        "weight_sum": np.float64(state.weight_sum),
        "scaled_weight_sum": np.float64(state.scaled_weight_sum),
        "w": state.w,
        "total": state.total,
        "outstanding_version": np.array([version for version, _ in outstanding], np.int64),
        "outstanding_count": np.array([count for _, count in outstanding], np.int64),
        "kept_version": np.array([version for version, _ in kept], np.int64),
        "kept_w": np.array([w for _, w in kept], state.w.dtype).reshape(len(kept), state.w.size),
    }
    if state.unit is not None:
        arrays["unit"] = state.unit
    if state.buffer_staleness > 0:
        arrays["buffer_staleness"] = np.int64(state.buffer_staleness)
    for name, value in state.kept_by_rule.items():
        arrays[_name_in_file(state.rule, name)] = value
    write_npz(path, arrays)


def read_server(path: str | os.PathLike[str], rule: Rule | None = None) -> ServerState:
    """The state in a file. `rule` is compared with the one in the file, and gives its staleness function where that is
    the user's own. FileError where the file is no such file, is damaged, or holds another rule."""
    what = "a saved server"
    with reading(path, what), open_npz(path, what) as file:
        if "format" not in file or file.text("format") != FORMAT:
            raise ValueError("it holds something else")
        number = int(file["format_number"])
        if number != FORMAT_NUMBER:
            raise ValueError(f"its format is number {number}, this reader's is {FORMAT_NUMBER}")
        return _state_of(file.all(), rule)


def _state_of(arrays: dict[str, Any], rule: Rule | None) -> ServerState:
    w = arrays["w"]
    if w.ndim != 1 or w.size == 0 or w.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"w is {w.dtype} {w.shape}")
    rule = rule_from_json(str(arrays["rule"]), rule)
    unit = unit_of(float(arrays["unit"]), rule) if "unit" in arrays else None
    total = arrays["total"]
    if total.shape != w.shape or total.dtype != (w.dtype if unit is None else np.int64):
        raise ValueError(f"total is {total.dtype} {total.shape}, w is {w.dtype} {w.shape}")
    kept_by_rule = {name: arrays[_name_in_file(rule, name)] for name in state_names(rule, of_server=True)}
    if "table_seen" in kept_by_rule and "table_change" in arrays:
        kept_by_rule["table_change"] = arrays["table_change"]
    if rule.has_control and "control_change" in arrays:
        kept_by_rule["control_change"] = arrays["control_change"]
    check_state(rule, kept_by_rule, w.size, w.dtype, of_server=True)
    versions, counts = arrays["outstanding_version"], arrays["outstanding_count"]
    for name in ("outstanding_version", "outstanding_count", "kept_version", "version", "fill", "dropped"):
        if arrays[name].dtype != np.int64:
            raise ValueError(f"{name} is {arrays[name].dtype} {arrays[name].shape}")
    state = ServerState(
        rule=rule,
        version=int(arrays["version"]),
        fill=int(arrays["fill"]),
        dropped=int(arrays["dropped"]),
        weight_sum=float(arrays["weight_sum"]),
        scaled_weight_sum=float(arrays["scaled_weight_sum"]),
        outstanding=dict(zip(versions.tolist(), counts.tolist(), strict=True)),
        kept=dict(zip(arrays["kept_version"].tolist(), np.array(arrays["kept_w"], w.dtype), strict=True)),
        w=w,
        total=total,
        unit=unit,
        buffer_staleness=int(arrays.get("buffer_staleness", 0)),
        kept_by_rule=kept_by_rule,
    )
    for name in ("w", "total"):
        if not all_finite(getattr(state, name)):
            raise ValueError(f"{name} is not finite")
    if not 0 <= state.buffer_staleness <= state.version:
        raise ValueError(f"buffer_staleness {state.buffer_staleness} at version {state.version}")
    if not all(0 <= value < math.inf for value in (state.weight_sum, state.scaled_weight_sum)):
        raise ValueError(f"weight_sum {state.weight_sum}, scaled_weight_sum {state.scaled_weight_sum}")
    if max(state.version, state.dropped, sum(state.outstanding.values())) > MOST_COUNT:
        raise ValueError(f"version {state.version}, dropped {state.dropped}: beyond {MOST_COUNT}")
    if list(state.outstanding) != sorted(state.outstanding) or len(state.outstanding) != len(versions):
        raise ValueError("its outstanding versions do not rise")
    most = rule.buffer_size if rule.trigger == "buffer" else MOST_COUNT
    if not 0 <= state.fill < most or state.version < 0 or state.dropped < 0:
        raise ValueError(f"version {state.version}, fill {state.fill} of {rule.buffer_size}, dropped {state.dropped}")
    if "held_client" in kept_by_rule and len(kept_by_rule["held_client"]) != state.fill:
        raise ValueError(f"fill {state.fill}, with {len(kept_by_rule['held_client'])} deltas")
    if any(count < 1 or not 0 <= version <= state.version for version, count in state.outstanding.items()):
        raise ValueError("its outstanding downloads do not fit its version")
    old = set(state.outstanding) - {state.version} if rule.needs_start else set()
    if set(state.kept) != old or any(kept.shape != w.shape for kept in state.kept.values()):
        raise ValueError("its kept models do not fit its outstanding downloads")
    return state


def _name_in_file(rule: Rule, name: str) -> str:
    """The name of one of `state_names`."""
    return "velocity" if rule.optimizer.moments == ("velocity",) and name == "first" else name


def rule_to_json(rule: Rule) -> str:
    return json.dumps({part.name: _to_json(getattr(rule, part.name)) for part in fields(rule)})


def _to_json(value: Any) -> Any:
    if type(value) in _CLASSES.values():
        told = (part.name for part in fields(value) if part.compare)  # not what makes no difference
        return [type(value).__name__, {name: _to_json(getattr(value, name)) for name in told}]
    if isinstance(value, OwnRule):
        return [None, value.name]
    return [None, getattr(value, "__qualname__", type(value).__qualname__)] if callable(value) else value


def rule_is_known(rule: Rule) -> bool:
    """Whether JSON holds all of a rule: no function in it is the user's own."""
    return all(not (isinstance(value, list) and value[0] is None) for value in json.loads(rule_to_json(rule)).values())


def rule_from_json(text: str, given: Rule | None) -> Rule:
    saved = json.loads(text)
    if given is not None:
        # compared as JSON, so that a tuple and a list are the same
        plain = json.loads(rule_to_json(Rule(buffer_size=1, lr=1.0)))  # for what a file of an older version lacks
        for name, value in json.loads(rule_to_json(given)).items():
            if saved.get(name, plain[name]) != value:
                raise ValueError(f"its rule has {name} {saved.get(name, plain[name])}, the given strategy {value}")
        return given
    values: dict[str, Any] = {}
    for name, value in saved.items():
        if isinstance(value, list) and value[0] is None:
            raise ValueError(f"its {name} function {value[1]!r} is the user's own; pass strategy= to load it")
        values[name] = _from_json(value)
    return Rule(**values)


def _from_json(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if len(value) == 2 and isinstance(value[1], dict):
        return _CLASSES[value[0]](**{key: _from_json(item) for key, item in value[1].items()})
    return tuple(value)
