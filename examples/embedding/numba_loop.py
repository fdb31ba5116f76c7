"""An event loop in Numba: queue, local SGD and server are called from one compiled function, by address."""

from __future__ import annotations

import sys

import numpy as np
from numba import njit

import fedbuff as fb
from fedbuff import numba as fbn

N_CLIENTS, N_ARRIVALS = 6, 90


@njit
def run(server, local, queue, delays, delta, n_arrivals):
    """Plays n_arrivals; rows of (client, version, start, arrival)."""
    n_clients = delays.shape[0]
    log = np.empty((n_arrivals, 4))
    task, version, started = np.zeros(n_clients, np.int64), np.zeros(n_clients, np.int64), np.zeros(n_clients)
    w = np.empty(delta.shape[1])
    for k in range(-n_clients, n_arrivals):  # first every client starts, then they arrive
        now, client = 0.0, k + n_clients
        if k >= 0:
            now, client, _ = fbn.pop(queue)
            log[k, 0], log[k, 1], log[k, 2], log[k, 3] = client, version[client], started[client], now
            fbn.upload(server, delta[client], version[client])
        version[client] = fbn.download(server, w)
        started[client] = now
        fbn.delta(local, client, task[client], w, delta[client])
        fbn.push(queue, now + delays[client, task[client]], client)
        task[client] += 1
    return log


def main(path: str = "log.csv") -> None:
    problem = fb.Quadratic(np.random.default_rng(0).standard_normal((N_CLIENTS, 20)), noise_variance=0.1)
    options = fb.LocalSGD(steps=3, lr=0.1, batch_size=4)
    strategy = fb.FedBuff(buffer_size=3)
    server, queue = fb.Server(problem.init(), strategy), fb.EventQueue()
    local = fbn.local_sgd(problem, options, seed=7)
    delays = np.random.default_rng(1).exponential(size=(N_CLIENTS, N_ARRIVALS))
    delta = np.empty((N_CLIENTS, problem.dim))

    log = run(fbn.handle(server), fbn.handle(local), fbn.handle(queue), delays, delta, N_ARRIVALS)
    client, version = log[:, :2].astype(np.int64).T
    fb.ArrivalLog(client, log[:, 3], version=version, start_time=log[:, 2], clients=N_CLIENTS).save(path)

    again = fb.replay(problem, fb.schedule(fb.read_arrival_log(path, clients=N_CLIENTS), strategy), options, seed=7)
    assert again.w.tobytes() == server.w.tobytes()
    print(f"version {server.version}, loss {problem.loss(server.w):.4f}; the replay is equal")


if __name__ == "__main__":
    main(*sys.argv[1:])
