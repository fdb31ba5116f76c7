"""The compiled event loop against the readable one, row by row, over traces made to collide."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedbuff as fb
from fedbuff import backends
from fedbuff._rule.strategies import FedAsync, FedAvg, FedBuff
from fedbuff._schedule import resolve as _resolve
from fedbuff._schedule.options import ScheduleOptions
from fedbuff._schedule.plan import Request
from fedbuff.backends.python import event_loop
from fedbuff.backends.python import resolver as resolver_rules
from fedbuff.backends.spec import Plan

COLUMNS = [
    *("client", "task", "version", "step", "staleness", "start_time", "arrive_time", "status", "step_time"),
    *("step_started", "in_flight_client", "in_flight_task", "in_flight_version", "in_flight_start_time"),
]
# Few distinct values, zero among them: ties everywhere.
TIMES = st.sampled_from([0.0, 0.0, 0.5, 1.0, 1.0, 1.5, 2.0, 3.25])
EXAMPLES = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def assert_same(got: fb.Schedule, want: fb.Schedule) -> None:
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name), err_msg=name)
    assert got == want


def resolved_by(backend: str, call: Callable[[], Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        module = importlib.import_module(f"fedbuff.backends.{backend}")
        patch.setattr(backends, "current", lambda: module)
        try:
            return call()
        except ValueError as error:
            return str(error)


def compare(source: Any, strategy: Any, concurrency: int | None = None, **options: Any) -> fb.Schedule | None:
    """The schedule, after C++ and the oracle have agreed on it; None where both refuse it alike."""
    with pytest.MonkeyPatch.context() as patch:
        # A trace in which nothing ever arrives must not run for ten million events in Python.
        made = _resolve.Request._make_plan
        patch.setattr(_resolve.Request, "_make_plan", lambda self, src: made(self, src)._replace(stall_limit=300))
        want = resolved_by("reference", lambda: fb.schedule(source, strategy, concurrency, **options))
        got = resolved_by("cpp", lambda: fb.schedule(source, strategy, concurrency, **options))
        if isinstance(want, str) or isinstance(got, str):
            assert got == want
            return None
        assert_same(got, want)
        for chunk in (1, 7):
            chunks = list(fb.iter_schedule(source, strategy, concurrency, chunk=chunk, **options))
            for name in COLUMNS:
                parts = [getattr(part, name) for part in chunks]
                np.testing.assert_array_equal(np.concatenate(parts), getattr(got, name), err_msg=f"{name}, {chunk}")
            assert chunks[0].started_on_0 == got.started_on_0
    got.check()
    return got


@st.composite
def availabilities(draw: Any, n: int) -> fb.Availability:
    client, begin, end = [], [], []
    for i in range(n):
        edges = sorted(draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 2.5, 4.0, 5.0]), max_size=4, unique=True)))
        for a, b in zip(edges[::2], edges[1::2], strict=False):
            client.append(i)
            begin.append(a)
            end.append(b)
    period = draw(st.sampled_from([None, 5.0, 6.1]))
    policy = draw(st.sampled_from(["wait", "pause", "abort"]))
    return fb.Availability(np.array(client, np.int64), begin, end, n_clients=n, period=period, policy=policy)


@st.composite
def traces(draw: Any, windows: bool = False) -> fb.Trace:
    n = draw(st.integers(1, 6))
    sizes = [draw(st.integers(1, 4)) for _ in range(n)]
    rows = sum(sizes)
    column = st.lists(TIMES, min_size=rows, max_size=rows)
    end = draw(st.sampled_from(["wrap", "wrap", "stop"]))
    return fb.Trace(
        np.repeat(np.arange(n), sizes),
        draw(column),
        wait=draw(column) if draw(st.booleans()) else None,
        download=draw(column) if draw(st.booleans()) else None,
        upload=draw(column) if draw(st.booleans()) else None,
        ok=draw(st.lists(st.sampled_from([True, True, True, False]), min_size=rows, max_size=rows)),
        clients=n,
        end=end,
        availability=draw(availabilities(n)) if windows else None,
    )


def buffers(draw: Any) -> Any:
    if draw(st.integers(0, 4)) == 0:
        return FedAsync(0.5, max_staleness=draw(st.sampled_from([None, 1])))
    return FedBuff(
        draw(st.integers(1, 4)),
        max_staleness=draw(st.sampled_from([None, 0, 1, 2])),
        max_wait=draw(st.sampled_from([None, None, 0.5, 0.7, 2.0])),
    )


def ends(draw: Any) -> dict[str, Any]:
    end = draw(st.sampled_from(["server_steps", "arrivals", "max_time"]))
    if end == "max_time":
        return {"max_time": draw(st.sampled_from([0.0, 3.0, 6.5])), "arrivals": 60}
    return {end: draw(st.integers(1, 25))}


@EXAMPLES
@given(st.data(), st.booleans())
def test_closed_loops(data: st.DataObject, windows: bool) -> None:
    trace = data.draw(traces(windows))
    concurrency = data.draw(st.sampled_from([None, *range(1, trace.n_clients + 1)]))
    timeout = data.draw(st.sampled_from([None, None, 1.0, 2.75]))
    options = ends(data.draw)
    compare(trace, buffers(data.draw), concurrency, seed=data.draw(st.integers(0, 3)), timeout=timeout, **options)


@EXAMPLES
@given(st.data(), st.booleans())
def test_rounds(data: st.DataObject, windows: bool) -> None:
    trace = data.draw(traces(windows))
    strategy = FedAvg(
        clients_per_round=data.draw(st.integers(1, trace.n_clients)),
        over_selection=data.draw(st.sampled_from([0.0, 0.3, 1.0])),
    )
    timeout = data.draw(st.sampled_from([None, 1.0, 2.75]))
    made = compare(trace, strategy, seed=data.draw(st.integers(0, 3)), timeout=timeout, **ends(data.draw))
    if made is not None:
        assert not made.staleness.any()


@EXAMPLES
@given(st.data(), st.booleans())
def test_open_loops(data: st.DataObject, windows: bool) -> None:
    compare(
        data.draw(traces(windows)),
        buffers(data.draw),
        seed=data.draw(st.integers(0, 3)),
        start_rate=data.draw(st.sampled_from([0.5, 1.0, 3.0])),
        start_process=data.draw(st.sampled_from(["constant", "poisson"])),
        in_flight=data.draw(st.sampled_from(["redraw", "skip", "allow"])),
        timeout=data.draw(st.sampled_from([None, 1.0])),
        **ends(data.draw),
    )


@EXAMPLES
@given(st.data(), st.booleans())
def test_distinct_clients(data: st.DataObject, windows: bool) -> None:
    trace = data.draw(traces(windows))
    n = trace.n_clients
    size = data.draw(st.integers(1, n))
    strategy = FedBuff(
        size,
        max_staleness=data.draw(st.sampled_from([None, None, 0, 1, 2])),
        max_wait=data.draw(st.sampled_from([None, None, 0.7, 2.0])),
        distinct_clients=True,
    )
    options: dict[str, Any] = {"seed": data.draw(st.integers(0, 3)), **ends(data.draw)}
    options["timeout"] = data.draw(st.sampled_from([None, None, 1.0, 2.75]))
    if data.draw(st.booleans()):
        options["start_rate"] = data.draw(st.sampled_from([0.5, 1.0, 3.0]))
        options["in_flight"] = data.draw(st.sampled_from(["redraw", "skip", "allow"]))
    else:
        options["concurrency"] = data.draw(st.sampled_from([None, *range(size, n + 1)]))
    made = compare(trace, strategy, **options)
    if made is not None:
        used = made.step >= 0
        pairs = set(zip(made.step[used].tolist(), made.client[used].tolist(), strict=True))
        assert len(pairs) == np.count_nonzero(used)


@settings(EXAMPLES, max_examples=400)
@given(st.data())
def test_waiting_slots_meet_windows_triggers_and_repeats(data: st.DataObject) -> None:
    """A trigger may let repeats arrive, and free their clients, between two events and between two openings."""
    trace = data.draw(traces(windows=True))
    n = trace.n_clients
    size = data.draw(st.integers(1, n))
    strategy = FedBuff(
        size,
        max_staleness=data.draw(st.sampled_from([None, None, 0, 1])),
        max_wait=data.draw(st.sampled_from([0.3, 0.7, 2.0])),
        distinct_clients=data.draw(st.sampled_from([True, True, False])),
    )
    options: dict[str, Any] = {"seed": data.draw(st.integers(0, 3)), **ends(data.draw)}
    options["timeout"] = data.draw(st.sampled_from([None, None, 1.0]))
    compare(trace, strategy, data.draw(st.integers(size, n)), **options)


def test_a_window_that_closes_after_a_trigger_is_open_until_then() -> None:
    """At 2 the trigger lets the repeat of client 0 arrive, who is there until 2.5; client 1 comes at 4."""
    windows = fb.Availability([0, 1], [0.0, 4.0], [2.5, 4.5], n_clients=2, period=5.0)
    trace = fb.Trace([0, 1], [0.5, 0.5], availability=windows)
    made = compare(trace, FedBuff(2, max_wait=2.0, distinct_clients=True), 2, arrivals=4)
    assert made is not None
    assert made.start_time.tolist() == [0.0, 0.5, 2.0, 4.0]


@pytest.mark.parametrize("name", ["max_wait", "period"])
@pytest.mark.parametrize("seconds", [1e-9, 1e-8, 1e-300])
def test_ticks_that_no_double_counts(name: str, seconds: float) -> None:
    """A tick of 1e-9 s after 1e7 s: k + 1 is k, and k ticks were never enough."""
    trace = fb.Trace(np.arange(3), [1e7, 1.5e7, 2.5e9])
    made = compare(trace, FedBuff(2, **{name: seconds}), 3, arrivals=12, max_time=1e11)
    assert made is not None
    assert (np.diff(made.step_time) >= 0).all()


def timing_fields(draw: Any, slots: int) -> dict[str, Any]:
    """Refill, stops and triggers of a FedBuff, in every mix that is not refused."""
    fields: dict[str, Any] = {"refill": draw(st.sampled_from(["arrival", "arrival", "step", *range(1, slots + 1)]))}
    fields |= draw(st.sampled_from([{}, {"stop_stale": 1}, {"stop_stale": 2}, {"stop_stale": 3}, {"restart": "step"}]))
    fields["trigger"] = draw(st.sampled_from(["buffer", "buffer", "every_client", "ringleader"]))
    if fields["trigger"] != "buffer":
        fields["per_client"] = draw(st.sampled_from([1.0, 1.0, 1.3, 2.0]))
    if fields["trigger"] != "ringleader":
        fields["period"] = draw(st.sampled_from([None, None, 0.3, 1.0, 2.5]))
        fields["max_wait"] = draw(st.sampled_from([None, None, 0.7, 2.0]))
    return fields


@settings(EXAMPLES, max_examples=250)
@given(st.data(), st.booleans())
def test_refill_stops_and_triggers(data: st.DataObject, windows: bool) -> None:
    trace = data.draw(traces(windows))
    concurrency = data.draw(st.sampled_from([None, *range(1, trace.n_clients + 1)]))
    slots = trace.n_clients if concurrency is None else concurrency
    fields = timing_fields(data.draw, slots)
    size = data.draw(st.integers(1, 4))
    if fields["trigger"] == "buffer" and size <= slots:
        fields["distinct_clients"] = data.draw(st.sampled_from([False, False, True]))
    strategy = FedBuff(size, max_staleness=data.draw(st.sampled_from([None, None, 0, 2])), **fields)
    options: dict[str, Any] = {"seed": data.draw(st.integers(0, 3)), **ends(data.draw)}
    if fields.get("period") is not None:
        options["max_time"] = data.draw(st.sampled_from([3.0, 6.5]))
    options["timeout"] = data.draw(st.sampled_from([None, None, 1.0, 2.75]))
    compare(trace, strategy, concurrency, **options)


@settings(EXAMPLES, max_examples=100)
@given(st.data())
def test_triggers_of_open_loops(data: st.DataObject) -> None:
    fields = timing_fields(data.draw, 1)
    fields = {name: fields[name] for name in ("period", "max_wait", "trigger", "per_client") if name in fields}
    options: dict[str, Any] = {"seed": data.draw(st.integers(0, 3)), **ends(data.draw)}
    if fields.get("period") is not None:
        options["max_time"] = data.draw(st.sampled_from([3.0, 6.5]))
    options["start_rate"] = data.draw(st.sampled_from([0.5, 1.0, 3.0]))
    options["in_flight"] = data.draw(st.sampled_from(["redraw", "skip", "allow"]))
    compare(data.draw(traces(True)), FedBuff(data.draw(st.integers(1, 4)), **fields), **options)


def selections(draw: Any, n: int, least: int) -> dict[str, Any]:
    """Which client is next, where at least so many may be."""
    options: dict[str, Any] = {"max_uses": draw(st.sampled_from([None, None, 1, 3]))}
    weights = np.array(draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, 5.0]), min_size=n, max_size=n)))
    names: list[Any] = ["uniform", "round_robin", "longest_idle"]
    if np.count_nonzero(weights) >= max(least, 1):
        names += [weights / weights.sum()] * 2
    options["selection"] = draw(st.sampled_from(names))
    return options


@settings(EXAMPLES, max_examples=200)
@given(st.data(), st.booleans())
def test_selections(data: st.DataObject, windows: bool) -> None:
    trace = data.draw(traces(windows))
    n = trace.n_clients
    options: dict[str, Any] = {"seed": data.draw(st.integers(0, 3)), **ends(data.draw)}
    kind = data.draw(st.sampled_from(["pool", "pool", "rounds", "open"]))
    strategy: Any = buffers(data.draw)
    if kind == "rounds":
        size = data.draw(st.integers(1, n))
        strategy = FedAvg(clients_per_round=size)
        options |= selections(data.draw, n, size)
    elif kind == "open":
        options |= selections(data.draw, n, 1) | {"start_rate": data.draw(st.sampled_from([0.5, 1.0, 3.0]))}
    else:
        options["concurrency"] = data.draw(st.integers(1, n))
        options |= selections(data.draw, n, options["concurrency"])
        strategy = FedBuff(2, **data.draw(st.sampled_from([{}, {"stop_stale": 2}, {"refill": "step"}])))
    compare(trace, strategy, **options)


@settings(EXAMPLES, max_examples=300)
@given(st.data(), st.booleans())
def test_queues(data: st.DataObject, windows: bool) -> None:
    trace = data.draw(traces(windows))
    n = trace.n_clients
    options: dict[str, Any] = {"seed": data.draw(st.integers(0, 3)), "queues": True, **ends(data.draw)}
    options["timeout"] = data.draw(st.sampled_from([None, None, 1.0, 2.75]))
    options |= selections(data.draw, n, 1)
    if isinstance(options["selection"], str) and options["selection"] == "longest_idle":
        options["selection"] = "uniform"
    fields: dict[str, Any] = {}
    if data.draw(st.integers(0, 3)) == 0:
        options["start_rate"] = data.draw(st.sampled_from([0.5, 1.0, 3.0]))
    else:
        options["concurrency"] = data.draw(st.integers(1, 2 * n))
        fields = timing_fields(data.draw, options["concurrency"])
        if fields.get("period") is not None:
            options["max_time"] = data.draw(st.sampled_from([3.0, 6.5]))
    strategy = FedBuff(
        data.draw(st.integers(1, 4)), max_staleness=data.draw(st.sampled_from([None, None, 0, 2])), **fields
    )
    compare(trace, strategy, **options)


def server_and_uplink(draw: Any) -> dict[str, Any]:
    times = [None, 0.5, 0.3, fb.Exponential(0.4), fb.Empirical([0.0, 0.5, 1.0])]
    return {
        "server_time": draw(st.sampled_from(times)),
        "uplink": draw(st.sampled_from([None, 1.0, 1.0, 0.7, 2.0, 2.5, 9.0])),
    }


@settings(EXAMPLES, max_examples=500)
@given(st.data(), st.booleans())
def test_server_times_and_shared_uplinks(data: st.DataObject, windows: bool) -> None:
    trace = data.draw(traces(windows))
    n = trace.n_clients
    options: dict[str, Any] = {"seed": data.draw(st.integers(0, 3)), **ends(data.draw), **server_and_uplink(data.draw)}
    options["timeout"] = data.draw(st.sampled_from([None, 1.0, 1.5, 2.75, 4.0]))
    kind = data.draw(st.sampled_from(["all", "pool", "pool", "queues", "queues", "rounds", "open"]))
    strategy: Any
    if kind == "rounds":
        strategy = FedAvg(
            clients_per_round=data.draw(st.integers(1, n)), over_selection=data.draw(st.sampled_from([0.0, 0.5]))
        )
    elif kind == "open":
        strategy = buffers(data.draw)
        options["start_rate"] = data.draw(st.sampled_from([0.5, 1.0, 3.0]))
        options["start_process"] = data.draw(st.sampled_from(["constant", "poisson"]))
        options["queues"] = data.draw(st.booleans())
        if not options["queues"]:
            options["in_flight"] = data.draw(st.sampled_from(["redraw", "skip", "allow"]))
    else:
        slots = n
        if kind != "all":
            slots = options["concurrency"] = data.draw(st.integers(1, n if kind == "pool" else 2 * n))
        options["queues"] = kind == "queues"
        fields = timing_fields(data.draw, slots)
        size = data.draw(st.integers(1, 4))
        if fields["trigger"] == "buffer" and size <= min(slots, n) and kind != "queues":
            fields["distinct_clients"] = data.draw(st.booleans())
        if fields.get("period") is not None:
            options["max_time"] = data.draw(st.sampled_from([3.0, 6.5]))
        strategy = FedBuff(size, max_staleness=data.draw(st.sampled_from([None, None, 0, 2])), **fields)
    compare(trace, strategy, **options)


@pytest.mark.parametrize("concurrency", [4, 30, 500])
@pytest.mark.parametrize("timing", [{}, {"stop_stale": 3}, {"refill": "step"}], ids=str)
def test_busy_servers_and_uplinks_of_many_tasks(timing: dict[str, Any], concurrency: int) -> None:
    model = fb.DelayModel(n_clients=600, compute=fb.Exponential(1.0), upload=fb.Pareto(1.5, 0.1))
    share = concurrency / 20
    for options in (
        {"server_time": fb.Exponential(0.5 / share)},
        {"uplink": share, "timeout": 9.0},
        {"uplink": share, "server_time": 0.5 / share},
        {"uplink": share, "server_time": fb.LogNormal(-1, 1), "queues": True, "selection": "round_robin"},
    ):
        compare_once(model, FedBuff(5, **timing), concurrency, arrivals=2500, **options)


@pytest.mark.parametrize("selection", ["round_robin", "longest_idle", "weighted"])
@pytest.mark.parametrize("concurrency", [5, 90, 100])
def test_selections_of_many_clients(selection: str, concurrency: int) -> None:
    weights = np.arange(1.0, 101.0) if selection == "weighted" else None
    chosen: Any = selection if weights is None else weights / weights.sum()
    model = fb.DelayModel(n_clients=100, compute=fb.Pareto(1.5, 0.1))
    compare_once(model, FedBuff(4), concurrency, arrivals=3000, selection=chosen)
    compare_once(model, FedBuff(4), concurrency, arrivals=1500, selection=chosen, max_uses=9)


@pytest.mark.parametrize("selection", ["uniform", "weighted"])
@pytest.mark.parametrize("concurrency", [30, 600])
def test_queues_of_many_tasks(selection: str, concurrency: int) -> None:
    weights = np.arange(1.0, 101.0) if selection == "weighted" else None
    chosen: Any = selection if weights is None else weights / weights.sum()
    model = fb.DelayModel(n_clients=100, wait=fb.Exponential(0.02), compute=fb.Pareto(1.5, 0.1))
    for timing in ({}, {"stop_stale": 90}, {"refill": "step"}):
        compare_once(model, FedBuff(4, **timing), concurrency, arrivals=3000, selection=chosen, queues=True)


# Each is a policy of its own, or one of two that meet.
TIMINGS: list[dict[str, Any]] = [
    {"refill": "step"},
    {"refill": 7},
    {"stop_stale": 3},
    {"restart": "step"},
    {"period": 0.4},
    {"period": 0.05, "restart": "step"},
    {"period": 0.4, "refill": "step"},
    {"stop_stale": 2, "refill": 5, "max_wait": 0.1},
    {"trigger": "every_client", "restart": "step"},
    {"trigger": "ringleader", "per_client": 1.2},
]


@pytest.mark.parametrize("concurrency", [None, 30, 500])
@pytest.mark.parametrize("timing", TIMINGS, ids=str)
def test_policies_with_few_and_many_in_flight(timing: dict[str, Any], concurrency: int | None) -> None:
    """On both sides of where the list gives way to the calendar."""
    model = fb.DelayModel(n_clients=600, wait=fb.Exponential(0.02), compute=fb.Pareto(1.5, 0.1))
    compare_once(model, FedBuff(9, **timing), concurrency, arrivals=4000)


def test_stops_of_events_that_nothing_parts() -> None:
    """Ties, tasks without end and a few slots: the calendar leaves all of them to its heap."""
    rng = np.random.default_rng(1)
    n = 400
    trace = fb.Trace(np.repeat(np.arange(n), 3), rng.choice([0.0, 1.0, 1.0, 50.0], 3 * n))
    for timing in ({"stop_stale": 2}, {"restart": "step"}):
        compare_once(trace, FedBuff(5, **timing), 390, arrivals=6000)
    once = fb.Availability(np.arange(n), np.zeros(n), rng.choice([1.0, 4.0], n), n_clients=n, policy="pause")
    compare_once(
        fb.Trace(np.arange(n), rng.exponential(1.5, n), availability=once), FedBuff(5, stop_stale=2), 390, arrivals=6000
    )


DISTRIBUTIONS = [
    fb.Constant(0.5),
    fb.Uniform(0.0, 2.0),
    fb.Exponential(1.0),
    fb.HalfNormal(1.0, 0.25),
    fb.TruncatedNormal(0.5, 1.0, 0.0, 2.0),
    fb.LogNormal(0.0, 0.7),
    fb.Pareto(2.5, 0.5),
    fb.Weibull(1.5, 1.0),
    fb.Empirical([0.1, 0.4, 0.4, 3.0]),
]


@pytest.mark.parametrize("concurrency", [None, 4, 30])
@pytest.mark.parametrize("law", DISTRIBUTIONS, ids=lambda law: law.kind)
def test_models(law: fb.Distribution, concurrency: int | None) -> None:
    model = fb.DelayModel(
        n_clients=30,
        wait=fb.Exponential(0.05) if law.kind == "uniform" else fb.Constant(0.0),
        download=law,
        compute=law,
        upload=fb.Exponential(0.1),
        client_speed=fb.LogNormal(0.0, 0.5) if law.kind == "pareto" else None,
        n_samples=np.arange(1, 31) if law.kind == "weibull" else None,
    )
    compare(model, FedBuff(3), concurrency, server_steps=25, seed=9)


@pytest.mark.parametrize("policy", ["wait", "pause", "abort"])
@pytest.mark.parametrize("concurrency", [None, 5, 20])
def test_windows_of_differing_periods(policy: Any, concurrency: int | None) -> None:
    n = 20
    begin = np.linspace(0.0, 1.5, n)
    windows = fb.Availability(
        np.arange(n), begin, begin + 1.0, n_clients=n, period=np.linspace(2.5, 4.0, n), policy=policy
    )
    model = fb.DelayModel(n_clients=n, compute=fb.Exponential(0.4), availability=windows)
    made = compare(model, FedBuff(3), concurrency, server_steps=20)
    assert made is not None
    assert windows.available(made.client, made.start_time).all()


@pytest.mark.parametrize(
    "strategy",
    [
        FedBuff(4),
        FedBuff(4, max_wait=0.3),
        FedBuff(9, distinct_clients=True),
        FedBuff(4, refill="step", stop_stale=2, period=0.5),
        FedBuff(4, trigger="ringleader"),
        FedAvg(rate=0.5, over_selection=0.2),
    ],
)
def test_numba_gives_the_same(strategy: Any) -> None:
    pytest.importorskip("numba")
    model = fb.DelayModel(
        n_clients=12, compute=fb.Exponential(1.0), upload=fb.Pareto(3.0, 0.1), wait=fb.LogNormal(-2, 1)
    )

    def call() -> fb.Schedule:
        return fb.schedule(model, strategy, server_steps=60, seed=3)

    assert_same(resolved_by("numba", call), resolved_by("cpp", call))


@settings(EXAMPLES, max_examples=80)
@given(st.data())
def test_plain_plans_of_numba(data: st.DataObject) -> None:
    """Traces made to collide, which the smaller of Numba's loops resolves."""
    pytest.importorskip("numba")
    trace = data.draw(traces())
    concurrency = data.draw(st.sampled_from([None, *range(1, trace.n_clients + 1)]))
    strategy = FedBuff(
        data.draw(st.integers(1, 4)),
        max_staleness=data.draw(st.sampled_from([None, 0, 1, 2])),
    )
    options = {"timeout": data.draw(st.sampled_from([None, None, 1.0, 2.75])), **ends(data.draw)}

    def call() -> fb.Schedule:
        return fb.schedule(trace, strategy, concurrency, seed=3, **options)

    with pytest.MonkeyPatch.context() as patch:
        made = _resolve.Request._make_plan
        patch.setattr(_resolve.Request, "_make_plan", lambda self, src: made(self, src)._replace(stall_limit=300))
        want, got = resolved_by("cpp", call), resolved_by("numba", call)
    if isinstance(want, str):
        assert got == want
    else:
        assert_same(got, want)


@pytest.mark.parametrize("concurrency", [None, 7, 40, 400])
def test_delays_that_numba_draws_ahead(concurrency: int | None) -> None:
    """With few and many idle clients, so that guesses of the next client are wrong and right."""
    pytest.importorskip("numba")
    n = 600
    speed = fb.LogNormal(0.0, 0.5)
    for k, law in enumerate(DISTRIBUTIONS):
        wait = law if k % 2 else fb.Constant(0.0)
        model = fb.DelayModel(
            n_clients=n, wait=wait, download=DISTRIBUTIONS[k - 1], compute=law, upload=fb.Exponential(0.1),
            client_speed=speed if k % 3 == 0 else None,
        )  # fmt: skip

        def call(model: fb.DelayModel = model) -> fb.Schedule:
            return fb.schedule(model, FedBuff(7), concurrency, server_steps=300, seed=2**40 + 5)

        assert_same(resolved_by("numba", call), resolved_by("cpp", call))
    rng = np.random.default_rng(0)
    trace = fb.Trace(np.repeat(np.arange(n), 3), rng.exponential(1.0, 3 * n), wait=rng.exponential(0.1, 3 * n))

    def recorded() -> fb.Schedule:
        return fb.schedule(trace, FedBuff(7), concurrency, server_steps=300, seed=1)

    assert_same(resolved_by("numba", recorded), resolved_by("cpp", recorded))


def test_numba_has_the_smaller_loop_for_what_it_knows_only() -> None:
    """A field that is added to plans must be named here: in its loop, or with the value that it takes for granted."""
    plain = pytest.importorskip("fedbuff.backends.numba.plain_resolver")
    assert set(Plan._fields) == plain.KNOWN | set(plain.NEUTRAL)
    assert not plain.KNOWN & set(plain.NEUTRAL)
    model = fb.DelayModel(n_clients=9, compute=fb.Exponential(1.0))

    def chosen(strategy: Any = None, **options: Any) -> str:
        plan = plan_of(model, strategy or FedBuff(3), **options)
        return type(importlib.import_module("fedbuff.backends.numba").make_resolver(plan)).__name__

    assert {chosen(), chosen(concurrency=4), chosen(FedBuff(3, max_staleness=2), timeout=2.0)} == {"PlainResolver"}
    for strategy, options in (
        (FedBuff(3, max_wait=1.0), {}),
        (FedBuff(3, distinct_clients=True), {}),
        (FedBuff(3, refill="step"), {"concurrency": 4}),
        (FedAvg(rate=0.5), {}),
        (None, {"selection": "round_robin", "concurrency": 4}),
        (None, {"max_uses": 3, "concurrency": 4}),
        (None, {"start_rate": 2.0}),
    ):
        assert not plain.is_plain(plan_of(model, strategy or FedBuff(3), **options))


def plan_of(source: Any, strategy: Any, **options: Any) -> Plan:
    return Request(source, strategy, ScheduleOptions(**{"server_steps": 5, **options}), 0).plan


@pytest.fixture(params=["baseline", "avx2", "avx512"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every CPU level in turn, in force."""
    from fedbuff import _core

    before = _core.level()
    if not _core.force_level(request.param):
        pytest.skip(f"this CPU has no {request.param}")
    yield request.param
    _core.force_level(before)


def test_draws_have_the_same_bits_at_every_level(level: str) -> None:
    from fedbuff import _core
    from fedbuff.backends.python import portable_math as pm

    # Not a whole number of batches, so that single draws take part.
    client, task = np.arange(500, dtype=np.uint32), np.arange(500, dtype=np.uint32) % 7
    for law in DISTRIBUTIONS:
        for component, name in enumerate(("wait", "download", "compute", "upload")):
            model = fb.DelayModel(n_clients=500, **{"compute": fb.Constant(1.0), name: law})
            plan = _resolve.Request(model, FedBuff(1), ScheduleOptions(server_steps=1), 5).plan
            delays = np.empty(500)
            _core.draw_delays(plan, component, client, task, delays)
            want = pm.draw(law.kind, law.params, getattr(law, "samples", None), 5, client, task, component)
            np.testing.assert_array_equal(delays, want, err_msg=f"{law.kind}, {name}")


@pytest.mark.parametrize("concurrency", [1, 17, 255, 256])
@pytest.mark.parametrize("law", [fb.Exponential(1.0), fb.Empirical([0.0, 0.5, 0.5, 1.0, 2.0]), fb.Constant(1.0)])
def test_few_and_many_in_flight_agree_at_every_level(level: str, law: Any, concurrency: int) -> None:
    """The tree and the calendar, on both sides of where one gives way to the other; ties and zeros."""
    model = fb.DelayModel(n_clients=3 * concurrency, compute=law)
    compare_once(model, FedBuff(7), concurrency, arrivals=1500)
    compare_once(model, FedBuff(7), concurrency, server_steps=150)
    compare_once(model, FedBuff(7), concurrency, max_time=800.0 / concurrency)


def test_cpp_math_has_the_same_bits() -> None:
    from fedbuff import _core
    from fedbuff.backends.python import portable_math as pm

    x = np.random.default_rng(0).random(2000)
    values = np.empty((5, x.size))
    _core.portable_math(x, values)
    sine, cosine = pm.sincos2pi(x)
    np.testing.assert_array_equal(values, [pm.log(x), pm.exp(x), pm.pow(x, 1.7), sine, cosine])


def test_a_schedule_of_many_in_flight_agrees() -> None:
    """Large enough for the calendar's buckets and its new layouts; the oracle is a heap."""
    rng = np.random.default_rng(0)
    n, rows = 3000, 2
    delay = np.where(rng.random(n * rows) < 0.3, 1.0, rng.exponential(2.0, n * rows) ** 2)
    trace = fb.Trace(np.repeat(np.arange(n), rows), delay, wait=rng.choice([0.0, 0.1], n * rows))
    for concurrency in (None, 1200):
        compare_once(trace, FedBuff(7), concurrency, arrivals=12_000)


def compare_once(source: Any, strategy: Any, concurrency: int | None, **options: Any) -> None:
    def call() -> fb.Schedule:
        return fb.schedule(source, strategy, concurrency, **options)

    assert_same(resolved_by("cpp", call), resolved_by("reference", call))


def test_the_oracle_gives_chunks_of_any_size() -> None:
    model = fb.DelayModel(n_clients=5, compute=fb.Exponential(1.0))
    request = _resolve.Request(model, FedBuff(2), ScheduleOptions(server_steps=9), 0)
    whole = resolved_by("reference", lambda: fb.schedule(model, FedBuff(2), server_steps=9))
    resolver = event_loop.EventLoop(request.plan)
    client: list[int] = []
    while True:
        columns = _resolve.new_columns(2, 4)
        rows, _, reason = resolver.run(columns)
        client += columns.client[:rows].tolist()
        if reason != resolver_rules.FULL:
            break
    assert client == whole.client.tolist()
    assert resolver.in_flight()[0].size == whole.in_flight_client.size
    assert math.isfinite(whole.end_time)
