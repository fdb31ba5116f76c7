"""The checks of a replay's arguments refuse what its constructor refuses, and build nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._replay.check import check_metrics, check_replay, check_stop
from fedbuff._replay.replay import Replay
from fedbuff._rule.strategies import rule_of

PROBLEM = fb.Quadratic(np.zeros((4, 2)))
LOCAL = fb.LocalSGD(steps=1, lr=0.5)
CALLBACK = fb.Callback(lambda client, task, w, generator: w, w0=np.zeros(2), n_clients=4)


def made(n_clients: int = 4) -> fb.Schedule:
    return fb.uniform_arrivals(n_clients=n_clients, buffer_size=2, max_staleness=1, server_steps=5, seed=0)


@pytest.mark.parametrize(
    ("problem", "schedule", "local"),
    [
        (object(), made(), LOCAL),
        (PROBLEM, made(5), LOCAL),
        (PROBLEM, made(), None),
        (PROBLEM, made(), fb.LocalSGD(steps=1, lr=0.5, batch_size=[1, 2])),
        (CALLBACK, made(), LOCAL),
    ],
)
def test_the_constructor_and_the_check_refuse_the_same(problem: Any, schedule: fb.Schedule, local: Any) -> None:
    strategy = fb.FedBuff(buffer_size=2)
    with pytest.raises((TypeError, ValueError)) as built:
        Replay(problem, schedule, local, strategy=strategy)
    with pytest.raises(built.type) as checked:
        check_replay(problem, schedule, local, rule_of(strategy))
    assert str(checked.value) == str(built.value)


def test_what_is_right_passes() -> None:
    check_replay(PROBLEM, made(), LOCAL, rule_of(fb.FedBuff(buffer_size=2)))
    check_replay(CALLBACK, made(), None, rule_of(fb.FedBuff(buffer_size=2)))


def test_metrics_and_limits() -> None:
    check_metrics(["loss", "distance"], PROBLEM)
    with pytest.raises(ValueError, match="metrics: Quadratic has no accuracy, which 'accuracy' needs"):
        check_metrics(["accuracy"], PROBLEM)
    with pytest.raises(ValueError, match="metrics: stop looks at 'loss', which is not among them"):
        check_stop(fb.Stop(loss=0.1), ["grad_norm_sq"])


def test_a_study_is_checked_without_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    config = fb.StudyConfig(
        {
            "problem": {"kind": "quadratic", "centers": [[0.0, 0.0], [2.0, 0.0]]},
            "trace": {"kind": "model", "n_clients": 2, "compute": 1.0},
            "strategy": {"kind": "fedbuff", "buffer_size": 2},
            "local": {"steps": 1, "lr": 0.5},
            "schedule": {"server_steps": 3},
        }
    )
    schedule = config.make_schedule()
    monkeypatch.setattr(Replay, "__init__", lambda *_, **__: pytest.fail("a replay was built"))
    config.check(schedule)
    with pytest.raises(ValueError, match="trace: it is for 3 clients, the problem has 2"):
        config.check(made(3))
