"""`Network` as a user meets it: shapes, labels, starts, identities with other problems, and what it refuses."""

from __future__ import annotations

import copy
import pickle
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedbuff as fb
from fedbuff._base.checks import shown

L = fb.layers
Array = NDArray[Any]

every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])
CLIENTS = np.repeat([0, 1, 2], [2, 7, 3])
LABELS = np.arange(12) % 3


def images(*shape: int, dtype: str = "float64") -> Array:
    return np.random.default_rng(3).standard_normal((12, *shape)).astype(dtype)


def small(dtype: str = "float64", **options: Any) -> fb.Network:
    layers = [L.Conv2d(4, 3, padding="same"), L.ReLU(), L.MaxPool2d(2), L.Flatten(), L.Dense(3)]
    return fb.Network(images(2, 6, 5, dtype=dtype), LABELS, CLIENTS, layers=layers, **options)


def near(got: Any, want: Any, dtype: str = "float64") -> None:
    """Within a thousand roundings of numbers of size 10."""
    assert np.abs(np.asarray(got) - np.asarray(want)).max() <= 1e4 * np.finfo(dtype).eps


# Identities


@every_dtype
@pytest.mark.parametrize("options", [{}, {"l2": 0.25, "client_weights": "samples"}], ids=["plain", "l2"])
def test_dense_layers_are_an_mlp(dtype: str, options: Any) -> None:
    X = images(5, dtype=dtype)
    mlp = fb.MLP(X, LABELS, CLIENTS, hidden=(4, 6), **options)
    layers = [L.Dense(4), L.ReLU(), L.Dense(6), L.ReLU(), L.Dense(3)]
    network = fb.Network(X, LABELS, CLIENTS, layers=layers, **options)
    assert network.init(4).tobytes() == mlp.init(4).tobytes()
    same_problem(network, mlp, dtype)


@every_dtype
def test_one_dense_layer_is_softmax_regression(dtype: str) -> None:
    X = images(5, dtype=dtype)
    for intercept in (True, False):
        softmax = fb.Softmax(X, LABELS, CLIENTS, intercept=intercept)
        same_problem(fb.Network(X, LABELS, CLIENTS, layers=[L.Dense(3, bias=intercept)]), softmax, dtype)


@every_dtype
def test_one_output_is_least_squares_or_logistic(dtype: str) -> None:
    X, y = images(5, dtype=dtype), images(dtype=dtype)
    layers = [L.Dense(1, bias=False)]
    squares = fb.Network(X, y, CLIENTS, layers=layers, loss="squared_error")
    same_problem(squares, fb.LeastSquares(X, y, CLIENTS), dtype)
    assert squares.accuracy is None
    words = np.where(y > 0, "yes", "no")
    binary = fb.Network(X, words, CLIENTS, layers=layers, loss="binary_cross_entropy")
    same_problem(binary, fb.Logistic(X, words, CLIENTS), dtype)
    assert binary.classes.tolist() == ["no", "yes"]


@every_dtype
def test_convolutions_of_one_pixel_are_dense_layers(dtype: str) -> None:
    X = images(5, dtype=dtype)
    dense = fb.Network(X, LABELS, CLIENTS, layers=[L.Dense(4), L.ReLU(), L.Dense(3)])
    pixels = [L.Conv2d(4, 1), L.ReLU(), L.Conv2d(3, 1), L.Flatten()]
    same_problem(fb.Network(X[:, :, None, None], LABELS, CLIENTS, layers=pixels), dense, dtype)
    padded = [L.Conv2d(4, 1), L.ReLU(), L.MaxPool2d(1), L.Flatten(), L.Dense(3)]
    same_problem(fb.Network(X[:, :, None, None], LABELS, CLIENTS, layers=padded), dense, dtype)


@every_dtype
def test_a_kernel_as_large_as_the_image_is_a_dense_layer(dtype: str) -> None:
    X = images(2, 3, 4, dtype=dtype)
    dense = fb.Network(X, LABELS, CLIENTS, layers=[L.Flatten(), L.Dense(3)])
    same_problem(fb.Network(X, LABELS, CLIENTS, layers=[L.Conv2d(3, (3, 4)), L.Flatten()]), dense, dtype)


def same_problem(one: fb.Problem, other: fb.Problem, dtype: str) -> None:
    assert one.dim == other.dim
    w = (0.5 * np.random.default_rng(2).standard_normal(one.dim)).astype(dtype)
    near(one.loss(w), other.loss(w), dtype)
    near(one.grad(w), other.grad(w), dtype)
    for client in range(3):
        near(one.client_grad(client, w), other.client_grad(client, w), dtype)
        for local in (fb.LocalSGD(3, 0.1, 4), fb.LocalSGD(2, 0.1, momentum=0.5, weight_decay=0.1, prox=0.2)):
            near(one.delta(w, client, local, seed=5), other.delta(w, client, local, seed=5), dtype)
    if getattr(one, "accuracy", None):
        assert one.accuracy(w) == other.accuracy(w)  # type: ignore[attr-defined]


# As other problems


@every_dtype
@pytest.mark.parametrize("extras", [{}, {"momentum": 0.5, "weight_decay": 0.1, "prox": 0.3}], ids=["plain", "extras"])
def test_local_sgd_is_the_loop(dtype: str, extras: Any) -> None:
    problem = small(dtype)
    start = problem.init(3)
    for client in range(3):
        w, v = start.astype(np.float64), np.zeros(problem.dim)
        for _ in range(4):
            g = problem.client_grad(client, w.astype(dtype)).astype(np.float64)
            g += extras.get("weight_decay", 0) * w + extras.get("prox", 0) * (w - start)
            v = extras.get("momentum", 0) * v + g
            w = w - 0.05 * v
        near(problem.delta(start, client, fb.LocalSGD(4, 0.05, **extras)), start - w, dtype)


@pytest.mark.parametrize("pool", [[], [L.MaxPool2d(2)]], ids=["not pooled", "pooled"])
def test_biases_keep_the_digits_of_their_gradients(pool: Any) -> None:
    """One step in float32 rounds a bias about once, however many numbers its gradient is the sum of."""
    layers = [L.Conv2d(4, 3, padding="same"), L.ReLU(), *pool, L.Flatten(), L.Dense(8), L.ReLU(), L.Dense(3)]
    X, y = np.random.default_rng(0).standard_normal((32, 1, 24, 24)), np.arange(32) % 3
    single, double = (fb.Network(X.astype(dtype), y, np.zeros(32, int), layers=layers) for dtype in "fd")
    w, local, batches = single.init(1), fb.LocalSGD(1, 1e-3, 32), np.arange(32)[None]
    conv, hidden = slice(36, 40), slice(w.size - 35, w.size - 27)
    w[conv] = w[hidden] = 0.5
    lost = single.delta(w, 0, local, batches=batches) - double.delta(w.astype(float), 0, local, batches=batches)
    for part in (conv, hidden):
        assert np.abs(lost[part]).max() < 2 * np.spacing(np.float32(0.5))


def test_given_batches_are_means_over_those_rows() -> None:
    problem = small()
    w, own = problem.init(1), np.flatnonzero(CLIENTS == 1)
    batch = [0, 3, 3, 6]
    chosen = fb.Network(images(2, 6, 5)[own[batch]], LABELS[own[batch]], [0, 4], layers=problem.layers)
    near(problem.delta(w, 1, fb.LocalSGD(1, 0.5), batches=[batch]), 0.5 * chosen.grad(w))


def test_rows_of_one_channel() -> None:
    layers = [L.Conv2d(2, 3), L.ReLU(), L.Flatten(), L.Dense(3)]
    one, other = (fb.Network(X, LABELS, CLIENTS, layers=layers) for X in (images(6, 5), images(1, 6, 5)))
    assert one.shapes == other.shapes == ((1, 6, 5), (2, 4, 3), (2, 4, 3), (24,), (3,))
    w = one.init(1)
    assert one.grad(w).tobytes() == other.grad(w).tobytes()


@pytest.mark.parametrize("layout", ["channels last", "every other row", "reversed"])
def test_rows_of_any_layout(layout: str) -> None:
    problem = small()
    X = problem_rows = images(2, 6, 5)
    if layout == "channels last":
        X = np.ascontiguousarray(X.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    elif layout == "every other row":
        X = np.repeat(X, 2, axis=0)[::2]
    else:
        X = X[:, :, :, ::-1].copy()[:, :, :, ::-1]
    assert np.array_equal(X, problem_rows)
    w = problem.init(2)
    assert fb.Network(X, LABELS, CLIENTS, layers=problem.layers).grad(w).tobytes() == problem.grad(w).tobytes()
    with pytest.raises(ValueError, match=r"^X: expected C-contiguous"):
        fb.Network(X, LABELS, CLIENTS, layers=problem.layers, copy=False)


def test_without_a_copy_the_rows_are_the_callers() -> None:
    X = images(2, 6, 5)
    problem = fb.Network(X, LABELS, CLIENTS, layers=small().layers, copy=False)
    w = problem.init(1)
    before = problem.loss(w)
    X[0] += 1
    assert problem.loss(w) != before


def test_threads_do_not_change_bits() -> None:
    problem = small("float32")
    w = problem.init(1)
    assert len({(problem.loss(w, threads=t), problem.grad(w, threads=t).tobytes()) for t in (1, 2, 5)}) == 1


def test_held_out_rows() -> None:
    problem = small()
    w = problem.init(1)
    X = images(2, 6, 5)
    assert problem.accuracy(w, (X, LABELS)) == problem.accuracy(w)
    other = problem.held_out(X[:4], LABELS[:4])
    assert other.n_clients == 1 and other.layers == problem.layers
    near(other.loss(w), fb.Network(X[:4], LABELS[:4], [0, 4], layers=problem.layers).loss(w))
    with pytest.raises(ValueError, match=r"^X: expected rows of shape \(2, 6, 5\), got \(2, 5, 6\)$"):
        problem.held_out(X.transpose(0, 1, 3, 2), LABELS)


@pytest.mark.parametrize("bound", [False, True])
def test_it_pickles(bound: bool) -> None:
    problem = small()
    w = problem.init(1)
    if bound:
        problem.loss(w)
    for again in (pickle.loads(pickle.dumps(problem)), copy.deepcopy(problem)):
        assert again.grad(w).tobytes() == problem.grad(w).tobytes()
        assert again.layers == problem.layers and again.accuracy(w) == problem.accuracy(w)


def test_it_is_shown_without_its_arrays() -> None:
    assert repr(small()) == "<Network: 3 clients, 151 float64 weights>"
    assert len(shown(small().layers)) < 300


def test_estimates() -> None:
    constants = small().constants()
    assert {value.tag.value for value in (constants.L, constants.sigma2, constants.gamma2)} == {"estimate"}
    assert constants.L.value > 0 and constants.f_star.value == 0


def test_a_replay_trains_it_with_the_same_bits_on_all_threads() -> None:
    problem = small("float32")
    model = fb.DelayModel(n_clients=3, compute=fb.Exponential(1.0))
    schedule = fb.schedule(model, fb.FedBuff(buffer_size=2), server_steps=60, seed=1)
    local = fb.LocalSGD(3, 0.1, 2, momentum=0.5)
    options: dict[str, Any] = {"strategy": fb.FedBuff(buffer_size=2), "seed": 3, "eval_every": 20}
    one, two = (fb.replay(problem, schedule, local, threads=t, metrics=("loss", "accuracy"), **options) for t in (1, 2))
    assert one.w.tobytes() == two.w.tobytes()
    assert one.history["loss"][-1] < 0.5 * one.history["loss"][0]


# Bytes

PIXELS = np.random.default_rng(6).integers(0, 256, (12, 2, 6, 5)).astype(np.uint8)


@every_dtype
@pytest.mark.parametrize("options", [{}, {"scale": 0.03, "shift": -1.5}], ids=["by default", "given"])
def test_bytes_stand_for_numbers(dtype: str, options: Any) -> None:
    layers = small().layers
    scale, shift = options.get("scale", 1 / 255), options.get("shift", 0.0)
    numbers = (scale * PIXELS.astype(np.float64) + shift).astype(dtype)
    bytes_ = fb.Network(PIXELS, LABELS, CLIENTS, layers=layers, dtype=dtype, **options)
    other = fb.Network(numbers, LABELS, CLIENTS, layers=layers)
    w, local = other.init(1), fb.LocalSGD(3, 0.1, 4)
    assert bytes_.dtype == dtype and bytes_.init(1).tobytes() == w.tobytes()
    assert bytes_.loss(w) == other.loss(w) and bytes_.grad(w).tobytes() == other.grad(w).tobytes()
    assert bytes_.delta(w, 1, local, seed=3).tobytes() == other.delta(w, 1, local, seed=3).tobytes()
    for X in (PIXELS, numbers):  # held-out rows may be either
        assert bytes_.accuracy(w, (X, LABELS)) == other.accuracy(w)
    again = pickle.loads(pickle.dumps(bytes_))
    assert again.grad(w).tobytes() == other.grad(w).tobytes()


def test_bytes_are_kept_as_they_are() -> None:
    X = PIXELS.copy()
    problem = fb.Network(X, LABELS, CLIENTS, layers=small().layers, copy=False)
    assert problem.dtype == "float32" and problem._spec.byte is not None and np.shares_memory(problem._spec.byte, X)
    order = np.random.default_rng(1).permutation(12)
    mixed = fb.Network(PIXELS[order], LABELS[order], CLIENTS[order], layers=small().layers)
    w = mixed.init(1)
    for client in range(3):
        near(mixed.client_grad(client, w), problem.client_grad(client, w), "float32")


def test_what_is_augmented_is_a_function_of_seed_client_task_step() -> None:
    plain = small()
    problem = fb.Network(images(2, 6, 5), LABELS, CLIENTS, layers=[L.RandomCrop(2), L.RandomFlip(), *plain.layers])
    w, local = problem.init(1), fb.LocalSGD(2, 0.1, 3)
    assert problem.grad(w).tobytes() == plain.grad(w).tobytes() and problem.accuracy(w) == plain.accuracy(w)

    def delta(client: int = 1, **options: int) -> bytes:
        return problem.delta(w, client, local, **options).tobytes()

    first = delta(task=3, seed=5)
    assert delta(task=3, seed=5) == first != plain.delta(w, 1, local, task=3, seed=5).tobytes()
    assert len({first, delta(task=4, seed=5), delta(task=3, seed=6), delta(0, task=3, seed=5)}) == 4
    model = fb.DelayModel(n_clients=3, compute=fb.Exponential(1.0))
    schedule = fb.schedule(model, fb.FedBuff(buffer_size=2), server_steps=30, seed=1)
    options: dict[str, Any] = {"strategy": fb.FedBuff(buffer_size=2), "seed": 3, "eval_every": 10}
    one, two = (fb.replay(problem, schedule, local, threads=t, **options) for t in (1, 2))
    assert one.w.tobytes() == two.w.tobytes()


# Tokens and sequences

TOKENS = np.random.default_rng(4).integers(0, 6, (12, 5))


def words(dtype: str = "float64", X: Any = TOKENS, **options: Any) -> fb.Network:
    layers = [L.Embedding(6, 4), L.Tanh(), L.MeanOverTime(), L.Dense(3)]
    return fb.Network(X, LABELS, CLIENTS, layers=layers, dtype=dtype, **options)


@every_dtype
def test_an_embedding_is_a_dense_layer_over_indicators(dtype: str) -> None:
    problem = words(dtype)
    assert problem.shapes == ((5,), (5, 4), (5, 4), (4,), (3,)) and problem.dtype == dtype
    w = (0.5 * np.random.default_rng(2).standard_normal(problem.dim)).astype(dtype)
    pixels = np.eye(6, dtype=dtype)[TOKENS].transpose(0, 2, 1)[..., np.newaxis]  # (rows, words, time, 1)
    layers = [L.Conv2d(4, 1, bias=False), L.Tanh(), L.GlobalAvgPool2d(), L.Dense(3)]
    other = fb.Network(pixels, LABELS, CLIENTS, layers=layers)
    same = np.concatenate([w[:24].reshape(6, 4).T.ravel(), w[24:]])
    near(problem.loss(w), other.loss(same), dtype)
    gradient = other.grad(same)
    near(problem.grad(w), np.concatenate([gradient[:24].reshape(4, 6).T.ravel(), gradient[24:]]), dtype)
    assert problem.accuracy(w) == other.accuracy(same)


@pytest.mark.parametrize("kind", ["int8", "uint8", "uint16", "int32", "int64", "uint64"])
def test_tokens_are_integers_of_any_kind(kind: str) -> None:
    w = words().init(3)
    assert words(X=TOKENS.astype(kind)).grad(w).tobytes() == words().grad(w).tobytes()
    assert words().accuracy(w, (TOKENS.astype(kind), LABELS)) == words().accuracy(w)


def test_tokens_have_float32_models_unless_said() -> None:
    layers = [L.Embedding(6, 4), L.MeanOverTime(), L.Dense(3)]
    problem = fb.Network(TOKENS, LABELS, CLIENTS, layers=layers)
    assert problem.dtype == "float32" and problem.held_out(TOKENS, LABELS).dtype == "float32"


def test_without_a_copy_int32_tokens_are_the_callers() -> None:
    X = TOKENS.astype(np.int32)
    problem = words(X=X, copy=False)
    before = problem.loss(w := problem.init(1))
    X[0] = (X[0] + 1) % 6
    assert problem.loss(w) != before


def test_tokens_of_clients_in_any_order() -> None:
    order = np.random.default_rng(1).permutation(12)
    layers = [L.Embedding(6, 4), L.Flatten(), L.Dense(3)]
    mixed = fb.Network(TOKENS[order], LABELS[order], CLIENTS[order], layers=layers, dtype="float64")
    sorted_ = fb.Network(TOKENS, LABELS, CLIENTS, layers=layers, dtype="float64")
    w = mixed.init(1)
    for client in range(3):
        near(mixed.client_grad(client, w), sorted_.client_grad(client, w))


def test_starts_of_embeddings() -> None:
    layers = [L.Embedding(500, 20), L.MeanOverTime(), L.Dense(3)]
    table = fb.Network(TOKENS, LABELS, CLIENTS, layers=layers).init(1)[:10000]
    assert abs(table.mean()) < 0.04 and abs(table.var() - 1) < 0.06


@every_dtype
def test_sequences_of_numbers(dtype: str) -> None:
    X = images(5, 4, dtype=dtype)
    problem = fb.Network(X, LABELS, CLIENTS, layers=[L.MeanOverTime(), L.Dense(3)])
    assert problem.shapes == ((5, 4), (4,), (3,))
    same_problem(problem, fb.Softmax(X.mean(axis=1), LABELS, CLIENTS), dtype)


def test_a_replay_over_tokens_has_the_same_bits_on_all_threads() -> None:
    problem = words("float32")
    model = fb.DelayModel(n_clients=3, compute=fb.Exponential(1.0))
    schedule = fb.schedule(model, fb.FedBuff(buffer_size=2), server_steps=60, seed=1)
    options: dict[str, Any] = {"strategy": fb.FedBuff(buffer_size=2), "seed": 3, "eval_every": 20}
    one, two = (fb.replay(problem, schedule, fb.LocalSGD(3, 0.2, 2), threads=t, **options) for t in (1, 2))
    assert one.w.tobytes() == two.w.tobytes()
    assert one.history["loss"][-1] < one.history["loss"][0]
    again = pickle.loads(pickle.dumps(problem))
    assert again.grad(one.w).tobytes() == problem.grad(one.w).tobytes()


@every_dtype
@pytest.mark.parametrize("kind", [L.LSTM, L.GRU])
def test_the_last_state(dtype: str, kind: Any) -> None:
    """By the option, by a layer, and as the last of all states in a dense layer whose other weights are 0."""
    X = images(5, 4, dtype=dtype)
    option, layer, flat = (
        fb.Network(X, LABELS, CLIENTS, layers=layers)
        for layers in (
            [kind(6, last=True), L.Dense(3)],
            [kind(6), L.LastStep(), L.Dense(3)],
            [kind(6), L.Flatten(), L.Dense(3)],
        )
    )
    assert option.shapes == ((5, 4), (6,), (3,)) and layer.shapes == ((5, 4), (5, 6), (6,), (3,))
    w = option.init(1)
    assert layer.init(1).tobytes() == w.tobytes() and layer.grad(w).tobytes() == option.grad(w).tobytes()
    n = option.dim - 21
    dense = np.zeros((3, 5, 6), dtype)
    dense[:, -1] = w[n : n + 18].reshape(3, 6)
    whole = np.concatenate([w[:n], dense.ravel(), w[-3:]])
    near(flat.loss(whole), option.loss(w), dtype)
    near(flat.grad(whole)[:n], option.grad(w)[:n], dtype)


@pytest.mark.parametrize("kind", [L.LSTM, L.GRU])
def test_starts_of_recurrent_layers(kind: Any) -> None:
    """Variance 1 / (3 width), biases 0."""
    problem = fb.Network(images(5, 40), LABELS, CLIENTS, layers=[kind(50, last=True), L.Dense(3)])
    gates = 50 * (4 if kind is L.LSTM else 3)
    weights = gates * 90
    w = problem.init(3)
    assert abs(w[:weights].var() * 150 - 1) < 6 / np.sqrt(weights) and not w[weights : weights + 2 * gates].any()


def test_a_replay_of_an_lstm_has_the_same_bits_on_all_threads() -> None:
    layers = [L.Embedding(6, 4), L.LSTM(9), L.GRU(5, last=True), L.Dense(3)]
    problem = fb.Network(TOKENS, LABELS, CLIENTS, layers=layers)
    w = problem.init(1)
    assert len({(problem.loss(w, threads=t), problem.grad(w, threads=t).tobytes()) for t in (1, 2, 5)}) == 1
    model = fb.DelayModel(n_clients=3, compute=fb.Exponential(1.0))
    schedule = fb.schedule(model, fb.FedBuff(buffer_size=2), server_steps=100, seed=1)
    options: dict[str, Any] = {"strategy": fb.FedBuff(buffer_size=2), "seed": 3, "eval_every": 50}
    one, two = (fb.replay(problem, schedule, fb.LocalSGD(4, 1.0, 2), threads=t, **options) for t in (1, 2))
    assert one.w.tobytes() == two.w.tobytes()
    assert one.history["loss"][-1] < 0.7 * one.history["loss"][0]


def with_token(value: int) -> Array:
    X = TOKENS.copy()
    X[7, 2] = value
    return X


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"X": with_token(6)}, ValueError, r"X: row 7: expected tokens from 0 to 5, got 6$"),
        ({"X": with_token(-1)}, ValueError, r"X: row 7: expected tokens from 0 to 5, got -1$"),
        ({"X": TOKENS * 1.0}, TypeError, r"X: expected integers, as Embedding takes tokens, got float64"),
        ({"X": TOKENS[0]}, ValueError, r"X: expected tokens of shape \(rows, time\), got \(5,\)"),
        ({"X": TOKENS[:, :0]}, ValueError, r"X: expected at least one row and one number in each"),
        ({"dtype": "int32"}, TypeError, r"dtype: expected float32 or float64, got int32"),
        ({"layers": [L.Dense(3)]}, TypeError, r"X: expected float32, float64 or uint8, got int64; rows of tokens"),
        ({"layers": [L.Residual([L.Embedding(6, 2)]), L.Dense(3)]}, TypeError, r"X: expected float32, float64 or"),
        ({"scale": 2.0}, ValueError, r"scale: expected X of uint8 with it, got X of tokens"),
        (
            {"layers": [L.Embedding(6, 2), L.Embedding(6, 2)]},
            ValueError,
            r"layers\[1\] \(Embedding\): expected rows of tokens, which only the first layer gets, got a sequence",
        ),
        (
            {"layers": [L.Embedding(6, 2), L.Dense(3)]},
            ValueError,
            r"layers\[1\] \(Dense\): expected a vector of shape \(features,\), got a sequence of shape \(5, 2\); "
            r"put LastStep\(\), MeanOverTime\(\) or Flatten\(\) before it",
        ),
        ({"layers": [L.Embedding(6, 2), L.Conv2d(3, 1)]}, ValueError, r"layers\[1\] \(Conv2d\): expected an image"),
        ({"layers": [L.Embedding(6, 2), L.LayerNorm()]}, ValueError, r"layers\[1\] \(LayerNorm\): expected an"),
        (
            {"layers": [L.Embedding(6, 2)]},
            ValueError,
            r"layers\[0\] \(Embedding\): the last layer gives a sequence of shape \(5, 2\), but",
        ),
        (
            {"X": images(4), "layers": [L.MeanOverTime(), L.Dense(3)], "dtype": None},
            ValueError,
            r"X: expected shape \(rows, time, features\), got \(12, 4\)",
        ),
        (
            {"X": images(4), "layers": [L.Flatten(), L.MeanOverTime()], "dtype": None},
            ValueError,
            r"layers\[1\] \(MeanOverTime\): expected a sequence of shape \(time, features\), got a vector",
        ),
        (
            {"X": images(4), "layers": [L.LSTM(3), L.Dense(3)], "dtype": None},
            ValueError,
            r"X: expected shape \(rows, time, features\), got \(12, 4\)",
        ),
        (
            {"layers": [L.Embedding(6, 2), L.LSTM(3, last=True), L.GRU(3)]},
            ValueError,
            r"layers\[2\] \(GRU\): expected a sequence of shape \(time, features\), got a vector of shape \(3,\)",
        ),
        ({"X": images(4), "layers": [L.Dense(3)], "dtype": "float32"}, TypeError, r"dtype: expected float64, as X"),
    ],
)  # fmt: skip
def test_bad_tokens(given: dict[str, Any], error: type[Exception], said: str) -> None:
    right: dict[str, Any] = {"layers": [L.Embedding(6, 4), L.MeanOverTime(), L.Dense(3)], "dtype": "float64"}
    with pytest.raises(error, match=f"^{said}"):
        fb.Network(**{"X": TOKENS, "y": LABELS, "clients": CLIENTS, **right, **given})


def test_held_out_tokens_are_checked_too() -> None:
    with pytest.raises(ValueError, match=r"^X: row 7: expected tokens from 0 to 5, got 9$"):
        words().accuracy(words().init(), (with_token(9), LABELS))


# Labels and starts


def test_whole_numbers_are_the_outputs_numbers() -> None:
    X, w = images(4), np.random.default_rng(0).standard_normal(25)
    few = np.array([0, 2] * 6)
    problem = fb.Network(X, few, CLIENTS, layers=[L.Dense(5)])
    assert problem.classes.tolist() == [0, 1, 2, 3, 4]
    scores = X @ w.reshape(-1)[:20].reshape(5, 4).T + w[20:]
    assert problem.accuracy(w) == np.mean(scores.argmax(axis=1) == few)
    near(problem.loss(w), fb.Network(X, few.astype(float), CLIENTS, layers=[L.Dense(5)]).loss(w))


def test_other_labels_are_put_in_order() -> None:
    X = images(4)
    words = np.array(["b", "c", "a"])[LABELS]
    problem = fb.Network(X, words, CLIENTS, layers=[L.Dense(3)])
    assert problem.classes.tolist() == ["a", "b", "c"]
    same_problem(problem, fb.Softmax(X, words, CLIENTS), "float64")


def test_label_smoothing_by_hand() -> None:
    X, w = images(4), np.random.default_rng(0).standard_normal(15)
    scores = X @ w[:12].reshape(3, 4).T + w[12:]
    log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    losses = -0.8 * log_p[np.arange(12), LABELS] - 0.2 * log_p.mean(axis=1)
    problem = fb.Network(X, LABELS, [0, 12], layers=[L.Dense(3)], label_smoothing=0.2)
    near(problem.loss(w), losses.mean())


@pytest.mark.parametrize("loss", ["squared_error", "binary_cross_entropy"])
def test_several_outputs_are_summed(loss: Any) -> None:
    X, w = images(4), np.random.default_rng(0).standard_normal(10)
    y = images(2) if loss == "squared_error" else (images(2) > 0).astype(np.float64)
    scores = X @ w[:8].reshape(2, 4).T + w[8:]
    each = (scores - y) ** 2 / 2 if loss == "squared_error" else np.logaddexp(0, scores) - y * scores
    problem = fb.Network(X, y, [0, 12], layers=[L.Dense(2)], loss=loss)
    near(problem.loss(w), each.sum(axis=1).mean())
    assert problem.accuracy is None


def test_what_is_dropped_is_a_function_of_seed_client_task_step() -> None:
    X = images(2, 6, 5)
    layers = [L.Conv2d(4, 3), L.Tanh(), L.Dropout(0.25), L.Flatten(), L.Dropout(), L.Dense(3)]
    problem = fb.Network(X, LABELS, CLIENTS, layers=layers)
    plain = fb.Network(X, LABELS, CLIENTS, layers=[L.Conv2d(4, 3), L.Tanh(), L.Flatten(), L.Dense(3)])
    w, local = problem.init(1), fb.LocalSGD(2, 0.1)
    assert problem.grad(w).tobytes() == plain.grad(w).tobytes()

    def delta(client: int = 1, **options: int) -> bytes:
        return problem.delta(w, client, local, **options).tobytes()

    first = delta(task=3, seed=5)
    assert delta(task=3, seed=5) == first != plain.delta(w, 1, local).tobytes()
    assert len({first, delta(task=4, seed=5), delta(task=3, seed=6), delta(0, task=3, seed=5)}) == 4


def test_starts() -> None:
    layers = [L.Conv2d(40, 3, groups=2), L.ReLU(), L.Flatten(), L.Dense(50), L.ReLU(), L.Dense(3)]
    problem = fb.Network(images(4, 5, 5, dtype="float32"), LABELS, CLIENTS, layers=layers)
    w = problem.init(seed=3)
    parts = np.split(w, np.cumsum([40 * 2 * 9, 40, 50 * 360, 50, 50 * 3]))
    for part, variance in zip(parts[::2], [2 / 18, 2 / 360, 2 / 50], strict=True):
        assert abs(part.mean()) < 4 * np.sqrt(variance / part.size)
        assert abs(part.var() / variance - 1) < 6 / np.sqrt(part.size)
    assert not any(part.any() for part in parts[1::2])
    assert problem.init(3).tobytes() == w.tobytes() != problem.init(4).tobytes()


# Refusals


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([L.Dense(3)], r"layers\[0\] \(Dense\): expected a vector .* got an image .*; put Flatten\(\)"),
        ([L.Flatten(), L.Conv2d(2, 3)], r"layers\[1\] \(Conv2d\): expected an image .* got a vector of shape \(60,\)"),
        ([L.Conv2d(2, 3), L.Conv2d(2, (5, 2))], r"layers\[1\] \(Conv2d\): its kernel of \(5, 2\) .* \(2, 4, 3\)"),
        ([L.Conv2d(2, 9, padding=1)], r"layers\[0\] \(Conv2d\): its kernel of \(9, 9\) .*, \(8, 7\) with its padding"),
        ([L.Flatten(), L.RandomFlip()], r"layers\[1\] \(RandomFlip\): expected an image .* got a vector"),
        ([L.Conv2d(3, 3, groups=3)], r"layers\[0\] \(Conv2d\): groups=3 does not divide the 2 channels of \(2, 6, 5\)"),
        ([L.MaxPool2d(6), L.Flatten()], r"layers\[0\] \(MaxPool2d\): its kernel of \(6, 6\) .* \(2, 6, 5\)"),
        ([L.Conv2d(3, 3)], r"layers\[0\] \(Conv2d\): the last layer gives an image of shape \(3, 4, 3\), but"),
        ([L.Flatten(), L.Dense(1)], r"layers: cross_entropy wants two outputs or more, got 1"),
        ([L.Flatten(), L.Dense(2)], r"y: expected whole numbers below 2, .* or 2 different labels, got 3"),
        ([], r"layers: expected at least one layer"),
        ([L.ReLU()] * 513 + [L.Flatten(), L.Dense(3)], r"layers: expected at most 512 layers, got 515"),
        ([L.Conv2d(2**31 - 1, 1), L.Flatten(), L.Dense(3)], r"layers\[0\] \(Conv2d\): an image .* has more than"),
    ],
)  # fmt: skip
def test_bad_stacks(layers: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        fb.Network(images(2, 6, 5), LABELS, CLIENTS, layers=layers)


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        (L.Dense(3), r"layers: expected a list of layers, got Dense"),
        ("dense", r"layers: expected a list of layers, got 'dense'"),
        ([L.Flatten, L.Dense(3)], r"layers\[0\]: expected a layer of fedbuff.layers, got .*; write Flatten\(\)"),
        ([L.Flatten(), 3], r"layers\[1\]: expected a layer of fedbuff.layers, got 3"),
        (None, r"layers: expected a list of layers, got None"),
    ],
)
def test_what_is_no_layer(layers: Any, said: str) -> None:
    with pytest.raises(TypeError, match=f"^{said}"):
        fb.Network(images(2, 6, 5), LABELS, CLIENTS, layers=layers)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: L.Conv2d(0, 3), "out_channels: expected an int >= 1, got 0"),
        (
            lambda: L.Conv2d(2, (1, 2, 3)),
            r"kernel_size: expected one int, or two for height and width, got \(1, 2, 3\)",
        ),
        (lambda: L.Conv2d(2, 0), "kernel_size: expected an int >= 1, got 0"),
        (lambda: L.Conv2d(2, 3, 0), "stride: expected an int >= 1, got 0"),
        (lambda: L.Conv2d(2, 3, padding=-1), "padding: expected an int >= 0, got -1"),
        (lambda: L.Conv2d(2, 3, padding="valid"), "padding: expected an int, two, or 'same', got 'valid'"),
        (lambda: L.Conv2d(2, 3, 2, "same"), r"padding: expected stride 1 with 'same', got stride \(2, 2\)"),
        (lambda: L.Conv2d(4, 3, groups=3), "groups: expected a divisor of out_channels=4, got 3"),
        (lambda: L.MaxPool2d(2, padding=2), r"padding: expected at most half of kernel_size=\(2, 2\), got \(2, 2\)"),
        (lambda: L.Dense(-1), "out_features: expected an int >= 1, got -1"),
        (lambda: L.Embedding(0, 3), "n_words: expected an int >= 1, got 0"),
        (lambda: L.Embedding(3, 0), "width: expected an int >= 1, got 0"),
        (lambda: L.RandomCrop(-1), "padding: expected an int >= 0, got -1"),
        (lambda: L.LSTM(0), "width: expected an int >= 1, got 0"),
        (lambda: L.GRU(-1), "width: expected an int >= 1, got -1"),
        (lambda: L.BatchNorm(16), "BatchNorm: its running statistics are not part of a delta.*; use GroupNorm"),
    ],
)
def test_bad_layers(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        make()


ONE: dict[str, Any] = {"layers": [L.Flatten(), L.Dense(1)]}


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"X": np.zeros(12)}, ValueError, r"X: expected shape \(rows, channels, .* or \(rows, features\), got \(12,\)"),
        ({"X": np.zeros((12, 2, 0, 5))}, ValueError, r"X: expected at least one row and .*, got shape \(12, 2, 0, 5\)"),
        ({"X": np.zeros((12, 2, 6, 5), np.int8)}, TypeError, r"X: expected float32, float64 or uint8, got int8"),
        ({"scale": 0.5}, ValueError, r"scale: expected X of uint8 with it, got X of float64"),
        ({"shift": 0.5}, ValueError, r"shift: expected X of uint8 with it, got X of float64"),
        ({"X": np.zeros((12, 2, 6, 5), np.uint8), "scale": np.nan}, ValueError, r"scale: expected a number that is"),
        ({"X": np.zeros((12, 2, 6, 5), np.uint8), "dtype": "int8"}, TypeError, r"dtype: expected float32 or float64"),
        ({"X": np.full((12, 2, 6, 5), np.nan)}, ValueError, r"X: row 0 is not finite"),
        ({"y": LABELS[:5]}, ValueError, r"y: expected shape \(12,\), one target per row, got \(5,\)"),
        ({"y": np.zeros((12, 3))}, ValueError, r"y: expected shape \(12,\), one target per row, got \(12, 3\)"),
        ({"y": np.zeros(12, np.float32), **ONE, "loss": "squared_error"}, TypeError, r"y: expected float64, as X"),
        ({"y": np.full(12, np.inf), **ONE, "loss": "squared_error"}, ValueError, r"y: row 0 is not finite"),
        ({"y": np.zeros((12, 2)), "loss": "squared_error"}, ValueError, r"y: expected shape \(12, 3\), got \(12, 2\)"),
        ({"loss": "squared_error"}, ValueError, r"y: expected shape \(12, 3\), got \(12,\)"),
        ({"y": np.full((12, 3), 2.0), "loss": "binary_cross_entropy"}, ValueError, r"y: expected 0 and 1 only"),
        ({"label_smoothing": 1.5}, ValueError, r"label_smoothing: expected a number >= 0 and <= 1, got 1.5"),
        ({"label_smoothing": 1.0}, ValueError, r"label_smoothing: expected a number >= 0 and < 1, got 1.0"),
        ({"label_smoothing": 0.1, "loss": "squared_error"}, ValueError, r"label_smoothing: squared_error has none"),
        ({**ONE, "loss": "binary_cross_entropy"}, ValueError, r"y: expected two classes, got 3"),
        ({"loss": "hinge"}, ValueError, r"loss: expected one of cross_entropy, .*, got 'hinge'"),
    ],
)  # fmt: skip
def test_bad_data(given: dict[str, Any], error: type[Exception], said: str) -> None:
    right: dict[str, Any] = {"X": images(2, 6, 5), "y": LABELS, "clients": CLIENTS, "layers": [L.Flatten(), L.Dense(3)]}
    with pytest.raises(error, match=f"^{said}"):
        fb.Network(**{**right, **given})


def test_the_example_learns() -> None:
    """examples/femnist_cnn.py in short."""
    main = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "femnist_cnn.py"))["main"]
    reached = main(tasks=60, n_writers=100)
    assert set(reached) == {"FedBuff", "FedAvg", "FedAsync"} and min(reached.values()) > 3 / 62
