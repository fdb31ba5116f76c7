"""Availability and arrival logs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbuff as fb


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_available_is_the_definition(data) -> None:
    n = data.draw(st.integers(1, 4))
    rows, periods = [], data.draw(st.lists(st.sampled_from([20.0, 24.5, 30.0]), min_size=n, max_size=n))
    for client in range(n):
        edges = sorted(data.draw(st.sets(st.integers(0, 20), max_size=8)))
        rows += [(client, float(a), float(b)) for a, b in zip(edges[::2], edges[1::2], strict=False)]
    rows = data.draw(st.permutations(rows))
    repeat = data.draw(st.booleans())
    windows = fb.Availability(
        np.array([r[0] for r in rows], dtype=np.int64),
        np.array([r[1] for r in rows]),
        np.array([r[2] for r in rows]),
        n_clients=n,
        period=periods if repeat else None,
    )
    for client in range(n):
        times = np.arange(0.0, 70.0, 0.5)
        at = np.fmod(times, periods[client]) if repeat else times
        wanted = [any(c == client and a <= t < b for c, a, b in rows) for t in at]
        assert windows.available(client, times).tolist() == wanted


def test_touching_windows_are_joined_and_overlaps_refused() -> None:
    joined = fb.Availability([0, 0, 1], [2.0, 0.0, 2.0], [3.0, 2.0, 4.0], n_clients=2)
    assert joined.offsets.tolist() == [0, 1, 2]
    assert joined.begin.tolist() == [0.0, 2.0]
    assert joined.end.tolist() == [3.0, 4.0]
    with pytest.raises(fb.TraceError, match=r"^row 1: client 0: the window from 1.5 overlaps"):
        fb.Availability([0, 0], [1.5, 0.0], [3.0, 2.0], n_clients=1)


def test_period_is_one_number_where_it_can_be() -> None:
    assert fb.Availability([0], [0.0], [1.0], n_clients=2, period=5).period == 5.0
    assert fb.Availability([0], [0.0], [1.0], n_clients=2, period=[5.0, 5.0]).period == 5.0
    assert fb.Availability([0], [0.0], [1.0], n_clients=2, period=[5.0, 6.0]).period.tolist() == [5.0, 6.0]


def test_no_windows_at_all() -> None:
    never = fb.Availability(np.zeros(0, int), [], [], n_clients=3)
    assert not never.available(np.arange(3), 1.0).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fb.Availability([0], [1.0], [1.0], n_clients=1), "row 1: the window ends at 1.0, not after"),
        (lambda: fb.Availability([0, 2], [0, 0], [1, 1], n_clients=2), "row 2: client 2 is unknown"),
        (lambda: fb.Availability([0], [np.nan], [1.0], n_clients=1), "row 1: begin is NaN"),
        (lambda: fb.Availability([0], [0.0], [9.0], n_clients=1, period=8.0), "row 1: the window ends at 9.0, after"),
        (
            lambda: fb.Availability([0], [0.0], [1.0], n_clients=1, period=0.0),
            "period: expected positive, finite numbers",
        ),
        (lambda: fb.Availability([0], [0.0], [1.0], n_clients=1, policy="sleep"), "policy: expected one of"),
    ],
)
def test_bad_windows_are_refused(make, message) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value).startswith(message)


def test_log_keeps_order_and_checks_it() -> None:
    log = fb.ArrivalLog(["b", "a"], [1.0, 2.0], version=[0, 1], start_time=[0.0, 1.5])
    assert log.client.tolist() == [1, 0]
    assert log.client_ids.tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: fb.ArrivalLog([0, 0], [2.0, 1.0], version=[0, 0]),
            "row 2: arrive_time 1.0 is before the row above, 2.0",
        ),
        (lambda: fb.ArrivalLog([0], [1.0], start_time=[2.0]), "row 1: start_time 2.0 is after arrive_time 1.0"),
        (lambda: fb.ArrivalLog([0, 0], [1, 2], version=[0, 2]), "row 2: version 2 does not exist yet: 1 arrivals came"),
        (lambda: fb.ArrivalLog([0], [1.0], version=[-1]), "row 1: version -1 is negative"),
        (
            lambda: fb.ArrivalLog([0, 1, 2], [1, 5, 6], version=[0, 1, 0], start_time=[0, 2, 3]),
            "row 3: version 0 started at 3.0, when a newer version",
        ),
        (lambda: fb.ArrivalLog([0, 1], [1.0, np.nan], version=[0, 0]), "row 2: arrive_time is NaN"),
        (lambda: fb.ArrivalLog([0, 7], [1.0, 2.0], version=[0, 0], clients=2), "row 2: client 7 is unknown"),
        (lambda: fb.ArrivalLog([0], [1.0]), "version, start_time: expected one of them"),
    ],
)
def test_bad_logs_are_refused(make, message) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value).startswith(message)


def test_versions_against_a_buffer_size() -> None:
    log = fb.ArrivalLog([0, 1, 2, 0], [1, 2, 3, 4], version=[0, 0, 1, 1])
    log.check_versions(2)
    with pytest.raises(fb.TraceError, match=r"row 3: version 1 does not exist yet: 2 arrivals make 0 server steps"):
        log.check_versions(3)
