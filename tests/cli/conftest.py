"""The command run in this process, in a folder with small inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fedbuff._cli import main

DELAYS = "client,task,download,compute,upload\n" + "".join(
    f"{name},{task},0.1,{1.0 + (task * 7 + at * 5) % 4 * 0.5 * (at + 1)},0.2\n"
    for at, name in enumerate(("ann", "bob", "cleo"))
    for task in range(8)
)
RUN = """
seed = 0

[problem]
kind = "softmax"
data = "sample:digits"
test = 0.2
partition = { kind = "iid", n_clients = 6 }

[trace]
kind = "recorded"
file = "delays.csv"
assign = true

[strategy]
kind = "fedbuff"
buffer_size = 2

[local]
steps = 2
lr = 0.1
batch_size = 8

[schedule]
server_steps = 20

[replay]
eval_every = 5
metrics = ["loss", "grad_norm_sq", "accuracy"]
"""
PHONES = "device,ms\np1,100\np2,250\np1,120\np2,240\n"


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a trace, another one in milliseconds, and a configuration."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"delays.csv": DELAYS, "run.toml": RUN, "phones.csv": PHONES}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def fedbuff(folder: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs the command with arguments."""

    def run(*arguments: str) -> Ran:
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        code = stopped.value.code
        assert isinstance(code, int)
        return Ran(code, *capfd.readouterr())

    return run
