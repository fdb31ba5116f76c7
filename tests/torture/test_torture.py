"""Short forms of the campaigns of `make torture`, each in a process of its own, which has no threads to fork."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedbuff import backends

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="forks and LD_PRELOAD as Linux has them"),
    pytest.mark.skipif(backends.current().name != "cpp", reason="the same code writes the files of all backends"),
]


def run(script: str, *arguments: str) -> str:
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout.splitlines()[-1]


def test_fifty_kills() -> None:
    line = run("kills.py", "--kills", "50")
    assert int(line.split()[0]) >= 50
    assert line.endswith("0 runs ended with other bits, 0 files were damaged.")


def test_faults_at_some_calls_of_each_save() -> None:
    pytest.importorskip("plotly")
    if shutil.which("gcc") is None:
        pytest.skip("the shim needs a C compiler")
    line = run("faults.py", "--quick")
    found = re.search(r"(\d+) faults in .* minutes; 0 were not survived\.$", line)
    assert found
    assert int(found[1]) >= 100


def test_memory_does_not_grow() -> None:
    line = run("memory.py", "--quick", "--seconds", "0.05")
    assert "; 0 of them left more than" in line
