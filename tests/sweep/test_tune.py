"""Successive halving: the known best is found, with less than the whole grid, always the same way."""

from __future__ import annotations

import json
import math
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._sweep import tune as _tune

BASE: dict[str, Any] = {
    "problem": {"kind": "quadratic", "centers": [[4.0 + i % 2, float(i % 3)] for i in range(12)]},
    "trace": {"kind": "model", "n_clients": 12, "compute": {"kind": "exponential", "scale": 1.0}},
    "strategy": {"kind": "fedbuff", "buffer_size": 4},
    "local": {"steps": 1, "lr": 0.05},
    "schedule": {"max_time": 20.0, "concurrency": 6},
    "replay": {"eval_every": 1},
}
LOWEST = 0.5 * float(np.var(BASE["problem"]["centers"], axis=0).sum())
TARGET = {"loss": LOWEST + 0.05}
GRID = {"local.lr": [0.005, 0.02, 0.08, 0.3]}


def tune(out: Path | None = None, **options: Any) -> _tune.TuneResults:
    return fb.tune(BASE, **{"grid": GRID, "target": TARGET, "seeds": 4, "eta": 2, "progress": False} | options, out=out)


@pytest.fixture(scope="module")
def found() -> Any:
    return tune()


def test_the_known_best_wins(found: Any) -> None:
    """Without noise and with delays that leave every step size stable, the largest is the fastest."""
    assert found.winner == {"local.lr": 0.3}
    assert [row["local.lr"] for row in found.ranking.rows] == [0.3, 0.08, 0.02, 0.005]
    times = [row["median"] for row in found.ranking.rows]
    assert times == sorted(times)
    first = found.ranking.rows[0]
    assert first["rung"] == 2 and first["n"] == first["reached"] == 4
    assert first["low"] <= first["mean"] <= first["high"]
    whole = fb.sweep(BASE, GRID, seeds=range(4), progress=False)
    medians = [row["median"] for row in whole.time_to("loss", TARGET["loss"]).rows]
    assert int(np.argmin(medians)) == 3 and medians[3] == first["median"]


def test_budgets_and_seeds_grow(found: Any) -> None:
    first, second = found.rungs
    assert len(first.arms) == 4 and len(second.arms) == 2
    assert set(first.column("seed")) == {0, 1} and set(second.column("seed")) == {0, 1, 2, 3}
    assert first.column("time").max() <= 10.0 < second.column("time").max() <= 20.0


def test_less_is_spent_than_on_the_whole_grid(found: Any) -> None:
    made = sum(int(rung.column("updates").sum()) for rung in found.rungs)
    whole = fb.sweep({**BASE, "replay": {"eval_every": 1, "stop": TARGET}}, GRID, seeds=range(4), progress=False)
    assert found.updates == made < 0.8 * whole.column("updates").sum()
    assert found.full_updates == pytest.approx(whole.column("updates").sum(), rel=0.25)
    assert "best: lr=0.3" in str(found) and "of what the whole grid would take" in str(found)


def test_runs_end_at_the_target(found: Any) -> None:
    last = found.rungs[-1]
    assert set(last.column("exit_reason")[last.column("arm") == 0]) == {"loss"}


@pytest.mark.parametrize("n", [2, 3, 4, 5, 9, 10, 27, 28])
@pytest.mark.parametrize("eta", [2, 3, 4])
def test_rungs(n: int, eta: int) -> None:
    search = _tune._Search(
        fb.StudyConfig({**BASE, "target": TARGET}), [{"local.lr": 0.1 + i} for i in range(n)], range(9), eta
    )
    sizes = [search.n_arms(rung) for rung in range(search.n_rungs)]
    assert sizes[0] == n and sizes[-1] <= max(2, eta) and sizes[-1] >= 2
    assert all(after == max(2, math.ceil(n / eta ** (at + 1))) for at, after in enumerate(sizes[1:]))
    assert search.n_seeds(1.0) == 9 and search.at(1.0).schedule_options["max_time"] == 20.0
    assert search.at(1 / eta).schedule_options["max_time"] == pytest.approx(20.0 / eta)


def test_buffer_size_and_concurrency() -> None:
    """Every client at work and a step for each arrival: many steps a second, and a target that staleness leaves."""
    made = fb.tune(
        BASE, buffer_sizes=[1, 12], concurrencies=[1, 12], target=TARGET, seeds=[3, 5], eta=2, progress=False
    )
    assert made.winner == {"strategy.buffer_size": 1, "schedule.concurrency": 12}
    assert made.arms[0] == {"strategy.buffer_size": 1, "schedule.concurrency": 1} and len(made.arms) == 4


def _facts(found: Any) -> Any:
    return found.winner, found.ranking.rows, [rung.column("model_sha256").tolist() for rung in found.rungs]


def _same(first: Any, second: Any) -> None:
    assert json.dumps(_facts(first)) == json.dumps(_facts(second))


def test_threads_and_processes_find_the_same(found: Any) -> None:
    with ThreadPoolExecutor(2) as pool:
        _same(tune(executor=pool), found)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        _same(tune(executor=pool), found)


def test_an_interrupted_search_goes_on(found: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rungs = []
    plain = _tune.sweep

    def second_fails(*given: Any, **options: Any) -> Any:
        rungs.append(options["out"])
        if len(rungs) == 2:
            raise KeyboardInterrupt
        return plain(*given, **options)

    monkeypatch.setattr(_tune, "sweep", second_fails)
    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path / "search")
    assert not (tmp_path / "search" / "tune.json").exists()
    before = sorted(path for path in (tmp_path / "search" / "rung-1").rglob("*") if path.suffix in (".npz", ".parquet"))
    times = [path.stat().st_mtime_ns for path in before]
    monkeypatch.undo()
    again = tune(tmp_path / "search")
    _same(again, found)
    assert [path.stat().st_mtime_ns for path in before] == times  # nothing of the first rung was run again
    _same(tune(tmp_path / "search"), found)
    about = json.loads((tmp_path / "search" / "tune.json").read_text())
    assert about["winner"] == found.winner and about["ranking"][0]["local.lr"] == 0.3
    loaded = fb.load_sweep(tmp_path / "search" / "rung-2")
    assert loaded.column("model_sha256").tolist() == found.rungs[1].column("model_sha256").tolist()


def test_another_target_needs_another_folder(tmp_path: Path) -> None:
    tune(tmp_path / "search")
    with pytest.raises(ValueError, match=r"replay\.stop\.loss: .*give another folder"):
        tune(tmp_path / "search", target={"loss": 1.0})


def test_ties_go_by_the_order_of_the_grid() -> None:
    """Equal numbers of different configurations: bounds on staleness that are never met."""
    made = tune(grid={"strategy.max_staleness": [3000, 2000, 1000]})
    assert made.winner == {"strategy.max_staleness": 3000}
    assert [row["strategy.max_staleness"] for row in made.ranking.rows] == [3000, 2000, 1000]
    with pytest.raises(ValueError, match="two arms are the same"):
        tune(grid={"local.lr": [0.1, 0.1]})


def test_an_arm_that_cannot_run_fails_alone() -> None:
    made = tune(grid={"local.lr": [0.08, 0.3], "strategy.buffer_size": [4, -1]})
    assert made.winner == {"local.lr": 0.3, "strategy.buffer_size": 4}
    assert made.notes == ["2 of 4 arms could not run: lr=0.08, buffer_size=-1; lr=0.3, buffer_size=-1"]
    assert [row["n"] for row in made.ranking.rows][-2:] == [0, 0]
    with pytest.raises(ValueError, match=r"no arm could run; the first: strategy\.buffer_size"):
        tune(grid={"strategy.buffer_size": [-1, -2]})


def test_a_diverging_arm_is_not_the_best() -> None:
    made = tune(grid={"local.lr": [1e30, 0.02]}, target={"loss": -1.0})
    assert set(made.rungs[0].column("exit_reason")[:2]) == {"diverged"}
    assert made.winner == {"local.lr": 0.02}


def test_a_target_that_nobody_reaches_is_said() -> None:
    made = tune(target={"loss": 0.0})
    assert made.winner == {"local.lr": 0.3} and made.ranking.rows[0]["reached"] == 0
    assert made.notes == ["fewer than half of the best arm's runs reached loss 0: it is best by loss"]


def test_server_steps_are_a_budget_too() -> None:
    base = {**BASE, "schedule": {"server_steps": 200, "concurrency": 6}, "replay": {}}
    made = fb.tune(base, GRID, target=TARGET, seeds="0:4", eta=2, progress=False)
    assert made.winner == {"local.lr": 0.3}
    steps = [int(rung.column("server_steps").max()) for rung in made.rungs]
    assert steps[0] <= 100 and steps[1] <= 200
    times = [rung.time_to("loss", TARGET["loss"]).rows for rung in made.rungs]
    assert times[0][3]["median"] in {float(t) for t in made.rungs[1].column("time")}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": None}, "target: missing"),
        ({"target": {"accuracy": 0.9}}, r"replay\.metrics: the target is of 'accuracy'"),
        ({"target": {"loss": 1, "accuracy": 1}}, "target: expected one metric, got loss, accuracy"),
        ({"grid": {"local.lr": [0.1]}}, "grid: expected two arms or more"),
        ({"eta": 1}, "eta: expected an int >= 2"),
        ({"seeds": 0}, "seeds: expected an int >= 1"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tune(**options)


def test_a_path_is_given_once() -> None:
    with pytest.raises(TypeError, match=r"grid: it has strategy\.buffer_size already"):
        tune(grid={"strategy.buffer_size": [1, 2]}, buffer_sizes=[1, 2])


def test_a_target_takes_the_place_of_the_base_s() -> None:
    found = fb.tune({**BASE, "target": {"grad_norm_sq": 1e-9}}, GRID, target=TARGET, seeds=4, eta=2, progress=False)
    assert found.winner == {"local.lr": 0.3}


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tune.json").write_text("mine")
    with pytest.raises(ValueError, match="not a search's"):
        tune(tmp_path)
    assert (tmp_path / "tune.json").read_text() == "mine"


def test_what_a_kill_left_of_the_table_is_not_foreign(tmp_path: Path) -> None:
    left = tmp_path / ".tune.json.0123456789abcdef.part"
    found = tune(tmp_path)
    left.write_text("{")
    assert tune(tmp_path).winner == found.winner
    assert not left.exists()
