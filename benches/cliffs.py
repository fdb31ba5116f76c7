"""Looks for cliffs: places where a small change of what is asked for costs more than twice as much per unit of work.

    python benches/cliffs.py                      300 places, a few minutes on a quiet machine
    python benches/cliffs.py --places 40 --seed 7 others, and fewer
    python benches/cliffs.py --publish            the part of docs/performance.md too

Each place is a random configuration: family of problems, shapes from 1 to 10^5, dtype, batch, local steps, K, tasks in
flight, clients, options of the strategy, of local steps and of the schedule, threads. Beside it are measured, in turn,
the places next to it: one number larger by an eighth (by one at least), and by one; an option more; the other dtype; a
thread more. A schedule's cost is that of an arrival; a replay's that of an update, for each of its operations and
weights; an evaluation's that of a row. A factor above 2 is measured again, longer, and listed if it stays.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from page import replace_part

import fedbuff as fb
from fedbuff._machine import limits

STORE = Path(__file__).resolve().parents[1] / ".benchmarks" / "report" / "cliffs.json"
CLIFF = 2.0
MOST_NUMBERS = 4_000_000  # of the rows of a problem, or of its model
AT_ONCE = 0.004  # seconds that a run lasts at least
TURNS, TURNS_AGAIN = 3, 9


@dataclass(frozen=True)
class Place:
    """A configuration. Options are names of STRATEGIES, LOCALS and SCHEDULES."""

    family: str
    features: int
    outputs: int
    hidden: int
    rows: int
    batch: int
    steps: int
    buffer_size: int
    n_clients: int
    in_flight: int  # n_clients: all are always at work
    dtype: str = "float32"
    strategy: str = "plain"
    local: str = "plain"
    schedule: str = "plain"
    threads: int = 1

    @property
    def dim(self) -> int:
        inner = [self.features, *([self.hidden] if self.family == "mlp" else []), self.outputs]
        return sum(a * b for a, b in pairwise(inner))

    @property
    def is_sound(self) -> bool:
        numbers = self.n_clients * self.rows * self.features
        return (
            numbers <= MOST_NUMBERS
            and self.dim <= MOST_NUMBERS
            and self.in_flight <= self.n_clients
            and self.buffer_size * self.dim <= 10 * MOST_NUMBERS
            and (self.family != "quadratic" or self.outputs == 1)
        )

    def work(self, what: str) -> float:
        """Of one arrival, update or evaluated row, up to a factor: operations and what an update costs beside them."""
        if what == "schedule":
            return 1.0
        if what == "evaluate":
            return float(self.dim + 8 * self.outputs)
        visits = self.steps * (1 if self.family == "quadratic" else self.batch)
        return float(visits * (self.dim + 8 * self.outputs) + 4 * self.dim + 200)


STRATEGIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"optimizer": fb.SGD(momentum=0.9)},
    "Adam": {"optimizer": fb.Adam(), "server_lr": 0.01},
    "polynomial staleness": {"staleness": fb.staleness.Polynomial(0.5)},
    "samples": {"weights": "samples", "norm": "weights"},
    "base now": {"base": "current"},
    "max_staleness": {"max_staleness": 20},
    "delay_lr": {"tau_c": 5},
}
LOCALS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "prox": {"prox": 0.1},
    "weight decay": {"weight_decay": 1e-3},
    "lr by step": {"lr_by_step": fb.LearningRate(0.01)},
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "round robin": {"selection": "round_robin"},
    "longest idle": {"selection": "longest_idle"},
    "timeout": {"timeout": 3.0},
    "server time": {"server_time": 1e-4},
    "max_uses": {"max_uses": 10**6},
}


def draw(generator: np.random.Generator) -> Place:
    """A place at random: sizes on a scale of logarithms, each option with one chance in three."""

    def size(low: float, high: float) -> int:
        return int(np.exp(generator.uniform(np.log(low), np.log(high + 1))))

    def one_of(options: Any) -> str:
        return str(generator.choice(list(options))) if generator.random() < 1 / 3 else "plain"

    while True:
        family = str(generator.choice(["logistic", "softmax", "mlp", "quadratic"]))
        n_clients = size(1, 20_000)
        place = Place(
            family,
            features=size(1, 100_000),
            outputs=size(2, 100) if family in ("softmax", "mlp") else 1,
            hidden=size(1, 500) if family == "mlp" else 0,
            rows=size(1, 200),
            batch=size(1, 128),
            steps=size(1, 20),
            buffer_size=size(1, 200),
            n_clients=n_clients,
            in_flight=n_clients if generator.random() < 0.2 else size(1, n_clients),
            dtype=str(generator.choice(["float32", "float64"])),
            strategy=one_of(STRATEGIES),
            local=one_of(LOCALS),
            schedule=one_of(SCHEDULES),
        )
        if place.is_sound:
            return place


SIZES = ("features", "outputs", "hidden", "rows", "batch", "steps", "buffer_size", "n_clients", "in_flight")


def neighbours(place: Place, generator: np.random.Generator) -> Iterator[tuple[str, Place]]:
    """What changes, and the place next to this one."""
    for name in SIZES:
        value = getattr(place, name)
        fixed = name == "hidden" and place.family != "mlp"
        fixed |= name == "outputs" and place.family in ("logistic", "quadratic")
        fixed |= name in ("rows", "batch") and place.family == "quadratic"
        if fixed:
            continue
        for more in sorted({1, max(1, value // 8)}):
            changed = replace(place, **{name: value + more})
            if name == "n_clients" and place.in_flight == place.n_clients:
                changed = replace(changed, in_flight=changed.n_clients)
            if changed.is_sound:
                yield f"{name} {value} -> {value + more}", changed
    for name, options in (("strategy", STRATEGIES), ("local", LOCALS), ("schedule", SCHEDULES)):
        other = str(generator.choice([option for option in options if option != getattr(place, name)]))
        yield f"{name} {getattr(place, name)} -> {other}", replace(place, **{name: other})
    yield "float32 -> float64", replace(place, dtype="float64" if place.dtype == "float32" else "float32")
    if len(os.sched_getaffinity(0)) > 1:
        yield "threads 1 -> 2", replace(place, threads=2)


class Runs:
    """What is timed at a place: functions, and how many units of work each does."""

    def __init__(self, place: Place) -> None:
        self.place = place
        problem, w0 = _problem(place), None
        strategy = fb.FedBuff(place.buffer_size, **STRATEGIES[place.strategy])
        options = SCHEDULES[place.schedule]
        all_work = place.in_flight == place.n_clients and "selection" not in options
        delays = fb.DelayModel(n_clients=place.n_clients, compute=fb.Exponential(1.0))
        local = fb.LocalSGD(
            place.steps, 1e-3, None if place.family == "quadratic" else place.batch, **LOCALS[place.local]
        )
        w0 = problem.init()

        def schedule(arrivals: int) -> fb.Schedule:
            concurrency = None if all_work else place.in_flight
            return fb.schedule(delays, strategy, concurrency, arrivals=arrivals, **options)

        def replayed(made: fb.Schedule) -> None:
            fb.replay(problem, made, local, strategy=strategy, w0=w0, threads=place.threads)

        arrivals = _often_enough(schedule, 2 * place.buffer_size + 2000)
        updates = _often_enough(lambda n: replayed(schedule(n)), 2 * place.buffer_size + 20)
        made = schedule(updates)
        used = int(np.count_nonzero(made.status == fb.Status.USED))
        self.works: dict[str, tuple[Callable[[], object], float]] = {
            "schedule": (lambda: schedule(arrivals), float(arrivals)),
            "replay": (lambda: replayed(made), float(max(used, 1))),
        }
        if place.family != "quadratic":
            rows = place.n_clients * place.rows
            repeats = max(1, 200_000 // max(1, rows * place.dim))
            self.works["evaluate"] = (
                lambda: [problem.loss(w0, threads=place.threads) for _ in range(repeats)],
                float(repeats * rows),
            )

    def seconds(self, what: str) -> float:
        """One turn: seconds for a unit of work, by the place's measure of it."""
        run, units = self.works[what]
        begin = time.perf_counter()
        run()
        return (time.perf_counter() - begin) / units / self.place.work(what)


def _problem(place: Place) -> fb.Problem:
    generator = np.random.default_rng(0)
    if place.family == "quadratic":
        return fb.Quadratic(generator.standard_normal((place.n_clients, place.features)).astype(place.dtype))
    n = place.n_clients * place.rows
    X = generator.standard_normal((n, place.features), dtype=np.float32).astype(place.dtype)
    y = np.arange(n) % max(2, place.outputs)
    offsets = np.arange(place.n_clients + 1) * place.rows
    if place.family == "logistic":
        return fb.Logistic(X, y, offsets)
    y[: place.outputs] = np.arange(place.outputs)[:n]  # every class is there where rows allow it
    if place.family == "softmax":
        return fb.Softmax(X, y, offsets)
    return fb.MLP(X, y, offsets, hidden=(place.hidden,))


def _often_enough(run: Callable[[int], object], least: int) -> int:
    """So many units that a run takes AT_ONCE, by a first look."""
    begin = time.perf_counter()
    run(least)
    took = time.perf_counter() - begin
    return least if took >= AT_ONCE else int(least * min(50.0, AT_ONCE / took)) + 1


def factors(place: Place, other: Place, turns: int) -> dict[str, float]:
    """How many times as dear the second is, per unit of work, the best of turns each: by what is measured."""
    sides = [Runs(place), Runs(other)]
    found = {}
    for what in sides[0].works:
        best = [np.inf, np.inf]
        for _ in range(turns):
            for at, side in enumerate(sides):
                best[at] = min(best[at], side.seconds(what))
        found[what] = best[1] / best[0]
    return found


def hunt(places: int, seed: int, seconds: float = np.inf) -> dict[str, Any]:
    """All factors above CLIFF that stay when they are measured again; how many pairs were looked at."""
    generator = np.random.default_rng(seed)
    cliffs: list[dict[str, Any]] = []
    pairs = done = 0
    begin = time.perf_counter()
    while done < places and time.perf_counter() - begin < seconds:
        place = draw(generator)
        for change, other in neighbours(place, generator):
            pairs += 1
            try:
                first = factors(place, other, TURNS)
            except (ValueError, TypeError):  # two options that exclude each other
                continue
            steep = {what for what, factor in first.items() if is_cliff(change, factor)}
            if not steep:
                continue
            again = factors(place, other, TURNS_AGAIN)
            for what, factor in again.items():
                if what in steep and is_cliff(change, factor):
                    cliffs.append({"what": what, "change": change, "factor": factor, "place": vars(place)})
                    print(f"{what}: {change}: {factor:.2f} times at {place}", flush=True)
        done += 1
    return {"places": done, "pairs": pairs, "seed": seed, "cliffs": cliffs, "seconds": time.perf_counter() - begin}


def is_cliff(change: str, factor: float) -> bool:
    """A float64 has twice the bytes by its nature; a thread more may well make it twice as fast."""
    allowed = CLIFF * (2.0 if change.startswith("float") else 1.0)
    return factor > allowed or (factor < 1 / allowed and not change.startswith("threads"))


def part(found: dict[str, Any]) -> str:
    """The part of docs/performance.md."""
    setting = found["setting"]
    lines = [
        "## Cliffs",
        "",
        f"`python benches/cliffs.py` drew {found['places']} configurations at random (families of problems, shapes "
        "from 1 to 10^5, dtype, batch, local steps, K, tasks in flight, clients, options, threads) and measured each "
        f"beside the ones next to it, {found['pairs']} pairs on {found['date']} ({setting['cpu']}, "
        f"{setting['level used']}): one number larger by one or by an eighth, an option more, the other dtype, a "
        f"thread more. Where that cost more than {CLIFF:g} times per unit of work (twice that from float32 to "
        f"float64), twice measured, it is listed: {len(found['cliffs'])} places.",
    ]
    if found["cliffs"]:
        lines += ["", "| what | change | times | where |", "|---|---|---|---|"]
    for cliff in sorted(found["cliffs"], key=lambda cliff: -abs(np.log(cliff["factor"]))):
        place = Place(**cliff["place"])
        where = f"{place.family}, {place.features} features, d = {place.dim}, {place.rows} rows, batch {place.batch}, "
        where += (
            f"Q = {place.steps}, K = {place.buffer_size}, {place.in_flight} of {place.n_clients} at work, {place.dtype}"
        )
        options = {place.strategy, place.local, place.schedule} - {"plain"}
        where += "".join(f", {option}" for option in sorted(options))
        lines.append(f"| {cliff['what']} | {cliff['change']} | {cliff['factor']:.2f} | {where} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=np.inf, help="no new place after so many")
    parser.add_argument("--publish", action="store_true", help="write the part of docs/performance.md")
    options = parser.parse_args()
    found = hunt(options.places, options.seed, options.seconds)
    found |= {"setting": limits.setting(), "date": datetime.date.today().isoformat()}
    STORE.parent.mkdir(parents=True, exist_ok=True)
    STORE.write_text(json.dumps(found, indent=1))
    print(f"{found['places']} places, {found['pairs']} pairs, {len(found['cliffs'])} cliffs, {found['seconds']:.0f} s")
    if options.publish:
        replace_part(part(found))


if __name__ == "__main__":
    main()
