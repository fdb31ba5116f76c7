"""`fedbuff sweep`: the table, the folder, exit codes, and what it says about bad input."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedbuff as fb
from fedbuff._cli import main

STUDY = """
[problem]
kind = "quadratic"
centers = [[0.0, 0.0], [2.0, 0.0], [0.0, 1.0]]

[trace]
kind = "model"
n_clients = 3
compute = { kind = "exponential", scale = 1.0 }

[strategy]
kind = "fedbuff"
buffer_size = 2

[local]
steps = 1
lr = 0.5

[schedule]
server_steps = 20

[sweep]
seeds = "0:3"

[sweep.grid]
"strategy.buffer_size" = [1, 2]
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fedbuff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        out, err = capfd.readouterr()
        assert isinstance(stopped.value.code, int)
        return stopped.value.code, out, err

    return run


def test_a_table_of_arms(fedbuff: Run) -> None:
    code, out, _ = fedbuff("sweep", "study.toml", "--output", "found")
    assert code == 0
    names, *lines = [line.split() for line in out.splitlines()]
    assert " ".join(names) == "arm strategy.buffer_size done failed server steps time (s) loss"
    assert [line[:4] for line in lines] == [["0", "1", "3", "0"], ["1", "2", "3", "0"]]
    results = fb.load_sweep("found")
    assert len(results) == 6
    assert float(lines[0][-1]) == pytest.approx(results.column("loss")[:3].mean(), rel=1e-3)


def test_options_take_the_place_of_the_table(fedbuff: Run) -> None:
    grid = ["--grid", "local.lr=[0.1, 0.2]", "--grid", "strategy.staleness=['constant', 'polynomial']"]
    code, out, _ = fedbuff("sweep", "study.toml", *grid, "--seeds", "4,7", "--set", "schedule.server_steps=5", "--json")
    found: dict[str, Any] = json.loads(out)
    assert code == 0 and found["runs"] == 8 and found["failed"] == [] and found["out"] is None
    assert [arm["local.lr"] for arm in found["arms"]] == [0.1, 0.1, 0.2, 0.2]
    assert all(arm["done"] == 2 and arm["server_steps"] == 5.0 for arm in found["arms"])


def test_it_goes_on(fedbuff: Run) -> None:
    assert fedbuff("sweep", "study.toml", "-o", "found", "--seeds", "0:1")[0] == 0
    first = os.stat("found/sweep.json").st_mtime_ns
    assert fedbuff("sweep", "study.toml", "-o", "found", "--threads", "1")[0] == 0
    assert len(fb.load_sweep("found")) == 6 and os.stat("found/sweep.json").st_mtime_ns >= first
    code, _, err = fedbuff("sweep", "study.toml", "-o", "found", "--no-resume")
    assert code == 2 and "holds a sweep already" in err


def test_failed_runs_are_told(fedbuff: Run) -> None:
    code, out, err = fedbuff("sweep", "study.toml", "-o", "found", "--grid", "strategy.buffer_size=[2, 0]")
    assert code == 4
    assert out.splitlines()[2].split() == ["1", "0", "0", "3", "-", "-", "-"]
    assert err.splitlines() == [
        "failed: strategy.buffer_size: expected an int >= 1, got 0 (with strategy.buffer_size = 0)",
        "3 of 6 runs failed",
    ]
    assert len(fb.load_sweep("found").failed) == 3


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--grid", "strategy.bufer_size=[1]"], "strategy.bufer_size: unknown key; did you mean buffer_size?"),
        (["--grid", "strategy.buffer_size=1"], "grid.strategy.buffer_size: expected a list of values"),
        (["--grid", "local.lr=[1]", "--grid", "local.lr=[2]"], "grid: a key stands there twice"),
        (["--seeds", "a,b"], "expected 0:100 or 1,2,3, got 'a,b'"),
        (["--seeds", "3:1"], "seeds: expected ints, or first:end"),
        (["--threads", "0"], "threads: expected an int >= 1, got 0"),
        (["--set", "sweep.grids.x=[1]"], "sweep.grids: unknown key; did you mean grid?"),
        (["--set", 'sweep.seeds="x"'], "sweep.seeds: expected ints"),
    ],
)
def test_bad_input(arguments: list[str], error: str, fedbuff: Run) -> None:
    code, out, err = fedbuff("sweep", "study.toml", "-o", "found", *arguments)
    assert code == 2 and error in err and out == ""
    assert not Path("found").exists() or not list(Path("found").glob("parts/*"))


def test_a_cluster(fedbuff: Run) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0", silence_logs=50
    ) as cluster:
        code, _, err = fedbuff("sweep", "study.toml", "-o", "there", "--scheduler", cluster.scheduler_address)
    assert code == 0, err
    assert fedbuff("sweep", "study.toml", "-o", "here")[0] == 0
    models = [fb.load_sweep(name).column("model_sha256").tolist() for name in ("here", "there")]
    assert models[0] == models[1]
