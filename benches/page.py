"""docs/performance.md and its figures, from what report.py measured. Every number on the page comes from there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import machine
import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).resolve().parents[1] / "docs"
FIGURES = DOCS / "figures"
PAGE = DOCS / "performance.md"
Sections = dict[str, Any]
Profiles = dict[str, list[tuple[float, str]]]  # per cent and function, by contender
NAMES = {
    "W1": "W1, softmax regression, 784 inputs, 10 classes",
    "W2": "W2, logistic regression, 20 inputs",
    "W3": "W3, MLP 784-128-10",
    "CSR": "CSR, logistic regression on sparse rows, 123 inputs, 100 clients",
}
SHORT_NAMES = (
    "- **W1, W2, W3, CSR**: replays of softmax regression with 784 inputs and 10 classes (W1), of logistic regression "
    "with 20 inputs (W2), of an MLP with 784, 128 and 10 units (W3), and of logistic regression on sparse rows (CSR).",
    "- **W4**: one server step: ten deltas and their weights are added to a model, by `fedbuff.aggregate`.",
    "- **W5**: a schedule alone, without training: the event loop with so many tasks in flight.",
    "- **W6**: a client's local steps on a network with convolutions.",
    "- An **update** is one client's task: its local steps, and the addition of its delta.",
)
RIVALS = {
    "numba": "Numba, the whole simulator by hand",
    "numba blas": "Numba by hand, over OpenBLAS",
    "numba loops": "Numba by hand, register blocks",
    "numba flat": "Numba by hand, all of it one function",
    "jax": "JAX, the whole run one jitted scan",
    "numpy": "NumPy, the K clients of a buffer batched",
    "torch": "PyTorch by hand, the K clients batched",
    "torch module": "PyTorch, module, autograd and optimiser",
}
SHORT = {
    RIVALS[key]: label
    for key, label in {
        "numba": "Numba",
        "numba blas": "Numba, BLAS",
        "numba loops": "Numba, loops",
        "numba flat": "Numba, one function",
        "jax": "JAX",
        "numpy": "NumPy",
        "torch": "PyTorch",
        "torch module": "PyTorch, module",
    }.items()
}
LIBRARIES = {"jax": "JAX", "numba": "Numba", "numexpr": "NumExpr", "torch": "the fastest PyTorch", "numpy": "NumPy"}
# Why a bar is out of reach, where it is; shown only where the measurement says that it was missed.
REASONS = {
    "W2": "an update of four rows of twenty numbers takes less than half a microsecond, so that what surrounds the "
    "arithmetic shows: rows that come from memory, counter-based random numbers, the window and the version store",
    "W4": "all of the time is in the fused pass, which moves about as many bytes a second as reading alone",
    "peak": "scores need a sum over each row, and steps read and write the weights: loads and stores share the cycles "
    "with multiply-adds",
    "options": "windows: at the end of each task its client's next window is looked for; open loop: each start is an "
    "event too, and its time is drawn by itself",
    "shares": "of few tasks each is drawn for a client that was just idle, and of nearly all clients at work the next "
    "idle one is seldom guessed, so that delays are drawn one by one instead of sixteen at a time",
    "python": "about a hundred small arrays and objects are made and checked in every call, a microsecond or two each",
    "reading": "pyarrow only reads into a table; for a trace clients are read as texts, numbered and sorted, and the "
    "columns are gathered by client",
    "W5": "the rival's loop writes nothing and draws from a cheap generator; ours writes the columns of a schedule and "
    "draws by counters, so that every backend and machine gives the same schedule",
    "heapq": "NumPy's bulk draws make the plain loop faster than the standard library's generator does",
    "evaluate": "for a row of twenty numbers most of the time goes into its score, its exponential and its part of "
    "the gradient, and not into reading it; only long rows are asked from memory a block ahead",
    "float64": "twice the bytes fill the caches, and a register holds half as many numbers; eleven vectors of 10^6 "
    "numbers that lie mostly in the last cache as float32 lie mostly in memory as float64",
    "odd": "tails of rows and blocks that are not full do whole vectors' work for parts of them",
    "threads": "both threads share the memory's bandwidth and the last cache; where a task takes a fraction of a "
    "microsecond, about half of the work is making the steps and keeping the books, which one thread does; and a "
    "cache line takes as long from core to core as a task",
    "sizes": "weights and the rows of a batch leave a cache together, and every local step fetches them again",
    "clients": "the rows of a client that was not seen for long come from memory instead of a cache",
    "arrivals": "a first turn pays for memory that later turns use again",
}


@dataclass(frozen=True)
class Bar:
    """One figure that we want, and what was measured."""

    what: str
    wanted: float
    got: float
    low: float
    high: float
    reason: str
    run: str = ""  # the contender to profile where the bar is missed
    cores: int = 1  # that it ran on
    aim: float = 0.0  # beyond the bar, where there is one
    percent: bool = False
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.got <= self.wanted if self.at_most else self.got >= self.wanted

    def shown(self, value: float) -> str:
        return f"{100 * value:.0f} %" if self.percent else f"{value:.2f}" if value < 100 else f"{value:,.0f}"

    def line(self) -> str:
        sign = "at most" if self.at_most else "at least"
        wanted = f"{sign} {self.shown(self.wanted)}" + (f", {self.shown(self.aim)} the aim" if self.aim else "")
        met = "met, and the aim" if self.aim and self.got >= self.aim else "met"
        verdict = met if self.met else f"missed by {abs(1 - self.got / self.wanted):.0%}"
        spread = f"{self.shown(self.low)} to {self.shown(self.high)}"
        return f"| {self.what} | {wanted} | {self.shown(self.got)} | {spread} | {verdict} |"


def _data(sections: Sections, name: str) -> Any:
    return sections.get(name, {}).get("data", {})


def _ratio(found: Any, start: str) -> list[float] | None:
    """[best, low, high] against the hardest of the contenders that begin so."""
    ratios = [each for text, each in found.get("ratios", {}).items() if text.startswith(start)]
    return min(ratios) if ratios else None


def _rate(found: Any, start: str) -> float | None:
    rates = [rate for text, rate in found.get("rates", {}).items() if text.startswith(start)]
    return max(rates) if rates else None


def _only(found: Any) -> list[float] | None:
    """The ratio of a duel of two."""
    return next(iter(found.get("ratios", {}).values()), None)


def _first(found: Any) -> str:
    """The contender whose ratios to the others a duel gives."""
    return next(iter(found.get("rates", {})), "")


def bars(sections: Sections) -> list[Bar]:
    found: list[Bar] = []

    def add(what: str, wanted: float, ratio: list[float] | None, reason: str, run: str = "", **how: Any) -> None:
        if ratio is not None:
            found.append(Bar(what, wanted, *ratio, reason, run, **how))

    _bars_of_replays(sections, add)
    _bars_of_aggregation(sections, add)
    _bars_of_schedules(sections, add)
    for name, part in _data(sections, "evaluate").items():
        limit = "ours sgemm" if name != "W2" else "ours read"
        of = "the sgemm rate" if name != "W2" else "the bandwidth of reading its rows"
        add(f"loss and gradient, {name}, share of {of}", 0.85 if name != "W2" else 0.6, _ratio(part, limit), "evaluate",
            _first(part), percent=True)  # fmt: skip
    _bars_of_threads(sections, add)
    for name, part in _data(sections, "dtypes").items():
        add(f"{name}, float64 / float32", 0.45, part["share"], "float64", _first(part), percent=True)
    for name, part in _data(sections, "shapes").items():
        add(f"{name}, odd shape / round", 0.85, part["share"], "odd", _first(part), percent=True)
    for kind, part in _data(sections, "scale").items():
        what = f"cost of an {'arrival' if 'loop' in kind else 'update'}, more {kind} / fewest"
        worst, run = max((each, text) for text, each in part["ratios"].items())
        add(what, 1.1, worst, kind.split()[0], run, at_most=True)
    for label, rows in _ladders(sections).items():
        fall, run = _steepest(rows)
        add(f"{label}, rate at a size / at the size before", NO_CLIFF, fall, "sizes", run, percent=True)
    _bars_of_calls(sections, add)
    pace = _pace(_data(sections, "long").get("rows", []))
    if pace:
        add("a long stream, rate of its last tenth / of its first", 0.9, 3 * [pace[0]], "arrivals")
        add("a long stream, MiB more at its end than after a tenth", 16.0, 3 * [pace[1]], "arrivals", at_most=True)
    return found


def _pace(rows: list[Any]) -> tuple[float, float] | None:
    """Of a stream's samples of arrivals, seconds and MiB: the last tenth's rate over the first's; what memory it took
    more after its first tenth."""
    if len(rows) < 20:
        return None
    part = len(rows) // 10
    rates = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in ((rows[0], rows[part]), (rows[-1 - part], rows[-1]))]
    return rates[1] / rates[0], max(row[2] for row in rows[part:]) - rows[part][2]


Add = Callable[..., None]


def _bars_of_replays(sections: Sections, add: Add) -> None:
    """At least so often Numba, JAX and PyTorch, and such a share of the peak of multiply-adds."""
    wanted = {
        "W1": (1.1, 1.25, 2.0, 4.0, 0.65),
        "W2": (1.5, 0.0, 3.0, 0.0, 0.0),
        "W3": (1.0, 0.0, 1.3, 0.0, 0.85),
        "CSR": (1.5, 0.0, 0.0, 0.0, 0.0),
    }
    for name, (numba, numba_aim, jax, torch, peak) in wanted.items():
        duels = _data(sections, name)
        part, slow = duels.get("numba", {}), duels.get("slow", {})
        run = _first(part)
        add(f"{name} / Numba by hand", numba, _ratio(part, "numba"), name, run, aim=numba_aim)
        add(f"{name} / jitted JAX", jax, _ratio(duels.get("jax", {}), "jax") if jax else None, name, run)
        add(f"{name} / PyTorch by hand", torch, _ratio(slow, "torch") if torch else None, name, run)
        share = _ratio(part, "ours multiply_add") if peak else None
        if share is not None:
            share = [part["executed"] * value for value in share]
            add(f"{name}, share of the multiply-add peak", peak, share, "peak", run, percent=True)


def _bars_of_aggregation(sections: Sections, add: Add) -> None:
    rivals = (("jax", 1.0), ("numba", 1.0), ("numexpr", 1.0), ("torch", 1.0), ("numpy", 2.0))
    for section, cores in (("aggregate", 1), ("aggregate on two", 2)):
        for dim, part in _data(sections, section).items():
            label = f"W4, {int(dim):.2g} weights" + (", two threads" if cores == 2 else "")
            run = _first(part)
            for who, least in rivals:
                add(f"{label} / {LIBRARIES[who]}", least, _ratio(part, who), "W4", run, cores=cores)
            share = _ratio(part, "ours read")
            add(f"{label}, share of the read bandwidth", 0.9, share, "W4", run, percent=True, cores=cores)


def _bars_of_schedules(sections: Sections, add: Add) -> None:
    schedule = _data(sections, "schedule")
    for in_flight in ("100", "10000", "1000000"):
        part, loops = schedule.get(in_flight, {}), schedule.get(f"heapq {in_flight}", {})
        label, run = f"W5, {int(in_flight):,} in flight", _first(part)
        counts = [r for text, r in part.get("ratios", {}).items() if text.endswith("counts")]
        columns = [r for text, r in part.get("ratios", {}).items() if text.endswith("columns")]
        add(f"{label} / Numba's event loop", 1.0, counts[0] if counts else None, "W5", run, aim=1.3)
        add(f"{label} / one that writes the same columns", 1.5, columns[0] if columns else None, "W5", run)
        for text, each in loops.get("ratios", {}).items():
            kind = "`random`" if text.endswith("plain") else "NumPy's bulk draws"
            add(f"{label} / heapq with {kind}", 15.0, each, "heapq", run)
    for in_flight, part in _data(sections, "options").items():
        for text, (best, low, high) in part["ratios"].items():
            name = shlex.split(text)[2]
            share = [1 / best, 1 / high, 1 / low]
            add(f"schedule with {name}, {int(in_flight):,} in flight / plain", 0.5, share, "options", text)
    shares = _data(sections, "shares")
    if shares:
        fastest = max(shares["rates"].values())
        run, slowest = min(shares["rates"].items(), key=lambda pair: pair[1])
        add("schedule, tasks in flight / clients from 0.001 to 1, fastest / slowest", 1.5, 3 * [fastest / slowest],
            "shares", run, at_most=True)  # fmt: skip


NEAR = 150e-9  # seconds of a cache line's round trip, below which two threads can share the smallest updates


def _bars_of_threads(sections: Sections, add: Add) -> None:
    threads = _data(sections, "threads")
    crossing = 1 / (_rate(threads.get("crossing", {}), "cpp") or 1e-9)
    least = {"W1": 1.9, "W2": 1.6 if crossing < NEAR else 1.0, "W3": 1.9, "CSR": 1.8}
    least |= {"whole W1": 1.85, "whole W2": 1.3, "whole W3": 1.9, "evaluate W1": 1.9, "evaluate W3": 1.9}
    for name, goal in least.items():
        part = threads.get(name, {})
        add(f"{name}, two threads / one", goal, _only(part), "threads", _first(part), cores=2)


PYTHON = {
    "callback 500000 64": ("tasks of a Python function that does nothing, 64 at a time, a second", 1e6, False),
    "callback 200000 1": ("the same one by one", 2e5, False),
    "tiny_call": ("schedule and replay of 10 steps of a tiny problem, us a call", 150.0, True),
}
SLOW_PYTHON = 60.0  # ns of an empty call, above which these bars are scaled


def _bars_of_calls(sections: Sections, add: Add) -> None:
    for run, (what, goal, is_time) in PYTHON.items():
        part = _data(sections, "python").get(run)
        if part:
            rate, empty = part["rates"].values()
            scale = max(1.0, 1e9 / empty / SLOW_PYTHON)
            got = 1e6 / rate if is_time else rate
            wanted = goal * scale if is_time else goal / scale
            add(what, wanted, 3 * [got], "python", _first(part), at_most=is_time)
    reading = _data(sections, "reading")
    if "csv" in reading:
        add("reading a CSV trace / pyarrow.csv", 0.8, _only(reading["csv"]), "reading", _first(reading["csv"]))
    if "parquet" in reading:
        part = reading["parquet"]
        rows = int(_first(part).split()[-1])
        seconds = rows / part["rates"][_first(part)]
        add(f"{rows:,} rows of Parquet with 10^5 texts for clients, s", 2.0 * rows / 1e7, 3 * [seconds], "reading",
            _first(part), at_most=True)  # fmt: skip


NO_CLIFF = 0.8  # of the rate at the size before, each relative to its limit, about three times as many weights later
RANGES = {
    "tiny models, 2 to 64 weights": (2, 64),
    "middle, 10^3 to 10^5": (900, 110_000),
    "large, 10^6 to 10^7": (9e5, 2e7),
}


def _ladders(sections: Sections) -> dict[str, list[Any]]:
    """The rungs of each range of sizes, in the order of their weights."""
    kinds = {kind: rows for kind, rows in _data(sections, "sizes").items() if kind != "aggregate"}
    rungs = sorted((row for rows in kinds.values() for row in rows), key=lambda row: row["dim"])
    found = {label: [row for row in rungs if low <= row["dim"] <= high] for label, (low, high) in RANGES.items()}
    return {label: rows for label, rows in found.items() if len(rows) > 1}


def _steepest(rows: list[Any]) -> tuple[list[float], str]:
    """The steepest fall of the share of the limit from one size to the next, with its spread, and the run after it."""
    falls = []
    for before, after in pairwise(rows):
        (was, was_low, was_high), (now, low, high) = before["share"], after["share"]
        falls.append(([now / was, low / was_high, high / was_low], after["run"]))
    return min(falls)


# --- the page


def write_page(sections: Sections, profiles: Profiles, networks: str, numba: str) -> None:
    """`networks` and `numba` are the parts on networks and on the Numba backend; empty where nothing of them was
    measured: the page then keeps what it has."""
    FIGURES.mkdir(exist_ok=True)
    mpl.rcParams.update({"svg.hashsalt": "fedbuff", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    measured = bars(sections)
    parts = [
        _opening(sections, measured),
        _machine(sections),
        _bars(measured),
        _rates(sections),
        _sizes(sections),
        _aggregations(sections),
        _loops(sections),
        _evaluations(sections),
        _threads(sections),
        _others(sections),
        _scale(sections),
        _long(sections),
        _peers(sections) or _part("Beside other libraries"),
        _part("Cliffs"),
        networks or _part("Networks"),
        numba or _part("The Numba backend"),
        _part("Options, tables and compression"),
        _missed(measured, profiles),
        _again(),
    ]
    text = "\n\n".join(part for part in parts if part)
    PAGE.write_text(text.rstrip() + "\n", encoding="utf-8")


def _parts() -> list[str]:
    """Of the page as it is: what stands before the first heading, and each heading with what follows it."""
    return [part.strip() for part in re.split(r"^(?=## )", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)]


def _part(heading: str) -> str:
    return next((part for part in _parts() if part.startswith(f"## {heading}\n")), "")


def replace_part(text: str) -> None:
    """Puts a part in the place of the one with the same heading, or before the last; the rest of the page stays."""
    heading, parts = text.partition("\n")[0], _parts()
    same = [at for at, part in enumerate(parts) if part.partition("\n")[0] == heading]
    parts[same[0] if same else -1 : same[0] + 1 if same else -1] = [text]
    PAGE.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _opening(sections: Sections, measured: list[Bar]) -> str:
    threads = _data(sections, "threads")
    lines = ["# Performance", "", "Short names of what is measured on this page:", "", *SHORT_NAMES]
    lines += ["", "What we recommend:", ""]
    lines.append("- **Compiled kernels**: `fedbuff.show_config()` must say `cpp`, and the best level of your CPU.")
    lines.append("- **float32**, unless your question is about rounding: float64 takes about twice the time.")
    if threads:
        found = {name: _only(threads.get(name, {})) for name in NAMES}
        told = ", ".join(f"{name} {gain[0]:.2f}" for name, gain in found.items() if gain)
        lines.append(
            "- **Leave `threads` alone**: the bits are the same for every number. Two threads were so many times as "
            f"fast as one: {told}. The smaller an update, the less it gains."
        )
    lines.append(
        "- **Aggregate in one pass**, by `fedbuff.aggregate` or by `replay`, instead of adding delta after delta."
    )
    part = _data(sections, "evaluate").get("W1", {})
    rate, updates = _rate(part, "ours evaluate"), _rate(_data(sections, "W1").get("numba", {}), "ours replay")
    if rate and updates:
        cost = part["flops"] / rate * updates
        lines.append(f"- **Evaluate seldom**: one loss and gradient of W1 takes the time of {cost:,.0f} updates.")
    lines.append("- **Try it on your machine**: `fedbuff bench machine`, then `fedbuff bench replay --features ...`.")
    rates = {name: _rate(_data(sections, name).get("numba", {}), "ours replay") for name in NAMES}
    told = "; ".join(f"{name} {rate:,.0f}" for name, rate in rates.items() if rate)
    met = sum(bar.met for bar in measured)
    lines += [
        "",
        f"One core of the machine below makes so many client updates a second, schedule included: {told}. We hold "
        f"ourselves to {len(measured)} figures: {met} are met and {len(measured) - met} are missed. Each is listed, "
        "and the missed ones are explained.",
        "",
        "This page is written by `benches/report.py`. A rate is the best of several turns. A ratio is from one run, in "
        "which the contenders take turns on the same core. The spread, in brackets behind it, is the middle half of "
        "the ratios turn by turn.",
    ]
    return "\n".join(lines)


def _machine(sections: Sections) -> str:
    section = sections["machine"]
    measured = section["data"]
    versions = ", ".join(f"{name} {version}" for name, version in measured["versions"].items())
    about = machine.heading(measured["setting"])[:3]
    quick = " In short (`--quick`): few turns, and so a wide spread." if section["how"]["quick"] else ""
    others = {name: part["others"] for name, part in sections.items() if part["others"] > 0.1}
    told = ", ".join(f"{name} {cores:.1f}" for name, cores in others.items())
    busy = f" **Other programs ran meanwhile, so many cores' worth: {told}.**" if told else ""
    return "\n".join(
        [
            "## The machine",
            "",
            f"Measured on {section['date']}.{quick}{busy}",
            "",
            "```text",
            *about,
            f"numpy {measured['setting']['numpy']}, {versions}",
            "```",
            "",
            "The most that this machine can do, in GB/s and GFLOP/s. Bytes that are copied count twice: they are read "
            "and written.",
            "",
            *machine.tables(measured),
        ]
    )


def _bars(measured: list[Bar]) -> str:
    head = ["| what | wanted | measured | spread | |", "|---|---|---|---|---|"]
    return "\n".join(["## What we hold ourselves to", "", *head, *(bar.line() for bar in measured)])


def _rates(sections: Sections) -> str:
    if not any(_data(sections, name) for name in NAMES):
        return ""
    lines = ["## Beside other ways to do it", ""]
    lines += [
        "Client updates a second on one core, schedule and training together. The last column says how many times as "
        "fast fedbuff was."
    ]
    lines += ["", "![updates a second of fedbuff and its rivals](figures/performance-rivals.svg)", ""]
    figure, axes = plt.subplots(1, len(NAMES), figsize=(11, 2.6), layout="constrained")
    for axis, name in zip(axes, NAMES, strict=True):
        rows = _rows_of(_data(sections, name))
        if not rows:
            continue
        lines += ["", f"{NAMES[name]}:", "", "| | updates/s | fedbuff / this |", "|---|---|---|"]
        lines += [f"| {label} | {rate:,.0f} | {times} |" for label, rate, times in rows]
        labels = [SHORT.get(label, label) for label, _, _ in rows]
        axis.barh(range(len(rows)), [rate for _, rate, _ in rows], color=["C0"] + ["0.7"] * (len(rows) - 1))
        axis.set_yticks(range(len(rows)), labels, fontsize=7)
        axis.invert_yaxis()
        axis.ticklabel_format(axis="x", scilimits=(0, 4))
        axis.set_title(name)
        axis.set_xlabel("updates/s")
    _save(figure, "rivals")
    absent = sorted(
        {text.split()[0] for name in NAMES for part in _data(sections, name).values() for text in part["missing"]}
    )
    return "\n".join(lines + (["", f"Not installed, and so not compared with: {', '.join(absent)}."] if absent else []))


def _rows_of(duels: Any) -> list[tuple[str, float, str]]:
    mine = _rate(duels.get("numba", {}), "ours replay")
    if mine is None:
        return []
    rows = []
    for found in duels.values():
        for text, (best, low, high) in found["ratios"].items():
            who, *rest = text.split()
            if who != "ours":
                label = RIVALS[" ".join([who, *rest[3:]])]
                rows.append((label, found["rates"][text], f"{best:.2f} ({low:.2f} to {high:.2f})"))
    return [("fedbuff", mine, ""), *sorted(rows, key=lambda row: -row[1])]


def _sizes(sections: Sections) -> str:
    sizes = _data(sections, "sizes")
    if not sizes:
        return ""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    rows, kinds = sizes.get("aggregate", []), {kind: rows for kind, rows in sizes.items() if kind != "aggregate"}
    for key, style, label in (("rate", "o-", "fedbuff.aggregate"), ("limit", "--", "reading the same vectors")):
        left.plot([row["dim"] for row in rows], [row[key] / 1e9 for row in rows], style, label=label)
    left.set(xscale="log", yscale="log", xlabel="weights", ylabel="GB/s", title="aggregation of 10 deltas")
    every = sorted((row for rows in kinds.values() for row in rows), key=lambda row: row["dim"])
    for kind, rows in kinds.items():
        right.plot(
            [row["dim"] for row in rows], [row["updates"] * row["flops"] / 1e9 for row in rows], "o-", label=kind
        )
    limits = [row["limit"] / 1e9 for row in every]
    right.plot([row["dim"] for row in every], limits, "--", color="0.4", label="matrix product, BLAS")
    right.set(xscale="log", yscale="log", xlabel="weights", ylabel="GFLOP/s", title="replay, schedule included")
    for axis in (left, right):
        axis.legend(fontsize=7)
    _save(figure, "sizes")
    lines = [
        "## From tiny models to large ones",
        "",
        "![rates against the number of weights, beside the limit](figures/performance-sizes.svg)",
        "One core. Left: `fedbuff.aggregate` as called from Python, beside a loop that only reads the vectors. The "
        "call costs some microseconds, whatever the size. Right: a whole replay in batches of 32 rows and ten local "
        "steps, beside the product of large matrices in the same run. A row that a batch holds twice is counted "
        "twice, although it is computed once.",
        "",
        "| | weights | updates/s | GFLOP/s | % of the matrix product |",
        "|---|---|---|---|---|",
    ]
    for kind, rows in kinds.items():
        lines += [
            f"| {kind} | {row['dim']:,} | {row['updates']:,.0f} | {row['updates'] * row['flops'] / 1e9:.3g} "
            f"| {100 * row['share'][0]:.0f} |"
            for row in rows
        ]
    return "\n".join(lines)


SUMS = {
    "numba": "Numba, one loop over ten deltas",
    "jax": "JAX, one jitted expression, the model donated",
    "numpy": "NumPy, into memory that is there",
    "numexpr": "NumExpr, one expression",
    "torch add": "PyTorch, `add_` with a factor",
    "torch foreach": "PyTorch, `torch._foreach_add_` over sixteen layers",
    "torch matrix": "PyTorch, `addmv_`, the deltas being a matrix beforehand",
    "torch blocks": "PyTorch, `add_` over parts that a cache holds",
}


def _aggregations(sections: Sections) -> str:
    lines = [
        "## Aggregation beside other ways",
        "",
        "Ten deltas with weights, and a server step: GB/s, counted as one pass moves them, and how often faster "
        "fedbuff was.",
        "",
        "| | weights | threads | GB/s | fedbuff / this |",
        "|---|---|---|---|---|",
    ]
    empty = len(lines)
    for section, cores in (("aggregate", 1), ("aggregate on two", 2)):
        for dim, part in _data(sections, section).items():
            for text, rate in part["rates"].items():
                who, _, _, *how = text.split()
                label = SUMS.get(" ".join([who, *how]) if who == "torch" else who)
                label = "fedbuff" if text.startswith("ours aggregate") else label
                if label:
                    times = _times(part["ratios"][text]) if text in part["ratios"] else ""
                    lines.append(f"| {label} | {int(dim):,} | {cores} | {rate / 1e9:.3g} | {times} |")
    return "\n".join(lines) if len(lines) > empty else ""


LISTS = {
    "ours schedule": "`fedbuff.schedule`, its columns written",
    "ours queue": "fedbuff's event queue, from C++",
    "ours python": "`fedbuff.EventQueue`, from Python",
    "cpp standard": "C++ by hand, `std::priority_queue`",
    "cpp four_ary": "C++ by hand, a heap of four children",
    "simpy": "SimPy",
}


def _loops(sections: Sections) -> str:
    loops = _data(sections, "loops")
    if not loops:
        return ""
    lines = [
        "## Event lists",
        "",
        "Events a second on one core. M/M/1: customers at rate 0.75, served at rate 1, two events for each, so that "
        "the list is never longer than two; as a schedule, a client that hands customers to a server that needs time. "
        "PHOLD: each event draws the next, an exponential time later at a place drawn at random; as a schedule, tasks "
        "of idle clients drawn at random. The loops in C++, `benches/rivals/event_loops.cpp`, differ in the list "
        "alone.",
        "",
        "| | events in the list | events/s | `fedbuff.schedule` / this | fedbuff's queue / this |",
        "|---|---|---|---|---|",
    ]
    for name, part in loops.items():
        _, _, size = name.partition(" ")
        label = f"PHOLD, {int(size):,}" if size else "M/M/1, two"
        queue = next((rate for text, rate in part["rates"].items() if text.endswith("queue")), None)
        for text, rate in part["rates"].items():
            who, *rest = text.split()
            times = _times(part["ratios"][text]) if text in part["ratios"] else ""
            own = f"{queue / rate:.2f}" if queue and not text.endswith(("queue", "schedule")) else ""
            row = LISTS[who if who == "simpy" else f"{who} {rest[-1]}"]
            lines.append(f"| {row} | {label} | {rate:,.0f} | {times} | {own} |")
    return "\n".join(lines)


def _threads(sections: Sections) -> str:
    threads = {name: part for name, part in _data(sections, "threads").items() if part["ratios"]}
    if not threads:
        return ""
    lines = ["## Two threads", "", "| | one | two | two / one |", "|---|---|---|---|"]
    for name, part in threads.items():
        (best, low, high), (two, one) = next(iter(part["ratios"].values())), part["rates"].values()
        lines.append(f"| {name} | {one:.4g} | {two:.4g} | {best:.2f} ({low:.2f} to {high:.2f}) |")
    lines += [
        "The units: updates a second for replays, bytes a second for aggregating, operations a second for evaluations "
        "(loss and gradient over all clients). W1 to CSR are replays of a schedule that exists; `whole` is "
        "`fedbuff.run`, the schedule included. For aggregating, each thread has half of the vectors.",
    ]
    crossing = _rate(_data(sections, "threads").get("crossing", {}), "cpp")
    if crossing:
        lines += ["", f"A cache line takes {1e9 / crossing:.0f} ns from one core to the other and back."]
    return "\n".join(lines)


def _scale(sections: Sections) -> str:
    scale = _data(sections, "scale")
    if not scale:
        return ""
    costs = {
        kind: {n: 1e9 / part["rates"][run] for n, run in zip(part["sizes"], part["runs"], strict=True)}
        for kind, part in scale.items()
    }
    figure, axes = plt.subplots(1, len(costs), figsize=(11, 2.6), layout="constrained")
    for axis, (kind, each) in zip(axes, costs.items(), strict=True):
        axis.plot(list(each), list(each.values()), "o-")
        axis.set(xscale="log", xlabel=kind, ylabel=f"ns an {'arrival' if 'loop' in kind else 'update'}")
        axis.set_ylim(bottom=0)
    _save(figure, "scale")
    lines = [
        "## More clients, longer runs",
        "",
        "![cost of an update](figures/performance-scale.svg)",
        "Left: the replay of a logistic regression with 20 inputs and 10 local steps, by number of clients. Middle: "
        "schedule and replay of W2 in chunks, by number of arrivals. Right: the event loop alone.",
        "",
        "| | how many | ns | relative to the fewest |",
        "|---|---|---|---|",
    ]
    for kind, each in costs.items():
        for n, run in zip(each, scale[kind]["runs"], strict=True):
            times = scale[kind]["ratios"].get(run)
            lines.append(f"| {kind} | {n:,} | {each[n]:,.0f} | {_times(times) if times else ''} |")
    return "\n".join(lines)


def _long(sections: Sections) -> str:
    made = _data(sections, "long")
    rows = made.get("rows", [])
    if len(rows) < 2:
        return ""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 2.6), layout="constrained")
    places = [b[0] for b in rows[1:]]
    left.plot(places, [(b[0] - a[0]) / (b[1] - a[1]) / 1e6 for a, b in pairwise(rows)])
    left.set(xlabel="arrivals", ylabel="million arrivals/s")
    right.plot([row[0] for row in rows], [row[2] for row in rows])
    right.set(xlabel="arrivals", ylabel="MiB resident")
    for axis in (left, right):
        axis.set_ylim(bottom=0)
    _save(figure, "long")
    return "\n".join(
        [
            "## A long stream",
            "",
            "![rate and memory of a long stream over time](figures/performance-long.svg)",
            "",
            f"`fedbuff.iter_schedule` of {made['arrivals']:,} arrivals, 1,000 tasks of 10,000 clients in flight, in "
            f"chunks of a million rows: {rows[-1][1]:.0f} seconds, {rows[-1][0] / rows[-1][1] / 1e6:.1f} million "
            f"arrivals a second, at most {max(row[2] for row in rows):.0f} MiB; mean staleness "
            f"{made['staleness']:.4f}, which tends to (C - 1) / K = 99.9.",
        ]
    )


def _times(ratio: list[float]) -> str:
    best, low, high = ratio
    return f"{best:.2f} ({low:.2f} to {high:.2f})"


def _evaluations(sections: Sections) -> str:
    parts = _data(sections, "evaluate")
    if not parts:
        return ""
    lines = [
        "## Loss and gradient over all clients",
        "One core; one call gives both. The limit of W2 is reading its rows. The others stand beside the product of "
        "large matrices, and beside one batch of all rows in NumPy.",
        "",
        "| | milliseconds | fedbuff / the limit | fedbuff / NumPy |",
        "|---|---|---|---|",
    ]
    for name, part in parts.items():
        limit, rival = _ratio(part, "ours sgemm") or _ratio(part, "ours read"), _ratio(part, "numpy")
        cells = [_times(each) if each else "" for each in (limit, rival)]
        lines.append(f"| {name} | {1000 * part['flops'] / part['rates'][_first(part)]:.3g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _others(sections: Sections) -> str:
    dtypes, shapes = _data(sections, "dtypes"), _data(sections, "shapes")
    if not dtypes and not shapes:
        return ""
    lines = [
        "## Twice the precision, and shapes that are not round",
        "For float64: updates a second relative to float32. For odd shapes: operations a second with 783 inputs, 11 "
        "classes, batches of 33 and 7 steps, relative to 784, 10, 32 and 10; every drawn row is counted.",
        "",
        "| | | relative rate |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | float64 | {_times(part['share'])} |" for name, part in dtypes.items()]
    lines += [f"| {name} | odd shape | {_times(part['share'])} |" for name, part in shapes.items()]
    return "\n".join(lines)


def _peers(sections: Sections) -> str:
    peers = _data(sections, "peers")
    found = {who: part for who, part in peers.items() if part["ratios"]}
    absent = {who: part for who, part in peers.items() if not part["ratios"]}
    lines = ["## Beside other libraries", ""]
    if found:
        lines += [
            "W1 on one core. `benches/rivals/peer_*.py` say which part of each library runs, and what was left out in "
            "its favour.",
            "",
            "| | updates/s | fedbuff / this |",
            "|---|---|---|",
        ]
        for who, part in found.items():
            (best, low, high), rate = _only(part), list(part["rates"].values())[1]
            lines.append(f"| {who} | {rate:,.0f} | {best:,.0f} ({low:,.0f} to {high:,.0f}) |")
    if absent:
        told = "; ".join(
            f"{who} ({part['why']})" if "why" in part else f"{who} (not installed)" for who, part in absent.items()
        )
        lines += ["", f"Not measured: {told}."]
    return "\n".join(lines) if peers else ""


def _missed(measured: list[Bar], profiles: Profiles) -> str:
    missed = [bar for bar in measured if not bar.met]
    if not missed:
        return ""
    lines = ["## What is missed, and why", ""]
    for reason in dict.fromkeys(bar.reason for bar in missed):
        which = "; ".join(
            f"{bar.what}: {bar.shown(bar.got)} of {bar.shown(bar.wanted)}" for bar in missed if bar.reason == reason
        )
        why = REASONS.get(reason)
        lines.append(f"- {which}." + (f" Why: {why}." if why else ""))
    for run in dict.fromkeys(bar.run for bar in missed if profiles.get(bar.run)):
        lines += ["", f"Where `{run}` spends its time, by perf:", "", "| % | function |", "|---|---|"]
        lines += [f"| {share:.0f} | `{_short(name)}` |" for share, name in profiles[run]]
    return "\n".join(lines)


def _short(name: str) -> str:
    plain = name.replace("fedbuff::", "").replace("(anonymous namespace)::", "")
    return plain if len(plain) < 70 else plain[:67] + "..."


def _again() -> str:
    return "\n".join(
        [
            "## Measure it yourself",
            "",
            "| | |",
            "|---|---|",
            "| `fedbuff bench` | this machine, and the kernels on it; no rivals needed |",
            "| `make bench` | the suites in short |",
            "| `make bench-full` | everything, and it writes this page anew |",
            "| `python benches/report.py --only W1/jax` | a part of it, a minute or two; `--list` names all |",
            "| `python benches/cliffs.py --publish` | places where a small change costs more than twice as much |",
            '| `python benches/compare.py "ours replay W1 4000" "numba replay W1 4000 blas"` | any two contenders |',
            "",
            "`benches/rivals/` holds the rivals, as good as we can write them. Each reproduces one update of fedbuff, "
            "given the same batches, before it is timed, and the losses that two contenders reach must agree.",
        ]
    )


def _save(figure: Any, name: str) -> None:
    figure.savefig(FIGURES / f"performance-{name}.svg", metadata={"Date": None})
    plt.close(figure)
