"""docs/performance.md and its figures, from what report.py measured. Every number on the page comes from there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).resolve().parents[1] / "docs"
FIGURES = DOCS / "figures"
Sections = dict[str, Any]
Profile = Callable[[str], list[tuple[float, str]]]
NAMES = {
    "W1": "W1, softmax regression, 784 inputs, 10 classes",
    "W2": "W2, logistic regression, 20 inputs",
    "W3": "W3, MLP 784-128-10",
    "CSR": "CSR, logistic regression on sparse rows, 123 inputs, 100 clients",
}
RIVALS = {
    "numba": "Numba, the whole simulator by hand",
    "numba blas": "Numba by hand, over OpenBLAS",
    "numba loops": "Numba by hand, register blocks",
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
        "jax": "JAX",
        "numpy": "NumPy",
        "torch": "PyTorch",
        "torch module": "PyTorch, module",
    }.items()
}
# Why a bar is out of reach, where it is; shown only where the measurement says that it was missed.
REASONS = {
    "W2": "an update of four rows of twenty numbers takes less than half a microsecond, so that what surrounds the "
    "arithmetic shows: rows that come from memory, counter-based random numbers, the window and the version store",
    "W4": "at a million weights a rival's vectors of 4 MB partly stay in the last cache between passes, and all passes "
    "read from the same shared memory; the fused pass reads each vector once",
    "W5": "the rival's loop writes nothing and draws from a cheap generator; ours writes the columns of a schedule and "
    "draws by counters, so that every backend and machine gives the same schedule",
    "heapq": "NumPy's bulk draws make the plain loop faster than the standard library's generator does",
    "evaluate": "the rows come from memory, once, and scoring them waits for it; with a hidden layer the weights, "
    "their gradient and a block of rows do not fit the second cache together",
    "float64": "twice the bytes fill the caches, and a register holds half as many numbers",
    "odd": "tails of rows and blocks that are not full do whole vectors' work for parts of them",
    "threads": "both threads share the memory's bandwidth and the last cache; where tasks are small, handing out rows "
    "and stepping, which one thread does at a time, is a good part of the whole",
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
    percent: bool = False
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.got <= self.wanted if self.at_most else self.got >= self.wanted

    def shown(self, value: float) -> str:
        return f"{100 * value:.0f} %" if self.percent else f"{value:.2f}"

    def line(self) -> str:
        spread = f"{self.shown(self.low)} to {self.shown(self.high)}" if self.low or self.high else ""
        sign = "at most" if self.at_most else "at least"
        verdict = "met" if self.met else f"missed by {abs(1 - self.got / self.wanted):.0%}"
        return f"| {self.what} | {sign} {self.shown(self.wanted)} | {self.shown(self.got)} | {spread} | {verdict} |"


def _data(sections: Sections, name: str) -> Any:
    return sections.get(name, {}).get("data", {})


def _ratio(found: Any, start: str) -> list[float] | None:
    """[best, low, high] against the hardest of the contenders that begin so."""
    ratios = [each for text, each in found.get("ratios", {}).items() if text.startswith(start)]
    return min(ratios) if ratios else None


def _rate(found: Any, start: str) -> float | None:
    rates = [rate for text, rate in found.get("rates", {}).items() if text.startswith(start)]
    return max(rates) if rates else None


def bars(sections: Sections) -> list[Bar]:
    found: list[Bar] = []

    def add(what: str, wanted: float, ratio: list[float] | None, reason: str, run: str = "", **how: bool) -> None:
        if ratio is not None:
            found.append(Bar(what, wanted, *ratio, reason, run, **how))

    def share_of(part: Any, flops: float) -> list[float] | None:
        ratios = _ratio(part, "ours sgemm")
        return None if ratios is None else [flops * value for value in ratios]

    wanted = {
        "W1": (1.1, 2.0, 4.0, 0.7),
        "W2": (1.2, 3.0, 0.0, 0.0),
        "W3": (1.0, 1.3, 0.0, 0.85),
        "CSR": (1.5, 0, 0, 0),
    }
    for name, (numba, jax, torch, gemm) in wanted.items():
        duels = _data(sections, name)
        part, slow = duels.get("numba", {}), duels.get("slow", {})
        run = next(iter(part.get("rates", {})), "")
        add(f"{name} / Numba by hand", numba, _ratio(part, "numba"), name, run)
        add(f"{name} / jitted JAX", jax, _ratio(duels.get("jax", {}), "jax") if jax else None, name, run)
        add(f"{name} / PyTorch by hand", torch, _ratio(slow, "torch") if torch else None, name, run)
        if gemm:
            add(f"{name}, share of the sgemm rate", gemm, share_of(part, part.get("flops", 0)), name, run, percent=True)
    for dim, part in _data(sections, "aggregate").items():
        label, run = f"W4, {int(dim):.2g} weights", f"ours aggregate {dim}"
        for who, least in (("jax", 1.0), ("numba", 1.0), ("torch", 2.0), ("numpy", 2.0)):
            add(f"{label} / {SHORT[RIVALS[who]]}", least, _ratio(part, who), "W4", run)
        read = _ratio(part, "ours read")
        by_time = None if read is None else [value * 11 / 12 for value in read]
        add(f"{label}, time to read the same vectors", 0.9, by_time, "W4", run, percent=True)
    schedule = _data(sections, "schedule")
    for in_flight in ("100", "10000", "1000000"):
        part = schedule.get(in_flight, {})
        label, run = f"W5, {int(in_flight):,} in flight", next(iter(part.get("rates", {})), "")
        counts = [r for text, r in part.get("ratios", {}).items() if text.endswith("counts")]
        columns = [r for text, r in part.get("ratios", {}).items() if text.endswith("columns")]
        add(f"{label} / Numba's event loop", 1.0, counts[0] if counts else None, "W5", run)
        add(f"{label} / one that writes the same columns", 1.5, columns[0] if columns else None, "W5", run)
    for text, each in schedule.get("heapq", {}).get("ratios", {}).items():
        kind = "`random`" if text.endswith("plain") else "NumPy's bulk draws"
        add(f"W5, 100 in flight / heapq with {kind}", 15.0, each, "heapq")
    for name, part in _data(sections, "evaluate").items():
        add(f"loss and gradient, {name}, share of the sgemm rate", 0.85, _ratio(part, "ours sgemm"), "evaluate",
            f"ours evaluate {name}", percent=True)  # fmt: skip
    least = {"W1": 1.9, "W2": 1.6, "W3": 1.9, "CSR": 1.8, "evaluate W1": 1.9, "evaluate W3": 1.9}
    threads = _data(sections, "threads")
    for name, goal in least.items():
        add(f"{name}, two threads / one", goal, _ratio(threads.get("two to one", {}).get(name, {}), "ours"), "threads")
    for dim, part in threads.get("to read", {}).items():
        (each,) = part["ratios"].values()
        by_time = [value * 11 / 12 for value in each]
        add(f"W4, {int(dim):.2g} weights, two threads, time to read", 0.9, by_time, "threads", percent=True)
    for name, part in _data(sections, "dtypes").items():
        add(f"{name}, float64 / float32", 0.45, _ratio(part, "ours"), "float64", percent=True)
    for name, part in _data(sections, "shapes").items():
        add(f"{name}, odd shape / round", 0.85, part["share"], "odd", percent=True)
    for kind, costs in _data(sections, "scale").items():
        values = list(costs.values())
        add(f"cost of an update, most / fewest {kind}", 1.1, [values[-1] / values[0], 0, 0], kind, at_most=True)
    return found


# --- the page


def write_page(sections: Sections, profile: Profile) -> None:
    FIGURES.mkdir(exist_ok=True)
    mpl.rcParams.update({"svg.hashsalt": "fedbuff", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    measured = bars(sections)
    parts = [
        _opening(sections, measured),
        _machine(sections),
        _bars(measured),
        _rates(sections),
        _sizes(sections),
        _threads(sections),
        _scale(sections),
        _peers(sections),
        _missed(measured, profile),
        _again(),
    ]
    text = "\n\n".join(part for part in parts if part)
    (DOCS / "performance.md").write_text(text.rstrip() + "\n", encoding="utf-8")


def _opening(sections: Sections, measured: list[Bar]) -> str:
    threads = _data(sections, "threads")
    lines = ["# Performance", "", "What we recommend:", ""]
    lines.append("- **Compiled kernels**: `fedbuff.show_config()` must say `cpp`, and the best level of your CPU.")
    lines.append("- **float32**, unless your question is about rounding: float64 takes about twice the time.")
    if threads:
        found = {name: _ratio(threads["two to one"].get(name, {}), "ours") for name in NAMES}
        told = ", ".join(f"{name} {gain[0]:.2f}" for name, gain in found.items() if gain)
        lines.append(
            f"- **Leave `threads` alone**: the bits are the same for every number. Two against one gave {told}; the "
            "smaller an update, the less it gains."
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
        f"On the machine below one core replays, in client updates a second, schedule included: {told}. Of the "
        f"{len(measured)} figures that we hold ourselves to, {met} are met and {len(measured) - met} are missed; each "
        "is listed, and the missed ones are explained.",
        "",
        "This page is written by `benches/report.py`. Rates are the best of several turns, ratios those of one run, in "
        "which the contenders take turns on the same core; the spread is the middle half of the ratios turn by turn.",
    ]
    return "\n".join(lines)


def _machine(sections: Sections) -> str:
    section = sections["machine"]
    measured = section["data"]
    versions = ", ".join(f"{name} {version}" for name, version in measured["versions"].items())
    about = machine.heading(measured["setting"])[:3]
    quick = " In short (`--quick`): few turns, and so a wide spread." if section["how"]["quick"] else ""
    load = measured["load"]
    busy = f" **The machine was busy (load {load:.1f}): take the ratios, not the rates.**" if load > 1 else ""
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
            "What it can do at best, GB/s and GFLOP/s; bytes copied count twice.",
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
    lines += ["Client updates a second on one core, schedule and training together, and how often faster fedbuff was."]
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
    return "\n".join(lines)


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
    for name in ("aggregate float32", "aggregate float64"):
        rows = sizes[name]
        (line,) = left.plot([r["dim"] for r in rows], [r["GB/s"] for r in rows], "o-", label=name)
        limit = [r["limit GB/s"] for r in rows]
        left.plot([r["dim"] for r in rows], limit, "--", color=line.get_color(), label="reading the same vectors")
    left.set(xscale="log", yscale="log", xlabel="weights", ylabel="GB/s", title="aggregation of 10 deltas")
    for name in ("softmax, 2 classes", "softmax, 10 classes", "MLP, 784 inputs"):
        rows = sizes[name]
        right.plot([r["dim"] for r in rows], [r["GFLOP/s"] for r in rows], "o-", label=name)
    every = [r for name in sizes if not name.startswith("aggregate") for r in sizes[name]]
    right.axhline(max(r["limit GFLOP/s"] for r in every), linestyle="--", color="0.4", label="matrix product, BLAS")
    right.set(xscale="log", yscale="log", xlabel="weights", ylabel="GFLOP/s", title="replay, schedule included")
    for axis in (left, right):
        axis.legend(fontsize=7)
    _save(figure, "sizes")
    lines = [
        "## From tiny models to large ones",
        "",
        "![rates against the number of weights, beside the limit](figures/performance-sizes.svg)",
        "",
        "One core. Left, `fedbuff.aggregate` as called from Python, which costs some microseconds whatever the size, "
        "beside a loop that only reads the vectors. Right, a whole replay, beside the product of large matrices; every "
        "drawn row counts, also where a batch holds it twice. Weights that no cache holds are fetched from memory for "
        "every step of 32 rows, and so the largest models are bound by it.",
        "",
        "| | weights | updates/s | GFLOP/s |",
        "|---|---|---|---|",
    ]
    for name in ("softmax, 2 classes", "softmax, 10 classes", "MLP, 784 inputs"):
        lines += [f"| {name} | {r['dim']:,} | {r['updates/s']:,.0f} | {r['GFLOP/s']:.3g} |" for r in sizes[name]]
    return "\n".join(lines)


def _threads(sections: Sections) -> str:
    threads = _data(sections, "threads").get("two to one", {})
    if not threads:
        return ""
    lines = ["## Two threads", "", "| | one | two | two / one |", "|---|---|---|---|"]
    for name, part in threads.items():
        (best, low, high), (two, one) = next(iter(part["ratios"].values())), part["rates"].values()
        lines.append(f"| {name} | {one:.4g} | {two:.4g} | {best:.2f} ({low:.2f} to {high:.2f}) |")
    lines += [
        "",
        "Updates a second for replays, bytes for aggregating, operations for evaluations (loss and gradient over all "
        "clients). Aggregating, each thread has half of the vectors.",
    ]
    return "\n".join(lines)


def _scale(sections: Sections) -> str:
    scale = _data(sections, "scale")
    if not scale:
        return ""
    figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), layout="constrained")
    for axis, (kind, costs) in zip(axes, scale.items(), strict=True):
        axis.plot([int(n) for n in costs], list(costs.values()), "o-")
        axis.set(xscale="log", xlabel=kind, ylabel=f"ns an {'update' if kind == 'clients' else 'arrival'}")
        axis.set_ylim(bottom=0)
    _save(figure, "scale")
    rows = [f"| {kind} | {int(n):,} | {cost:,.0f} |" for kind, costs in scale.items() for n, cost in costs.items()]
    return "\n".join(
        [
            "## More clients, longer runs",
            "",
            "![cost of an update](figures/performance-scale.svg)",
            "",
            "Left, the replay of a logistic regression of 20 inputs, 10 local steps, by number of clients; right, the "
            "event loop, by number of arrivals.",
            "",
            "| | how many | ns |",
            "|---|---|---|",
            *rows,
        ]
    )


def _peers(sections: Sections) -> str:
    peers = _data(sections, "peers")
    found = {who: part for who, part in peers.items() if part["ratios"]}
    absent = [who for who, part in peers.items() if not part["ratios"]]
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
            (best, _, _), rate = next(iter(part["ratios"].values())), list(part["rates"].values())[1]
            lines.append(f"| {who} | {rate:,.0f} | {best:,.0f} |")
    if absent:
        lines += ["", f"Not installed, and so not measured: {', '.join(absent)}."]
    return "\n".join(lines) if peers else ""


def _missed(measured: list[Bar], profile: Profile) -> str:
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
    for run in list(dict.fromkeys(bar.run for bar in missed if bar.run))[:4]:
        shares = profile(run)
        if shares:
            lines += [
                "",
                f"Where `{run}` spends its time inside the core, by perf:",
                "",
                "| % | function |",
                "|---|---|",
            ]
            lines += [f"| {share:.0f} | `{_short(name)}` |" for share, name in shares]
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
            "| `make bench-full` | everything, and this page written anew |",
            '| `python benches/compare.py "ours replay W1 4000" "numba replay W1 4000 blas"` | any two contenders |',
            "",
            "`benches/rivals/` holds the rivals, as good as we can write them. Each reproduces one update of fedbuff, "
            "given the same batches, before it is timed, and the losses that two contenders reach must agree.",
        ]
    )


def _save(figure: Any, name: str) -> None:
    figure.savefig(FIGURES / f"performance-{name}.svg", metadata={"Date": None})
    plt.close(figure)
