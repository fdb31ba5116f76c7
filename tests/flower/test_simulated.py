"""The example app by `flwr run` on Flower's own simulation, which needs Ray."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import fedbuff as fb

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower")
pytest.importorskip("ray", reason="Ray is not installed: pip install flwr[simulation]")

from programs import FLWR, PATIENCE, connect, environment, free_port, listens, process, tool, wait_for

APP = Path(__file__).parents[2] / "examples" / "flower"
N_STEPS = 6


@pytest.mark.skipif(FLWR < (1, 41), reason="the command lines are those of flwr 1.41")
def test_the_example_app_by_flwr_run(tmp_path: Path) -> None:
    app, log, port = tmp_path / "app", tmp_path / "arrivals.csv", free_port()
    shutil.copytree(APP, app)
    connect(tmp_path / "home", port)
    superlink = [tool("flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    run = [
        tool("flwr"), "run", str(app), "test", "--stream", "--federation-config", "num-supernodes=20",
        "--run-config", f'num-server-steps={N_STEPS} log-path="{log}"',
    ]  # fmt: skip
    with process(superlink, tmp_path, "superlink"):
        wait_for("the SuperLink", lambda: listens(port), tmp_path)
        done = subprocess.run(run, env=environment(tmp_path / "home"), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"[STEP {N_STEPS}]" in done.stdout, done.stdout + done.stderr
    found = fb.read_arrival_log(log)
    assert found.client.size == 4 * N_STEPS and len(found.client_ids) > 2
