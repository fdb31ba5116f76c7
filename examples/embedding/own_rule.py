"""A server rule of one's own, compiled by Numba and called in the engine: the median of a buffer's deltas."""

from __future__ import annotations

import sys

import numpy as np
from numba import carray, cfunc

import fedbuff as fb
from fedbuff import numba as fbn

N_CLIENTS = 6


@cfunc(fbn.own_rule)
def median(context, step):
    """w_out = w - lr * median of the deltas, number by number; the state counts the steps."""
    given = carray(step, 1)[0]
    w, w_out = fbn.vector(given.w, given.dim, np.float64), fbn.vector(given.w_out, given.dim, np.float64)
    addresses = fbn.vector(given.delta, given.n, np.uint64)
    column = np.empty(given.n)
    for j in range(given.dim):
        for k in range(given.n):
            column[k] = fbn.vector(addresses[k], given.dim, np.float64)[j]
        w_out[j] = w[j] - given.lr * np.median(column)
    fbn.vector(given.state, given.n_state, np.float64)[0] += 1
    return 0


def slow_median(step: fb.OwnRule) -> None:
    """The same in Python, for trying it out."""
    step.out[:] = step.w - step.lr * np.median(step.deltas, axis=0)
    step.state[0] += 1


def main(path: str = "log.csv") -> None:
    problem = fb.Quadratic(np.random.default_rng(0).standard_normal((N_CLIENTS, 20)))
    local, made = fb.LocalSGD(steps=3, lr=0.1), []
    delays = fb.DelayModel(n_clients=N_CLIENTS, compute=fb.Exponential(1.0))
    for function in (median, slow_median):
        strategy = fb.FedBuff(3, 0.5, own=fb.OwnRule(function, n_state=1))
        schedule = fb.schedule(delays, strategy, server_steps=30, seed=1)
        np.savetxt(path, np.column_stack([schedule.client, schedule.version, schedule.arrive_time]), delimiter=",")
        made.append(fb.replay(problem, schedule, local, strategy=strategy).w)
    assert np.abs(made[0] - made[1]).max() < 1e-12
    print(f"loss {problem.loss(made[0]):.4f}; the replay is equal")


if __name__ == "__main__":
    main(*sys.argv[1:])
