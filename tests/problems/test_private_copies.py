"""What is made from arrays keeps copies of them: to edit the arrays afterwards changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedbuff as fb
from fedbuff._replay.checkpoint import problem_hash

Arrays = dict[str, NDArray[Any]]

OFFSETS = np.array([0, 3, 4])
ROWS = np.array([0, 0, 0, 1])


def rows(dtype: Any, clients: NDArray[Any], y: NDArray[Any]) -> Arrays:
    X = np.arange(1.0, 9.0).reshape(4, 2).astype(dtype)
    return {"X": X, "y": y, "clients": clients.copy(), "client_weights": np.array([1.0, 3.0])}


def sparse(dtype: Any, index: Any) -> Arrays:
    return {
        "data": np.arange(1.0, 6.0).astype(dtype),
        "indices": np.array([0, 1, 0, 1, 0], index),
        "indptr": np.array([0, 2, 3, 4, 5], index),
        "y": np.array([0, 1, 1, 0], dtype),
        "clients": OFFSETS.copy(),
    }


def logistic_of_csr(data: Any, indices: Any, indptr: Any, y: Any, clients: Any) -> fb.Logistic:
    return fb.Logistic(SimpleNamespace(data=data, indices=indices, indptr=indptr, shape=(4, 2)), y, clients)


def problems() -> dict[str, tuple[Callable[..., Any], Arrays]]:
    made: dict[str, tuple[Callable[..., Any], Arrays]] = {}
    label = np.array([0, 1, 2, 1], np.int32)
    for dtype in ("float32", "float64"):
        for kind, clients in (("offsets", OFFSETS), ("sorted rows", ROWS), ("mixed rows", ROWS[::-1])):
            name = f"{dtype}, {kind}"
            made[f"LeastSquares, {name}"] = fb.LeastSquares, rows(dtype, clients, np.arange(4.0).astype(dtype))
            made[f"Logistic, {name}"] = fb.Logistic, rows(dtype, clients, np.array([0, 1, 1, 0], dtype))
            made[f"Softmax, {name}"] = fb.Softmax, rows(dtype, clients, label.copy())
            made[f"MLP, {name}"] = fb.MLP, rows(dtype, clients, label.copy())
        for index in ("int32", "int64"):
            made[f"CSR, {dtype}, {index}"] = logistic_of_csr, sparse(dtype, index)
        for form, curvature in {"scalar": np.array(0.5), "diagonal": np.ones(2), "dense": np.eye(2)}.items():
            quadratic = {"centers": np.ones((2, 2), dtype), "client_weights": np.array([1.0, 3.0])}
            made[f"Quadratic, {dtype}, {form}"] = fb.Quadratic, {**quadratic, "curvature": curvature.astype(dtype)}
    training = fb.Softmax(np.ones((3, 2), np.float32), [0, 1, 2], [0, 1, 2])
    made["held_out"] = training.held_out, {"X": np.eye(2, dtype=np.float32), "y": label[:2].copy()}
    return made


def scribble(arrays: Arrays) -> None:
    for array in arrays.values():
        array[...] = 77


@pytest.mark.parametrize("name", problems())
def test_a_problem_does_not_see_later_edits(name: str) -> None:
    make, arrays = problems()[name]
    problem = make(**arrays)
    w = np.linspace(-1.0, 1.0, problem.dim).astype(problem.dtype)
    before = problem_hash(problem), problem.loss(w), problem.grad(w).tobytes(), problem.n_samples.tolist()
    scribble(arrays)
    assert before == (problem_hash(problem), problem.loss(w), problem.grad(w).tobytes(), problem.n_samples.tolist())


def test_without_a_copy_the_rows_are_the_callers() -> None:
    arrays = rows("float64", OFFSETS, np.arange(4.0))
    problem = fb.LeastSquares(**arrays, copy=False)
    before = problem.loss(np.ones(2))
    arrays["y"][0] = 50.0
    assert problem.loss(np.ones(2)) != before


def other_makers() -> dict[str, tuple[Callable[..., Any], Arrays, Callable[[Any], Any]]]:
    made = fb.uniform_arrivals(n_clients=4, buffer_size=2, max_staleness=1, server_steps=5, seed=0)._state()
    columns = {name: value.copy() for name, value in made.items() if isinstance(value, np.ndarray)}
    whole = np.array([0, 0, 1, 1])
    return {
        "Schedule": (lambda **given: fb.Schedule(**{**made, **given}), columns, lambda made: made.sha256),
        "Schedule of views": (
            lambda **given: fb.Schedule(**{**made, **{name: column[:] for name, column in given.items()}}),
            {name: column.copy() for name, column in columns.items()},
            lambda made: made.sha256,
        ),
        "Trace": (
            fb.Trace,
            {"client": whole.copy(), "compute": np.ones(4), "upload": np.ones(4), "ok": np.ones(4, bool)},
            lambda made: (made.client.tolist(), made.compute.tolist(), made.upload.tolist(), made.ok.tolist()),
        ),
        "ArrivalLog": (
            fb.ArrivalLog,
            {"client": np.array([0, 1]), "arrive_time": np.array([1.0, 2.0]), "start_time": np.zeros(2)},
            lambda made: (made.client.tolist(), made.arrive_time.tolist(), made.start_time.tolist()),
        ),
        "Availability": (
            lambda **given: fb.Availability(**given, n_clients=2),
            {"client": np.array([0, 1]), "begin": np.zeros(2), "end": np.ones(2), "period": np.array([2.0, 3.0])},
            lambda made: made.describe(),
        ),
        "Empirical": (fb.Empirical, {"samples": np.arange(4.0)}, lambda made: made.samples.tolist()),
        "DelayModel": (
            lambda **given: fb.DelayModel(n_clients=2, compute=fb.Constant(1.0), **given),
            {"client_speed": np.ones(2), "n_samples": np.ones(2, np.int64)},
            lambda made: made.describe(),
        ),
        "LocalSGD": (
            lambda **given: fb.LocalSGD(steps=1, lr=0.1, **given),
            {"batch_size": np.array([1, 2])},
            lambda made: made.batches(2).tolist(),
        ),
        "Callback": (
            lambda **given: fb.Callback(lambda client, task, w, generator: w, n_clients=2, **given),
            {"w0": np.ones(2), "n_samples": np.array([1, 2])},
            lambda made: (made.init().tolist(), made.n_samples.tolist()),
        ),
        "Custom": (
            lambda **given: fb.Custom(1, dim=2, **given),
            {"n_samples": np.array([1, 2])},
            lambda made: made.n_samples.tolist(),
        ),
        "Server": (
            lambda **given: fb.Server(strategy=fb.FedBuff(1), **given),
            {"w0": np.ones(2)},
            lambda made: made.w.tolist(),
        ),
    }


@pytest.mark.parametrize("name", other_makers())
def test_nor_does_anything_else(name: str) -> None:
    make, arrays, content = other_makers()[name]
    made = make(**arrays)
    before = content(made)
    scribble(arrays)
    made.__dict__.pop("sha256", None) if isinstance(made, fb.Schedule) else None  # it is kept once worked out
    assert content(made) == before


def test_what_is_shown_cannot_be_edited() -> None:
    problem = fb.Softmax(np.eye(3, dtype=np.float32), [0, 1, 2], [0, 1, 2])
    callback = fb.Callback(lambda client, task, w, generator: w, w0=np.ones(2), n_clients=1)
    for array in (problem.classes, problem.n_samples, callback.w0, callback.n_samples):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
