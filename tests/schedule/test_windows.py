"""Windows of availability, rounds without clients, ticks and counts, on every backend; and calls that hear signals."""

from __future__ import annotations

import functools
import importlib
import math
import signal
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends
from fedbuff._base.checks import as_written, share_of
from fedbuff._rule.strategies import FedAsync, FedAvg, FedBuff
from fedbuff._schedule import resolve as _resolve
from fedbuff._schedule.options import ScheduleOptions
from fedbuff._study.data import Rows, hold_out
from fedbuff.backends.python import resolver as reference
from fedbuff.backends.spec import new_columns


def use_backend(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module = importlib.import_module(f"fedbuff.backends.{name}")
    monkeypatch.setattr(backends, "current", lambda: module)


@pytest.fixture(params=["cpp", "numba", "reference"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every event loop in turn."""
    if request.param == "numba":
        pytest.importorskip("numba")
    use_backend(monkeypatch, request.param)
    yield request.param


def arrivals(windows: fb.Availability, compute: Any, tasks: int = 1, **options: Any) -> fb.Schedule:
    """The first arrivals of one client or more, each always at work."""
    n = windows.n_clients
    trace = fb.Trace(np.arange(n), np.broadcast_to(compute, (n,)), availability=windows, **options)
    return fb.schedule(trace, FedAsync(0.5), arrivals=tasks)


# Windows that touch across the period


def test_windows_that_touch_across_the_period_are_one(backend: str) -> None:
    night = fb.Availability([0, 0], [22.0, 0.0], [24.0, 6.0], n_clients=1, period=24.0, policy="abort")
    made = arrivals(night, 5.0, 6, wait=[17.0])
    # The second starts at 39 of 54: away from 30 to 46.
    assert made.start_time.tolist()[:3] == [22.0, 46.0, 70.0]
    assert made.arrive_time.tolist()[:3] == [27.0, 51.0, 75.0]
    assert made.status.tolist() == [fb.Status.USED] * 6
    late = arrivals(night, 9.0, wait=[22.0])
    assert (late.arrive_time.tolist(), late.status.tolist()) == ([30.0], [fb.Status.FAILED])


def test_a_window_as_long_as_the_period_never_closes(backend: str) -> None:
    always = fb.Availability([0], [0.0], [0.1], n_clients=1, period=0.1, policy="abort")
    made = arrivals(always, 1.0, 50)
    assert made.status.tolist() == [fb.Status.USED] * 50
    assert made.arrive_time.tolist() == list(range(1, 51))


def test_there_is_no_gap_between_periods() -> None:
    always = fb.Availability([0], [0.0], [0.1], n_clients=1, period=0.1)
    edges = np.arange(1, 5000) * 0.1
    times = np.concatenate([edges, np.nextafter(edges, 0.0), np.arange(5000) * 0.1 + 0.1])
    assert always.available(0, times).all()


def test_available_and_the_event_loop_agree_at_the_edges() -> None:
    windows = fb.Availability([0, 0], [0.0, 0.2], [0.1, 0.3], n_clients=1, period=0.3)
    model = fb.DelayModel(n_clients=1, availability=windows)
    plan = _resolve.Request(model, FedBuff(1), ScheduleOptions(server_steps=1), 0).plan
    edges = np.concatenate([np.arange(500) * 0.3 + part for part in (0.0, 0.1, 0.2)])
    times = np.concatenate([edges, np.nextafter(edges, np.inf), np.nextafter(edges, 0.0)])
    want = [reference.available(plan, 0, float(time)) for time in times]
    assert windows.available(0, times).tolist() == want


# Pauses


def walked(windows: list[tuple[float, float]], period: float | None, start: float, duration: float) -> Fraction | float:
    """When paused work is done, window by window, in exact arithmetic: what a pause means."""
    left, base, time = Fraction(duration), Fraction(0), Fraction(start)
    while True:
        for begin, end in windows:
            opens, closes = max(base + Fraction(begin), time), base + Fraction(end)
            if closes <= opens:
                continue
            if left <= closes - opens:
                return opens + left
            left -= closes - opens
        if period is None:
            return math.inf
        base += Fraction(period)


@functools.cache
def pauses(grid: float) -> tuple[fb.Availability, list[float], list[float]]:
    """Windows of many clients on multiples of 1 / grid, a duration for each, and when work begun at 0 is done."""
    rng = np.random.default_rng(7)
    n = 100
    owner, begin, end, duration, want = [], [], [], [], []
    periods = rng.integers(9, 30, n) / grid
    for client in range(n):
        places = rng.choice(int(periods[client] * grid + 0.5) + 1, 2 * rng.integers(1, 4), replace=False)
        edges = (np.sort(places) / grid).tolist()
        mine = list(zip(edges[::2], edges[1::2], strict=True))
        owner += [client] * len(mine)
        begin += edges[::2]
        end += edges[1::2]
        inside = 0.0 if grid == 8.0 else 0.037  # of a window: a close that differs in the last place may be missed
        duration.append(float(rng.choice([1.0, 5.0, 50.0]) * rng.integers(1, 40) / grid + inside))
        want.append(float(walked(mine, float(periods[client]), 0.0, duration[-1])))
    windows = fb.Availability(owner, begin, end, n_clients=n, period=periods, policy="pause")
    return windows, duration, want


@pytest.mark.parametrize("grid", [8.0, 10.0])
def test_a_pause_is_what_walking_gives(backend: str, grid: float) -> None:
    """Exactly where the times are multiples of 1/8; to a few units in the last place where they are of 1/10."""
    windows, duration, want = pauses(grid)
    made = arrivals(windows, duration, len(want), end="stop")
    got = np.empty(len(want))
    got[made.client] = made.arrive_time
    assert made.n_arrivals == len(want)
    np.testing.assert_allclose(got, want, rtol=0 if grid == 8.0 else 16 * np.finfo(float).eps, atol=0)


def test_a_pause_over_windows_that_end_never_ends(backend: str) -> None:
    windows = fb.Availability([0, 0, 1], [0.0, 2.0, 0.0], [1.0, 3.0, 9.0], n_clients=2, policy="pause")
    made = fb.schedule(fb.Trace([0, 1], [2.5, 4.0], availability=windows), FedBuff(1), max_time=100.0)
    assert made.client.tolist() == [1, 1]
    assert made.in_flight_client.tolist() == [0, 1]


@pytest.mark.parametrize("duration", [1e9, 1e9 + 0.25, 2.0**40, 1e300])
def test_a_long_pause_takes_whole_periods_at_once(backend: str, duration: float) -> None:
    windows = fb.Availability([0], [0.25], [0.75], n_clients=1, period=1.0, policy="pause")
    cycles = math.ceil(duration / 0.5) - 1
    want = cycles + 0.25 + (duration - cycles * 0.5)
    assert arrivals(windows, duration).arrive_time[0] == want


# Long gaps between events


@pytest.mark.parametrize("policy", ["wait", "pause", "abort"])
def test_windows_that_pass_unseen_are_not_walked(backend: str, policy: Any) -> None:
    n = 12
    windows = fb.Availability(
        np.arange(n), np.arange(n) / 16, np.arange(n) / 16 + 0.25, n_clients=n, period=1.0, policy=policy
    )
    trace = fb.Trace(np.arange(n), np.full(n, 0.125), wait=np.full(n, 1e9), availability=windows)
    made = fb.schedule(trace, FedBuff(3), 4, arrivals=40)
    assert made.n_arrivals == 40
    assert windows.available(made.client, made.start_time).all()


@pytest.mark.parametrize("policy", ["wait", "pause", "abort"])
@pytest.mark.parametrize("time", [1e17, 1e300])
def test_times_that_cannot_tell_windows_apart(policy: Any, time: float, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = fb.Availability([0, 1, 2], [0.2, 0.3, 0.1], [0.7, 0.8, 0.9], n_clients=3, period=1.0, policy=policy)
    trace = fb.Trace([0, 1, 2], [3.0, 4.0, 5.0], wait=[time] * 3, availability=windows)
    found = []
    for backend in ("cpp", "reference"):
        use_backend(monkeypatch, backend)
        found.append([fb.schedule(trace, FedBuff(2), concurrency, arrivals=12) for concurrency in (None, 2)])
    assert found[0] == found[1]


@pytest.mark.parametrize("max_wait", [1e-6, 1e-12, 1e-300])
def test_an_empty_buffer_lets_its_ticks_pass_at_once(backend: str, max_wait: float) -> None:
    trace = fb.Trace([0, 1], [1e6, 3.5e6])
    made = fb.schedule(trace, FedBuff(9, max_wait=max_wait), arrivals=6)
    assert made.step.tolist() == [0, 1, 2, 3, 4, -1]
    assert np.all(made.step_time - made.arrive_time[:5] <= max_wait)
    again = fb.schedule(made.arrival_log(), FedBuff(9, max_wait=max_wait))
    np.testing.assert_array_equal(again.step_time[:5], made.step_time)


def test_ticks_count_from_the_last_step() -> None:
    for base, wait, now in [(0.0, 0.75, 2.0), (0.0, 0.5, 2.0), (4.0, 0.5, 4.0), (4.0, 3.0, 5.0), (0.1, 0.1, 0.7)]:
        ticks = [base + k * wait for k in range(1, 20)]
        assert reference.next_tick(base, wait, now, False) == next(tick for tick in ticks if tick >= now)
        assert reference.next_tick(base, wait, now, True) == next(tick for tick in ticks if tick > now)


# Rounds


@pytest.mark.parametrize("policy", ["wait", "pause", "abort"])
@pytest.mark.parametrize("end", [{"server_steps": 1000}, {"arrivals": 1000}, {"max_time": 1e6}])
def test_rounds_end_when_all_windows_have_ended(backend: str, policy: Any, end: dict[str, Any]) -> None:
    n = 30
    windows = fb.Availability(np.arange(n), np.zeros(n), np.linspace(2.0, 6.0, n), n_clients=n, policy=policy)
    model = fb.DelayModel(n_clients=n, compute=fb.Uniform(0.5, 1.5), availability=windows)
    made = fb.schedule(model, FedAvg(clients_per_round=6, over_selection=0.5), seed=1, **end)
    made.check()
    assert 3 <= made.n_steps < 40
    assert made.n_arrivals < 400
    assert made.in_flight_client.size == 0
    # FedBuff ends there too.
    assert fb.schedule(model, FedBuff(6), 9, seed=1, **end).end_time < 12.0


def test_rounds_of_clients_that_never_come_are_empty(backend: str) -> None:
    windows = fb.Availability([0], [0.0], [1.0], n_clients=5)
    model = fb.DelayModel(n_clients=5, wait=fb.Constant(2.0), availability=windows)
    made = fb.schedule(model, FedAvg(clients_per_round=2), server_steps=10)
    made.check()
    assert made.n_steps == 0
    assert sorted(made.client.tolist()) == [0, 1, 2, 3, 4]
    assert set(made.status.tolist()) == {int(fb.Status.DISCARDED)}


# Counts


def test_shares_count_as_they_are_written() -> None:
    assert as_written(0.1) == as_written(np.float32(0.1)) == Fraction(1, 10)
    assert [share_of(share, n) for share, n in [(0.7, 45), (0.1, 15), (0.1, 14), (0.35, 90), (1.0, 7)]] == [
        *(32, 2, 1, 32, 7)
    ]


def test_rounds_start_as_many_as_the_decimals_say() -> None:
    def started(n: int, **options: Any) -> int:
        return fb.schedule(fb.DelayModel(n_clients=n), FedAvg(**options), server_steps=1).concurrency

    assert started(200, clients_per_round=100, over_selection=0.1) == 110
    assert started(200, clients_per_round=100, over_selection=0.14) == 114
    assert started(45, rate=0.7) == 32
    assert started(100, rate=0.29, over_selection=1.0) == 58
    assert [started(n, rate=0.1) for n in (1, 14, 15, 100)] == [1, 1, 2, 10]
    assert started(20, clients_per_round=19, over_selection=0.3) == 20


def test_a_share_of_rows_is_held_out_as_it_is_written() -> None:
    rows = Rows(np.zeros((45, 1)), np.zeros(45), None)
    kept, (_, test) = hold_out(rows, 0.7, 0)
    assert (len(kept.y), len(test)) == (13, 32)


# Signals


def test_a_call_of_the_resolver_is_short(backend: str) -> None:
    """Ctrl-C is heard between two calls, also while no row is written."""
    model = fb.DelayModel(n_clients=10, compute=fb.Constant(5.0))
    busy = _resolve.Request(model, FedBuff(1), ScheduleOptions(concurrency=4, arrivals=10**8), 0)
    columns = new_columns(1 << 18, 1 << 18)
    rows, _, reason = backends.current().make_resolver(busy.plan).run(columns)
    assert reason == reference.FULL
    assert 0 < rows <= 1 << 17
    lost = fb.Availability([0], [0.0], [1e-9], n_clients=10, period=1e9)
    idle = fb.DelayModel(n_clients=10, availability=lost)
    plan = _resolve.Request(idle, FedBuff(1), ScheduleOptions(arrivals=10, start_rate=1e6, in_flight="skip"), 0).plan
    resolver = backends.current().make_resolver(plan)
    calls = [resolver.run(columns) for _ in range(3)]
    assert [reason for _, _, reason in calls] == [reference.FULL] * 3
    assert sum(rows for rows, _, _ in calls) <= 1


class Stop(Exception):
    pass


def test_uniform_arrivals_hear_signals() -> None:
    from fedbuff import _core

    def stop(*_: Any) -> None:
        raise Stop

    columns = new_columns(4_000_000, 400_000)
    columns.client[-1] = -7
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    try:
        with pytest.raises(Stop):
            _core.uniform_arrivals(100, 10, 5, False, 0, columns)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert columns.client[-1] == -7


@pytest.mark.parametrize(("n", "size", "steps"), [(1, 1, 1), (7, 3, 50), (100, 700_000, 2), (5, 1, 600_000)])
def test_uniform_arrivals_in_pieces_are_the_same(
    n: int, size: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fb.uniform_arrivals(n, size, 3, steps, seed=4)
    use_backend(monkeypatch, "reference")
    assert fb.uniform_arrivals(n, size, 3, steps, seed=4) == made
