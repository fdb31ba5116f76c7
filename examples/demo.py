"""FedBuff, FedAsync and FedAvg on the same slow clients: how much virtual time until the model is good?

Run it with `make demo`, or `python examples/demo.py`. It needs NumPy and fedbuff only, and takes a few seconds. The
clients' data is uneven (few classes each), and so is their speed: a few are ten times slower than the middle one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

import fedbuff as fb

N_CLIENTS = 100
AT_WORK = 30  # tasks in flight
TARGET = 0.85  # accuracy on held-out rows
MARKS = (20, 50, 100, 300)  # virtual seconds; the last one is the end
SEED = 0
LOCAL = fb.LocalSGD(steps=10, lr=0.1, batch_size=16)
DELAYS = fb.DelayModel(
    N_CLIENTS,
    compute=fb.Exponential(1.0),
    upload=fb.Constant(0.1),
    client_speed=fb.LogNormal(0.0, 1.2),  # drawn once per client: 2 is twice as slow
)
# Each with three server step sizes; the table shows the one that was best.
STRATEGIES: dict[str, tuple[Callable[[float], Any], tuple[float, ...]]] = {
    "FedBuff, K = 10": (lambda lr: fb.FedBuff(buffer_size=10, server_lr=lr), (0.2, 0.4, 0.8)),
    "FedAsync": (lambda mixing: fb.FedAsync(mixing, staleness=fb.staleness.Polynomial(0.5)), (0.25, 0.5, 1.0)),
    "FedAvg": (
        lambda lr: fb.FedAvg(clients_per_round=AT_WORK, server_lr=lr, weights="equal"),
        (1.0, 2.0, 4.0),
    ),
    "FedAvg, 30 % over": (
        lambda lr: fb.FedAvg(clients_per_round=23, over_selection=0.3, server_lr=lr, weights="equal"),
        (1.0, 2.0, 4.0),
    ),
}

Rows = tuple[np.ndarray, np.ndarray]  # features, labels
Curve = list[tuple[float, float]]  # virtual time and accuracy


def make_data(rng: np.random.Generator) -> tuple[fb.MLP, Rows]:
    """Ten classes of five Gaussian clusters each; a client has few of the classes, and its own number of rows."""
    centers = rng.normal(size=(10, 5, 24))

    def draw(labels: np.ndarray) -> np.ndarray:
        clusters = rng.integers(0, 5, len(labels))
        noise = rng.normal(size=(len(labels), 24))
        return np.asarray(centers[labels, clusters] + noise, np.float32)

    sizes = rng.integers(50, 250, N_CLIENTS)
    labels = np.concatenate([rng.choice(10, n, p=rng.dirichlet(np.full(10, 0.3))) for n in sizes])
    problem = fb.MLP(draw(labels), labels, clients=np.repeat(np.arange(N_CLIENTS), sizes), hidden=(64,))
    held_out = rng.integers(0, 10, 4000)
    return problem, (draw(held_out), held_out)


def train(problem: fb.MLP, held_out: Rows, schedule: fb.Schedule, strategy: Any) -> Curve:
    """The schedule's arrivals on all cores, looking at the accuracy about a hundred times."""
    look_every = max(1, schedule.n_steps // 100)
    run = fb.replay(
        problem,
        schedule,
        LOCAL,
        strategy=strategy,
        seed=SEED,
        eval_every=look_every,
        metrics=["accuracy"],
        test=held_out,
    )
    return list(zip(run.history["time"].tolist(), run.history["accuracy"].tolist(), strict=True))


def time_to(target: float, curve: Curve) -> float:
    """The virtual time at which the accuracy had reached the target at two looks in a row; infinite if never."""
    looks = pairwise(curve)
    return next((then for (_, before), (then, after) in looks if min(before, after) >= target), np.inf)


def replay_recording() -> None:
    """The package's sample: a log of four real worker processes under different load, replayed as it happened."""
    log = fb.sample_log()
    schedule = fb.schedule(log, fb.FedBuff(buffer_size=3))
    rng = np.random.default_rng(SEED)
    X = rng.normal(size=(400, 8))
    y = (X @ rng.normal(size=8) > 0).astype(int)
    problem = fb.Logistic(X, y, clients=fb.partition.iid(len(X), log.n_clients, seed=SEED))
    run = fb.replay(problem, schedule, fb.LocalSGD(steps=5, lr=0.2, batch_size=16), eval_every=schedule.n_steps)
    first, last = run.history["loss"][[0, -1]]
    took = f"{schedule.n_arrivals} uploads in {schedule.end_time:.1f} s of real time, staleness up to {schedule.tau}"
    print(f"\nA recorded run of {log.n_clients} processes ({took}),")
    print(f"replayed: loss {first:.3f} to {last:.3f} in {schedule.n_steps} server steps.")


def main() -> None:
    began = time.perf_counter()
    problem, held_out = make_data(np.random.default_rng(SEED))
    print(f"{problem!r}; {AT_WORK} tasks at work; target {TARGET:.0%} on held-out rows.\n")
    marks = "".join(f"{f'{mark} s':>8}" for mark in MARKS)
    print(f"{'':19}{'step':>5}{'staleness':>18}{'until the target':>26}{'accuracy after':>20}")
    print(f"{'':19}{'size':>5}{'mean':>9}{'max':>9}{'time':>12}{'uploads':>9}{'':5}{marks}")
    for name, (make, sizes) in STRATEGIES.items():
        best: tuple[float, float, float, fb.Schedule, Curve] | None = None
        for size in sizes:
            strategy = make(size)
            concurrency = None if isinstance(strategy, fb.FedAvg) else AT_WORK
            schedule = fb.schedule(DELAYS, strategy, concurrency, max_time=MARKS[-1], seed=SEED)
            curve = train(problem, held_out, schedule, strategy)
            result = (time_to(TARGET, curve), -curve[-1][1], size, schedule, curve)
            best = min(best or result, result, key=lambda r: r[:2])
        assert best is not None
        reached, _, size, schedule, curve = best
        staleness = schedule.staleness[schedule.status == fb.Status.USED]
        uploads = np.count_nonzero((schedule.status != fb.Status.DISCARDED) & (schedule.arrive_time <= reached))
        until = f"{reached:>10.0f} s{uploads:>9}" if np.isfinite(reached) else f"{'not reached':>12}{'':>9}"
        accuracy = "".join(f"{max(look for look in curve if look[0] <= mark)[1]:>8.3f}" for mark in MARKS)
        print(f"{name:19}{size:>5g}{staleness.mean():>9.1f}{staleness.max():>9}{until}{'':5}{accuracy}")
    seconds = time.perf_counter() - began
    print(
        f"\nTime is virtual; all of this took {seconds:.1f} s. Every strategy met the same delays and, task for task,"
    )
    print("the same batches. Run it again: the numbers are the same to the last digit.")
    replay_recording()
    print()
    print("Try next: another K, AT_WORK or DELAYS at the top of examples/demo.py; your own delays with")
    print("fb.read_trace (docs/traces.md); what a schedule says before any training (docs/schedules.md).")


if __name__ == "__main__":
    main()
