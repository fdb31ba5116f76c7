"""`fb.torch.network` of modules with a forward of their own, which torch.fx follows: ResNets, functions, refusals."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedbuff as fb

torch = pytest.importorskip("torch", reason="fb.torch.network needs PyTorch: pip install fedbuff[torch]")
nn, F = torch.nn, torch.nn.functional
L = fb.layers
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


class BasicBlock(nn.Module):
    """As torchvision has it."""

    def __init__(self, n_in: int, n_out: int, stride: int = 1, downsample: Any = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.GroupNorm(2, n_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.GroupNorm(2, n_out)
        self.downsample = downsample

    def forward(self, x: Any) -> Any:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """torchvision's ResNet-18 with GroupNorm and fewer channels."""

    def __init__(self, width: int = 4, n_classes: int = 3) -> None:
        super().__init__()
        self.width = width
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.GroupNorm(2, width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1, self.layer2 = self._layer(width, 1), self._layer(2 * width, 2)
        self.layer3, self.layer4 = self._layer(4 * width, 2), self._layer(8 * width, 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * width, n_classes)

    def _layer(self, n_out: int, stride: int) -> Any:
        n_in, self.width = self.width, n_out
        down = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.GroupNorm(2, n_out))
        first = BasicBlock(n_in, n_out, stride, None if stride == 1 else down)
        return nn.Sequential(first, BasicBlock(n_out, n_out))

    def forward(self, x: Any) -> Any:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Functional(nn.Module):
    """Functions and methods in the place of modules, blocks in blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(4))
        self.around, self.norm = nn.Conv2d(3, 3, 1), nn.LayerNorm((3, 4, 4))
        self.head = nn.Linear(48, 3)

    def forward(self, x: Any) -> Any:
        a, b, c, d = self.convs
        inner = torch.tanh(a(x)).add(F.silu(self.around(x)))
        x = torch.add(x, b(F.leaky_relu(inner, 0.2) + inner)).contiguous()
        x = F.avg_pool2d(x, 3, 2, 1)
        x = c(x).sigmoid() + d(x) + F.gelu(x)
        x = F.dropout(self.norm(x), 0.2, training=self.training)
        return self.head(x.view(x.size(0), -1))


def flat(module: Any, names: Any = None, gradient: bool = False) -> Any:
    """The parameters in this order, or in the module's."""
    parameters = dict(module.named_parameters())
    chosen = [parameters[name] for name in names or parameters]
    return np.concatenate([(p.grad if gradient else p.detach()).numpy().ravel() for p in chosen])


def loss_of(module: Any, X: Any, y: Any) -> Any:
    each = F.cross_entropy(module(torch.from_numpy(X)), torch.from_numpy(y), reduction="none")
    return (each[:4].mean() + each[4:].mean()) / 2


def agree(
    module: Any, shape: tuple[int, ...], dtype: str, close: float, seed: int = 0, names: Any = None
) -> fb.Network:
    """The network of a module, after its weights, loss and gradient were found to be the module's."""
    module = module.to(getattr(torch, dtype)).eval()
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((9, *shape)).astype(dtype), np.arange(9) % 3
    problem = fb.torch.network(module, X, y, [0, 4, 9])
    w = problem.init()
    assert w.dtype == dtype and w.tobytes() == flat(module, names).tobytes()
    module.zero_grad()
    value = loss_of(module, X, y)
    value.backward()
    gradient = flat(module, names, gradient=True)
    assert abs(problem.loss(w) - value.item()) <= close * (1 + abs(value.item()))
    assert np.abs(problem.grad(w) - gradient).max() <= close * (1 + np.abs(gradient).max())
    back = problem.to_torch(w + 1)
    assert type(back) is type(module) and (flat(back, names) == w + 1).all() and (flat(module, names) == w).all()
    return problem


@pytest.mark.parametrize(("dtype", "close"), [("float64", 1e-10), ("float32", 2e-3)])
def test_a_resnet(dtype: str, close: float) -> None:
    torch.manual_seed(0)
    module = ResNet()
    problem = agree(module, (3, 32, 32), dtype, close)
    assert sum(isinstance(layer, L.Residual) for layer in problem.layers) == 8
    assert sum(bool(layer.shortcut) for layer in problem.layers if isinstance(layer, L.Residual)) == 3
    again = pickle.loads(pickle.dumps(problem))
    assert list(again.to_torch(again.init()).state_dict()) == list(module.state_dict())


@pytest.mark.parametrize(("dtype", "close"), [("float64", 1e-10), ("float32", 2e-3)])
def test_functions_and_methods(dtype: str, close: float) -> None:
    torch.manual_seed(0)
    order = ("convs.0", "around", "convs.1", "convs.2", "convs.3", "norm", "head")  # as forward has them
    names = [f"{part}.{name}" for part in order for name in ("weight", "bias")]
    problem = agree(Functional(), (3, 8, 8), dtype, close, names=names)
    assert L.Dropout(0.2) in problem.layers and L.LayerNorm() in problem.layers


ADDITIONS: tuple[Callable[[Any, Any], Any], ...] = (operator.add, torch.add, lambda a, b: a.add(b))
POINTWISE: tuple[Callable[[Any], Any], ...] = (
    F.relu, torch.relu, lambda x: x.relu(), F.silu, F.gelu, torch.tanh, lambda x: x.sigmoid(), F.tanh,
    lambda x: F.leaky_relu(x, negative_slope=0.3), nn.ReLU(),
)  # fmt: skip
POOLS: tuple[Callable[[Any], Any], ...] = (
    lambda x: F.max_pool2d(x, 3, stride=1, padding=1), lambda x: torch.max_pool2d(x, 3, 1, 1),
    lambda x: F.avg_pool2d(x, (3, 1), (1, 1), (1, 0)),
)  # fmt: skip
ENDS: tuple[Callable[[Any], Any], ...] = (
    lambda x: torch.flatten(x, 1), lambda x: x.flatten(1), lambda x: x.view(x.size(0), -1),
    lambda x: x.reshape(x.shape[0], -1), lambda x: x.flatten(start_dim=1),
    lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1), lambda x: x.mean((2, 3)), lambda x: x.mean(dim=[-1, -2]),
)  # fmt: skip


class Drawn(nn.Module):
    """A part of a network drawn at random: layers one after the other, or parts that are added."""

    def __init__(self, rng: Any, channels: int, depth: int = 0) -> None:
        super().__init__()
        self.kind = int(rng.integers(4 if depth < 3 else 3))
        if self.kind == 0:
            self.conv = nn.Conv2d(
                channels, channels, int(rng.choice([1, 3])), padding="same", bias=bool(rng.integers(2))
            )
        elif self.kind == 1:
            self.act = POINTWISE[int(rng.integers(len(POINTWISE)))]
            self.norm = nn.GroupNorm(channels, channels, eps=1e-2) if rng.random() < 0.5 else nn.Identity()
        elif self.kind == 2:
            self.conv, self.pool = nn.Conv2d(channels, channels, 1), POOLS[int(rng.integers(len(POOLS)))]
        else:
            self.parts = nn.ModuleList(Drawn(rng, channels, depth + 1) for _ in range(int(rng.integers(1, 4))))
            around = int(rng.integers(2))
            self.around = nn.Conv2d(channels, channels, 1) if around else nn.Identity()
            self.plus, self.turned = ADDITIONS[int(rng.integers(len(ADDITIONS)))], bool(rng.integers(2))

    def forward(self, x: Any) -> Any:
        if self.kind == 0:
            return self.conv(x)
        if self.kind == 1:
            return self.act(self.norm(x))
        if self.kind == 2:
            return self.pool(self.conv(x))
        out = x
        for part in self.parts:
            out = part(out)
        return self.plus(out, self.around(x))


class DrawnNetwork(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        channels = int(rng.integers(1, 4))
        self.stem = nn.Conv2d(2, channels, 3, padding=1)
        self.parts = nn.Sequential(*(Drawn(rng, channels) for _ in range(3)))
        at = int(rng.integers(len(ENDS)))
        self.end, self.fc = ENDS[at], nn.Linear(channels * (20 if at < 5 else 1), 3)

    def forward(self, x: Any) -> Any:
        return self.fc(self.end(self.parts(self.stem(x))))


@pytest.mark.parametrize(("dtype", "close"), [("float64", 1e-10), ("float32", 2e-3)])
def test_random_modules(dtype: str, close: float) -> None:
    blocks = 0
    for seed in range(60):
        torch.manual_seed(seed)
        problem = agree(DrawnNetwork(seed), (2, 4, 5), dtype, close, seed)
        blocks += sum(isinstance(layer, L.Residual) for layer in problem.layers)
    assert blocks > 30


def test_local_steps_are_those_of_the_module() -> None:
    torch.manual_seed(0)
    module = ResNet().double()
    X, y = np.random.default_rng(0).standard_normal((12, 3, 32, 32)), np.arange(12) % 3
    compiled = fb.torch.network(module, X, y, [0, 6, 12])
    wrapped = fb.torch.Module(ResNet, X.astype(np.float32), y, [0, 6, 12])
    w, local = compiled.init(), fb.LocalSGD(4, 0.05, 3, momentum=0.5)
    ours, theirs = compiled.delta(w, 1, local), wrapped.delta(w.astype(np.float32), 1, local)
    np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(ours).max())


def test_the_module_is_left_alone() -> None:
    module = Functional().double()
    module.norm.eval()
    modes, state = [part.training for part in module.modules()], {k: v.clone() for k, v in module.state_dict().items()}
    problem = fb.torch.network(module, np.zeros((4, 3, 8, 8), np.float32), [0, 1, 0, 1], [0, 2, 4])
    problem.to_torch(problem.init() + 1)
    assert [part.training for part in module.modules()] == modes
    assert all(torch.equal(state[name], value) for name, value in module.state_dict().items())
    assert problem.to_torch(problem.init()).head.weight.dtype == torch.float32 == getattr(torch, str(problem.dtype))


def of(forward: Callable[[Any, Any], Any], **parts: Any) -> Any:
    """A module with these parts and a head, and a forward of two layers around what is looked at."""

    class Case(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)
            self.fc = nn.Linear(32, 3)

        def forward(self, x: Any) -> Any:
            out = forward(self, x)
            return self.fc(out.flatten(1)) if isinstance(out, torch.fx.Proxy | torch.Tensor) else out

    return Case()


def conv() -> Any:
    return nn.Conv2d(2, 2, 3, padding=1)


def frozen() -> Any:
    module = conv()
    module.weight.requires_grad_(False)
    return module


def hooked() -> Any:
    module = conv()
    module.register_forward_hook(lambda module, given, out: out + 1)
    return module


def tied() -> dict[str, Any]:
    a, b = conv(), conv()
    b.weight = a.weight
    return {"a": a, "b": b}


def bridge(m: Any, x: Any) -> Any:
    p, q = m.a(x), m.b(x)
    return p.relu() + (p + q).tanh()


def branches(m: Any, x: Any) -> Any:
    return m.a(x) if x.sum() > 0 else x


def at_once(m: Any, x: Any) -> Any:
    return m.a(x) if m.training else m.a(x).relu()


@pytest.mark.parametrize(
    ("forward", "parts", "said"),
    [
        (lambda m, x: F.softplus(x), {}, r"module \(softplus\): not among what"),
        (lambda m, x: m.a(x), {"a": nn.Sequential(nn.Softplus())}, r"module\.a\.0 \(Softplus\): not a layer that fedb"),
        (lambda m, x: m.a(x), {"a": nn.BatchNorm2d(2)}, r"module\.a \(BatchNorm2d\): BatchNorm: .* use GroupNorm"),
        (lambda m, x: x.permute(0, 2, 1, 3), {}, r"module \(permute\): not among"),
        (lambda m, x: x * m.s, {"s": nn.Parameter(torch.ones(1))}, r"module \(module\.s\): it is used by itself"),
        (lambda m, x: x + 1, {}, r"module \(add\): expected two different values"),
        (lambda m, x: torch.add(m.a(x), x, alpha=2), {"a": conv()}, r"module \(add\): expected two different values"),
        (lambda m, x: x + m.a(x), {"a": nn.Conv2d(2, 2, 3)}, r"module \(add\): it adds rows of shape \(2, 4, 4\) and"),
        (lambda m, x: x + m.a(x), {"a": nn.Identity()}, "module: its forward adds a value to itself"),
        (lambda m, x: x.view(-1, 16), {}, r"module \(view\): fedbuff.layers has it as Flatten only"),
        (lambda m, x: x.mean((1, 2)), {}, r"module \(mean\): .*over height and width"),
        (lambda m, x: F.gelu(x, approximate="tanh"), {}, r"module \(gelu\): .*approximate='none' only"),
        (lambda m, x: F.max_pool2d(x, 2, ceil_mode=True), {}, r"module \(max_pool2d\): .*without ceil_mode"),
        (lambda m, x: F.log_softmax(x, 1), {}, r"module \(log_softmax\): cross_entropy, the default loss, has it"),
        (lambda m, x: F.dropout(m.a(x)), {"a": conv()}, r"module \(dropout\): it drops in evaluation too"),
        (at_once, {"a": conv()}, "module: its forward does something else in training than in evaluation"),
        (branches, {"a": conv()}, r"module: torch\.fx cannot follow its forward \(TraceError: "),
        (lambda m, x: m.a(m.a(x)), {"a": conv()}, r"module\.a\.weight: its layer is called twice"),
        (lambda m, x: m.b(m.a(x)), tied(), r"module\.b\.weight: it is also module\.a\.weight"),
        (lambda m, x: m.a(x), {"a": frozen()}, r"module\.a\.weight: requires_grad is False"),
        (lambda m, x: x, {"a": conv()}, r"module\.a\.(weight|bias): the module's forward does not use it"),
        (lambda m, x: m.a(x), {"a": hooked()}, r"module\.a \(Conv2d\): it has hooks"),
        (bridge, {"a": conv(), "b": conv()}, r"module\.a \(Conv2d\): its output is used twice, and not by a residual"),
        (lambda m, x: (m.a(x), x), {"a": conv()}, "module: expected a forward that returns one array of scores"),
        (lambda m, x: m.a(x), {"a": nn.LayerNorm(4)}, r"module\.a \(LayerNorm\): its normalized_shape is \(4,\), rows"),
        (lambda m, x: x[:, 0], {}, r"module \(getitem\): not among"),
        (lambda m, x: m.a(x).flatten(1)[:, :32], {"a": conv()}, r"module \(getitem\): not among"),
        (lambda m, x: m.a(x), {"a": nn.Conv2d(3, 2, 1)}, r"module\.a \(Conv2d\): it has weight \(2, 3, 1, 1\), bias"),
        (lambda m, x: m.b(m.a(x).relu_()) + m.a(x), {"a": conv(), "b": conv()}, r"module\.a\.weight: its layer is"),
    ],
)  # fmt: skip
def test_what_is_refused(forward: Any, parts: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        fb.torch.network(of(forward, **parts), np.ones((4, 2, 4, 4), np.float32), [0, 1, 0, 1], [0, 2, 4])


def test_work_in_place_that_the_graph_does_not_show() -> None:
    def forward(m: Any, x: Any) -> Any:
        x = m.a(x)
        return m.b(F.relu(x, inplace=True)) + x  # x is behind the ReLU here, not before it

    module = of(forward, a=conv(), b=conv())
    with pytest.raises(ValueError, match=r"^module: its forward does more than torch\.fx can see"):
        fb.torch.network(module, np.ones((4, 2, 4, 4), np.float32), [0, 1, 0, 1], [0, 2, 4])


def test_a_single_layer_and_what_is_no_module() -> None:
    X, y = np.random.default_rng(0).standard_normal((4, 4)), [0, 1, 0, 1]
    layer = nn.Linear(4, 2).double()
    problem = fb.torch.network(layer, X, y, [0, 2, 4])
    assert problem.layers == (L.Dense(2),) and problem.init().tobytes() == flat(layer).tobytes()
    with pytest.raises(TypeError, match=r"^module: expected a torch\.nn\.Module, got "):
        fb.torch.network("resnet18", X, y, [0, 2, 4])
