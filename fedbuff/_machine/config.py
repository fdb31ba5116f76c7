"""What was built, and what runs."""

from __future__ import annotations

import sys
from typing import Any

from .. import backends
from .._version import __version__

__all__ = ["config", "show_config"]


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


def show_config() -> None:
    """Prints version, backend, CPU levels found and used, compiler, flags and threads."""
    for key, value in config().items():
        if value or isinstance(value, bool):
            text = ", ".join(value) if isinstance(value, list) else value
            print(f"{key:12}  {text}")
