"""`uniform_arrivals`: Assumption 1 of the paper as a schedule."""

from __future__ import annotations

from importlib import import_module
from typing import Literal

import numpy as np

from .._base.checks import choice, count, seed_of
from ..backends.python.philox import (
    STREAM_CLIENT_SELECTION,
    key_words,
    multiply_high,
    philox_words,
)
from ..backends.python.resolver import Columns
from .columns import Status, no_flight
from .log import _per_client
from .plan import _ROW_NAMES, backend_name, new_columns
from .schedule import Schedule, resolved

UNIFORM_ARRIVALS = "uniform_arrivals"  # the kind of source in the description of such a schedule


def uniform_arrivals(
    n_clients: int,
    buffer_size: int,
    max_staleness: int,
    server_steps: int,
    seed: int = 0,
    staleness: Literal["uniform", "max"] = "uniform",
) -> Schedule:
    """The paper's Assumption 1: clients uniform with replacement, staleness bounded by `max_staleness`.

    The k-th arrival of step t comes from a uniform client, whose version is uniform between the newest of 0,
    t - max_staleness and the version just after its previous arrival, and t; or that lowest one ("max"). Time counts
    arrivals.
    """
    n, size = count("n_clients", n_clients), count("buffer_size", buffer_size)
    bound, steps = count("max_staleness", max_staleness, low=0), count("server_steps", server_steps)
    choice("staleness", staleness, ("uniform", "max"))
    key = seed_of(seed)
    columns = new_columns(steps * size, steps)
    if backend_name() == "cpp":
        import_module("fedbuff._core").uniform_arrivals(n, size, bound, staleness == "max", key, columns)
    else:
        _fill_uniform_arrivals(n, size, bound, staleness == "max", key, columns)
    made = Schedule(
        **{name: getattr(columns, name) for name in _ROW_NAMES},
        step_time=columns.step_time,
        step_started=np.append(columns.started[1:], 0),
        **no_flight(),
        n_clients=n,
        buffer_size=size,
        concurrency=0,
        seed=seed,
        started_on_0=int(columns.started[0]),
        description={
            "source": {"kind": UNIFORM_ARRIVALS, "max_staleness": bound, "staleness": staleness},
            "strategy": {"kind": "fedbuff", "buffer_size": size},
            "server_steps": steps,
            "seed": seed,
        },
        copy=False,
    )
    return resolved(made)


def _fill_uniform_arrivals(n: int, size: int, bound: int, oldest: bool, seed: int, columns: Columns) -> None:
    """The rows of csrc/core/uniform_arrivals.cpp, column by column."""
    k0, k1 = key_words(seed)
    index = np.arange(len(columns.client), dtype=np.uint64)
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    words = philox_words(k0, k1, index & mask, index >> shift, np.uint64(0), STREAM_CLIENT_SELECTION)
    client = multiply_high((words[0] << shift) | words[1], np.uint64(n)).astype(np.int64)
    row = index.astype(np.int64)
    step = row // size
    task, previous = _per_client(client)
    after_previous = np.where(previous >= 0, (previous + 1) // size, 0)
    version = np.maximum(np.maximum(step - bound, 0), after_previous)
    if not oldest:
        span = (step - version + 1).astype(np.uint64)
        version = version + multiply_high((words[2] << shift) | words[3], span).astype(np.int64)
    columns.client[:] = client
    columns.task[:] = task
    columns.version[:] = version
    columns.step[:] = step
    columns.staleness[:] = step - version
    columns.start_time[:] = np.maximum(version * size, previous + 1)
    columns.arrive_time[:] = row + 1
    columns.status[:] = Status.USED
    steps = len(columns.step_time)
    columns.step_rows[:] = np.arange(1, steps + 1) * size
    columns.step_time[:] = columns.step_rows
    columns.started[:] = np.bincount(version, minlength=steps)
