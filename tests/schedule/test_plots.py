"""The picture of a schedule: what is drawn where."""

from __future__ import annotations

import numpy as np
import pytest
from test_schedule_class import MADE, columns_of

import fedbuff as fb

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    matplotlib.pyplot.close("all")


def boxes(ax, hatch):
    """Centres of the vertical bands, hatched or solid."""
    bands = [c for c in ax.collections if c.get_zorder() == 1 and bool(c.get_hatch()) == hatch]
    return sorted(float(path.vertices[:4, 0].mean()) for band in bands for path in band.get_paths())


@pytest.mark.parametrize("name", ["buffered", "left", "fedavg"])
def test_a_line_at_every_upload(name) -> None:
    schedule = MADE[name]
    ax = fb.plots.schedule(schedule)
    reached = np.isin(schedule.status, [fb.Status.USED, fb.Status.LEFT_IN_BUFFER])
    assert boxes(ax, hatch=False) == pytest.approx(schedule.step_time.tolist())
    waiting = np.setdiff1d(schedule.arrive_time[reached], schedule.step_time)
    assert boxes(ax, hatch=True) == pytest.approx(waiting.tolist())


def test_bars_have_download_local_steps_and_upload() -> None:
    trace = fb.Trace([0], [3.0], download=[1.0], upload=[2.0])
    rows = [(0, 0, 0, 0, 0, 0.0, 6.0, 0)]
    schedule = fb.Schedule(
        **columns_of(rows, [(6.0, 0)], []),
        n_clients=1,
        buffer_size=1,
        concurrency=1,
        seed=0,
        started_on_0=1,
        description={},
    )
    ax = fb.plots.schedule(schedule, trace, local_steps=3)
    bars = [path.vertices[:2, 0].tolist() for c in ax.collections if c.get_zorder() == 3 for path in c.get_paths()]
    assert bars == [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0], [3.0, 4.0], [4.0, 6.0]]


def bars_of(ax):
    return [path.vertices[:2, 0].tolist() for c in ax.collections if c.get_zorder() == 3 for path in c.get_paths()]


def labels_of(ax):
    return [text.get_text() for text in ax.figure.legends[0].get_texts()]


def test_bars_show_waits_at_the_client_and_of_uploads() -> None:
    trace = fb.Trace([0], [1.0], upload=[1.0])
    queued = fb.schedule(trace, fb.FedBuff(1), 2, arrivals=2, queues=True)
    ax = fb.plots.schedule(queued, trace)
    assert sorted(bars_of(ax)) == [[0.0, 1.0], [0.0, 2.0], [1.0, 2.0], [2.0, 3.0], [2.0, 4.0], [3.0, 4.0]]
    assert "waits at its client" in labels_of(ax)
    two = fb.Trace([0, 1], [1.0, 1.0], upload=[1.0, 1.0])
    shared = fb.schedule(two, fb.FedBuff(2), arrivals=2, uplink=1.0, server_time=0.5)
    ax = fb.plots.schedule(shared, two)
    assert sorted(bars_of(ax)) == [[0.0, 1.0], [0.0, 1.0], [1.0, 2.0], [1.0, 2.0], [2.0, 3.5], [2.0, 4.0], [3.5, 4.0]]
    assert "shared uplink or server" in labels_of(ax)
    assert not {"waits at its client", "shared uplink or server"} & {*labels_of(fb.plots.schedule(MADE["buffered"]))}


def test_rows_have_the_names_of_the_trace() -> None:
    trace = fb.Trace(["phone", "laptop"], [3.0, 1.0])
    ax = fb.plots.schedule(fb.schedule(trace, fb.FedBuff(1), server_steps=4), trace)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["laptop", "phone"]


def test_until_cuts_and_axes_are_used() -> None:
    _, ax = matplotlib.pyplot.subplots()
    schedule = MADE["drops"]
    middle = float(schedule.step_time[5])
    assert fb.plots.schedule(schedule, ax=ax, until=middle, legend=False) is ax
    assert len(boxes(ax, hatch=False)) == 6
    assert ax.get_xlim()[1] < middle * 1.05


def test_legend_names_what_was_not_used(tmp_path) -> None:
    ax = fb.plots.schedule(MADE["drops"])
    texts = [text.get_text() for text in ax.figure.legends[0].get_texts()]
    assert texts == ["task", "upload that waits", "upload at which the server steps", "not used"]
    ax.figure.savefig(tmp_path / "s.png")
    assert (tmp_path / "s.png").stat().st_size > 10_000


def test_refusals() -> None:
    with pytest.raises(ValueError, match="schedule: expected arrivals to draw, got none"):
        fb.plots.schedule(MADE["buffered"][:0])
    state = MADE["buffered"]._state()
    unknown = fb.Schedule(**{**state, "start_time": np.full_like(state["start_time"], np.nan)})
    with pytest.raises(ValueError, match="schedule: expected start times"):
        fb.plots.schedule(unknown)
