"""Measures everything that docs/performance.md says, and writes it: the page and docs/figures/performance-*.svg.

    python benches/report.py                    all, about an hour on a quiet machine, most of it PyTorch compiling
    python benches/report.py --quick            fewer turns and smaller sizes, about half of that
    python benches/report.py --only schedule    this section again, the others as they were measured
    python benches/report.py --only W1/jax      a part of one, a minute or two; --list names all
    python benches/report.py --only W1 W2 --resume --seconds 60   what is missing of these, as much as a minute allows
    python benches/report.py --only W6-32       part of a network; if nothing else was, only networks are written anew
    python benches/report.py --write            only write the page from what was measured

Each part is kept in .benchmarks/report as soon as it is measured, so that an interrupted run goes on where it stopped;
a part is measured again when the core was rebuilt since. So are the profiles of what missed its bar. Rivals
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
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import machine
import network_report
import numba_report
from compare import SECONDS, Failed, Missing, compare, contenders, interpreters, present, ratio
from page import bars, replace_part, write_page
from readme import write_readme
from rivals.data import A_SECOND, workload

from fedbuff._machine.embedding import library

HERE = Path(__file__).resolve().parent
STORE = HERE.parent / ".benchmarks" / "report"
PEERS = ("flsim", "flgo", "fedjax", "pfl", "flwr")
Section = dict[str, Any]
Rows = list[dict[str, Any]]
Measure = Callable[["Options"], Any]  # a section, or rows
Parts = dict[str, Measure]


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


NUMBA = {"W1": ("blas", "loops"), "W2": ("", "flat"), "W3": ("",), "CSR": ("",)}
JAX_UPDATES = {"W1": 1000, "W2": 200_000, "W3": 200}
SLOW_UPDATES = {"W1": 200, "W2": 10_000, "W3": 100}


def replay_parts(name: str) -> Parts:
    """Schedule and replay beside the rivals, the slower ones in duels of their own, of fewer updates."""

    def numba(options: Options) -> Section:
        n = options.updates(name)
        rivals = [f"numba replay {name} {n} {variant}".rstrip() for variant in NUMBA[name]]
        limits = ["ours sgemm", "ours multiply_add"]
        w = workload(name)
        found = duel([f"ours replay {name} {n}", *limits, *rivals], options)
        return found | {"flops": w.flops, "executed": w.executed_flops}

    def jax(options: Options) -> Section:
        run = f"replay {name} {JAX_UPDATES[name]}"
        return duel([f"ours {run}", f"jax {run}"], options)

    def slow(options: Options) -> Section:
        run = f"replay {name} {SLOW_UPDATES[name]}"
        others = [f"torch {run}", f"numpy {run}", *([] if options.quick else [f"torch {run} module"])]
        return duel([f"ours {run}", *others], options, few=True)

    return {"numba": numba} | ({"jax": jax, "slow": slow} if name in JAX_UPDATES else {})


TORCH_SUMS = ("add", "foreach", "matrix", "blocks")
DIMS = (1_000_000, 25_000_000)


def aggregate_part(dim: int, cores: int) -> Measure:
    def measure(options: Options) -> Section:
        numba = f"numba aggregate {dim}" + (f" {cores}" if cores > 1 else "")
        rivals = [numba, *(f"{who} aggregate {dim}" for who in ("jax", "numpy", "numexpr"))]
        rivals += [f"torch aggregate {dim} {how}" for how in TORCH_SUMS]
        return duel([f"ours aggregate {dim} {cores}", f"ours read {dim} 11 {cores}", *rivals], options, cores)

    return measure


def schedule_part(in_flight: int) -> Measure:
    def measure(options: Options) -> Section:
        n = 3_000_000 if in_flight == 1_000_000 or not options.quick else 1_000_000
        rivals = [f"numba schedule {in_flight} {n} {variant}" for variant in ("counts", "columns")]
        return duel([f"ours schedule {in_flight} {n}", *rivals], options)

    return measure


def heapq_part(in_flight: int) -> Measure:
    def measure(options: Options) -> Section:
        if in_flight == 1_000_000 and options.quick:
            return {"rates": {}, "ratios": {}, "missing": []}
        n = 1_000_000 if in_flight == 1_000_000 else 300_000
        run = f"schedule {in_flight} {n}"
        rivals = [f"heapq {run} {variant}" for variant in ("plain", "bulk")]
        return duel([f"ours {run}", *rivals], options, few=in_flight == 1_000_000)

    return measure


def loops_part(what: str, size: int) -> Measure:
    """M/M/1 or PHOLD: our schedule and our queue in C++, lists by hand in C++; those in Python do fewer events."""

    def measure(options: Options) -> Section:
        n = 1_000_000 if options.quick else 3_000_000
        place = f"phold {size}" if what == "phold" else "mm1"
        compiled = [f"ours {place} {n} {which}" for which in ("schedule", "queue")]
        compiled += [f"cpp {place} {n} {which}" for which in ("standard", "four_ary")]
        slow = [f"ours {place} {n // 10} python", f"simpy {place} {n // 10}"]
        return duel([*compiled, *slow], options, few=True)

    return measure


def evaluate_part(name: str) -> Measure:
    """Dense rows beside products of matrices; rows of twenty numbers, which reading them bounds, beside that."""

    def measure(options: Options) -> Section:
        w = workload(name)
        if name == "W2":
            n = w.n_clients * w.rows * w.features
            return duel(["ours evaluate W2", f"ours read {n} 1"], options) | {"flops": w.gradient_flops}
        texts = [f"ours evaluate {name}", f"numpy evaluate {name}", "ours sgemm", f"ours evaluate {name} 1 loss"]
        return duel(texts, options) | {"flops": w.gradient_flops}

    return measure


def two_cores(texts: Sequence[str], seconds: float = 0.8) -> Measure:
    def measure(options: Options) -> Section:
        if len(os.sched_getaffinity(0)) < 2:
            return {"rates": {}, "ratios": {}, "missing": []}
        return duel(texts, options, cores=2, seconds=seconds)

    return measure


def thread_parts() -> Parts:
    """Two threads beside one, of replays alone, of whole runs and of others; and what a cache line takes."""
    runs = {name: f"ours replay_alone {name} {n}" for name, n in A_SECOND.items()}
    runs |= {f"whole {name}": f"ours whole_run {name} {A_SECOND[name]}" for name in ("W1", "W2", "W3")}
    runs |= {f"evaluate {name}": f"ours evaluate {name}" for name in ("W1", "W3")}
    runs |= {f"aggregate {dim}": f"ours aggregate {dim}" for dim in DIMS}
    parts = {name: two_cores([f"{run} 2", f"{run} 1"]) for name, run in runs.items()}
    return parts | {"crossing": two_cores(["cpp crossing"], 0.1)}


def dtype_part(run: str) -> Measure:
    """Updates a second, or numbers a second, in float64, relative to float32."""

    def measure(options: Options) -> Section:
        n = "" if "aggregate" in run else f" {options.updates(run.split()[-1]) // (2 if ' sgd ' in run else 1)}"
        threads = "" if " sgd " in run else " 1"
        part = duel([f"{run}{n}{threads} {dtype}" for dtype in ("float64", "float32")], options)
        numbers = 2 if "aggregate" in run else 1  # measured in bytes, of which a number has twice as many
        return part | {"share": [value / numbers for value in next(iter(part["ratios"].values()))]}

    return measure


def shape_part(name: str) -> Measure:
    """The rate of operations, every drawn row counted, of shapes that are not round, relative to the round ones."""

    def measure(options: Options) -> Section:
        n = options.updates(name) // 2
        both = duel([f"ours sgd {name}-odd {n}", f"ours sgd {name} {n}"], options)
        (each,) = both["ratios"].values()
        factor = workload(f"{name}-odd").flops / workload(name).flops
        return both | {"share": [factor * value for value in each]}

    return measure


LADDER = {
    "logistic regression": [f"logistic-{n}" for n in (2, 4, 8, 16, 32, 64)],
    "softmax, 10 classes": [f"softmax-{n}" for n in (100, 316, 1000, 3160, 10_000)],
    "MLP, 784 inputs": [f"mlp-{n}" for n in (128, 400, 1280, 4000, 12_600)],
}


def measure_aggregate_sizes(options: Options) -> Rows:
    rows = []
    for dim in (2, 16, 128, 1000, 10_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000):
        found = duel([f"ours aggregate {dim}", f"ours read {dim} 11"], options, few=True)
        rate, limit = found["rates"].values()
        rows.append({"dim": dim, "rate": rate, "limit": limit})
    return rows


def ladder_part(kind: str) -> Measure:
    """Rates against the number of weights, from two to ten million, each beside the limit of the same run."""

    def measure(options: Options) -> Rows:
        rows = []
        for name in LADDER[kind]:
            w = workload(name)
            n = 10 * max(1, int(3e9 / max(w.flops, 4e5)) // 10)
            run = f"ours replay {name} {n}"
            found = duel([run, "ours sgemm"], options, few=True)
            updates, limit = found["rates"].values()
            share = [w.flops * value for value in found["ratios"]["ours sgemm"]]
            rows.append(
                {"dim": w.dim, "run": run, "updates": updates, "flops": w.flops, "limit": limit, "share": share}
            )
        return rows

    return measure


def scale_part(kind: str) -> Measure:
    """The cost of an update or arrival by number of clients or of arrivals, relative to the fewest."""

    def measure(options: Options) -> Section:
        sizes = [100_000, 1_000_000, 10_000_000] + ([] if options.quick else [100_000_000])
        if kind == "clients":
            sizes = [1_000, 10_000, 100_000, 1_000_000]
        updates = 400_000 if options.quick else 1_000_000
        runs = {
            "clients": [f"ours replay_clients {n} {updates}" for n in sizes],
            "arrivals": [f"ours replay_stream W2 {n}" for n in sizes],
            "arrivals of the event loop": [f"ours schedule 100 {n}" for n in sizes],
        }[kind]
        return duel(runs, options, few=kind == "arrivals") | {"sizes": sizes, "runs": runs}

    return measure


def option_part(in_flight: int) -> Measure:
    """A schedule of each source and way to start beside the plain one."""

    def measure(options: Options) -> Section:
        n = 300_000 if options.quick else 1_000_000
        names = ("plain", "ties", "windows", "a recorded trace", "failures", "open loop", "rounds")
        return duel([f"ours option '{name}' {in_flight} {n}" for name in names], options)

    return measure


SHARES = (0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.99, 1.0)
CLIENTS = 10_000  # of which that share is at work


def measure_shares(options: Options) -> Section:
    n = 1_000_000
    return duel([f"ours share_at_work {max(1, int(share * CLIENTS))} {n} {CLIENTS}" for share in SHARES], options)


def python_part(run: str) -> Measure:
    """Beside a Python call, which says how fast this machine's Python is."""
    return lambda options: duel([f"ours {run}", "ours empty_call"], options)


def reading_part(kind: str) -> Measure:
    def measure(options: Options) -> Section:
        run = f"read_trace {kind} {1_000_000 if options.quick else 10_000_000}"
        return duel([f"ours {run}", f"pyarrow {run}"], options, few=True)

    return measure


def measure_long(options: Options) -> Section:
    """A stream of 10^9 arrivals where FEDBUFF_BENCH_FULL is 1, else of a tenth; in a process of its own."""
    arrivals = 1_000_000_000 if os.environ.get("FEDBUFF_BENCH_FULL") == "1" else 100_000_000
    command = [sys.executable, str(HERE / "long_run.py"), str(arrivals // (10 if options.quick else 1))]
    made: Section = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return made


def peer_part(who: str) -> Measure:
    """A peer may be there and not run, as one that does not import on this Python: the page says why."""

    def measure(options: Options) -> Section:
        texts = ["ours replay W1 1000", f"{who} replay W1 200"]
        try:
            return duel(texts, options, few=True)
        except (Missing, Failed) as error:
            why = str(error).strip().splitlines()[-1]
            return {"rates": {}, "ratios": {}, "missing": texts[1:], "why": why}

    return measure


# Sections of parts that are measured and kept one by one; what is one piece is a part without a name.
SECTIONS: dict[str, Parts] = {
    "machine": {"": measure_machine},
    **{name: replay_parts(name) for name in NUMBA},
    "aggregate": {str(dim): aggregate_part(dim, 1) for dim in DIMS},
    "aggregate on two": {str(dim): aggregate_part(dim, 2) for dim in DIMS},
    "schedule": {str(n): schedule_part(n) for n in (100, 10_000, 1_000_000)}
    | {f"heapq {n}": heapq_part(n) for n in (100, 10_000, 1_000_000)},
    "loops": {"mm1": loops_part("mm1", 0)} | {f"phold {n}": loops_part("phold", n) for n in (100, 10_000, 1_000_000)},
    "evaluate": {name: evaluate_part(name) for name in ("W1", "W3", "W2")},
    "threads": thread_parts(),
    "dtypes": {name: dtype_part(f"ours sgd {name}") for name in ("W1", "W3", "CSR")}
    | {"W2": dtype_part("ours replay W2")}
    | {f"W4, {dim:.2g} weights": dtype_part(f"ours aggregate {dim}") for dim in DIMS},
    "shapes": {name: shape_part(name) for name in ("W1", "W3")},
    "sizes": {"aggregate": measure_aggregate_sizes} | {kind: ladder_part(kind) for kind in LADDER},
    "scale": {kind: scale_part(kind) for kind in ("clients", "arrivals", "arrivals of the event loop")},
    "options": {str(n): option_part(n) for n in (100, 10_000)},
    "shares": {"": measure_shares},
    "python": {run: python_part(run) for run in ("callback 500000 64", "callback 200000 1", "tiny_call")},
    "reading": {kind: reading_part(kind) for kind in ("csv", "parquet")},
    "long": {"": measure_long},
    "peers": {who: peer_part(who) for who in PEERS},
    "numba backend": numba_report.parts(),
    **{name: {"": measure} for name, measure in network_report.sections(lambda options: options.turns).items()},
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


def pieces(name: str) -> list[str]:
    """The names of a section's parts, as `--only` takes them: the section's own where it is one piece."""
    return [f"{name}/{part}" if part else name for part in SECTIONS[name]]


def stored(piece: str) -> Section | None:
    path = STORE / f"{piece.replace('/', '.')}.json"
    return json.loads(path.read_text()) if path.exists() else None


def whole(name: str) -> Section | None:
    """A section of what is stored of its parts; of several builds, the page says which they are."""
    found = {part: one for part, piece in zip(SECTIONS[name], pieces(name), strict=True) if (one := stored(piece))}
    if not found:
        return None
    if "" in found:
        return found[""]
    each = list(found.values())
    return {
        "how": {"core": each[0]["how"]["core"], "quick": any(one["how"]["quick"] for one in each)},
        "date": max(one["date"] for one in each),
        "others": max(one["others"] for one in each),
        "data": {part: one["data"] for part, one in found.items()},
    }


def store(piece: str, section: Section) -> None:
    STORE.mkdir(parents=True, exist_ok=True)
    path = STORE / f"{piece.replace('/', '.')}.json"
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(section, indent=1))
    beside.replace(path)


def measure_piece(piece: str, options: Options, how: Section) -> None:
    name, _, part = piece.partition("/")
    begin, others = time.perf_counter(), others_seconds()
    print(f"{piece} ...", end=" ", flush=True)
    section = {"how": how, "date": datetime.date.today().isoformat(), "data": SECTIONS[name][part](options)}
    took = time.perf_counter() - begin
    store(piece, section | {"others": (others_seconds() - others) / took})
    print(f"{took:.0f} s", flush=True)


def wanted_pieces(only: Sequence[str], how: Section, resume: bool = False) -> list[str]:
    """Those named, by section or part; or all that were not measured with this build."""
    every = [piece for name in SECTIONS for piece in pieces(name)]
    missing = [piece for piece in every if (stored(piece) or {}).get("how") != how]
    if not only:
        return missing
    for text in only:
        if text not in every and text not in SECTIONS and text != "profiles":
            raise SystemExit(f"--only: expected a section or a part of one, got {text!r}; --list shows them")
    named = [piece for piece in every if piece in only or piece.partition("/")[0] in only]
    return [piece for piece in named if piece in missing] if resume else named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer turns, smaller sizes")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="measure these again, no other")
    parser.add_argument("--resume", action="store_true", help="with --only: but not what this build has measured")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no part after so many")
    parser.add_argument("--list", action="store_true", help="name the sections and their parts")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    chosen = parser.parse_args()
    if chosen.list:
        print(*(piece for name in SECTIONS for piece in pieces(name)), "profiles", sep="\n")
        return
    options = Options(chosen.quick)
    how = {"core": core_hash(), "quick": chosen.quick}
    wanted = [] if chosen.write else wanted_pieces(chosen.only, how, chosen.resume)
    begin = time.perf_counter()
    for piece in wanted:
        if time.perf_counter() - begin > chosen.seconds:
            break
        measure_piece(piece, options, how)
    sections = {name: section for name in SECTIONS if (section := whole(name)) is not None}
    networks = network_report.page({name: part["data"] | {"others": part["others"]} for name, part in sections.items()})
    numba = numba_report.page(sections.get("numba backend"))
    if "machine" not in sections:
        own = [part for part in (numba, networks) if part]
        for part in own:
            replace_part(part)
        print(f"docs/performance.md: {len(own)} parts of it are written; the others need `machine`, not measured yet")
        return
    profiles = stored("profiles") or {"how": how, "data": {}}
    if "profiles" in chosen.only or (wanted and not chosen.only):
        known = profiles["data"] if profiles["how"] == how else {}
        profiles = {"how": how, "data": measure_profiles(sections, known)}
        store("profiles", profiles)
    write_page(sections, profiles["data"], networks, numba)
    write_readme()
    print("docs/performance.md and its figures are written")


if __name__ == "__main__":
    main()
