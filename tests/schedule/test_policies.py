"""Refill, stops and triggers: what each does on small traces, closed forms, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import FedBuff, Status

FIXED = np.array([1.0, 1.7, 2.3, 5.9, 11.0])


def fixed(delays: Any = FIXED) -> fb.Trace:
    return fb.Trace(np.arange(len(delays)), delays)


def rows(made: fb.Schedule, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(getattr(made, name).tolist() for name in names), strict=True))


def test_refill_at_steps_starts_the_freed_slots_together() -> None:
    made = fb.schedule(fixed([1.0, 1.5, 2.5, 9.0]), FedBuff(2, refill="step"), server_steps=3)
    assert made.step_time.tolist() == [1.5, 2.5, 3.5]
    assert rows(made, "client", "start_time", "arrive_time") == [
        (0, 0.0, 1.0),
        (1, 0.0, 1.5),
        (2, 0.0, 2.5),
        (0, 1.5, 2.5),
        (1, 1.5, 3.0),
        (0, 2.5, 3.5),
    ]


def test_refill_of_the_whole_buffer_is_synchronous() -> None:
    """O = B = K: every task starts at a step, and nothing is stale."""
    model = fb.DelayModel(n_clients=50, compute=fb.Exponential(1.0))
    numbered = fb.schedule(model, FedBuff(8, refill=8), 8, server_steps=40)
    stepped = fb.schedule(model, FedBuff(8, refill="step"), 8, server_steps=40)
    assert numbered == stepped and not numbered.staleness.any()
    assert fb.schedule(model, FedBuff(8, refill=1), 8, server_steps=40) == fb.schedule(
        model, FedBuff(8), 8, server_steps=40
    )


def test_open_slots_start_where_nothing_else_would_happen() -> None:
    """Three tasks at work never fill a buffer of five, so they start again together."""
    made = fb.schedule(fixed([1.0, 2.0, 3.0]), FedBuff(5, refill="step"), server_steps=2)
    assert made.start_time.tolist() == [0.0, 0.0, 0.0, 3.0, 3.0, 3.0, 5.0, 5.0, 7.0, 7.0]
    assert made.step_time.tolist() == [5.0, 9.0]


@pytest.mark.parametrize("size", [1, 3, 8])
def test_rennala_takes_the_time_of_its_closed_form(size: int) -> None:
    """A step comes at the smallest t, counted from the last one, with sum of floor(t / T_i) >= K."""
    made = fb.schedule(fixed(), FedBuff(size, max_staleness=0, restart="step"), server_steps=20)
    made.check()
    times = np.unique(np.outer(FIXED, np.arange(1, 9)))
    done = np.floor(times[:, None] / FIXED + 1e-12).sum(axis=1)
    wait = times[done >= size].min()
    np.testing.assert_allclose(np.diff(made.step_time, prepend=0.0), wait, rtol=1e-12)
    assert not made.staleness[made.status == Status.USED].any()


@pytest.mark.parametrize("limit", [1, 2, 5, 20])
def test_ringmaster_keeps_its_bound(limit: int) -> None:
    """R steps take at most t = min_m H_m (2 + R / m), with H_m the harmonic mean of the m shortest delays T_i.

    Proof: count from any step on, and say that R more have not been made. A task that started since then is less than R
    stale, so only the one that a client had then can be stopped, once, after at most T_i; so the client has made at
    least floor(t / T_i) - 1 > t / T_i - 2 steps, and the m fastest more than t m / H_m - 2 m = R. That is a
    contradiction. The bound of Ringmaster ASGD (Maranjyan, Tyurin, Richtarik 2025), 2 min_m H_m (1 + R / m), follows.
    """
    delays = np.sort(np.random.default_rng(3).pareto(1.0, 40) + 0.2)
    made = fb.schedule(fixed(delays), FedBuff(1, stop_stale=limit), server_steps=400)
    made.check()
    m = np.arange(1, delays.size + 1)
    bound = (m / np.cumsum(1 / delays) * (2 + limit / m)).min()
    took = made.step_time[limit:] - made.step_time[:-limit]
    assert took.max() <= bound
    assert took.max() > bound / 4  # the bound is not far from what happens
    assert made.staleness[made.status == Status.USED].max() < limit
    assert (made.staleness[made.status == Status.STOPPED] == limit).all()


def test_a_stopped_client_starts_again_at_once() -> None:
    made = fb.schedule(fixed([1.0, 2.5]), FedBuff(1, stop_stale=2), server_steps=4)
    assert rows(made, "client", "task", "version", "start_time", "arrive_time", "status") == [
        (0, 0, 0, 0.0, 1.0, Status.USED),
        (0, 1, 1, 1.0, 2.0, Status.USED),
        (1, 0, 0, 0.0, 2.0, Status.STOPPED),
        (0, 2, 2, 2.0, 3.0, Status.USED),
        (0, 3, 3, 3.0, 4.0, Status.USED),
    ]
    assert made.summary()["wasted"] == pytest.approx(2.0 / 6.0)
    assert made.summary()["status"] == {"used": 4, "stopped": 1}
    assert rows(made, "in_flight_client", "in_flight_version")[-1] == (1, 2)


def test_an_end_by_arrivals_may_cut_the_stops_of_a_step() -> None:
    made = fb.schedule(fixed(), FedBuff(1, restart="step"), arrivals=8)
    assert made.n_arrivals == 8
    whole = fb.schedule(fixed(), FedBuff(1, restart="step"), server_steps=9)
    np.testing.assert_array_equal(made.client, whole.client[:8])


def test_an_empty_period_restarts_without_a_version() -> None:
    made = fb.schedule(fixed([1.0, 2.5]), FedBuff(9, period=0.75, restart="step"), max_time=3.0)
    assert made.n_steps == 0 and made.step_started.size == 0
    assert set(made.status.tolist()) == {Status.STOPPED} and not made.staleness.any()
    assert made.arrive_time.tolist() == [0.75, 0.75, 1.5, 1.5, 2.25, 2.25, 3.0, 3.0]
    made.check()


def test_a_period_counts_from_time_zero() -> None:
    """Ticks with an empty buffer pass, and steps of a full one do not move them."""
    made = fb.schedule(fixed([0.9]), FedBuff(3, period=2.0), max_time=8.0)
    assert made.step_time.tolist() == [2.0, 4.0, 6.0, 8.0]
    made = fb.schedule(fixed([0.75]), FedBuff(2, period=2.0), max_time=6.0)
    assert made.step_time.tolist() == [1.5, 3.0, 4.0, 5.25, 6.0]


def test_malenia_hears_every_client_and_ringleader_steps_once_for_each() -> None:
    model = fb.DelayModel(n_clients=6, compute=fb.Exponential(1.0), client_speed=np.arange(1.0, 7.0))
    malenia = fb.schedule(model, FedBuff(1, trigger="every_client", per_client=2.0, restart="step"), server_steps=9)
    malenia.check()
    for t in range(9):
        counts = np.bincount(malenia.client[malenia.step == t], minlength=6)
        assert 6 / (1 / counts).sum() >= 2 - 1e-9
        last = np.flatnonzero(malenia.step == t)[-1]
        counts[malenia.client[last]] -= 1
        assert counts.min() == 0 or 6 / (1 / counts).sum() < 2  # not one arrival earlier
    ringleader = fb.schedule(model, FedBuff(1, trigger="ringleader"), server_steps=18)
    ringleader.check()
    makes = [int(np.flatnonzero(ringleader.step == t)[-1]) for t in range(18)]
    for first in (0, 6, 12):
        assert sorted(ringleader.client[makes[first : first + 6]].tolist()) == list(range(6))
    assert set(ringleader.client[: makes[0]].tolist()) == set(range(6))


STRATEGIES = [
    FedBuff(4, refill="step"),
    FedBuff(4, refill=3, stop_stale=2),
    FedBuff(4, restart="step"),
    FedBuff(4, period=0.3),
    FedBuff(2, period=0.05, restart="step"),
    FedBuff(1, trigger="every_client"),
    FedBuff(1, trigger="ringleader"),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_files_slices_streams_and_replays(strategy: FedBuff, tmp_path: Path) -> None:
    model = fb.DelayModel(n_clients=7, wait=fb.Exponential(0.01), compute=fb.Exponential(1.0))
    made = fb.schedule(model, strategy, 5, server_steps=30, seed=2)
    made.check()
    for name in ("s.npz", "s.parquet"):
        made.save(tmp_path / name)
        assert fb.load_schedule(tmp_path / name) == made
    chunks = list(fb.iter_schedule(model, strategy, 5, chunk=9, server_steps=30, seed=2, path=tmp_path / "c.parquet"))
    assert fb.load_schedule(tmp_path / "c.parquet") == made
    np.testing.assert_array_equal(np.concatenate([part.status for part in chunks]), made.status)
    made[10:20].check()
    assert made[:20][10:] == made[10:20]
    problem = fb.Quadratic(np.random.default_rng(0).standard_normal((7, 3)), 1.0, noise_variance=0.1)
    local = fb.LocalSGD(2, 0.1, batch_size=1)
    whole = fb.replay(problem, made, local, strategy=strategy, threads=1)
    streamed = fb.replay(problem, iter(chunks), local, strategy=strategy, threads=2)
    np.testing.assert_array_equal(whole.w, streamed.w)
    assert whole.version == 30


def test_a_log_has_triggers_and_nothing_that_would_change_what_happened() -> None:
    model = fb.DelayModel(n_clients=7, compute=fb.Exponential(1.0))
    for strategy in (FedBuff(4, period=0.3), FedBuff(3, trigger="every_client"), FedBuff(1, trigger="ringleader")):
        made = fb.schedule(model, strategy, 5, server_steps=30, seed=2)
        again = fb.schedule(made.arrival_log(), strategy, server_steps=30)
        np.testing.assert_array_equal(again.step[: made.n_arrivals], made.step)
        np.testing.assert_array_equal(again.step_time, made.step_time)
        again.check()
    log = made.arrival_log()
    for name, strategy in {
        "refill": FedBuff(2, refill="step"),
        "stop_stale": FedBuff(2, stop_stale=2),
        "restart": FedBuff(2, restart="step"),
    }.items():
        with pytest.raises(ValueError, match=f"{name}.*: an arrival log is replayed as it happened"):
            fb.schedule(log, strategy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"refill": "often"}, "refill: expected"),
        ({"refill": 0}, "refill: expected an int >= 1"),
        ({"stop_stale": 0}, "stop_stale: expected an int >= 1"),
        ({"restart": "round"}, "restart: expected"),
        ({"restart": "step", "stop_stale": 3}, "stop_stale, restart: expected one"),
        ({"period": 0.0}, "period: expected"),
        ({"trigger": "each"}, "trigger: expected"),
        ({"per_client": 2.0}, "per_client: "),
        ({"trigger": "every_client", "per_client": 0.5}, "per_client: expected a number >= 1"),
        ({"trigger": "ringleader", "period": 1.0}, "period: trigger"),
        ({"trigger": "ringleader", "max_wait": 1.0}, "max_wait: trigger"),
        ({"trigger": "every_client", "distinct_clients": True}, "distinct_clients: "),
        ({"secure": "simulate", "period": 1.0}, "period: a secure sum"),
        ({"secure": "simulate", "trigger": "every_client"}, "trigger: a secure sum"),
    ],
    ids=str,
)
def test_refused_strategies(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedBuff(2, **options)


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        (FedBuff(2, period=1.0), {"max_time": 0.0}, "period: no tick comes before max_time=0"),
        (FedBuff(2, refill=6), {"arrivals": 9}, "refill: expected at most 5"),
        (FedBuff(2, refill=3), {"arrivals": 9, "concurrency": 2}, "refill: expected at most 2"),
        (FedBuff(2, refill="step"), {"arrivals": 9, "start_rate": 1.0}, "refill: start_rate"),
        (FedBuff(2, stop_stale=1), {"arrivals": 9, "start_rate": 1.0}, "stop_stale: start_rate"),
        (FedBuff(2, restart="step"), {"arrivals": 9, "start_rate": 1.0}, "restart: start_rate"),
    ],
    ids=str,
)
def test_refused_schedules(strategy: FedBuff, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fb.schedule(fixed(), strategy, **options)


def test_a_client_that_is_never_heard_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedbuff._schedule import resolve

    made = resolve.Request._make_plan
    monkeypatch.setattr(resolve.Request, "_make_plan", lambda self, src: made(self, src)._replace(stall_limit=500))
    trace = fb.Trace([0, 1], [1.0, 1.0], ok=[True, False])
    with pytest.raises(ValueError, match="trigger: no server step was made in 500 events"):
        fb.schedule(trace, FedBuff(1, trigger="every_client"), server_steps=1)


def test_a_restart_before_every_arrival_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedbuff._schedule import resolve

    made = resolve.Request._make_plan
    monkeypatch.setattr(resolve.Request, "_make_plan", lambda self, src: made(self, src)._replace(stall_limit=500))
    away = fb.Availability([0], [0.0], [0.5], n_clients=1, period=2.0, policy="pause")  # 1 s of work takes 2.5 s
    with pytest.raises(ValueError, match=r"stopped by a restart .*expected a period longer than the shortest task"):
        fb.schedule(fb.Trace([0], [1.0], availability=away), FedBuff(10, restart="step", period=2.0), server_steps=1)


@pytest.mark.parametrize(
    ("source", "options", "shortest"),
    [
        (fb.Trace([0, 1], [1.0, 2.0], ok=[True, False], upload=[0.5, 0.1]), {}, "1.5"),
        (fb.Trace([0, 1], [1.0, 2.0]), {"server_time": 0.25}, "1.25"),
        (fb.DelayModel(n_clients=2, compute=fb.Uniform(2.0, 3.0), client_speed=np.array([4.0, 0.5])), {}, "1"),
        (fb.DelayModel(n_clients=2, compute=fb.Exponential(1.0), upload=fb.Pareto(2.0, 0.75)), {}, "0.75"),
        (fb.DelayModel(n_clients=2, download=fb.Empirical([0.5, 2.0]), compute=fb.HalfNormal(1.0, 0.25)), {}, "0.75"),
        (fb.DelayModel(n_clients=2, compute=fb.TruncatedNormal(1.0, 1.0, 0.6, 2.0)), {}, "0.6"),
    ],
    ids=str,
)
def test_a_period_that_no_task_can_meet_is_refused(source: Any, options: dict[str, Any], shortest: str) -> None:
    strategy = FedBuff(3, restart="step", period=0.25)
    with pytest.raises(ValueError, match=f"period: expected at least {shortest}, what the shortest task takes"):
        fb.schedule(source, strategy, server_steps=1, **options)
    assert fb.schedule(source, strategy, max_time=1.0, **options).n_steps == 0  # it ends all the same
    reached = FedBuff(1, restart="step", period=float(shortest))
    if isinstance(source, fb.Trace):
        assert fb.schedule(source, reached, server_steps=1, **options).n_steps == 1  # a tick comes after the arrivals


def test_checks_find_what_a_policy_cannot_make() -> None:
    made = fb.schedule(fixed(), FedBuff(1, stop_stale=3), server_steps=20)
    state: dict[str, Any] = made._state()
    state["status"] = np.where(made.status == Status.STOPPED, Status.FAILED, made.status).astype(np.uint8)
    with pytest.raises(ValueError, match="ends with a staleness of 3 or more"):
        fb.Schedule(**state).check()
    plain: dict[str, Any] = fb.schedule(fixed(), FedBuff(1), server_steps=20)._state()
    plain["status"] = np.where(np.arange(20) == 19, Status.STOPPED, plain["status"]).astype(np.uint8)
    plain["step"] = np.where(np.arange(20) == 19, -1, plain["step"])
    with pytest.raises(ValueError):
        fb.Schedule(**plain).check()


# Who is next


def started(made: fb.Schedule) -> list[int]:
    """The clients in the order of their starts, of a schedule without ties after time 0."""
    start = np.concatenate([made.start_time, made.in_flight_start_time])
    client = np.concatenate([made.client, made.in_flight_client])
    return [int(c) for c in client[np.lexsort((client, start))]]


def test_round_robin_goes_by_number() -> None:
    model = fb.DelayModel(n_clients=20, compute=fb.Uniform(1.0, 1.01))
    made = fb.schedule(model, FedBuff(2), 5, arrivals=200, selection="round_robin")
    made.check()
    assert started(made) == [i % 20 for i in range(len(started(made)))]


def test_round_robin_passes_over_the_busy() -> None:
    made = fb.schedule(fixed([1.0, 10.5, 1.25]), FedBuff(1), 2, arrivals=5, selection="round_robin")
    assert started(made) == [0, 1, 2, 0, 2, 0]


def test_the_longest_idle_is_next() -> None:
    model = fb.DelayModel(n_clients=12, compute=fb.Exponential(1.0))
    made = fb.schedule(model, FedBuff(2), 4, arrivals=300, selection="longest_idle", seed=3)
    idle = list(range(4, 12))
    order = started(made)[4:]
    for at, ended in enumerate(made.client[:-1].tolist()):
        idle.append(ended)
        assert order[at] == idle.pop(0)


def test_weighted_starts_follow_the_probabilities() -> None:
    """One at a time: the starts are independent draws."""
    p = np.array([0.0, 0.1, 0.2, 0.3, 0.4])
    model = fb.DelayModel(n_clients=5, compute=fb.Exponential(1.0))
    made = fb.schedule(model, FedBuff(1), 1, arrivals=20_000, selection=p)
    share = np.bincount(made.client, minlength=5) / 20_000
    assert share[0] == 0.0
    assert np.abs(share - p).max() < 5 * 0.5 / np.sqrt(20_000)


@pytest.mark.parametrize("p", [[0.1, 0.2, 0.3, 0.4], [0.94, 0.05, 0.009, 0.001], [0.25] * 4])
def test_weighted_starts_are_in_proportion_among_the_idle(p: list[float]) -> None:
    """Where client b is at work the next one is i with probability p_i / (1 - p_b)."""
    model = fb.DelayModel(n_clients=4, compute=fb.Exponential(1.0))
    made = fb.schedule(model, FedBuff(1), 2, arrivals=40_000, selection=p, seed=1)
    order = started(made)
    at_work, drawn = set(order[:2]), np.zeros((4, 4))
    for ended, following in zip(made.client.tolist(), order[2:], strict=False):
        (busy,) = at_work - {ended}
        drawn[busy, following] += 1
        at_work = {busy, following}
    for busy in range(4):
        n = drawn[busy].sum()
        want = np.where(np.arange(4) == busy, 0.0, p) / (1.0 - p[busy])
        assert drawn[busy, busy] == 0
        assert (np.abs(drawn[busy] - n * want) <= 5 * np.sqrt(n * want * (1 - want)) + 1e-9).all()


def test_a_client_is_used_so_often_at_most() -> None:
    model = fb.DelayModel(n_clients=8, compute=fb.Exponential(1.0))
    for options in ({"concurrency": 3}, {"concurrency": None}, {"concurrency": 3, "selection": "longest_idle"}):
        made = fb.schedule(model, FedBuff(2), arrivals=1000, max_uses=4, **options)
        assert np.bincount(made.client).tolist() == [4] * 8
        made.check()


def test_a_selection_is_in_the_description() -> None:
    model = fb.DelayModel(n_clients=4, compute=fb.Exponential(1.0))
    made = fb.schedule(model, FedBuff(2), 2, arrivals=9, max_uses=4, selection="round_robin")
    assert made.description["selection"] == "round_robin" and made.description["max_uses"] == 4
    one, two = ([0.25] * 4, [0.1, 0.2, 0.3, 0.4])
    hashes = [fb.schedule(model, FedBuff(2), 2, arrivals=9, selection=p).description["selection"] for p in (one, two)]
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"selection": "fastest", "concurrency": 2}, ValueError, "selection: expected"),
        (
            {"selection": [0.5, 0.4], "concurrency": 2},
            ValueError,
            "selection: expected probabilities that sum to 1",
        ),
        ({"selection": [0.5, 0.5], "concurrency": 2}, ValueError, "selection: expected 5 probabilities"),
        ({"selection": [1.0, 0, 0, 0, 0], "concurrency": 2}, ValueError, "selection: only 1 clients"),
        ({"selection": [1.5, -0.5], "concurrency": 2}, ValueError, "selection: expected a probability per client"),
        ({"selection": "round_robin"}, ValueError, "selection: every client is always at work"),
        ({"selection": "round_robin", "start_rate": 1.0, "in_flight": "skip"}, ValueError, "selection: in_flight"),
        ({"selection": {"a": 1}, "concurrency": 2}, TypeError, "selection: expected a name"),
        ({"max_uses": 0}, ValueError, "max_uses: expected"),
    ],
    ids=str,
)
def test_refused_selections(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fb.schedule(fixed(), FedBuff(2), arrivals=9, **options)
