"""`fb.Callback(function, batch=m)`: which tasks come together, and that nothing else decides what comes out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends
from fedbuff.backends import numba, reference
from fedbuff.backends.python.groups import size_of_group

N_CLIENTS, DIM, STEPS = 30, 4, 60
STRATEGIES = {
    "fedbuff": fb.FedBuff(4),
    "fedasync": fb.FedAsync(0.5, fb.staleness.Polynomial(0.5)),
    "fedavg": fb.FedAvg(clients_per_round=10, over_selection=0.3),
    "adam": fb.FedBuff(4, server_lr=0.01, optimizer=fb.Adam()),
    "current": fb.FedBuff.preset("fedscale", buffer_size=4),
    "clipped": fb.FedBuff(
        4, server_lr=0.1, privacy=fb.secure.Gaussian(clip=0.5, noise_multiplier=0.1, source="simulated")
    ),
}


def delays() -> fb.DelayModel:
    return fb.DelayModel(n_clients=N_CLIENTS, compute=fb.Exponential(1.0), client_speed=fb.LogNormal(0.0, 0.5))


def make_schedule(name: str = "fedbuff", steps: int = STEPS) -> fb.Schedule:
    concurrency = None if name == "fedavg" else 20
    return fb.schedule(delays(), STRATEGIES[name], concurrency, server_steps=steps, seed=1)


def mixing(clients: Any, tasks: Any, W: Any) -> Any:
    """Deltas that show which tasks came together, and in which places."""
    place = np.arange(1, len(W) + 1, dtype=W.dtype)[:, None]
    delta = (W - clients[:, None].astype(W.dtype) / N_CLIENTS) / 4
    return delta + (W.sum(axis=0) + int(tasks.sum()) + len(W)) * place / 1000


def make_problem(
    function: Callable[..., Any] = mixing, batch: int | None = 8, dtype: str = "float64", **options: Any
) -> fb.Callback:
    w0 = np.linspace(-1, 1, DIM).astype(dtype)
    return fb.Callback(function, w0=w0, n_clients=N_CLIENTS, batch=batch, loss=lambda w: float(w @ w), **options)


def recorded(calls: list[tuple[list[int], list[int]]]) -> Callable[..., Any]:
    lock = threading.Lock()

    def function(clients: Any, tasks: Any, W: Any) -> Any:
        with lock:
            calls.append((clients.tolist(), tasks.tolist()))
        return mixing(clients, tasks, W)

    return function


def groups_of(schedule: fb.Schedule, most: int) -> list[tuple[list[int], list[int]]]:
    """The groups by the rule, one row after the other."""
    used = schedule.status == fb.Status.USED
    groups: list[tuple[list[int], list[int]]] = []
    first = -1
    for client, task, version, step in zip(
        schedule.client[used].tolist(), schedule.task[used].tolist(), schedule.version[used].tolist(),
        schedule.step[used].tolist(), strict=True,
    ):  # fmt: skip
        if not groups or len(groups[-1][0]) == most or version > first:
            groups.append(([], []))
            first = step
        groups[-1][0].append(client)
        groups[-1][1].append(task)
    return groups


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("most", [1, 3, 8, 1000])
@pytest.mark.parametrize("threads", [1, 3])
def test_groups_are_cut_by_the_rule(name: str, most: int, threads: int) -> None:
    schedule = make_schedule(name)
    calls: list[tuple[list[int], list[int]]] = []
    result = fb.replay(make_problem(recorded(calls), most), schedule, threads=threads)
    assert result.exit_reason == fb.ExitReason.SCHEDULE_END
    expected = groups_of(schedule, most)
    assert sorted(calls) == sorted(expected)
    assert max(len(clients) for clients, _ in calls) > 1 or most == 1 or name == "fedasync"


def test_a_group_waits_for_the_row_that_may_still_be_in_it() -> None:
    assert size_of_group([0], [0], 4, False) is None
    assert size_of_group([0], [0], 4, True) == 1
    assert size_of_group([0, 1], [0, 1], 4, False) == 1
    assert size_of_group([0, 0, 0], [0, 0, 1], 2, False) == 2
    assert size_of_group([1, 0, 1, 2], [1, 1, 2, 2], 9, False) == 3


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bits_depend_on_nothing_else(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, problem = make_schedule(name), make_problem(dtype=dtype)
    first = fb.replay(problem, schedule, threads=1)
    assert first.w.dtype == dtype
    for threads in (2, 4):
        np.testing.assert_array_equal(fb.replay(problem, schedule, threads=threads).w, first.w, strict=True)
    evaluated = fb.replay(problem, schedule, threads=2, eval_every=1)
    np.testing.assert_array_equal(evaluated.w, first.w)
    stepped = fb.Replay(problem, schedule, threads=2)
    while stepped.run(1) == fb.ExitReason.SERVER_STEPS:
        stepped.check()
    np.testing.assert_array_equal(stepped.w, first.w)
    for other in (reference, numba):
        monkeypatch.setattr(backends, "current", lambda other=other: other)
        slow = fb.replay(problem, schedule)
        np.testing.assert_allclose(slow.w, first.w, rtol=1e4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("chunk", [1, 7, 50])
def test_nor_on_the_chunks_of_a_stream(chunk: int) -> None:
    strategy, problem = STRATEGIES["fedbuff"], make_problem()
    whole = fb.replay(problem, make_schedule())
    stream = fb.iter_schedule(delays(), strategy, 20, server_steps=STEPS, seed=1, chunk=chunk)
    result = fb.replay(problem, stream, strategy=strategy)
    assert result.version == STEPS
    np.testing.assert_array_equal(result.w, whole.w)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("backend", ["cpp", "reference"])
def test_nor_on_a_resume_in_the_middle_of_a_group(
    name: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "reference":
        monkeypatch.setattr(backends, "current", lambda: reference)
    schedule, problem, path = make_schedule(name, 25), make_problem(batch=16), tmp_path / "r.npz"
    whole = fb.replay(problem, schedule)
    waiting = 0
    for version in range(1, 25):
        part = fb.Replay(problem, schedule, threads=2)
        part.run(version)
        part.save(path)
        with np.load(path, allow_pickle=False) as file:
            waiting += "deltas" in file.files
        rest = fb.Replay.load(path, problem, schedule, threads=1)
        rest.check()
        rest.save(tmp_path / "again.npz")  # nothing is lost where nothing was run between
        rest = fb.Replay.load(tmp_path / "again.npz", problem, schedule, threads=1)
        assert rest.run() == fb.ExitReason.SCHEDULE_END
        rest.check()
        np.testing.assert_array_equal(rest.w, whole.w)
    assert waiting > 5 or name == "fedavg"  # whose groups are within rounds


def test_nor_on_a_resume_along_a_stream(tmp_path: Path) -> None:
    strategy, problem, path = STRATEGIES["fedasync"], make_problem(batch=16), tmp_path / "r.npz"

    def stream() -> Any:
        return fb.iter_schedule(delays(), strategy, 20, server_steps=40, seed=1, chunk=2)

    whole = fb.replay(problem, stream(), strategy=strategy)
    for version in range(1, 40, 3):
        part = fb.Replay(problem, stream(), strategy=strategy)
        part.run(version)
        part.save(path)
        rest = fb.Replay.load(path, problem, stream())
        rest.run()
        np.testing.assert_array_equal(rest.w, whole.w)


def test_a_group_that_fails_is_run_again_whole(tmp_path: Path) -> None:
    schedule = make_schedule()
    whole = fb.replay(make_problem(), schedule)
    calls = [0]

    def failing(clients: Any, tasks: Any, W: Any) -> Any:
        calls[0] += 1
        if calls[0] % 5 == 0:
            raise LookupError("again")
        return mixing(clients, tasks, W)

    replay = fb.Replay(make_problem(failing), schedule, threads=2)
    for attempt in range(1000):
        try:
            replay.run()
            break
        except LookupError:
            replay.check()
            replay.save(tmp_path / f"{attempt % 2}.npz")
    assert attempt > 5
    np.testing.assert_array_equal(replay.w, whole.w)
    rest = fb.Replay.load(tmp_path / f"{(attempt - 1) % 2}.npz", make_problem(failing), schedule)
    calls[0] = -(10**6)
    rest.run()
    np.testing.assert_array_equal(rest.w, whole.w)


def test_a_checkpoint_knows_the_size_of_its_groups(tmp_path: Path) -> None:
    schedule, path = make_schedule(), tmp_path / "r.npz"
    replay = fb.Replay(make_problem(batch=8), schedule)
    replay.run(3)
    replay.save(path)
    for batch in (None, 7, 16):
        with pytest.raises(ValueError, match="it was made with another problem"):
            fb.Replay.load(path, make_problem(batch=batch), schedule)


def test_models_may_be_kept_and_changed() -> None:
    schedule = make_schedule()
    kept: list[tuple[Any, Any]] = []

    def keeping(clients: Any, tasks: Any, W: Any) -> Any:
        kept.append((W[1:], W[1:].copy()))
        return mixing(clients, tasks, W)

    def changing(clients: Any, tasks: Any, W: Any) -> Any:
        W[:] = mixing(clients, tasks, W)
        return W

    whole = fb.replay(make_problem(), schedule)
    np.testing.assert_array_equal(fb.replay(make_problem(keeping), schedule).w, whole.w)
    for shown, before in kept:
        np.testing.assert_array_equal(shown, before)
    np.testing.assert_array_equal(fb.replay(make_problem(changing), schedule).w, whole.w)


def test_generators_are_those_of_single_tasks() -> None:
    schedule = make_schedule()
    asked: list[int] = []

    def one(client: int, task: int, w: Any, generator: Any) -> Any:
        return w / 8 + generator.standard_normal(DIM)

    def many(clients: Any, tasks: Any, W: Any, generators: Any) -> Any:
        assert len(generators) == len(W)
        if len(W) > 1:
            asked.append(1)
            np.testing.assert_array_equal(generators[1:][0].random(2), generators[1].random(2))
        return W / 8 + np.stack([generator.standard_normal(DIM) for generator in generators])

    single = fb.replay(make_problem(one, None), schedule, seed=5)
    np.testing.assert_array_equal(fb.replay(make_problem(many), schedule, seed=5).w, single.w)
    assert asked


def test_delta_of_one_task() -> None:
    problem = make_problem(batch=4)
    w = problem.init() + 1
    expected = mixing(np.array([3]), np.array([2]), w[None])[0]
    np.testing.assert_array_equal(problem.delta(w, 3, task=2), expected)
    one = fb.Callback(lambda client, task, w, generator: w * client + generator.random(2), w0=np.ones(2), n_clients=4)
    assert (one.delta(np.ones(2), 3, task=1, seed=2) != one.delta(np.ones(2), 3, task=1, seed=3)).all()
    with pytest.raises(IndexError, match="client: there are 30 clients, got 30"):
        problem.delta(w, 30)
    with pytest.raises(ValueError, match="task: expected an int below"):
        problem.delta(w, 0, task=2**32)


def test_bad_functions_and_deltas_are_named() -> None:
    schedule = make_schedule()
    for wrong, kind, text in (
        (lambda c, t, W: W[:, :-1], ValueError, r"function: expected deltas of shape \(\d+, 4\), got \(\d+, 3\)"),
        (lambda c, t, W: W[0], ValueError, r"function: expected deltas of shape \(\d+, 4\), got \(4,\)"),
        (lambda c, t, W: W.astype(np.float32), TypeError, "function: expected deltas of float64, got float32"),
    ):
        with pytest.raises(kind, match=text):
            fb.replay(make_problem(wrong), schedule)
    with pytest.raises(TypeError, match=r"function: expected one of \(client, task, w\) or .* got \(a, b\)"):
        make_problem(lambda a, b: a)
    with pytest.raises(ValueError, match="batch: expected an int >= 1, got 0"):
        make_problem(batch=0)
    strided = fb.replay(make_problem(lambda c, t, W: np.asfortranarray(mixing(c, t, W))), schedule)
    np.testing.assert_array_equal(strided.w, fb.replay(make_problem(), schedule).w)
