"""`epsilon`: the privacy that a schedule spends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.checks import number
from .._base.files import optional
from .._rule.secure_values import (
    Gaussian,
)
from .._schedule.columns import Status
from .._schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Spent:
    """What a schedule's updates tell of the client that they tell most of: (epsilon, delta)-differential privacy.

    client     whose updates weigh most
    updates    how many of its updates were used
    buffers    in how many buffers
    releases   how often sums of those buffers were released: more often where a replay was killed and went on
    simulated  the noise is a function of the seed: this is what noise of the operating system would have spent, and
               nothing is private
    """

    epsilon: float
    delta: float
    client: int
    updates: int
    buffers: int
    releases: int
    simulated: bool

    def __str__(self) -> str:
        text = f"epsilon {self.epsilon:.4g} at delta {self.delta:g}: client {self.client}, {self.releases} releases"
        return f"{text}; simulated noise: whoever knows the seed subtracts it" if self.simulated else text


def epsilon(
    schedule: Schedule, privacy: Gaussian, *, delta: float = 1e-5, releases: NDArray[np.int64] | None = None
) -> Spent:
    """The privacy loss of a client, by Google's dp-accounting, for the models of all server steps of a schedule.

    It composes one Gaussian mechanism for each buffer that the client is in; c updates in one buffer count as an update
    c times as long. Nothing is gained from sampling: who arrives is decided by delays, not by chance that anybody
    promised, and the schedule is taken for public. docs/security.md lists all that is assumed. With source="simulated"
    the numbers are those of real noise, and `simulated` says that there was none.

    releases  `Result.releases`: how often each step was made, where a replay was killed and went on; steps beyond it
              were not made. None: every step once
    """
    if not isinstance(privacy, Gaussian):
        raise TypeError(f"privacy: expected fedbuff.secure.Gaussian, got {type(privacy).__name__}")
    number("delta", delta, high=1.0, open_low=True)
    simulated = privacy.source == "simulated"
    used = schedule.status == Status.USED
    pairs, times = np.unique(
        np.stack([schedule.client[used].astype(np.int64), schedule.step[used]]), axis=1, return_counts=True
    )
    made = releases_of(schedule.n_steps, releases)[pairs[1]]
    pairs, times, made = pairs[:, made > 0], times[made > 0], made[made > 0]
    if times.size == 0:
        return Spent(0.0, delta, -1, 0, 0, 0, simulated)
    weight = np.bincount(pairs[0], made * times.astype(np.float64) ** 2)
    client = int(np.argmax(weight))
    mine = pairs[0] == client
    counts = int(times[mine].sum()), int(np.count_nonzero(mine)), int(made[mine].sum())
    if privacy.noise_multiplier == 0:
        return Spent(math.inf, delta, client, *counts, simulated)
    accounting = optional("dp_accounting", "privacy", "epsilon")
    # Gaussian mechanisms compose to one, with squared sensitivities added: exactly, also where each one depends on the
    # results of those before.
    spent = accounting.get_epsilon_gaussian(privacy.noise_multiplier / math.sqrt(weight[client]), delta)
    return Spent(float(spent), delta, client, *counts, simulated)


def releases_of(n_steps: int, releases: Any) -> NDArray[np.int64]:
    """How often each step of a schedule was released."""
    if releases is None:
        return np.ones(n_steps, np.int64)
    given = np.asarray(releases)
    if given.ndim != 1 or not np.issubdtype(given.dtype, np.integer):
        raise TypeError(f"releases: expected whole numbers, one for each server step, got {given.dtype} {given.shape}")
    if given.size and int(given.min()) < 0:
        raise ValueError(f"releases: expected numbers >= 0, got {given.min()}")
    if given.size > n_steps:
        raise ValueError(f"releases: expected at most {n_steps}, as many as the schedule has steps, got {given.size}")
    made = np.zeros(n_steps, np.int64)
    made[: given.size] = given
    return made
