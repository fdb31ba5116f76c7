"""Networks on the performance page: what report.py measures of them, and the part of the page that says it.

Each network is measured in parts of a minute or two: `report.py --only W6-32` is training in batches of 32. PyTorch is
timed in every way that rivals/with_torch_networks.py has, compiled ones too, and the fastest counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compare import compare, contenders, present, ratio, write_answers
from rivals.networks import ARCHITECTURES, has_tokens

from fedbuff._machine import limits

Data = dict[str, Any]

VARIANTS = ["module", "module-last", "functional", "functional-last"]
COMPILED = ["compile", "compile-last"]
OF_TEXTS = ["module", "functional"]  # no channels; PyTorch does not compile an LSTM, it calls one operator
SHOWN = {
    "module": "module",
    "functional": "functional",
    "compile": "torch.compile",
    "last": "channels last",
}
NAMES = {
    "W6": "W6: two convolutions 3 x 3, pooling",
    "LeNet-5": "LeNet-5",
    "FEMNIST": "LEAF's FEMNIST network, 6.6 million weights",
    "CIFAR": "McMahan's CIFAR network",
    "strides": "strides in the place of pooling",
    "ResNet-8": "ResNet-8 with GroupNorm",
    "LSTM": "an LSTM of 256, sequences of 80",
    "Shakespeare": "LEAF's network of Shakespeare's text, two of them",
}
LEVELS = {  # PyTorch's parts, held to what a level of ours may use
    "avx2": "ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2",
    "baseline": "ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2",
}

# Times as fast as the fastest of PyTorch, by batch; and of all networks
SPEED = {
    "W6": {32: 3.5, 10: 5.0},
    "LeNet-5": {32: 4.0, 10: 6.0},
    "FEMNIST": {32: 2.3, 10: 2.8},
    "CIFAR": {32: 1.8, 10: 2.0},
    "strides": {32: 1.3, 10: 1.3},
    "ResNet-8": {32: 1.3, 10: 1.3},
    "LSTM": {32: 1.3, 10: 1.3},
    "Shakespeare": {32: 1.3, 10: 1.3},
}
LOSS, THREADS, ROUNDING = 2.0, 1.85, 4.0
LEVEL = {"avx2": 1.5, "baseline": 1.0}


def rivals(name: str, batch: int, variants: list[str], level: str = "") -> list[str]:
    own = [v for v in variants if not has_tokens(name) or v in OF_TEXTS]
    return [f"{LEVELS.get(level, '')} torch_networks network {name} {batch} {v}".strip() for v in own]


def rounding(name: str, batch: int) -> dict[str, float]:
    """The rounding errors of fedbuff's updates and of PyTorch's, relative to their norms: medians over the clients."""
    text = f"torch_networks network_rounding {name} {batch}"
    write_answers([text])
    with contenders([text]) as (one,):
        answer = one.turn()
    return {who: answer[who] for who in ("ours", "theirs")}


def _duel(texts: list[str], turns: int, cores: int = 1, seconds: float = 0.3) -> Data:
    """Rates by contender, ratios of the first to each."""
    results = compare(texts, turns=turns, cores=cores, seconds=seconds)
    return {
        "rates": {result.text: result.rate for result in results},
        "ratios": {result.text: list(vars(ratio(results[0], result)).values()) for result in results[1:]},
    }


def measure_training(name: str, batch: int, turns: int) -> Data:
    """Local steps and their rounding; nothing where PyTorch is not installed."""
    if not present(["torch_networks"]):
        return {}
    return {
        "setting": limits.setting(),
        f"batch {batch}": _duel([f"ours network {name} {batch}", *rivals(name, batch, VARIANTS + COMPILED)], turns),
        f"rounding {batch}": rounding(name, batch),
    }


def measure_rest(name: str, turns: int) -> Data:
    """Evaluation, and training at other CPU levels; nothing where PyTorch is not installed."""
    if not present(["torch_networks"]):
        return {}
    losses = [f"torch_networks network_loss {name} {variant}" for variant in ("module", "module-last", "compile")]
    found: Data = {"setting": limits.setting(), "loss": _duel([f"ours network_loss {name}", *losses], turns)}
    for level in LEVELS:
        ours = f"FEDBUFF_ISA={level} ours network {name} 32"
        found[level] = _duel([ours, *rivals(name, 32, ["module", "module-last"], level)], turns)
    return found


def measure_threads(turns: int) -> Data:
    """Two threads against one, of a replay of each network."""
    if len(os.sched_getaffinity(0)) < 2:
        return {}
    found: Data = {"setting": limits.setting()}
    for name in ARCHITECTURES:
        run = f"ours network_replay {name}"
        found[name] = _duel([f"{run} 2", f"{run} 1"], turns, cores=2, seconds=0.2)
    return found


def sections(turns: Callable[[Any], int]) -> dict[str, Callable[[Any], Data]]:
    """What report.py measures, by name; `turns` says how many for its options."""
    made: dict[str, Callable[[Any], Data]] = {}
    for name in ARCHITECTURES:
        for batch in SPEED[name]:
            made[f"{name}-{batch}"] = lambda options, at=(name, batch): measure_training(*at, turns(options))
        made[f"{name}-rest"] = lambda options, name=name: measure_rest(name, turns(options))
    return made | {"network-threads": lambda options: measure_threads(turns(options))}


# --- the page

TRAINING = "Training:"
LOSSES = "Evaluation, beside a module and a compiled one under `torch.no_grad`:"
OTHER_LEVELS = (
    "Other CPU levels, batches of 32, beside a module held to the same instructions by `ONEDNN_MAX_CPU_ISA`, "
    "`ATEN_CPU_CAPABILITY` and `MKL_ENABLE_INSTRUCTIONS`:"
)
TWO_THREADS = "Two threads beside one:"
_BOUND = (
    "without pooling, nearly all of the time goes into the multiplications of convolutions, of which PyTorch's library "
    "does about as many a second"
)
WHY = {
    TRAINING: "in small batches `torch.compile` saves most of what PyTorch spends between the layers; ours spends a "
    "larger part on finding the gradients that pooling and ReLU leave, number by number",
    LOSSES: _BOUND,
    OTHER_LEVELS: _BOUND,
    TWO_THREADS: "where other programs ran meanwhile, two threads had less than two cores",
}


@dataclass(frozen=True)
class Row:
    """A figure and its bar; `others` stands between them in the table."""

    what: str
    others: tuple[str, ...]
    figure: str
    wanted: float
    met: bool

    def line(self) -> str:
        verdict = "met" if self.met else "missed"
        return f"| {' | '.join([self.what, *self.others, self.figure, f'{self.wanted:g}', verdict])} |"


def page(found: dict[str, Data]) -> str:
    """The part of the page: markdown, from what was measured of each network and of threads; or nothing."""
    measured = {name: section for name in ARCHITECTURES if (section := _section(found, name))}
    if not measured:
        return ""
    tables = [_training(measured), _losses(measured), _levels(measured), _threads(found.get("network-threads", {}))]
    tables.append(_rounding(measured))
    rows = [row for _, _, part in tables for row in part]
    missed = [row for row in rows if not row.met]
    setting = next(iter(measured.values()))["setting"]
    lines = [
        "## Networks",
        "",
        "Ten local steps on one core in float32, beside the fastest of what PyTorch has: a module and its optimiser, "
        "`torch.func` and `torch.compile`, each with the channels first and with the channels last. Every rival "
        f"reproduces our update before it is timed. {len(rows) - len(missed)} of {len(rows)} bars are met. Measured by "
        f"`benches/report.py` on {setting['cpu']} with {setting['cores']} cores, level {setting['level used']}; a "
        "spread is that of the ratios turn by turn." + _company(found),
    ]
    for text, head, part in tables:
        if part:
            lines += ["", text, "", head, "|" + head.count("|", 1) * "---|", *(row.line() for row in part)]
        if text in WHY and any(not row.met for row in part):
            lines += ["", f"Why a bar is missed: {WHY[text]}."]
    return "\n".join(lines)


Table = tuple[str, str, list[Row]]


def _company(found: dict[str, Data]) -> str:
    """Who else had the machine, as report.py notes it beside each section."""
    others = {name: section.get("others", 0.0) for name, section in found.items() if "setting" in section}
    told = ", ".join(f"{name} {cores:.1f}" for name, cores in others.items() if cores > 0.1)
    return f" **Other programs ran meanwhile, so many cores' worth: {told}.**" if told else ""


def _section(found: dict[str, Data], name: str) -> Data:
    """All that was measured of a network."""
    parts = [found.get(f"{name}-{part}", {}) for part in (*SPEED[name], "rest")]
    return {key: value for part in parts if "setting" in part for key, value in part.items() if key != "others"}


def _fastest(part: Data) -> tuple[str, float, list[float]]:
    """The rival that the first contender is least faster than, its rate, and the ratio with its spread."""
    text, found = min(part["ratios"].items(), key=lambda pair: pair[1][0])
    return text, part["rates"][text], found


def _times(found: list[float]) -> str:
    best, low, high = found
    return f"{best:.2f} ({low:.2f} to {high:.2f})"


def _training(measured: dict[str, Data]) -> Table:
    rows = []
    for name, section in measured.items():
        for batch, wanted in SPEED[name].items():
            part = section.get(f"batch {batch}")
            if part is None:
                continue
            text, rate, found = _fastest(part)
            variant, _, last = text.split()[-1].partition("-")
            which = SHOWN[variant] + (f", {SHOWN[last]}" if last else "")
            ours = next(iter(part["rates"].values()))
            others = (str(batch), f"{1e3 / ours:.1f}", f"{1e3 / rate:.1f}", which)
            rows.append(Row(NAMES[name], others, _times(found), wanted, found[0] >= wanted))
    head = "| a client's task | batch | fedbuff, ms | PyTorch, ms | which is fastest | times as fast | wanted | |"
    return TRAINING, head, rows


def _losses(measured: dict[str, Data]) -> Table:
    rows = []
    for name, section in measured.items():
        if "loss" not in section:
            continue
        _, rate, found = _fastest(section["loss"])
        ours = next(iter(section["loss"]["rates"].values()))
        others = (f"{1e3 / ours:.1f}", f"{1e3 / rate:.1f}")
        rows.append(Row(NAMES[name], others, _times(found), LOSS, found[0] >= LOSS))
    head = "| the loss of 400 rows | fedbuff, ms | PyTorch, ms | times as fast | wanted | |"
    return LOSSES, head, rows


def _levels(measured: dict[str, Data]) -> Table:
    rows = []
    for name, section in measured.items():
        for level, wanted in LEVEL.items():
            if level not in section:
                continue
            found = _fastest(section[level])[2]
            rows.append(Row(NAMES[name], (level,), _times(found), wanted, found[0] >= wanted))
    return OTHER_LEVELS, "| a client's task | level | times as fast | wanted | |", rows


def _threads(section: Data) -> Table:
    rows = []
    for name in ARCHITECTURES:
        if name in section:
            found = _fastest(section[name])[2]
            rows.append(Row(NAMES[name], (), _times(found), THREADS, found[0] >= THREADS))
    return TWO_THREADS, "| a replay in batches of 32 | times as fast | wanted | |", rows


def _rounding(measured: dict[str, Data]) -> Table:
    rows = []
    for name, section in measured.items():
        for batch in SPEED[name]:
            errors = section.get(f"rounding {batch}")
            if errors is None:
                continue
            times = errors["ours"] / errors["theirs"]
            others = (str(batch), f"{errors['ours']:.1e}", f"{errors['theirs']:.1e}")
            rows.append(Row(NAMES[name], others, f"{times:.2f}", ROUNDING, times <= ROUNDING))
    text = "The error of an update against PyTorch's in float64, relative to the update, the median of four clients:"
    return text, "| a client's task | batch | fedbuff | PyTorch | ours / PyTorch's | at most | |", rows
