"""How fast this machine is, and how near to that the kernels come: the library half of `fedbuff bench`.

A turn is a function that does some work and says how much; a rate is the best of many turns, since what disturbs a
measurement can only make it slower. Each result stands beside a limit that was measured in the same minute.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import backends
from .._base.arrays import aligned_copy
from .._base.threads import split
from .._delays.distributions import Exponential
from .._delays.model import DelayModel
from .._problems.base import Problem
from .._problems.local import LocalSGD
from .._problems.mlp import MLP, Softmax
from .._replay.aggregate import aggregate
from .._replay.loop import replay
from .._rule.strategies import FedBuff
from .._schedule.options import ScheduleOptions
from .._schedule.plan import Request
from .._schedule.resolve import schedule
from ..backends.python.resolver import FULL
from ..backends.spec import CompiledBackend, new_columns
from .config import config
from .cpu import cpu_name

__all__ = [
    "aggregate_rates",
    "as_json",
    "at_level",
    "best_rate",
    "gemm_turn",
    "machine",
    "read_turn",
    "replay_rates",
    "schedule_rates",
    "schedule_turn",
    "setting",
    "sgd_rates",
    "sgd_turn",
]

Turn = Callable[[], dict[str, Any]]
Row = dict[str, Any]

_BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


def best_rate(turn: Turn, seconds: float = 0.3, at_least: int = 3) -> float:
    """Amount per second of the fastest turn, of as many as fit into `seconds`."""
    turn()
    best, turns, begin = 0.0, 0, time.perf_counter()
    while turns < at_least or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        amount = float(turn()["amount"])
        best = max(best, amount / (time.perf_counter() - start))
        turns += 1
    return best


def best_rates(turns: Sequence[Turn], seconds: float = 0.3) -> list[float]:
    """The same of several, in turn, so that whatever disturbs one disturbs the others."""
    best = [0.0] * len(turns)
    for _ in range(3):
        for i, turn in enumerate(turns):
            best[i] = max(best[i], best_rate(turn, seconds / 3, 1))
    return best


@contextmanager
def at_level(name: str | None) -> Iterator[None]:
    """Runs the kernels of this CPU level inside the block; None changes nothing."""
    if name is None:
        yield
        return
    compiled = _compiled("level")
    before, found = config()["level used"], config()["levels found"]
    if name not in found:
        raise ValueError(f"level {name!r}: expected one of {', '.join(found)} on this CPU")
    compiled.force_level(name)
    try:
        yield
    finally:
        compiled.force_level(before)


def _compiled(what: str) -> CompiledBackend:
    compiled = backends.compiled()
    if compiled is None:
        name = backends.current().name
        raise ValueError(f"{what}: only the cpp backend has it, and {name} runs (see fedbuff.show_config())")
    return compiled


def _in_threads(works: Sequence[Callable[[int], object]]) -> Callable[[int], object]:
    """One call of all of them, each on a thread of its own where there are several."""
    if len(works) == 1:
        return works[0]
    pool = ThreadPoolExecutor(len(works))

    def run(repeats: int) -> None:
        for done in [pool.submit(work, repeats) for work in works]:
            done.result()

    return run


# --- the machine


def caches() -> dict[str, int]:
    """Bytes of each data cache that a core reaches, by name; the usual sizes where the system does not say."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level, size = ((index / name).read_text().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            found[f"L{level}"] = int(size.rstrip("KM")) * (1 << 20 if size.endswith("M") else 1 << 10)
    return found or {"L1": 32 << 10, "L2": 512 << 10, "L3": 16 << 20}


def places() -> dict[str, int]:
    """Bytes of a working set that lies in each cache, and of one that lies in none."""
    sizes = caches()
    return {name: size // 2 for name, size in sizes.items()} | {"memory": max(256 << 20, 6 * max(sizes.values()))}


def _vectors(n: int, dim: int, dtype: DTypeLike) -> list[NDArray[Any]]:
    return [aligned_copy(np.ones(dim, dtype)) for _ in range(n)]


def read_turn(dim: int, streams: int, threads: int, dtype: DTypeLike, seconds: float = 0.01) -> Turn:
    """Reads `streams` vectors side by side, each thread its part of them, for about so long a turn: bytes."""
    limits = _compiled("read_turn").limits(dtype)
    vectors = _vectors(streams, dim, dtype)
    views = [[v[part] for v in vectors] for part in split(dim, threads)]
    works = [lambda n, v=v: limits.read(v, n) for v in views]
    return _long_enough(works, float(sum(v.nbytes for v in vectors)), seconds)


def _long_enough(works: Sequence[Callable[[int], object]], amount: float, seconds: float) -> Turn:
    """A turn of all works at once, each told to repeat itself so often that the turn lasts about `seconds`."""
    run, repeats = _in_threads(works), 1
    run(1)
    while True:
        begin = time.perf_counter()
        run(repeats)
        took = time.perf_counter() - begin
        if took > seconds / 2 or repeats > 1 << 30:
            break
        repeats = repeats * 10 if took < seconds / 10 else int(repeats * seconds / took) + 1
    return _amount(lambda: run(repeats), repeats * amount)


def _amount(run: Callable[[], object], amount: float) -> Turn:
    def turn() -> dict[str, Any]:
        run()
        return {"amount": amount}

    return turn


def _bandwidth(n_bytes: int, threads: int, dtype: np.dtype[Any], shared: bool, seconds: float) -> dict[str, float]:
    """GB/s of reading, writing and copying a working set: one for each thread, or one for all where they share."""
    limits = _compiled("bandwidth").limits(dtype)
    each = n_bytes // threads if shared else n_bytes
    sets = [_vectors(1, each // dtype.itemsize, dtype)[0] for _ in range(threads)]
    half = len(sets[0]) // 2

    def rate(work: Callable[[NDArray[Any], int], object]) -> float:
        works = [lambda n, v=v: work(v, n) for v in sets]
        return best_rate(_long_enough(works, float(threads * each), min(0.01, seconds)), seconds) / 1e9

    return {
        "read": rate(lambda v, n: limits.read([v], n)),
        "write": max(rate(lambda v, n: limits.write(v, False, n)), rate(lambda v, n: limits.write(v, True, n))),
        "copy": max(
            rate(lambda v, n: limits.copy(v[:half], v[half : 2 * half], False, n)),
            rate(lambda v, n: limits.copy(v[:half], v[half : 2 * half], True, n)),
        ),
    }


def clock_rate(seconds: float = 0.05) -> float:
    """Clock cycles per second of the core at work, by additions of which each waits for the one before it."""
    additions = _compiled("clock").limits(np.float32).additions
    return best_rate(_long_enough([additions], float(additions(1)[1]), min(0.002, seconds)), seconds)


def _fma_rate(threads: int, dtype: np.dtype[Any], seconds: float) -> float:
    limits = _compiled("multiply_add").limits(dtype)
    flops = float(limits.multiply_add(1)[1])
    turn = _long_enough([limits.multiply_add] * threads, threads * flops, min(0.01, seconds))
    return best_rate(turn, seconds) / 1e9


# Vectors in a clock cycle that no CPU exceeds at any level: two multiply-adds (where they are one instruction or two,
# there are as many units for each), three loads, two stores. A copy counts its bytes twice.
_PORTS = {"multiply_add": 2, "read": 3, "write": 2, "copy": 4}
_EXCESS = 1.05  # of the measured clock


class _Peaks:
    """What clock x width x ports allows at the level in force. A higher rate means that a loop does not do its work."""

    def __init__(self, seconds: float) -> None:
        self._seconds = min(0.05, seconds)
        self.clock = clock_rate(self._seconds)

    def peak(self, name: str, dtype: np.dtype[Any], threads: int) -> float:
        """GFLOP/s or GB/s."""
        lanes = _compiled(name).limits(dtype).lanes()
        each = 2 if name == "multiply_add" else dtype.itemsize
        return float(threads * self.clock * lanes * _PORTS[name] * each / 1e9)

    def require_possible(self, name: str, rate: float, dtype: np.dtype[Any], threads: int) -> None:
        for _ in range(10):  # the clock may have been measured while something else ran, or before it rose
            if rate <= _EXCESS * self.peak(name, dtype, threads):
                return
            self.clock = max(self.clock, clock_rate(self._seconds))
        unit = "GFLOP/s" if name == "multiply_add" else "GB/s"
        raise ValueError(
            f"{name}: expected at most clock x width x ports = {self.peak(name, dtype, threads):.4g} {unit} for "
            f"{dtype.name} on {threads} threads at {self.clock / 1e9:.3g} GHz, got {rate:.4g}: the loop of this level "
            "does not do all of its work"
        )


def gemm_turn(size: int, dtype: DTypeLike) -> Turn:
    """A product of square matrices by NumPy's BLAS, on as many threads as that was started with: operations."""
    a, b = np.random.default_rng(0).random((2, size, size)).astype(dtype)
    out = np.empty_like(a)
    times = max(1, 512**3 // size**3)

    def turn() -> dict[str, Any]:
        for _ in range(times):
            np.matmul(a, b, out=out)
        return {"amount": times * 2.0 * size**3}

    return turn


def gemm_turns(size: int, dtype: DTypeLike, threads: int) -> Turn:
    """As many such products as threads, side by side: operations of all. The BLAS itself must have one thread."""
    turns = [gemm_turn(size, dtype) for _ in range(threads)]

    def work(repeats: int, turn: Turn) -> None:
        for _ in range(repeats):
            turn()

    run = _in_threads([functools.partial(work, turn=turn) for turn in turns])
    return _amount(lambda: run(1), threads * float(turns[0]()["amount"]))


def gemm_rate(threads: int, dtype: DTypeLike, seconds: float = 0.3, size: int = 512) -> float:
    """GFLOP/s of NumPy's BLAS, a product on each thread, so that none waits for another.

    In a process of its own, since a BLAS takes its number of threads, one here, when it is loaded.
    """
    turn = f"b.gemm_turns({size}, {np.dtype(dtype).name!r}, {threads})"
    code = f"from fedbuff._machine import bench as b; print(b.best_rate({turn}, {seconds}))"
    environment = {**os.environ, **dict.fromkeys(_BLAS_THREADS, "1"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout) / 1e9


def setting() -> dict[str, Any]:
    """What heads every result: CPU, versions, backend, level, compiler and flags."""
    built = config()
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "numpy": np.__version__,
        **{key: built[key] for key in ("version", "python", "backend", "level used", "compiler", "flags")},
    }


def machine(threads: Sequence[int], dtypes: Sequence[str] = ("float32",), *, seconds: float = 0.2) -> dict[str, Any]:
    """What runs, and what the machine can do: GB/s at each place, GFLOP/s of NumPy's BLAS and of multiply-adds.

    Bytes copied count twice, read and written. The last cache and the memory are shared by the threads, the other
    caches belong to each. "clock" is in GHz, "peak" two multiply-adds of whole vectors in every cycle of it. A rate
    above what the clock allows is an error.
    """
    names, sizes, single = list(caches()), places(), np.dtype(np.float32)
    peaks = _Peaks(seconds)
    bandwidth: list[Row] = []
    for n in threads:
        for place, n_bytes in sizes.items():
            rates = _bandwidth(n_bytes, n, single, place == "memory" or place == names[-1], seconds)
            for name, rate in rates.items():
                peaks.require_possible(name, rate, single, n)
            bandwidth.append({"place": place, "MiB": n_bytes / 2**20, "threads": n} | rates)
    arithmetic: list[Row] = []
    for n in threads:
        for dtype in map(np.dtype, dtypes):
            rate = _fma_rate(n, dtype, seconds)
            peaks.require_possible("multiply_add", rate, dtype, n)
            row = {"dtype": dtype.name, "threads": n, "gemm": gemm_rate(n, dtype, 2 * seconds), "multiply_add": rate}
            arithmetic.append(row | {"peak": peaks.peak("multiply_add", dtype, n)})
    return {
        "setting": setting(),
        "clock": peaks.clock / 1e9,
        "caches": caches(),
        "bandwidth": bandwidth,
        "arithmetic": arithmetic,
    }


# --- what fedbuff does on it


def aggregate_rates(
    dims: Sequence[int], buffer_size: int = 10, dtype: DTypeLike = np.float32, threads: int = 1, seconds: float = 0.3
) -> list[Row]:
    """`fedbuff.aggregate` of K deltas, K + 2 vectors moved, beside reading the same K + 1 vectors and nothing more.

    The limit is what the rate would be if the rest took no time. With several threads each has its part of the vectors.
    """
    rows = []
    for dim in dims:
        model, *deltas = _vectors(buffer_size + 1, dim, dtype)
        moved = float((buffer_size + 2) * model.nbytes)

        def work(repeats: int, mine: Any, views: Any) -> None:
            for _ in range(repeats):
                aggregate(mine, views, lr=1e-9, out=mine)

        works = [
            functools.partial(work, mine=model[part], views=[delta[part] for delta in deltas])
            for part in split(dim, threads)
        ]
        turn = min(0.01, seconds)
        turns = [_long_enough(works, moved, turn)]
        if backends.compiled() is not None:
            turns.append(read_turn(dim, buffer_size + 1, threads, dtype, turn))
        rate, *limit = best_rates(turns, seconds)
        if_free = [read * (buffer_size + 2) / (buffer_size + 1) for read in limit]
        rows.append(
            {"dim": dim, "K": buffer_size, "updates/s": rate / moved * buffer_size, "GB/s": rate / 1e9}
            | _share(rate, if_free, 1e9, "GB/s")
        )
    return rows


def _share(rate: float, limit: Sequence[float], unit: float, name: str) -> Row:
    """The limit and the share of it, where there is one: other backends than cpp have no loops to measure it with."""
    return {f"limit {name}": limit[0] / unit, "% of limit": 100 * rate / limit[0]} if limit else {}


def _example(
    features: int, classes: int, hidden: int, batch: int, clients: int, dtype: DTypeLike
) -> tuple[Problem, float]:
    """A problem of normal rows, twice the batch for each client, and the operations of one drawn row."""
    generator = np.random.default_rng(0)
    rows = 2 * batch
    X = generator.standard_normal((clients * rows, features)).astype(dtype)
    y = np.arange(len(X)) % classes
    offsets = np.arange(clients + 1) * rows
    problem = MLP(X, y, offsets, hidden=(hidden,)) if hidden else Softmax(X, y, offsets)
    layers = [(features, hidden), (hidden, classes)] if hidden else [(features, classes)]
    return problem, float(sum(4 * a * b for a, b in layers) + sum(2 * a * b for a, b in layers[1:]))


def sgd_turn(problem: Problem, local: LocalSGD, updates: int, w: Any, threads: int = 1) -> Turn:
    """`problem.delta` of clients in random order, from Python, on each of the threads: updates."""
    clients = np.random.default_rng(1).integers(0, problem.n_clients, updates).tolist()

    def work(repeats: int) -> None:
        out = np.empty_like(w)
        for _ in range(repeats):
            for task, client in enumerate(clients):
                problem.delta(w, client, local, task=task, out=out)

    run = _in_threads([work] * threads)
    return _amount(lambda: run(1), float(updates * threads))


def sgd_rates(
    features: Sequence[int],
    *,
    classes: int = 10,
    hidden: int = 0,
    batch: int = 32,
    steps: int = 10,
    dtype: DTypeLike = np.float32,
    threads: int = 1,
    seconds: float = 0.3,
) -> list[Row]:
    """One client's update after the other through `problem.delta`, beside NumPy's BLAS on square matrices."""
    limit = gemm_rate(threads, dtype, seconds)
    rows = []
    for n in features:
        problem, per_row = _example(n, classes, hidden, batch, 50, dtype)
        flops = steps * batch * per_row
        updates = max(1, int(2e8 / max(flops, 4e5)))
        turn = sgd_turn(problem, LocalSGD(steps, 1e-3, batch), updates, problem.init(), threads)
        rate = best_rate(turn, seconds)
        rows.append(
            {"features": n, "dim": problem.dim, "updates/s": rate, "GFLOP/s": rate * flops / 1e9}
            | _share(rate * flops, [1e9 * limit], 1e9, "GFLOP/s")
        )
    return rows


def schedule_turn(in_flight: int, n_clients: int, arrivals: int, buffer_size: int) -> Turn:
    """The event loop, writing into columns that are used again: arrivals, and the mean staleness as its answer."""
    model = DelayModel(n_clients=n_clients, compute=Exponential(1.0))
    request = Request(model, FedBuff(buffer_size), ScheduleOptions(concurrency=in_flight, arrivals=arrivals), seed=0)
    columns = new_columns(1 << 16, (1 << 16) + 2)

    def turn() -> dict[str, Any]:
        resolver = backends.current().make_resolver(request.plan)
        stale = 0
        while True:
            rows, _, reason = resolver.run(columns)
            stale += int(columns.staleness[:rows].sum())
            if reason != FULL:
                return {"amount": float(arrivals), "staleness": stale / arrivals}

    return turn


def schedule_rates(
    in_flight: Sequence[int], *, arrivals: int = 1_000_000, buffer_size: int = 10, seconds: float = 0.3
) -> list[Row]:
    """The event loop with ten clients for each task in flight, beside writing as many rows and nothing else."""
    rows = []
    row_bytes = sum(column.itemsize for column in new_columns(2, 1) if len(column) == 2)
    for n in in_flight:
        turns = [schedule_turn(n, 10 * n, arrivals, buffer_size)]
        if backends.compiled() is not None:
            turns.append(_write_turn(row_bytes * (1 << 16), row_bytes))
        rate, *limit = best_rates(turns, seconds)
        rows.append(
            {"in flight": n, "clients": 10 * n, "arrivals": arrivals, "arrivals/s": rate}
            | _share(rate, limit, 1, "rows/s")
        )
    return rows


def _write_turn(n_bytes: int, row_bytes: int) -> Turn:
    limits = _compiled("write").limits(np.float64)
    (out,) = _vectors(1, n_bytes // 8, np.float64)
    return _long_enough([lambda n: limits.write(out, False, n)], n_bytes / row_bytes, 0.01)


def replay_rates(
    features: Sequence[int],
    *,
    classes: int = 10,
    hidden: int = 0,
    batch: int = 32,
    steps: int = 10,
    buffer_size: int = 10,
    in_flight: int = 100,
    dtype: DTypeLike = np.float32,
    threads: int = 1,
    seconds: float = 0.3,
) -> list[Row]:
    """`fedbuff.schedule` and `fedbuff.replay` together, beside NumPy's BLAS on square matrices."""
    limit = gemm_rate(threads, dtype, seconds)
    rows = []
    for n in features:
        problem, per_row = _example(n, classes, hidden, batch, 2 * in_flight, dtype)
        flops = steps * batch * per_row
        server_steps = max(10, int(2e8 / max(flops, 4e5)) // buffer_size)
        delays = DelayModel(n_clients=problem.n_clients, compute=Exponential(1.0))
        local, strategy = LocalSGD(steps, 1e-3, batch), FedBuff(buffer_size)

        def run(
            problem: Problem = problem,
            delays: DelayModel = delays,
            server_steps: int = server_steps,
            local: LocalSGD = local,
            strategy: FedBuff = strategy,
        ) -> None:
            made = schedule(delays, strategy, in_flight, server_steps=server_steps)
            replay(problem, made, local, threads=threads)

        rate = best_rate(_amount(run, float(server_steps * buffer_size)), seconds)
        rows.append(
            {"features": n, "dim": problem.dim, "updates/s": rate, "GFLOP/s": rate * flops / 1e9}
            | _share(rate * flops, [1e9 * limit], 1e9, "GFLOP/s")
        )
    return rows


def as_json(measured: dict[str, Any]) -> str:
    """One JSON document, numbers rounded to what a measurement can tell."""
    return json.dumps(_rounded(measured), indent=2)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return value
