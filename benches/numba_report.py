"""The Numba backend on the performance page: what report.py measures of it, and the part of the page that says it.

It runs where nothing was compiled, so its rivals are what a user could write there: loops in Numba by hand, each by its
fastest variant. Each row is one run in which all of them took turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare import compare, present, ratio

Data = dict[str, Any]
Measure = Callable[[Any], Data]

HERE = Path(__file__).resolve().parent
OURS = "FEDBUFF_BACKEND=numba ours"


@dataclass(frozen=True)
class Work:
    """What is measured: as the page names it, as a contender runs it, and how fast it should be beside the rivals."""

    what: str
    run: str
    rivals: tuple[str, ...]
    wanted: float
    unit: str = "updates"
    scale: float = 1.0  # of the rate on the page


WORKS = {
    "W1": Work("W1, softmax regression", "replay W1 4000", ("replay W1 4000 loops", "replay W1 4000 blas"), 0.95),
    "W2": Work("W2, logistic regression", "replay W2 1000000", ("replay W2 1000000", "replay W2 1000000 flat"), 0.8),
    "W3": Work("W3, MLP", "replay W3 600", ("replay W3 600",), 0.95),
    **{
        f"W4-{dim}": Work(f"W4, ten deltas of {dim:,}", f"aggregate {dim}", (f"aggregate {dim}",), 1.0, "GB", 1e-9)
        for dim in (1_000_000, 25_000_000)
    },
    **{
        f"W5-{n}": Work(
            f"W5, {n:,} in flight", f"schedule {n} 3000000", (f"schedule {n} 3000000 counts",), 0.8, "arrivals"
        )
        for n in (100, 10_000, 1_000_000)
    },
}
SAME_WORK = "columns"  # the variant of the rival's event loop that draws by Philox and writes columns
THREADS = {"W1": 4000, "W3": 600}
THREADS_WANTED = 1.8
FIRST_WANTED = 1.0  # seconds of a first replay, where all was compiled by an earlier process

FIRST = """
import sys, time
sys.path.insert(0, {benches!r})
import ours
turn = ours.replay("W1", "1000")
ready = time.perf_counter()
turn()
print(time.perf_counter() - ready)
"""


def _duel(texts: list[str], turns: int, cores: int = 1, seconds: float = 0.3) -> Data:
    """Rates by contender, ratios of the first to each."""
    results = compare(present(texts), turns=turns, cores=cores, seconds=seconds)
    return {
        "rates": {result.text: result.rate for result in results},
        "ratios": {result.text: list(vars(ratio(results[0], result)).values()) for result in results[1:]},
    }


def work_part(name: str) -> Measure:
    """Beside the rivals, and beside the compiled backend."""
    work = WORKS[name]
    others = [f"numba {rival}" for rival in work.rivals]
    if name.startswith("W5"):
        others.append(f"numba {work.run} {SAME_WORK}")
    return lambda options: _duel([f"{OURS} {work.run}", *others, f"ours {work.run}"], options.turns)


def threads_part(name: str) -> Measure:
    def measure(options: Any) -> Data:
        if len(os.sched_getaffinity(0)) < 2:
            return {}
        run = f"{OURS} replay_alone {name} {THREADS[name]}"
        return _duel([f"{run} 2", f"{run} 1"], options.turns, cores=2, seconds=0.8)

    return measure


def first_replays(options: Any) -> Data:
    """Seconds of the first replay of W1 in a process, after import and data: nothing compiled, and all of it."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "FEDBUFF_BACKEND": "numba", "NUMBA_CACHE_DIR": folder}
        command = [sys.executable, "-c", FIRST.format(benches=str(HERE))]
        times = [
            float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
            for _ in range(4)
        ]
    return {"empty": times[0], "full": min(times[1:])}


def parts() -> dict[str, Measure]:
    """What report.py measures, by name."""
    made = {name: work_part(name) for name in WORKS}
    made |= {f"threads {name}": threads_part(name) for name in THREADS}
    return made | {"first": first_replays}


# --- the page


def page(section: Data | None) -> str:
    """The part of the page: markdown, from what was measured; or nothing."""
    found = {} if section is None else section["data"]
    rows = [_row(work, found[name]) for name, work in WORKS.items() if name in found]
    if not rows:
        return ""
    lines = [
        "## The Numba backend",
        "",
        "What runs where nothing was compiled, beside the fastest loop in Numba that we could write by hand for the "
        "same work. Both on one core in float32, in turn, in one run; the last column is the compiled backend in that "
        "run." + _company(section),
        "",
        "| | a second | by hand | times as fast | wanted | | compiled kernels |",
        "|---|---|---|---|---|---|---|",
        *rows,
    ]
    return "\n".join([*lines, *_draws(found), *_threads(found), *_first(found)])


def _company(section: Data | None) -> str:
    others = (section or {}).get("others", 0.0)
    return f" **Other programs ran meanwhile, {others:.1f} cores' worth.**" if others > 0.1 else ""


def _row(work: Work, part: Data) -> str:
    ours, compiled = part["rates"][f"{OURS} {work.run}"], part["rates"][f"ours {work.run}"]
    rivals = [f"numba {rival}" for rival in work.rivals if f"numba {rival}" in part["ratios"]]
    best, low, high = min(part["ratios"][rival] for rival in rivals)
    shown = [f"{work.scale * rate:,.0f} {work.unit}" for rate in (ours, max(part["rates"][rival] for rival in rivals))]
    verdict = "met" if best >= work.wanted else "missed"
    return (
        f"| {work.what} | {shown[0]} | {shown[1]} | {best:.2f} ({low:.2f} to {high:.2f}) | {work.wanted:g} | {verdict} "
        f"| {work.scale * compiled:,.0f} |"
    )


def _draws(found: Data) -> list[str]:
    """What the rival's event loop reaches when it draws by Philox and writes the columns of a schedule, as ours."""
    told = []
    for name, work in WORKS.items():
        rival = f"numba {work.run} {SAME_WORK}"
        if rival in found.get(name, {}).get("ratios", {}):
            told.append(f"{work.what} {found[name]['ratios'][rival][0]:.2f}")
    if not told:
        return []
    said = (
        "The loop by hand for W5 draws by a cheaper generator and writes nothing. A second one draws by Philox with a "
        "logarithm of its own and writes the columns of a schedule, as ours does. Beside that one we are so many times "
        f"as fast: {'; '.join(told)}."
    )
    return ["", said]


def _threads(found: Data) -> list[str]:
    told = []
    for name in THREADS:
        part = found.get(f"threads {name}", {})
        if part:
            best, low, high = next(iter(part["ratios"].values()))
            verdict = "met" if best >= THREADS_WANTED else "missed"
            told.append(f"{name} {best:.2f} ({low:.2f} to {high:.2f}), {verdict}")
    return ["", f"Two threads beside one, at least {THREADS_WANTED} wanted: {'; '.join(told)}."] if told else []


def _first(found: Data) -> list[str]:
    if "first" not in found:
        return []
    empty, full = found["first"]["empty"], found["first"]["full"]
    verdict = "met" if full < FIRST_WANTED else "missed"
    said = (
        f"The first schedule and replay of W1 in a process, 1,000 updates, after import: {empty:.0f} s where nothing "
        f"is compiled yet, {full:.2f} s where an earlier process or `fedbuff warmup` compiled it (below "
        f"{FIRST_WANTED:g} s wanted: {verdict})."
    )
    return ["", said]
