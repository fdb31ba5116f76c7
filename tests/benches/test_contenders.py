"""The benches compare like with like: rivals reproduce fedbuff's update, ratios are ratios, the page adds up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHES = Path(__file__).parents[2] / "benches"


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHES))


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    import ours
    from rivals import data

    monkeypatch.setattr(data, "FOLDER", tmp_path)
    monkeypatch.setattr(ours, "FOLDER", tmp_path)
    return data


def test_rivals_reproduce_an_update_or_are_refused(data: Any) -> None:
    import ours
    from rivals import with_numpy

    ours.answer("W2")
    trainer = with_numpy.Trainer("W2")
    assert trainer.w.dim == 20
    path = data.answer_path("W2")
    with np.load(path) as file:
        wrong = {**file, "delta": file["delta"] * 1.001}
    np.savez(path, **wrong)
    with pytest.raises(AssertionError, match=r"W2: this rival's delta differs from fedbuff's by 0\.001"):
        with_numpy.Trainer("W2")


def test_rivals_learn_as_much(data: Any) -> None:
    import ours
    from rivals import with_numpy

    ours.answer("W2")
    w = data.workload("W2")
    losses = [data.loss_of(w, side.replay("W2", "20000")()["model"]) for side in (ours, with_numpy)]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert losses[0] < 0.5 * data.loss_of(w, data.initial_model(w))


@pytest.mark.parametrize("variant", ["plain", "bulk"])
def test_event_loops_have_the_same_staleness(data: Any, variant: str) -> None:
    import ours
    from rivals import with_heapq

    mine = ours.schedule("50", "20000")()["staleness"]
    assert with_heapq.schedule("50", "20000", variant)()["staleness"] == pytest.approx(mine, rel=0.02)


def test_sparse_rows_have_the_shape_of_the_data_set(data: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    w = data.workload("CSR")
    monkeypatch.setattr(data, "__file__", str(tmp_path / "data.py"))
    made = data.sparse_rows_of(w)
    assert not made.recorded and len(made.y) == w.n_clients * w.rows
    dense = made.dense(w.features)
    assert (dense.sum(1) == 14).all() and dense.max() == 1


def test_a_process_that_takes_turns() -> None:
    run = [sys.executable, str(BENCHES / "contend.py"), "heapq", "schedule", "5", "1000"]
    done = subprocess.run(run, input="\n\n", capture_output=True, text=True, check=True)
    ready, first, second = map(json.loads, done.stdout.splitlines())
    assert ready == {"ready": True} and first["amount"] == 1000 and first["staleness"] == second["staleness"]


def test_compare_in_turn() -> None:
    from compare import Missing, compare, present, python_with, ratio

    first, second = compare(["heapq schedule 5 4000", "heapq schedule 5 4000 plain"], turns=3)
    assert len(first.rates) == len(second.rates) == 3
    times = ratio(first, second)
    assert times.best == first.rate / second.rate and times.low <= times.high
    with pytest.raises(AssertionError, match="staleness differs"):
        compare(["heapq schedule 5 1000", "heapq schedule 50 1000"], turns=1)
    assert present(["heapq schedule 5 10", "no_such_library replay W1 10"]) == ["heapq schedule 5 10"]
    with pytest.raises(Missing, match="no_such_library is in no environment"):
        python_with("no_such_library")


def test_bars() -> None:
    from page import Bar, bars

    bar = Bar("x", 2.0, 1.5, 1.4, 1.6, "W2")
    assert not bar.met and bar.line() == "| x | at least 2.00 | 1.50 | 1.40 to 1.60 | missed by 25% |"
    assert Bar("y", 1.1, 1.05, 0, 0, "", at_most=True).met
    duel = {
        "rates": {"ours replay W2 9": 3.0, "numba replay W2 9": 2.0},
        "ratios": {"numba replay W2 9": [1.5, 1.4, 1.6]},
    }
    (found,) = bars({"W2": {"data": {"numba": duel}}})
    assert (found.what, found.wanted, found.got, found.run) == ("W2 / Numba by hand", 1.2, 1.5, "ours replay W2 9")
