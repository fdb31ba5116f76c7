"""The columns of a schedule, their types, and the status of a task."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from ..backends.spec import COLUMN_TYPES, ROW_NAMES

FORMATS = {".npz": "npz", ".parquet": "parquet"}
FORMAT_VERSION = 1


class Status(IntEnum):
    """What became of a task that ended."""

    USED = 0
    LEFT_IN_BUFFER = 1
    TOO_STALE = 2
    DISCARDED = 3
    TIMED_OUT = 4
    FAILED = 5
    STOPPED = 6


ROW_COLUMNS = {name: COLUMN_TYPES[name] for name in ROW_NAMES}
STEP_COLUMNS: dict[str, type[np.generic]] = {"step_time": np.float64, "step_started": np.int64}
IN_FLIGHT_COLUMNS: dict[str, type[np.generic]] = {
    "in_flight_client": np.int32,
    "in_flight_task": np.uint32,
    "in_flight_version": np.int64,
    "in_flight_start_time": np.float64,
}
SCALARS = ("n_clients", "buffer_size", "concurrency", "seed", "started_on_0", "first_step")


def no_flight() -> dict[str, Any]:
    """The columns of the tasks in flight where there are none."""
    return {name: np.zeros(0, dtype) for name, dtype in IN_FLIGHT_COLUMNS.items()}
