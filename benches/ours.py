"""What fedbuff does, as contenders: functions that get ready and return a callable that does one turn of the work."""

from __future__ import annotations

import collections
import functools
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import option_runs
from rivals import networks, with_cpp, with_pyarrow
from rivals.data import FOLDER, Workload, answer_path, initial_model, rows_of, sparse_rows_of, workload
from rivals.with_numpy import checked, moved, vectors

import fedbuff as fb
from fedbuff._machine import bench as _bench
from fedbuff._machine import embedding as _embedding
from fedbuff._machine import limits as _limits
from fedbuff._schedule.check import check_columns

Turn = Callable[[], dict[str, Any]]


def problem_of(w: Workload, dtype: str = "float32") -> fb.Problem:
    if w.sparse:
        s = sparse_rows_of(w)
        rows = SimpleNamespace(
            data=s.values.astype(dtype), indices=s.columns, indptr=s.starts, shape=(len(s.y), w.features)
        )
        return fb.Logistic(rows, s.y, s.offsets)
    X, y = rows_of(w)
    flat, labels, offsets = X.reshape(-1, w.features).astype(dtype), y.ravel(), np.arange(w.n_clients + 1) * w.rows
    if w.outputs == 1:
        return fb.Logistic(flat, labels, offsets)
    return fb.MLP(flat, labels, offsets, hidden=(w.hidden,)) if w.hidden else fb.Softmax(flat, labels, offsets)


def layered(w: Workload, dtype: str) -> fb.Network:
    X, y = rows_of(w)
    layers = [fb.layers.Dense(w.hidden), fb.layers.ReLU(), fb.layers.Dense(w.outputs)]
    offsets = np.arange(w.n_clients + 1) * w.rows
    return fb.Network(X.reshape(-1, w.features).astype(dtype), y.ravel(), offsets, layers=layers)


def local_of(w: Workload) -> fb.LocalSGD:
    return fb.LocalSGD(w.steps, w.lr, w.batch)


def answer(name: str) -> Turn:
    """Writes a client's update for given batches, which every rival must reproduce before it is timed."""
    w = workload(name)
    problem = problem_of(w)
    generator = np.random.default_rng(2)
    model = initial_model(w) + generator.standard_normal(w.dim).astype(np.float32) * np.float32(0.01)
    client = w.n_clients // 2
    batches = generator.integers(0, w.rows, (w.steps, w.batch))
    delta = problem.delta(model, client, local_of(w), batches=batches)
    FOLDER.mkdir(exist_ok=True)
    np.savez(answer_path(name), w=model, client=client, batches=batches, delta=delta)
    return lambda: {"amount": 1}


def sgd(name: str, updates: str, dtype: str = "float32", layers: str = "") -> Turn:
    """With a fourth word, an MLP is a Network of the same layers."""
    w = workload(name)
    problem, local, n = layered(w, dtype) if layers else problem_of(w, dtype), local_of(w), int(updates)
    return _bench.sgd_turn(problem, local, n, initial_model(w).astype(dtype))


def layers_of(layers: tuple[networks.Layer, ...]) -> list[Any]:
    make = {
        "conv": lambda out, kernel, padding, stride: fb.layers.Conv2d(out, kernel, padding=padding, stride=stride),
        "pool": fb.layers.MaxPool2d,
        "norm": fb.layers.GroupNorm,
        "dense": fb.layers.Dense,
        "embedding": fb.layers.Embedding,
        "lstm": fb.layers.LSTM,
        "last": fb.layers.LastStep,
        "relu": fb.layers.ReLU,
        "flatten": fb.layers.Flatten,
        "mean": fb.layers.GlobalAvgPool2d,
        "residual": lambda body, around: fb.layers.Residual(layers_of(body), layers_of(around)),
    }
    return [make[kind](*given) for kind, *given in layers]


def network_of(name: str, copies: int = 1) -> fb.Network:
    """`copies`: how often each client is there."""
    X, y = (np.concatenate(copies * [part]) for part in networks.rows_of(name))
    offsets = np.arange(len(X) + 1) * networks.ROWS
    layers = layers_of(networks.ARCHITECTURES[name].layers)
    return fb.Network(X.reshape(-1, *X.shape[2:]), y.ravel(), offsets, layers=layers)


def network_answer(name: str, batch: str) -> Turn:
    """Writes the clients' updates, of which every rival must reproduce one before it is timed."""
    local, rows = fb.LocalSGD(networks.STEPS, networks.LR, int(batch)), networks.batches_of(int(batch))
    problem, w = network_of(name), networks.initial_model(name)
    deltas = [problem.delta(w, client, local, batches=rows[client]) for client in range(networks.N_CLIENTS)]
    networks.write_answer(name, int(batch), np.stack(deltas))
    return lambda: {"amount": 1}


def network(name: str, batch: str) -> Turn:
    """One client's ten local steps on a network, client after client."""
    problem, w, rows = network_of(name), networks.initial_model(name), networks.batches_of(int(batch))
    local, out, turn = fb.LocalSGD(networks.STEPS, networks.LR, int(batch)), np.empty_like(w), [0]

    def run() -> dict[str, Any]:
        turn[0] = (turn[0] + 1) % networks.N_CLIENTS
        problem.delta(w, turn[0], local, batches=rows[turn[0]], out=out)
        return {"amount": 1}

    return run


def network_loss(name: str) -> Turn:
    """The loss over all rows."""
    problem, w = network_of(name), networks.initial_model(name)
    return lambda: {"amount": 1, "loss": problem.loss(w, threads=1)}


def network_replay(name: str, threads: str) -> Turn:
    """Sixteen updates of a replay whose schedule exists, of 32 clients at work, in batches of 32."""
    problem, local = network_of(name, copies=8), fb.LocalSGD(networks.STEPS, networks.LR, 32)
    delays = fb.DelayModel(n_clients=problem.n_clients, compute=fb.Exponential(1.0))
    schedule, w = fb.schedule(delays, fb.FedBuff(buffer_size=8), server_steps=2), networks.initial_model(name)

    def run() -> dict[str, Any]:
        fb.replay(problem, schedule, local, w0=w, threads=int(threads), metrics=())
        return {"amount": 16}

    return run


def _stages(
    w: Workload,
    updates: str,
    threads: str = "1",
    dtype: str = "float32",
    resolve: Callable[..., Any] = fb.schedule,
    strategy: Any = None,
) -> tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]:
    """Makes the schedule, by `resolve`; and replays one."""
    problem, start = problem_of(w, dtype), initial_model(w).astype(dtype)
    strategy = strategy or fb.FedBuff.preset("nguyen", buffer_size=w.buffer_size)
    delays = fb.DelayModel(n_clients=w.n_clients, compute=fb.Exponential(1.0))
    in_flight = None if w.in_flight >= w.n_clients else w.in_flight
    how: dict[str, Any] = {"concurrency": in_flight, "server_steps": int(updates) // w.buffer_size}

    def run(schedule: Any) -> dict[str, Any]:
        result = fb.replay(problem, schedule, local_of(w), strategy=strategy, w0=start, threads=int(threads))
        return {"amount": int(updates), "model": result.w}

    return functools.partial(resolve, delays, strategy, **how), run


def replay(name: str, updates: str, threads: str = "1", dtype: str = "float32") -> Turn:
    """Schedule and replay together."""
    resolve, run = _stages(workload(name), updates, threads, dtype)
    return lambda: run(resolve())


def replay_alone(name: str, updates: str, threads: str = "1", dtype: str = "float32") -> Turn:
    """The replay of a schedule that exists."""
    resolve, run = _stages(workload(name), updates, threads, dtype)
    made = resolve()
    return lambda: run(made)


def replay_table(name: str, updates: str) -> Turn:
    """The replay of a schedule that exists, with a row per client at the server (CA2FL); models are not compared."""
    w = workload(name)
    strategy = fb.algorithm("ca2fl", buffer_size=w.buffer_size, n_clients=w.n_clients)
    resolve, run = _stages(w, updates, strategy=strategy)
    made = resolve()
    return lambda: {"amount": run(made)["amount"]}


def whole_run(name: str, updates: str, threads: str = "1") -> Turn:
    """`fedbuff.run`: schedule and replay in one call, which may work on both at once."""
    w = workload(name)
    problem, start, delays = problem_of(w), initial_model(w), fb.DelayModel(w.n_clients, fb.Exponential(1.0))
    how: dict[str, Any] = {"concurrency": None if w.in_flight >= w.n_clients else w.in_flight}
    how |= {"server_steps": int(updates) // w.buffer_size, "w0": start, "threads": int(threads)}
    strategy = fb.FedBuff.preset("nguyen", buffer_size=w.buffer_size)

    def turn() -> dict[str, Any]:
        return {"amount": int(updates), "model": fb.run(problem, delays, strategy, local_of(w), **how).w}

    return turn


def check(name: str, updates: str) -> Turn:
    """The check of a schedule that comes from elsewhere, before a replay of it."""
    resolve, _ = _stages(workload(name), updates)
    made = resolve()

    def run() -> dict[str, Any]:
        check_columns(made)
        return {"amount": int(updates)}

    return run


def replay_stream(name: str, updates: str) -> Turn:
    """Schedule and replay together, chunk after chunk, so that any number of arrivals needs the same memory."""
    resolve, run = _stages(workload(name), updates, resolve=fb.iter_schedule)
    return lambda: {"amount": run(resolve())["amount"]}  # longer runs learn more, so that models are not compared


def aggregate(dim: str, threads: str = "1", dtype: str = "float32") -> Turn:
    deltas, weights, model = vectors(int(dim), np.dtype(dtype))
    times = max(1, min(1000, 20_000_000 // len(model)))  # small ones many times, but within rounding of the formula

    def run() -> dict[str, Any]:
        for _ in range(times):
            fb.aggregate(model, deltas, weights, lr=0.1, out=model, threads=int(threads))
        return {"amount": moved(deltas) * times}

    return checked(run, lambda: model, deltas, weights, times)


def schedule(in_flight: str, arrivals: str) -> Turn:
    """The resolver with columns that are used again; ten clients for a task in flight."""
    return _bench.schedule_turn(int(in_flight), 10 * int(in_flight), int(arrivals), 10)


def share_at_work(in_flight: str, arrivals: str, clients: str) -> Turn:
    """The same with any number of clients; others of them have another staleness, which is not compared."""
    run = _bench.schedule_turn(int(in_flight), int(clients), int(arrivals), 10)
    return lambda: {"amount": run()["amount"]}


def _with_queue() -> list[str]:
    """What a C++ program needs to use our event queue."""
    library = _embedding.library()
    return ["-DWITH_FEDBUFF", _embedding.cflags(), library, f"-Wl,-rpath,{Path(library).parent}"]


def mm1(customers: str, which: str) -> Turn:
    """An M/M/1 queue. queue: our event queue in the loop of the rivals in C++; python: that queue from Python.

    schedule: a closed line of 100 customers, one client for whom they wait and then the server. The client, which is
    idle once in 10^12 times, gives customers at the same rate."""
    n = int(customers)
    if which == "queue":
        return with_cpp.mm1(customers, "fedbuff", _with_queue())
    if which == "schedule":
        source = fb.DelayModel(n_clients=1, compute=fb.Exponential(1 / 0.75))
        how = {"concurrency": 100, "arrivals": n, "queues": True, "server_time": fb.Exponential(1.0)}
        run = _bench.columns_turn(source, fb.FedBuff(10), how, lambda columns, rows: columns.arrive_time[rows - 1])
        return lambda: {"amount": 2 * n, "customer": run() / n}

    def in_python() -> dict[str, Any]:
        draw, queue, waits = random.Random(1).expovariate, fb.EventQueue(), collections.deque[float]()
        queue.push(draw(0.75), 0)
        total, left = 0.0, 0
        while left < n:
            now, departs, _ = queue.pop()
            if departs:
                total += now - waits.popleft()
                left += 1
                if waits:
                    queue.push(now + draw(1.0), 1)
            else:
                waits.append(now)
                if len(waits) == 1:
                    queue.push(now + draw(1.0), 1)
                queue.push(now + draw(0.75), 0)
        return {"amount": 2 * n, "stay": total / n}

    return in_python


def phold(in_flight: str, events: str, which: str) -> Turn:
    """PHOLD: the queue, in C++ or in Python, or a schedule, where the processes are idle clients."""
    n_tasks, n = int(in_flight), int(events)
    if which == "queue":
        return with_cpp.phold(in_flight, events, "fedbuff", _with_queue())
    if which == "schedule":
        source = fb.DelayModel(n_clients=10 * n_tasks, compute=fb.Exponential(1.0))
        how = {"concurrency": n_tasks, "arrivals": n}
        run = _bench.columns_turn(source, fb.FedBuff(10), how, lambda columns, rows: columns.arrive_time[rows - 1])
        return lambda: {"amount": n, "pace": run() * n_tasks / n}

    def in_python() -> dict[str, Any]:
        generator, queue, seen = random.Random(1), fb.EventQueue(), [0] * (10 * n_tasks)
        draw, below = generator.expovariate, generator.randrange
        for _ in range(n_tasks):
            queue.push(draw(1.0), below(len(seen)))
        for _ in range(n):
            now, place, _ = queue.pop()
            seen[place] += 1
            queue.push(now + draw(1.0), below(len(seen)))
        return {"amount": n, "pace": now * n_tasks / n}

    return in_python


def option(name: str, in_flight: str, arrivals: str) -> Turn:
    """A schedule with an option, or `plain`: ended tasks."""
    make = option_runs.PLAIN if name == "plain" else option_runs.GOALS[name][0]
    return lambda: {"amount": make(int(in_flight), int(arrivals)).n_arrivals}


def callback(tasks: str, batch: str) -> Turn:
    """Tasks of a Python function that does nothing, in groups of `batch`, or one by one: a whole replay."""
    n, size = int(tasks), int(batch)
    deltas = np.zeros((size, 8))

    def one(client: int, task: int, w: Any) -> Any:
        return deltas[0]

    def group(clients: Any, numbers: Any, W: Any) -> Any:
        return deltas[: len(clients)]

    how: dict[str, Any] = {"w0": np.zeros(8), "n_clients": 1000}
    problem = fb.Callback(one, **how) if size == 1 else fb.Callback(group, batch=size, **how)
    delays = fb.DelayModel(n_clients=1000, compute=fb.Exponential(1.0))
    schedule = fb.schedule(delays, fb.FedBuff(size if size > 1 else 64), 128, arrivals=n)

    def run() -> dict[str, Any]:
        fb.replay(problem, schedule, threads=1, metrics=())
        return {"amount": n}

    return run


def tiny_call() -> Turn:
    """Schedule and replay of ten server steps of a tiny problem: whole calls."""
    problem, strategy, local = fb.Quadratic(np.ones((4, 3))), fb.FedBuff(2), fb.LocalSGD(1, 0.1)
    delays = fb.DelayModel(n_clients=4, compute=fb.Exponential(1.0))

    def run() -> dict[str, Any]:
        for _ in range(100):
            made = fb.schedule(delays, strategy, server_steps=10)
            fb.replay(problem, made, local, strategy=strategy, threads=1)
        return {"amount": 100}

    return run


def empty_call() -> Turn:
    """Calls of a Python function of three arguments that does nothing: what absolute times are scaled by."""

    def nothing(a: int, b: int, c: int) -> None:
        pass

    def run() -> dict[str, Any]:
        for _ in range(100_000):
            nothing(1, 2, 3)
        return {"amount": 100_000}

    return run


def read_trace(kind: str, rows: str) -> Turn:
    """A trace of a CSV file, or of a Parquet file whose clients are 10^5 texts: rows."""
    path = with_pyarrow.trace_file(kind, int(rows))

    def run() -> dict[str, Any]:
        trace = fb.read_trace(path)
        return {"amount": trace.n_rows, "norm": float(trace.compute.sum())}

    return run


def replay_clients(clients: str, updates: str) -> Turn:
    """A logistic regression over any number of clients, four rows each: more clients must not cost more an update."""
    resolve, run = _stages(Workload("clients", int(clients), 4, 20, 1, 0, 10, 4, intercept=False), updates)
    made = resolve()
    return lambda: {"amount": run(made)["amount"]}


def evaluate(name: str, threads: str = "1", what: str = "both", dtype: str = "float32") -> Turn:
    """Loss and gradient over all clients: operations of the gradient, as one call gives both."""
    w = workload(name)
    problem, model = problem_of(w, dtype), initial_model(w).astype(dtype)
    out = np.empty_like(model)
    flops = 4.0 * len(sparse_rows_of(w).values) if w.sparse else w.gradient_flops

    def run() -> dict[str, Any]:
        if what == "loss":
            return {"amount": flops / 2, "loss": problem.loss(model, threads=int(threads))}
        loss = problem.bound.gradient(model, out, int(threads))
        return {"amount": flops, "loss": loss, "norm": float(np.linalg.norm(out))}

    return run


def sgemm(size: str = "512", dtype: str = "float32") -> Turn:
    """A product of square matrices by NumPy's BLAS."""
    return _limits.gemm_turn(int(size), np.dtype(dtype))


def multiply_add(threads: str = "1", dtype: str = "float32") -> Turn:
    """Multiply-adds in registers: the most operations that there are."""
    return _limits.multiply_add_turn(int(threads), np.dtype(dtype), 0.1)


def read(dim: str, streams: str = "11", threads: str = "1", dtype: str = "float32") -> Turn:
    """Reading so many vectors side by side, and nothing else."""
    return _limits.read_turn(int(dim), int(streams), int(threads), np.dtype(dtype), 0.1)
