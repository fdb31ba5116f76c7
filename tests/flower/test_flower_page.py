"""The page on Flower runs, and so does the example app, on a VirtualGrid."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower")

from flwr.app import Context, RecordDict

import fedbuff as fb
from fedbuff.flower import VirtualGrid

ROOT = Path(__file__).parents[2]


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "embedding" / "flower.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {"__name__": "flower"}
    for block in blocks:
        exec(compile(block, "flower.md", "exec"), namespace)
    assert len(blocks) == 2 and namespace["again"].w.size == 50


def test_the_example_learns_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "flower"))
    from digits_app import client_app, server_app, task

    seen: list[float] = []
    evaluate = server_app.evaluate
    monkeypatch.setattr(server_app, "evaluate", lambda *both: seen.append(evaluate(*both)["accuracy"]))
    grid = VirtualGrid(client_app.app, fb.DelayModel(n_clients=10, compute=fb.Exponential()))
    log = tmp_path / "arrivals.csv"
    config = {"buffer-size": 4, "concurrency": 8, "num-server-steps": 20, "log-path": str(log)}
    server_app.app(grid, Context(0, 0, {}, RecordDict(), config))
    assert len(seen) == 5 and seen[-1] > 0.8 > seen[0]
    assert fb.read_arrival_log(log).client.size == 80
    assert task.accuracy(task.initial_model(), *task.rows()) == seen[0]
    assert "digits_app" in sys.modules
