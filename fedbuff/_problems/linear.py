"""Least squares and logistic regression, on dense or sparse rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import (
    all_finite,
    as_array,
    read_only,
    to_array,
)
from .._base.checks import flag, number
from ..backends.spec import ProblemSpec
from .base import ClientWeights
from .rows import Classifier, RowsProblem, is_csr

__all__ = ["LeastSquares", "Logistic"]


class LeastSquares(RowsProblem):
    """f_i(w) = mean over rows of (x' w - y)^2 / 2, plus l2 / 2 |w|^2.

    >>> import numpy as np, fedbuff as fb
    >>> problem = fb.LeastSquares(np.eye(4), np.ones(4), clients=[0, 0, 1, 1])
    >>> problem.loss(problem.init())
    0.5

    X (rows, features) and y (rows) are float32 or float64, alike. `clients` is a client number per row, or offsets:
    client i owns rows offsets[i] to offsets[i + 1].
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        clients: Any,
        *,
        l2: float = 0.0,
        intercept: bool = False,
        client_weights: ClientWeights = "equal",
        copy: bool = True,
    ) -> None:
        if is_csr(X):
            raise TypeError("X: LeastSquares takes dense rows; pass X.toarray()")
        fields = self._prepare(X, y, clients, client_weights, copy, l2)
        target = as_array("y", y)
        if target.dtype != fields["dtype"]:
            raise TypeError(
                f"y: expected {fields['dtype']}, as X, got {target.dtype}; pass y.astype(np.{fields['dtype']})"
            )
        if not all_finite(target):
            raise ValueError(f"y: row {int(np.argmin(np.isfinite(target)))} is not finite")
        n_features = fields["x"].shape[1]
        spec = ProblemSpec(
            **fields,
            dim=n_features + flag("intercept", intercept),
            sizes=(n_features, 1),
            intercept=flag("intercept", intercept),
            head="squared",
            target=self._targets(target, fields["dtype"], copy),
        )
        self._set(spec, np.diff(self._group.offsets))


class Logistic(Classifier):
    """Two classes: f_i(w) = mean over rows of log(1 + exp(-z)) or log(1 + exp(z)), z = x' w, plus regularisers.

    >>> import numpy as np, fedbuff as fb
    >>> X = np.array([[1.0], [2.0], [-1.0], [-2.0]], np.float32)
    >>> problem = fb.Logistic(X, ["yes", "yes", "no", "no"], clients=[0, 2, 4])
    >>> problem.classes.tolist(), problem.accuracy(np.ones(1, np.float32))
    (['no', 'yes'], 1.0)

    X is dense (rows, features) or CSR (anything with data, indices, indptr and shape, as SciPy's). The two values of y,
    in order, are kept in `classes`. `l2` adds l2 / 2 |w|^2, `nonconvex` adds nonconvex * sum w^2 / (1 + w^2).
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        clients: Any,
        *,
        l2: float = 0.0,
        nonconvex: float = 0.0,
        intercept: bool = False,
        client_weights: ClientWeights = "equal",
        copy: bool = True,
    ) -> None:
        fields = self._prepare(X, y, clients, client_weights, copy, l2)
        fields["nonconvex"] = number("nonconvex", nonconvex)
        fields["intercept"] = flag("intercept", intercept)
        classes, index = np.unique(to_array("y", y), return_inverse=True)
        self.classes = read_only(classes)
        if len(self.classes) != 2:
            raise ValueError(f"y: expected two classes, got {len(self.classes)}")
        self._finish(fields, index)

    def _finish(self, fields: dict[str, Any], index: NDArray[Any], like: ProblemSpec | None = None) -> None:
        n_features = fields.pop("n_features", None) or fields["x"].shape[1]
        intercept = like.intercept if like is not None else fields.pop("intercept")
        spec = ProblemSpec(
            **fields,
            dim=n_features + intercept,
            sizes=(n_features, 1),
            intercept=intercept,
            head="logistic",
            target=self._targets(index, fields["dtype"], copy=False),
        )
        self._set(spec, np.diff(self._group.offsets))
