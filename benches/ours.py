"""What fedbuff does, as contenders: functions that get ready and return a callable that does one turn of the work."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from rivals import networks
from rivals.data import FOLDER, Workload, answer_path, initial_model, rows_of, sparse_rows_of, workload
from rivals.with_numpy import checked, moved, vectors

import fedbuff as fb
from fedbuff._machine import bench as _bench
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


def schedule(in_flight: str, arrivals: str, clients: str = "0") -> Turn:
    """The resolver with columns that are used again; ten clients for a task in flight unless said."""
    return _bench.schedule_turn(int(in_flight), int(clients) or 10 * int(in_flight), int(arrivals), 10)


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


def read(dim: str, streams: str = "11", threads: str = "1", dtype: str = "float32") -> Turn:
    """Reading so many vectors side by side, and nothing else."""
    return _limits.read_turn(int(dim), int(streams), int(threads), np.dtype(dtype), 0.1)
