"""`fb.jax.Loss`: the numbers of built-in problems, the same bits everywhere."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb

jax = pytest.importorskip("jax", reason="fb.jax needs JAX: pip install fedbuff[jax]")
jnp = jax.numpy

N_CLIENTS, N_ROWS, N_FEATURES, N_CLASSES = 8, 96, 5, 3
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N_ROWS, N_FEATURES)).astype(np.float32)
Y = RNG.integers(0, N_CLASSES, N_ROWS)
CLIENTS = np.sort(RNG.integers(0, N_CLIENTS, N_ROWS - N_CLIENTS).tolist() + list(range(N_CLIENTS)))
SCHEDULE = fb.schedule(
    fb.DelayModel(N_CLIENTS, compute=fb.Exponential(1.0)), fb.FedBuff(3), concurrency=6, server_steps=10, seed=0
)
LOCAL = fb.LocalSGD(steps=3, lr=0.1, batch_size=5)


def scores(params: Any, x: Any) -> Any:
    return x @ params["weight"].T + params["bias"]


def loss(params: Any, x: Any, y: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(scores(params, x)), y[:, None], 1).mean()


def dropped(params: Any, x: Any, y: Any, key: Any) -> Any:
    return loss(params, x * jax.random.bernoulli(key, 0.5, x.shape), y)


def start(key: Any) -> Any:
    weight = jax.random.normal(key, (N_CLASSES, N_FEATURES), dtype=jnp.float32)
    return {"bias": jnp.zeros(N_CLASSES, jnp.float32), "weight": weight}


def make(loss_fn: Any = loss, params: Any = start, **options: Any) -> Any:
    return fb.jax.Loss(loss_fn, params, X, Y, CLIENTS, predict=scores, **options)


def in_order(w: np.ndarray) -> np.ndarray:
    """A vector of ours, bias before weight, as `Softmax` has it."""
    weight = w[N_CLASSES:].reshape(N_CLASSES, N_FEATURES)
    return np.concatenate((weight.ravel(), w[:N_CLASSES]))


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("local", [LOCAL, fb.LocalSGD(steps=2, lr=0.05, momentum=0.9, weight_decay=0.01, prox=0.1)])
def test_it_gives_the_numbers_of_a_built_in_problem(batch: Any, local: Any) -> None:
    ours, theirs = fb.Softmax(X, Y, CLIENTS), make(batch=batch)
    w = theirs.init(3)
    assert (w != theirs.init(4)).any() and theirs.dim == ours.dim and theirs.dtype == np.float32
    v = in_order(w)
    assert theirs.loss(w) == pytest.approx(ours.loss(v), rel=1e-5)
    assert theirs.client_loss(2, w) == pytest.approx(ours.client_loss(2, v), rel=1e-5)
    assert theirs.accuracy(w) == ours.accuracy(v)
    np.testing.assert_allclose(in_order(theirs.grad(w)), ours.grad(v), rtol=1e-4, atol=1e-6)
    delta = theirs.delta(w, 4, local, task=2, seed=9)
    np.testing.assert_allclose(in_order(delta), ours.delta(v, 4, local, task=2, seed=9), rtol=1e-4, atol=1e-6)
    run = fb.replay(theirs, SCHEDULE, local, w0=w, seed=5, eval_every=5, metrics=("loss", "grad_norm_sq", "accuracy"))
    expected = fb.replay(ours, SCHEDULE, local, w0=v, seed=5)
    np.testing.assert_allclose(in_order(run.w), expected.w, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("batch", [None, 4])
def test_the_bits_depend_on_nothing_else(batch: Any, tmp_path: Path) -> None:
    problem = make(dropped, batch=batch)
    whole = fb.replay(problem, SCHEDULE, LOCAL, seed=2, threads=1)
    np.testing.assert_array_equal(fb.replay(problem, SCHEDULE, LOCAL, seed=2, threads=3).w, whole.w)
    part = fb.Replay(problem, SCHEDULE, LOCAL, seed=2)
    part.run(4)
    part.save(tmp_path / "r.npz")
    again = fb.Replay.load(tmp_path / "r.npz", pickle.loads(pickle.dumps(problem)), SCHEDULE)
    again.run()
    np.testing.assert_array_equal(again.w, whole.w)


def test_worker_processes_give_the_same_bits() -> None:
    runs = []
    for workers in (1, 2):
        there = make(dropped, workers=workers)
        runs.append(fb.replay(there, SCHEDULE, LOCAL, seed=2).w)
        there.close()
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_allclose(runs[0], fb.replay(make(dropped), SCHEDULE, LOCAL, seed=2).w, rtol=1e-4, atol=1e-6)


def test_params_go_in_and_out() -> None:
    given = start(jax.random.key(1))
    problem = make(params=given)
    w = problem.init(5)
    np.testing.assert_array_equal(w, problem.init(6))
    tree = problem.to_jax(w)
    np.testing.assert_array_equal(tree["weight"], given["weight"])
    np.testing.assert_array_equal(problem.from_jax(tree), w)
    with pytest.raises(ValueError, match="params: expected a tree like"):
        problem.from_jax({"weight": given["weight"]})
    with pytest.raises(ValueError, match=r"params: an array has shape \(2,\), expected \(3,\)"):
        problem.from_jax({**given, "bias": np.zeros(2, np.float32)})


def test_bad_input_is_named() -> None:
    for call, kind, text in (
        (lambda: make(3), TypeError, "loss_fn: expected a function, got int"),
        (lambda: make(params={}), TypeError, "params: expected arrays of one dtype, got none"),
        (lambda: make(params={"a": np.zeros(2, np.int32)}), TypeError, "all float32 or all float64, got int32"),
        (lambda: fb.jax.Loss(loss, start, X, Y, CLIENTS, predict=3), TypeError, "predict: expected a function"),
        (lambda: fb.replay(make(), SCHEDULE), TypeError, "local: expected a LocalSGD, got NoneType"),
    ):
        with pytest.raises(kind, match=text):
            call()
    without = fb.jax.Loss(loss, start, X, Y, CLIENTS)
    with pytest.raises(ValueError, match="metrics: Loss has no accuracy"):
        fb.replay(without, SCHEDULE, LOCAL, eval_every=5, metrics=("accuracy",))


def test_in_a_configuration(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", X=X, y=Y)
    (tmp_path / "mine.py").write_text(
        "import jax\nimport jax.numpy as jnp\n\n\ndef scores(p, x):\n    return x @ p\n\n\n"
        "def loss(p, x, y):\n    return -jax.nn.log_softmax(scores(p, x))[jnp.arange(len(y)), y].mean()\n\n\n"
        f"def start(key, scale):\n    return scale * jax.random.normal(key, ({N_FEATURES}, {N_CLASSES}))\n"
    )
    tables = {
        "problem": {
            "kind": "jax", "loss": "mine.py:loss", "params": "mine.py:start", "predict": "mine.py:scores",
            "options": {"scale": 0.1}, "data": "rows.npz", "partition": {"kind": "iid", "n_clients": 8},
        },
        "trace": {"kind": "model", "n_clients": 8, "compute": {"kind": "exponential", "scale": 1.0}},
        "strategy": {"kind": "fedbuff", "buffer_size": 2},
        "local": {"steps": 2, "lr": 0.1, "batch_size": 4},
        "schedule": {"server_steps": 6},
    }  # fmt: skip
    config = fb.StudyConfig(tables, tmp_path, allow_code=True)
    run = config.run(seed=1)
    assert run.version == 6 and {"loss", "accuracy"} <= set(run.history)
    results = fb.sweep(config, {"problem.options.scale": [0.1, 0.2]}, seeds=[1], progress=False)
    assert list(results.column("status")) == ["done"] * 2
    with pytest.raises(ValueError, match=r"problem\.params: expected 'module:function'"):
        fb.StudyConfig({**tables, "problem": {**tables["problem"], "params": 3}}, tmp_path)
