"""FedBuff on a real deployment: a SuperLink and three SuperNodes on loopback.

The ServerApp is killed and started again, and then a node is killed. The run must still end with the right number of
uploads, and with a log whose replay gives the model bit for bit.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import fedbuff as fb

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower")

from programs import FLWR, PATIENCE, connect, free_port, listens, process, tool, wait_for

APP = Path(__file__).parent / "deployed_app"
N_STEPS, KILL_SERVER_AT, KILL_NODE_AT = 7, 2, 4


def step_reached(folder: Path) -> int:
    path = folder / "step"
    text = path.read_text() if path.exists() else ""
    return int(text) if text else -1


@pytest.mark.skipif(FLWR < (1, 41), reason="the command lines are those of flwr 1.41")
def test_a_killed_server_goes_on_a_killed_node_is_replaced_and_the_log_replays(tmp_path: Path) -> None:
    app = tmp_path / "app"
    shutil.copytree(APP, app)
    port, ports = free_port(), [free_port() for _ in range(3)]
    connect(tmp_path / "home", port)
    superlink = [tool("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port)]

    def supernode(number: int) -> list[str]:
        config = f"partition-id={number} num-partitions=3"
        return [
            tool("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1",
            "--port", str(ports[number]), "--node-config", config,
        ]  # fmt: skip

    def start_server(number: int) -> None:
        run = [tool("flwr"), "run", str(app), "test", "--run-config", f'folder="{tmp_path}" server-steps={N_STEPS}']
        with process(run, tmp_path, f"run-{number}") as started:
            assert started.wait(PATIENCE) == 0, (tmp_path / f"run-{number}.txt").read_text()

    with process(superlink, tmp_path, "superlink"):
        wait_for("the SuperLink", lambda: listens(port), tmp_path)
        with (
            process(supernode(0), tmp_path, "node-0"),
            process(supernode(1), tmp_path, "node-1"),
            process(supernode(2), tmp_path, "node-2") as victim,
        ):
            start_server(0)
            wait_for("the step to kill the server at", lambda: step_reached(tmp_path) >= KILL_SERVER_AT, tmp_path)
            os.kill(int((tmp_path / "server").read_text()), signal.SIGKILL)
            assert not (tmp_path / "model.npz").exists()
            start_server(1)
            wait_for("the step to kill a node at", lambda: step_reached(tmp_path) >= KILL_NODE_AT, tmp_path)
            os.kill(victim.pid, signal.SIGKILL)
            wait_for("the end of the run", (tmp_path / "model.npz").exists, tmp_path)

    with np.load(tmp_path / "model.npz") as model:
        w = np.concatenate([model["first"].ravel(), model["second"]])
        assert model["failures"] >= 1  # the task of the node that was killed
        assert 1 <= model["begin"] <= KILL_NODE_AT  # the second server did not begin anew
    log = fb.read_arrival_log(tmp_path / "log.csv")
    assert log.client.size == 2 * N_STEPS
    clients = [int((tmp_path / f"node-{node}").read_text()) for node in log.client_ids]
    sys.path.insert(0, str(APP))
    try:
        from deployed.client_app import trained
    finally:
        sys.path.remove(str(APP))
    problem = fb.Callback(
        lambda client, task, w, generator: w - trained(clients[client], w),
        w0=np.zeros(17, np.float32),
        n_clients=len(clients),
    )
    again = fb.replay(problem, fb.schedule(log, fb.FedBuff(buffer_size=2)), threads=1, metrics=())
    assert again.w.tobytes() == w.tobytes()
