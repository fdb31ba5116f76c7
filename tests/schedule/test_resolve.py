"""Identities of schedules, arrival logs, uniform arrivals, streaming and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._rule.strategies import FedAsync, FedAvg, FedBuff
from fedbuff.backends.python.philox import STREAM_CLIENT_SELECTION, key_words, philox_words
from fedbuff.backends.python.portable_math import COMPONENT_SPEED, draw

EXPONENTIAL = fb.Exponential(1.0)


def model(n: int, **parts: Any) -> fb.DelayModel:
    return fb.DelayModel(n_clients=n, **({"compute": EXPONENTIAL} | parts))


# Identities


@pytest.mark.parametrize(("n", "concurrency"), [(13, None), (40, 13), (13, 13)])
@pytest.mark.parametrize("size", [1, 4])
def test_the_staleness_sum_is_exact(n: int, concurrency: int | None, size: int) -> None:
    """sum of staleness + sum of ages in flight = (C - 1) V with C slots always at work and no ties."""
    steps = 500
    made = fb.schedule(model(n), FedBuff(size), concurrency, server_steps=steps, seed=1)
    made.check()
    ages = steps - made.in_flight_version
    assert made.staleness.sum() + ages.sum() == 12 * steps
    assert made.n_arrivals == steps * size
    assert made.tau == max(made.staleness.max(), ages.max())


def test_constant_delays_give_half_the_staleness() -> None:
    made = fb.schedule(model(8, compute=fb.Constant(1.0)), FedBuff(1), arrivals=80)
    assert made.staleness.tolist() == list(range(8)) * 10
    assert made.step_time.tolist() == np.repeat(np.arange(1.0, 11.0), 8).tolist()


def test_one_client_is_sequential() -> None:
    made = fb.schedule(model(1), FedAsync(0.5), server_steps=20)
    assert made.staleness.max() == 0 and made.tau == 0
    np.testing.assert_array_equal(made.version, np.arange(20))
    np.testing.assert_array_equal(made.start_time[1:], made.arrive_time[:-1])


def test_the_same_task_meets_the_same_delay_under_every_strategy() -> None:
    def delays(made: fb.Schedule) -> dict[tuple[int, int], float]:
        pairs = zip(made.client.tolist(), made.task.tolist(), strict=True)
        return dict(zip(pairs, (made.arrive_time - made.start_time).tolist(), strict=True))

    one = delays(fb.schedule(model(30), FedBuff(3), 10, server_steps=50, seed=4))
    two = delays(fb.schedule(model(30), FedAvg(clients_per_round=6), server_steps=50, seed=4))
    both = one.keys() & two.keys()
    assert len(both) > 50
    assert all(one[key] == pytest.approx(two[key], rel=1e-9) for key in both)


def test_clients_are_drawn_uniformly() -> None:
    made = fb.schedule(model(20), FedBuff(10), 4, arrivals=40_000)
    counts = np.bincount(made.client, minlength=20)
    assert np.sum((counts - 2000.0) ** 2 / 2000.0) < 60  # chi square with 19 degrees of freedom


def test_rounds_keep_the_first_and_discard_the_rest() -> None:
    made = fb.schedule(model(10), FedAvg(rate=0.35, over_selection=0.5), server_steps=30)  # m = 4, 6 start
    made.check()
    used = made.status == fb.Status.USED
    assert np.bincount(made.step[used]).tolist() == [4] * 30
    assert np.count_nonzero(made.status == fb.Status.DISCARDED) == 2 * 30
    assert made.tau == 0 and made.buffer_size == 0 and made.in_flight_client.size == 0
    for step in range(30):
        rows = made.version == step
        assert np.unique(made.client[rows]).size == 6
        assert np.all(made.arrive_time[rows] <= made.step_time[step])


def test_a_round_in_which_fewer_can_arrive_steps_with_those() -> None:
    trace = fb.Trace([0, 1, 2], [1.0, 2.0, 3.0], ok=[True, False, True])
    made = fb.schedule(trace, FedAvg(clients_per_round=3), server_steps=2)
    assert made.step.tolist() == [0, -1, 0, 1, -1, 1]
    assert made.step_time.tolist() == [3.0, 6.0]


def test_the_version_is_pinned_after_the_wait() -> None:
    trace = fb.Trace([0, 1], [1.0, 1.0], wait=[0.0, 1.5])
    made = fb.schedule(trace, FedAsync(0.5), server_steps=3)
    assert made.client.tolist() == [0, 0, 1]
    assert made.start_time.tolist() == [0.0, 1.0, 1.5]
    assert made.version.tolist() == [0, 1, 1]
    assert made.step_started.tolist() == [2, 1, 0]
    assert made.started_on_0 == 1


def test_tied_arrivals_come_before_starts() -> None:
    made = fb.schedule(fb.Trace([0, 1, 2], [1.0, 1.0, 2.0]), FedBuff(2), server_steps=2)
    assert made.version.tolist() == [0, 0, 0, 1]
    # Client 2's task was created first, so it arrives first at time 2, in step 1.
    assert made.client.tolist() == [0, 1, 2, 0]
    assert made.staleness.tolist() == [0, 0, 1, 0]


def test_failures_timeouts_and_stale_arrivals_free_their_slot() -> None:
    trace = fb.Trace([0, 0, 1, 1], [1.0, 1.0, 5.0, 1.0], ok=[True, False, True, True])
    made = fb.schedule(trace, FedAsync(0.5, max_staleness=1), max_time=8.0, timeout=3.0)
    status = [fb.Status(code).name for code in made.status]
    first = list(zip(made.client.tolist(), made.arrive_time.tolist(), status, strict=True))[:5]
    assert first == [*((0, 1.0, "USED"), (0, 2.0, "FAILED"), (1, 3.0, "TIMED_OUT"), (0, 3.0, "USED"), (1, 4.0, "USED"))]
    made.check()


def test_a_trigger_steps_with_what_is_there() -> None:
    made = fb.schedule(fb.Trace([0], [1.0]), FedBuff(10, max_wait=2.5), max_time=10.0)
    assert made.step_time.tolist() == [2.5, 5.0, 7.5, 10.0]
    # At 5.0 and 10.0 the tied arrival counts first.
    assert np.bincount(made.step[made.step >= 0]).tolist() == [2, 3, 2, 3]


def test_stop_ends_when_all_rows_are_done() -> None:
    made = fb.schedule(fb.Trace([0, 0, 1], [1.0, 1.0, 1.5], end="stop"), FedBuff(2), 1, server_steps=10)
    assert made.n_arrivals == 3 and made.n_steps == 1
    assert sorted(zip(made.client.tolist(), made.task.tolist(), strict=True)) == [(0, 0), (0, 1), (1, 0)]
    assert made.status.tolist() == [fb.Status.USED, fb.Status.USED, fb.Status.LEFT_IN_BUFFER]


def test_the_open_loop_starts_at_its_rate() -> None:
    made = fb.schedule(model(50), FedBuff(5), arrivals=200, start_rate=4.0, in_flight="allow")
    starts = np.sort(np.concatenate([made.start_time, made.in_flight_start_time]))
    np.testing.assert_array_equal(starts, np.arange(starts.size) / 4.0)
    poisson = fb.schedule(
        model(50), FedBuff(5), arrivals=4000, start_rate=4.0, start_process="poisson", in_flight="allow"
    )
    starts = np.sort(np.concatenate([poisson.start_time, poisson.in_flight_start_time]))
    gaps = np.diff(starts)
    assert gaps.mean() == pytest.approx(0.25, rel=0.06) and gaps.std() == pytest.approx(0.25, rel=0.1)


def test_skip_loses_the_starts_of_busy_clients() -> None:
    slow = model(4, compute=fb.Constant(10.0))
    redraw = fb.schedule(slow, FedBuff(5), max_time=9.0, start_rate=1.0)
    skip = fb.schedule(slow, FedBuff(5), max_time=9.0, start_rate=1.0, in_flight="skip")
    allow = fb.schedule(slow, FedBuff(5), max_time=9.0, start_rate=1.0, in_flight="allow")
    assert redraw.in_flight_client.tolist() == [0, 1, 2, 3]
    assert skip.in_flight_client.size <= 4 and np.unique(skip.in_flight_client).size == skip.in_flight_client.size
    assert allow.in_flight_client.size == 10


def test_slicing_is_a_shorter_schedule() -> None:
    whole = fb.schedule(model(40), FedBuff(3), 10, server_steps=50, seed=2)
    assert whole[:20] == fb.schedule(model(40), FedBuff(3), 10, server_steps=20, seed=2)


# Availability


def test_policies_of_a_closing_window() -> None:
    def made(policy: Any) -> fb.Schedule:
        windows = fb.Availability([0, 0], [1.0, 5.0], [3.0, 9.0], n_clients=1, policy=policy)
        return fb.schedule(fb.Trace([0], [3.0], availability=windows), FedAsync(0.5), arrivals=1)

    assert made("wait").start_time.tolist() == [1.0]
    assert made("wait").arrive_time.tolist() == [4.0]
    assert made("pause").arrive_time.tolist() == [6.0]
    assert made("abort").arrive_time.tolist() == [3.0]
    assert made("abort").status.tolist() == [fb.Status.FAILED]


# Arrival logs


def test_a_log_replays_what_happened() -> None:
    made = fb.schedule(model(30), FedBuff(3), 10, server_steps=40, seed=5)
    log = made.arrival_log()
    again = fb.schedule(log, FedBuff(3))
    for name in ("client", "version", "step", "staleness", "arrive_time", "start_time", "step_time", "status"):
        np.testing.assert_array_equal(getattr(again, name), getattr(made, name), err_msg=name)
    again.check()
    by_time = fb.schedule(fb.ArrivalLog(log.client, log.arrive_time, start_time=log.start_time, clients=30), FedBuff(3))
    np.testing.assert_array_equal(by_time.version, made.version)
    shorter = fb.schedule(log, FedBuff(3), server_steps=10)
    np.testing.assert_array_equal(shorter.client, made.client[:30])


def test_a_log_with_drops_and_a_trigger() -> None:
    made = fb.schedule(model(30), FedBuff(3, max_staleness=2), 12, server_steps=40, seed=5)
    again = fb.schedule(made.arrival_log(), FedBuff(3, max_staleness=2))
    for name in ("client", "version", "step", "staleness", "status", "step_time"):
        np.testing.assert_array_equal(getattr(again, name), getattr(made, name), err_msg=name)
    made = fb.schedule(model(30), FedBuff(8, max_wait=0.4), 12, max_time=20.0, seed=5)
    again = fb.schedule(made.arrival_log(), FedBuff(8, max_wait=0.4), max_time=20.0)
    for name in ("client", "version", "step", "staleness", "status", "step_time"):
        np.testing.assert_array_equal(getattr(again, name), getattr(made, name), err_msg=name)


def test_a_log_that_contradicts_itself_is_refused_with_the_row() -> None:
    log = fb.ArrivalLog([0, 1, 2], [1.0, 2.0, 3.0], version=[0, 1, 0])
    assert fb.schedule(log, FedAsync(0.5)).staleness.tolist() == [0, 0, 2]
    with pytest.raises(fb.TraceError, match="row 2: version 1 does not exist yet"):
        fb.schedule(log, FedBuff(2))
    with pytest.raises(fb.TraceError, match="row 2: version 1 does not exist yet"):
        fb.schedule(log, FedBuff(2, max_staleness=4))


# Assumption 1


@pytest.mark.parametrize("staleness", ["uniform", "max"])
def test_uniform_arrivals(staleness: Any) -> None:
    made = fb.uniform_arrivals(7, 3, 4, 400, seed=3, staleness=staleness)
    made.check()
    assert made.tau == 4 and made.n_steps == 400
    newest = np.zeros(7, np.int64)
    for row, (client, version, step) in enumerate(
        zip(made.client.tolist(), made.version.tolist(), made.step.tolist(), strict=True)
    ):
        lowest = max(0, step - 4, newest[client])
        assert lowest <= version <= step
        assert staleness == "uniform" or version == lowest
        newest[client] = (row + 1) // 3
    assert np.bincount(made.client).min() > 120
    assert made == fb.uniform_arrivals(7, 3, 4, 400, seed=3, staleness=staleness)
    assert made != fb.uniform_arrivals(7, 3, 4, 400, seed=4, staleness=staleness)


# Streaming


@pytest.mark.parametrize("chunk", [1, 64, 10_000])
def test_chunks_written_as_they_come_load_as_the_whole(tmp_path: Path, chunk: int) -> None:
    pytest.importorskip("pyarrow")
    options: dict[str, Any] = {"server_steps": 60, "seed": 8}
    whole = fb.schedule(model(40), FedBuff(4), 9, **options)
    chunks = fb.iter_schedule(model(40), FedBuff(4), 9, chunk=chunk, path=tmp_path / "s.parquet", **options)
    for part in chunks:
        assert part.n_arrivals <= 2 * chunk + 8
        assert not (tmp_path / "s.parquet").exists()
    assert fb.load_schedule(tmp_path / "s.parquet") == whole
    assert [p.name for p in tmp_path.iterdir()] == ["s.parquet"]


def test_an_abandoned_stream_leaves_no_file(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    chunks = fb.iter_schedule(model(40), FedBuff(4), 9, chunk=10, path=tmp_path / "s.parquet", server_steps=60)
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())


# Refusals


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "server_steps, max_time, arrivals: expected at least one"),
        ({"server_steps": 0}, ValueError, "server_steps: expected an int >= 1, got 0"),
        ({"server_steps": 1.5}, TypeError, "server_steps: expected an int, got float"),
        ({"max_time": float("nan")}, ValueError, "max_time: expected a number >= 0, got nan"),
        ({"max_time": -1.0}, ValueError, "max_time: expected a number >= 0, got -1"),
        ({"arrivals": 5, "concurrency": 9}, ValueError, "concurrency: expected an int up to the 5 clients, got 9"),
        ({"arrivals": 5, "concurrency": 0}, ValueError, "concurrency: expected an int >= 1, got 0"),
        ({"arrivals": 5, "seed": -1}, ValueError, "seed: expected an int >= 0, got -1"),
        ({"arrivals": 5, "seed": 2**64}, ValueError, "below 2\\*\\*64"),
        ({"arrivals": 5, "timeout": 0.0}, ValueError, "timeout: expected a number > 0, got 0.0"),
        ({"arrivals": 5, "start_rate": 1.0, "concurrency": 2}, ValueError, "got both"),
        ({"arrivals": 5, "in_flight": "allow"}, ValueError, "give start_rate"),
        ({"arrivals": 5, "start_rate": 1.0, "in_flight": "maybe"}, ValueError, "in_flight: expected one of"),
        ({"arrivals": 5, "start_rate": 1.0, "start_process": "slow"}, ValueError, "start_process: expected one of"),
    ],
)
def test_refused_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fb.schedule(model(5), FedBuff(2), **options)


def test_refused_objects() -> None:
    with pytest.raises(TypeError, match="source: expected a Trace"):
        fb.schedule([1.0], FedBuff(2), arrivals=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="strategy: expected FedBuff"):
        fb.schedule(model(5), 3, arrivals=1)
    with pytest.raises(ValueError, match="FedAvg starts its own rounds"):
        fb.schedule(model(5), FedAvg(rate=0.5), 3, arrivals=1)
    with pytest.raises(ValueError, match="clients_per_round: expected at most 5, the clients there are, got 6"):
        fb.schedule(model(5), FedAvg(clients_per_round=6), arrivals=1)
    with pytest.raises(ValueError, match="strategy: expected FedBuff or FedAsync, since an arrival log has no rounds"):
        fb.schedule(fb.ArrivalLog([0], [1.0], version=[0]), FedAvg(rate=1.0))


def test_a_time_horizon_with_timeless_tasks_is_refused() -> None:
    with pytest.raises(ValueError, match="the tasks of client 1 take no time"):
        fb.schedule(fb.Trace([0, 1], [1.0, 0.0]), FedBuff(2), max_time=5.0)
    with pytest.raises(ValueError, match="the tasks of client 0 take no time"):
        fb.schedule(model(3, compute=fb.Constant(0.0)), FedBuff(2), max_time=5.0)
    assert fb.schedule(model(3, compute=fb.Constant(0.0)), FedBuff(2), server_steps=5).end_time == 0.0


def test_a_run_in_which_nothing_arrives_gives_up() -> None:
    with pytest.raises(ValueError, match="no arrival has reached the buffer in 10000100 events"):
        fb.schedule(model(1, compute=fb.Constant(5.0)), FedBuff(1), server_steps=1, timeout=1.0)


def test_a_repeat_waits_for_the_next_buffer() -> None:
    """Client 0 takes 1 s and client 1 takes 3.5 s: client 0 comes twice before client 1 comes once."""
    trace = fb.Trace([0, 1], [1.0, 3.5])
    made = fb.schedule(trace, fb.FedBuff(2, distinct_clients=True), server_steps=2)
    made.check()
    assert made.client.tolist() == [0, 1, 0, 1]
    assert made.task.tolist() == [0, 0, 1, 1]
    assert made.step.tolist() == [0, 0, 1, 1]
    # The repeat was done at 2.0, on version 0; it arrives when the second buffer opens.
    assert made.arrive_time.tolist() == [1.0, 3.5, 3.5, 7.0]
    assert made.start_time.tolist() == [0.0, 0.0, 1.0, 3.5]
    assert made.version.tolist() == [0, 0, 0, 1]
    assert made.staleness.tolist() == [0, 0, 1, 0]
    # At the end client 0 waits again: its task is in flight.
    assert made.in_flight_client.tolist() == [0]
    assert made.in_flight_task.tolist() == [2]


def test_distinct_clients_changes_nothing_where_there_are_no_repeats() -> None:
    model = fb.DelayModel(n_clients=20, compute=fb.Constant(1.0))
    plain = fb.schedule(model, fb.FedBuff(5), server_steps=30)
    distinct = fb.schedule(model, fb.FedBuff(5, distinct_clients=True), server_steps=30)
    np.testing.assert_array_equal(distinct.client, plain.client)
    np.testing.assert_array_equal(distinct.version, plain.version)


@pytest.mark.parametrize(
    ("n_clients", "concurrency", "words"),
    [(3, None, "needs as many clients, there are 3"), (10, 3, "concurrency is 3")],
)
def test_distinct_clients_that_cannot_fill_a_buffer_are_refused(n_clients: int, concurrency: Any, words: str) -> None:
    model = fb.DelayModel(n_clients=n_clients, compute=fb.Exponential(1.0))
    with pytest.raises(ValueError, match=f"distinct_clients: .*{words}"):
        fb.schedule(model, fb.FedBuff(4, distinct_clients=True), concurrency, server_steps=3)


def test_an_arrival_log_refuses_distinct_clients() -> None:
    log = fb.ArrivalLog([0, 0], [1.0, 2.0], version=[0, 0])
    with pytest.raises(ValueError, match="distinct_clients: an arrival log is replayed as it happened"):
        fb.schedule(log, fb.FedBuff(2, distinct_clients=True))


def test_clients_may_outnumber_what_an_event_can_name() -> None:
    """An event names one of 2^26 tasks in flight, not a client."""
    n = 70_000_000
    made = fb.schedule(model(n), FedBuff(10), 50, arrivals=2000, seed=3)
    made.check()
    assert made.client.max() > 2**26
    starts = np.lexsort((made.start_time, made.client))
    assert np.all(np.diff(made.task[starts])[np.diff(made.client[starts]) == 0] == 1)
    with pytest.raises(ValueError, match="concurrency: expected at most 67,108,862 tasks in flight"):
        fb.schedule(model(n), FedBuff(10), arrivals=10)


def test_client_speeds_are_drawn_in_blocks() -> None:
    n = 20_000
    speed = fb.LogNormal(0.0, 1.0)
    drawn = fb.schedule(model(n, compute=fb.Constant(1.0), client_speed=speed), FedBuff(10), arrivals=n, seed=5)
    first = drawn.task == 0
    took = np.full(n, np.nan)
    took[drawn.client[first]] = (drawn.arrive_time - drawn.start_time)[first]
    expected = draw("log_normal", (0.0, 1.0), None, 5, np.arange(n), 0, COMPONENT_SPEED)
    known = ~np.isnan(took)
    np.testing.assert_array_equal(took[known], expected[known])
    assert known[: n // 2].any() and known[n // 2 :].any()


@pytest.mark.parametrize(("n", "concurrency"), [(9, 9), (40, 37), (200, 7)])
def test_clients_are_drawn_from_an_array_by_one_word_each(n: int, concurrency: int) -> None:
    """The rule as docs/schedules.md says it, followed through a schedule."""
    made = fb.schedule(model(n), FedBuff(3), concurrency, arrivals=300, seed=8)
    idle = list(range(n))
    low, high = key_words(8)

    def draw(start: int) -> int:
        w0, w1, _, _ = philox_words(low, high, *(np.uint64(x) for x in (start, 0, 0)), STREAM_CLIENT_SELECTION)
        at = (int(w0) << 32 | int(w1)) * len(idle) >> 64
        client, idle[at] = idle[at], idle[-1]
        idle.pop()
        return client

    first = [draw(start) for start in range(concurrency)]
    started = np.concatenate([made.start_time, made.in_flight_start_time])
    clients = np.concatenate([made.client, made.in_flight_client])
    assert sorted(clients[started == 0.0].tolist()) == sorted(first)
    after = clients[np.argsort(started, kind="stable")][concurrency:]
    for start, ended in enumerate(made.client[:-1].tolist()):  # every end is followed by a start
        idle.append(ended)
        assert after[start] == draw(concurrency + start)
