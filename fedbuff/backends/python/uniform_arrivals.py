"""Assumption 1 of the paper as a schedule's columns: the specification of csrc/core/schedule/uniform_arrivals.cpp."""

from __future__ import annotations

import numpy as np

from ..._base.arrays import number_by_client
from ..spec import Columns
from .philox import STREAM_CLIENT_SELECTION, key_words, multiply_high, philox_words

__all__ = ["uniform_arrivals"]

_USED = 0


def uniform_arrivals(
    n_clients: int, buffer_size: int, max_staleness: int, oldest: bool, seed: int, columns: Columns
) -> None:
    """Fills columns of buffer_size rows for every step; `oldest`: every version is the oldest that is allowed."""
    k0, k1 = key_words(seed)
    index = np.arange(len(columns.client), dtype=np.uint64)
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    words = philox_words(k0, k1, index & mask, index >> shift, np.uint64(0), STREAM_CLIENT_SELECTION)
    client = multiply_high((words[0] << shift) | words[1], np.uint64(n_clients)).astype(np.int64)
    row = index.astype(np.int64)
    step = row // buffer_size
    task, previous = number_by_client(client)
    after_previous = np.where(previous >= 0, (previous + 1) // buffer_size, 0)
    version = np.maximum(np.maximum(step - max_staleness, 0), after_previous)
    if not oldest:
        span = (step - version + 1).astype(np.uint64)
        version = version + multiply_high((words[2] << shift) | words[3], span).astype(np.int64)
    columns.client[:] = client
    columns.task[:] = task
    columns.version[:] = version
    columns.step[:] = step
    columns.staleness[:] = step - version
    columns.start_time[:] = np.maximum(version * buffer_size, previous + 1)
    columns.arrive_time[:] = row + 1
    columns.status[:] = _USED
    steps = len(columns.step_time)
    columns.step_rows[:] = np.arange(1, steps + 1) * buffer_size
    columns.step_time[:] = columns.step_rows
    columns.started[:] = np.bincount(version, minlength=steps)
