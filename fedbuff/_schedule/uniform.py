"""`uniform_arrivals`: Assumption 1 of the paper as a schedule."""

from __future__ import annotations

from typing import Literal

import numpy as np

from .. import backends
from .._base.checks import choice, count, seed_of
from ..backends.spec import ROW_NAMES, new_columns
from .columns import no_flight
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
    backends.current().uniform_arrivals(n, size, bound, staleness == "max", key, columns)
    made = Schedule(
        **{name: getattr(columns, name) for name in ROW_NAMES},
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
