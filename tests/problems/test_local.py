"""Local steps: passes without replacement, numbers by client, step sizes that follow versions and steps."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends
from fedbuff._study.tables import ConfigError
from fedbuff.backends.python.shuffle import shuffled

SIZES = [5, 12, 1, 33, 8]
N = len(SIZES)
compiled = pytest.mark.skipif(backends.compiled() is None, reason="needs the compiled backend")


def rows(dtype: Any = np.float64, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((sum(SIZES), 4)).astype(dtype)
    y = (X @ [1.0, -1.0, 0.5, 2.0] + rng.standard_normal(len(X))).astype(dtype)
    return X, y, np.repeat(np.arange(N), SIZES)


def problem(dtype: Any = np.float64) -> fb.LeastSquares:
    return fb.LeastSquares(*rows(dtype), l2=0.1)


def slope(client: int, chosen: Any, w: Any) -> Any:
    """The gradient of the mean of (x w - y)^2 / 2 over the client's rows, and of 0.05 |w|^2."""
    X, y, clients = rows()
    X, y = X[clients == client][chosen], y[clients == client][chosen]
    return X.T @ (X @ w - y) / len(X) + 0.1 * w


def order(seed: int, client: int, task: int, turn: int) -> Any:
    return shuffled(seed, client, task, turn, SIZES[client], np.arange(SIZES[client]))


# ---- the order of a pass


def chi_square(counts: Any) -> float:
    """How many standard deviations the statistic is from its mean, were all cells alike."""
    expected = counts.sum() / counts.size
    degrees = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 60, 100, 1000, 65537])
def test_a_pass_visits_every_row_once(n: int) -> None:
    for turn in range(3):
        assert np.sort(shuffled(1, 2, 3, turn, n, np.arange(n))).tolist() == list(range(n))


@pytest.mark.parametrize("n", [3, 4, 5])
def test_all_orders_of_a_few_rows_are_equally_likely(n: int) -> None:
    number = {order: i for i, order in enumerate(itertools.permutations(range(n)))}
    counts = np.zeros(len(number))
    for task in range(6000):
        counts[number[tuple(shuffled(11, 1, task, 0, n, np.arange(n)).tolist())]] += 1
    assert abs(chi_square(counts)) < 4


@pytest.mark.parametrize("n", [20, 60])
def test_rows_and_pairs_of_rows_are_spread_evenly(n: int) -> None:
    orders = np.array([shuffled(5, task % 7, task, task % 3, n, np.arange(n)) for task in range(1500)])
    places = np.array([np.bincount(orders[:, place], minlength=n) for place in range(n)])
    assert abs(chi_square(places)) < 4
    after = (orders[:, 1:] - orders[:, :-1]) % n  # how far a row is from the one before it
    assert abs(chi_square(np.bincount(after.ravel(), minlength=n)[1:])) < 4
    fixed = (orders == np.arange(n)).sum(axis=1)
    assert abs(fixed.mean() - 1) < 4 / np.sqrt(len(orders))


def test_passes_tasks_clients_and_seeds_have_orders_of_their_own() -> None:
    seen = {
        tuple(shuffled(*key, 60, np.arange(60)).tolist()) for key in itertools.product((0, 1), (0, 1), (0, 1), (0, 1))
    }
    assert len(seen) == 16


# ---- against plain loops


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch", [None, 1, 4])
def test_epochs_are_the_loop_over_shuffled_rows(batch: int | None, drop_last: bool, momentum: float) -> None:
    local = fb.LocalSGD(epochs=3, lr=0.05, batch_size=batch, momentum=momentum, drop_last=drop_last)
    clients = [1, 3, 4]
    for client in clients:
        w = start = np.arange(4.0)
        v = np.zeros(4)
        size = SIZES[client] if batch is None else batch
        for turn in range(3):
            places = order(9, client, 6, turn) if batch is not None else np.arange(SIZES[client])
            for begin in range(0, SIZES[client], size):
                chosen = places[begin : begin + size]
                if drop_last and len(chosen) < size:
                    break
                v = momentum * v + slope(client, chosen, w)
                w = w - 0.05 * v
        got = _without(problem(), [2] if drop_last and batch == 4 else []).delta(start, client, local, task=6, seed=9)
        np.testing.assert_allclose(got, start - w, rtol=0, atol=1e-10)


def _without(made: fb.LeastSquares, clients: list[int]) -> fb.LeastSquares:
    """The same with so many copies of their rows that no batch of 4 is larger than a client."""
    if not clients:
        return made
    X, y, of = rows()
    extra = np.flatnonzero(np.isin(of, clients)).repeat(4)
    at = np.sort(np.concatenate([np.arange(len(of)), extra]))
    return fb.LeastSquares(X[at], y[at], of[at], l2=0.1)


def test_steps_and_rates_by_client_version_and_step() -> None:
    by_version = fb.LearningRate(0.5, "step", steps=3, factor=0.5, warm_up=2)
    by_step = fb.LearningRate(2.0, "cosine", steps=4, floor=0.1)
    steps, lr = [1, 4, 2, 6, 3], np.array([0.1, 0.2, 0.05, 0.1, 0.3])
    local = fb.LocalSGD(steps=steps, lr=lr, lr_by_version=by_version, lr_by_step=by_step, weight_decay=0.01)
    for client, version in itertools.product(range(N), (0, 1, 5, 9)):
        w = start = np.arange(4.0)
        for q in range(steps[client]):
            rate = lr[client] * by_version.at(version) * by_step.at(q)
            w = w - rate * (slope(client, slice(None), w) + 0.01 * w)
        got = problem().delta(start, client, local, version=version)
        np.testing.assert_allclose(got, start - w, rtol=0, atol=1e-10)


def test_an_epoch_of_batches_of_everything_is_a_step_without_a_batch() -> None:
    w = np.arange(4.0)
    whole = problem().delta(w, 3, fb.LocalSGD(steps=4, lr=0.1))
    assert problem().delta(w, 3, fb.LocalSGD(epochs=4, lr=0.1)).tolist() == whole.tolist()
    shuffled_whole = problem().delta(w, 3, fb.LocalSGD(epochs=4, lr=0.1, batch_size=100))
    np.testing.assert_allclose(shuffled_whole, whole, rtol=0, atol=1e-12)


# ---- in replays

LOCALS = {
    "epochs": fb.LocalSGD(epochs=2, lr=0.02, batch_size=4),
    "by client": fb.LocalSGD(steps=[1, 2, 3, 4, 5], lr=[0.01, 0.02, 0.03, 0.02, 0.01], batch_size=3),
    "by version and step": fb.LocalSGD(
        epochs=1, lr=0.05, batch_size=[2, 3, 1, 8, 4], momentum=0.5,
        lr_by_version=fb.LearningRate(1.0, "inverse_sqrt", steps=5), lr_by_step=fb.LearningRate(1.0, "step", steps=2),
    ),
}  # fmt: skip


def make_schedule(local: fb.LocalSGD, steps: int = 40) -> fb.Schedule:
    delays = fb.DelayModel(N, compute=fb.Exponential(1.0), local_steps=local.steps_of(SIZES))
    made = fb.schedule(delays, fb.FedBuff(buffer_size=3), server_steps=steps, seed=4)
    assert isinstance(made, fb.Schedule)
    return made


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", LOCALS)
def test_replays_have_the_same_bits_whatever_threads_pieces_and_resumes(name: str, dtype: str, tmp_path: Path) -> None:
    local, made = LOCALS[name], problem(np.dtype(dtype))
    schedule = make_schedule(local)
    whole = fb.replay(made, schedule, local, seed=3, threads=1).w
    assert fb.replay(made, schedule, local, seed=3, threads=3).w.tolist() == whole.tolist()
    delays = fb.DelayModel(N, compute=fb.Exponential(1.0), local_steps=local.steps_of(SIZES))
    chunks = fb.iter_schedule(delays, fb.FedBuff(buffer_size=3), server_steps=40, seed=4, chunk=16)
    assert fb.replay(made, chunks, local, strategy=fb.FedBuff(buffer_size=3), seed=3).w.tolist() == whole.tolist()
    part = fb.Replay(made, schedule, local, seed=3)
    part.run(max_steps=11)
    part.save(tmp_path / "part.npz")
    resumed = fb.Replay.load(tmp_path / "part.npz", made, schedule)
    resumed.run()
    assert resumed.w.tolist() == whole.tolist()


@pytest.mark.parametrize("name", LOCALS)
def test_a_server_fed_by_hand_gives_the_replay(name: str) -> None:
    local, made = LOCALS[name], problem()
    schedule = make_schedule(local, steps=12)
    server = fb.Server(made.init(3), fb.FedBuff(buffer_size=3))
    used = schedule.status == fb.Status.USED
    starts = Counter(schedule.version[used].tolist())
    models: dict[int, Any] = {}

    def download() -> None:
        for _ in range(starts[server.version]):
            _, models[server.version] = server.download()

    download()
    columns = (schedule.client[used], schedule.task[used], schedule.version[used])
    for client, task, version in zip(*(column.tolist() for column in columns), strict=True):
        delta = made.delta(models[version], client, local, task=task, seed=3, version=version)
        if server.upload(delta, version):
            download()
    assert server.w.tolist() == fb.replay(made, schedule, local, seed=3).w.tolist()


@compiled
@pytest.mark.parametrize("name", LOCALS)
def test_the_compiled_loop_gives_the_same_deltas(name: str) -> None:
    local, made = LOCALS[name], problem()
    from fedbuff._local_sgd import LocalSGD

    loop = LocalSGD(made, local, seed=8)
    for client, version in itertools.product(range(N), (0, 7)):
        want = made.delta(np.arange(4.0), client, local, task=5, seed=8, version=version)
        assert loop.delta(client, 5, np.arange(4.0), version=version).tolist() == want.tolist()


@pytest.mark.parametrize("name", LOCALS)
def test_the_reference_agrees(name: str) -> None:
    """The whole replay, in float64: nothing here amplifies a rounding."""
    from fedbuff._rule.strategies import rule_of
    from fedbuff.backends import reference
    from fedbuff.backends.spec import EngineSpec, SumSpec, UsedRows

    local, made = LOCALS[name], problem()
    schedule = make_schedule(local, steps=20)
    used = schedule.status == fb.Status.USED
    engine = reference.replay_engine(
        EngineSpec(
            rule=rule_of(fb.FedBuff(3)), w0=made.init(3), bound=reference.bind(made._spec), local=local.plan(made),
            seed=3, window_bytes=0, sums=SumSpec(),
        )
    )  # fmt: skip
    ones = np.ones(int(used.sum()))
    columns = [getattr(schedule, name)[used] for name in ("client", "task", "version", "step")]
    references = np.bincount(schedule.version[used], minlength=20)[:20]
    engine.add(UsedRows(*columns, ones, ones), references, np.empty(0, np.int64))
    engine.run(20, 1)
    got = fb.replay(made, schedule, local, seed=3).w
    np.testing.assert_allclose(got, engine.w(), rtol=0, atol=1e-12)


def test_more_steps_take_longer() -> None:
    steps = [1, 2, 4, 8, 16]
    slow = fb.DelayModel(N, compute=fb.Constant(0.5), client_speed=[1.0, 1.0, 2.0, 1.0, 1.0], local_steps=steps)
    assert [slow.delay(client, 0).compute for client in range(N)] == [0.5, 1.0, 4.0, 4.0, 8.0]
    schedule = fb.schedule(slow, fb.FedBuff(buffer_size=2), server_steps=20, seed=0)
    took = schedule.arrive_time - schedule.start_time
    assert took.tolist() == [[0.5, 1.0, 4.0, 4.0, 8.0][client] for client in schedule.client]
    assert replace(slow, local_steps=None) != slow


# ---- configurations and sweeps

CONFIG: dict[str, Any] = {
    "problem": {"kind": "quadratic", "centers": [[0.0], [2.0]], "curvature": 0.5},
    "trace": {"kind": "model", "n_clients": 2, "local_steps": [1, 3]},
    "strategy": {"kind": "fedbuff", "buffer_size": 1},
    "local": {
        "steps": [1, 3], "lr": 0.5, "lr_by_version": {"lr": 1.0, "decay": "inverse_sqrt"},
        "lr_by_step": {"lr": 1.0, "decay": "step", "factor": 0.5},
    },
    "schedule": {"server_steps": 12},
}  # fmt: skip


def test_tables_of_configurations() -> None:
    config = fb.StudyConfig(CONFIG)
    local = config.local
    assert local is not None and isinstance(local.steps, np.ndarray) and local.steps.tolist() == [1, 3]
    assert local.lr_by_version == fb.LearningRate(1.0, "inverse_sqrt")
    with pytest.raises(ConfigError, match=r"local\.lr_by_step\.dekay"):
        fb.StudyConfig({**CONFIG, "local": {"steps": 1, "lr": 1.0, "lr_by_step": {"lr": 1.0, "dekay": "step"}}}).local  # noqa: B018
    with pytest.raises(ConfigError, match=r"local\.epochs.* has no rows"):
        no_rows = fb.StudyConfig({**CONFIG, "local": {"epochs": 1, "lr": 1.0}})
        no_rows.check(no_rows.make_schedule())


@compiled
def test_a_sweep_gives_the_runs_of_replays() -> None:
    results = fb.sweep(CONFIG, {"local.lr": [0.1, 0.5]}, seeds=[0, 1])
    for lr, seed, loss in zip(*(results.column(name) for name in ("local.lr", "seed", "loss")), strict=True):
        config = fb.StudyConfig({**CONFIG, "local": {**CONFIG["local"], "lr": float(lr)}})
        assert loss == config.run(seed=int(seed)).history["loss"][-1]


# ---- refusals


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"lr": 0.1}, TypeError, r"^steps: expected steps or epochs, got neither"),
        ({"steps": 1, "epochs": 1, "lr": 0.1}, TypeError, r"^steps: expected steps or epochs, got both"),
        ({"steps": 1}, TypeError, r"^lr: expected a number"),
        ({"steps": [1, 0], "lr": 0.1}, ValueError, r"^steps: client 1 has no step"),
        ({"steps": [1, 2**32], "lr": 0.1}, ValueError, r"^steps: expected ints up to 4294967295, .* for client 1"),
        ({"steps": [0.5], "lr": 0.1}, TypeError, r"^steps: expected an int"),
        ({"steps": 1, "lr": [0.1, -1.0]}, ValueError, r"^lr: .* for client 1, got -1"),
        ({"steps": 1, "lr": [0.1, float("nan")]}, ValueError, r"^lr: .* for client 1"),
        ({"steps": 1, "lr": [[0.1]]}, TypeError, r"^lr: expected a number"),
        ({"epochs": 0, "lr": 0.1}, ValueError, r"^epochs: expected"),
        ({"steps": 1, "lr": 0.1, "drop_last": True}, ValueError, r"^drop_last: it is for epochs"),
        ({"steps": 1, "lr": 0.1, "lr_by_step": 0.5}, TypeError, r"^lr_by_step: expected a LearningRate"),
    ],
)
def test_refused_options(options: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        fb.LocalSGD(**options)


def test_refused_with_a_problem() -> None:
    made, w = problem(), np.zeros(4)
    with pytest.raises(ValueError, match=r"^steps: expected 5 ints, one per client, got 2"):
        made.delta(w, 0, fb.LocalSGD(steps=[1, 2], lr=0.1))
    with pytest.raises(ValueError, match=r"^lr: expected 5 numbers, one per client, got 2"):
        made.delta(w, 0, fb.LocalSGD(steps=1, lr=[0.1, 0.2]))
    with pytest.raises(ValueError, match=r"^drop_last: client 2 has 1 rows, fewer than its batch of 2"):
        made.delta(w, 0, fb.LocalSGD(epochs=1, lr=0.1, batch_size=2, drop_last=True))
    with pytest.raises(ValueError, match=r"^epochs: client 3 would make more than"):
        made.delta(w, 0, fb.LocalSGD(epochs=2**31, lr=0.1, batch_size=4))
    with pytest.raises(ValueError, match=r"^batches: they are for steps"):
        made.delta(w, 0, fb.LocalSGD(epochs=1, lr=0.1, batch_size=2), batches=[[0, 1]])
    with pytest.raises(ValueError, match=r"^epochs: a Quadratic has no rows"):
        fb.Quadratic(np.zeros((2, 1))).delta(np.zeros(1), 0, fb.LocalSGD(epochs=1, lr=0.1))


def test_the_theorem_says_what_is_outside() -> None:
    quadratic = fb.Quadratic(np.array([[0.0], [2.0]]), curvature=0.5)
    arrivals = fb.uniform_arrivals(2, 1, 0, server_steps=400, seed=0)
    plan = fb.theory.plan(quadratic, arrivals, fb.LocalSGD(steps=[1, 2], lr=0.1), allow_outside=True)
    assert plan.Q == 2 and any("from 1 to 2 local steps" in reason for reason in plan.outside)
