"""Small studies."""

from __future__ import annotations

from typing import Any

import pytest

import fedbuff as fb

BASE: dict[str, Any] = {
    "problem": {
        "kind": "softmax",
        "data": "sample:digits",
        "test": 0.2,
        "partition": {"kind": "dirichlet", "n_clients": 12, "alpha": 0.5},
    },
    "trace": {"kind": "model", "n_clients": 12, "compute": {"kind": "exponential", "scale": 1.0}},
    "strategy": {"kind": "fedbuff", "buffer_size": 2},
    "local": {"steps": 2, "lr": 0.1, "batch_size": 8},
    "schedule": {"concurrency": 4, "server_steps": 30},
    "replay": {"eval_every": 10},
}
QUADRATIC: dict[str, Any] = {
    "problem": {"kind": "quadratic", "centers": [[0.0, 0.0], [2.0, 0.0], [0.0, 1.0]]},
    "trace": {"kind": "model", "n_clients": 3, "compute": {"kind": "exponential", "scale": 1.0}},
    "strategy": {"kind": "fedbuff", "buffer_size": 2},
    "local": {"steps": 1, "lr": 0.5},
    "schedule": {"server_steps": 20},
    "replay": {"eval_every": 10},
}


@pytest.fixture
def base() -> dict[str, Any]:
    return fb.StudyConfig(BASE).tables


@pytest.fixture
def quadratic() -> dict[str, Any]:
    return fb.StudyConfig(QUADRATIC).tables
