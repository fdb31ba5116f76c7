"""Builds and installs for the tests, in copies of the source tree: nothing is written beside the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
IGNORED = shutil.ignore_patterns(
    ".*", "build", "dist", "*.egg-info", "__pycache__", "*.so", "*.dylib", "_build_info.py", "_*.c"
)


def copy_tree(target: Path) -> Path:
    """The sources without anything that was built."""
    shutil.copytree(ROOT, target, ignore=IGNORED)
    return target


def copy_objects(target: Path) -> None:
    """What the compiler made already: a build with the same flags, of sources no newer, goes on from there."""
    for objects in (ROOT / "build").glob("objects-*"):
        shutil.copytree(objects, target / "build" / objects.name, dirs_exist_ok=True)
    if (ROOT / ".venv").is_dir():  # a compiler cache may list the headers in it by their way from here
        (target / ".venv").symlink_to(ROOT / ".venv")


def clean_environment(**changes: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("FEDBUFF_", "PYTHON"))}
    if "FEDBUFF_WERROR" in os.environ:
        kept["FEDBUFF_WERROR"] = os.environ["FEDBUFF_WERROR"]
    return {**kept, "PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "error", **changes}


def run(*command: str, cwd: Path, ok: bool = True, **changes: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=clean_environment(**changes), capture_output=True, text=True
    )
    assert not ok or done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def pip(*command: str, cwd: Path, ok: bool = True, **changes: str) -> subprocess.CompletedProcess[str]:
    quiet = {"PYTHONWARNINGS": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **changes}
    return run("-m", "pip", *command, "--no-deps", "--no-build-isolation", cwd=cwd, ok=ok, **quiet)


def tool(*command: str) -> str:
    """What a program of the system prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
