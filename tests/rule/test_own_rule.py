"""A rule of the user's own: by a Python function in all backends, by a compiled one in the engine."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_server import every_dtype, every_implementation

import fedbuff as fb

N, DIM, STEPS = 4, 5, 20
LOCAL = fb.LocalSGD(steps=2, lr=0.1)
DELAYS = fb.DelayModel(n_clients=N, compute=fb.Exponential(1.0), client_speed=np.array([1.0, 1.0, 2.0, 5.0]))


def falling_median(step: Any) -> None:
    """The state has how many steps there were, and the sum of all staleness."""
    lr = step.w.dtype.type(step.lr / (1 + 0.1 * step.state[0]))
    step.out[:] = step.w - lr * np.median(step.deltas, axis=0)
    step.state[:] += [1, step.staleness.sum()]


def fedbuff_again(step: Any) -> None:
    total = np.zeros_like(step.w)
    for weight, delta in zip(step.weights, step.deltas, strict=True):
        total = total + step.w.dtype.type(weight) * delta
    step.out[:] = step.w - step.w.dtype.type(step.lr) * total


def setting(function: Any, dtype: str = "float64", **options: Any) -> tuple[Any, fb.FedBuff, fb.Schedule]:
    problem = fb.Quadratic(np.random.default_rng(1).standard_normal((N, DIM)).astype(dtype))
    strategy = fb.FedBuff(3, 0.5, own=fb.OwnRule(function, n_state=2), **options)
    return problem, strategy, fb.schedule(DELAYS, strategy, server_steps=STEPS, seed=5)


@every_implementation
@every_dtype
def test_a_median_by_hand(backend: Any, dtype: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(fb.backends, "current", lambda: backend)
    problem, strategy, schedule = setting(falling_median, dtype)
    used = schedule.status == fb.Status.USED
    models = [np.zeros(DIM, dtype)]
    for t in range(STEPS):
        rows = np.flatnonzero(used & (schedule.step == t))
        deltas = [
            problem.delta(models[v], int(c), LOCAL, task=int(k), seed=0)
            for c, k, v in zip(schedule.client[rows], schedule.task[rows], schedule.version[rows], strict=True)
        ]
        lr = np.dtype(dtype).type(0.5 / (1 + 0.1 * t))
        models.append(models[-1] - lr * np.median(deltas, axis=0).astype(dtype))
    replay = fb.Replay(problem, schedule, LOCAL, strategy=strategy, w0=models[0])
    replay.run()
    np.testing.assert_array_equal(replay.w, models[-1], strict=True)
    assert replay._engine.rule_state()["own_state"].tolist() == [STEPS, schedule.staleness[used].sum()]


@every_dtype
def test_fedbuff_by_an_own_rule(dtype: str) -> None:
    """Weights, staleness and clients are those of the schedule: the same bits as the rule that is there."""
    options: dict[str, Any] = {"staleness": fb.staleness.Polynomial(0.5), "client_weights": [1.0, 2.0, 0.5, 3.0]}
    problem, strategy, schedule = setting(fedbuff_again, dtype, **options)
    plain = fb.FedBuff(3, 0.5, **options)
    w0 = np.zeros(DIM, dtype)
    got, want = (fb.replay(problem, schedule, LOCAL, strategy=s, w0=w0).w for s in (strategy, plain))
    np.testing.assert_allclose(got, want, rtol=0, atol=20 * np.finfo(dtype).eps)


@every_implementation
def test_a_server_gives_the_bits_of_the_replay(backend: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(fb.backends, "current", lambda: backend)
    problem, strategy, schedule = setting(falling_median)
    used = schedule.status == fb.Status.USED
    server = backend.Server(np.zeros(DIM), strategy)
    models = []
    for t in range(STEPS):
        for _ in range(20):
            server.download()
        models.append(server.w.copy())
        for place, row in enumerate(np.flatnonzero(used & (schedule.step == t))):
            client, version = int(schedule.client[row]), int(schedule.version[row])
            delta = problem.delta(models[version], client, LOCAL, task=int(schedule.task[row]), seed=0)
            server.upload(delta, version, client=client)
            if t % 4 == 1 and place == 1:
                server.save(tmp_path / "server.npz")
                server = backend.Server.load(tmp_path / "server.npz", strategy)
    want = fb.replay(problem, schedule, LOCAL, strategy=strategy, w0=np.zeros(DIM)).w
    np.testing.assert_array_equal(server.w, want, strict=True)
    with pytest.raises(ValueError, match="its own function 'falling_median' is the user's own; pass strategy="):
        backend.Server.load(tmp_path / "server.npz")


def test_the_same_bits_on_threads_in_pieces_and_after_a_resume(tmp_path: Path) -> None:
    problem, strategy, schedule = setting(falling_median)
    w0 = np.zeros(DIM)
    whole = fb.replay(problem, schedule, LOCAL, strategy=strategy, w0=w0).w
    np.testing.assert_array_equal(fb.replay(problem, schedule, LOCAL, strategy=strategy, w0=w0, threads=3).w, whole)
    first = fb.Replay(problem, schedule, LOCAL, strategy=strategy, w0=w0)
    first.run(max_steps=7)
    first.save(tmp_path / "run.npz")
    second = fb.Replay.load(tmp_path / "run.npz", problem, schedule, strategy=strategy)
    second.run()
    np.testing.assert_array_equal(second.w, whole, strict=True)


@every_implementation
def test_a_function_that_raises(backend: Any, monkeypatch: Any) -> None:
    """The buffer stays one short of full; a replay ends with the exception."""
    monkeypatch.setattr(fb.backends, "current", lambda: backend)
    broken = [True]

    def sometimes(step: Any) -> None:
        step.state[:] = 7
        if broken[0]:
            raise ZeroDivisionError("mine")
        step.out[:] = step.w - sum(step.deltas)

    problem, strategy, schedule = setting(sometimes)
    server = backend.Server(np.zeros(DIM), strategy)
    for _ in range(4):
        server.download()
    server.upload(np.ones(DIM), 0), server.upload(np.ones(DIM), 0)
    with pytest.raises(ZeroDivisionError, match="mine"):
        server.upload(np.ones(DIM), 0)
    assert (server.version, server.fill, server.outstanding) == (0, 2, 2)
    broken[0] = False
    assert server.upload(np.full(DIM, 2.0), 0) is True and server.w.tolist() == [-4.0] * DIM
    broken[0] = True
    with pytest.raises(ZeroDivisionError, match="mine"):
        fb.replay(problem, schedule, LOCAL, strategy=strategy)


@every_implementation
def test_a_model_that_is_not_finite(backend: Any) -> None:
    def bad(step: Any) -> None:
        step.out[:] = np.nan

    server = backend.Server(np.zeros(2), fb.FedBuff(1, own=fb.OwnRule(bad)))
    server.download()
    with pytest.raises(OverflowError, match=r"^delta: after server step 0"):
        server.upload(np.ones(2), 0)
    assert server.version == 0 and server.fill == 0
    with pytest.raises(ValueError, match=r"^delta: element 1 is inf"):
        server.upload(np.array([1.0, np.inf]), 0)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: fb.OwnRule(0), ValueError, r"^function: its address is 0"),
        (lambda: fb.OwnRule("median"), TypeError, r"^function: expected an address"),
        (lambda: fb.OwnRule(print, n_state=-1), ValueError, r"^n_state: "),
        (lambda: fb.FedBuff(1, own=print), TypeError, r"^own: expected fedbuff.OwnRule"),
        (lambda: fb.FedBuff(1, norm="arrivals", own=fb.OwnRule(print)), ValueError, r"^norm: the own rule"),
        (lambda: fb.FedBuff(1, base="current", own=fb.OwnRule(print)), ValueError, r"^base: the own rule"),
        (lambda: fb.FedBuff(1, optimizer=fb.Adam(), own=fb.OwnRule(print)), ValueError, r"^optimizer: the own rule"),
        (lambda: fb.FedBuff(1, ring=2, own=fb.OwnRule(print)), ValueError, r"^(ring|own): "),
        (lambda: fb.FedBuff(1, secure="simulate", own=fb.OwnRule(print)), ValueError, r"^secure: an own rule"),
    ],
)
def test_bad_rules(make: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_models_in_parts_are_kept_as_their_deltas() -> None:
    """What `fedbuff.flower` calls: the start and the parts of a model."""
    server = fb.Server(np.zeros(4), fb.FedBuff(2, 0.5, own=fb.OwnRule(fedbuff_again)))
    server.download(), server.download()
    start, parts = np.ones(4), [np.zeros(1), np.full(3, 2.0)]
    outcomes = server._upload_models([(start, parts, 0, 1.0), (start, parts, 0, 1.0)])
    assert outcomes == [False, True] and server.w.tolist() == [-1.0, 1.0, 1.0, 1.0]


@every_implementation
def test_other_threads_go_on_while_a_function_runs(backend: Any, tmp_path: Path) -> None:
    """The function waits for a thread that asks the server for its version; others wait for the step, not for ever."""
    inside, asked = threading.Event(), threading.Event()

    def waiting(step: Any) -> None:
        inside.set()
        asked.wait(0.3 if backend.__name__.endswith("cpp") else 0.0)
        step.out[:] = step.w - step.deltas[0]

    server = backend.Server(np.zeros(2), fb.FedBuff(1, own=fb.OwnRule(waiting), stop_stale=1))
    for _ in range(3):
        server.download()
    uploads = threading.Thread(target=server.upload, args=(np.ones(2), 0))
    uploads.start()
    assert inside.wait(10)
    seen = [server.version, server.fill]
    asked.set()
    assert server.outstanding == 2 and server.live_versions == 1
    server.save(tmp_path / "server.npz")
    assert server.overdue == {0: 2}
    uploads.join(10)
    assert not uploads.is_alive() and server.version == 1
    if backend.__name__.endswith("cpp"):
        assert seen == [0, 1]  # the upload is in the buffer already


def test_a_function_may_keep_what_it_gets() -> None:
    """Of the server's memory, which others use by then, nothing is left in its hands."""
    kept: list[Any] = []

    def keep(step: Any) -> None:
        kept.append((step, [array.copy() for array in (step.w, *step.deltas, step.weights, step.staleness)]))
        step.out[:] = step.w - sum(step.deltas)
        step.state += 1

    server = fb.Server(np.zeros(5000), fb.FedBuff(2, 1.0, own=fb.OwnRule(keep, n_state=1)))
    for number in range(20):
        version, _ = server.download()
        server.upload(np.full(5000, 1.0 + number), version)
    assert server.version == 10
    del server
    for at, (step, copies) in enumerate(kept):
        arrays = (step.w, *step.deltas, step.weights, step.staleness)
        for array, copy in zip(arrays, copies, strict=True):
            np.testing.assert_array_equal(array, copy)
            assert not array.flags.writeable
        assert step.state[0] == at + 1
        step.out[:] = 7.0  # its own


def test_a_function_that_writes_no_model() -> None:
    server = fb.Server(np.zeros(2), fb.FedBuff(1, 1.0, own=fb.OwnRule(lambda step: None)))
    version, _ = server.download()
    with pytest.raises(OverflowError, match="nothing was added"):
        server.upload(np.ones(2), version)


@pytest.mark.parametrize("field", ["out", "state"])
def test_an_array_of_another_size_in_the_place_of_a_field(field: str) -> None:
    def replaced(step: Any) -> None:
        step.out = step.w - sum(step.deltas)
        setattr(step, field, np.zeros(100_000))

    server = fb.Server(np.zeros(3), fb.FedBuff(1, 1.0, own=fb.OwnRule(replaced, n_state=2)))
    version, _ = server.download()
    with pytest.raises(ValueError, match="could not broadcast"):
        server.upload(np.ones(3), version)
    assert server.version == 0
