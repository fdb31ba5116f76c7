"""Rows of a sweep's results: of runs in the core, of runs by `replay`, and of failed runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import little_endian
from .._replay.history import Result
from .._schedule.columns import Status
from .._schedule.schedule import Schedule
from .._study.tables import UNSET, ConfigError
from ..backends.spec import RunState
from .arms import Changes, text_of
from .columns import HISTORY, Row, Schema

__all__ = ["HISTORY_COLUMNS", "explain", "packed_row", "row_of"]

HISTORY_COLUMNS: Schema = {
    "step": "ints", "time": "floats", "updates": "ints", "staleness_mean": "floats", "staleness_max": "ints",
}  # fmt: skip
_ENDS = tuple(state.name.lower() for state in RunState if state.is_end)


def packed_row(
    end: int,
    metrics: Sequence[str],
    version: int,
    updates: int,
    staleness: int,
    time: float,
    seconds: float,
    w: NDArray[Any],
    values: NDArray[np.float64],
) -> Row:
    names = [*HISTORY_COLUMNS, *metrics, *(["grad_norm_sq_mean"] if "grad_norm_sq" in metrics else [])]
    history = {name: values[:, at] for at, name in enumerate(names)}
    return {
        "status": "done",
        "error": "",
        "exit_reason": _ENDS[end],
        "server_steps": version,
        "time": time,
        "updates": updates,
        "seconds": seconds,
        "model_sha256": hashlib.sha256(little_endian(w).tobytes()).hexdigest(),
        **{name: float(values[-1, len(HISTORY_COLUMNS) + at]) for at, name in enumerate(metrics)},
        **{HISTORY + name: column for name, column in history.items()},
    }


def row_of(result: Result, schedule: Schedule) -> Row:
    """What a run came to."""
    steps = result.version
    history = {name: result.history[name] for name in result.history}
    known = {*HISTORY_COLUMNS, "grad_norm_sq_mean"}
    return {
        "status": "done",
        "error": "",
        "exit_reason": result.exit_reason.value,
        "server_steps": steps,
        "time": float(schedule.step_time[steps - 1]) if steps else 0.0,
        "updates": int(np.count_nonzero((schedule.status == Status.USED) & (schedule.step < steps))),
        "model_sha256": hashlib.sha256(little_endian(result.w).tobytes()).hexdigest(),
        **{name: float(values[-1]) for name, values in history.items() if name not in known},
        **{HISTORY + name: values for name, values in history.items()},
    }


def explain(changes: Changes, error: BaseException) -> str:
    """An error with the changes of the arm that it came from."""
    shown = {path: UNSET if value is None else text_of(value) for path, value in changes.items()}
    where = ", ".join(f"{path} = {value}" for path, value in shown.items()) or "no changes"
    kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
    return f"{kind}{error} (with {where})"
