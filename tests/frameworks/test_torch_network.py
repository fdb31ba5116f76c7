"""`Network.to_torch` and `fb.torch.network`: losses, gradients and accuracies are PyTorch's, on random networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff.layers._stack import stack

torch = pytest.importorskip("torch", reason="Network.to_torch needs PyTorch: pip install fedbuff[torch]")
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
L = fb.layers

ACTIVATIONS = (L.ReLU, L.LeakyReLU, L.GELU, L.SiLU, L.Tanh, L.Sigmoid)


def chain(rng: Any, shape: tuple[int, ...], depth: int) -> list[Any]:
    """Layers that fit an image, drawn one after the other."""
    made: list[Any] = []
    for _ in range(int(rng.integers(1, 4))):
        channels, height, width = shape
        draw = int(rng.integers(7 if depth == 0 else 6))
        if draw < 2:
            groups = int(rng.choice([g for g in (1, channels) if channels % g == 0]))
            kernel = int(rng.integers(1, min(height, width, 4) + 1))
            padding: Any = "same" if rng.random() < 0.3 else int(rng.integers(0, 3))
            stride = 1 if padding == "same" else int(rng.integers(1, 3))
            out = groups * int(rng.integers(1, 6))
            layer: Any = L.Conv2d(out, kernel, stride, padding, groups, bool(rng.integers(2)))
        elif draw == 2:
            layer = L.MaxPool2d(int(rng.integers(1, min(height, width, 3) + 1)), int(rng.integers(1, 4)))
        elif draw == 3:
            kernel = int(rng.integers(1, min(height, width, 3) + 1))
            layer = L.AvgPool2d(kernel, int(rng.integers(1, 4)), kernel // 2)
        elif draw == 4:
            groups = int(rng.choice([g for g in range(1, channels + 1) if channels % g == 0]))
            layer = L.GroupNorm(groups, 1e-2, bool(rng.integers(2)))
        elif draw == 5:
            layer = ACTIVATIONS[int(rng.integers(len(ACTIVATIONS)))]()
        else:
            body = [L.Conv2d(channels, 3, padding=1), L.Tanh(), *([L.GroupNorm(channels, 1e-2)] * int(rng.integers(2)))]
            layer = L.Residual(body, [L.Conv2d(channels, 1, bias=False)] * int(rng.integers(2)))
        made.append(layer)
        shape = stack([layer], shape).shape
    return made


def architecture(seed: int, dtype: str) -> tuple[fb.Network, Any, Any, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    shape = tuple(int(side) for side in rng.integers(1, 8, 3))
    layers = chain(rng, shape, depth=0)
    layers.append(L.Flatten() if rng.random() < 0.7 else L.GlobalAvgPool2d())
    if rng.random() < 0.5:
        layers += [L.Dense(int(rng.integers(1, 9))), ACTIVATIONS[seed % len(ACTIVATIONS)](), L.LayerNorm(1e-2)]
    loss, outputs = [("cross_entropy", 3), ("squared_error", 2), ("binary_cross_entropy", 4)][seed % 3]
    layers.append(L.Dense(outputs))
    X = rng.standard_normal((9, *shape)).astype(dtype)
    y: Any = rng.integers(0, 3, 9)
    if loss != "cross_entropy":
        y = rng.integers(0, 2, (9, outputs)).astype(dtype)
    smoothing = 0.1 if loss == "cross_entropy" and seed % 2 else 0.0
    options: dict[str, Any] = {"loss": loss, "label_smoothing": smoothing}
    return fb.Network(X, y, [0, 4, 9], layers=layers, **options), X, y, options


def torch_loss(module: Any, X: Any, y: Any, options: dict[str, Any]) -> Any:
    scores, target = module(torch.from_numpy(X)), torch.from_numpy(np.asarray(y))
    if options["loss"] == "cross_entropy":
        each = nn.functional.cross_entropy(scores, target, reduction="none", label_smoothing=options["label_smoothing"])
    elif options["loss"] == "squared_error":
        each = ((scores - target) ** 2).sum(axis=1) / 2
    else:
        each = nn.functional.binary_cross_entropy_with_logits(scores, target, reduction="none").sum(axis=1)
    return (each[:4].mean() + each[4:].mean()) / 2


@pytest.mark.parametrize(("dtype", "close"), [("float64", 1e-10), ("float32", 2e-3)])
@pytest.mark.parametrize("block", range(10))
def test_random_architectures(block: int, dtype: str, close: float) -> None:
    for seed in range(20 * block, 20 * block + 20):
        problem, X, y, options = architecture(seed, dtype)
        w = problem.init(seed) + np.dtype(dtype).type(0.125)
        module = problem.to_torch(w)
        value = torch_loss(module, X, y, options)
        value.backward()
        gradient = np.concatenate([parameter.grad.numpy().ravel() for parameter in module.parameters()])
        scale = 1 + np.abs(gradient).max()
        assert abs(problem.loss(w) - value.item()) <= close * (1 + abs(value.item())), (seed, problem.layers)
        assert np.abs(problem.grad(w) - gradient).max() <= close * scale, (seed, problem.layers)
        scores = module(torch.from_numpy(X)).detach().numpy()
        apart = np.diff(np.sort(scores, axis=1), axis=1)[:, -1].min() > 1e-3
        if problem.accuracy is not None and apart:
            right = scores.argmax(axis=1) == y
            assert abs(problem.accuracy(w) - right.mean()) < 1e-12
        again = fb.torch.network(module, X, y, [0, 4, 9], **options)  # the way back has the same bits
        assert again.init().tobytes() == w.tobytes() and again.loss(w) == problem.loss(w), (seed, problem.layers)


def tokens_module() -> Any:
    class OverTime(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(7, 5), nn.Linear(5, 3)

        def forward(self, x: Any) -> Any:
            return self.out(torch.tanh(self.words(x)).mean(1))

    return OverTime()


@pytest.mark.parametrize(("dtype", "close"), [("float64", 1e-12), ("float32", 1e-5)])
def test_embeddings(dtype: str, close: float) -> None:
    torch.manual_seed(1)
    module = tokens_module().to(getattr(torch, dtype))
    X, y = np.random.default_rng(0).integers(0, 7, (9, 6)), np.arange(9) % 3
    options: dict[str, Any] = {"loss": "cross_entropy", "label_smoothing": 0.0}
    problem = fb.torch.network(module, X, y, [0, 4, 9], dtype=dtype, **options)
    assert problem.layers == (L.Embedding(7, 5), L.Tanh(), L.MeanOverTime(), L.Dense(3))
    w = problem.init()
    for one in (
        module,
        problem.to_torch(w),
        fb.Network(X, y, [0, 4, 9], layers=problem.layers, dtype=dtype).to_torch(w),
    ):
        one.zero_grad()
        value = torch_loss(one, X, y, options)
        value.backward()
        gradient = np.concatenate([p.grad.numpy().ravel() for p in one.parameters()])
        assert abs(problem.loss(w) - value.item()) <= close
        assert np.abs(problem.grad(w) - gradient).max() <= close


def of_text(how: str) -> Any:
    """What people write: LEAF's network of Shakespeare's text, and its kin."""

    class Text(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            kind = nn.GRU if how.startswith("gru") else nn.LSTM
            self.words = nn.Embedding(9, 4)
            self.states = kind(4, 6, num_layers=1 if "one" in how else 2, batch_first=True, bias="plain" not in how)
            self.out = nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            x = self.words(x)
            if how in ("lstm", "gru one", "lstm plain"):
                states, _ = self.states(x)
                return self.out(states[:, -1])
            if how == "lstm mean":
                return self.out(self.states(x)[0].mean(dim=1))
            if how == "gru":
                return self.out(self.states(x)[1][-1])
            _, (h, _) = self.states(x)
            return self.out(h[0])

    return Text()


@pytest.mark.parametrize(("dtype", "close"), [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize("how", ["lstm", "lstm one", "lstm mean", "lstm plain", "gru", "gru one"])
def test_recurrent_modules(how: str, dtype: str, close: float) -> None:
    torch.manual_seed(1)
    module = of_text(how).to(getattr(torch, dtype))
    X, y = np.random.default_rng(0).integers(0, 9, (9, 7)), np.arange(9) % 3
    options: dict[str, Any] = {"loss": "cross_entropy", "label_smoothing": 0.0}
    problem = fb.torch.network(module, X, y, [0, 4, 9], dtype=dtype, **options)
    w = problem.init()
    parts = [p.detach().numpy().ravel() for p in module.parameters()]
    assert w.tobytes() == np.concatenate(parts).tobytes()
    for one in (
        module,
        problem.to_torch(w),
        fb.Network(X, y, [0, 4, 9], layers=problem.layers, dtype=dtype).to_torch(w),
    ):
        one.zero_grad()
        value = torch_loss(one, X, y, options)
        value.backward()
        gradient = np.concatenate([p.grad.numpy().ravel() for p in one.parameters()])
        assert abs(problem.loss(w) - value.item()) <= close
        assert np.abs(problem.grad(w) - gradient).max() <= close


@pytest.mark.parametrize(("dtype", "close"), [("float64", 1e-11), ("float32", 1e-4)])
@pytest.mark.parametrize("seed", range(12))
def test_random_stacks_of_sequences(seed: int, dtype: str, close: float) -> None:
    rng = np.random.default_rng(seed)
    layers: list[Any] = []
    for _ in range(int(rng.integers(1, 4))):
        kind, width = (L.LSTM, L.GRU)[int(rng.integers(2))], int(rng.integers(1, 40))
        layers += [kind(width, bias=bool(rng.integers(2))), *([L.Tanh()] * int(rng.integers(2)))]
    layers += [(L.MeanOverTime(), L.LastStep(), L.Flatten(), L.GRU(5, last=True))[seed % 4], L.Dense(3)]
    X = rng.standard_normal((9, int(rng.integers(1, 12)), int(rng.integers(1, 20)))).astype(dtype)
    y, options = np.arange(9) % 3, {"loss": "cross_entropy", "label_smoothing": 0.0}
    problem = fb.Network(X, y, [0, 4, 9], layers=layers)
    w = problem.init(seed) + np.dtype(dtype).type(0.125)
    module = problem.to_torch(w)
    value = torch_loss(module, X, y, options)
    value.backward()
    gradient = np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])
    assert abs(problem.loss(w) - value.item()) <= close
    assert np.abs(problem.grad(w) - gradient).max() <= close * (1 + np.abs(gradient).max())


def test_what_is_not_known_of_recurrent_modules() -> None:
    class Wrapped(nn.Module):  # type: ignore[misc]
        def __init__(self, inner: Any, take: Any) -> None:
            super().__init__()
            self.inner, self.take = inner, take

        def forward(self, x: Any) -> Any:
            return self.take(self.inner(x))

    X = np.zeros((4, 5, 3), np.float32)
    for inner, take, said in [
        (nn.LSTM(3, 2), lambda out: out[0][:, -1], r"module\.inner \(LSTM\): .*with batch_first=True only"),
        (nn.GRU(3, 2, batch_first=True, bidirectional=True), lambda out: out[0][:, -1], r".*without bidirectional"),
        (nn.LSTM(3, 2, batch_first=True, proj_size=1), lambda out: out[0][:, -1], r".*without bidirectional and proj"),
        (nn.LSTM(4, 2, batch_first=True), lambda out: out[0][:, -1], r".*its input_size is 4, sequences of shape"),
        (nn.LSTM(3, 2, batch_first=True), lambda out: out[1][1][-1], r"module \(getitem\): not among"),
        (nn.LSTM(3, 2, 2, batch_first=True), lambda out: out[1][0][0], r"module \(getitem\): not among"),
        (nn.GRU(3, 2, batch_first=True), lambda out: out[0][:, 1], r"module \(getitem\): not among"),
        (
            nn.GRU(3, 2, batch_first=True),
            lambda out: torch.relu(out[1]),
            r"module \(relu\): expected the states of all",
        ),
    ]:
        with pytest.raises(ValueError, match=f"^{said}"):
            fb.torch.network(Wrapped(inner, take), X, [0, 1, 0, 1], [0, 4])


def test_what_is_not_known_of_embeddings() -> None:
    for options in ({"padding_idx": 0}, {"max_norm": 1.0}):
        with pytest.raises(ValueError, match=r"^module\.0 \(Embedding\): .*without padding_idx and max_norm only"):
            fb.torch.network(nn.Sequential(nn.Embedding(7, 2, **options)), np.zeros((4, 3), int), [0, 1, 0, 1], [0, 4])


def sequential() -> Any:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 4, 3, padding="same", bias=False), nn.GroupNorm(2, 4), nn.LeakyReLU(0.1)),
        nn.MaxPool2d(2),
        nn.Sequential(nn.Conv2d(4, 6, 2, stride=2, padding=1), nn.GELU(), nn.AvgPool2d(2), nn.Identity()),
        nn.Dropout(0.25),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 5),
        nn.SiLU(),
        nn.Linear(5, 3),
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sequential_becomes_a_network_and_back(dtype: str) -> None:
    torch.manual_seed(0)
    module = sequential().to(getattr(torch, dtype)).eval()
    X = np.random.default_rng(0).standard_normal((9, 2, 9, 8)).astype(dtype)
    y = np.arange(9) % 3
    problem = fb.torch.network(module, X, y, [0, 4, 9])
    w = problem.init()
    flat = np.concatenate([parameter.detach().numpy().ravel() for parameter in module.parameters()])
    assert w.dtype == dtype and w.tobytes() == problem.init(5).tobytes() == flat.tobytes()
    want = torch_loss(module, X, y, {"loss": "cross_entropy", "label_smoothing": 0.0}).item()
    assert abs(problem.loss(w) - want) < 1e-5
    delta = problem.delta(w, 0, fb.LocalSGD(5, 0.1, 2))
    back = problem.to_torch(w - delta).eval()
    again = torch_loss(back, X, y, {"loss": "cross_entropy", "label_smoothing": 0.0}).item()
    assert abs(problem.loss(w - delta) - again) < 1e-5


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (lambda: nn.Sequential(nn.Sequential(nn.Flatten(), nn.Softplus())), r"module\.0\.1 \(Softplus\): not a layer"),
        (lambda: nn.Sequential(nn.BatchNorm2d(2)), r"module\.0 \(BatchNorm2d\): BatchNorm: its running statistics"),
        (lambda: nn.Sequential(nn.Conv2d(2, 2, 3, dilation=2)), r"module\.0 \(Conv2d\): .*with dilation 1 only"),
        (lambda: nn.Sequential(nn.MaxPool2d(2, ceil_mode=True)), r"module\.0 \(MaxPool2d\): .*without ceil_mode"),
        (lambda: nn.Sequential(nn.AdaptiveAvgPool2d(2)), r"module\.0 \(AdaptiveAvgPool2d\): .*output_size 1"),
        (lambda: nn.Sequential(nn.GELU("tanh")), r"module\.0 \(GELU\): .*approximate='none' only"),
    ],
)
def test_what_is_not_known(module: Any, said: str) -> None:
    X = np.zeros((4, 2, 8, 8), np.float32)
    with pytest.raises(ValueError, match=f"^{said}"):
        fb.torch.network(module(), X, [0, 1, 0, 1], [0, 2, 4])
