"""docs/scaling.md and its figures, from what scaling.py measured and modelled. Every number on the page comes from "
"there."""

from __future__ import annotations

from typing import Any

import machine
import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from page import DOCS, FIGURES
from scaling import CHECKS, CLIENT_BUFFER, CLIENTS, FAMILIES, KEPT_BACK, Costs, Study, replace

PAPER_CORES = (1, 2, 4, 8, 16, 32, 64, 128)
PAPER = ("W1", "W2", "W3", "W1, loss every 10 steps", "W2, 400,000 clients", "logistic, 200,000 inputs")
FORMULAS = {
    "run": ("t_run", "checks and objects of one schedule and one replay, however short"),
    "schedule": ("A t_arrival(C, n)", "the event loop: queue of C tasks, state of n clients"),
    "local SGD": ("U (a0 + Q (a1 + a2 d + b (a3 + a4 d)))", "rows and model in the first caches"),
    "rows from afar": ("U r t_far(row, data)", "r bytes of rows that a task draws, from where all n clients' rows lie"),
    "models from afar": (
        "U 4 d (t_read(V 4 d) + t_read(W 4 d) - 2 t_read(4 d))",
        "the version read, the delta written",
    ),
    "fresh memory": ("4 d (V + W) t_fresh", "pages of versions and deltas, at their first touch"),
    "engine": ("U (e0 + e(V)) + T e1", "handing a row out, counting references, closing a step"),
    "adding": ("T (c0 + c1 K + 4 d (K + 2) t_add)", "K deltas and the model in one pass"),
    "evaluation": ("E (v0 + v1 R + v2 R d + t_far(row, data) data)", "the loss over all R rows"),
}


def write_page(sections: dict[str, Any]) -> None:
    FIGURES.mkdir(exist_ok=True)
    mpl.rcParams.update({"svg.hashsalt": "fedbuff", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    data = {name: section["data"] for name, section in sections.items()}
    costs = Costs.fitted(data)
    parts = [
        _opening(data, costs),
        _machine(sections),
        _model(costs, data),
        _checks(data["checks"], costs),
        _limits(data["checks"], costs),
        _paper(costs),
        _clients(data["clients"]),
        _again(),
    ]
    (DOCS / "scaling.md").write_text("\n\n".join(parts).rstrip() + "\n", encoding="utf-8")


def _errors(checks: Any, costs: Costs) -> dict[str, list[float]]:
    """Of each check: predicted over measured, less one; on one core and on all."""
    cores = checks["cores"]
    found = {}
    for name, study in CHECKS.items():
        rate, _ = costs.rate(study, cores, costs.memory[cores])
        one, beside = costs.seconds(study), 1 / rate
        found[name] = [one / checks[name]["one"] - 1, beside / checks[name]["beside"] - 1]
    return found


def _opening(data: Any, costs: Costs) -> str:
    errors = [abs(each) for pair in _errors(data["checks"], costs).values() for each in pair]
    within = sum(error <= 0.2 for error in errors)
    run = data["clients"]["runs"][-1]
    return "\n".join(
        [
            "# Scaling",
            "",
            "How many replays a second does a machine give, and what limits it? This page answers with a model, a sum "
            "of costs that were measured on the machine below. It shows the model's error beside whole replays that it "
            "was not fitted on, and what the model predicts for machines that we do not have.",
            "",
            "- **Many runs, one core each**: replays are independent, so `fb.sweep` gives each core its own. Use "
            "several threads for one replay where it is long, or so large that memory does not hold several of them.",
            "- **Small models are bound by the cores**: twice the cores make twice the replays. Models that no cache "
            "holds, and rows of many clients, are bound by the memory that all cores share.",
            "- **Evaluation** reads every row: see its share below before you choose `eval_every`.",
            f"- **10^8 clients** are a matter of seconds where only the schedule is asked for: {run['arrivals']:,} "
            f"arrivals of {CLIENTS:,} clients took {run['seconds']:.0f} s and {run['peak'] / 2**20:,.0f} MiB.",
            "",
            f"Of {len(errors)} predictions, {within} are within 20 % of what was measured; the worst is off by "
            f"{max(errors):.0%}. This page is written by `benches/scaling.py`, which measures all it tells of this "
            "machine.",
        ]
    )


def _machine(sections: Any) -> str:
    measured = sections["machine"]["data"]
    rows = [row for row in measured["bandwidth"] if row["place"] in ("L2", "L3", "memory")]
    return "\n".join(
        [
            "## The machine",
            "",
            f"Measured on {sections['checks']['date']}.",
            "",
            "```text",
            *machine.heading(measured["setting"])[:3],
            "```",
            "",
            "| place | working set | threads | read, GB/s |",
            "|---|---|---|---|",
            *(f"| {r['place']} | {r['MiB']:.3g} MiB | {r['threads']} | {r['read']:.3g} |" for r in rows),
        ]
    )


def _model(costs: Costs, data: Any) -> str:
    lines = [
        "## The model",
        "",
        "One replay on one core takes the sum of these. T server steps of K updates each, U = T K; A arrivals; E "
        "evaluations; d weights; Q local steps of b rows; n clients, R rows in all; C tasks in flight; V versions held "
        "and "
        "W deltas that wait.",
        "",
        "| term | seconds | what it is |",
        "|---|---|---|",
        *(f"| {name} | `{formula}` | {what} |" for name, (formula, what) in FORMULAS.items()),
        "",
        "The costs, fitted on small replays by the engine's own clocks, in nanoseconds:",
        "",
        "| family | a0 | a1 | a2 | a3 | a4 | v0 | v1 | v2 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for family in FAMILIES:
        values = [*costs.local[family], *costs.evaluate[family]]
        lines.append(f"| {family} | " + " | ".join(f"{1e9 * value:.3g}" for value in values) + " |")
    arrival = ", ".join(f"{1e9 * t:.0f} ({c:,.0f})" for c, t in costs.in_flight)
    clients = ", ".join(f"{1e9 * t:.0f} ({n:,.0f})" for n, t in costs.clients)
    held = ", ".join(f"{1e9 * t:.0f} ({v:,.0f})" for v, t in costs.at_hand)
    adding = ", ".join(f"{1e-9 / t:.3g} ({_bytes(at)})" for at, t in costs.adding)
    lines += [
        "",
        "| cost | measured |",
        "|---|---|",
        f"| t_run | {1e6 * costs.run:.0f} us |",
        f"| t_arrival, ns, by C (n = 2 C) | {arrival} |",
        f"| t_arrival, ns, by n (C = 100) | {clients} |",
        f"| e0, e1, ns | {1e9 * costs.engine[0]:.0f}, {1e9 * costs.engine[1]:.0f} |",
        f"| a row of the engine, ns, by V | {held} |",
        f"| c0, c1, ns | {1e9 * costs.commit[0]:.0f}, {1e9 * costs.commit[1]:.2g} |",
        f"| 1 / t_add, GB/s, by bytes of a step | {adding} |",
        f"| 1 / t_fresh, GB/s | {1e-9 / costs.fresh:.3g} |",
    ]
    for length, curve in costs.places:
        far = ", ".join(f"{round(1e9 * t, 3):.2g} ({_bytes(at)})" for at, t in curve[1:])
        lines.append(f"| t_far, ns a byte, rows of {_bytes(length)}, by data | {far} |")
    lines += [
        "",
        "Between measured points the model takes a line through the logarithms. On P cores, one replay on each:",
        "",
        "`replays/s = min(P / seconds, B(P) / bytes from memory, 1 / t_run)`",
        "",
        "B(P) is the memory's bandwidth for P cores. The bytes are those of the rows and of the models of all P "
        "replays that the last cache cannot hold. The last bound is Python's lock (the GIL), of which a process has "
        "one. Worker processes, such as Dask's, do not share it.",
        "",
        "![where the time of a replay goes](figures/scaling-terms.svg)",
    ]
    _draw_terms(costs)
    return "\n".join(lines)


def _bytes(n: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return f"{n:.0f} B"


def _rate(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def _draw_terms(costs: Costs) -> None:
    figure, axis = plt.subplots(figsize=(8, 3.2), layout="constrained")
    names = list(CHECKS)
    left = [0.0] * len(names)
    for number, term in enumerate(FORMULAS):
        shares = [100 * costs.terms(CHECKS[name])[term] / costs.seconds(CHECKS[name]) for name in names]
        axis.barh(range(len(names)), shares, left=left, color=f"C{number}", label=term)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.invert_yaxis()
    axis.set_xlabel("% of a replay's time on one core, by the model")
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    _save(figure, "terms")


def _checks(checks: Any, costs: Costs) -> str:
    cores = checks["cores"]
    lines = [
        "## Predicted and measured",
        "",
        "Whole replays, schedule included, the fastest of several. No cost was fitted on them; the model's terms were "
        "chosen with the first ones in sight, and those marked * were first run when it was done. "
        f"Milliseconds a replay: one alone on one core; and {cores} at a time, one on each core.",
        "",
        f"| | d | n | C | K | T | alone, model | measured | error | {cores} at a time, model | measured | error |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, (one, beside) in _errors(checks, costs).items():
        w = CHECKS[name].workload
        rate, _ = costs.rate(CHECKS[name], cores, costs.memory[cores])
        lines.append(
            f"| {name}{' *' * (name in KEPT_BACK)} | {w.dim:,} | {w.n_clients:,} | {w.in_flight:,} | {w.buffer_size} "
            f"| {CHECKS[name].server_steps:,} | {1e3 * costs.seconds(CHECKS[name]):.3g} | "
            f"{1e3 * checks[name]['one']:.3g} | {one:+.0%} "
            f"| {1e3 / rate:.3g} | {1e3 * checks[name]['beside']:.3g} | {beside:+.0%} |"
        )
    lines += [
        "",
        "W1, W2 and W3 are those of [performance](performance.md). The model adds costs that a "
        "processor partly overlaps. It knows nothing of what two replays do to each other's caches, or of Python's "
        "lock inside a run. Short replays of tiny updates side by side show that most.",
    ]
    return "\n".join(lines)


def _limits(checks: Any, costs: Costs) -> str:
    lines = [
        "## The limits",
        "",
        "- **Version store**: V models of 4 d bytes in each replay. With exponential delays a long run holds "
        "V = 1 + C / K (1 + 1/2 + ... + 1/K): each version lives until the slowest of its K tasks is back.",
        "- **Window**: W deltas of 4 d bytes wait, a power of two above K and a few for each thread; at most 1 GiB.",
        "- **Bandwidth**: rows and models beyond the last cache share one memory. The column says from how many cores "
        "on that is the bound, if the machine has no more bandwidth than this one.",
        "- **Evaluation**: its share of the time.",
        "- **Serial commit**: within one replay only one thread at a time adds deltas or hands out tasks, and only C "
        "tasks can be at work. The columns are the most that threads could gain, and what they gain here.",
        "",
        f"| | V, model | V, measured | store | window | memory-bound from | evaluation | threads at most "
        f"| {checks['cores']} threads, measured |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, study in CHECKS.items():
        terms, total = costs.terms(study), costs.seconds(study)
        bound = next((p for p in range(1, 1025) if _memory_bound(costs, study, p)), None)
        found = checks[name]
        lines.append(
            f"| {name} | {costs.versions(study):.0f} | {found['versions']:.0f} | {_bytes(costs.store_bytes(study))} "
            f"| {_bytes(costs.window_bytes(study))} | {f'{bound} cores' if bound else '-'} "
            f"| {terms['evaluation'] / total:.0%} | {costs.most_threads(study):.3g} "
            f"| {found['one'] / found['threads']:.2f} |"
        )
    return "\n".join(lines)


def _memory_bound(costs: Costs, study: Study, cores: int) -> bool:
    total = max(costs.memory.values())
    return total / max(costs.traffic(study, cores), 1.0) < cores / costs.seconds(study)


def _paper(costs: Costs) -> str:
    per_core = costs.memory[1]
    whole = max(costs.memory.values())
    figure, axes = plt.subplots(2, 3, figsize=(9, 4.6), sharex=True, layout="constrained")
    lines = [
        "## A bigger machine, on paper",
        "",
        "Only the costs were measured; the replays a second below are what the model computes, for the server steps "
        "above and for cores like these. Each cell has two numbers. For the first, the memory's bandwidth grows with "
        f"the cores, {per_core / 1e9:.3g} GB/s for each. For the second, it stays at the {whole / 1e9:.3g} GB/s of "
        "this whole machine. A real machine lies between; its last cache is larger than this one's, which the model "
        "does not know. Worker processes are assumed, so Python's lock is no bound; a `-` says that the memory is none "
        "either.",
        "",
        "| | " + " | ".join(f"{p} core{'s' * (p > 1)}" for p in PAPER_CORES) + " |",
        "|---" * (len(PAPER_CORES) + 1) + "|",
    ]
    for axis, name in zip(axes.flat, PAPER, strict=True):
        study = CHECKS[name]
        rates = [[_on_paper(costs, study, p, b) for p in PAPER_CORES] for b in (None, whole)]
        cells = [f"{_rate(a)} / {_rate(b)}" if b < a else f"{_rate(a)} / -" for a, b in zip(*rates, strict=True)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
        axis.fill_between(PAPER_CORES, rates[1], rates[0], alpha=0.25)
        axis.plot(PAPER_CORES, rates[0], label="bandwidth grows")
        axis.plot(PAPER_CORES, rates[1], "--", label="bandwidth stays")
        axis.set(xscale="log", yscale="log")
        axis.set_title(name, fontsize=7)
    figure.supxlabel("cores", fontsize=9)
    figure.supylabel("replays/s, on paper", fontsize=9)
    axes[0, 0].legend(fontsize=7)
    _save(figure, "paper")
    lines += [
        "",
        "![replays a second against cores, on paper](figures/scaling-paper.svg)",
        "",
        _sizes(costs),
    ]
    return "\n".join(lines)


def _on_paper(costs: Costs, study: Study, cores: int, bandwidth: float | None) -> float:
    """Replays a second of worker processes, which share memory and no lock; bandwidth None grows with the cores."""
    memory = cores * costs.memory[1] if bandwidth is None else bandwidth
    return min(cores / costs.seconds(study), memory / max(costs.traffic(study, cores), 1.0))


def _sizes(costs: Costs) -> str:
    """Along d, n and C: what one core gives, and what it holds."""
    base = CHECKS["W2"]
    few = replace(base, workload=replace(base.workload, n_clients=200))
    lines = [
        "One size is varied at a time, beginning with W2 (for d, with 200 clients), on one core. The table has replays "
        "a second, and the bytes that one replay holds (store and window; the rows are shared by all).",
        "",
        "| what | value | replays/s | held | rows |",
        "|---|---|---|---|---|",
    ]
    for what, start, field, values in (
        ("d", few, "features", (20, 200, 2_000, 20_000, 200_000)),
        ("n", base, "n_clients", (10_000, 100_000, 1_000_000, 10_000_000)),
        ("C", base, "in_flight", (10, 100, 1_000, 5_000)),
        ("K", base, "buffer_size", (1, 10, 100)),
    ):
        for value in values:
            changed = replace(start.workload, **{field: value})
            study = replace(base, workload=changed, server_steps=base.updates // changed.buffer_size)
            held = costs.store_bytes(study) + costs.window_bytes(study)
            lines.append(
                f"| {what} | {value:,} | {_rate(1 / costs.seconds(study))} | {_bytes(held)} | "
                f"{_bytes(study.data_bytes)} |"
            )
    return "\n".join(lines)


def _clients(clients: Any) -> str:
    lines = [
        f"## {CLIENTS:,} clients, schedule only",
        "",
        "Run here, not on paper: `fb.iter_schedule` over a `DelayModel` with exponential times, buffers of "
        f"{CLIENT_BUFFER:,}, in chunks of a million rows that are looked at and let go. Each line is a process of its "
        "own, with its peak memory. That memory includes what was used before the schedule, and the marks: one per "
        "client, by which the measuring script counts the clients that were seen.",
        "",
        "| in flight | arrivals | server steps | seconds | ns an arrival | peak MiB | before | marks | clients seen "
        "| mean staleness | (C - 1) / K |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in clients["runs"]:
        lines.append(
            f"| {run['in flight']:,} | {run['arrivals']:,} | {run['steps']:,} | {run['seconds']:.1f} "
            f"| {1e9 * run['seconds'] / run['arrivals']:.0f} | {run['peak'] / 2**20:,.0f} "
            f"| {run['import_peak'] / 2**20:,.0f} | {run['mark'] / 2**20:,.0f} | {run['seen']:,} | "
            f"{run['staleness']:.4g} "
            f"| {(run['in flight'] - 1) / CLIENT_BUFFER:.4g} |"
        )
    lines += [
        "",
        "A client costs four bytes, its count of tasks. A task in flight costs some tens of bytes, its place in the "
        "queue. The rest is the chunk. At most 2^26 tasks may be in flight; the number of clients has no such bound. "
        "Mean staleness tends to (C - 1) / K, as it must where C tasks are always in flight; it is lower where the run "
        "is short beside the time that C tasks take.",
    ]
    return "\n".join(lines)


def _again() -> str:
    return "\n".join(
        [
            "## Measure it yourself",
            "",
            "`python benches/scaling.py` measures and writes this page anew, on a quiet machine.",
        ]
    )


def _save(figure: Any, name: str) -> None:
    figure.savefig(FIGURES / f"scaling-{name}.svg", metadata={"Date": None})
    plt.close(figure)
