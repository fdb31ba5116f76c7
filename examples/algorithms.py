"""Published algorithms on the same traces: writes the study of docs/algorithms.md, with its figures.

Usage: python examples/algorithms.py [--quick] [--out FOLDER]

Every algorithm on three regimes of delays and two levels of heterogeneity, each tuned by a sweep over equally many
arms on seeds of its own, then run with new seeds: the virtual time to a loss, with intervals. It needs matplotlib.
--quick takes less than a minute, one regime, two seeds and no tuning, and says nothing. Every number of the section is
from this script, and the same at every run.
"""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

import fedbuff as fb

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- study: written by examples/algorithms.py -->\n", "<!-- end of the study -->\n"
N = 20  # clients
K = 5  # of buffers
TARGET = {"even": 0.2, "uneven": 0.3}  # loss


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    regimes: int
    levels: int
    tuning_seeds: int  # 0: no tuning
    seeds: int
    max_time: float


FULL = Scale(3, 2, 2, 10, 300.0)
QUICK = Scale(1, 1, 0, 2, 60.0)

REGIMES: dict[str, tuple[str, dict[str, Any]]] = {
    "alike": ("all clients equally fast, exponential times", {"compute": {"kind": "exponential", "scale": 1.0}}),
    "speeds": (
        "speeds log-normal with sigma 1, times of a client nearly constant",
        {
            "compute": {"kind": "log_normal", "mean": 0.0, "sigma": 0.1},
            "client_speed": {"kind": "log_normal", "mean": 0.0, "sigma": 1.0},
        },
    ),
    "tail": ("all clients alike, times log-normal with sigma 2: rare tasks take very long",
             {"compute": {"kind": "log_normal", "mean": -1.0, "sigma": 2.0}}),
}  # fmt: skip
LEVELS: dict[str, tuple[str, dict[str, Any]]] = {
    "even": ("digits dealt at random", {"kind": "iid", "n_clients": N}),
    "uneven": ("digits dealt by Dirichlet's law with alpha 0.1", {"kind": "dirichlet", "n_clients": N, "alpha": 0.1}),
}

# Of each algorithm: its options beside server_lr, and what is tuned beside the clients' rate, three values of each.
STEPS = {"server_lr": [0.3, 1.0, 2.0]}
SMALL_STEPS = {"server_lr": [0.01, 0.03, 0.1]}
TUNED: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "fedbuff": ({"buffer_size": K}, {"server_lr": [0.3 / K, 1.0 / K, 2.0 / K]}),
    "fedasync": ({}, {"mixing": [0.1, 0.3, 0.9]}),
    "fedavg": ({"clients_per_round": N}, STEPS),
    "fedavgm": ({"clients_per_round": N}, {"server_lr": [0.1, 0.3, 1.0]}),
    "fedadam": ({"buffer_size": K}, SMALL_STEPS),
    "fedyogi": ({"buffer_size": K}, SMALL_STEPS),
    "fedadagrad": ({"buffer_size": K}, {"server_lr": [0.1, 0.3, 1.0]}),
    "fadas": ({"buffer_size": K, "tau_c": N // K}, SMALL_STEPS),
    "delayed_nesterov": ({"period": K}, STEPS),
    "diloco": ({"buffer_size": K}, {"server_lr": [0.1, 0.3, 0.7]}),
    "delay_adaptive": ({"concurrency": N}, {"server_lr": [0.1, 0.3, 1.0]}),
    "ca2fl": ({"buffer_size": K, "n_clients": N}, STEPS),
    "ia2sgd": ({"n_clients": N}, {"server_lr": [0.1, 0.3, 1.0]}),
    "ace": ({"n_clients": N}, {"server_lr": [0.1, 0.3, 1.0]}),
    "fedstale": ({"buffer_size": K, "n_clients": N, "participation": K / N}, STEPS),
    "asyncfeded": ({}, {"server_lr": [0.3, 1.0, 3.0]}),
    "port": ({"buffer_size": K}, STEPS),
    "rennala": ({"buffer_size": K}, STEPS),
    "ringmaster": ({"stop_stale": 2 * N}, {"server_lr": [0.1, 0.3, 1.0]}),
    "malenia": ({"n_clients": N}, {"server_lr": [1.0, 2.0, 4.0]}),
    "ringleader": ({"n_clients": N}, {"server_lr": [0.1, 0.3, 1.0]}),
    "mindflayer": ({}, {"window": [0.3, 1.0, 3.0]}),
    "generalized_asyncsgd": ({"probabilities": [1 / N] * N}, {"server_lr": [0.1, 0.3, 1.0]}),
    "fedfa": ({}, {"buffer_size": [2, K, 2 * K]}),
    "qafel": ({"buffer_size": K, "levels": 127}, STEPS),
    "fednova": ({"buffer_size": K}, STEPS),
    "scaffold": ({"buffer_size": K, "n_clients": N}, STEPS),
    "feddyn": ({"buffer_size": K, "n_clients": N}, {"alpha": [0.01, 0.1, 1.0]}),
}
RATES = [0.15, 0.5, 1.5, 5.0]  # of the clients
CLAIMS = [
    ("FedBuff against FedAsync (Nguyen et al.)", "fedbuff", "fedasync", "tail", "uneven"),
    ("FedBuff against FedAvg where times differ (Nguyen et al.)", "fedbuff", "fedavg", "speeds", "even"),
    ("CA2FL against FedBuff where data differ (Wang et al.)", "ca2fl", "fedbuff", "speeds", "uneven"),
    ("FedStale against FedBuff where data differ (Rodio and Neglia)", "fedstale", "fedbuff", "speeds", "uneven"),
    ("Ringmaster against Rennala (Maranjyan et al.)", "ringmaster", "rennala", "speeds", "even"),
    (
        "Ringleader against Malenia where data differ (Maranjyan and Richtarik)",
        "ringleader",
        "malenia",
        "speeds",
        "uneven",
    ),
    ("MindFlayer against Rennala under heavy tails (Maranjyan et al.)", "mindflayer", "rennala", "tail", "even"),
    ("FADAS against FedBuff (Wang et al.)", "fadas", "fedbuff", "speeds", "uneven"),
    ("FedFa against FedBuff (Xu et al.)", "fedfa", "fedbuff", "speeds", "even"),
    ("QAFeL about as FedBuff (Ortega and Jafarkhani)", "qafel", "fedbuff", "speeds", "uneven"),
    ("SCAFFOLD against FedAvg where data differ (Karimireddy et al.)", "scaffold", "fedavg", "alike", "uneven"),
    ("FedDyn against SCAFFOLD where data differ (Acar et al.)", "feddyn", "scaffold", "alike", "uneven"),
]  # paper's claim: the first is faster than, or as fast as, the second


def config(name: str, regime: str, level: str, scale: Scale, options: dict[str, Any], rate: float) -> dict[str, Any]:
    """A run of an algorithm, as a configuration."""
    strategy = {"kind": name, **TUNED[name][0], **options}
    schedule: dict[str, Any] = {"max_time": scale.max_time}
    if name not in ("fedavg", "fedavgm"):
        schedule["concurrency"] = N
    if name == "generalized_asyncsgd":
        schedule |= {"queues": True, "selection": [1 / N] * N}
    made: Any = fb.algorithm(name, **strategy_options(strategy))
    local: dict[str, Any] = {"steps": 4, "lr": rate, "batch_size": 8}
    if made.rule.method != "sgd":  # the clients' half
        local |= {"method": made.rule.method} | ({"alpha": made.rule.alpha} if made.rule.alpha else {})
    one_by_one = getattr(made, "buffer_size", K) == 1  # evaluations at about as many arrivals for all
    return {
        "problem": {"kind": "softmax", "data": "sample:digits", "partition": LEVELS[level][1]},
        "trace": {"kind": "model", "n_clients": N, **REGIMES[regime][1]},
        "strategy": strategy,
        "local": local,
        "schedule": schedule,
        "replay": {"eval_every": K if one_by_one else 1, "metrics": ["loss"], "stop": {"loss": TARGET[level]}},
    }


def strategy_options(strategy: dict[str, Any]) -> dict[str, Any]:
    return {option: value for option, value in strategy.items() if option != "kind"}


def arms_of(name: str, tuned: bool) -> list[tuple[dict[str, Any], float]]:
    ((option, values),) = TUNED[name][1].items()
    every = [({option: value}, rate) for value in values for rate in RATES]
    return every if tuned else [({option: values[1]}, RATES[1])]


def runs(name: str, cases: Sequence[dict[str, Any]], seeds: range) -> fb.SweepResults:
    base = cases[0]
    changes = [{"strategy": case["strategy"], "local": case["local"]} for case in cases]
    return fb.sweep(base, configs=changes, seeds=seeds)


@dataclass(frozen=True)
class Found:
    """What an algorithm came to in one setting."""

    name: str
    options: dict[str, Any]
    rate: float
    median: float
    times: np.ndarray  # of each seed; infinite where the target was not reached


def times_of(results: fb.SweepResults, arm: int, target: float, n: int) -> np.ndarray:
    times = []
    for run in range(arm * n, (arm + 1) * n):
        if results.column("status")[run] == "failed":
            raise RuntimeError(f"{results.arms[arm]}: {results.failed[0]['error']}")
        history = results.history(run)
        hit = np.flatnonzero(np.asarray(history["loss"]) <= target)
        times.append(float(history["time"][hit[0]]) if len(hit) else np.inf)
    return np.array(times)


def study_one(name: str, regime: str, level: str, scale: Scale) -> Found:
    """Tunes an algorithm, and runs the best arm with seeds that the tuning has not seen."""
    arms = arms_of(name, scale.tuning_seeds > 0)
    best = 0
    if scale.tuning_seeds > 0:
        n = scale.tuning_seeds
        cases = [config(name, regime, level, scale, options, rate) for options, rate in arms]
        tried = runs(name, cases, range(1000, 1000 + n))
        scores = [(float(np.median(t)), float(np.mean(np.minimum(t, 10 * scale.max_time)))) for t in
                  (times_of(tried, arm, TARGET[level], n) for arm in range(len(arms)))]  # fmt: skip
        best = min(range(len(arms)), key=lambda arm: scores[arm])
    options, rate = arms[best]
    results = runs(name, [config(name, regime, level, scale, options, rate)], range(scale.seeds))
    times = times_of(results, 0, TARGET[level], scale.seeds)
    return Found(name, options, rate, float(np.median(times)), times)


def interval(times: np.ndarray) -> tuple[float, float]:
    """Of the median, by order statistics, that of at least 95 % which is the shortest: of ten, the second and ninth."""
    ordered, n = np.sort(times), len(times)
    cut, below = 0, 0.5**n
    while cut + 1 < n // 2 and 1 - 2 * (below + math.comb(n, cut + 1) * 0.5**n) >= 0.95:
        cut += 1
        below += math.comb(n, cut) * 0.5**n
    return float(ordered[cut]), float(ordered[n - 1 - cut])


Setting = tuple[str, str]  # regime and level


def picture(found: dict[Setting, list[Found]], level: str, scale: Scale, path: Path) -> None:
    """Medians and intervals of all algorithms, one panel for each regime, the fastest at the top."""
    regimes = [regime for regime, of in found if of == level]
    figure, axes = plt.subplots(1, len(regimes), figsize=(4.2 * len(regimes), 6.4), squeeze=False, layout="constrained")
    for axis, regime in zip(axes[0], regimes, strict=True):
        ordered = sorted(found[regime, level], key=lambda one: (one.median, one.name), reverse=True)
        for place, one in enumerate(ordered):
            low, high = interval(one.times)
            color = "tab:red" if one.name == "fedbuff" else "tab:blue"
            if not math.isfinite(one.median):
                axis.text(
                    scale.max_time * 0.97, place, "not reached", ha="right", va="center", fontsize=8, color="gray"
                )
                continue
            axis.plot([low, min(high, scale.max_time)], [place, place], color=color, linewidth=1.5)
            axis.plot([one.median], [place], "o", color=color, markersize=4)
        axis.set_ylim(-0.7, len(ordered) - 0.3)
        axis.set_yticks(range(len(ordered)), [one.name for one in ordered], fontsize=8)
        axis.set_xscale("log")
        axis.set_xlim(right=scale.max_time)
        axis.set_title(regime)
        axis.set_xlabel(f"virtual time to loss {TARGET[level]}")
        axis.grid(axis="x", which="both", alpha=0.3)
    figure.suptitle(f"{level}: {LEVELS[level][0]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "algorithms"}):
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def shown(one: Found) -> str:
    low, high = interval(one.times)

    def number(value: float) -> str:
        return f"{value:.3g}" if math.isfinite(value) else "never"

    return f"{number(one.median)} ({number(low)} to {number(high)})"


def table_of_times(found: dict[Setting, list[Found]]) -> list[str]:
    names = [one.name for one in next(iter(found.values()))]
    lines = ["| algorithm | " + " | ".join(f"{regime}, {level}" for regime, level in found) + " |"]
    lines.append("|---" * (len(found) + 1) + "|")
    for place, name in enumerate(names):
        cells = []
        for all_of_them in found.values():
            one = all_of_them[place]
            best = min(other.median for other in all_of_them)
            cells.append(f"**{shown(one)}**" if one.median == best and math.isfinite(best) else shown(one))
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def table_of_choices(found: dict[Setting, list[Found]]) -> list[str]:
    names = [one.name for one in next(iter(found.values()))]
    lines = ["| algorithm | tuned | " + " | ".join(f"{regime}, {level}" for regime, level in found) + " |"]
    lines.append("|---" * (len(found) + 2) + "|")
    for place, name in enumerate(names):
        chosen = [all_of_them[place] for all_of_them in found.values()]
        ((option, _),) = chosen[0].options.items()
        cells = [f"{one.options[option]:g}, {one.rate:g}" for one in chosen]
        lines.append(f"| `{name}` | `{option}`, clients' rate | " + " | ".join(cells) + " |")
    return lines


def table_of_claims(found: dict[Setting, list[Found]]) -> list[str]:
    lines = [
        "| claim of a paper | setting here | first / second, median (interval) | first was faster |",
        "|---|---|---|---|",
    ]
    for text, first, second, regime, level in CLAIMS:
        if (regime, level) not in found:
            continue
        of = {one.name: one for one in found[regime, level]}
        both = np.isfinite(of[first].times) & np.isfinite(of[second].times)
        wins = int((of[first].times < of[second].times).sum())
        ratios = of[first].times[both] / of[second].times[both]
        told = "one of them never got there"
        if both.all():
            low, high = interval(ratios)
            told = f"{float(np.median(ratios)):.2f} ({low:.2f} to {high:.2f})"
        lines.append(f"| {text} | {regime}, {level} | {told} | {wins} of {len(both)} seeds |")
    return lines


INTRODUCTION = """
A study by `examples/algorithms.py` (`make study`): {n} clients, softmax regression on the digits of scikit-learn, 4
local steps of 8 rows, and buffers of {k}. In all algorithms all clients are at work, in rounds too. Delays:
"""
METHOD = """
Each algorithm was tuned over {arms} combinations (arms) and {tuning_seeds} seeds: {rates} step sizes of the clients
times three values of one option of its own. The best arm then ran with {seeds} new seeds. A cell has the median virtual
time to the target and an interval for it, from order statistics, of at least 95 % where there are six seeds or more. A
run was watched for a virtual time of {max_time:g}; "never" is longer. Evaluations are at every step, or at every fifth
where each arrival makes one. All arms meet the same delays where the seed is the same.
"""
CAUTION = """
The next table has claims of papers, and what was measured here. A problem of this size says nothing about others; it
only shows what these rules do on equal terms. The targets, the grids and the rounds of FedAvg were chosen after a first
run with the same seeds, whose targets were reached too soon to tell the algorithms apart. The intervals do not cover
that choice: where two are close, their order may be another with other settings. All clients make equally many steps,
so here FedNova is the same as FedBuff.
"""


def prose(text: str, **values: Any) -> str:
    return textwrap.fill(" ".join(text.format(**values).split()), 120)


def section(found: dict[Setting, list[Found]], scale: Scale) -> str:
    """The section of the page, between its marks."""
    levels = list(dict.fromkeys(level for _, level in found))
    n_arms = len(RATES) * 3 if scale.tuning_seeds > 0 else 1
    method = prose(
        METHOD, arms=n_arms, tuning_seeds=scale.tuning_seeds, rates=len(RATES), seeds=scale.seeds,
        max_time=scale.max_time,
    )  # fmt: skip
    lines = ["## All of them on the same traces", "", prose(INTRODUCTION, n=N, k=K), ""]
    lines += [f"- **{regime}**: {REGIMES[regime][0]}." for regime in dict.fromkeys(regime for regime, _ in found)]
    lines += ["", "Data:", ""]
    lines += [f"- **{level}**: {LEVELS[level][0]}; the target is a loss of {TARGET[level]:g}." for level in levels]
    lines += ["", method, "", *table_of_times(found), ""]
    for level in levels:
        lines += [f"![Times of all algorithms, {level} data](figures/algorithms_{level}.svg)", ""]
    lines += [
        prose(CAUTION),
        "",
        *table_of_claims(found),
        "",
        "What the tuning chose:",
        "",
        *table_of_choices(found),
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="published algorithms on the same traces")
    parser.add_argument("--quick", action="store_true", help="one regime, two seeds, no tuning")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of algorithms.md and figures/")
    given = parser.parse_args(arguments)
    scale = QUICK if given.quick else FULL
    found: dict[Setting, list[Found]] = {}
    for level in list(LEVELS)[: scale.levels]:
        for regime in list(REGIMES)[: scale.regimes]:
            found[regime, level] = [study_one(name, regime, level, scale) for name in TUNED]
            print(f"{regime}, {level}: done", file=sys.stderr)
    page = given.out / "algorithms.md"
    text = (page if page.exists() else ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    given.out.mkdir(parents=True, exist_ok=True)
    page.write_text(f"{before}{BEGIN}{section(found, scale)}{END}{after}", encoding="utf-8")
    for level in list(LEVELS)[: scale.levels]:
        picture(found, level, scale, given.out / "figures" / f"algorithms_{level}.svg")


if __name__ == "__main__":
    main()
