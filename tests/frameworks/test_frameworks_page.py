"""The blocks of docs/frameworks.md that need PyTorch or JAX, and the example, run here."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_the_page(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework, reason=f"docs/frameworks.md needs {framework}")
    text = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
    block = re.search(rf'^```py title="with_{framework}\.py"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)
    assert block is not None
    (tmp_path / "page.py").write_text(block[1])
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Of PyTorch's, as the example has it: an own function's bits depend on their number."""
    torch = pytest.importorskip("torch", reason="examples/torch_module.py needs torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_the_example() -> None:
    example = runpy.run_path(str(ROOT / "examples" / "torch_module.py"))
    runs = {}
    for name, problem in example["make_problems"]().items():
        run = runs[name] = example["train"](problem, server_steps=15, threads=2)
        assert run.history["loss"][-1] < 0.9 * run.history["loss"][0]
        assert run.history["accuracy"][-1] > 0.5  # of three classes
        again = example["train"](problem, server_steps=15, threads=1)
        np.testing.assert_array_equal(again.w, run.w)
    np.testing.assert_allclose(runs["compiled"].w, runs["wrapped module"].w, rtol=1e-3, atol=1e-4)
