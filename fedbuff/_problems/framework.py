"""Rows of clients and a model of another library: what `fedbuff.torch.Module` and `fedbuff.jax.Loss` share."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import backends
from .._base.arrays import all_finite, as_vector, read_only, to_array
from .._base.checks import count, instance, seed_of
from ..backends.spec import ClientFunction, LocalSpec
from .base import ClientWeights, client_weights_of
from .callback import generator_of
from .local import LocalSGD
from .python_problem import PythonProblem, checked_delta
from .rows import Grouping

__all__ = ["FrameworkProblem", "Program", "Task"]

Floats = NDArray[np.floating[Any]]
_ROWS_AT_ONCE = 4096


class Task:
    """What a program gets of a task: the rows of each local step, and a seed of its own."""

    def __init__(self, rows: list[NDArray[np.int64]], seed: int) -> None:
        self.rows, self.seed = rows, seed


class Program(Protocol):
    """A model of another library in this process: rows are numbered over all clients, models are vectors."""

    dim: int
    dtype: np.dtype[np.floating[Any]]

    def start(self, seed: int) -> Floats:
        """A model to start from."""

    def deltas(self, W: Floats, tasks: Sequence[Task], local: LocalSpec) -> Floats:
        """The uploads of tasks that are run together."""

    def loss(self, w: Floats, offsets: NDArray[np.int64]) -> NDArray[np.float64]:
        """The mean loss of each client."""

    def gradient(self, w: Floats, offsets: NDArray[np.int64], weight: NDArray[np.float64]) -> Floats:
        """The sum over clients of weight times the gradient of their mean loss."""

    def n_correct(self, w: Floats, X: NDArray[Any], y: NDArray[Any], *, whole: bool) -> int:
        """How many rows are put in the right class. whole: they are all the rows of one client."""


class FrameworkProblem(PythonProblem):
    """A problem made of rows whose model, loss and gradient are another library's."""

    _program: Program | None
    _by_client = False  # whether a row's score depends on whose it is
    _function: Callable[..., Any]  # what it was made of

    def _set(
        self, X: Any, y: Any, clients: Any, client_weights: ClientWeights, batch: int | None, workers: int, copy: bool
    ) -> None:
        features, targets = to_array("X", X), to_array("y", y)
        if features.ndim < 1 or features.shape[0] == 0 or features.dtype.kind not in "fiu":
            raise ValueError(f"X: expected rows of numbers, got {features.dtype} of shape {features.shape}")
        if features.dtype.kind == "f" and not all_finite(features):
            row = int(np.argmin(np.isfinite(features).reshape(len(features), -1).all(axis=1)))
            raise ValueError(f"X: row {row} is not finite")
        if targets.ndim < 1 or len(targets) != len(features):
            raise ValueError(f"y: expected {len(features)} targets, one per row, got shape {targets.shape}")
        group = Grouping(clients, len(features), copy)
        order = slice(None) if group.order is None else group.order
        self._X = read_only(np.array(features[order], order="C", copy=copy or None).view())
        self._y = read_only(np.array(targets[order], order="C", copy=copy or None).view())
        self._offsets = group.offsets
        self.n_samples = read_only(np.diff(group.offsets))
        self.n_clients = len(self.n_samples)
        self._weight = client_weights_of(client_weights, self.n_samples)
        self._set_calls(batch, workers)
        self._program = None

    @abstractmethod
    def _make_program(self) -> Program:
        """The model in this process."""

    def _make_first_program(self) -> None:
        """The model in this process, which says how many numbers it has and of which type."""
        program = self._program = self._make_program()
        self._dim, self._dtype = program.dim, program.dtype

    @property
    def function(self) -> Callable[..., Any]:
        return self._function

    @property
    def dim(self) -> int:
        return self._dim

    @property
    def dtype(self) -> np.dtype[np.floating[Any]]:
        return self._dtype

    @property
    def program(self) -> Program:
        if self._program is None:
            self._program = self._make_program()
        return self._program

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_program": None}

    @property
    def digest(self) -> str:
        known = hashlib.sha256()
        for array in (self._X, self._y, self._offsets, self._weight):
            known.update(np.ascontiguousarray(array).data)
        return f"{super().digest} {known.hexdigest()}"

    def init(self, seed: int = 0) -> Floats:
        """The model to start from that the seed gives."""
        return self.program.start(seed_of(seed))

    def check_local(self, local: LocalSGD | None) -> None:
        instance("local", local, LocalSGD, "a LocalSGD")
        assert local is not None
        local.check_clients(self.n_clients)
        for name in ("epochs", "lr_by_version", "lr_by_step"):
            if getattr(local, name) is not None:
                raise ValueError(
                    f"{name}: {type(self).__name__} takes steps of one size; a built-in problem has {name}"
                )
        if local.method != "sgd":
            raise ValueError(
                f'method: {type(self).__name__} makes plain local steps; a built-in problem has "{local.method}"'
            )
        if local.compress is not None:
            raise ValueError(f"compress: {type(self).__name__} sends its deltas as they are; a built-in problem has it")
        for name in ("steps", "lr"):
            if isinstance(getattr(local, name), np.ndarray):
                raise ValueError(f"{name}: {type(self).__name__} takes one number for all clients")

    def work(self, seed: int, local: LocalSGD | None) -> ClientFunction:
        self.check_local(local)
        assert local is not None
        sizes, spec = local.batches(self.n_clients), local.plan(self).task(0, 0)

        def task(client: int, number: int) -> Task:
            first, n = int(self._offsets[client]), int(self.n_samples[client])
            size = int(sizes[client])
            draw = backends.current().batch_rows
            rows = [
                first + (draw(seed, client, number, step, n, size) if size else np.arange(n))
                for step in range(spec.steps)
            ]
            return Task(rows, int(generator_of(seed, client, number).integers(2**63)))

        if self.batch is None:
            return ClientFunction(
                lambda client, number, w: self.program.deltas(w[None], [task(client, number)], spec)[0], checked_delta
            )

        def group(clients: NDArray[np.int64], numbers: NDArray[np.int64], W: Floats) -> Floats:
            tasks = [task(client, number) for client, number in zip(clients.tolist(), numbers.tolist(), strict=True)]
            return self.program.deltas(W, tasks, spec)

        return ClientFunction(group, checked_delta, self.batch)

    def loss(self, w: Any) -> float:
        """f(w), the mean over clients of their mean losses."""
        return float(self._weight @ self.program.loss(self._model(w), self._offsets))

    def grad(self, w: Any) -> Floats:
        """The gradient of f at w."""
        return self.program.gradient(self._model(w), self._offsets, self._weight)

    def client_loss(self, client: int, w: Any) -> float:
        """f_i(w) of one client."""
        which = self._client(client)
        return float(self.program.loss(self._model(w), self._offsets[which : which + 2])[0])

    def accuracy(self, w: Any, data: tuple[Any, Any] | None = None) -> float:
        """The share of rows put in the right class: of this problem's rows, or of held-out `data` = (X, y)."""
        X, y = (self._X, self._y) if data is None else (np.asarray(data[0]), np.asarray(data[1]))
        if len(X) != len(y) or len(y) == 0:
            raise ValueError(f"data: expected as many targets as rows, at least one, got {len(y)} and {len(X)}")
        model, whole = self._model(w), data is None and self._by_client
        cuts = self._offsets.tolist() if whole else [*range(0, len(y), _ROWS_AT_ONCE), len(y)]
        correct = [self.program.n_correct(model, X[a:b], y[a:b], whole=whole) for a, b in pairwise(cuts)]
        return sum(correct) / len(y)

    def held_out(self, X: Any, y: Any) -> _HeldOut:
        """Rows that no client has, for the accuracy."""
        return _HeldOut(self, to_array("X", X), to_array("y", y))

    def _model(self, w: Any) -> Floats:
        return as_vector("w", w, self.dim, self.dtype)

    def _client(self, client: int) -> int:
        which = count("client", client, low=0)
        if which >= self.n_clients:
            raise IndexError(f"client: there are {self.n_clients} clients, got {which}")
        return which


class _HeldOut:
    """Rows that no client has, with the accuracy of a model."""

    def __init__(self, problem: FrameworkProblem, X: NDArray[Any], y: NDArray[Any]) -> None:
        self._problem, self._data = problem, (X, y)

    def accuracy(self, w: Any) -> float:
        return self._problem.accuracy(w, self._data)
