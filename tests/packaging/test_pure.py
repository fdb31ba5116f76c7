"""Where nothing can be compiled the install succeeds, says why, and the Numba backend runs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import installs
import pytest

WORK = """
import warnings
import numpy as np
import fedbuff as fb
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    server = fb.Server(np.zeros(2), fb.FedBuff(buffer_size=1))
    assert server.upload(np.array([1.0, 2.0]), server.download()[0])
    assert server.w.tolist() == [-1, -2]
    problem = fb.Quadratic(np.zeros((2, 2)), curvature=0.5)
    assert problem.delta(np.ones(2), 0, fb.LocalSGD(steps=1, lr=1.0)).tolist() == [0.5, 0.5]
    assert fb.aggregate(np.zeros(2), [np.ones(2)]).tolist() == [-1, -1]
    fb.DeltaBuffer(2)
    fb.show_config()
ours = [str(w.message) for w in caught if "fedbuff" in str(w.message)]
assert len(ours) == 1 and REASON in ours[0], ours
assert caught[0].filename == __file__ if "__file__" in globals() else True
"""
SHOW = """
import warnings
import fedbuff as fb
warnings.simplefilter("ignore")
fb.show_config()
"""


def install(folder: Path, **environment: str) -> Path:
    tree = installs.copy_tree(folder / "tree")
    target = folder / "site"
    installs.pip("install", "--quiet", "--target", str(target), ".", cwd=tree, **environment)
    assert not list(target.rglob("*.so"))
    return target


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("pure"), FEDBUFF_BUILD="pure")


@pytest.fixture(scope="module")
def without_compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("none"), CC="/nowhere/cc", CXX="/nowhere/c++")


def numba_works(site: Path) -> None:
    pytest.importorskip("numba")
    del site


def test_numba_runs_and_one_warning_says_why(pure: Path) -> None:
    numba_works(pure)
    code = f"REASON = 'FEDBUFF_BUILD=pure'\n{WORK}"
    shown = installs.run("-c", code, cwd=pure, PYTHONPATH=str(pure), PYTHONWARNINGS="default").stdout
    assert re.search(r"^backend +numba$", shown, re.MULTILINE)
    assert re.search(r"^compiled +False$", shown, re.MULTILINE)
    assert re.search(r"^reason +FEDBUFF_BUILD=pure$", shown, re.MULTILINE)


def test_a_missing_compiler_is_recorded(without_compiler: Path) -> None:
    numba_works(without_compiler)
    shown = installs.run("-c", SHOW, cwd=without_compiler, PYTHONPATH=str(without_compiler), PYTHONWARNINGS="ignore")
    assert re.search(r"^compiled +False$", shown.stdout, re.MULTILINE)
    assert re.search(r"^reason +there is no C\+\+ compiler: /nowhere/c\+\+ was not found$", shown.stdout, re.MULTILINE)


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_a_failed_compilation_is_loud_and_shows_the_first_error(tmp_path: Path) -> None:
    tree = installs.copy_tree(tmp_path / "tree")
    flags = {"CFLAGS": "-include no_such_header.h", "CXXFLAGS": "-include no_such_header.h"}
    target = str(tmp_path / "site")
    done = installs.pip("install", "--quiet", "--target", target, ".", cwd=tree, ok=False, **flags)
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.strip().startswith("error: ")]
    assert any("no_such_header.h: No such file" in line and "-include" not in line for line in said), done.stderr
    assert "FEDBUFF_BUILD=pure" in done.stderr


def test_without_numba_the_error_names_the_extra(pure: Path) -> None:
    code = "import sys; sys.modules['numba'] = None; import fedbuff as fb; fb.Server"
    done = installs.run("-c", code, cwd=pure, ok=False, PYTHONPATH=str(pure))
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: fedbuff's compiled kernels are missing (FEDBUFF_BUILD=pure)")
    assert "pip install fedbuff[numba]" in last and "--no-cache-dir" in last
    forced = installs.run("-c", code, cwd=pure, ok=False, PYTHONPATH=str(pure), FEDBUFF_BACKEND="numba")
    assert "pip install fedbuff[numba]" in forced.stderr.strip().splitlines()[-1]


def test_a_chosen_backend_does_not_warn(pure: Path) -> None:
    code = "import fedbuff as fb; fb.show_config()"
    shown = installs.run("-c", code, cwd=pure, PYTHONPATH=str(pure), FEDBUFF_BACKEND="reference").stdout
    assert re.search(r"^backend +reference$", shown, re.MULTILINE)


def test_cpp_cannot_be_asked_for(pure: Path) -> None:
    code = "import fedbuff as fb; fb.Server"
    done = installs.run("-c", code, cwd=pure, ok=False, PYTHONPATH=str(pure), FEDBUFF_BACKEND="cpp")
    assert "FEDBUFF_BACKEND=cpp: nothing was compiled (FEDBUFF_BUILD=pure)" in done.stderr


def test_require_means_it(tmp_path: Path) -> None:
    tree = installs.copy_tree(tmp_path / "tree")
    environment = {"FEDBUFF_BUILD": "require", "CC": "/bin/false", "CXX": "/bin/false"}
    done = installs.run("setup.py", "build", cwd=tree, ok=False, PYTHONWARNINGS="ignore", **environment)
    assert done.returncode != 0


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    tree = installs.copy_tree(tmp_path / "tree")
    done = installs.run("setup.py", "--version", cwd=tree, ok=False, FEDBUFF_BUILD="yes", PYTHONWARNINGS="ignore")
    assert done.returncode != 0
    assert "FEDBUFF_BUILD='yes': expected auto, require or pure" in done.stderr
