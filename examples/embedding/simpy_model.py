"""A SimPy model: clients are processes that share an uplink, FedBuff is the server."""

from __future__ import annotations

import sys

import numpy as np
import simpy

import fedbuff as fb

N_CLIENTS, UNTIL = 8, 30.0


def main(path: str = "log.csv") -> None:
    problem = fb.Quadratic(np.random.default_rng(0).standard_normal((N_CLIENTS, 20)), noise_variance=0.1)
    options = fb.LocalSGD(steps=3, lr=0.1, batch_size=4)
    strategy = fb.FedBuff(buffer_size=3)
    server = fb.Server(problem.init(), strategy)
    env = simpy.Environment()
    uplink = simpy.Resource(env, capacity=2)  # what a schedule of ours does not know: uploads that queue
    recorder = fb.Recorder(N_CLIENTS, clock=lambda: float(env.now))

    def client(number: int):
        random = np.random.default_rng(number)
        for task in range(10_000):
            version, w = server.download()
            recorder.started(number, version)
            delta = problem.delta(w, number, options, task=task, seed=7)
            yield env.timeout(random.exponential(1.0 + number / 4))
            with uplink.request() as turn:
                yield turn
                yield env.timeout(random.exponential(0.3))
            server.upload(delta, version)
            recorder.arrived(number)

    for number in range(N_CLIENTS):
        env.process(client(number))
    env.run(until=UNTIL)
    recorder.save(path)

    again = fb.replay(problem, fb.schedule(fb.read_arrival_log(path, clients=N_CLIENTS), strategy), options, seed=7)
    assert again.w.tobytes() == server.w.tobytes()
    print(f"version {server.version}, loss {problem.loss(server.w):.4f}; the replay is equal")


if __name__ == "__main__":
    main(*sys.argv[1:])
