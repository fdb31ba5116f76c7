"""The check of all that a replay of a schedule depends on, in NumPy: the specification of the compiled one.

Faults are numbered as `ScheduleFault` in csrc/core/schedule/check_schedule.hpp; `_schedule/check.py` has their texts.
Of several faults the one with the lowest number is reported, and of that the first place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..spec import ScheduleChunk

__all__ = ["ScheduleCheck"]

_USED, _N_STATUS = 0, 7
_WRONG_STARTS = 18  # the last fault


class _Ends(NamedTuple):
    """Where the chunks that were checked end."""

    n_chunks: int = 0
    known_from: int = 0  # of older versions nobody told how many tasks started on them
    oldest: int = 0  # version of left[0]; on those before it, as far as known, all tasks have ended
    left: NDArray[np.int64] = np.zeros(0, np.int64)  # tasks not ended; of the newest version: minus those that ended
    arrive: float = -np.inf
    step_time: float = -np.inf
    step: int = 0


class ScheduleCheck:
    """The rule of csrc/core/schedule/check_schedule.cpp, column by column."""

    def __init__(self) -> None:
        self._ends = _Ends()

    @property
    def n_chunks(self) -> int:
        return self._ends.n_chunks

    def add(self, chunk: ScheduleChunk) -> tuple[int, int]:
        """Fault and index, as `ScheduleFault` counts them; (0, -1) where there is none."""
        first, n_steps = chunk.first_step, chunk.step_time.size
        after = first + n_steps
        ends = self._ends if self.n_chunks else _Ends(known_from=first, oldest=first, step=first)
        rows = _row_faults(chunk, ends, first, after)
        flights = [
            (chunk.in_flight_client < 0) | (chunk.in_flight_client >= chunk.n_clients),
            (chunk.in_flight_version < 0) | (chunk.in_flight_version > after),
        ]
        before = np.concatenate([[ends.step_time], chunk.step_time])
        steps = [~np.isfinite(chunk.step_time), before[1:] < before[:-1]]
        faults = [*rows, *flights, *steps]
        if not any(bad.any() for bad in faults):
            faults += _entry_faults(chunk, ends, first, after)
        for fault, bad in enumerate(faults, 1):
            if bad.any():
                return fault, int(np.argmax(bad))
        ended = chunk.version[chunk.version >= ends.known_from]
        left = np.zeros(after - ends.oldest + 1, np.int64)
        left[: ends.left.size] = ends.left
        left[first - ends.oldest] += chunk.started_on_0
        left[first - ends.oldest + 1 :] = np.maximum(chunk.step_started, -1)
        flying = chunk.in_flight_version[chunk.in_flight_version >= ends.known_from]
        gone = np.concatenate([ended, flying])
        gone = gone[gone < ends.oldest]
        if gone.size:
            return _WRONG_STARTS, int(gone.min())
        left -= np.bincount(ended - ends.oldest, minlength=left.size)
        wrong = left < np.bincount(flying - ends.oldest, minlength=left.size)
        if wrong.any():
            return _WRONG_STARTS, ends.oldest + int(np.argmax(wrong))
        left[-1] -= chunk.step_started[-1] if n_steps else chunk.started_on_0
        keep = int(np.argmax(np.append(left[:-1] != 0, True)))
        used = chunk.step[chunk.status == _USED]
        self._ends = _Ends(
            ends.n_chunks + 1,
            ends.known_from,
            ends.oldest + keep,
            left[keep:],
            float(chunk.arrive_time[-1]) if chunk.arrive_time.size else ends.arrive,
            float(before[-1]),
            int(used[-1]) if used.size else ends.step,
        )
        return 0, -1


def _row_faults(chunk: ScheduleChunk, ends: _Ends, first: int, after: int) -> list[NDArray[np.bool_]]:
    """Faults of rows that need no other row's step."""
    arrive = np.concatenate([[ends.arrive], chunk.arrive_time])
    return [
        (chunk.client < 0) | (chunk.client >= chunk.n_clients),
        chunk.status >= _N_STATUS,
        chunk.version < 0,
        (chunk.step >= 0) != (chunk.status == _USED),
        (chunk.step >= 0) & ((chunk.step < first) | (chunk.step >= after)),
        ~np.isfinite(chunk.arrive_time),
        arrive[1:] < arrive[:-1],
    ]


def _entry_faults(chunk: ScheduleChunk, ends: _Ends, first: int, after: int) -> list[NDArray[np.bool_]]:
    """How rows enter steps, where each by itself is sound."""
    n_rows, version, staleness = chunk.step.size, chunk.version, chunk.staleness
    is_used = chunk.status == _USED
    used = np.flatnonzero(is_used)
    step = chunk.step[used]
    back, late = np.zeros(n_rows, np.bool_), np.zeros(n_rows, np.bool_)
    back[used] = step < np.concatenate([[ends.step], step[:-1]])[: step.size]
    late[used] = chunk.arrive_time[used] > chunk.step_time[step - first]
    # the versions that the server had before and after everything that happened at the arrival's time
    low = first + np.searchsorted(chunk.step_time, chunk.arrive_time, side="left")
    high = first + np.searchsorted(chunk.step_time, chunk.arrive_time, side="right")
    exists = (version <= after) & (staleness <= after - np.minimum(version, after))
    at = version + np.where(exists, staleness, 0)
    return [
        back,
        late,
        staleness < 0,
        is_used & (staleness != chunk.step - version),
        ~is_used & (~exists | (at < low) | (at > high)),
        is_used & (version > np.maximum(high, first)),
    ]
