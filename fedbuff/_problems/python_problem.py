"""`PythonProblem`: what problems whose clients' work runs in Python have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import as_vector, read_only
from .._base.checks import count, seed_of
from ..backends.spec import ClientFunction
from .local import LocalSGD
from .shown import as_html, as_text
from .workers import WorkerPool

__all__ = ["PythonProblem", "checked_delta"]

Floats = NDArray[np.floating[Any]]
_MOST_TASKS = 2**32


class PythonProblem(ABC):
    """A problem whose clients' work is Python's: one task or a group at a time, here or in worker processes."""

    n_clients: int
    n_samples: NDArray[np.int64]
    function: Any  # the user's, whose code a checkpoint compares
    batch: int | None
    workers: int
    _pool: WorkerPool | None

    def _set_calls(self, batch: int | None, workers: int) -> None:
        self.batch = None if batch is None else count("batch", batch)
        self.workers = count("workers", workers, low=0)
        self._pool = None

    @property
    @abstractmethod
    def dim(self) -> int:
        """How many numbers a model has."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[np.floating[Any]]:
        """The dtype of models."""

    @abstractmethod
    def init(self, seed: int = 0) -> Floats:
        """A model to start from."""

    @abstractmethod
    def check_local(self, local: LocalSGD | None) -> None:
        """Refuses local steps that do not fit."""

    @abstractmethod
    def work(self, seed: int, local: LocalSGD | None) -> ClientFunction:
        """The clients' work in this process."""

    @property
    def digest(self) -> str:
        """What a checkpoint knows the problem by, beside its function's code."""
        return f"{self.n_clients} {self.dim} {self.dtype}" + (f" batch {self.batch}" if self.batch else "")

    def in_a_worker(self) -> PythonProblem:
        """What a worker process needs of the problem."""
        return self

    def client_function(self, seed: int, local: LocalSGD | None) -> ClientFunction:
        """The clients' work as a replay runs it."""
        self.check_local(local)
        if self.workers == 0:
            return self.work(seed, local)
        if self._pool is None or self._pool.is_closed:
            self._pool = WorkerPool(self, self.workers)
        return self._pool.function(seed, local)

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def close(self) -> None:
        """Ends the worker processes, which otherwise wait for the next replay; that one starts new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pool": None}

    def delta(self, w: Any, client: int, local: LocalSGD | None = None, *, task: int = 0, seed: int = 0) -> Floats:
        """One client's upload, as a replay has it; where there are groups, that of a group of this task alone."""
        self.check_local(local)
        which = count("client", client, low=0)
        if which >= self.n_clients:
            raise IndexError(f"client: there are {self.n_clients} clients, got {which}")
        number = count("task", task, low=0)
        if number >= _MOST_TASKS:
            raise ValueError(f"task: expected an int below 2**32, got {number}")
        model = as_vector("w", w, self.dim, self.dtype)
        work = self.work(seed_of(seed), local)
        if self.batch is None:
            return work.check(work.call(which, number, read_only(model)), model.shape, model.dtype).copy()
        clients, tasks, models = np.array([which]), np.array([number]), model.copy()[None]
        deltas = work.check(work.call(clients, tasks, models), models.shape, models.dtype)
        return np.array(deltas[0])


def checked_delta(delta: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Floats:
    """What a function returned, as an array; its error where it is of another shape or dtype."""
    what = "a delta" if len(shape) == 1 else "deltas"
    array = np.asarray(delta)
    if array.shape != shape:
        raise ValueError(f"function: expected {what} of shape {shape}, got {array.shape}")
    if array.dtype != dtype:
        raise TypeError(f"function: expected {what} of {dtype}, got {array.dtype}")
    return np.ascontiguousarray(array)
