"""Runs the event loop of loop.pyx, then replays its log: the model is the same, bit for bit."""

from __future__ import annotations

import sys

import loop
import numpy as np

import fedbuff as fb
from fedbuff.backends.cpp import LocalSGD

N_CLIENTS, N_ARRIVALS = 6, 90


def main(path: str = "log.csv") -> None:
    problem = fb.Quadratic(np.random.default_rng(0).standard_normal((N_CLIENTS, 20)), noise_variance=0.1)
    options = fb.LocalSGD(steps=3, lr=0.1, batch_size=4)
    strategy = fb.FedBuff(buffer_size=3)
    server, queue = fb.Server(problem.init(), strategy), fb.EventQueue()
    delays = np.random.default_rng(1).exponential(size=(N_CLIENTS, N_ARRIVALS))

    log = loop.run(server, LocalSGD(problem, options, seed=7), queue, delays, N_ARRIVALS)
    client, version, start_time, arrive_time = log
    fb.ArrivalLog(client, arrive_time, version=version, start_time=start_time, clients=N_CLIENTS).save(path)

    again = fb.replay(problem, fb.schedule(fb.read_arrival_log(path, clients=N_CLIENTS), strategy), options, seed=7)
    assert again.w.tobytes() == server.w.tobytes()
    print(f"version {server.version}, loss {problem.loss(server.w):.4f}; the replay is equal")


if __name__ == "__main__":
    main(*sys.argv[1:])
