"""What is drawn where: the numbers in the pictures against those of schedules and histories."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import fedbuff as fb

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

DELAYS = fb.DelayModel(n_clients=20, compute=fb.Exponential(1.0), client_speed=fb.LogNormal(0.0, 1.0))
SCHEDULE = fb.schedule(DELAYS, fb.FedBuff(4), concurrency=8, server_steps=100, seed=2)
OTHER = fb.schedule(DELAYS, fb.FedBuff(2), concurrency=16, server_steps=100, seed=2)


@pytest.fixture(autouse=True)
def close_figures() -> Any:
    yield
    matplotlib.pyplot.close("all")


def line(ax: Any, number: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return ax.lines[number].get_xdata(), ax.lines[number].get_ydata()


def test_staleness() -> None:
    ax = fb.plots.staleness({"few": SCHEDULE, "many": OTHER})
    for patch, schedule in zip(ax.patches, (SCHEDULE, OTHER), strict=True):
        heights, edges, _ = patch.get_data()
        used = schedule.staleness[schedule.status == fb.Status.USED]
        assert np.unique(np.diff(edges)).size == 1 and edges[-1] > used.max()
        assert heights == pytest.approx(np.histogram(used, edges)[0] / used.size)
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts[0] == f"few: mean {SCHEDULE.staleness.mean():.2f}, max {SCHEDULE.staleness.max()}"
    styles = {(patch.get_edgecolor(), str(patch.get_linestyle())) for patch in ax.patches}
    assert len(styles) == 2


def test_staleness_over_time() -> None:
    ax = fb.plots.staleness_over_time(SCHEDULE, bins=10)
    x, mean = line(ax)
    width = SCHEDULE.end_time / 10
    for at, value in zip(x, mean, strict=True):
        inside = (SCHEDULE.arrive_time >= at - width / 2) & (SCHEDULE.arrive_time < at + width / 2)
        used = inside & (SCHEDULE.status == fb.Status.USED)
        assert value == pytest.approx(SCHEDULE.staleness[used].mean(), abs=0.2)


def test_in_flight_is_the_concurrency() -> None:
    ax = fb.plots.in_flight({"eight": SCHEDULE, "sixteen": OTHER})
    assert np.all(line(ax, 0)[1][:-1] == 8) and np.all(line(ax, 1)[1][:-1] == 16)


def test_buffer_fill_empties_at_each_step() -> None:
    ax = fb.plots.buffer_fill(SCHEDULE)
    x, fill = line(ax)
    assert fill.max() == 4 and fill.min() == 0
    assert np.array_equal(x[1:][fill[1:] == 0], SCHEDULE.step_time)
    assert np.all(line(fb.plots.buffer_fill(SCHEDULE, until=3.0))[0] <= 3.0)


def test_contribution() -> None:
    ax = fb.plots.contribution({"a": SCHEDULE, "b": OTHER})
    heights = [bar.get_height() for bar in ax.patches]
    assert heights[:10] == pytest.approx(SCHEDULE.summary()["participation_by_speed"])
    assert heights[10:] == pytest.approx(OTHER.summary()["participation_by_speed"])
    assert len({bar.get_hatch() for bar in ax.patches}) == 2
    log = fb.ArrivalLog([0, 1], [1.0, 2.0], version=[0, 0])
    with pytest.raises(ValueError, match="how fast its clients are"):
        fb.plots.contribution(fb.schedule(log, fb.FedBuff(1)))


def test_contribution_of_few_clients_has_a_bar_for_each() -> None:
    few = fb.schedule(fb.DelayModel(4, compute=fb.Exponential(1.0)), fb.FedBuff(2), server_steps=50, seed=1)
    ax = fb.plots.contribution(few)
    assert [bar.get_height() for bar in ax.patches] == few.summary()["participation_by_speed"]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["fastest", "2", "3", "slowest"]
    both = fb.plots.contribution({"four": few, "twenty": SCHEDULE})  # bars of other widths would cover each other
    for patch, schedule in zip(both.patches, (few, SCHEDULE), strict=True):
        heights, edges, _ = patch.get_data()
        assert heights.tolist() == schedule.summary()["participation_by_speed"] and edges[[0, -1]].tolist() == [0, 1]
    assert list(line(both)[1]) == [1.0, 1.0]


def test_trace() -> None:
    trace = fb.Trace(["slow"] * 3 + ["fast"] * 3, [5.0, 6.0, 7.0, 1.0, 2.0, 3.0])
    ax = fb.plots.trace(trace)
    assert line(ax)[1].tolist() == [2.0, 6.0]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["fast", "slow"]


def history(shift: float, end: int = 10) -> dict[str, np.ndarray]:
    step = np.arange(end + 1)
    return {"step": step, "time": 2.0 * step, "updates": 3 * step, "loss": 1.0 / (1 + step) + shift}


def test_convergence_with_a_band_over_seeds() -> None:
    ax = fb.plots.convergence({"one": [history(0.0), history(0.2, end=6)], "two": history(1.0)}, against="updates")
    x, mean = line(ax)
    assert x.tolist() == (3 * np.arange(7)).tolist()  # as far as both reach
    assert mean == pytest.approx(1.0 / (1 + np.arange(7)) + 0.1)
    (band,) = ax.collections
    assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(1.2)
    assert line(ax, 1)[1] == pytest.approx(history(1.0)["loss"])
    with pytest.raises(ValueError, match="metric: expected one of step, time, updates, loss, got 'accuracy'"):
        fb.plots.convergence(history(0.0), metric="accuracy")
    with pytest.raises(ValueError, match="against: expected one of time, step, updates"):
        fb.plots.convergence(history(0.0), against="epochs")


def test_a_result_is_drawn_as_its_history() -> None:
    problem = fb.Quadratic(np.zeros((4, 2)))
    schedule = fb.uniform_arrivals(n_clients=4, buffer_size=2, max_staleness=1, server_steps=20, seed=0)
    run = fb.replay(
        problem, schedule, fb.LocalSGD(1, 0.5), w0=np.ones(2), eval_every=5, metrics=("loss", "grad_norm_sq")
    )
    assert line(fb.plots.convergence(run, against="step"))[1] == pytest.approx(run.history["loss"])
    ax = fb.plots.bound(run, 3.0)
    assert np.all(line(ax, 0)[1] == 3.0) and line(ax, 1)[1] == pytest.approx(run.history["grad_norm_sq_mean"])


def test_a_sweep_is_drawn_as_its_bands() -> None:
    base = {
        "problem": {"kind": "quadratic", "centers": [[0.0], [2.0], [7.0]], "noise_variance": 1.0},
        "trace": {"kind": "model", "n_clients": 3, "compute": {"kind": "exponential", "scale": 1.0}},
        "strategy": {"kind": "fedbuff", "buffer_size": 2},
        "local": {"steps": 1, "lr": 0.1, "batch_size": 1},
        "schedule": {"server_steps": 20},
    }
    results = fb.sweep(base, {"strategy.buffer_size": [2, -1, 3]}, seeds=range(5), progress=False)
    for axis, label in (("time", "virtual time (s)"), ("step", "server steps"), ("updates", "client updates")):
        ax = fb.plots.sweep(results, metric="loss", axis=axis, level=0.9)
        bands = results.band("loss", axis, level=0.9)
        assert ax.get_xlabel() == label and len(ax.lines) == len(bands) == 2
        for number, band in enumerate(bands):
            assert line(ax, number)[1] == pytest.approx(band.mean)
            edge = ax.collections[number].get_paths()[0].vertices[:, 1]
            assert edge.max() == pytest.approx(band.high.max()) and edge.min() == pytest.approx(band.low.min())
        texts = [text.get_text() for text in ax.get_legend().get_texts()]
        assert texts == ["buffer_size=2 (n=5)", "buffer_size=3 (n=5)"]


def test_rate_beside_the_limit() -> None:
    ax = fb.plots.rate([1e4, 1e6], {"fused": [8.0, 9.0], "plain": [4.0, 5.0]}, limit=10.0)
    assert [line(ax, number)[1].tolist() for number in range(3)] == [[8.0, 9.0], [4.0, 5.0], [10.0, 10.0]]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["fused", "plain", "limit"]


def test_lines_differ_in_grey() -> None:
    """Neighbouring lines differ in lightness, and all in dashes."""
    from fedbuff.plots import _style

    grey = [float(np.dot(matplotlib.colors.to_rgb(colour), [0.299, 0.587, 0.114])) for colour in _style.COLOURS]
    assert all(abs(a - b) > 0.1 for a, b in itertools.pairwise(grey))
    assert len(set(map(str, _style.DASHES))) == len(_style.COLOURS)


def test_axes_are_used_and_files_written(tmp_path: Any) -> None:
    _, ax = matplotlib.pyplot.subplots()
    assert fb.plots.staleness(SCHEDULE, ax=ax) is ax
    for ending in ("svg", "png"):
        ax.figure.savefig(tmp_path / f"s.{ending}")
        assert (tmp_path / f"s.{ending}").stat().st_size > 5000


def grid(**options: Any) -> Any:
    base = {
        "problem": {"kind": "quadratic", "centers": [[0.0], [2.0], [4.0], [9.0]]},
        "trace": {"kind": "model", "n_clients": 4, "compute": {"kind": "exponential", "scale": 1.0}},
        "strategy": {"kind": "fedbuff", "buffer_size": 2},
        "local": {"steps": 1, "lr": 0.1},
        "schedule": {"server_steps": 40},
        "replay": {"eval_every": 1},
    }
    return fb.sweep(base, {"strategy.buffer_size": [1, 2, 4], "schedule.concurrency": [1, 4]} | options, seeds=[0, 1])


def test_a_heat_map_has_the_medians_of_its_arms() -> None:
    results = grid()
    loss = float(np.median(results.column("loss")))
    ax = fb.plots.heat_map(results, loss)
    assert ax.get_xlabel() == "schedule.concurrency" and ax.get_ylabel() == "strategy.buffer_size"
    texts = [text.get_text() for text in ax.texts]
    rows = results.time_to("loss", loss).rows
    wanted = ["never" if not np.isfinite(row["median"]) else f"{row['median']:.4g}" for row in rows]
    assert texts == wanted and len(set(texts)) > 2
    assert "never" in [text.get_text() for text in fb.plots.heat_map(results, -1.0).texts]
    with pytest.raises(ValueError, match="x, y: expected two of"):
        fb.plots.heat_map(results, loss, x="local.lr")
    with pytest.raises(ValueError, match=r"results: expected one arm .* as local\.steps varies too"):
        fb.plots.heat_map(grid(**{"local.steps": [1, 2]}), loss)


def test_two_seeds_have_no_band_and_three_have_one_that_is_possible() -> None:
    two = fb.plots.sweep(grid())
    assert not two.collections and len(two.lines) == 6
    assert two.get_legend().get_bbox_to_anchor().x0 > two.get_window_extent().x1 - 5  # beside six curves, not over them


def test_twenty_lines_stay_apart() -> None:
    from fedbuff.plots._style import line_style

    styles = {(style["color"], str(style["linestyle"])) for style in map(line_style, range(49))}
    assert len(styles) == 49
