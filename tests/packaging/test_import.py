"""`import fedbuff` is light: it brings nothing heavy, and takes at most a tenth of a second more than NumPy."""

from __future__ import annotations

from pathlib import Path

import installs

import fedbuff as fb

PACKAGE = Path(fb.__file__).parents[1]
HEAVY = ("numba", "llvmlite", "scipy", "pyarrow", "pandas", "matplotlib", "torch", "tqdm", "click", "fedbuff._core")


def run(code: str) -> str:
    return installs.run("-c", code, cwd=PACKAGE, PYTHONPATH=str(PACKAGE)).stdout


def test_nothing_heavy() -> None:
    loaded = run(f"import sys, fedbuff; print(*[name for name in {HEAVY!r} if name in sys.modules])")
    assert loaded.split() == []


def test_import_time() -> None:
    code = "import numpy, time; t = time.perf_counter(); import fedbuff; print(time.perf_counter() - t)"
    best = min(float(run(code)) for _ in range(7))
    assert best <= 0.1
