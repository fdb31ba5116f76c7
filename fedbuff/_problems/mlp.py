"""Softmax regression and multilayer perceptrons."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import read_only, to_array
from .._base.checks import (
    choice,
    count,
    flag,
    list_of,
)
from ..backends.spec import ProblemSpec
from .base import ClientWeights
from .rows import Classifier, is_csr

__all__ = ["MLP", "Softmax"]
_MOST_HIDDEN = 15


class MLP(Classifier):
    """A multilayer perceptron with softmax cross-entropy; `hidden` gives the sizes of its hidden layers.

    >>> import numpy as np, fedbuff as fb
    >>> X = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    >>> problem = fb.MLP(X, [0, 1, 2, 0, 1, 2], clients=[0, 0, 0, 1, 1, 1], hidden=(4,))
    >>> problem.dim
    31

    The model is laid out layer by layer as PyTorch does: weight (out, in) row-major, then bias. `activation` is "relu"
    (its slope at 0 is 0) or "tanh".
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        clients: Any,
        *,
        hidden: Sequence[int] = (128,),
        activation: Literal["relu", "tanh"] = "relu",
        l2: float = 0.0,
        intercept: bool = True,
        client_weights: ClientWeights = "equal",
        copy: bool = True,
    ) -> None:
        choice("activation", activation, ("relu", "tanh"))
        sizes = tuple(count("hidden", size) for size in list_of("hidden", hidden, "a size for each hidden layer"))
        if len(sizes) > _MOST_HIDDEN:
            raise ValueError(f"hidden: expected at most {_MOST_HIDDEN} layers, got {len(sizes)}")
        if is_csr(X):
            raise TypeError(f"X: {type(self).__name__} takes dense rows; pass X.toarray()")
        fields = self._prepare(X, y, clients, client_weights, copy, l2)
        classes, index = np.unique(to_array("y", y), return_inverse=True)
        self.classes = read_only(classes)
        if len(self.classes) < 2:
            raise ValueError(f"y: expected at least two classes, got {len(self.classes)}")
        fields.update(
            sizes=(fields["x"].shape[1], *sizes, len(self.classes)),
            intercept=flag("intercept", intercept),
            activation=activation,
        )
        self._finish(fields, index)

    def _finish(self, fields: dict[str, Any], index: NDArray[Any], like: ProblemSpec | None = None) -> None:
        if like is not None:
            if fields["x"].shape[1] != like.sizes[0]:
                raise ValueError(f"X: expected {like.sizes[0]} features, got {fields['x'].shape[1]}")
            fields.update(sizes=like.sizes, intercept=like.intercept, activation=like.activation)
        sizes = fields["sizes"]
        dim = sum((n_in + fields["intercept"]) * n_out for n_in, n_out in pairwise(sizes))
        self._set(
            ProblemSpec(**fields, dim=dim, head="softmax", label=self._targets(index, np.int32, copy=False)),
            np.diff(self._group.offsets),
        )


class Softmax(MLP):
    """Softmax (multinomial logistic) regression: an `MLP` without hidden layers.

    >>> import numpy as np, fedbuff as fb
    >>> problem = fb.Softmax(np.eye(3, dtype=np.float32), [0, 1, 2], clients=[0, 1, 2])
    >>> round(problem.loss(problem.init()), 4)
    1.0986
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        clients: Any,
        *,
        l2: float = 0.0,
        intercept: bool = True,
        client_weights: ClientWeights = "equal",
        copy: bool = True,
    ) -> None:
        super().__init__(X, y, clients, hidden=(), l2=l2, intercept=intercept, client_weights=client_weights, copy=copy)
