"""FedNova: clients that make unequal numbers of steps count by what their steps weigh."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends

STEPS = [1, 3, 7, 2]
N, DIM = len(STEPS), 3
CENTERS = np.random.default_rng(3).standard_normal((N, DIM))
compiled = pytest.mark.skipif(backends.compiled() is None, reason="needs the compiled backend")


def problem(dtype: Any = np.float64) -> fb.Quadratic:
    return fb.Quadratic(CENTERS.astype(dtype), curvature=0.5)


def weight(steps: int, momentum: float) -> float:
    """The norm of the paper's vector a: what each gradient counts in the client's way, added up."""
    return sum((1 - momentum**k) / (1 - momentum) for k in range(1, steps + 1))


def loop(momentum: float, q: float, rounds: int, lr: float, server_lr: float) -> Any:
    """Algorithm 1 of the paper with all clients in every round, and equal shares."""
    w = np.zeros(DIM)
    for _ in range(rounds):
        direction = np.zeros(DIM)
        for client, steps in enumerate(STEPS):
            x, v = w.copy(), np.zeros(DIM)
            for _ in range(steps):
                v = momentum * v + 0.5 * (x - CENTERS[client])
                x = x - lr * v
            direction += (w - x) / weight(steps, momentum) / N
        w = w - server_lr * q * direction
    return w


def rounds_of_all(steps: int) -> fb.Schedule:
    """Every client once in every step, at staleness 0."""
    delays = fb.DelayModel(N, compute=fb.Constant(1.0))
    return fb.schedule(delays, strategy(refill="step"), server_steps=steps, seed=0)


def strategy(**options: Any) -> fb.FedBuff:
    made = fb.algorithm("fednova", buffer_size=N, server_lr=0.8)
    assert isinstance(made, fb.FedBuff)
    return fb.FedBuff(N, 0.8, norm=made.norm, weights=made.weights, method=made.method, **options)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("q", [None, 2.5])
def test_it_is_the_loop_of_the_paper(momentum: float, q: float | None) -> None:
    local = fb.LocalSGD(steps=STEPS, lr=0.1, momentum=momentum, method="fednova", effective_steps=q)
    schedule = rounds_of_all(12)
    assert schedule.staleness.max() == 0 and len(schedule.client) == 12 * N
    got = fb.replay(problem(), schedule, local, strategy=strategy(refill="step")).w
    common = np.mean([weight(n, momentum) for n in STEPS]) if q is None else q
    np.testing.assert_allclose(got, loop(momentum, common, 12, 0.1, 0.8), rtol=0, atol=1e-10)


def test_its_fixed_point_is_that_of_the_mean_objective() -> None:
    """The paper's point: unequal numbers of steps pull the average of plain local SGD to clients that make many."""
    schedule = rounds_of_all(3000)
    nova = fb.LocalSGD(steps=STEPS, lr=0.01, method="fednova")
    plain = fb.LocalSGD(steps=STEPS, lr=0.01)
    options = {"strategy": strategy(refill="step")}
    fixed = fb.replay(problem(), schedule, nova, **options).w
    pulled = fb.replay(problem(), schedule, plain, strategy=fb.FedBuff(N, 0.8, norm="arrivals")).w
    mean = CENTERS.mean(axis=0)
    assert np.linalg.norm(fixed - mean) < 0.1 * np.linalg.norm(pulled - mean)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equal_numbers_of_steps_are_plain_local_sgd(dtype: str) -> None:
    w = np.ones(DIM, dtype)
    made = problem(np.dtype(dtype))
    plain, nova = fb.LocalSGD(steps=4, lr=0.1), fb.LocalSGD(steps=4, lr=0.1, method="fednova")
    assert made.delta(w, 1, nova).tolist() == made.delta(w, 1, plain).tolist()
    half = fb.LocalSGD(steps=4, lr=0.1, method="fednova", effective_steps=2)
    assert made.delta(w, 1, half).tolist() == (made.delta(w, 1, plain) / 2).tolist()


def test_epochs_know_their_steps() -> None:
    rng = np.random.default_rng(0)
    made = fb.LeastSquares(rng.standard_normal((30, 2)), rng.standard_normal(30), np.repeat([0, 1], [10, 20]))
    plain, nova = (fb.LocalSGD(epochs=2, lr=0.05, batch_size=5, method=m) for m in ("sgd", "fednova"))
    for client, steps in enumerate((4, 8)):
        expected = made.delta(np.ones(2), client, plain) * (6 / steps)
        np.testing.assert_allclose(made.delta(np.ones(2), client, nova), expected, rtol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_threads_and_pieces_do_not_show(dtype: str) -> None:
    delays = fb.DelayModel(N, compute=fb.Exponential(1.0), local_steps=STEPS)
    rule = fb.algorithm("fednova", buffer_size=2)
    schedule = fb.schedule(delays, rule, server_steps=40, seed=1)
    local = fb.LocalSGD(steps=STEPS, lr=0.1, method="fednova")
    made = problem(np.dtype(dtype))
    whole = fb.replay(made, schedule, local, strategy=rule, threads=1).w.tolist()
    assert fb.replay(made, schedule, local, strategy=rule, threads=3).w.tolist() == whole
    pieces = fb.Replay(made, schedule, local, strategy=rule)
    while pieces.run(max_steps=3) == fb.ExitReason.SERVER_STEPS:
        pass
    assert pieces.w.tolist() == whole


def test_the_reference_agrees() -> None:
    from fedbuff.backends import reference
    from fedbuff.backends.spec import LocalTask

    made = problem()
    for momentum in (0.0, 0.9):
        plan = fb.LocalSGD(steps=STEPS, lr=0.1, momentum=momentum, method="fednova").plan(made)
        for client in range(N):
            got, want = np.empty(DIM), np.empty(DIM)
            for bound, out in ((made.bound, got), (reference.bind(made._spec), want)):
                bound.local_sgd(plan.task(client, 0), np.ones(DIM), LocalTask(client, 0, 0, 0), out)
            np.testing.assert_allclose(got, want, rtol=1e-14)


@compiled
def test_a_compiled_gradient_and_the_compiled_loop_scale_too() -> None:
    from fedbuff._local_sgd import LocalSGD

    local = fb.LocalSGD(steps=STEPS, lr=0.1, method="fednova")
    made = problem()
    loop_of = LocalSGD(made, local)
    for client in range(N):
        assert loop_of.delta(client, 0, np.ones(DIM)).tolist() == made.delta(np.ones(DIM), client, local).tolist()


TABLES: dict[str, Any] = {
    "problem": {"kind": "quadratic", "centers": [[0.0], [2.0]], "curvature": 0.5},
    "trace": {"kind": "model", "n_clients": 2},
    "strategy": {"kind": "fednova", "buffer_size": 1},
    "local": {"steps": [1, 3], "lr": 0.5, "method": "fednova"},
    "schedule": {"server_steps": 12},
}


def test_configurations_and_sweeps() -> None:
    loss = fb.StudyConfig(TABLES).run(seed=1).history["loss"][-1]
    results = fb.sweep(TABLES, {"local.lr": [0.5]}, seeds=[1])
    assert results.column("loss").tolist() == [loss]
    half = {**TABLES, "local": {"steps": [1, 3], "lr": 0.5}}
    with pytest.raises(ValueError, match="method"):
        fb.StudyConfig(half).run(seed=1)
    failed = fb.sweep(half, {"local.lr": [0.5]}, seeds=[1])
    assert "method" in str(failed.column("error")[0])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"method": "fednovva"}, r"^method: expected one of sgd, fednova"),
        ({"effective_steps": 2}, r'^effective_steps: it is for method="fednova"; sgd has none'),
        ({"method": "fednova", "effective_steps": 0}, r"^effective_steps: expected"),
        ({"method": "fednova", "prox": 0.1}, r"^prox: FedNova"),
        ({"method": "fednova", "lr_by_step": fb.LearningRate(1.0)}, r"^lr_by_step: FedNova"),
        ({"method": "fednova", "momentum": 1.0}, r"^momentum: FedNova needs a number below 1"),
    ],
)
def test_refused_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        fb.LocalSGD(steps=2, lr=0.1, **options)


def test_one_half_alone_is_refused() -> None:
    schedule = rounds_of_all(2)
    with pytest.raises(ValueError, match=r'^method: LocalSGD has "fednova", the strategy has not'):
        fb.replay(problem(), schedule, fb.LocalSGD(steps=2, lr=0.1, method="fednova"), strategy=fb.FedBuff(N))
    with pytest.raises(ValueError, match=r'^method: the strategy has "fednova", its clients have "sgd"'):
        fb.replay(problem(), schedule, fb.LocalSGD(steps=2, lr=0.1), strategy=strategy())
    with pytest.raises(ValueError, match=r'^method: the strategy has "fednova"'):
        callback = fb.Callback(lambda client, task, w: w, w0=np.zeros(DIM), n_clients=N)
        fb.replay(callback, schedule, strategy=strategy())
