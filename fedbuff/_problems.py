"""What the clients minimise: f is the mean over clients of f_i, f_i the mean over the rows of client i.

A problem keeps a private copy of its rows and targets, grouped by client and aligned for the kernels; with copy=False
it works on the caller's arrays, which must then be in order and must not change. Problems are immutable and may be
shared between threads.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import backends
from ._arrays import (
    aligned_copy,
    all_finite,
    as_array,
    as_output,
    as_vector,
    model_dtype,
    pick_lists,
    read_only,
    to_array,
)
from ._checks import choice, count, flag, instance, list_of, number, seed_of
from ._constants import Constants, constants_of
from ._local import LocalSGD
from .backends._spec import BoundProblem, ProblemSpec

__all__ = ["MLP", "LeastSquares", "Logistic", "Problem", "Quadratic", "Softmax"]

Floats = NDArray[np.floating]
ClientWeights = Literal["equal", "samples"] | ArrayLike

_INITIAL_MODEL = 5  # the Philox stream
_MOST_HIDDEN = 15
_INT32_MAX = 2**31 - 1


class Problem:
    """What all problems share. Made through `Quadratic`, `LeastSquares`, `Logistic`, `Softmax` and `MLP`."""

    _spec: ProblemSpec
    _bound: BoundProblem | None
    _samples: NDArray[np.int64]

    def _set(self, spec: ProblemSpec, samples: NDArray[np.int64]) -> None:
        self._spec = spec
        self._bound = None
        self._samples = read_only(samples)

    @property
    def n_clients(self) -> int:
        return self._spec.n_clients

    @property
    def n_samples(self) -> NDArray[np.int64]:
        """Rows per client, read-only; ones for a `Quadratic`."""
        return self._samples

    @property
    def dim(self) -> int:
        """How many numbers a model has."""
        return self._spec.dim

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """The dtype of models and of all arithmetic."""
        return self._spec.dtype

    @property
    def bound(self) -> BoundProblem:
        """This problem in the hands of the backend in force."""
        if self._bound is None:
            self._bound = backends.current().bind(self._spec)
        return self._bound

    def init(self, seed: int = 0) -> Floats:
        """A model to start from: zeros, or for hidden layers He (relu) or Glorot (tanh) normals with zero biases."""
        w, key = np.zeros(self.dim, self.dtype), seed_of(seed)
        spec = self._spec
        if len(spec.sizes) > 2:
            begin = 0
            for layer, (n_in, n_out) in enumerate(pairwise(spec.sizes)):
                n = n_in * n_out
                variance = 2.0 / n_in if spec.activation == "relu" else 2.0 / (n_in + n_out)
                normals = backends.current().normals(key, 0, 0, layer, _INITIAL_MODEL, n)
                w[begin : begin + n] = normals * np.sqrt(variance)
                begin += n + (n_out if spec.intercept else 0)
        return w

    def loss(self, w: Any, *, threads: int | None = None) -> float:
        """f(w)."""
        return self.bound.gradient(self._model(w), None, self._threads(threads))

    def grad(self, w: Any, *, out: Floats | None = None, threads: int | None = None) -> Floats:
        """The gradient of f at w, the same bits for every number of threads."""
        model = self._model(w)
        result = self._output(out, model)
        self.bound.gradient(model, result, self._threads(threads))
        return result

    def client_loss(self, client: int, w: Any) -> float:
        """f_i(w) of one client."""
        return self.bound.client_gradient(self._client(client), self._model(w), None)

    def client_grad(self, client: int, w: Any, *, out: Floats | None = None) -> Floats:
        """The gradient of one client's f_i at w."""
        model = self._model(w)
        result = self._output(out, model)
        self.bound.client_gradient(self._client(client), model, result)
        return result

    def constants(self) -> Constants:
        """The constants of `fedbuff.theory`'s assumptions, tagged exact, upper or lower bound, estimate or infinite.

        >>> import numpy as np, fedbuff as fb
        >>> fb.Quadratic(np.array([[0.0], [2.0]]), curvature=0.5, noise_variance=3.0).constants().gamma2
        0.25 (exact)
        """
        return constants_of(self)

    def delta(
        self,
        w: Any,
        client: int,
        local: LocalSGD,
        *,
        task: int = 0,
        seed: int = 0,
        batches: ArrayLike | None = None,
        out: Floats | None = None,
    ) -> Floats:
        """One client's upload: w minus the model after `local.steps` local steps from w.

        Batches are a function of (seed, client, task, local step). `batches` (steps, batch_size) gives them instead, as
        row numbers within the client.
        """
        model = self._model(w)
        result = self._output(out, model)
        which = self._client(client)
        instance("local", local, LocalSGD, "a LocalSGD")
        batch = local.batch_of(which, self.n_clients)
        rows = None if batches is None else self._batches(batches, which, local.steps, batch)
        if rows is not None:
            batch = rows.shape[1]
        task_number, key = count("task", task, low=0), seed_of(seed)
        if task_number >= 2**32:
            raise ValueError(f"task: expected an int below 2**32, got {task_number}")
        self.bound.local_sgd(
            local.spec, model, client=which, task=task_number, seed=key, batch=batch, rows=rows, delta_out=result
        )
        return result

    def _model(self, w: Any) -> Floats:
        return as_vector("w", w, self.dim, self.dtype)

    def _output(self, out: Floats | None, model: Floats) -> Floats:
        return np.empty(self.dim, self.dtype) if out is None else as_output("out", out, self.dim, self.dtype, model)

    def _client(self, client: int) -> int:
        which = count("client", client, low=0)
        if which >= self.n_clients:
            raise IndexError(f"client: there are {self.n_clients} clients, got {which}")
        return which

    def _threads(self, threads: int | None) -> int:
        return backends.default_threads() if threads is None else count("threads", threads)

    def _batches(self, batches: ArrayLike, client: int, steps: int, batch: int) -> NDArray[np.int64]:
        if self._spec.offsets is None:
            raise ValueError("batches: a Quadratic has no rows")
        given = to_array("batches", batches)
        if given.dtype.kind not in "iu":
            raise TypeError(f"batches: expected integers, got {given.dtype}")
        if given.ndim != 2 or given.shape[0] != steps or given.shape[1] < 1 or batch not in (0, given.shape[1]):
            raise ValueError(f"batches: expected shape ({steps}, {batch or 'any'}), got {given.shape}")
        rows = np.ascontiguousarray(given, np.int64)
        n = int(self._samples[client])
        if rows.min() < 0 or rows.max() >= n:
            raise IndexError(f"batches: client {client} has rows 0 to {n - 1}, got {rows.min()} to {rows.max()}")
        return rows

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.n_clients} clients, {self.dim} {self.dtype} weights>"


class _Rows(Problem):
    """Problems made of rows, features and targets."""

    _group: _Grouping

    def _prepare(
        self,
        X: Any,
        y: Any,
        clients: Any,
        client_weights: ClientWeights,
        copy: bool,
        l2: float,
    ) -> dict[str, Any]:
        """Checks what all such problems are given; the shared fields of the spec."""
        sparse = _is_csr(X)
        n_rows, n_features = X.shape if sparse else _dense(X).shape
        if n_rows == 0 or n_features == 0:
            raise ValueError(f"X: expected at least one row and one feature, got shape {(n_rows, n_features)}")
        if n_features > _INT32_MAX:
            raise ValueError(f"X: at most {_INT32_MAX} features, got {n_features}")
        self._group = _Grouping(clients, n_rows, copy)
        shape = to_array("y", y).shape
        if shape != (n_rows,):
            raise ValueError(f"y: expected shape ({n_rows},), one target per row, got {shape}")
        fields = _csr_fields(X, self._group, copy) if sparse else {"x": _dense_rows(X, self._group, copy)}
        samples = np.diff(self._group.offsets)
        return {
            "family": "sparse" if sparse else "net",
            "dtype": fields["x"].dtype,
            "n_clients": len(samples),
            "client_weight": _client_weight(client_weights, samples),
            "offsets": self._group.offsets,
            "l2": number("l2", l2),
            **fields,
        }

    def _targets(self, y: NDArray[Any], dtype: Any, copy: bool) -> NDArray[Any]:
        order = self._group.order
        return np.array(y if order is None else y[order], dtype, order="C", copy=copy or None)


class _Classifier(_Rows):
    classes: NDArray[Any]

    def accuracy(self, w: Any, data: tuple[Any, Any] | None = None) -> float:
        """The share of rows put in the right class: of this problem's rows, or of held-out `data` = (X, y)."""
        model = self._model(w)
        if data is None:
            n = int(self._samples.sum())
            return self.bound.count_correct(0, n, model) / n
        return self.held_out(*data, copy=False).accuracy(model)

    def held_out(self, X: Any, y: Any, *, copy: bool = True) -> Self:
        """The same model over other rows, all of one client: to evaluate on data that nobody trains on."""
        labels = to_array("y", y)
        n = len(labels) if labels.ndim else 0
        if n == 0:
            raise ValueError("y: expected at least one row")
        position = np.searchsorted(self.classes, labels)
        known = self.classes[np.minimum(position, len(self.classes) - 1)] == labels
        if not known.all():
            raise ValueError(f"y: class {labels[np.argmin(known)]!r} is not one of this problem's")
        other = object.__new__(type(self))
        fields = other._prepare(X, labels, np.zeros(n, np.int64), "equal", copy, 0.0)
        other.classes = self.classes
        other._finish(fields, position, self._spec)
        if other.dim != self.dim or other.dtype != self.dtype:
            raise ValueError(f"X: {other!r} does not fit {self!r}")
        return other

    @abstractmethod
    def _finish(self, fields: dict[str, Any], index: NDArray[Any], like: ProblemSpec | None = None) -> None:
        """Completes the spec from the shared fields and the class index of each row; `like` is the problem to copy."""


class LeastSquares(_Rows):
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
        if _is_csr(X):
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


class Logistic(_Classifier):
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


class MLP(_Classifier):
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
            raise ValueError(f"hidden: at most {_MOST_HIDDEN} layers, got {len(sizes)}")
        if _is_csr(X):
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
                raise ValueError(f"X: it has {fields['x'].shape[1]} features, this problem {like.sizes[0]}")
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


class Quadratic(Problem):
    """f_i(w) = (w - c_i)' A (w - c_i) / 2 with Gaussian gradient noise: its gradients are unbounded, its answers known.

    >>> import numpy as np, fedbuff as fb
    >>> problem = fb.Quadratic(np.array([[0.0, 0.0], [2.0, 0.0]]), curvature=0.5)
    >>> problem.grad(np.array([3.0, 1.0]))
    array([1. , 0.5])

    centers         (clients, dim), float32 or float64
    curvature       A, positive semidefinite: a number, a diagonal (dim) or a matrix (dim, dim); with
                    per_client=True one of these for each client, along a first axis
    noise_variance  E|xi|^2 of the noise of one sample; a batch of b has noise_variance / b, batch_size=None none
    """

    def __init__(
        self,
        centers: Any,
        curvature: ArrayLike = 1.0,
        *,
        per_client: bool = False,
        noise_variance: float = 0.0,
        client_weights: ClientWeights = "equal",
    ) -> None:
        given = as_array("centers", centers)
        dtype = model_dtype("centers", given.dtype)
        if given.ndim != 2 or given.size == 0:
            raise ValueError(f"centers: expected shape (clients, dim), got {given.shape}")
        if not all_finite(given):
            raise ValueError(f"centers: client {int(np.argmin(np.isfinite(given).all(axis=1)))} is not finite")
        n_clients, dim = given.shape
        form, matrices = _curvature(curvature, n_clients, dim, per_client)
        samples = np.ones(n_clients, np.int64)
        spec = ProblemSpec(
            family="quadratic",
            dtype=dtype,
            n_clients=n_clients,
            dim=dim,
            client_weight=_client_weight(client_weights, samples),
            center=aligned_copy(given),
            curvature=aligned_copy(matrices.astype(dtype)),
            curvature_form=form,
            noise_variance=number("noise_variance", noise_variance),
        )
        self._set(spec, samples)


class _Grouping:
    """Rows by client: offsets, and the order that puts them so (None where they are so already)."""

    def __init__(self, clients: Any, n_rows: int, copy: bool) -> None:
        given = to_array("clients", clients)
        if given.ndim != 1 or given.dtype.kind not in "iu" or given.size == 0:
            raise TypeError(f"clients: expected one int per row, or offsets, got {given.dtype} of shape {given.shape}")
        self.order: NDArray[np.int64] | None = None
        # A client number is below the number of rows, so an array that ends with that number is offsets.
        if given[0] == 0 and given[-1] == n_rows:
            steps = np.diff(given.astype(np.int64))
            if steps.size == 0 or steps.min() < 1:
                raise ValueError(f"clients: offsets must increase; client {int(np.argmin(steps))} has no rows")
            self.offsets = given.astype(np.int64)
            return
        if given.size != n_rows:
            raise ValueError(
                f"clients: expected {n_rows} client numbers, or offsets from 0 to {n_rows}, got {given.size}"
            )
        if given.min() < 0:
            raise ValueError(f"clients: row {int(np.argmin(given))} has client {given.min()}")
        if given.max() >= n_rows:
            raise ValueError(
                f"clients: row {int(np.argmax(given))} has client {given.max()}, of at most {n_rows} clients"
            )
        counts = np.bincount(given)
        if counts.min() == 0:
            raise ValueError(f"clients: client {int(np.argmin(counts))} has no rows; number them 0 to n - 1")
        self.offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        if (np.diff(given) < 0).any():
            if not copy:
                raise ValueError("clients: with copy=False the rows must be sorted by client")
            self.order = np.argsort(given, kind="stable")


def _dense(X: Any) -> NDArray[Any]:
    array = as_array("X", X)
    model_dtype("X", array.dtype)
    if array.ndim != 2:
        raise ValueError(f"X: expected shape (rows, features), got {array.shape}")
    return array


def _dense_rows(X: Any, group: _Grouping, copy: bool) -> NDArray[Any]:
    array = _dense(X)
    if not all_finite(array):
        raise ValueError(f"X: row {int(np.argmin(np.isfinite(array).all(axis=1)))} is not finite")
    if copy:
        return aligned_copy(array, group.order)
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise ValueError("X: with copy=False the rows must be C-contiguous and aligned")
    return array


def _is_csr(X: Any) -> bool:
    if getattr(X, "format", None) in ("bsr", "coo", "csc", "dia", "dok", "lil"):
        raise TypeError(f"X: expected dense or CSR rows, got {X.format}; pass X.tocsr()")
    return all(hasattr(X, name) for name in ("data", "indices", "indptr", "shape"))


def _csr_fields(X: Any, group: _Grouping, copy: bool) -> dict[str, Any]:
    values, columns, starts = np.asarray(X.data), np.asarray(X.indices), np.asarray(X.indptr)
    n_rows, n_features = X.shape
    model_dtype("X", values.dtype)
    if starts.shape != (n_rows + 1,) or starts[0] != 0 or starts[-1] > len(values) or (np.diff(starts) < 0).any():
        raise ValueError("X: indptr must rise from 0 to the number of stored values, one entry per row and one more")
    values, columns = values[: starts[-1]], columns[: starts[-1]]
    if len(columns) != len(values):
        raise ValueError(f"X: {len(values)} stored values but {len(columns)} columns")
    if columns.size and (columns.min() < 0 or columns.max() >= n_features):
        bad = int(np.argmax((columns < 0) | (columns >= n_features)))
        row = int(np.searchsorted(starts, bad, side="right")) - 1
        raise ValueError(f"X: row {row} has column {columns[bad]}, of {n_features}")
    if not all_finite(values):
        row = int(np.searchsorted(starts, int(np.argmin(np.isfinite(values))), side="right")) - 1
        raise ValueError(f"X: row {row} is not finite")
    starts = starts.astype(np.int64)
    if group.order is not None:
        where, starts = pick_lists(starts, group.order)
        values, columns = values[where], columns[where]
    if copy:
        values = aligned_copy(values)
    return {
        "x": np.ascontiguousarray(values),
        "column": np.array(columns, np.int32, order="C", copy=copy or None),
        "row_start": starts,
        "n_features": n_features,
    }


def _client_weight(given: ClientWeights, samples: NDArray[np.int64]) -> NDArray[np.float64]:
    if isinstance(given, str):
        choice("client_weights", given, ("equal", "samples"))
        raw = samples.astype(np.float64) if given == "samples" else np.ones(len(samples))
    else:
        raw = to_array("client_weights", given, np.float64).copy()
        if raw.shape != samples.shape:
            raise ValueError(f"client_weights: expected {len(samples)} numbers, got shape {raw.shape}")
        if not np.isfinite(raw).all() or raw.min() < 0 or raw.sum() == 0:
            raise ValueError("client_weights: expected finite numbers >= 0, not all of them 0")
    return np.asarray(raw / raw.sum(), np.float64)


def _curvature(
    given: ArrayLike, n_clients: int, dim: int, per_client: bool
) -> tuple[Literal["scalar", "diagonal", "dense"], NDArray[np.float64]]:
    array = to_array("curvature", given, np.float64)
    if per_client:
        if array.ndim == 0 or array.shape[0] != n_clients:
            raise ValueError(f"curvature: per_client=True expects a first axis of {n_clients}, got shape {array.shape}")
    else:
        array = array[np.newaxis]
    forms: dict[tuple[int, ...], Literal["scalar", "diagonal", "dense"]] = {
        (): "scalar", (dim,): "diagonal", (dim, dim): "dense",
    }  # fmt: skip
    if array.shape[1:] not in forms:
        raise ValueError(
            f"curvature: expected a number, ({dim},) or ({dim}, {dim}){' per client' if per_client else ''}, "
            f"got shape {np.shape(given)}"
        )
    form = forms[array.shape[1:]]
    if not np.isfinite(array).all():
        raise ValueError("curvature: not finite")
    if form == "dense":
        if not np.allclose(array, np.swapaxes(array, 1, 2), rtol=1e-6, atol=0):
            raise ValueError("curvature: not symmetric")
        smallest = np.linalg.eigvalsh(array)
        if (smallest[:, 0] < -1e-6 * np.abs(smallest).max(axis=1)).any():
            raise ValueError(f"curvature: not positive semidefinite, smallest eigenvalue {smallest.min():.3g}")
    elif array.min() < 0:
        raise ValueError(f"curvature: not positive semidefinite, smallest entry {array.min():.3g}")
    return form, array.reshape(len(array), -1)
