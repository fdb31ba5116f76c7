"""A model of replays a second, from costs measured here, and docs/scaling.md with docs/figures/scaling-*.svg from it.

    python benches/scaling.py                   what was not measured since the core was built, about four minutes
    python benches/scaling.py --only checks     this section again, the others as they were measured
    python benches/scaling.py --write           only write the page from what was measured

`Costs` is the model: it is fitted on small replays, by the engine's own clocks, and then asked about replays that it
was not fitted on (`CHECKS`), which are timed as a whole. Sections are kept in .benchmarks/report, as report.py's are.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from report import HERE, Section, core_hash, store, stored
from rivals.data import WORKLOADS, Workload
from scipy.optimize import nnls

import fedbuff as fb
from fedbuff._machine import bench as _bench
from fedbuff._machine import limits as _limits
from fedbuff._machine import rates as _rates

FAMILIES = ("logistic", "softmax", "mlp")
CLIENTS = 100_000_000


# --- replays


@dataclass(frozen=True)
class Study:
    """A replay of `server_steps` server steps; eval_every 0 evaluates nothing."""

    workload: Workload
    server_steps: int
    eval_every: int = 0

    @property
    def family(self) -> str:
        w = self.workload
        return "mlp" if w.hidden else "logistic" if w.outputs == 1 else "softmax"

    @property
    def updates(self) -> int:
        return self.server_steps * self.workload.buffer_size

    @property
    def evaluations(self) -> int:
        return self.server_steps // self.eval_every + 1 if self.eval_every else 0

    @property
    def data_bytes(self) -> float:
        return 4.0 * self.workload.n_clients * self.workload.rows * self.workload.features

    def problem(self) -> fb.Problem:
        w = self.workload
        generator = np.random.default_rng(5)
        X = generator.standard_normal((w.n_clients * w.rows, w.features), dtype=np.float32)
        y = np.arange(len(X)) % max(w.outputs, 2)
        offsets = np.arange(w.n_clients + 1) * w.rows
        if w.hidden:
            return fb.MLP(X, y, offsets, hidden=(w.hidden,))
        return fb.Logistic(X, y, offsets) if w.outputs == 1 else fb.Softmax(X, y, offsets)

    def schedule(self) -> fb.Schedule:
        w = self.workload
        delays = fb.DelayModel(n_clients=w.n_clients, compute=fb.Exponential(1.0))
        return fb.schedule(delays, fb.FedBuff(w.buffer_size), w.in_flight, server_steps=self.server_steps)

    def replay(self, problem: fb.Problem, schedule: fb.Schedule, threads: int = 1) -> Any:
        w = self.workload
        local = fb.LocalSGD(w.steps, 1e-3, w.batch)
        return fb.replay(problem, schedule, local, threads=threads, eval_every=self.eval_every or None)


def small(family: str, size: int, steps: int = 1, batch: int = 1, **other: Any) -> Workload:
    """A workload for fitting: rows that stay in a cache. `size` is the hidden layer of an MLP, else the inputs."""
    features, outputs, hidden = {"logistic": (size, 1, 0), "softmax": (size, 10, 0), "mlp": (256, 10, size)}[family]
    made = Workload("fit", 12, 2 * batch, features, outputs, hidden, steps, batch, in_flight=6, buffer_size=3)
    return replace(made, **({"intercept": False} if family == "logistic" else {}) | other)


def clocks(study: Study, turns: int = 3) -> dict[str, float]:
    """Seconds of one replay of a schedule that exists: the engine's parts, and the rest; the fastest turn."""
    problem, schedule = study.problem(), study.schedule()
    study.replay(problem, schedule)
    best: dict[str, float] = {}
    for _ in range(turns):
        begin = time.perf_counter()
        result = study.replay(problem, schedule)
        total = time.perf_counter() - begin
        if not best or total < best["total"]:
            stats = result.stats
            best = {"total": total, "work": stats["work_seconds"], "commit": stats["commit_seconds"]}
            best |= {"versions": float(stats["most_versions"])}
    return best


# --- what is measured


def measure_machine() -> Section:
    usable = len(os.sched_getaffinity(0))
    fresh = 1 << 26

    def touch() -> dict[str, Any]:
        return {"amount": float(np.ones(fresh, np.uint8).nbytes)}

    return _limits.machine(sorted({1, usable}), seconds=0.1) | {"fresh": _rates.best_rate(touch)}


LOCAL_SIZES = {"logistic": (4, 32, 256, 2048), "softmax": (4, 32, 256, 1024), "mlp": (8, 32, 128)}


def measure_local() -> Section:
    """Seconds of work an update, by the engine's clock, rows in a cache."""
    points = []
    for family, sizes in LOCAL_SIZES.items():
        for size in sizes:
            for steps, batch in ((1, 1), (1, 16), (6, 4), (6, 48)):
                w = small(family, size, steps, batch)
                study = Study(w, max(20, int(1e8 / (w.flops + 2e4)) // w.buffer_size))
                work = clocks(study)["work"] / study.updates
                points.append({"family": family, "dim": w.dim, "steps": steps, "batch": batch, "seconds": work})
    return {"points": points}


PLACE_ROWS = (("logistic", 32, 10), ("softmax", 512, 4), ("logistic", 16_384, 4))


def measure_places() -> Section:
    """Seconds of work an update against the bytes of all rows, for rows of several lengths: what those cost that lie
    farther away than the first cache."""
    curves = []
    for family, size, rows in PLACE_ROWS:
        points = []
        for n_bytes in (2e4, 3e5, 4e6, 3e7, 3e8):
            n = max(8, int(n_bytes / (4 * size * rows)))
            w = small(family, size, 1, 4, n_clients=n, rows=rows, in_flight=4)
            study = Study(w, max(200, int(1e8 / (w.flops + 1e4)) // w.buffer_size))
            points.append([study.data_bytes, clocks(study)["work"] / study.updates])
        curves.append({"points": points, "row_bytes": 4 * size, "drawn": 4 * 4 * size})
    return {"curves": curves}


def measure_engine() -> Section:
    """Rows that do next to nothing, over buffers of several sizes: what the engine costs a row and a step; the same
    over the number of versions at hand; and a schedule and a replay of one step: what the shortest run costs."""
    points = []
    for size in (1, 4, 16, 64, 256):
        study = Study(small("logistic", 4, buffer_size=size, in_flight=12), 200_000 // size)
        found = clocks(study)
        rest = found["total"] - found["work"] - found["commit"]
        points.append({"K": size, "rest": rest / study.updates, "commit": found["commit"] / study.server_steps})
    versions = []
    for in_flight in (10, 100, 1000, 10_000):
        w = small("logistic", 4, buffer_size=10, in_flight=in_flight, n_clients=2 * in_flight, rows=1)
        study = Study(w, max(10_000, in_flight))
        found = clocks(study)
        rest = (found["total"] - found["work"] - found["commit"]) / study.updates
        versions.append([found["versions"], rest])
    one = Study(small("logistic", 4, buffer_size=1), 1)
    problem = one.problem()
    rate = _rates.best_rate(lambda: {"amount": float(one.replay(problem, one.schedule()).version)}, 0.5, 100)
    return {"points": points, "versions": versions, "run": 1 / rate}


def measure_commit() -> Section:
    """Seconds of adding and stepping, against the model's size."""
    points = []
    for dim in (256, 4096, 65_536, 1_000_000, 4_000_000):
        study = Study(small("logistic", dim, buffer_size=8), max(4, int(3e7 / dim)))
        points.append({"dim": dim, "K": 8, "seconds": clocks(study)["commit"] / study.server_steps})
    return {"points": points}


def measure_schedule() -> Section:
    """Seconds an arrival, by tasks in flight (two clients for each) and by clients (100 tasks in flight)."""

    def seconds(in_flight: int, clients: int, arrivals: int) -> float:
        return 1 / _rates.best_rate(_bench.schedule_turn(in_flight, clients, arrivals, 10), 0.3)

    return {
        "in flight": [[c, seconds(c, 2 * c, max(300_000, 2 * c))] for c in (10, 100, 1000, 10_000, 100_000, 1_000_000)],
        "clients": [[n, seconds(100, n, 1_000_000)] for n in (200, 10_000, 1_000_000, 10_000_000)],
    }


def measure_evaluate() -> Section:
    points = []
    for family, sizes in LOCAL_SIZES.items():
        for size in sizes:
            w = small(family, size, n_clients=20, rows=50)
            problem = Study(w, 1).problem()
            model = problem.init(0)
            repeats = max(1, int(3e7 / (w.gradient_flops + 1e5)))

            def turn(problem: Any = problem, model: Any = model, repeats: int = repeats) -> dict[str, Any]:
                for _ in range(repeats):
                    problem.loss(model, threads=1)
                return {"amount": float(repeats)}

            n_rows = w.n_clients * w.rows
            points.append({"family": family, "dim": w.dim, "rows": n_rows, "seconds": 1 / _rates.best_rate(turn, 0.1)})
    return {"points": points}


def _workload(name: str, **changes: Any) -> Workload:
    return replace(WORKLOADS[name], **changes)


CHECKS: dict[str, Study] = {
    "W1": Study(WORKLOADS["W1"], 200),
    "W2": Study(WORKLOADS["W2"], 10_000),
    "W3": Study(WORKLOADS["W3"], 20),
    "W1, loss every 10 steps": Study(WORKLOADS["W1"], 100, 10),
    "W2, 400,000 clients": Study(_workload("W2", n_clients=400_000), 10_000),
    "W2, 5,000 in flight": Study(_workload("W2", in_flight=5000), 10_000),
    "W2, K = 1": Study(_workload("W2", buffer_size=1), 50_000),
    "W1, 600 in flight, K = 3": Study(_workload("W1", in_flight=600, buffer_size=3), 500),
    "W3, 190 in flight, K = 2": Study(_workload("W3", in_flight=190, buffer_size=2), 80),
    "logistic, 700 inputs": Study(_workload("W2", features=700, n_clients=500, steps=5, batch=10), 300),
    "logistic, 200,000 inputs": Study(_workload("W2", features=200_000, n_clients=50, rows=4, in_flight=40), 15),
}
# First run when the terms of the model were chosen: it is not to be changed for them.
KEPT_BACK: dict[str, Study] = {
    "softmax, 300 inputs, K = 50": Study(
        _workload("W1", features=300, n_clients=4000, steps=4, batch=10, in_flight=1000, buffer_size=50), 100
    ),
    "MLP, 64 hidden, 150 inputs": Study(_workload("W3", features=150, hidden=64, batch=16, n_clients=2000), 150),
    "logistic, 20,000 inputs, loss every 20 steps": Study(
        _workload("W2", features=20_000, n_clients=200, rows=10, steps=2, in_flight=50, buffer_size=5), 100, 20
    ),
    "softmax, 40 inputs, 2,000 in flight": Study(
        _workload("W1", features=40, n_clients=20_000, rows=20, steps=2, batch=5, in_flight=2000), 3000
    ),
}
CHECKS |= KEPT_BACK


def measure_checks() -> Section:
    """Whole replays, schedule included: one on one core, as many side by side as there are cores, and one on all.

    What disturbs a turn makes it slower, never faster: measured again with the same core, the fastest of all counts.
    """
    before = stored("scaling-checks")
    earlier = before["data"] if before is not None and before["how"] == {"core": core_hash()} else {}
    usable = len(os.sched_getaffinity(0))
    found: Section = {}
    for name, study in CHECKS.items():
        problem = study.problem()

        def once(study: Study = study, problem: fb.Problem = problem, threads: int = 1) -> Any:
            return study.replay(problem, study.schedule(), threads)

        with ThreadPoolExecutor(usable) as pool:

            def beside(pool: ThreadPoolExecutor = pool, once: Callable[[], Any] = once) -> None:
                for done in [pool.submit(once) for _ in range(3 * usable)]:
                    done.result()

            found[name] = {
                "versions": once().stats["most_versions"],
                "one": _best(once),
                "beside": _best(beside) / (3 * usable),
                "threads": _best(lambda once=once: once(threads=usable)),
            }
        for kind in ("one", "beside", "threads"):
            found[name][kind] = min(found[name][kind], earlier.get(name, found[name])[kind])
    return found | {"cores": usable}


def _best(run: Callable[[], object], turns: int = 4) -> float:
    times = []
    for _ in range(turns):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


_CHILD = """
import json, sys, time
import numpy as np
import fedbuff as fb

def peak_kib():  # of this program: ru_maxrss would remember the one that started it
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

n, in_flight, arrivals, size = map(int, sys.argv[1:])
before = peak_kib()
begin = time.perf_counter()
delays = fb.DelayModel(n_clients=n, compute=fb.Exponential(1.0))
seen, stale, rows, steps = np.zeros(n, bool), 0, 0, 0
mark = seen.nbytes
for chunk in fb.iter_schedule(delays, fb.FedBuff(size), in_flight, arrivals=arrivals):
    seen[chunk.client] = True
    used = chunk.step >= 0
    stale, rows, steps = stale + int(chunk.staleness[used].sum()), rows + int(used.sum()), steps + chunk.n_steps
    last = chunk.arrive_time[-1]
seconds = time.perf_counter() - begin
peak = peak_kib()
print(json.dumps(dict(seconds=seconds, peak=1024 * peak, import_peak=1024 * before, mark=mark, staleness=stale / rows,
                      rows=rows, steps=steps, seen=int(seen.sum()), time=float(last))))
"""
CLIENT_RUNS = ((10_000, 10_000_000), (100_000, 10_000_000), (1_000_000, 10_000_000), (100_000, 100_000_000))
CLIENT_BUFFER = 1000


def measure_clients() -> Section:
    """10^8 clients, a schedule that is streamed and looked at; each in a process of its own, with its peak memory."""
    runs = []
    for in_flight, arrivals in CLIENT_RUNS:
        arguments = map(str, (CLIENTS, in_flight, arrivals, CLIENT_BUFFER))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, *arguments], check=True, capture_output=True, text=True, env=environment
        )
        runs.append({"in flight": in_flight, "arrivals": arrivals} | json.loads(done.stdout))
    return {"runs": runs}


SECTIONS: dict[str, Callable[[], Section]] = {
    "machine": measure_machine,
    "local": measure_local,
    "places": measure_places,
    "engine": measure_engine,
    "commit": measure_commit,
    "schedule": measure_schedule,
    "evaluate": measure_evaluate,
    "checks": measure_checks,
    "clients": measure_clients,
}


# --- the model


def fit(columns: Sequence[Sequence[float]], seconds: Sequence[float]) -> NDArray[np.float64]:
    """Costs, none below zero, that make the least sum of squared relative errors."""
    y = np.asarray(seconds)
    return nnls(np.column_stack(columns) / y[:, None], np.ones(len(y)))[0]


def along(points: Sequence[Sequence[float]], at: float) -> float:
    """Between measured points, on a line through the logarithms; beyond them, the last."""
    x, y = np.log(np.asarray(points, np.float64)).T
    return float(np.exp(np.interp(math.log(max(at, 1e-9)), x, y)))


@dataclass(frozen=True)
class Costs:
    """What each term costs on this machine, in seconds."""

    local: dict[str, NDArray[np.float64]]  # by family: update, step, step and weight, row, row and weight
    places: list[tuple[float, list[tuple[float, float]]]]  # by bytes of a row: bytes of all rows, a byte of a row
    engine: NDArray[np.float64]  # of a used arrival, of a server step
    at_hand: list[tuple[float, float]]  # versions, of a used arrival
    commit: NDArray[np.float64]  # of adding: a step, an arrival
    adding: list[tuple[float, float]]  # bytes of the vectors of a step, of one byte
    bandwidth: list[tuple[float, float]]  # bytes of a working set, of reading one byte, one core
    memory: dict[int, float]  # bytes a second from memory, by cores
    last_cache: float
    fresh: float  # of the first write to a byte
    in_flight: list[tuple[float, float]]
    clients: list[tuple[float, float]]
    evaluate: dict[str, NDArray[np.float64]]  # by family: a call, a row, a row and weight
    run: float

    @classmethod
    def fitted(cls, sections: dict[str, Section]) -> Costs:
        local, evaluate = {}, {}
        for family in FAMILIES:
            p = [one for one in sections["local"]["points"] if one["family"] == family]
            q, b, d = (np.array([one[name] for one in p], float) for name in ("steps", "batch", "dim"))
            local[family] = fit([np.ones(len(p)), q, q * d, q * b, q * b * d], [one["seconds"] for one in p])
            p = [one for one in sections["evaluate"]["points"] if one["family"] == family]
            rows, d = (np.array([one[name] for one in p], float) for name in ("rows", "dim"))
            evaluate[family] = fit([np.ones(len(p)), rows, rows * d], [one["seconds"] for one in p])
        places = []
        for curve in sections["places"]["curves"]:
            near = curve["points"][0][1]
            far = [(at, max((seconds - near) / curve["drawn"], 1e-14)) for at, seconds in curve["points"]]
            places.append((float(curve["row_bytes"]), far))
        points = sections["engine"]["points"]
        size = np.array([one["K"] for one in points], float)
        engine = fit([np.ones(len(points)), 1 / size], [one["rest"] for one in points])
        commit = fit([np.ones(len(points)), size], [one["commit"] for one in points])
        adding = []
        for one in sections["commit"]["points"]:
            moved = 4.0 * (one["K"] + 2) * one["dim"]
            adding.append((moved, max(one["seconds"] - commit[0] - commit[1] * one["K"], 1e-12) / moved))
        rows = sections["machine"]["bandwidth"]
        alone = [row for row in rows if row["threads"] == 1]
        return cls(
            local,
            places,
            engine,
            sections["engine"]["versions"],
            commit,
            adding,
            [(row["MiB"] * 2**20, 1e-9 / row["read"]) for row in alone],
            {row["threads"]: 1e9 * row["read"] for row in rows if row["place"] == "memory"},
            float(list(sections["machine"]["caches"].values())[-1]),
            1 / sections["machine"]["fresh"],
            sections["schedule"]["in flight"],
            sections["schedule"]["clients"],
            evaluate,
            sections["engine"]["run"],
        )

    def versions(self, study: Study) -> float:
        """The most models at hand at a time: a version is kept until the slowest of the K tasks that start on it, of
        those that arrive before the end, has arrived. In a long run 1 + C / K * (1 + 1/2 + ... + 1/K)."""
        w = study.workload
        mean = w.in_flight / w.buffer_size  # steps that a task takes
        age = np.arange(study.server_steps)
        most = 0.0
        for step in np.unique(np.linspace(1, study.server_steps, 40).astype(int)):
            before_end = 1 - math.exp(-(study.server_steps - step) / mean)
            at_work = before_end * np.exp(-age[:step] / mean)
            most = max(most, float(np.sum(1 - (1 - at_work) ** w.buffer_size)))
        return 1 + most

    def far_byte(self, row_bytes: float, all_bytes: float) -> float:
        """Seconds more for a byte of a row than if it lay in the first cache."""
        points = [(length, along(curve, all_bytes)) for length, curve in self.places]
        return along(points, row_bytes)

    def store_bytes(self, study: Study) -> float:
        return 4.0 * study.workload.dim * self.versions(study)

    def window_bytes(self, study: Study) -> float:
        """Deltas that wait: a step's and a few ahead, as a power of two."""
        return 4.0 * study.workload.dim * 2 ** math.ceil(math.log2(study.workload.buffer_size + 4))

    def terms(self, study: Study) -> dict[str, float]:
        """Seconds of one replay on one core, by what they go to."""
        w, u = study.workload, study.updates
        drawn = 4.0 * w.features * min(w.steps * w.batch, w.rows)
        a0, a1, a2, a3, a4 = self.local[study.family]
        local = a0 + w.steps * (a1 + a2 * w.dim + w.batch * (a3 + a4 * w.dim))
        model = 4.0 * w.dim
        held = (self.store_bytes(study), self.window_bytes(study))
        far = sum(max(0.0, along(self.bandwidth, place) - along(self.bandwidth, model)) for place in held) * model
        moved = 4.0 * (w.buffer_size + 2) * w.dim
        adding = self.commit[0] + self.commit[1] * w.buffer_size + moved * along(self.adding, moved)
        c0, c1, c2 = self.evaluate[study.family]
        rows = w.n_clients * w.rows
        far_byte = self.far_byte(4.0 * w.features, study.data_bytes)
        at_hand = max(0.0, along(self.at_hand, self.versions(study)) - self.at_hand[0][1])
        arrival = along(self.in_flight, w.in_flight)
        arrival += max(0.0, along(self.clients, w.n_clients) - along(self.clients, 2 * w.in_flight))
        return {
            "run": self.run,
            "schedule": u * arrival,
            "local SGD": u * local,
            "rows from afar": u * drawn * far_byte,
            "models from afar": u * far,
            "fresh memory": self.fresh * sum(held),
            "engine": u * (self.engine[0] + at_hand) + study.server_steps * self.engine[1],
            "adding": study.server_steps * adding,
            "evaluation": study.evaluations * (c0 + c1 * rows + c2 * rows * w.dim + far_byte * study.data_bytes),
        }

    def seconds(self, study: Study) -> float:
        return sum(self.terms(study).values())

    def traffic(self, study: Study, beside: int) -> float:
        """Bytes of one replay that come from memory while so many others share the last cache."""
        w, u = study.workload, study.updates
        rows = max(0.0, 1 - self.last_cache / study.data_bytes)
        drawn = 4.0 * w.features * min(w.steps * w.batch, w.rows)
        own = self.store_bytes(study) + self.window_bytes(study)
        models = max(0.0, 1 - self.last_cache / (beside * own))
        moved = 3.0 * u + 2.0 * study.server_steps  # model read, delta written and read; model read and written
        return rows * (u * drawn + study.evaluations * study.data_bytes) + models * 4.0 * w.dim * moved

    def rate(self, study: Study, cores: int, bandwidth: float) -> tuple[float, str]:
        """Replays a second of as many at a time as there are cores, one core each, and what bounds them."""
        bounds = {
            "cores": cores / self.seconds(study),
            "memory": bandwidth / max(self.traffic(study, cores), 1.0),
            "Python": 1 / self.run,
        }
        least = min(bounds, key=lambda name: bounds[name])
        return bounds[least], least

    def most_threads(self, study: Study) -> float:
        """How often faster one replay can become by threads: handing out and adding are one thread's at a time, and
        no more tasks than are in flight can be worked on at once."""
        t = self.terms(study)
        one_at_a_time = t["engine"] + t["adding"]
        shared = one_at_a_time + t["local SGD"] + t["rows from afar"] + t["models from afar"]
        return min(shared / one_at_a_time, float(study.workload.in_flight))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=[], help="measure these again, no other")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    chosen = parser.parse_args()
    how = {"core": core_hash()}
    for name, measure in SECTIONS.items():
        before = stored(f"scaling-{name}")
        kept = before is not None and before["how"] == how
        if chosen.write or (name not in chosen.only if chosen.only else kept):
            continue
        begin = time.perf_counter()
        print(f"{name} ...", end=" ", flush=True)
        section = {"how": how, "date": datetime.date.today().isoformat(), "data": measure()}
        store(f"scaling-{name}", section)
        print(f"{time.perf_counter() - begin:.0f} s", flush=True)
    found = {name: stored(f"scaling-{name}") for name in SECTIONS}
    missing = [name for name, section in found.items() if section is None]
    if missing:
        raise SystemExit(f"not measured yet: {', '.join(missing)}")
    from scaling_page import write_page

    write_page({name: section for name, section in found.items() if section is not None})
    print(f"{HERE.parent / 'docs' / 'scaling.md'} and its figures are written")


if __name__ == "__main__":
    main()
