"""Record a real asynchronous run, then replay it: the model is the same, bit for bit.

Four worker processes, slowed down differently, train a logistic model against a server in the parent. `fb.Recorder`
logs who started and arrived when. Afterwards the log alone, with the same batches, gives the same model again.
Usage: python record_processes.py [log.csv] [arrivals]
"""

from __future__ import annotations

import multiprocessing as mp
import sys
import time
from multiprocessing.connection import Connection, wait

import numpy as np

import fedbuff as fb

N_CLIENTS = 4
STRATEGY = fb.FedBuff(buffer_size=3)
LOCAL = fb.LocalSGD(steps=10, lr=0.1, batch_size=16)
SEED = 1
PASSES = (1, 2, 4, 8)  # how many times a worker computes its task: its load
PAUSE = (0.002, 0.001, 0.004, 0.006)  # mean seconds that it also sleeps, as on a network


def make_problem() -> fb.Logistic:
    """The same rows in every process."""
    generator = np.random.default_rng(0)
    X = generator.standard_normal((800, 30)).astype(np.float32)
    y = X @ generator.standard_normal(30) + generator.standard_normal(800) > 0
    return fb.Logistic(X, y, fb.partition.dirichlet(y, N_CLIENTS, alpha=1.0, seed=0), l2=1e-3)


def work(client: int, pipe: Connection) -> None:
    """A worker: models come in, deltas go out, until None comes in."""
    problem = make_problem()
    problem.delta(problem.init(), client, LOCAL)  # the first call loads what is compiled
    generator = np.random.default_rng(client)
    pipe.send("ready")
    task = 0
    while (w := pipe.recv()) is not None:
        for _ in range(20 * PASSES[client]):
            delta = problem.delta(w, client, LOCAL, task=task, seed=SEED)
        time.sleep(generator.exponential(PAUSE[client]))
        pipe.send(delta)
        task += 1


def record(problem: fb.Logistic, arrivals: int) -> tuple[np.ndarray, fb.ArrivalLog]:
    """Trains with processes; returns the model and the log."""
    server = fb.Server(problem.init(), STRATEGY)
    version_of: dict[int, int] = {}
    context = mp.get_context("spawn")
    pipes, workers = {}, []

    def start(client: int) -> None:
        version_of[client], w = server.download()
        recorder.started(client, version_of[client])
        pipes[client].send(w)

    try:
        for client in range(N_CLIENTS):
            pipes[client], theirs = context.Pipe()
            workers.append(context.Process(target=work, args=(client, theirs), daemon=True))
            workers[-1].start()
            theirs.close()  # so that a worker's death ends its pipe, and recv raises EOFError
        for pipe in pipes.values():
            pipe.recv()
        recorder = fb.Recorder(N_CLIENTS)  # its clock begins at 0 here
        for client in pipes:
            start(client)
        client_of = {pipe: client for client, pipe in pipes.items()}
        while len(recorder) < arrivals:
            for pipe in wait(list(client_of)):
                client = client_of[pipe]
                server.upload(pipe.recv(), version_of[client])
                recorder.arrived(client)
                if len(recorder) == arrivals:
                    break
                start(client)
        for pipe in pipes.values():
            pipe.send(None)
        for worker in workers:
            worker.join(timeout=10)
    finally:
        for worker in workers:
            worker.kill()
    return server.w.copy(), recorder.log()


def replay(problem: fb.Logistic, log: fb.ArrivalLog) -> np.ndarray:
    """The model that the log leads to: its starts and arrivals once more, in their order, in one process."""
    server = fb.Server(problem.init(), STRATEGY)
    held: dict[int, tuple[int, np.ndarray]] = {}
    tasks = [0] * N_CLIENTS
    rows = range(log.client.size)
    starts = [(time, "start", row) for time, row in zip(log.start_time, rows, strict=True)]
    ends = [(time, "arrival", row) for time, row in zip(log.arrive_time, rows, strict=True)]
    for _, event, row in sorted(starts + ends):
        client = int(log.client[row])
        if event == "start":
            held[client] = server.download()
            assert held[client][0] == log.version[row]
        else:
            version, w = held.pop(client)
            server.upload(problem.delta(w, client, LOCAL, task=tasks[client], seed=SEED), version)
            tasks[client] += 1
    return server.w.copy()


def main(path: str = "log.csv", arrivals: int = 300) -> None:
    problem = make_problem()
    w, log = record(problem, arrivals)
    log.save(path)
    again = replay(problem, fb.read_arrival_log(path, clients=N_CLIENTS))
    assert w.tobytes() == again.tobytes(), "the replay differs from the recorded run"

    schedule = fb.schedule(log, STRATEGY)
    print(f"{arrivals} arrivals in {log.arrive_time[-1]:.2f} s, by worker {np.bincount(log.client).tolist()}")
    print(f"staleness: mean {schedule.staleness.mean():.2f}, tau {schedule.tau}")
    print(f"loss {problem.loss(problem.init()):.4f} -> {problem.loss(w):.4f}")
    print("the replay gave the same model, bit for bit")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
