"""|grad f(w^t)|^2 of every version, evaluated inside the engine; and arrivals drawn by compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff.backends import reference
from fedbuff.backends.python.uniform_arrivals import uniform_arrivals
from fedbuff.backends.spec import EngineSpec, SumSpec, UsedRows, new_columns

STEPS, K = 30, 3


def problems(dtype: Any) -> dict[str, fb.Problem]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 5)).astype(dtype)
    y, owner = rng.integers(0, 2, 40), np.repeat(np.arange(4), 10)
    centers = rng.normal(size=(4, 5)).astype(dtype)
    root = rng.normal(size=(4, 5, 5))
    dense = root @ np.swapaxes(root, 1, 2) / 5
    return {
        "scalar": fb.Quadratic(centers, 0.5, noise_variance=1.0),
        "diagonal": fb.Quadratic(centers, [0.1, 0.2, 0.3, 0.4, 0.5], client_weights=[1.0, 2.0, 3.0, 4.0]),
        "dense": fb.Quadratic(centers, dense[0]),
        "own scalars": fb.Quadratic(centers, [0.1, 0.2, 0.3, 0.4], per_client=True),
        "own diagonals": fb.Quadratic(centers, rng.uniform(0.1, 1, (4, 5)), per_client=True),
        "own matrices": fb.Quadratic(centers, dense, per_client=True, client_weights=[1.0, 2.0, 3.0, 4.0]),
        "logistic": fb.Logistic(X, y, owner, l2=0.1, nonconvex=0.1),
        "net": fb.MLP(X, y, owner, hidden=(3,)),
    }


def started(problem: fb.Problem, **options: Any) -> fb.Replay:
    schedule = fb.uniform_arrivals(4, K, 3, STEPS, seed=1)
    w0 = np.linspace(-1, 1, problem.dim).astype(problem.dtype)
    return fb.Replay(problem, schedule, fb.LocalSGD(steps=2, lr=0.05, batch_size=2), w0=w0, seed=2, **options)


@pytest.mark.parametrize("name", list(problems(np.float64)))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_they_are_the_gradients_of_the_versions(name: str, dtype: Any) -> None:
    problem = problems(dtype)[name]
    by_hand = started(problem)
    expected = []
    for _ in range(STEPS):
        gradient = problem.grad(by_hand.w).astype(np.float64)
        expected.append(gradient @ gradient)
        by_hand.run(1)
    recorded = started(problem)
    recorded.record_gradients()
    assert recorded.run() == fb.ExitReason.SCHEDULE_END
    np.testing.assert_allclose(recorded.gradients, expected, rtol=1e-11 if dtype == np.float64 else 1e-3)
    assert recorded.w.tobytes() == by_hand.w.tobytes()  # recording moves nothing


@pytest.mark.parametrize("name", ["own matrices", "logistic"])
def test_same_bits_for_threads_pieces_and_a_resume(name: str, tmp_path: Any) -> None:
    problem = problems(np.float64)[name]
    whole = started(problem, threads=1)
    whole.record_gradients()
    whole.run()
    pieces = started(problem, threads=3)
    pieces.record_gradients()
    while pieces.run(7) == fb.ExitReason.SERVER_STEPS:
        pass
    assert pieces.gradients.tobytes() == whole.gradients.tobytes() and len(whole.gradients) == STEPS
    first = started(problem, threads=2)
    first.run(11)
    first.save(tmp_path / "replay.npz")
    second = fb.Replay.load(tmp_path / "replay.npz", problem, first.schedule, threads=2)
    second.record_gradients()
    second.run()
    assert second.gradients.tobytes() == whole.gradients[11:].tobytes()


def test_every_and_offset() -> None:
    problem = problems(np.float64)["scalar"]
    whole, some = started(problem), started(problem)
    whole.record_gradients()
    some.record_gradients(every=7, offset=3)
    whole.run()
    some.run()
    assert some.gradients.tolist() == whole.gradients[3::7].tolist()


def test_the_specification_agrees() -> None:
    problem = problems(np.float64)["own matrices"]
    ours = started(problem)
    ours.record_gradients(every=2, offset=1)
    ours.run()
    schedule = ours.schedule
    assert isinstance(schedule, fb.Schedule) and ours.local is not None
    engine = reference.replay_engine(
        EngineSpec(
            rule=ours.rule, w0=np.linspace(-1, 1, 5), bound=reference.bind(problem._spec),
            local=ours.local.plan(problem), seed=2, window_bytes=0, sums=SumSpec(),
        )
    )  # fmt: skip
    engine.record_gradients(2, 1)
    ones = np.ones(schedule.n_arrivals)
    rows = UsedRows(schedule.client, schedule.task, schedule.version, schedule.step, ones, ones)
    references = np.bincount(schedule.version, minlength=STEPS)
    engine.add(rows, references, np.zeros(0, np.int64))
    engine.run(STEPS, 1)
    np.testing.assert_allclose(engine.gradients(), ours.gradients, rtol=1e-11)


def test_refusals() -> None:
    replay = started(problems(np.float64)["scalar"])
    for arguments, message in (
        ((0, 0), "every: expected an int >= 1"),
        ((3, 3), "offset: expected an int below every"),
    ):
        with pytest.raises(ValueError, match=message):
            replay.record_gradients(*arguments)
    assert replay.gradients.size == 0
    function = fb.Callback(lambda client, task, w, generator: 0.1 * w, w0=np.ones(2), n_clients=4)
    with pytest.raises(TypeError, match="Callback has no gradient inside the engine"):
        fb.Replay(function, fb.uniform_arrivals(4, 2, 1, 5)).record_gradients()


def test_a_diverging_step_is_not_recorded() -> None:
    problem = fb.Quadratic(np.zeros((4, 2)))
    replay = fb.Replay(problem, fb.uniform_arrivals(4, 1, 0, 50), fb.LocalSGD(steps=1, lr=1e30), w0=np.ones(2))
    replay.record_gradients()
    assert replay.run() == fb.ExitReason.DIVERGED
    assert len(replay.gradients) == replay.version and replay.gradients[1] == pytest.approx(2e60)


@pytest.mark.parametrize("oldest", [False, True])
@pytest.mark.parametrize(("n", "size", "bound"), [(1, 1, 0), (7, 3, 4), (1000, 2, 50), (3, 10, 2)])
def test_uniform_arrivals_are_those_of_numpy(n: int, size: int, bound: int, oldest: bool) -> None:
    made = fb.uniform_arrivals(n, size, bound, 200, seed=2**40 + 5, staleness="max" if oldest else "uniform")
    made.check()
    columns = new_columns(200 * size, 200)
    uniform_arrivals(n, size, bound, oldest, 2**40 + 5, columns)
    for name in ("client", "task", "version", "step", "staleness", "start_time", "arrive_time", "status", "step_time"):
        assert getattr(made, name).tobytes() == getattr(columns, name).tobytes(), name
    assert [made.started_on_0, *made.step_started.tolist()] == [*columns.started.tolist(), 0]
