"""The timeline's columns and levels against the schedule that they come from."""

from __future__ import annotations

import base64
import gzip

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._report import _levels
from fedbuff._report._levels import (
    IN_FLIGHT,
    Timeline,
    packed,
    shades,
)

DELAYS = fb.DelayModel(
    n_clients=30, compute=fb.Exponential(1.0), client_speed=fb.LogNormal(0.0, 1.0), wait=fb.Constant(0.1)
)


@pytest.fixture
def schedule() -> fb.Schedule:
    return fb.schedule(DELAYS, fb.FedBuff(4, max_staleness=6), concurrency=12, server_steps=400, seed=1)


def seconds(timeline: Timeline, ticks: np.ndarray) -> np.ndarray:
    return timeline.begin + ticks.astype(float) * timeline.tick


def test_columns_are_the_schedule(schedule: fb.Schedule) -> None:
    timeline = Timeline.of(schedule)
    n = schedule.n_arrivals
    resolution = schedule.end_time / 2**31
    assert timeline.n_tasks == n + schedule.in_flight_client.size and np.all(timeline.status[n:] == IN_FLIGHT)
    assert seconds(timeline, timeline.end)[:n] == pytest.approx(schedule.arrive_time, abs=resolution)
    assert seconds(timeline, timeline.start)[:n] == pytest.approx(schedule.start_time, abs=resolution)
    for name in ("client", "task", "version", "staleness", "status"):
        assert np.array_equal(getattr(timeline, name)[:n], getattr(schedule, name))
    assert np.array_equal(timeline.staleness[n:], schedule.n_steps - schedule.in_flight_version)


def test_columns_tell_how_long_tasks_wait() -> None:
    delays = fb.DelayModel(n_clients=4, compute=fb.Exponential(1.0), upload=fb.Constant(0.25))
    plain = Timeline.of(fb.schedule(delays, fb.FedBuff(2), 4, arrivals=60))
    assert plain.queued is None and plain.shared is None and "queued" not in plain.payload()["columns"]
    shared = fb.schedule(delays, fb.FedBuff(2), 4, arrivals=60, uplink=1.0, server_time=0.1)
    timeline = Timeline.of(shared, delays)
    assert timeline.queued is None and timeline.shared is not None
    spent = shared.arrive_time - shared.start_time
    alone = shared.parts(delays)["compute"] + 0.25
    waited = timeline.shared[:60].astype(float) * timeline.tick
    np.testing.assert_allclose(waited, np.maximum(spent - alone, 0.0), atol=1e-6)
    assert waited.min() > 0.1 - 1e-6
    routed = fb.schedule(delays, fb.FedBuff(2), 9, arrivals=60, queues=True)
    timeline = Timeline.of(routed)
    assert timeline.queued is not None and {"queued"} <= timeline.payload()["columns"].keys()
    work = routed.arrive_time - routed.start_time - timeline.queued[:60].astype(float) * timeline.tick
    np.testing.assert_allclose(work, routed.parts(delays)["compute"] + 0.25, atol=1e-6)


@pytest.mark.parametrize("groups", [64, 7])
def test_a_cell_is_the_mean_over_tasks_at_work(
    schedule: fb.Schedule, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_levels, "MOST_GROUPS", groups)
    monkeypatch.setattr(_levels, "WINDOW_BINS", 25)
    timeline = Timeline.of(schedule)
    level = timeline.level(1)
    assert level.shape == (min(30, groups), 100)
    edges = np.linspace(0.0, 1.0, 101) * (2**32 - 1)
    for group in range(level.shape[0]):
        of_group = timeline.groups[timeline.client] == group
        for cell in range(100):
            inside = of_group & (timeline.start < edges[cell + 1]) & (timeline.end >= edges[cell])
            inside |= of_group & (cell == 99) & (timeline.end == 2**32 - 1)
            expected = timeline.staleness[inside].mean() if inside.any() else np.nan
            assert level[group, cell] == pytest.approx(expected, nan_ok=True)


def test_levels_until_few_enough_tasks_remain(schedule: fb.Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Timeline.of(schedule).n_levels == 0
    monkeypatch.setattr(_levels, "MOST_TASKS", 100)
    timeline = Timeline.of(schedule)
    assert timeline.n_levels == 3  # 1,6xx tasks, 400, 100, 25
    sizes = [len(gzip.decompress(base64.b64decode(text))) for text in timeline.payload()["levels"]]
    assert sizes == [30 * 400, 30 * 1600, 30 * 6400]


def test_shades() -> None:
    made = shades(np.array([np.nan, 0.0, 2.5, 10.0, 99.0]), 10)
    assert made.tolist() == [0, 1, 128, 255, 255]


def test_packed_is_the_same_every_time() -> None:
    values = np.arange(1000, dtype=np.uint8)
    assert packed(values) == packed(values.copy())
    assert gzip.decompress(base64.b64decode(packed(values))) == values.tobytes()


def test_a_log_without_starts_has_points() -> None:
    log = fb.ArrivalLog([0, 1, 0], [1.0, 2.0, 3.0], version=[0, 0, 1])
    timeline = Timeline.of(fb.schedule(log, fb.FedBuff(1)))
    assert np.array_equal(timeline.start, timeline.end)
