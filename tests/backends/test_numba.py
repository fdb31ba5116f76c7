"""What is Numba's own: few compilations, the cache on disk, the GIL."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import every_dtype

from fedbuff.backends.spec import LocalSpec, LocalTask, ProblemSpec

backend = pytest.importorskip("fedbuff.backends.numba")
net = pytest.importorskip("fedbuff.backends.numba.net")
vectors = pytest.importorskip("fedbuff.backends.numba.vectors")


def softmax(dtype: Any, n_features: int = 3, frozen: bool = False, n_rows: int = 4) -> ProblemSpec:
    arrays: dict[str, Any] = {
        "x": np.ones((n_rows, n_features), dtype),
        "label": np.zeros(n_rows, np.int32),
        "offsets": np.array([0, n_rows]),
        "client_weight": np.ones(1),
    }
    for array in arrays.values():
        array.flags.writeable = not frozen
    sizes = (n_features, 2)
    return ProblemSpec(
        family="net", dtype=np.dtype(dtype), n_clients=1, dim=2 * n_features, sizes=sizes, head="softmax", **arrays
    )


@every_dtype
def test_one_compilation_per_dtype(dtype: str) -> None:
    """Read-only arrays, given rows and absent outputs meet the same code."""
    for frozen in (False, True):
        problem = backend.bind(softmax(dtype, frozen=frozen))
        w = np.zeros(6, dtype)
        w.flags.writeable = not frozen
        rows = np.zeros((2, 3), np.int64)
        rows.flags.writeable = not frozen
        out = np.empty(6, dtype)
        for given in (None, rows):
            problem.local_sgd(LocalSpec(2, 0.1), w, LocalTask(0, 0, 1, 3, given), out)
        problem.client_gradient(0, w, out)
        problem.gradient(w, None, 1)
        for start in (None, w):
            backend.accumulate(w, w, 1.0, start, start, out)
    for function in (net.net_local_sgd, net.net_objective, vectors._accumulate):
        assert [str(types[-1].dtype) for types in function.signatures].count(dtype) == 1


SCRIPT = """
import warnings
warnings.simplefilter("error")
import numpy as np
from fedbuff.backends.numba.vectors import dot, dot_float64
assert dot(np.ones(3), np.ones(3)) == 3.0
print(type(dot_float64._cache).__name__, sum(dot_float64.stats.cache_hits.values()))
"""


def run(root: Path, **environment: str) -> str:
    variables = {**os.environ, "PYTHONPATH": str(root), **environment}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=variables, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_compiled_code_is_kept(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    assert run(root, NUMBA_CACHE_DIR=str(tmp_path)) == "FunctionCache 0"
    assert run(root, NUMBA_CACHE_DIR=str(tmp_path)) == "FunctionCache 1"


def test_no_folder_for_the_cache_is_no_error(tmp_path: Path) -> None:
    """Neither the package's folder nor the user's can be written: a file stands where a folder would be made."""
    (tmp_path / "fedbuff").mkdir()
    package = Path(__file__).parents[2] / "fedbuff"
    for source in package.rglob("*.py"):
        copy = tmp_path / "fedbuff" / source.relative_to(package)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    for folder in {path.parent for path in (tmp_path / "fedbuff").rglob("*.py")}:
        (folder / "__pycache__").write_text("")
    (tmp_path / "home").write_text("")
    home = str(tmp_path / "home")
    assert run(tmp_path, HOME=home, XDG_CACHE_HOME=home, PYTHONDONTWRITEBYTECODE="1") == "NullCache 0"


def test_the_gil_is_released() -> None:
    """Python runs while a long call does."""
    problem = backend.bind(softmax("float32", n_features=200, n_rows=2000))
    w, out = np.zeros(400, np.float32), np.empty(400, np.float32)

    def call(steps: int) -> None:
        problem.local_sgd(LocalSpec(steps, 0.1), w, LocalTask(0, 0, 0, 0), out)

    call(1)
    worker = threading.Thread(target=call, args=(1000,))
    worker.start()
    ticks = 0
    while worker.is_alive():
        time.sleep(0.001)
        ticks += 1
    assert ticks > 20
