"""Measures everything that docs/performance.md says, and writes it: the page and docs/figures/performance-*.svg.

    python benches/report.py                    all, about a quarter of an hour on a quiet machine
    python benches/report.py --quick            fewer turns and smaller sizes, about four minutes
    python benches/report.py --only schedule    this section again, the others as they were measured
    python benches/report.py --write            only write the page from what was measured

Each section is kept in .benchmarks/report as soon as it is measured, so that an interrupted run goes on where it
stopped; a section is measured again when the core was rebuilt since. Rivals that are not installed are left out, and
the page says so: FEDBUFF_BENCH_PYTHON names interpreters that have them, separated by colons.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import machine
from compare import Missing, compare, interpreters, present, ratio
from page import write_page
from rivals.data import workload

import fedbuff
from fedbuff import _bench

HERE = Path(__file__).resolve().parent
STORE = HERE.parent / ".benchmarks" / "report"
PEERS = ("fedjax", "pfl", "flwr", "flgo")
Section = dict[str, Any]


class Options:
    """How much is measured."""

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.turns = 3 if quick else 9
        self.seconds = 0.1 if quick else 0.4

    def updates(self, name: str) -> int:
        n = {"W1": 4000, "W2": 1_000_000, "W3": 600, "CSR": 40_000}[name]
        return n // 4 if self.quick else n


def duel(texts: Sequence[str], options: Options, cores: int = 1) -> Section:
    """All that can be had of the contenders, in turn: rates by contender, ratios of the first to each."""
    here = present(texts)
    results = compare(here, turns=options.turns, cores=cores)
    return {
        "rates": {result.text: result.rate for result in results},
        "ratios": {result.text: list(vars(ratio(results[0], result)).values()) for result in results[1:]},
        "missing": [text for text in texts if text not in here],
    }


def measure_machine(options: Options) -> Section:
    measured = machine.describe(seconds=options.seconds)
    return measured | {"versions": rival_versions(), "load": os.getloadavg()[0]}


def rival_versions() -> dict[str, str]:
    found = {}
    for name in ("numba", "jax", "torch", *PEERS):
        code = f"import importlib.metadata as m; print(m.version({name!r}))"
        for python in interpreters():
            done = subprocess.run([python, "-c", code], capture_output=True, text=True)
            if done.returncode == 0:
                found[name] = done.stdout.strip()
                break
    return found


NUMBA = {"W1": ("blas", "loops"), "W2": ("",), "W3": ("",), "CSR": ("",)}
JAX_UPDATES = {"W1": 1000, "W2": 200_000, "W3": 200}
SLOW_UPDATES = {"W1": 200, "W2": 10_000, "W3": 100}


def measure_replay(name: str) -> Callable[[Options], Section]:
    """Schedule and replay beside the rivals, the slower ones in duels of their own, of fewer updates."""

    def measure(options: Options) -> Section:
        n = options.updates(name)
        numba = [f"numba replay {name} {n} {variant}".rstrip() for variant in NUMBA[name]]
        section = {"numba": duel([f"ours replay {name} {n}", "ours sgemm", *numba], options)}
        section["numba"]["flops"] = workload(name).flops
        if name in JAX_UPDATES:
            run = f"replay {name} {JAX_UPDATES[name]}"
            section["jax"] = duel([f"ours {run}", f"jax {run}"], options)
            run = f"replay {name} {SLOW_UPDATES[name]}"
            slow = [f"torch {run}", f"numpy {run}", *([] if options.quick else [f"torch {run} module"])]
            section["slow"] = duel([f"ours {run}", *slow], Options(True))
        return section

    return measure


def measure_aggregate(options: Options) -> Section:
    section = {}
    for dim in (1_000_000, 25_000_000):
        rivals = [f"{who} aggregate {dim}" for who in ("numba", "jax", "torch", "numpy")]
        section[str(dim)] = duel([f"ours aggregate {dim}", f"ours read {dim} 11", *rivals], options)
    return section


def measure_schedule(options: Options) -> Section:
    section = {}
    for in_flight in (100, 10_000, 1_000_000):
        n = 3_000_000 if in_flight == 1_000_000 or not options.quick else 1_000_000
        texts = [
            f"ours schedule {in_flight} {n}",
            *(f"numba schedule {in_flight} {n} {v}" for v in ("counts", "columns")),
        ]
        section[str(in_flight)] = duel(texts, options)
    texts = ["ours schedule 100 300000", "heapq schedule 100 300000 plain", "heapq schedule 100 300000 bulk"]
    return section | {"heapq": duel(texts, options)}


def measure_evaluate(options: Options) -> Section:
    return {
        name: duel(
            [f"ours evaluate {name}", f"numpy evaluate {name}", "ours sgemm", f"ours evaluate {name} 1 loss"], options
        )
        | {"bytes": 4 * workload(name).n_clients * workload(name).rows * workload(name).features}
        | {"flops": workload(name).gradient_flops}
        for name in ("W1", "W3")
    }


def measure_threads(options: Options) -> Section:
    if len(os.sched_getaffinity(0)) < 2:
        return {}
    runs = {name: f"ours replay_alone {name} {options.updates(name)}" for name in ("W1", "W2", "W3", "CSR")}
    runs |= {f"evaluate {name}": f"ours evaluate {name}" for name in ("W1", "W3")}
    dims = (1_000_000, 25_000_000)
    runs |= {f"aggregate {dim}": f"ours aggregate {dim}" for dim in dims}
    return {
        "two to one": {name: duel([f"{run} 2", f"{run} 1"], options, cores=2) for name, run in runs.items()},
        "to read": {dim: duel([f"ours aggregate {dim} 2", f"ours read {dim} 11 2"], options, cores=2) for dim in dims},
    }


def measure_dtypes(options: Options) -> Section:
    runs = {name: f"ours sgd {name} {options.updates(name) // 2}" for name in ("W1", "W3", "CSR")}
    return {name: duel([f"{run} float64", f"{run} float32"], options) for name, run in runs.items()}


def measure_shapes(options: Options) -> Section:
    """The rate of operations of shapes that are not round, relative to the round ones."""
    section = {}
    for name in ("W1", "W3"):
        n = options.updates(name) // 2
        both = duel([f"ours sgd {name}-odd {n}", f"ours sgd {name} {n}"], options)
        (each,) = both["ratios"].values()
        factor = workload(f"{name}-odd").flops / workload(name).flops
        section[name] = {"share": [factor * value for value in each]}
    return section


def measure_sizes(options: Options) -> Section:
    """Rates against the number of weights, from a handful to ten million, beside the limit."""
    dims = [2, 8, 64, 512, 4096, 32_768, 262_144, 1_000_000, 4_000_000, 10_000_000]
    few = options.seconds / 2
    return {
        "aggregate float32": _bench.aggregate_rates(dims, seconds=options.seconds),
        "aggregate float64": _bench.aggregate_rates(dims[:-1], dtype="float64", seconds=options.seconds),
        "softmax, 2 classes": _bench.replay_rates([1, 4, 16, 31], classes=2, seconds=few),
        "softmax, 10 classes": _bench.replay_rates([8, 64, 512, 2048, 8192], in_flight=20, seconds=few),
        "MLP, 784 inputs": _bench.replay_rates([784], hidden=16, in_flight=20, seconds=few)
        + _bench.replay_rates([784], hidden=128, in_flight=20, seconds=few)
        + _bench.replay_rates([784], hidden=1280, in_flight=10, steps=2, seconds=few)
        + _bench.replay_rates([784], hidden=12_600, in_flight=10, steps=1, seconds=few),
    }


def measure_scale(options: Options) -> Section:
    """Nanoseconds an update or arrival, by number of clients and of arrivals."""
    clients = [1_000, 10_000, 100_000] + ([] if options.quick else [1_000_000])
    arrivals = [100_000, 1_000_000, 10_000_000] + ([] if options.quick else [100_000_000])
    updates = 100_000 if options.quick else 400_000
    by_clients = duel([f"ours replay_clients {n} {updates}" for n in clients], options)
    few = Options(True)
    by_arrivals = {n: duel([f"ours schedule 100 {n}"], few)["rates"][f"ours schedule 100 {n}"] for n in arrivals}
    return {
        "clients": {str(n): 1e9 / by_clients["rates"][f"ours replay_clients {n} {updates}"] for n in clients},
        "arrivals": {str(n): 1e9 / rate for n, rate in by_arrivals.items()},
    }


def measure_peers(options: Options) -> Section:
    """A peer may be there and not run, as one that does not import on this Python: that counts as missing."""
    section: Section = {}
    for who in PEERS:
        texts = ["ours replay W1 1000", f"{who} replay W1 200"]
        try:
            section[who] = duel(texts, Options(True))
        except Missing as error:
            section[who] = {"rates": {}, "ratios": {}, "missing": texts[1:], "why": str(error)}
    return section


SECTIONS: dict[str, Callable[[Options], Section]] = {
    "machine": measure_machine,
    **{name: measure_replay(name) for name in NUMBA},
    "aggregate": measure_aggregate,
    "schedule": measure_schedule,
    "evaluate": measure_evaluate,
    "threads": measure_threads,
    "dtypes": measure_dtypes,
    "shapes": measure_shapes,
    "sizes": measure_sizes,
    "scale": measure_scale,
    "peers": measure_peers,
}


def profile(text: str) -> list[tuple[float, str]]:
    """Where a contender spends its time, by perf: per cent and function, the most first; empty without perf."""
    perf = shutil.which("perf")
    if perf is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "perf.data"
        command = [perf, "record", "-q", "-F", "499", "-o", str(data), sys.executable, str(HERE / "contend.py")]
        done = subprocess.run(
            [*command, *text.split()], input="\n" * 8, capture_output=True, text=True, cwd=HERE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        if done.returncode != 0:
            return []
        report = [perf, "report", "-i", str(data), "--stdio", "--no-children", "-g", "none", "-F", "overhead,symbol"]
        lines = subprocess.run([*report, "--dso", "libfedbuff.so"], capture_output=True, text=True).stdout.splitlines()
    found = [re.match(r"\s*([\d.]+)%\s+\[.\]\s+(.*\S)", line) for line in lines]
    rows = [(float(match[1]), match[2]) for match in found if match]
    total = sum(share for share, _ in rows)
    return [(100 * share / total, name) for share, name in rows[:8]]


def core_hash() -> str:
    (library,) = Path(fedbuff.__file__).parent.glob("libfedbuff.*")
    return hashlib.sha256(library.read_bytes()).hexdigest()[:16]


def stored(name: str) -> Section | None:
    path = STORE / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def store(name: str, section: Section) -> None:
    STORE.mkdir(parents=True, exist_ok=True)
    beside = STORE / f".{name}.part"
    beside.write_text(json.dumps(section, indent=1))
    beside.replace(STORE / f"{name}.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer turns, smaller sizes")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=[], help="measure these again, no other")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    chosen = parser.parse_args()
    options = Options(chosen.quick)
    how = {"core": core_hash(), "quick": chosen.quick}
    for name, measure in SECTIONS.items():
        before = stored(name)
        kept = before is not None and before["how"] == how
        if chosen.write or (name not in chosen.only if chosen.only else kept):
            continue
        begin = time.perf_counter()
        print(f"{name} ...", end=" ", flush=True)
        store(name, {"how": how, "date": datetime.date.today().isoformat(), "data": measure(options)})
        print(f"{time.perf_counter() - begin:.0f} s", flush=True)
    sections = {name: section for name in SECTIONS if (section := stored(name)) is not None}
    if "machine" not in sections:
        raise SystemExit("nothing was measured yet: run without --write and --only")
    write_page(sections, profile)
    print("docs/performance.md and its figures are written")


if __name__ == "__main__":
    main()
