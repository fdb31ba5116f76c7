"""What was built, and what runs."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

from .. import backends
from .._version import __version__

__all__ = ["config", "cpu_name", "show_config"]


def config() -> dict[str, Any]:
    """The same as `show_config` prints, as a dictionary."""
    info = backends.build_info()
    backend = backends.current()
    compiled = backends.compiled()
    return {
        "version": __version__,
        "python": sys.version.split()[0],
        "backend": backend.name,
        "compiled": info["compiled"],
        "reason": info["reason"],
        "compiler": info["compiler"],
        "flags": info["flags"],
        "levels found": [] if compiled is None else compiled.available_levels(),
        "level used": None if compiled is None else compiled.level(),
        "threads": backends.default_threads(),
    }


def cpu_name() -> str:
    """The model name of this machine's CPU, or its architecture where the system does not name the model."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def show_config() -> None:
    """Prints version, backend, CPU levels found and used, compiler, flags and threads."""
    for key, value in config().items():
        if value or isinstance(value, bool):
            text = ", ".join(value) if isinstance(value, list) else value
            print(f"{key:12}  {text}")
