"""`fb.torch.Module`: the numbers of built-in problems, nothing dropped, the same bits everywhere."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb

torch = pytest.importorskip("torch", reason="fb.torch needs PyTorch: pip install fedbuff[torch]")
nn = torch.nn

N_CLIENTS, N_ROWS, N_FEATURES, N_CLASSES = 12, 240, 6, 3
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N_ROWS, N_FEATURES))
Y = RNG.integers(0, N_CLASSES, N_ROWS)
CLIENTS = np.sort(RNG.integers(0, N_CLIENTS, N_ROWS - N_CLIENTS).tolist() + list(range(N_CLIENTS)))
SCHEDULE = fb.schedule(
    fb.DelayModel(N_CLIENTS, compute=fb.Exponential(1.0)), fb.FedBuff(3), concurrency=8, server_steps=15, seed=0
)
LOCAL = fb.LocalSGD(steps=3, lr=0.1, batch_size=5)


def linear() -> Any:
    return nn.Linear(N_FEATURES, N_CLASSES).double()


def mlp() -> Any:
    return nn.Sequential(nn.Linear(N_FEATURES, 7), nn.ReLU(), nn.Linear(7, N_CLASSES)).double()


def small() -> Any:
    return nn.Sequential(nn.Linear(N_FEATURES, 7), nn.Tanh(), nn.Linear(7, N_CLASSES))


def dropout() -> Any:
    return nn.Sequential(nn.Linear(N_FEATURES, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, N_CLASSES)).double()


def normed() -> Any:
    return nn.Sequential(nn.Linear(N_FEATURES, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, N_CLASSES)).double()


class Shifted(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(N_FEATURES, N_CLASSES).double()
        self.register_buffer("shift", torch.ones(N_FEATURES, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        return self.inner(x + self.shift)


def make(model: Any = mlp, x: Any = X, y: Any = Y, **options: Any) -> Any:
    return fb.torch.Module(model, x, y, CLIENTS, **options)


@pytest.mark.parametrize(
    ("model", "built_in"),
    [(linear, lambda: fb.Softmax(X, Y, CLIENTS)), (mlp, lambda: fb.MLP(X, Y, CLIENTS, hidden=(7,)))],
)
@pytest.mark.parametrize(
    "local",
    [
        LOCAL,
        fb.LocalSGD(steps=4, lr=0.05, momentum=0.9, weight_decay=0.01, prox=0.1),
        fb.LocalSGD(steps=2, lr=0.1, batch_size=list(range(1, N_CLIENTS + 1))),
    ],
)
@pytest.mark.parametrize("batch", [None, 8])
def test_it_gives_the_numbers_of_a_built_in_problem(model: Any, built_in: Any, local: Any, batch: Any) -> None:
    ours, theirs = built_in(), make(model, batch=batch)
    assert (theirs.dim, theirs.dtype, theirs.n_clients) == (ours.dim, ours.dtype, ours.n_clients)
    w = theirs.init(3)
    assert theirs.loss(w) == pytest.approx(ours.loss(w), rel=1e-12)
    assert theirs.client_loss(2, w) == pytest.approx(ours.client_loss(2, w), rel=1e-12)
    assert theirs.accuracy(w) == ours.accuracy(w)
    np.testing.assert_allclose(theirs.grad(w), ours.grad(w), rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(
        theirs.delta(w, 4, local, task=2, seed=9), ours.delta(w, 4, local, task=2, seed=9), rtol=1e-10, atol=1e-14
    )
    runs = [fb.replay(p, SCHEDULE, local, w0=w, seed=5, eval_every=5, metrics=("loss", "grad_norm_sq", "accuracy"))
            for p in (ours, theirs)]  # fmt: skip
    np.testing.assert_allclose(runs[0].w, runs[1].w, rtol=1e-9, atol=1e-12)
    for name in ("loss", "grad_norm_sq", "accuracy"):
        np.testing.assert_allclose(runs[0].history[name], runs[1].history[name], rtol=1e-8)


def test_other_losses() -> None:
    binary, target = (Y > 0).astype(np.float64), X @ np.arange(6.0)
    one = lambda: nn.Linear(N_FEATURES, 1).double()  # noqa: E731
    for name, y, ours in (
        ("binary_cross_entropy", binary, fb.Logistic(X, binary, CLIENTS, intercept=True)),
        ("squared_error", target, fb.LeastSquares(X, target, CLIENTS, intercept=True)),
    ):
        theirs = make(one, y=y, loss=name)
        w = theirs.init(1)
        assert theirs.loss(w) == pytest.approx(ours.loss(w), rel=1e-12)
        np.testing.assert_allclose(theirs.delta(w, 1, LOCAL), ours.delta(w, 1, LOCAL), rtol=1e-10)
    own = make(mlp, loss=nn.functional.cross_entropy)
    assert own.loss(own.init()) == pytest.approx(make().loss(own.init()), rel=1e-15)


def test_weights_go_in_and_out() -> None:
    problem = make()
    w = problem.init(7)
    module = problem.to_torch(w)
    np.testing.assert_array_equal(problem.from_torch(module), w)
    np.testing.assert_array_equal(problem.from_torch(module.state_dict()), w)
    torch.manual_seed(7)
    np.testing.assert_array_equal(problem.from_torch(mlp()), w)
    parts = np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])
    np.testing.assert_array_equal(parts, w)
    (problem.loss(w + 1), problem.delta(w, 0, LOCAL))
    np.testing.assert_array_equal(problem.from_torch(module), w)  # it is the caller's own
    with pytest.raises(ValueError, match=r"source: 2\.weight is missing"):
        problem.from_torch({k: v for k, v in module.state_dict().items() if k != "2.weight"})
    with pytest.raises(ValueError, match=r"source: 0\.weight is missing"):
        problem.from_torch(linear())


@pytest.mark.parametrize("model", [dropout, small])
@pytest.mark.parametrize("batch", [None, 8])
def test_the_bits_depend_on_nothing_else(model: Any, batch: Any, tmp_path: Path) -> None:
    x = X.astype(np.float32) if model is small else X
    problem = make(model, x, batch=batch)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    whole = fb.replay(problem, SCHEDULE, LOCAL, seed=2, threads=1)
    assert whole.w.dtype == problem.dtype == x.dtype
    assert torch.equal(state, torch.get_rng_state()) and threads == torch.get_num_threads()
    torch.manual_seed(99)
    torch.set_num_threads(2)
    np.testing.assert_array_equal(fb.replay(problem, SCHEDULE, LOCAL, seed=2, threads=3).w, whole.w)
    torch.set_num_threads(threads)
    part = fb.Replay(problem, SCHEDULE, LOCAL, seed=2)
    part.run(6)
    part.save(tmp_path / "r.npz")
    again = fb.Replay.load(tmp_path / "r.npz", pickle.loads(pickle.dumps(problem)), SCHEDULE)
    again.run()
    np.testing.assert_array_equal(again.w, whole.w)
    with pytest.raises(ValueError, match="it was made with another problem"):
        fb.Replay.load(tmp_path / "r.npz", make(model, x + 1, batch=batch), SCHEDULE)
    if batch is None:
        there = make(model, x, workers=2)
        np.testing.assert_array_equal(fb.replay(there, SCHEDULE, LOCAL, seed=2).w, whole.w)
        there.close()


def test_buffers_are_never_dropped() -> None:
    with pytest.raises(ValueError, match=r"buffers: the module has 1.running_mean, 1.running_var, .* GroupNorm"):
        make(normed)
    problem = make(normed, buffers="average")
    weights = sum(p.numel() for p in normed().parameters())
    assert problem.dim == weights + 7 + 7 + 1
    w = problem.init()
    np.testing.assert_array_equal(w[weights:], [0.0] * 7 + [1.0] * 7 + [0.0])
    delta = problem.delta(w, 0, LOCAL)
    assert (delta[weights:] != 0).all() and delta[-1] == -LOCAL.steps  # counted batches
    run = fb.replay(problem, SCHEDULE, LOCAL)
    module = problem.to_torch(run.w)
    np.testing.assert_allclose(module[1].running_mean.numpy(), run.w[weights : weights + 7])
    np.testing.assert_array_equal(problem.grad(w)[weights:], 0)
    with pytest.raises(ValueError, match="buffers: tasks of a batch cannot change them"):
        make(normed, buffers="average", batch=4)
    constant = make(normed, buffers="constant")
    with pytest.raises(ValueError, match=r"buffers: 1.running_mean changes in training; pass buffers='average'"):
        constant.delta(constant.init(), 0, LOCAL)
    shifted = make(Shifted, buffers="constant")
    assert shifted.dim == N_FEATURES * N_CLASSES + N_CLASSES
    fb.replay(shifted, SCHEDULE, LOCAL)


def test_buffers_per_client() -> None:
    """Local steps do not use a BatchNorm's statistics; a client's loss takes those of its own rows."""
    problem, averaged = make(normed, buffers="per_client"), make(normed, buffers="average")
    n = problem.dim
    assert n == sum(p.numel() for p in normed().parameters())
    w = problem.init(2)
    delta = problem.delta(w, 3, LOCAL, task=1)
    np.testing.assert_array_equal(delta, averaged.delta(averaged.init(2), 3, LOCAL, task=1)[:n])
    order, ends = np.argsort(CLIENTS, kind="stable"), np.cumsum(np.bincount(CLIENTS))
    rows = np.split(order, ends[:-1])
    module = problem.to_torch(w)
    module.train()
    with torch.no_grad():
        outputs = [module(torch.from_numpy(X[mine])) for mine in rows]
    losses = [float(nn.functional.cross_entropy(o, torch.from_numpy(Y[m]))) for o, m in zip(outputs, rows, strict=True)]
    assert problem.loss(w) == pytest.approx(np.mean(losses), rel=1e-12)
    assert problem.client_loss(5, w) == pytest.approx(losses[5], rel=1e-12)
    right = sum(int((o.argmax(1).numpy() == Y[m]).sum()) for o, m in zip(outputs, rows, strict=True))
    assert problem.accuracy(w) == right / N_ROWS
    way = np.random.default_rng(1).standard_normal(n) * 1e-6
    slope = (problem.loss(w + way) - problem.loss(w - way)) / 2
    assert problem.grad(w) @ way == pytest.approx(slope, rel=1e-6)


def test_statistics_of_a_client_and_their_means() -> None:
    problem = make(normed, buffers="per_client")
    w = fb.replay(problem, SCHEDULE, LOCAL, seed=4).w
    hidden = problem.to_torch(w)[0]
    means = []
    for client in range(N_CLIENTS):
        own = problem.to_torch(w, client=client)
        with torch.no_grad():
            before = hidden(torch.from_numpy(X[np.equal(CLIENTS, client)]))
        np.testing.assert_allclose(own[1].running_mean, before.mean(0), rtol=1e-12)
        np.testing.assert_allclose(own[1].running_var, before.var(0), rtol=1e-12)
        assert own[1].momentum == 0.1
        means.append(own[1].running_var.numpy())
    shared = problem.to_torch(w)
    np.testing.assert_allclose(shared[1].running_var, np.mean(means, axis=0), rtol=1e-12)
    with torch.no_grad():
        found = shared.eval()(torch.from_numpy(X)).argmax(1).numpy()
    assert problem.accuracy(w, (X, Y)) == problem.held_out(X, Y).accuracy(w) == (found == Y).mean()
    np.testing.assert_array_equal(problem.from_torch(shared), w)


def test_buffers_per_client_depend_on_nothing_else(tmp_path: Path) -> None:
    problem = make(normed, buffers="per_client")
    options: dict[str, Any] = {"seed": 2, "eval_every": 5, "metrics": ("loss", "accuracy", "grad_norm_sq")}
    whole = fb.replay(problem, SCHEDULE, LOCAL, threads=1, **options)
    threaded = fb.replay(problem, SCHEDULE, LOCAL, threads=3, **options)
    np.testing.assert_array_equal(threaded.w, whole.w)
    assert threaded.history["loss"].tolist() == whole.history["loss"].tolist()
    part = fb.Replay(problem, SCHEDULE, LOCAL, seed=2)
    part.run(6)
    part.save(tmp_path / "r.npz")
    again = fb.Replay.load(tmp_path / "r.npz", pickle.loads(pickle.dumps(problem)), SCHEDULE)
    again.run()
    np.testing.assert_array_equal(again.w, whole.w)
    there = make(normed, buffers="per_client", workers=2)
    np.testing.assert_array_equal(fb.replay(there, SCHEDULE, LOCAL, seed=2).w, whole.w)
    there.close()


def test_buffers_per_client_are_for_batch_norm() -> None:
    with pytest.raises(ValueError, match=r"buffers: shift is no statistic of a BatchNorm, which 'per_client' is for"):
        make(Shifted, buffers="per_client")
    with pytest.raises(ValueError, match="buffers: tasks of a batch cannot change them"):
        make(normed, buffers="per_client", batch=4)
    with pytest.raises(ValueError, match="client: expected None, since buffers='refuse' gives all clients the same"):
        make().to_torch(make().init(), client=0)
    problem = make(normed, buffers="per_client")
    with pytest.raises(IndexError, match="client: there are 12 clients, got 12"):
        problem.to_torch(problem.init(), client=12)
    assert make(buffers="per_client", batch=4).dim == make().dim  # there is nothing to keep


def test_frozen_weights_stay() -> None:
    def half() -> Any:
        module = mlp()
        module[0].requires_grad_(False)
        return module

    problem = make(half)
    assert problem.dim == 7 * N_CLASSES + N_CLASSES
    module = problem.to_torch(fb.replay(problem, SCHEDULE, LOCAL).w)
    torch.manual_seed(0)
    assert torch.equal(module[0].weight, half()[0].weight)


def test_bad_input_is_named() -> None:
    for call, kind, text in (
        (lambda: make(lambda: 3), TypeError, "model_fn: expected it to make an nn.Module, got int"),
        (lambda: make(3), TypeError, "model_fn: expected a function that makes a module, got int"),
        (lambda: make(loss="other"), ValueError, "loss: "),
        (lambda: make(y=Y + 0.5), ValueError, "y: cross_entropy wants labels"),
        (lambda: make(y=Y[1:]), ValueError, "y: expected 240 targets, one per row"),
        (lambda: make(x=np.where(X[5] == X, np.nan, X)), ValueError, "X: row 5 is not finite"),
        (lambda: make(lambda: mlp().half()), TypeError, "all float32 or all float64, got torch.float16"),
        (lambda: make(device="nowhere"), RuntimeError, "nowhere"),
        (lambda: fb.replay(make(), SCHEDULE), TypeError, "local: expected a LocalSGD, got NoneType"),
    ):
        with pytest.raises(kind, match=text):
            call()


def test_in_a_configuration(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", X=X.astype(np.float32), y=Y)
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n\ndef make(hidden):\n"
        f"    return nn.Sequential(nn.Linear({N_FEATURES}, hidden), nn.ReLU(), nn.Linear(hidden, {N_CLASSES}))\n"
    )
    tables = {
        "problem": {
            "kind": "torch", "model": "mine.py:make", "options": {"hidden": 4}, "data": "rows.npz", "test": 0.2,
            "buffers": "per_client",
            "partition": {"kind": "iid", "n_clients": 8},
        },
        "trace": {"kind": "model", "n_clients": 8, "compute": {"kind": "exponential", "scale": 1.0}},
        "strategy": {"kind": "fedbuff", "buffer_size": 2},
        "local": {"steps": 2, "lr": 0.1, "batch_size": 4},
        "schedule": {"server_steps": 6},
    }  # fmt: skip
    config = fb.StudyConfig(tables, tmp_path, allow_code=True)
    run = config.run(seed=1)
    assert run.version == 6 and run.w.size == 4 * N_FEATURES + 4 + 4 * N_CLASSES + N_CLASSES
    assert {"loss", "accuracy"} <= set(run.history)
    grid = {"problem.options.hidden": [2, 4], "local.lr": [0.05, 0.1]}
    results = fb.sweep(config, grid, seeds=[1], progress=False)
    assert list(results.column("status")) == ["done"] * 4
    with pytest.raises(ValueError, match="allow_code"):
        fb.StudyConfig(tables, tmp_path).run(seed=1)
    installed = tables | {"problem": tables["problem"] | {
        "model": "torch.nn:Linear", "options": {"in_features": N_FEATURES, "out_features": N_CLASSES}}}  # fmt: skip
    assert fb.StudyConfig(installed, tmp_path, allow_code=True).run(seed=1).version == 6


def test_no_warning_is_given() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fb.replay(make(), SCHEDULE, LOCAL, eval_every=5)
