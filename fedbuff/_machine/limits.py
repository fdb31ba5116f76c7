"""Limits of this machine: bytes read, written and copied per second, multiply-adds, and NumPy's BLAS."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .._base.arrays import aligned_copy
from .._base.threads import split
from .config import config
from .cpu import cpu_name
from .levels import compiled_for
from .rates import Row, Turn, best_rate, fixed_amount, in_threads, long_enough

_BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


def setting() -> dict[str, Any]:
    """The head of every result: CPU, versions, backend, level, compiler and flags."""
    built = config()
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "numpy": np.__version__,
        **{key: built[key] for key in ("version", "python", "backend", "level used", "compiler", "flags")},
    }


def caches() -> dict[str, int]:
    """Bytes of each data cache that a core reaches, by name; the usual sizes where the system does not say."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level, size = ((index / name).read_text().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            found[f"L{level}"] = int(size.rstrip("KM")) * (1 << 20 if size.endswith("M") else 1 << 10)
    return found or {"L1": 32 << 10, "L2": 512 << 10, "L3": 16 << 20}


def places() -> dict[str, int]:
    """Bytes of a working set that lies in each cache, and of one that lies in none."""
    sizes = caches()
    return {name: size // 2 for name, size in sizes.items()} | {"memory": max(256 << 20, 6 * max(sizes.values()))}


def aligned_vectors(n: int, dim: int, dtype: DTypeLike) -> list[NDArray[Any]]:
    return [aligned_copy(np.ones(dim, dtype)) for _ in range(n)]


def read_turn(dim: int, streams: int, threads: int, dtype: DTypeLike, seconds: float = 0.01) -> Turn:
    """Reads `streams` vectors side by side, each thread its part of them, for about so long a turn: bytes."""
    limits = compiled_for("read_turn").limits(dtype)
    vectors = aligned_vectors(streams, dim, dtype)
    views = [[v[part] for v in vectors] for part in split(dim, threads)]
    works = [lambda n, v=v: limits.read(v, n) for v in views]
    return long_enough(works, float(sum(v.nbytes for v in vectors)), seconds)


def _bandwidth(n_bytes: int, threads: int, dtype: np.dtype[Any], shared: bool, seconds: float) -> dict[str, float]:
    """GB/s of reading, writing and copying a working set: one for each thread, or one for all where they share."""
    limits = compiled_for("bandwidth").limits(dtype)
    each = n_bytes // threads if shared else n_bytes
    sets = [aligned_vectors(1, each // dtype.itemsize, dtype)[0] for _ in range(threads)]
    half = len(sets[0]) // 2

    def rate(work: Callable[[NDArray[Any], int], object]) -> float:
        works = [lambda n, v=v: work(v, n) for v in sets]
        return best_rate(long_enough(works, float(threads * each), min(0.01, seconds)), seconds) / 1e9

    return {
        "read": rate(lambda v, n: limits.read([v], n)),
        "write": max(rate(lambda v, n: limits.write(v, False, n)), rate(lambda v, n: limits.write(v, True, n))),
        "copy": max(
            rate(lambda v, n: limits.copy(v[:half], v[half : 2 * half], False, n)),
            rate(lambda v, n: limits.copy(v[:half], v[half : 2 * half], True, n)),
        ),
    }


def clock_rate(seconds: float = 0.05) -> float:
    """Clock cycles per second, by a chain of additions in which each waits for the one before it."""
    additions = compiled_for("clock").limits(np.float32).additions
    return best_rate(long_enough([additions], float(additions(1)[1]), min(0.002, seconds)), seconds)


def multiply_add_turn(threads: int, dtype: DTypeLike, seconds: float = 0.01) -> Turn:
    """Multiply-adds in registers, each thread its own: operations, two for a multiply-add."""
    limits = compiled_for("multiply_add").limits(dtype)
    flops = float(limits.multiply_add(1)[1])
    return long_enough([limits.multiply_add] * threads, threads * flops, seconds)


# Vectors in a clock cycle that no CPU exceeds at any level: two multiply-adds (where they are one instruction or two,
# there are as many units for each), three loads, two stores. A copy counts its bytes twice.
_PORTS = {"multiply_add": 2, "read": 3, "write": 2, "copy": 4}
_EXCESS = 1.05  # of the measured clock


class Peaks:
    """What clock x width x ports allows at the level in force. A higher rate means that a loop does not do its work."""

    def __init__(self, seconds: float) -> None:
        self._seconds = min(0.05, seconds)
        self.clock = clock_rate(self._seconds)

    def peak(self, name: str, dtype: np.dtype[Any], threads: int) -> float:
        """GFLOP/s or GB/s."""
        lanes = compiled_for(name).limits(dtype).lanes()
        each = 2 if name == "multiply_add" else dtype.itemsize
        return float(threads * self.clock * lanes * _PORTS[name] * each / 1e9)

    def require_possible(self, name: str, rate: float, dtype: np.dtype[Any], threads: int) -> None:
        for _ in range(10):  # the clock may have been measured while something else ran, or before it rose
            if rate <= _EXCESS * self.peak(name, dtype, threads):
                return
            self.clock = max(self.clock, clock_rate(self._seconds))
        unit = "GFLOP/s" if name == "multiply_add" else "GB/s"
        raise ValueError(
            f"{name}: expected at most clock x width x ports = {self.peak(name, dtype, threads):.4g} {unit} for "
            f"{dtype.name} on {threads} threads at {self.clock / 1e9:.3g} GHz, got {rate:.4g}: the loop of this level "
            "does not do all of its work"
        )


def gemm_turn(size: int, dtype: DTypeLike) -> Turn:
    """A product of square matrices by NumPy's BLAS, on as many threads as that was started with: operations."""
    a, b = np.random.default_rng(0).random((2, size, size)).astype(dtype)
    out = np.empty_like(a)
    times = max(1, 512**3 // size**3)

    def turn() -> dict[str, Any]:
        for _ in range(times):
            np.matmul(a, b, out=out)
        return {"amount": times * 2.0 * size**3}

    return turn


def gemm_turns(size: int, dtype: DTypeLike, threads: int) -> Turn:
    """As many such products as threads, side by side: operations of all. The BLAS itself must have one thread."""
    turns = [gemm_turn(size, dtype) for _ in range(threads)]

    def work(repeats: int, turn: Turn) -> None:
        for _ in range(repeats):
            turn()

    run = in_threads([functools.partial(work, turn=turn) for turn in turns])
    return fixed_amount(lambda: run(1), threads * float(turns[0]()["amount"]))


def gemm_rate(threads: int, dtype: DTypeLike, seconds: float = 0.3, size: int = 512) -> float:
    """GFLOP/s of NumPy's BLAS, a product on each thread, so that none waits for another.

    In a process of its own, since a BLAS takes its number of threads, one here, when it is loaded.
    """
    turn = f"gemm_turns({size}, {np.dtype(dtype).name!r}, {threads})"
    code = f"from fedbuff._machine.limits import best_rate, gemm_turns; print(best_rate({turn}, {seconds}))"
    environment = {**os.environ, **dict.fromkeys(_BLAS_THREADS, "1"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout) / 1e9


def machine(threads: Sequence[int], dtypes: Sequence[str] = ("float32",), *, seconds: float = 0.2) -> dict[str, Any]:
    """What runs, and what the machine can do: GB/s at each place, GFLOP/s of NumPy's BLAS and of multiply-adds.

    Bytes copied count twice, read and written. The last cache and the memory are shared by the threads, the other
    caches belong to each. "clock" is in GHz, "peak" two multiply-adds of whole vectors in every cycle of it. A rate
    above what the clock allows is an error.
    """
    names, sizes, single = list(caches()), places(), np.dtype(np.float32)
    peaks = Peaks(seconds)
    bandwidth: list[Row] = []
    for n in threads:
        for place, n_bytes in sizes.items():
            rates = _bandwidth(n_bytes, n, single, place == "memory" or place == names[-1], seconds)
            for name, rate in rates.items():
                peaks.require_possible(name, rate, single, n)
            bandwidth.append({"place": place, "MiB": n_bytes / 2**20, "threads": n} | rates)
    arithmetic: list[Row] = []
    for n in threads:
        for dtype in map(np.dtype, dtypes):
            rate = best_rate(multiply_add_turn(n, dtype, min(0.01, seconds)), seconds) / 1e9
            peaks.require_possible("multiply_add", rate, dtype, n)
            row = {"dtype": dtype.name, "threads": n, "gemm": gemm_rate(n, dtype, 2 * seconds), "multiply_add": rate}
            arithmetic.append(row | {"peak": peaks.peak("multiply_add", dtype, n)})
    return {
        "setting": setting(),
        "clock": peaks.clock / 1e9,
        "caches": caches(),
        "bandwidth": bandwidth,
        "arithmetic": arithmetic,
    }
