"""What is known in closed form, within 1 % or to rounding; and faults that these checks must see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from checks import CHECKS, Train, train
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbuff as fb


@pytest.mark.parametrize("check", CHECKS)
def test_closed_forms(check: Any) -> None:
    check(train)


# The test of the tests


def beta_times_4(problem: Any, schedule: fb.Schedule, local: Any, **options: Any) -> fb.Replay:
    return train(
        problem, schedule, local, strategy=fb.FedBuff(schedule.buffer_size, 4 / schedule.buffer_size), **options
    )


def staleness_ignored(problem: Any, schedule: fb.Schedule, local: Any, **options: Any) -> fb.Replay:
    """Every client starts from the server's present model."""
    state = schedule._state()
    used = schedule.step >= 0
    version = np.where(used, schedule.step, schedule.version)
    started = np.bincount(np.append(version, schedule.in_flight_version), minlength=schedule.n_steps + 1)
    state |= {"version": version, "staleness": np.where(used, 0, schedule.staleness)}
    state |= {"started_on_0": int(started[0]), "step_started": started[1:]}
    return train(problem, fb.Schedule(**state), local, **options)


def one_local_step_more(problem: Any, schedule: Any, local: fb.LocalSGD, **options: Any) -> fb.Replay:
    return train(problem, schedule, replace(local, steps=local.steps + 1), **options)


def noise_times_3(problem: fb.Quadratic, schedule: Any, local: Any, **options: Any) -> fb.Replay:
    spec = problem._spec
    louder = fb.Quadratic(spec.center, spec.curvature[0, 0], noise_variance=9 * spec.noise_variance)  # type: ignore[index]
    return train(louder, schedule, local, **options)


STATIONARY = {"check_stationary_variance", "check_stationary_gradient"}
SEEN_BY = {
    beta_times_4: {*STATIONARY, "check_recursion_along_a_schedule", "check_stability_limit"},
    staleness_ignored: {"check_recursion_along_a_schedule", "check_stability_limit"},
    one_local_step_more: {*STATIONARY, "check_recursion_along_a_schedule", "check_stability_limit"},
    noise_times_3: {*STATIONARY, "check_recursion_along_a_schedule"},
}


@pytest.mark.parametrize("fault", SEEN_BY, ids=lambda fault: fault.__name__)
def test_a_fault_is_seen(fault: Train) -> None:
    failing = set()
    for check in CHECKS:
        try:
            check(fault)
        except AssertionError:
            failing.add(check.__name__)
    assert failing == SEEN_BY[fault]


# Staleness


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 12), st.integers(2, 40), st.integers(0, 10**6), st.sampled_from([None, 5]))
def test_a_buffer_divides_the_staleness(size: int, n: int, seed: int, concurrency: int | None) -> None:
    """On the same arrivals, the largest staleness with buffer K is at most ceil(that with buffer 1 / K)."""
    delays = fb.DelayModel(n, compute=fb.LogNormal(0.0, 1.0), client_speed=fb.Exponential(1.0))
    busy = None if concurrency is None else min(concurrency, n)
    one = fb.schedule(delays, fb.FedBuff(1), busy, arrivals=300, seed=seed)
    buffered = fb.schedule(delays, fb.FedBuff(size), busy, arrivals=300, seed=seed)
    np.testing.assert_array_equal(one.client, buffered.client)
    np.testing.assert_array_equal(one.arrive_time, buffered.arrive_time)
    assert (buffered.staleness <= -(-one.staleness // size)).all()
    assert buffered.staleness.max() <= -(-one.staleness.max() // size)


@pytest.mark.parametrize("size", [1, 7])
def test_the_staleness_identity(size: int) -> None:
    """sum of staleness + ages in flight = (C - 1) V exactly; so the mean staleness tends to (C - 1) / K."""
    C, V = 9, 3000
    delays = fb.DelayModel(30, compute=fb.Exponential(1.0))
    made = fb.schedule(delays, fb.FedBuff(size), C, server_steps=V, seed=0)
    assert made.staleness.sum() + (V - made.in_flight_version).sum() == (C - 1) * V
    assert made.staleness.mean() == pytest.approx((C - 1) / size, rel=0.01)
