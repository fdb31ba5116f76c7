"""Event loops in C++ by hand, compiled here with the flags that anybody would take (event_loops.cpp)."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .data import FOLDER

FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared")


def compiled(name: str, flags: Sequence[str] = ()) -> ctypes.CDLL:
    """The library of a source beside this file, compiled unless it was with these flags."""
    source = Path(__file__).with_name(f"{name}.cpp")
    command = [os.environ.get("CXX", "c++"), *FLAGS, str(source), *flags]
    digest = hashlib.sha256(repr((command, source.read_bytes())).encode()).hexdigest()[:16]
    path = FOLDER / f"{name}-{digest}.so"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            made = Path(folder) / path.name
            subprocess.run([*command, "-o", str(made)], check=True)
            made.replace(path)
    return ctypes.CDLL(str(path))


def mm1(customers: str, which: str, flags: Sequence[str] = ()) -> Callable[[], dict[str, Any]]:
    """Two events for each customer; the answer is the mean time that one stays."""
    loop, n = getattr(compiled("event_loops", flags), f"mm1_{which}"), int(customers)
    loop.argtypes, loop.restype = (ctypes.c_int64, ctypes.c_uint64), ctypes.c_double
    return lambda: {"amount": 2 * n, "stay": loop(n, 1)}


def phold(in_flight: str, events: str, which: str, flags: Sequence[str] = ()) -> Callable[[], dict[str, Any]]:
    """The answer is the mean time of an event."""
    loop, n_tasks, n = getattr(compiled("event_loops", flags), f"phold_{which}"), int(in_flight), int(events)
    loop.argtypes, loop.restype = (ctypes.c_int64, ctypes.c_int64, ctypes.c_uint64), ctypes.c_double
    return lambda: {"amount": n, "pace": loop(n_tasks, n, 1)}


def crossing() -> Callable[[], dict[str, Any]]:
    """Round trips of a cache line between two cores."""
    call = compiled("crossing", ["-pthread"]).crossing
    call.argtypes, call.restype = (ctypes.c_int64,), ctypes.c_double

    def run() -> dict[str, Any]:
        call(100_000)
        return {"amount": 100_000}

    return run
