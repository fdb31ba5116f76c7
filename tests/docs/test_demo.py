"""examples/demo.py, over a short time."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    demo = runpy.run_path(str(DEMO))
    main = demo["main"]
    main.__globals__.update(MARKS=(15, 45), TARGET=0.3)
    main()
    table = capsys.readouterr().out.splitlines()
    rows = {line[:19].strip(): line[19:].split() for line in table if line[:19].strip() in demo["STRATEGIES"]}
    assert rows.keys() == demo["STRATEGIES"].keys()
    accuracy = {name: float(row[-1]) for name, row in rows.items()}
    assert accuracy["FedBuff, K = 10"] > 0.3 and all(0.0 < value < 1.0 for value in accuracy.values())
