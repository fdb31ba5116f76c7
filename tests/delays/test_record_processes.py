"""examples/record_processes.py runs with real processes, and its log replays to the same model."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np

import fedbuff as fb

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "record_processes.py"


def test_record_and_replay(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    command = [sys.executable, str(EXAMPLE), str(path), "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the replay gave the same model, bit for bit" in done.stdout
    log = fb.read_arrival_log(path, clients=4)
    assert log.client.size == 60 and log.version is not None


def test_the_sample_log_replays() -> None:
    example = runpy.run_path(str(EXAMPLE))
    problem, log = example["make_problem"](), fb.sample_log()
    w = example["replay"](problem, log)
    assert np.isfinite(w).all() and problem.loss(w) < 0.5 * problem.loss(problem.init())
    schedule = fb.schedule(log, example["STRATEGY"])
    run = fb.replay(problem, schedule, example["LOCAL"], strategy=example["STRATEGY"], seed=example["SEED"])
    assert run.w.tobytes() == w.tobytes()
