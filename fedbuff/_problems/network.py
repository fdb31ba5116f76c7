"""Networks: layers in sequence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from .. import backends
from .._base.arrays import all_finite, as_array, read_only, to_array
from .._base.checks import choice, number, seed_of
from ..backends.python.philox import Stream
from ..backends.spec import NetworkSpec, ProblemSpec
from ..layers._layer import Layer, Part, Shape, Weight, described
from ..layers._stack import layers_of, stack
from .base import ClientWeights, Floats
from .network_rows import Inputs, inputs_of
from .rows import Classifier
from .to_torch import module_of

__all__ = ["Network"]

_HEADS: dict[str, Any] = {"cross_entropy": "softmax", "squared_error": "squared", "binary_cross_entropy": "logistic"}
_HE = ("relu", "leaky_relu", "gelu", "silu")  # activations before which weights start with variance 2 / fan_in
_ACTIVATIONS = (*_HE, "tanh", "sigmoid")


class Network(Classifier):
    """Layers in sequence, compiled; `fedbuff.layers` has them.

    >>> import numpy as np, fedbuff as fb
    >>> X = np.random.default_rng(0).standard_normal((6, 1, 8, 8)).astype(np.float32)
    >>> L = fb.layers
    >>> layers = [L.Conv2d(4, 3, padding="same"), L.ReLU(), L.MaxPool2d(2), L.Flatten(), L.Dense(3)]
    >>> problem = fb.Network(X, [0, 1, 2, 0, 1, 2], clients=[0, 0, 0, 1, 1, 1], layers=layers)
    >>> problem
    <Network: 2 clients, 235 float32 weights>
    >>> problem.shapes
    ((1, 8, 8), (4, 8, 8), (4, 8, 8), (4, 4, 4), (64,), (3,))

    X is (rows, channels, height, width), (rows, height, width) for images of one channel, or (rows, features); where
    the first layer takes sequences, (rows, time, features); where it is an `Embedding`, integers of shape (rows, time),
    which are kept as int32. The model is laid out layer by layer as PyTorch does; a residual block has its layers
    first, then its shortcut.

    loss   "cross_entropy": y has labels. Whole numbers below the number of outputs are the outputs' numbers; else there
           must be as many different labels as outputs, which are put in order.
           "squared_error": y is (rows, outputs) of X's dtype, or (rows) for one output; the loss of a row is the sum of
           (score - y)^2 / 2. "binary_cross_entropy": the same with y of 0 and 1, and the sum of
           log(1 + exp(score)) - y score; for one output y may have any two labels, which are put in order.
    label_smoothing  of cross-entropy: so much of a label is spread evenly over all outputs
    l2     adds l2 / 2 |w|^2
    dtype  of the model where X has tokens or bytes: float32 unless given; else it is that of X
    scale, shift  of an X of uint8, which stays so in memory: b stands for scale * b + shift. 1 / 255 and 0 unless given
    """

    layers: tuple[Layer, ...]
    shapes: tuple[Shape, ...]
    _part: Part
    _inputs: Inputs
    _start: Floats | None = None  # what `init` gives in the place of a draw
    _origin: Any = None  # the module that `fedbuff.torch.network` made it of

    def __init__(
        self,
        X: Any,
        y: Any,
        clients: Any,
        *,
        layers: Sequence[Layer],
        loss: Literal["cross_entropy", "squared_error", "binary_cross_entropy"] = "cross_entropy",
        label_smoothing: float = 0.0,
        l2: float = 0.0,
        client_weights: ClientWeights = "equal",
        dtype: Any = None,
        scale: float | None = None,
        shift: float | None = None,
        copy: bool = True,
    ) -> None:
        choice("loss", loss, tuple(_HEADS))
        smoothing = number("label_smoothing", label_smoothing, high=1.0)
        if smoothing == 1.0:
            raise ValueError("label_smoothing: expected a number >= 0 and < 1, got 1.0")
        if smoothing and loss != "cross_entropy":
            raise ValueError(f"label_smoothing: {loss} has none, cross_entropy has")
        made = layers_of("layers", layers)
        if not made:
            raise ValueError("layers: expected at least one layer")
        self._plan(made, inputs_of(X, made, dtype, scale, shift))
        targets = to_array("y", y)
        n_outputs = self._part.shape[0]
        several = loss != "cross_entropy" and targets.ndim == 2
        fields = self._prepare(
            X, targets[:, 0] if several and targets.size else targets, clients, client_weights, copy, l2
        )
        fields.update(head=_HEADS[loss], label_smoothing=smoothing)
        if loss == "cross_entropy":
            self.classes, index = _labels(targets, n_outputs)
        elif loss == "binary_cross_entropy" and n_outputs == 1 and not several:
            self.classes, index = _two_labels(targets)
        else:
            self.classes = read_only(np.arange(2 if loss == "binary_cross_entropy" else 0))
            index = _numbers(y, fields["dtype"], (len(targets), n_outputs), loss == "binary_cross_entropy")
        if loss == "squared_error" or (loss == "binary_cross_entropy" and n_outputs > 1):
            self.accuracy = self.held_out = None  # type: ignore[assignment,method-assign]
        self._finish(fields, index)

    def init(self, seed: int = 0) -> Floats:
        """A model to start from.

        Weights of convolutions and dense layers are normal: where the next activation is ReLU, LeakyReLU, GELU or SiLU,
        of variance 2 / fan_in (He); where it is Tanh or Sigmoid, or there is none at all, of variance
        2 / (fan_in + fan_out) (Glorot). Behind the last activation, the last one counts. Biases are 0; norms have
        weight 1 and bias 0; embeddings are normal of variance 1, weights of LSTM and GRU of variance
        1 / (3 width), which is that of PyTorch's uniform ones. A network that was made of a PyTorch module has the
        module's weights, whatever the seed.
        """
        w, key = np.zeros(self.dim, self.dtype), seed_of(seed)
        if self._start is not None:
            return self._start.copy()
        begin = drawn = 0
        for weight, he in self._weights():
            here = slice(begin, begin := begin + weight.size)
            if weight.start == "ones":
                w[here] = 1
            elif weight.start != "zeros":
                normals = backends.current().normals(key, 0, 0, drawn, Stream.INITIAL_MODEL, weight.size)
                w[here] = normals * np.sqrt(_variance(weight, he))
                drawn += 1
        return w

    def to_torch(self, w: Any) -> Any:
        """A torch.nn.Sequential of the same layers with the weights of a model, for rows of shape `shapes[0]`.

        Of a network that `fedbuff.torch.network` made, a copy of its module with the weights of the model.
        """
        if self._origin is not None:
            return self._origin.with_weights(self._model(w))
        return module_of(self.layers, self.shapes[0], self._model(w))

    def _weights(self) -> Iterator[tuple[Weight, bool]]:
        """Every array of weights, and whether it starts as He has it."""
        activations = [(at, record.kind) for at, record in enumerate(self._part.records) if record.kind in _ACTIVATIONS]
        for at, weights in enumerate(self._part.weights):
            behind = [kind for place, kind in activations if place > at]
            nearest = behind[0] if behind else activations[-1][1] if activations else ""
            yield from ((weight, nearest in _HE) for weight in weights)

    def _plan(self, layers: tuple[Layer, ...], inputs: Inputs) -> None:
        """Follows the shape of a row through the layers."""
        self.layers, self._inputs = layers, inputs
        shapes = [inputs.shape]
        self._part = stack(layers, inputs.shape, shapes=shapes)
        self.shapes = tuple(shapes)
        if len(self._part.shape) != 1:
            raise ValueError(
                f"layers[{len(layers) - 1}] ({type(layers[-1]).__name__}): the last layer gives "
                f"{described(self._part.shape)}, but the loss wants a vector of shape (outputs,); "
                "end with Flatten() and Dense(outputs)"
            )

    def _finish(self, fields: dict[str, Any], index: NDArray[Any], like: ProblemSpec | None = None) -> None:
        if like is not None:
            assert like.network is not None
            fields.update(head=like.head, label_smoothing=like.network.label_smoothing)
        network = NetworkSpec(
            layers=self._part.records,
            input_shape=self._inputs.tensor,
            label_smoothing=fields.pop("label_smoothing"),
        )
        dtype, head = fields["dtype"], fields["head"]
        if head == "softmax":
            fields["label"] = self._targets(index, np.int32, copy=False)
        else:
            fields["target"] = self._targets(index, dtype, copy=True)
        dim = sum(weight.size for weight, _ in self._weights())
        self._set(ProblemSpec(**fields, dim=dim, network=network), np.diff(self._group.offsets))

    def held_out(self, X: Any, y: Any, *, copy: bool = True) -> Self:
        """The same model over other rows, all of one client: to evaluate on data that nobody trains on."""
        inputs = inputs_of(X, self.layers, self.dtype)
        if inputs.shape != self.shapes[0]:
            raise ValueError(f"X: expected rows of shape {self.shapes[0]}, got {inputs.shape}")
        return super().held_out(X, y, copy=copy)

    def _size(self, X: Any) -> tuple[int, int]:
        return len(as_array("X", X)), math.prod(self._inputs.shape)

    def _rows(self, X: Any, copy: bool) -> dict[str, Any]:
        return self._inputs.fields(X, self._group, copy)

    def _like(self, other: Self) -> None:
        self.layers, self.shapes, self._part, self._inputs = other.layers, other.shapes, other._part, other._inputs
        self._start, self._origin = other._start, other._origin


def _variance(weight: Weight, he: bool) -> float:
    """Of the normals that an array of weights starts with."""
    if weight.start == "normal":
        return 1.0
    if weight.start == "recurrent":
        return 1.0 / (3.0 * weight.fan_in)
    return 2.0 / weight.fan_in if he else 2.0 / (weight.fan_in + weight.fan_out)


def _labels(y: NDArray[Any], n_outputs: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The classes in the order of the outputs, and the output of each row."""
    if n_outputs < 2:
        raise ValueError(
            f"layers: cross_entropy wants two outputs or more, got {n_outputs}; loss='binary_cross_entropy' takes one"
        )
    if y.dtype.kind in "iuf" and y.min() >= 0 and y.max() < n_outputs and (y == np.floor(y)).all():
        return read_only(np.arange(n_outputs).astype(y.dtype)), y
    classes, index = np.unique(y, return_inverse=True)
    if len(classes) != n_outputs:
        raise ValueError(
            f"y: expected whole numbers below {n_outputs}, the number of outputs, or {n_outputs} different labels, got "
            f"{len(classes)} different ones"
        )
    return read_only(classes), index


def _two_labels(y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The two classes in order, and which of them each row has."""
    classes, index = np.unique(y, return_inverse=True)
    if len(classes) != 2:
        raise ValueError(f"y: expected two classes, got {len(classes)}")
    return read_only(classes), index


def _numbers(y: Any, dtype: np.dtype[Any], shape: tuple[int, int], binary: bool) -> NDArray[Any]:
    """Targets (rows, outputs), or (rows) for one output."""
    target = as_array("y", y)
    if target.shape != shape and not (shape[1] == 1 and target.shape == shape[:1]):
        either = f"({shape[0]},) or " if shape[1] == 1 else ""
        raise ValueError(f"y: expected shape {either}{shape}, got {target.shape}")
    if shape[1] == 1:
        target = target.reshape(-1)
    if binary:
        if not ((target == 0) | (target == 1)).all():
            raise ValueError("y: expected 0 and 1 only, for each output")
        return target
    if target.dtype != dtype:
        raise TypeError(f"y: expected {dtype}, as X, got {target.dtype}; pass y.astype(np.{dtype})")
    if not all_finite(target):
        bad = int(np.argmin(np.isfinite(target.reshape(len(target), -1)).all(axis=1)))
        raise ValueError(f"y: row {bad} is not finite")
    return target
