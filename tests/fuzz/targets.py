"""The targets in C++ under libFuzzer, one after the other; what crashes or hangs is kept in build/fuzz/found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import reliability_page
from found import Row, found_folder

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OUT = ROOT / "build" / "fuzz"
BUILT = OUT / "built"  # the commit
LARGEST = 256  # bytes of an input
LONGEST = 120  # seconds by the clock, which run on where others have the cores: longer is a hang
# Short stacks of allocations and a small quarantine: an execution takes some tens of microseconds.
_ASAN = "allocator_may_return_null=1:malloc_context_size=4:quarantine_size_mb=16"
ENVIRONMENT = {**os.environ, "ASAN_OPTIONS": _ASAN}


def names() -> list[str]:
    return sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.cpp"))


def build() -> None:
    """Builds all targets, and notes the commit, for pieces of a campaign that begin when the sources have gone on."""
    subprocess.run(["make", "-s", f"-j{os.cpu_count()}", "-C", str(HERE), "all"], check=True)
    BUILT.write_text(reliability_page.commit(), encoding="utf-8")


def run(seconds: float, seed: int, chosen: list[str]) -> Iterator[Row]:
    """All targets, or those chosen, each for the same time."""
    if unknown := set(chosen) - {*names()}:
        raise ValueError(f"targets: expected some of {', '.join(names())}, got {', '.join(unknown)}")
    wanted = chosen or names()
    yield from (run_one(name, max(1, round(seconds / len(wanted))), seed) for name in wanted)


def run_one(name: str, seconds: int, seed: int) -> Row:
    """One target from its corpus in the repository and what earlier campaigns added; again after each crash."""
    corpus, ours = OUT / "corpus" / name, ROOT / "tests" / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    began, executions, crashes, hangs = time.monotonic(), 0, 0, 0
    while (left := seconds - (time.monotonic() - began)) >= 1 and crashes + hangs < 10:
        command = [
            str(OUT / name), str(corpus), *([str(ours)] if ours.is_dir() else []), f"-max_len={LARGEST}",
            f"-max_total_time={round(left)}", f"-timeout={LONGEST}", "-rss_limit_mb=3000", "-print_final_stats=1",
            f"-seed={seed + 1}", f"-artifact_prefix={found_folder(name)}{os.sep}",
        ]  # fmt: skip
        ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, errors="replace", check=False)
        counted = re.search(r"stat::number_of_executed_units:\s+(\d+)", ended.stderr)
        executions += int(counted[1]) if counted else 0
        if ended.returncode != 0:
            is_hang = "ERROR: libFuzzer: timeout" in ended.stderr
            crashes, hangs, seed = crashes + (not is_hang), hangs + is_hang, seed + 1
            (found_folder(name) / f"report-{seed}.txt").write_text(ended.stderr)
            print(f"{name}: {'hang' if is_hang else 'crash'}, see {found_folder(name)}", flush=True)
    return Row(f"C++: {name}", executions, time.monotonic() - began, crashes, hangs, 0)


def shrink() -> None:
    """Puts the smallest set of inputs that reach all that the corpora do into tests/corpus, beside what was found."""
    for name in names():
        ours, smaller = ROOT / "tests" / "corpus" / name, OUT / "smaller" / name
        shutil.rmtree(smaller, ignore_errors=True)
        smaller.mkdir(parents=True)
        ours.mkdir(parents=True, exist_ok=True)
        command = [str(OUT / name), "-merge=1", f"-max_len={LARGEST}", str(smaller), str(OUT / "corpus" / name)]
        subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=True)
        for path in smaller.iterdir():
            shutil.copy(path, ours / path.name)
