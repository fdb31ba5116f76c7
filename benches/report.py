"""Measures everything that docs/performance.md says, and writes it: the page and docs/figures/performance-*.svg.

    python benches/report.py                    all, about an hour on a quiet machine, most of it PyTorch compiling
    python benches/report.py --quick            fewer turns and smaller sizes, about half of that
    python benches/report.py --only schedule    this section again, the others as they were measured
    python benches/report.py --only W6-32       part of a network; if nothing else was, only networks are written anew
    python benches/report.py --write            only write the page from what was measured

Each section is kept in .benchmarks/report as soon as it is measured, so that an interrupted run goes on where it
stopped; a section is measured again when the core was rebuilt since. So are the profiles of what missed its bar. Rivals
that are not installed are left out, and the page says so: FEDBUFF_BENCH_PYTHON names interpreters that have them,
separated by colons.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import machine
import network_report
from compare import SECONDS, Failed, Missing, compare, contenders, interpreters, present, ratio
from page import bars, replace_part, write_page
from readme import write_readme
from rivals.data import A_SECOND, workload

from fedbuff._machine.embedding import library

HERE = Path(__file__).resolve().parent
STORE = HERE.parent / ".benchmarks" / "report"
PEERS = ("flsim", "flgo", "fedjax", "pfl", "flwr")
Section = dict[str, Any]


class Options:
    """How much is measured."""

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.turns = 3 if quick else 9
        self.few = 2 if quick else 3  # of what takes long, or only has to show an order of magnitude
        self.seconds = 0.1 if quick else 0.4

    def updates(self, name: str) -> int:
        n = {"W1": 4000, "W2": 1_000_000, "W3": 600, "CSR": 40_000}[name]
        return n // 4 if self.quick else n


def duel(
    texts: Sequence[str], options: Options, cores: int = 1, *, few: bool = False, seconds: float = SECONDS
) -> Section:
    """All that can be had of the contenders, in turn: rates by contender, ratios of the first to each."""
    here = present(texts)
    results = compare(here, turns=options.few if few else options.turns, cores=cores, seconds=seconds)
    return {
        "rates": {result.text: result.rate for result in results},
        "ratios": {result.text: list(vars(ratio(results[0], result)).values()) for result in results[1:]},
        "missing": [text for text in texts if text not in here],
    }


def measure_machine(options: Options) -> Section:
    measured = machine.describe(seconds=options.seconds)
    return measured | {"versions": rival_versions()}


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
            section["slow"] = duel([f"ours {run}", *slow], options, few=True)
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
    sizes = {100: 300_000, 10_000: 300_000} | ({} if options.quick else {1_000_000: 1_000_000})
    section["heapq"] = {
        str(in_flight): duel(
            [f"ours schedule {in_flight} {n}", *(f"heapq schedule {in_flight} {n} {v}" for v in ("plain", "bulk"))],
            options,
            few=in_flight == 1_000_000,
        )
        for in_flight, n in sizes.items()
    }
    return section


def measure_evaluate(options: Options) -> Section:
    """Dense rows beside products of matrices; rows of twenty numbers, which reading them bounds, beside that."""
    section = {
        name: duel(
            [f"ours evaluate {name}", f"numpy evaluate {name}", "ours sgemm", f"ours evaluate {name} 1 loss"], options
        )
        | {"flops": workload(name).gradient_flops}
        for name in ("W1", "W3")
    }
    w = workload("W2")
    n = w.n_clients * w.rows * w.features
    return section | {"W2": duel(["ours evaluate W2", f"ours read {n} 1"], options) | {"flops": w.gradient_flops}}


def measure_threads(options: Options) -> Section:
    if len(os.sched_getaffinity(0)) < 2:
        return {}
    runs = {name: f"ours replay_alone {name} {n}" for name, n in A_SECOND.items()}
    runs |= {f"evaluate {name}": f"ours evaluate {name}" for name in ("W1", "W3")}
    dims = (1_000_000, 25_000_000)
    runs |= {f"aggregate {dim}": f"ours aggregate {dim}" for dim in dims}
    return {
        "two to one": {
            name: duel([f"{run} 2", f"{run} 1"], options, cores=2, seconds=0.8) for name, run in runs.items()
        },
        "to read": {
            str(dim): duel([f"ours aggregate {dim} 2", f"ours read {dim} 11 2"], options, cores=2) for dim in dims
        },
    }


def measure_dtypes(options: Options) -> Section:
    """Updates a second in float64, relative to float32."""
    runs = {name: f"ours sgd {name} {options.updates(name) // 2}" for name in ("W1", "W3", "CSR")}
    runs["W2"] = f"ours replay W2 {options.updates('W2')} 1"
    runs |= {f"W4, {dim:.2g} weights": f"ours aggregate {dim} 1" for dim in (1_000_000, 25_000_000)}
    section = {name: duel([f"{run} float64", f"{run} float32"], options) for name, run in runs.items()}
    for name, part in section.items():
        numbers = 2 if name.startswith("W4") else 1  # measured in bytes, of which a number has twice as many
        part["share"] = [value / numbers for value in next(iter(part["ratios"].values()))]
    return section


def measure_shapes(options: Options) -> Section:
    """The rate of operations, every drawn row counted, of shapes that are not round, relative to the round ones."""
    section = {}
    for name in ("W1", "W3"):
        n = options.updates(name) // 2
        both = duel([f"ours sgd {name}-odd {n}", f"ours sgd {name} {n}"], options)
        (each,) = both["ratios"].values()
        factor = workload(f"{name}-odd").flops / workload(name).flops
        section[name] = both | {"share": [factor * value for value in each]}
    return section


LADDER = {
    "logistic regression": [f"logistic-{n}" for n in (2, 4, 8, 16, 32, 64)],
    "softmax, 10 classes": [f"softmax-{n}" for n in (100, 316, 1000, 3160, 10_000)],
    "MLP, 784 inputs": [f"mlp-{n}" for n in (128, 400, 1280, 4000, 12_600)],
}


def measure_sizes(options: Options) -> Section:
    """Rates against the number of weights, from two to ten million, each beside the limit of the same run."""
    section: Section = {"aggregate": [], "replay": {}}
    for dim in (2, 16, 128, 1000, 10_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000):
        found = duel([f"ours aggregate {dim}", f"ours read {dim} 11"], options, few=True)
        rate, limit = found["rates"].values()
        section["aggregate"].append({"dim": dim, "rate": rate, "limit": limit})
    for kind, names in LADDER.items():
        rows = section["replay"][kind] = []
        for name in names:
            w = workload(name)
            n = 10 * max(1, int(3e9 / max(w.flops, 4e5)) // 10)
            run = f"ours replay {name} {n}"
            found = duel([run, "ours sgemm"], options, few=True)
            updates, limit = found["rates"].values()
            share = [w.flops * value for value in found["ratios"]["ours sgemm"]]
            rows.append(
                {"dim": w.dim, "run": run, "updates": updates, "flops": w.flops, "limit": limit, "share": share}
            )
    return section


def measure_scale(options: Options) -> Section:
    """The cost of an update or arrival by number of clients and of arrivals, relative to the fewest."""
    clients = [1_000, 10_000, 100_000, 1_000_000]
    arrivals = [100_000, 1_000_000, 10_000_000] + ([] if options.quick else [100_000_000])
    updates = 400_000 if options.quick else 1_000_000
    texts = {
        "clients": [f"ours replay_clients {n} {updates}" for n in clients],
        "arrivals": [f"ours replay_stream W2 {n}" for n in arrivals],
        "arrivals of the event loop": [f"ours schedule 100 {n}" for n in arrivals],
    }
    return {
        kind: duel(each, options, few=kind == "arrivals")
        | {"sizes": clients if kind == "clients" else arrivals, "runs": each}
        for kind, each in texts.items()
    }


def measure_peers(options: Options) -> Section:
    """A peer may be there and not run, as one that does not import on this Python: the page says why."""
    section: Section = {}
    for who in PEERS:
        texts = ["ours replay W1 1000", f"{who} replay W1 200"]
        try:
            section[who] = duel(texts, options, few=True)
        except (Missing, Failed) as error:
            section[who] = {"rates": {}, "ratios": {}, "missing": texts[1:], "why": str(error).strip().splitlines()[-1]}
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
    **network_report.sections(lambda options: options.turns),
}


def profile(text: str, cores: int) -> list[tuple[float, str]]:
    """Where a contender's turns spend their time, by perf: per cent and function, the most first; or nothing."""
    perf = shutil.which("perf")
    if perf is None:
        return []
    with tempfile.TemporaryDirectory() as folder, contenders([text], cores) as (one,):
        data = Path(folder) / "perf.data"
        one.turn()
        record = [perf, "record", "-q", "-F", "499", "-o", str(data), "-p", str(one.pid)]
        with subprocess.Popen(record, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as recording:
            one.turn(3.0)
            recording.send_signal(signal.SIGINT)
        report = [perf, "report", "-i", str(data), "--stdio", "--no-children", "-g", "none", "-F", "overhead,symbol"]
        lines = subprocess.run(report, capture_output=True, text=True).stdout.splitlines()
    found = [re.match(r"\s*([\d.]+)%\s+\[.\]\s+(.*\S)", line) for line in lines]
    return [(float(match[1]), match[2]) for match in found if match and float(match[1]) >= 1][:8]


def measure_profiles(sections: dict[str, Section], known: Section) -> Section:
    """Profiles of the runs that missed their bars, each once."""
    missed = {bar.run: bar.cores for bar in bars(sections) if bar.run and not bar.met}
    return {run: known.get(run) or profile(run, cores) for run, cores in missed.items()}


def others_seconds() -> float:
    """CPU seconds that all programs but this and its children have had; 0 where the system does not say."""
    try:
        user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    except OSError:
        return 0.0
    mine = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK") - mine


def core_hash() -> str:
    return hashlib.sha256(Path(library()).read_bytes()).hexdigest()[:16]


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
    wanted = (
        [] if chosen.write else chosen.only or [name for name in SECTIONS if (stored(name) or {}).get("how") != how]
    )
    for name in wanted:
        begin, others = time.perf_counter(), others_seconds()
        print(f"{name} ...", end=" ", flush=True)
        section = {"how": how, "date": datetime.date.today().isoformat(), "data": SECTIONS[name](options)}
        took = time.perf_counter() - begin
        store(name, section | {"others": (others_seconds() - others) / took})
        print(f"{took:.0f} s", flush=True)
    sections = {name: section for name in SECTIONS if (section := stored(name)) is not None}
    networks = network_report.page({name: part["data"] | {"others": part["others"]} for name, part in sections.items()})
    if "machine" not in sections:
        if not networks:
            raise SystemExit("nothing was measured yet: run without --write and --only")
        replace_part(networks)
        print("docs/performance.md: the part on networks is written")
        return
    profiles = stored("profiles") or {"how": how, "data": {}}
    if wanted:
        known = profiles["data"] if profiles["how"] == how else {}
        profiles = {"how": how, "data": measure_profiles(sections, known)}
        store("profiles", profiles)
    write_page(sections, profiles["data"], networks)
    write_readme()
    print("docs/performance.md and its figures are written")


if __name__ == "__main__":
    main()
