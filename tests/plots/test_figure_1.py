"""examples/figure_1.py runs, and its schedules are the paper's setting."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import fedbuff as fb

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "figure_1.py"


def test_figure_1(tmp_path, monkeypatch) -> None:
    drawn = []
    real = fb.plots.schedule

    def record(schedule, *arguments, **options):
        drawn.append((schedule, options["local_steps"]))
        return real(schedule, *arguments, **options)

    monkeypatch.setattr(fb.plots, "schedule", record)
    path = tmp_path / "figure.png"
    runpy.run_path(str(EXAMPLE))["main"](str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
    (buffered, q_left), (synchronous, q_right) = drawn
    assert (buffered.n_clients, buffered.buffer_size, q_left, q_right) == (5, 2, 3, 3)
    assert buffered.n_steps > 2 * synchronous.n_steps
    assert synchronous.buffer_size == 0
    started = [synchronous.started_on_0, *synchronous.step_started.tolist()]
    assert started == [3] * len(started)
    for schedule, _ in drawn:
        schedule.check()
    matplotlib.pyplot.close("all")
