"""Flower's programs for the tests: on loopback, in groups of their own, ended with all that they started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

import fedbuff as fb

FLWR = tuple(map(int, version("flwr").split(".")[:2]))
PACKAGE = Path(fb.__file__).parents[1]
PATIENCE = 300.0


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


def connect(home: Path, port: int) -> None:
    """Names the SuperLink that listens there "test"."""
    home.mkdir()
    connection = f'[superlink]\ndefault = "test"\n\n[superlink.test]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(connection)
