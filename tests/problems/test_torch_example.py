"""examples/torch_module.py: a PyTorch module learns, with the same bits on any number of threads."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

import fedbuff as fb

pytest.importorskip("torch", reason="examples/torch_module.py needs PyTorch: pip install fedbuff[torch]")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch_module.py"


def test_torch_module() -> None:
    train = runpy.run_path(str(EXAMPLE))["train"]
    run = train(server_steps=20, threads=2)
    assert run.exit_reason == fb.ExitReason.SCHEDULE_END
    assert run.history["loss"][-1] < 0.8 * run.history["loss"][0]
    assert run.history["accuracy"][-1] > 0.5  # of three classes
    again = train(server_steps=20, threads=1)
    np.testing.assert_array_equal(again.w, run.w, strict=True)
    np.testing.assert_array_equal(again.history["loss"], run.history["loss"])
