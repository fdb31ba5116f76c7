"""How fast fedbuff is on this machine: the library half of `fedbuff bench`.

Each result stands beside a limit of the machine (`limits`) that was measured in the same minute.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from .. import backends
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
from ..backends.spec import Columns, new_columns
from .levels import compiled_for
from .limits import aligned_vectors, gemm_rate, read_turn
from .rates import Row, Turn, best_rate, best_rates, fixed_amount, in_threads, long_enough


def aggregate_rates(
    dims: Sequence[int], buffer_size: int = 10, dtype: DTypeLike = np.float32, threads: int = 1, seconds: float = 0.3
) -> list[Row]:
    """`fedbuff.aggregate` of K deltas, K + 2 vectors moved, beside a loop that only reads K + 1 vectors.

    The limit is the rate if all but the reading took no time. With several threads each has its part of the vectors.
    """
    rows = []
    for dim in dims:
        model, *deltas = aligned_vectors(buffer_size + 1, dim, dtype)
        moved = float((buffer_size + 2) * model.nbytes)

        def work(repeats: int, mine: Any, views: Any) -> None:
            for _ in range(repeats):
                aggregate(mine, views, lr=1e-9, out=mine)

        works = [
            functools.partial(work, mine=model[part], views=[delta[part] for delta in deltas])
            for part in split(dim, threads)
        ]
        turn = min(0.01, seconds)
        turns = [long_enough(works, moved, turn)]
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

    run = in_threads([work] * threads)
    return fixed_amount(lambda: run(1), float(updates * threads))


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


def columns_turn(
    source: DelayModel, strategy: FedBuff, options: dict[str, Any], look: Callable[[Columns, int], float]
) -> Callable[[], float]:
    """The event loop, writing into columns that are used again; what the last look at a filled part of them gave.

    `look` gets the columns and how many rows of them are new.
    """
    request = Request(source, strategy, ScheduleOptions(**options), seed=0)
    columns = new_columns(1 << 16, (1 << 16) + 2)

    def turn() -> float:
        resolver, answer = backends.current().make_resolver(request.plan), 0.0
        while True:
            rows, _, reason = resolver.run(columns)
            if rows:
                answer = float(look(columns, rows))
            if reason != FULL:
                return answer

    return turn


def schedule_turn(in_flight: int, n_clients: int, arrivals: int, buffer_size: int) -> Turn:
    """The event loop under a plain delay model: arrivals, and the mean staleness as its answer."""
    model, stale = DelayModel(n_clients=n_clients, compute=Exponential(1.0)), [0]

    def add(columns: Columns, rows: int) -> float:
        stale[0] += int(columns.staleness[:rows].sum())
        return stale[0]

    run = columns_turn(model, FedBuff(buffer_size), {"concurrency": in_flight, "arrivals": arrivals}, add)

    def turn() -> dict[str, Any]:
        stale[0] = 0
        return {"amount": float(arrivals), "staleness": run() / arrivals}

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
    limits = compiled_for("write").limits(np.float64)
    (out,) = aligned_vectors(1, n_bytes // 8, np.float64)
    return long_enough([lambda n: limits.write(out, False, n)], n_bytes / row_bytes, 0.01)


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

        rate = best_rate(fixed_amount(run, float(server_steps * buffer_size)), seconds)
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
