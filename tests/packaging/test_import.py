"""`import fedbuff` is light: it brings nothing heavy, nor what few need. `benches/bench_calls.py` times it."""

from __future__ import annotations

from pathlib import Path

import installs

import fedbuff as fb

PACKAGE = Path(fb.__file__).parents[1]
HEAVY = [
    "numba",
    "llvmlite",
    "scipy",
    "pyarrow",
    "pandas",
    "matplotlib",
    "plotly",
    "torch",
    "cryptography",
    "tqdm",
    "click",
    "fedbuff._core",
    "fedbuff._server",
    "fedbuff.datasets",
    "fedbuff.flower",
    "fedbuff.plots",
    "fedbuff.secure",
    "fedbuff.theory",
    "fedbuff.traces",
    "fedbuff._study.config",
    "fedbuff._machine.bench",
    "fedbuff._machine.limits",
    "fedbuff._sweep.batches",
    "fedbuff._sweep.sweep",
    "distributed",
]


def run(code: str) -> str:
    return installs.run("-c", code, cwd=PACKAGE, PYTHONPATH=str(PACKAGE)).stdout


def test_nothing_heavy() -> None:
    loaded = run(f"import sys, fedbuff; print(*[name for name in {HEAVY!r} if name in sys.modules])")
    assert loaded.split() == []


def test_windows_is_refused_in_one_sentence() -> None:
    done = installs.run("-c", "import sys; sys.platform = 'win32'; import fedbuff", cwd=PACKAGE, ok=False)
    assert done.stderr.strip().splitlines()[-1] == (
        "ImportError: fedbuff runs on Linux and macOS; on Windows, install it inside WSL"
    )
