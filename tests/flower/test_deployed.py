"""FedBuff on a real deployment: a SuperLink and three SuperNodes on loopback, one of them killed half way.

The run must still end with the right number of uploads, and with a log whose replay gives the model bit for bit.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import fedbuff as fb

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower")

APP = Path(__file__).parent / "deployed_app"
PACKAGE = Path(fb.__file__).parents[1]
N_STEPS, KILL_AT, PATIENCE = 8, 2, 300.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def tool(name: str) -> str:
    path = Path(sys.executable).parent / name
    if not path.exists():
        pytest.skip(f"{name} is not installed beside {sys.executable}")
    return str(path)


def environment(home: Path) -> dict[str, str]:
    """Everything on loopback: no telemetry, no look for updates; the programs are those of this environment."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(PACKAGE),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


@contextmanager
def process(command: list[str], folder: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a group of its own, which is ended, whatever the program itself started."""
    with (folder / f"{name}.txt").open("wb") as output:
        made = subprocess.Popen(
            command, cwd=folder, env=environment(folder / "home"), stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield made
        finally:
            for end in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(made.pid, end)
                except ProcessLookupError:
                    break
                if end == signal.SIGTERM:
                    time.sleep(0.5)
            made.wait()


def wait_for(what: str, holds: Callable[[], bool], folder: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            texts = [f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(folder.glob("*.txt"))]
            pytest.fail(f"{what} did not come about in {PATIENCE:g} s\n" + "\n".join(texts))
        time.sleep(0.1)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def step_reached(folder: Path) -> int:
    path = folder / "step"
    text = path.read_text() if path.exists() else ""
    return int(text) if text else -1


@pytest.mark.skipif(version("flwr").split(".")[:2] < ["1", "41"], reason="the command lines are those of flwr 1.41")
def test_a_node_killed_half_way_is_replaced_and_the_log_replays(tmp_path: Path) -> None:
    home, app = tmp_path / "home", tmp_path / "app"
    home.mkdir()
    shutil.copytree(APP, app)
    port, ports = free_port(), [free_port() for _ in range(3)]
    link = f"127.0.0.1:{port}"
    connection = f'[superlink]\ndefault = "test"\n\n[superlink.test]\naddress = "{link}"\ninsecure = true\n'
    (home / "config.toml").write_text(connection)
    superlink = [tool("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port)]

    def supernode(number: int) -> list[str]:
        config = f"partition-id={number} num-partitions=3"
        return [
            tool("flower-supernode"), "--insecure", "--superlink", link, "--host", "127.0.0.1",
            "--port", str(ports[number]), "--node-config", config,
        ]  # fmt: skip

    run = [tool("flwr"), "run", str(app), "test", "--run-config", f'folder="{tmp_path}" server-steps={N_STEPS}']
    with process(superlink, tmp_path, "superlink"):
        wait_for("the SuperLink", lambda: listens(port), tmp_path)
        with (
            process(supernode(0), tmp_path, "node-0"),
            process(supernode(1), tmp_path, "node-1"),
            process(supernode(2), tmp_path, "node-2") as victim,
        ):
            with process(run, tmp_path, "run") as started:
                assert started.wait(PATIENCE) == 0, (tmp_path / "run.txt").read_text()
            wait_for("the step to kill a node at", lambda: step_reached(tmp_path) >= KILL_AT, tmp_path)
            os.kill(victim.pid, signal.SIGKILL)
            wait_for("the end of the run", (tmp_path / "model.npz").exists, tmp_path)

    with np.load(tmp_path / "model.npz") as model:
        w = np.concatenate([model["first"].ravel(), model["second"]])
        assert model["failures"] >= 1  # the task of the node that was killed
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
