"""The same bits on every machine: schedules, and replays on the portable level, beside the hashes in the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from golden_cases import FILE, SCHEDULES

from fedbuff import backends

KNOWN = json.loads(FILE.read_text())


def test_every_case_has_a_hash() -> None:
    assert KNOWN["schedules"].keys() == SCHEDULES.keys()
    assert len(KNOWN["replays"]) == 4


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_has_the_bits_of_every_machine(name: str) -> None:
    made = SCHEDULES[name]()
    assert made.n_steps > 0
    assert made.sha256 == KNOWN["schedules"][name]


def test_replay_on_the_portable_level_has_the_bits_of_every_machine() -> None:
    if backends.current().name != "cpp":
        pytest.skip("the hashes are those of the compiled kernels")
    child = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "golden_cases.py")],
        env={**os.environ, "FEDBUFF_BACKEND": "cpp", "FEDBUFF_ISA": "baseline"},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == KNOWN["replays"]
