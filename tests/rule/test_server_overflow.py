"""Finite deltas whose sum or step is not finite are refused, and leave the server as it was, on every backend."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb

BACKENDS = ["cpp", "numba", "reference"]
RULES = {
    "sgd": {},
    "momentum": {"optimizer": fb.SGD(momentum=0.9)},
    "current": {"base": "current"},
}
DIMS = [2, 40_000]  # settled under the lock, and in parts


@pytest.fixture(params=BACKENDS)
def parts(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip({"cpp": "fedbuff._core", "numba": "numba"}.get(request.param, "numpy"))
    return importlib.import_module(f"fedbuff.backends.{request.param}")


def state(server: Any, path: Path) -> dict[str, Any]:
    """All that a server knows, by way of its file."""
    server.save(path)
    with np.load(path) as file:
        return {name: file[name].tobytes() for name in file.files if name != "total"} | {
            "total": file["total"].tobytes() if server.fill else b""
        }


def near_the_end(parts: Any, dim: int, dtype: str, rule: dict[str, Any], **options: Any) -> Any:
    """A server two of three into its buffer, with a model at the end of what its dtype holds."""
    w0 = np.full(dim, -np.finfo(dtype).max, dtype)
    server = parts.Server(w0, fb.FedBuff(3, server_lr=1.0, **rule), **options)
    for _ in range(6):
        server.download()
    for _ in range(3):  # moments that are not zero, a model that moved
        server.upload(np.zeros(dim, dtype) if "unit" not in options else np.zeros(dim, np.int64), 0)
    server.download()
    return server


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", RULES)
def test_a_step_that_overflows_is_refused(parts: Any, tmp_path: Path, dim: int, dtype: str, name: str) -> None:
    server = near_the_end(parts, dim, dtype, RULES[name])
    most = np.finfo(dtype).max
    small, large = np.zeros(dim, dtype), np.zeros(dim, dtype)
    large[-1] = most / 2
    server.upload(small, 0)
    server.upload(small, 0)
    held, before = server.w, state(server, tmp_path / "a.npz")
    values = held.copy()
    outstanding = server.outstanding
    for _ in range(2):
        with pytest.raises(OverflowError, match=rf"^delta: after server step 1 the model would not fit {dtype}; noth"):
            server.upload(large, 1 if name != "current" else 0)
    assert state(server, tmp_path / "b.npz") == before
    assert (server.version, server.fill, server.outstanding) == (1, 2, outstanding)
    np.testing.assert_array_equal(held, values)
    assert server.upload(-large, 0)
    assert server.version == 2 and np.isfinite(server.w).all() and server.w[-1] > -most
    np.testing.assert_array_equal(held, values)


def test_adam_is_refused_too(parts: Any, tmp_path: Path) -> None:
    most = np.finfo(np.float32).max
    rule = fb.FedBuff(1, server_lr=float(most) / 11, optimizer=fb.Adam())
    server = parts.Server(np.zeros(3, np.float32), rule)
    for _ in range(20):
        server.download()
    for _ in range(10):  # each moves the model by about lr
        server.upload(np.ones(3, np.float32), 0)
    before = state(server, tmp_path / "a.npz")
    with pytest.raises(OverflowError, match="the model would not fit float32"):
        for _ in range(2):
            server.upload(np.ones(3, np.float32), 0)
            before = state(server, tmp_path / "a.npz")
    assert state(server, tmp_path / "b.npz") == before and np.isfinite(server.w).all()


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sum_that_overflows_is_refused(parts: Any, tmp_path: Path, dim: int, dtype: str) -> None:
    server = parts.Server(np.zeros(dim, dtype), fb.FedBuff(4))
    buffer = parts.DeltaBuffer(dim, dtype)
    for _ in range(4):
        server.download()
    delta = np.zeros(dim, dtype)
    delta[dim // 2] = np.finfo(dtype).max
    server.upload(delta, 0)
    buffer.add(delta)
    before = state(server, tmp_path / "a.npz")
    text = f"^delta: the sum does not fit {dtype}; nothing was added$"
    with pytest.raises(OverflowError, match=text):
        server.upload(delta, 0)
    with pytest.raises(OverflowError, match=text):
        buffer.add(delta)
    assert state(server, tmp_path / "b.npz") == before and buffer.count == 1
    np.testing.assert_array_equal(buffer.sum, delta)
    delta[0] = np.nan
    with pytest.raises(ValueError, match="delta: element 0 is nan; nothing was added"):
        server.upload(delta, 0)
    with pytest.raises(ValueError, match="delta: element 0 is nan; nothing was added"):
        buffer.add(delta)


def test_whole_numbers_too(parts: Any, tmp_path: Path) -> None:
    server = near_the_end(parts, 2, "float32", {}, unit=1e30)
    for _ in range(2):
        server.upload(np.array([1, -1]), 0)
    before = state(server, tmp_path / "a.npz")
    with pytest.raises(OverflowError, match="after server step 1 the model would not fit float32"):
        server.upload(np.array([10**9, 0]), 0)
    assert state(server, tmp_path / "b.npz") == before
    assert server.upload(np.array([-1, 1]), 0) and np.isfinite(server.w).all()


def test_a_replay_still_says_diverged() -> None:
    """The same numbers along a schedule: no error, but an exit reason, with the model before the step."""
    schedule = fb.uniform_arrivals(n_clients=2, buffer_size=1, max_staleness=0, server_steps=3, seed=0)
    most = np.finfo(np.float32).max
    for rule in ({}, {"optimizer": fb.SGD(momentum=0.9)}, {"base": "current"}):
        problem = fb.Callback(
            lambda client, task, w, generator: np.full(2, -most / 2, np.float32), w0=np.zeros(2, "f4"), n_clients=2
        )
        with pytest.warns(RuntimeWarning, match="the model is not finite after server step"):
            run = fb.replay(problem, schedule, strategy=fb.FedBuff(1, server_lr=1.0, **rule))
        assert run.exit_reason == fb.ExitReason.DIVERGED and np.isfinite(run.w).all() and run.version > 0
