"""examples/secure_processes.py runs its roles in separate processes, and a replay gives the same model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "secure_processes.py"


def test_roles_in_processes(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "6"], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "the replay gave the same model, bit for bit" in done.stdout
