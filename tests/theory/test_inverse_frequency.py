"""FedBuff(weights="inverse_frequency"): updates weighted by 1 / (n p_i), p_i the client's share of used arrivals."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import fedbuff as fb

TRACE = fb.Trace(client=[0, 1, 2], compute=[1.0, 2.5, 7.0])
LOCAL = fb.LocalSGD(steps=2, lr=0.1)


def test_the_weights_are_those_of_the_schedule() -> None:
    strategy = fb.FedBuff(2, weights="inverse_frequency", weight_scale=0.5)
    schedule = fb.schedule(TRACE, strategy, server_steps=40)
    used = schedule.client[schedule.status == fb.Status.USED]
    share = np.bincount(used, minlength=3) / used.size
    centers = np.array([[0.0], [1.0], [5.0]])
    run = fb.replay(fb.Quadratic(centers), schedule, LOCAL, w0=np.ones(1))  # the schedule's own strategy
    models = [1.0]
    for step in range(40):
        rows = np.flatnonzero(schedule.step == step)
        deltas = (1 - 0.9**2) * (np.array(models)[schedule.version[rows]] - centers[schedule.client[rows], 0])
        weight = 0.5 / (3 * share[schedule.client[rows]])
        models.append(models[-1] - (weight * deltas).sum() / 2)
    assert run.w[0] == pytest.approx(models[-1], rel=1e-12)


def test_it_removes_the_bias_of_fast_clients() -> None:
    centers = np.array([[-3.0], [0.0], [3.0]])
    schedule = fb.schedule(TRACE, fb.FedBuff(1), server_steps=4000)

    def end(weights: Any) -> float:
        strategy = fb.FedBuff(1, weights=weights)
        return float(fb.replay(fb.Quadratic(centers), schedule, fb.LocalSGD(1, 0.01), strategy=strategy).w[0])

    assert end("equal") < -1.0
    assert abs(end("inverse_frequency")) < 0.15


def test_it_survives_a_checkpoint(tmp_path: Any) -> None:
    problem = fb.Quadratic(np.array([[-3.0], [0.0], [3.0]]))
    strategy = fb.FedBuff(1, weights="inverse_frequency")
    schedule = fb.schedule(TRACE, strategy, server_steps=50)
    whole = fb.replay(problem, schedule, LOCAL)
    replay = fb.Replay(problem, schedule, LOCAL)
    replay.run(20)
    replay.save(tmp_path / "r.npz")
    again = fb.Replay.load(tmp_path / "r.npz", problem, schedule)
    again.run()
    assert again.w.tobytes() == whole.w.tobytes()


def test_a_client_that_never_arrives_leaves_the_others_weights() -> None:
    schedule = fb.schedule(fb.Trace(client=[0, 1], compute=[1.0, 1e9]), fb.FedBuff(1), server_steps=5)
    strategy = fb.FedBuff(1, weights="inverse_frequency")
    run = fb.replay(fb.Quadratic(np.zeros((2, 1))), schedule, fb.LocalSGD(1, 0.5), strategy=strategy, w0=np.ones(1))
    assert run.w[0] == pytest.approx(0.75**5)  # half of each step


def test_only_a_whole_schedule_tells() -> None:
    strategy = fb.FedBuff(2, weights="inverse_frequency")
    chunks = fb.iter_schedule(TRACE, strategy, server_steps=40, chunk=10)
    with pytest.raises(ValueError, match=r"schedule: .* counts its arrivals first"):
        fb.replay(fb.Quadratic(np.zeros((3, 1))), chunks, LOCAL, strategy=strategy)
    for name in ("reference", "cpp"):
        backend = importlib.import_module(f"fedbuff.backends.{name}")
        with pytest.raises(ValueError, match="is known from a whole schedule only"):
            backend.Server(np.zeros(2), strategy)
    with pytest.raises(ValueError, match="weights: expected one of"):
        fb.FedBuff(2, weights="frequency")  # type: ignore[arg-type]
    assert fb.FedBuff.preset("flsim", weights="inverse_frequency").weight_scale == 1.0
