"""Runs our workloads and the rivals' in turn, each in a process on the same core, and gives the best of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
FOLDER = next((p / "shared" / "bench" for p in HERE.parents if (p / "shared" / "bench").is_dir()), None)
# An interpreter with PyTorch, which our own environment does not have.
OTHER_PYTHON = os.environ.get("FEDBUFF_BENCH_PYTHON", sys.executable)


def run_process(command: list[str], cores: set[int], folder: Path) -> str:
    threads = str(len(cores))
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, threads)}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    return done.stdout


def ours(*arguments: Any, cores: int = 1) -> dict[str, float]:
    command = [sys.executable, str(HERE / "workloads.py"), *map(str, arguments)]
    result: dict[str, float] = json.loads(run_process(command, set(range(cores)), HERE).splitlines()[-1])
    return result


def rival(script: str, *arguments: Any, cores: int = 1, python: str = sys.executable) -> dict[str, Any]:
    """The first JSON that a rival prints: `max` is its best rate."""
    if FOLDER is None:
        pytest.skip("the rivals' folder ../shared/bench is not here")
    output = run_process([python, script, *map(str, arguments)], set(range(cores)), FOLDER)
    line = next(line for line in output.splitlines() if line.startswith("RESULT"))
    result: dict[str, Any] = json.loads(line.removeprefix("RESULT"))
    return result


def need_rivals() -> None:
    if FOLDER is None:
        pytest.skip("the rivals' folder ../shared/bench, which also holds the workloads' data, is not here")


def in_turn(turns: int, *runs: Any) -> list[list[Any]]:
    """Calls each of the runs `turns` times, one after the other; their results, run by run."""
    results: list[list[Any]] = [[] for _ in runs]
    for _ in range(turns):
        for run, kept in zip(runs, results, strict=True):
            kept.append(run())
    return results


def note(benchmark: Any, seconds: float, **figures: float) -> None:
    """Puts the figures on the benchmark's record, and on the screen."""
    benchmark.extra_info.update({name: round(float(value), 4) for name, value in figures.items()})
    benchmark.pedantic(lambda: None, rounds=1)
    print("\n" + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()), f"(best run {seconds:.3g} s)")
