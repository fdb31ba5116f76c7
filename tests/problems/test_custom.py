"""A compiled gradient of somebody else's, run by the engine."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends

if backends.current().name != "cpp":
    pytest.skip("Custom needs the cpp backend", allow_module_level=True)

nb = pytest.importorskip("numba", reason="the compiled gradients here are made by Numba: pip install fedbuff[numba]")
types = nb.types

N, DIM, ROWS = 12, 3, 8
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N * ROWS, DIM))
Y = RNG.standard_normal(N * ROWS)
DATA = np.ascontiguousarray(np.column_stack([X, Y]))

SIGNATURE = types.int32(
    types.int64, types.int64, types.CPointer(types.int64), types.CPointer(types.float64), types.CPointer(types.float64),
    types.voidptr,
)  # fmt: skip


@nb.cfunc(SIGNATURE)
def least_squares(client: Any, n_rows: Any, rows: Any, w: Any, out: Any, context: Any) -> Any:
    data = nb.carray(context, (N * ROWS, DIM + 1), dtype=np.float64)
    for j in range(DIM):
        out[j] = 0.0
    for i in range(n_rows):
        row = client * ROWS + rows[i]
        residual = -data[row, DIM]
        for j in range(DIM):
            residual += data[row, j] * w[j]
        for j in range(DIM):
            out[j] += residual * data[row, j] / n_rows
    return 0


@nb.cfunc(SIGNATURE)
def failing(client: Any, n_rows: Any, rows: Any, w: Any, out: Any, context: Any) -> Any:
    return 7 if client == 3 else 0


def schedule_of(strategy: Any) -> fb.Schedule:
    return fb.schedule(
        fb.DelayModel(n_clients=N, compute=fb.Exponential(1.0)), strategy, concurrency=6, server_steps=40, seed=2
    )


def make(gradient: Any = least_squares, **options: Any) -> fb.Custom:
    return fb.Custom(gradient, dim=DIM, n_samples=np.full(N, ROWS), dtype=np.float64, context=DATA, **options)


def as_capsule(address: int) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(address, None, None)


@pytest.mark.parametrize("local", [fb.LocalSGD(3, 0.05, 4), fb.LocalSGD(2, 0.05), fb.LocalSGD(3, 0.05, 4, momentum=0.5,
                                   weight_decay=0.1, prox=0.2)])  # fmt: skip
def test_it_equals_the_built_in_problem(local: fb.LocalSGD) -> None:
    strategy = fb.FedBuff(3)
    schedule = schedule_of(strategy)
    built_in = fb.LeastSquares(X, Y, np.repeat(np.arange(N), ROWS))
    expected = fb.replay(built_in, schedule, local, strategy=strategy, seed=4).w
    runs = [fb.replay(make(), schedule, local, strategy=strategy, seed=4, threads=t).w for t in (1, 2, 5)]
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])
    np.testing.assert_allclose(runs[0], expected, rtol=0, atol=1e-13)


def test_address_cfunc_and_capsule_are_alike() -> None:
    schedule = schedule_of(fb.FedBuff(3))
    local = fb.LocalSGD(1, 0.05, 2)
    given = (least_squares, least_squares.address, as_capsule(least_squares.address))
    runs = [fb.replay(make(gradient), schedule, local).w for gradient in given]
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])


def test_gradient_and_metrics() -> None:
    built_in = fb.LeastSquares(X, Y, np.repeat(np.arange(N), ROWS))
    problem = make(loss=built_in.loss)
    w = RNG.standard_normal(DIM)
    np.testing.assert_allclose(problem.grad(w), built_in.grad(w), rtol=0, atol=1e-13)
    run = fb.replay(problem, schedule_of(fb.FedBuff(3)), fb.LocalSGD(1, 0.1, 2), eval_every=20,
                    metrics=("loss", "grad_norm_sq"))  # fmt: skip
    assert run.history["loss"][-1] == built_in.loss(run.w)
    assert run.history["grad_norm_sq"][-1] == pytest.approx(problem.grad(run.w) @ problem.grad(run.w))


def test_a_code_ends_the_replay_with_the_client() -> None:
    with pytest.raises(RuntimeError, match="gradient: it returned 7 for client 3"):
        fb.replay(make(failing), schedule_of(fb.FedBuff(3)), fb.LocalSGD(1, 0.1, 2), threads=2)
    with pytest.raises(RuntimeError, match="returned 7 for client 3"):
        make(failing).grad(np.zeros(DIM))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"gradient": "x"}, TypeError, "gradient: expected an address"),
        ({"gradient": 0}, ValueError, "gradient: expected the address of a function, got 0"),
        ({"dim": 0}, ValueError, "dim: "),
        ({"n_samples": [1, 0]}, ValueError, "n_samples: client 1"),
        ({"n_samples": 3}, TypeError, "n_samples: "),
        ({"dtype": np.int32}, TypeError, "dtype: expected float32 or float64"),
    ],
)
def test_bad_arguments(change: dict[str, Any], error: type[Exception], text: str) -> None:
    given = {"gradient": least_squares, "dim": DIM, "n_samples": [1], **change}
    with pytest.raises(error, match=text):
        fb.Custom(given.pop("gradient"), **given)
