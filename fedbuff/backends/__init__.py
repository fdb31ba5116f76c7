"""Kernels: `cpp` (compiled), `numba` (where nothing was compiled) and `reference` (the specification).

FEDBUFF_BACKEND chooses one by name, FEDBUFF_ISA the CPU level of `cpp`, FEDBUFF_NUM_THREADS how many threads work where
a call does not say. A choice that is unknown or not available is an error. Without one, `cpp` runs where it was
compiled; elsewhere `numba` does, with one warning that gives the reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from functools import cache
from typing import Any

from .._base.cpus import usable_cpus
from .spec import Backend, CompiledBackend

__all__ = ["NAMES", "build_info", "compiled", "current", "default_threads"]

NAMES = ("cpp", "numba", "reference")


@cache
def build_info() -> dict[str, Any]:
    """What the build recorded: compiled or not and why, compiler, flags."""
    try:
        info = importlib.import_module("fedbuff._build_info")
    except ImportError:
        return {"compiled": False, "reason": "fedbuff was not installed (no build record)", "compiler": "", "flags": ""}
    return {"compiled": info.COMPILED, "reason": info.REASON, "compiler": info.COMPILER, "flags": info.FLAGS}


@cache
def current() -> Backend:
    """The backend in force, chosen on first use."""
    name = os.environ.get("FEDBUFF_BACKEND")
    if name is None:
        name = _default()
    elif name not in NAMES:
        raise ValueError(f"FEDBUFF_BACKEND={name!r}: expected one of {', '.join(NAMES)}")
    elif name == "cpp" and not build_info()["compiled"]:
        raise ImportError(f"FEDBUFF_BACKEND=cpp: nothing was compiled ({build_info()['reason']})")
    level = os.environ.get("FEDBUFF_ISA")
    if level is not None and name != "cpp":
        raise ValueError(f"FEDBUFF_ISA={level!r}: only the cpp backend has CPU levels, and {name} runs")
    if level is not None:
        _cpp().force_level(level)
    return _load(name)


def compiled() -> CompiledBackend | None:
    """The backend in force where that is `cpp`, with what only a compiled one has."""
    return _cpp() if current().name == "cpp" else None


def _load(name: str) -> Backend:
    if name == "cpp":
        return _cpp()
    if name == "reference":
        from . import reference

        return reference
    try:
        from . import numba
    except ImportError as error:
        raise ImportError("FEDBUFF_BACKEND=numba: pip install fedbuff[numba]") from error
    return numba


def _cpp() -> CompiledBackend:
    from . import cpp

    return cpp


def _default() -> str:
    info = build_info()
    if info["compiled"]:
        return "cpp"
    reason = f"fedbuff's compiled kernels are missing ({info['reason']})"
    if importlib.util.find_spec("numba") is None:
        raise ImportError(
            f"{reason}, and so is Numba: pip install fedbuff[numba], or, where there is a C++ compiler,"
            " pip install --no-cache-dir --force-reinstall --no-binary fedbuff fedbuff"
        )
    warnings.warn(f"{reason}; the slower numba backend runs instead", RuntimeWarning, stacklevel=4)
    return "numba"


def default_threads() -> int:
    """FEDBUFF_NUM_THREADS, or the CPUs that this process may use: by its affinity and its control groups' quota."""
    text = os.environ.get("FEDBUFF_NUM_THREADS")
    if text is None:
        return usable_cpus()
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"FEDBUFF_NUM_THREADS={text!r}: expected a whole number of at least 1")
    return int(text)
