"""What options of schedules, tables and compression cost: measures it, and writes that part of docs/performance.md.

    python benches/options_page.py                      all, three minutes on a quiet core
    python benches/options_page.py --only options-100   this again, the others as they were measured
    python benches/options_page.py --write              only write the part

What was measured is kept in .benchmarks/options.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench_compression import DIM as COMPRESSED
from bench_compression import KINDS, MOST_PASSES, passes
from bench_options import WHY, seconds_of
from bench_table import BUFFER, BUSY, DIM, MOST, UPDATES, bandwidth, step_rate
from compare import compare, ratio
from option_runs import GOALS, PLAIN, K, model, with_strategy
from page import replace_part

import fedbuff as fb

STORE = Path(__file__).resolve().parent.parent / ".benchmarks" / "options.json"
ARRIVALS, TURNS = 1_000_000, 6
RESTARTED = [10_000, 100_000]  # of fewer, a whole call is most of the time
Data = dict[str, Any]


def options(in_flight: int) -> Data:
    """Nanoseconds of an ended task: the best of some turns, in which all options take part."""
    makes = {"plain": PLAIN} | {name: make for name, (make, _) in GOALS.items()}
    best = dict.fromkeys(makes, np.inf)
    for _ in range(TURNS):
        for name, make in makes.items():
            best[name] = min(best[name], 1e9 * seconds_of(make, in_flight, ARRIVALS))
    return best


def start_time(in_flight: int) -> float:
    """Nanoseconds of one start among so many tasks that start together."""
    begin = time.process_time()
    fb.schedule(model(in_flight), fb.FedBuff(K), in_flight, arrivals=1)
    return (time.process_time() - begin) / in_flight * 1e9


def restarts() -> Data:
    """Nanoseconds of a start, and of a task that is stopped and started again with all others, by tasks in flight."""
    found = {}
    for n in RESTARTED:
        rows = max(300_000, 10 * n)
        again = min(1e9 * seconds_of(with_strategy(restart="step"), n, rows) for _ in range(4))
        found[str(n)] = [min(start_time(n) for _ in range(4)), again]
    return found


def tables() -> Data:
    """The step of CA2FL beside the bandwidth; times of replays with a table relative to those without."""
    found: Data = {"limit": bandwidth(), "step": max(step_rate() for _ in range(3))}
    for name, updates in UPDATES.items():
        texts = [f"ours replay_table {name} {updates}", f"ours replay_alone {name} {updates}"]
        results = compare(texts, turns=5, seconds=0.3)
        found[name] = 1 / ratio(results[0], results[1]).best
    found["limit"] = min(found["limit"], bandwidth())
    return found


SECTIONS: dict[str, Callable[[], Data]] = {
    "options-100": lambda: options(100),
    "options-10000": lambda: options(10_000),
    "restarts": restarts,
    "tables": tables,
    "compression": lambda: {name: passes(name) for name in KINDS},
}


def option_rows(found: Data) -> list[str]:
    few, many = found["options-100"], found["options-10000"]
    lines = [
        "| | 100 in flight, ns | times plain | 10,000, ns | times plain | at most | |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in few:
        cells = [f"{each[name]:.0f} | {each[name] / each['plain']:.2f}" for each in (few, many)]
        goal = GOALS[name][1] if name in GOALS else np.inf
        met = all(each[name] <= goal * each["plain"] for each in (few, many))
        told = f"{goal:g} | {'met' if met else 'missed'}" if np.isfinite(goal) else " | "
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {told} |")
    missed = [name for name in GOALS if any(each[name] > GOALS[name][1] * each["plain"] for each in (few, many))]
    lines += ["", "Why some are missed:", ""] if missed else []
    return lines + [f"- {name}: {WHY[name]}." for name in missed]


def restart_rows(found: Data) -> list[str]:
    lines = ["| tasks in flight | a start, ns | stopped and started again, ns | times |", "|---|---|---|---|"]
    return lines + [
        f"| {int(n):,} | {start:.0f} | {again:.0f} | {again / start:.2f} |" for n, (start, again) in found.items()
    ]


def table_rows(found: Data) -> list[str]:
    share = found["step"] / found["limit"]
    lines = ["| | measured | wanted | |", "|---|---|---|---|"]
    lines.append(
        f"| step of CA2FL, {DIM:,} weights, K = {BUFFER}: share of the bandwidth of copying | {100 * share:.0f} % "
        f"({found['step']:.0f} of {found['limit']:.0f} GB/s) | at least {100 * BUSY:.0f} % | {met(share >= BUSY)} |"
    )
    for name, most in MOST.items():
        lines.append(
            f"| {name} with a table / without | {found[name]:.2f} | at most {most} | {met(found[name] <= most)} |"
        )
    return lines


def met(is_met: bool) -> str:
    return "met" if is_met else "missed"


def compression_rows(found: Data) -> list[str]:
    lines = ["| | passes over memory | at most |", "|---|---|---|"]
    for name, times in found.items():
        most = MOST_PASSES.get(name)
        told = f"{most:g}: {met(times <= most)}" if most is not None else ""
        lines.append(f"| {name} | {times:.2f} | {told} |")
    return lines


def part(found: Data) -> str:
    return "\n".join(
        [
            "## Options, tables and compression",
            "",
            "What is not used costs nothing: `benches/builds.py` compares builds. What is used is measured here by "
            "`benches/options_page.py`, on one core, the best of some turns in which all take part. Schedules have "
            f"exponential delays, K = {K} and ten clients for each task in flight; times are those of an ended task.",
            "",
            *option_rows(found),
            "",
            "Restarts of all tasks at every step, beside as many starts:",
            "",
            *restart_rows(found["restarts"]),
            "",
            "A table with a row per client:",
            "",
            *table_rows(found["tables"]),
            "",
            f"Compression of {COMPRESSED:,} numbers of float32; a pass reads a vector and writes another:",
            "",
            *compression_rows(found["compression"]),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=[], help="measure these again, no other")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    chosen = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    found: Data = json.loads(STORE.read_text()) if STORE.exists() else {}
    wanted = [] if chosen.write else chosen.only or list(SECTIONS)
    for name in wanted:
        print(f"{name} ...", flush=True)
        found[name] = SECTIONS[name]()
        STORE.parent.mkdir(exist_ok=True)
        STORE.write_text(json.dumps(found, indent=1))
    if found.keys() >= SECTIONS.keys():
        replace_part(part(found))
        print("docs/performance.md: the part on options, tables and compression is written")


if __name__ == "__main__":
    main()
