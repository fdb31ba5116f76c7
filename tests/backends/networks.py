"""Networks of odd shapes, made by Hypothesis, and sum|terms| of what passes through their layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from recurrent_bounds import recurrent

from fedbuff import layers as public
from fedbuff._problems.network_rows import Inputs
from fedbuff.backends import reference
from fedbuff.backends.python.network import LAYERS, Draws, Weights, _end, _padded, _shortcut, _windows
from fedbuff.backends.spec import LayerSpec, NetworkSpec, ProblemSpec
from fedbuff.layers._augment import RandomCrop, RandomFlip
from fedbuff.layers._image import AvgPool2d, Conv2d, Flatten, GlobalAvgPool2d, MaxPool2d
from fedbuff.layers._layer import Layer, Tokens
from fedbuff.layers._norm import GroupNorm, LayerNorm
from fedbuff.layers._pointwise import GELU, Dense, Dropout, LeakyReLU, ReLU, Sigmoid, SiLU, Tanh
from fedbuff.layers._sequence import GRU, LSTM, Embedding, LastStep, MeanOverTime
from fedbuff.layers._stack import Residual, stack

Array = NDArray[Any]
# From a gradient and its terms to those by the input, and the terms of those by the weights.
Backward = Callable[[Array, Array], tuple[Array, Array, list[Array]]]

EVERY_LAYER = (
    Conv2d, MaxPool2d, AvgPool2d, GlobalAvgPool2d, Flatten, Dense, ReLU, LeakyReLU, GELU, SiLU, Tanh, Sigmoid, Dropout,
    GroupNorm, LayerNorm, Residual, Embedding, MeanOverTime, LastStep, LSTM, GRU, RandomCrop, RandomFlip,
)  # fmt: skip
PUBLIC = tuple(kind for kind in EVERY_LAYER if kind.__name__ in public.__all__)
WORDS = 5  # tokens of an embedding
ACTIVATIONS = (ReLU, LeakyReLU, GELU, SiLU, Tanh, Sigmoid)

# Stacks


@st.composite
def convolutions(draw: st.DrawFn, shape: tuple[int, ...], kinds: tuple[Any, ...]) -> Conv2d:
    """One that fits: its kernel may be larger than the image without its padding."""
    channels, height, width = shape
    padding: Any = draw(st.one_of(st.just("same"), st.tuples(st.integers(0, 2), st.integers(0, 2))))
    grown = (height + 9, width + 9) if padding == "same" else (height + 2 * padding[0], width + 2 * padding[1])
    kernel = tuple(draw(st.integers(1, min(5, most))) for most in grown)
    stride = (1, 1) if padding == "same" else draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    groups = draw(st.sampled_from([g for g in {1, channels} if channels % g == 0]))
    out = groups * draw(st.sampled_from([1, 2, 3, 5, 8] if groups == 1 else [1, 2]))
    if groups == 1 and draw(st.integers(0, 9)) == 0:
        out = 17
    return Conv2d(out, (kernel[0], kernel[1]), stride, padding, groups, draw(st.booleans()))


@st.composite
def pools(draw: st.DrawFn, shape: tuple[int, ...], kind: Any) -> Any:
    """One whose stride may be larger than its kernel."""
    kernel = tuple(draw(st.integers(1, min(3, most))) for most in shape[1:])
    stride = draw(st.one_of(st.none(), st.tuples(st.integers(1, 4), st.integers(1, 4))))
    padding = tuple(draw(st.integers(0, side // 2)) for side in kernel)
    return kind(kernel, stride, padding)


@st.composite
def images(draw: st.DrawFn, shape: tuple[int, ...], kinds: tuple[Any, ...], depth: int = 0) -> Any:
    """A layer that takes this image and gives another, but for those that need one that keeps its shape."""
    of_numbers = [kind for kind in kinds if kind in (*ACTIVATIONS, Dropout)]
    whole = (Conv2d, MaxPool2d, AvgPool2d, GroupNorm, LayerNorm, RandomCrop, RandomFlip)
    choices = [kind for kind in kinds if kind in whole] + of_numbers
    if Residual in kinds and depth == 0:
        choices.append(Residual)
    kind = draw(st.sampled_from(choices))
    if kind is Conv2d:
        return draw(convolutions(shape, kinds))
    if kind in (MaxPool2d, AvgPool2d):
        return draw(pools(shape, kind))
    if kind is GroupNorm:
        groups = draw(st.sampled_from([g for g in range(1, shape[0] + 1) if shape[0] % g == 0]))
        return GroupNorm(groups, affine=draw(st.booleans()))
    if kind is Residual:
        body = draw(chains(shape, kinds, depth=1))
        inner = stack(body, shape).shape
        if inner == shape and draw(st.booleans()):
            return Residual(body)
        stride = tuple(-(-before // after) for before, after in zip(shape[1:], inner[1:], strict=True))
        around = Conv2d(inner[0], 1, (stride[0], stride[1]), bias=draw(st.booleans()))
        try:
            return Residual(body, [around]) if stack([around], shape).shape == inner else ReLU()
        except ValueError:
            return ReLU()
    return draw(numbers(kind))


def numbers(kind: Any) -> st.SearchStrategy[Any]:
    if kind is LeakyReLU:
        return st.sampled_from([LeakyReLU(0.125), LeakyReLU(-0.5)])
    if kind is Dropout:
        return st.sampled_from([Dropout(0.25), Dropout(0.0)])
    if kind is RandomCrop:
        return st.sampled_from([RandomCrop(2), RandomCrop((0, 9))])
    if kind is LayerNorm:
        return st.builds(LayerNorm, affine=st.booleans())
    return st.just(kind())


@st.composite
def chains(draw: st.DrawFn, shape: tuple[int, ...], kinds: tuple[Any, ...], depth: int = 0) -> list[Layer]:
    chain: list[Layer] = []
    for _ in range(draw(st.integers(1, 4))):
        chain.append(draw(images(shape, kinds, depth)))
        shape = stack(chain[-1:], shape).shape
    return chain


@st.composite
def sequences(draw: st.DrawFn, shape: tuple[int, ...], kinds: tuple[Any, ...]) -> list[Layer]:
    """Layers from a sequence, or from tokens, to a vector."""
    chain: list[Layer] = []
    if isinstance(shape, Tokens):
        chain.append(Embedding(WORDS, draw(st.sampled_from([1, 3, 8, 17]))))
    of_steps = [kind for kind in kinds if kind in (LSTM, GRU)]
    choices = [kind for kind in kinds if kind in (*ACTIVATIONS, Dropout)] + 3 * of_steps
    for kind in draw(st.lists(st.sampled_from(choices if chain else of_steps or [None]), max_size=3)):
        if kind is None:
            break
        if kind in of_steps:
            layer = kind(draw(st.sampled_from([1, 3, 8, 17])), bias=draw(st.booleans()))
        else:
            layer = draw(numbers(kind))
        around = kind not in of_steps and Residual in kinds and draw(st.booleans())
        chain.append(Residual([layer]) if around else layer)
    ends = [kind() for kind in kinds if kind in (MeanOverTime, LastStep)] + ([Flatten()] if chain else [])
    return [*chain, draw(st.sampled_from(ends))]


@st.composite
def stacks(draw: st.DrawFn, shape: tuple[int, ...], outputs: int, kinds: tuple[Any, ...]) -> list[Layer]:
    """Layers from a row's shape to a vector of so many numbers."""
    chain: list[Layer] = []
    if len(shape) == 2 or isinstance(shape, Tokens):
        chain += draw(sequences(shape, kinds))
    elif len(shape) == 3:
        chain += draw(chains(shape, kinds))
        if GlobalAvgPool2d in kinds and draw(st.integers(0, 3)) == 0:
            chain.append(GlobalAvgPool2d())
        else:
            chain.append(Flatten())
    vectors = [kind for kind in kinds if kind in (*ACTIVATIONS, Dropout, LayerNorm)]
    for size in draw(st.lists(st.sampled_from([1, 3, 8, 17]), max_size=2)):
        chain += [Dense(size, draw(st.booleans())), draw(st.sampled_from(vectors).flatmap(numbers))]
    return [*chain, Dense(outputs, draw(st.booleans()))]


def spec_of(
    layers: list[Layer],
    x: Array,
    counts: list[int],
    head: Any,
    seed: int = 0,
    label_smoothing: float = 0.0,
    dtype: Any = None,
    **options: float,
) -> ProblemSpec:
    """The problem of these layers over rows x (rows, *shape), with targets drawn. Integers are tokens."""
    rng = np.random.default_rng(seed)
    tokens, bytes_ = x.dtype.kind == "i", x.dtype == np.uint8
    shape = Tokens(x.shape[1:]) if tokens else x.shape[1:]
    part = stack(layers, shape)
    outputs, rows = part.shape[0], len(x)
    targets = rows if outputs == 1 else (rows, outputs)
    flat = np.ascontiguousarray(x.reshape(rows, -1))
    values: dict[str, Any] = {"token": flat.astype(np.int32)} if tokens else {"byte" if bytes_ else "x": flat}
    if bytes_:
        values |= {"scale": 0.0625, "shift": -8.3}
    if head == "softmax":
        values["label"] = rng.integers(0, outputs, rows).astype(np.int32)
    elif head == "logistic":
        values["target"] = rng.integers(0, 2, targets).astype(dtype or x.dtype)
    else:
        values["target"] = rng.standard_normal(targets).astype(dtype or x.dtype)
    return ProblemSpec(
        family="layers",
        dtype=np.dtype(dtype or x.dtype),
        n_clients=len(counts),
        dim=sum(weight.size for weights in part.weights for weight in weights),
        client_weight=np.full(len(counts), 1 / len(counts)),
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        network=NetworkSpec(
            layers=part.records,
            input_shape=Inputs(shape, np.dtype(np.float64)).tensor,
            label_smoothing=label_smoothing,
        ),
        head=head,
        **values,
        **options,
    )


@st.composite
def networks(
    draw: st.DrawFn,
    dtype: Any,
    kinds: tuple[Any, ...] = PUBLIC,
    heads: tuple[Any, ...] = ("squared", "logistic", "softmax"),
    most_outputs: int = 5,
) -> ProblemSpec:
    seed = draw(st.integers(0, 2**32 - 1))
    counts = draw(st.lists(st.sampled_from([1, 2, 3, 6]), min_size=1, max_size=3))
    head: Any = draw(st.sampled_from(heads))
    outputs = draw(st.sampled_from([n for n in (2, 3, 5, 1) if n <= most_outputs and (n > 1 or head != "softmax")]))
    shape: tuple[int, ...] = draw(
        st.one_of(
            st.tuples(st.sampled_from([1, 2, 3, 4]), st.integers(1, 7), st.integers(1, 7)),
            st.tuples(st.sampled_from([1, 3, 16, 17])),
            *([st.tuples(st.integers(1, 5)).map(Tokens)] if Embedding in kinds else []),
            *([st.tuples(st.integers(1, 5), st.sampled_from([1, 3, 8, 17]))] if MeanOverTime in kinds else []),
        )
    )
    layers = draw(stacks(shape, outputs, kinds))
    rng = np.random.default_rng(seed)
    if isinstance(shape, Tokens):
        x = rng.integers(0, WORDS, (sum(counts), *shape))
    elif draw(st.integers(0, 3)) == 0:
        x = rng.integers(0, 256, (sum(counts), *shape)).astype(np.uint8)
    else:
        x = rng.standard_normal((sum(counts), *shape)).astype(dtype)
    options: dict[str, float] = {"l2": draw(st.sampled_from([0.0, 0.125]))}
    if head == "softmax":
        options["label_smoothing"] = draw(st.sampled_from([0.0, 0.25]))
    return spec_of(layers, x, counts, head, seed, dtype=dtype, **options)


def records(spec: ProblemSpec) -> tuple[LayerSpec, ...]:
    assert spec.network is not None
    return spec.network.layers


def drops(spec: ProblemSpec) -> bool:
    return any(record.kind == "dropout" for record in records(spec))


def _seen(spec: ProblemSpec) -> Passing:
    return Passing.through(spec, np.zeros(spec.dim), np.array([0]))[1]


def largest_fan(spec: ProblemSpec) -> int:
    """Terms of the longest sum that makes a value."""
    return _seen(spec).longest


def longest_sum(spec: ProblemSpec, n_rows: int) -> int:
    """Terms of the longest sum of all: of a value, of a gradient by a weight, or from a layer's input to its output and
    back."""
    seen = _seen(spec)
    return 16 + 2 * seen.longest + n_rows * seen.most_pixels


# sum|terms| of what passes through


@dataclass
class Passing:
    """Values with the sizes of what was summed to make them, as `error_bounds` has them for nets.

    `safe`: c n eps must stay below this, or a relu or the largest of a window may switch. `longest`: terms of the
    longest sum that makes a value; `most_pixels`: numbers of the largest array of a row.
    """

    draws: Draws | None = None
    dropouts: int = 0  # those passed so far
    safe: float = np.inf
    longest: int = 1
    most_pixels: int = 1

    @staticmethod
    def through(
        spec: ProblemSpec, w: Array, rows: Array, draws: Draws | None = None
    ) -> tuple[tuple[Array, Array, Backward], Passing]:
        """The scores of these rows, their terms and the way back."""
        assert spec.network is not None
        passing = Passing(draws)
        problem = reference.bind(spec)
        assert isinstance(problem, reference._Layers)
        value = problem.inputs(rows)
        scores = passing.chain(list(spec.network.layers), value, np.zeros(value.shape), w)
        return scores[:3], passing

    def chain(self, layers: list[LayerSpec], x: Array, e: Array, w: Array) -> tuple[Array, Array, Backward, int]:
        """Also how many weights of w were used."""
        steps: list[Backward] = []
        at = used = 0
        while at < len(layers):
            end = _end(layers, at) if layers[at].kind == "residual" else at
            x, e, step, n = self.layer(layers[at : end + 1], x, e, w[used:])
            self.most_pixels = max(self.most_pixels, x[0].size)
            steps.append(step)
            used, at = used + n, end + 1

        def back(d: Array, e_d: Array) -> tuple[Array, Array, list[Array]]:
            terms: list[Array] = []
            for step in reversed(steps):
                d, e_d, own = step(d, e_d)
                terms = own + terms
            return d, e_d, terms

        return x, e, back, used

    def layer(self, layers: list[LayerSpec], x: Array, e: Array, w: Array) -> tuple[Array, Array, Backward, int]:
        layer = layers[0]
        if layer.kind == "residual":
            return self.residual(layers[1:-1], x, e, w)
        if layer.kind == "flatten":
            return x.reshape(len(x), -1), e.reshape(len(x), -1), _reshaped(x.shape), 0
        if layer.kind == "embedding":
            return embedding(layer, x, w)
        if layer.kind in ("lstm", "gru"):
            self.longest = max(self.longest, x.shape[-1] + 5 * layer.out)
            return recurrent(layer, x, e, w)
        if layer.kind == "max_pool":
            return self.max_pool(layer, x, e)
        if layer.kind in ("relu", "leaky_relu"):
            self.closest(np.abs(x), e)
            slope = np.where(x > 0, 1.0, layer.number)
            return x * slope, np.abs(slope) * (e + np.abs(x)), _scaled(slope), 0
        if layer.kind in ("group_norm", "layer_norm"):
            return norm(layer, x, e, w)
        if layer.kind in ("random_crop", "random_flip"):
            assert self.draws is None
            return x, e, lambda d, e_d: (d, e_d, []), 0
        if layer.kind == "dropout":
            return self.dropout(layer, x, e)
        if layer.kind in STEEPEST:
            value, true_back = LAYERS[layer.kind](layer, x, Weights(w))
            slope, _ = true_back(np.ones_like(x))
            return value, e * STEEPEST[layer.kind] + np.abs(x) + np.abs(value), _curved(slope, e + np.abs(x)), 0
        if layer.kind in ("conv2d", "dense", "avg_pool", "global_avg", "mean_over_time", "last_step"):
            return self.linear(layer, x, e, w)
        raise AssertionError(f"{layer.kind}: no bounds")

    def residual(self, layers: list[LayerSpec], x: Array, e: Array, w: Array) -> tuple[Array, Array, Backward, int]:
        middle = _shortcut(layers)
        a, e_a, back_a, used = self.chain(layers[:middle], x, e, w)
        b, e_b, back_b, more = self.chain(layers[middle + 1 :], x, e, w[used:])

        def back(d: Array, e_d: Array) -> tuple[Array, Array, list[Array]]:
            (d_a, e_d_a, own_a), (d_b, e_d_b, own_b) = back_a(d, e_d), back_b(d, e_d)
            return d_a + d_b, e_d_a + e_d_b + np.abs(d_a) + np.abs(d_b), own_a + own_b

        return a + b, e_a + e_b + np.abs(a) + np.abs(b), back, used + more

    def linear(self, layer: LayerSpec, x: Array, e: Array, w: Array) -> tuple[Array, Array, Backward, int]:
        """What is linear in its input: the same layer of absolute values gives the sizes."""
        function, weights = LAYERS[layer.kind], Weights(np.abs(w))
        y, true_back = function(layer, x, Weights(w))
        e_y, _ = function(layer, e + np.abs(x), weights)
        _, back_of_values = function(layer, np.abs(x), Weights(np.abs(w)))
        _, back_of_errors = function(layer, e, Weights(np.abs(w)))
        self.longest = max(self.longest, _terms(layer, x))

        def back(d: Array, e_d: Array) -> tuple[Array, Array, list[Array]]:
            by_x, _ = true_back(d)
            terms, own = back_of_values(e_d + np.abs(d))
            _, more = back_of_errors(np.abs(d))
            return by_x, terms, [one + two for one, two in zip(own, more, strict=True)]

        return y, e_y, back, len(w) - weights.left

    def max_pool(self, layer: LayerSpec, x: Array, e: Array) -> tuple[Array, Array, Backward, int]:
        y, true_back = LAYERS["max_pool"](layer, x, Weights(np.empty(0)))
        values = _windows(layer, _padded(layer, x, -np.inf))
        terms = _windows(layer, _padded(layer, e, 0.0))
        flat, flat_e = values.reshape(*values.shape[:4], -1), terms.reshape(*values.shape[:4], -1)
        first = flat.argmax(axis=-1)[..., np.newaxis]
        e_y = np.take_along_axis(flat_e, first, axis=-1)
        others = np.arange(flat.shape[-1]) != first
        finite = others & np.isfinite(flat)
        gap = np.where(finite, y[..., np.newaxis] - np.where(finite, flat, 0.0), np.inf)
        self.closest(gap, np.where(finite, e_y + flat_e, 0.0))

        def back(d: Array, e_d: Array) -> tuple[Array, Array, list[Array]]:
            by_x, _ = true_back(d)
            terms, _ = true_back(e_d + np.abs(d))
            return by_x, terms, []

        return y, e_y[..., 0], back, 0

    def dropout(self, layer: LayerSpec, x: Array, e: Array) -> tuple[Array, Array, Backward, int]:
        number, self.dropouts = self.dropouts, self.dropouts + 1
        if self.draws is None:
            return x, e, _scaled(np.ones_like(x)), 0
        kept = self.draws.kept(number, layer.number, x[0].size).reshape(x.shape)
        scale = kept / (1 - layer.number)
        return scale * x, scale * (e + np.abs(x)), _scaled(scale), 0

    def closest(self, distance: Array, terms: Array) -> None:
        near = np.min(distance / np.maximum(terms, 1e-300), where=terms > 0, initial=np.inf)
        self.safe = min(self.safe, float(near))


def _terms(layer: LayerSpec, x: Array) -> int:
    """Of each sum that makes an output of the layer."""
    if layer.kind == "conv2d":
        return x.shape[1] // layer.groups * math.prod(layer.kernel) + 1
    return math.prod(layer.kernel) if layer.kind == "avg_pool" else x[0].size + 1


def embedding(layer: LayerSpec, x: Array, w: Array) -> tuple[Array, Array, Backward, int]:
    weights = Weights(w)
    y, true_back = LAYERS["embedding"](layer, x, weights)

    def back(d: Array, e_d: Array) -> tuple[Array, Array, list[Array]]:
        nothing, terms = true_back(e_d + np.abs(d))
        return nothing, nothing, terms

    return y, np.zeros(y.shape), back, len(w) - weights.left


def _scaled(slope: Array) -> Backward:
    return lambda d, e_d: (d * slope, np.abs(slope) * (e_d + np.abs(d)), [])


def norm(layer: LayerSpec, x: Array, e: Array, w: Array) -> tuple[Array, Array, Backward, int]:
    """To first order: what the mean, the scale and the unit are wrong by, and what that does to the gradient."""
    groups = (len(x), layer.out if layer.kind == "group_norm" else 1, -1)
    shape = (x.shape[1],) + (1,) * (x.ndim - 2) if layer.kind == "group_norm" else x.shape[1:]
    weights = Weights(w)
    weight = np.abs(weights.take(*shape)) if layer.bias else np.ones(shape)
    bias = np.abs(weights.take(*shape)) if layer.bias else np.zeros(shape)
    y, true_back = LAYERS[layer.kind](layer, x, Weights(w))

    def mean(values: Array) -> Array:
        return np.asarray(values.mean(axis=-1, keepdims=True))

    grouped, e_grouped = x.reshape(groups), e.reshape(groups)
    away = grouped - mean(grouped)
    e_away = e_grouped + mean(e_grouped) + np.abs(grouped) + mean(np.abs(grouped))
    scale = 1 / np.sqrt(mean(away * away) + layer.number)
    unit = np.abs(away) * scale
    e_scale = scale**2 * mean(np.abs(away) * (e_away + np.abs(away))) + 2  # relative
    e_unit = scale * e_away + unit * e_scale
    e_y = weight * (e_unit + 2 * unit).reshape(x.shape) + bias

    def back(d: Array, e_d: Array) -> tuple[Array, Array, list[Array]]:
        by_x, _ = true_back(d)
        s = (np.abs(d) * weight).reshape(groups)
        e_s = ((e_d + np.abs(d)) * weight).reshape(groups)
        along = mean(s * unit)
        e_along = mean((e_s + s) * unit + s * e_unit)
        terms = e_s + mean(e_s + s) + unit * e_along + (e_unit + unit) * along
        terms = scale * (terms + (e_scale + 1) * (s + mean(s) + unit * along))
        others = tuple(axis for axis in range(x.ndim) if axis == 0 or (layer.kind == "group_norm" and axis > 1))
        full_unit, full_e = unit.reshape(x.shape), e_unit.reshape(x.shape)
        own = [
            ((e_d + np.abs(d)) * full_unit + np.abs(d) * full_e).sum(axis=others),
            (e_d + np.abs(d)).sum(axis=others),
        ]
        return by_x, terms.reshape(x.shape), own if layer.bias else []

    return y, e_y, back, len(w) - weights.left


# The largest slope of what is smooth; its own slope changes by at most 2 for each unit.
STEEPEST = {"tanh": 1.0, "sigmoid": 0.25, "silu": 1.1, "gelu": 1.13}


def _curved(slope: Array, e: Array) -> Backward:
    """The slope is itself known to 2 (e + 1), in the unit of the terms."""
    return lambda d, e_d: (d * slope, (e_d + np.abs(d)) * np.abs(slope) + np.abs(d) * 2 * (e + 1), [])


def _reshaped(shape: tuple[int, ...]) -> Backward:
    return lambda d, e_d: (d.reshape(shape), e_d.reshape(shape), [])
