"""What notebooks show: well-formed, without scripts, escaped, and small however large the thing is."""

from __future__ import annotations

import io
import sys
import types
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._base import html, progress
from fedbuff._base.progress import in_notebook, progress_bar


def parsed(text: str) -> ElementTree.Element:
    assert "<script" not in text.lower() and len(text) < 60_000
    return ElementTree.fromstring(text)


def words(text: str) -> str:
    return " ".join(" ".join(parsed(text).itertext()).split())


DELAYS = fb.DelayModel(n_clients=40, compute=fb.Exponential(1.0))
K = fb.FedBuff(4, staleness=fb.staleness.Polynomial(0.5))


@pytest.fixture(scope="module")
def schedule() -> fb.Schedule:
    return fb.schedule(DELAYS, K, 12, server_steps=100, seed=1)


@pytest.fixture(scope="module")
def result(schedule: fb.Schedule) -> fb.Result:
    problem = fb.Quadratic(np.ones((40, 3)))
    return fb.replay(problem, schedule, fb.LocalSGD(steps=1, lr=0.1), strategy=K, eval_every=10)


def test_a_schedule_shows_its_summary_staleness_and_beginning(schedule: fb.Schedule) -> None:
    shown = words(schedule._repr_html_())
    assert f"server steps {schedule.n_steps}" in shown and "400 used" in shown and f"tau = {schedule.tau}" in shown
    tree = parsed(schedule._repr_html_())
    pictures = tree.findall(".//{http://www.w3.org/2000/svg}svg")
    assert len(pictures) == 2 and all(picture.get("aria-label") for picture in pictures)
    bars = pictures[1].findall("{http://www.w3.org/2000/svg}rect")
    assert 12 <= len(bars) <= 240
    lines = pictures[1].findall("{http://www.w3.org/2000/svg}line")
    assert 2 <= len(lines) <= 24


def test_a_large_schedule_is_shown_as_small() -> None:
    large = fb.schedule(DELAYS, K, 40, arrivals=200_000)
    assert len(large._repr_html_()) < 60_000


def test_a_schedule_of_nothing_and_one_without_start_times() -> None:
    log = fb.ArrivalLog([0, 1], arrive_time=[1.0, 2.0], version=[0, 0])
    assert "Schedule" in words(fb.schedule(log, fb.FedBuff(2))._repr_html_())
    assert "Schedule" in words(fb.schedule(DELAYS, K, 12, max_time=1e-9)._repr_html_())


def test_a_result_shows_its_curves(result: fb.Result) -> None:
    shown = words(result._repr_html_())
    assert "loss" in shown and "server steps 100" in shown and "weights 3 of float64" in shown
    assert "array(" not in repr(result)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (fb.Trace([0, 1, 0], [1.0, 2.0, 3.0], ok=[True, True, False]), "clients 2 rows 3 failed 1"),
        (fb.Quadratic(np.ones((7, 2))), "clients 7 weights 2 of float64"),
        (fb.Callback(lambda client, task, w: w, w0=np.ones(3), n_clients=2000), "clients 2,000 weights 3 of float64"),
        (fb.Logistic(np.ones((4, 2)), [0, 1, 0, 1], [0, 0, 0, 1]), "rows 4, 1 to 3 a client"),
        (fb.FedBuff(4, optimizer=fb.SGD(momentum=0.5)), "optimizer SGD(momentum=0.5"),
        (fb.FedAsync(0.5, max_staleness=3), "max_staleness 3"),
        (fb.FedAvg(rate=0.1), "rate 0.1"),
    ],
)
def test_other_things_show_what_they_are(made: Any, said: str) -> None:
    assert said in words(made._repr_html_())


def test_results_of_a_sweep_are_a_table_of_arms() -> None:
    base = {
        "problem": {"kind": "quadratic", "centers": [[0.0], [2.0]]},
        "trace": {"kind": "model", "n_clients": 2, "compute": {"kind": "exponential", "scale": 1.0}},
        "strategy": {"kind": "fedbuff", "buffer_size": 2},
        "local": {"steps": 1, "lr": 0.5},
        "schedule": {"server_steps": 10},
    }
    shown = words(fb.sweep(base, {"strategy.buffer_size": [1, 2]}, seeds=[0, 1])._repr_html_())
    assert "4 runs of 2 arms" in shown and "strategy.buffer_size" in shown


def test_text_is_escaped_and_pictures_leave_out_what_is_not_finite() -> None:
    assert "a <b> & c" in words(html.table("a <b> & c", {"<x>": "&"}))
    assert html.line(np.array([1.0, np.nan]), "one point") == ""
    assert html.line(np.array([1.0, np.inf, 2.0, 3.0]), "three").count(",") == 3
    assert html.bars(np.zeros(5), "nothing") == "" == html.timeline([], [], 1.0, "nothing")
    assert html.bars(np.arange(1000.0), "many").count("<rect") <= 60


def test_progress_is_shown_in_a_notebook_and_ends_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_notebook() and progress_bar(3, " x", None).disable
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert in_notebook()
    bar = progress_bar(3, " x", None)
    assert not bar.disable
    bar.close()
    with pytest.raises(TypeError, match="progress: expected"):
        progress_bar(3, " x", 1)  # type: ignore[arg-type]


def test_the_bar_of_a_replay_that_stops_early_is_whole(schedule: fb.Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    problem = fb.Quadratic(np.ones((40, 3)))
    local = fb.LocalSGD(steps=1, lr=0.1)
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    fb.replay(problem, schedule, local, strategy=K)
    assert shown.getvalue() == ""  # it took no time, and nobody asked for a bar
    fb.replay(problem, schedule, local, strategy=K, stop=fb.Stop(server_steps=10), progress=True)
    assert "100%" in shown.getvalue() and "40.0/40.0" in shown.getvalue()
