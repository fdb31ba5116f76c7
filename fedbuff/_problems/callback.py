"""A problem whose clients' work is a Python function."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import as_model, read_only
from .._base.checks import count, seed_of
from ..backends.spec import ClientFunction
from .custom import samples_of
from .local import LocalSGD
from .python_problem import PythonProblem, checked_delta

__all__ = ["Callback", "Generators", "generator_of"]

Floats = NDArray[np.floating[Any]]


class Callback(PythonProblem):
    """A problem whose clients' work is a Python function, for models that live elsewhere (PyTorch, JAX).

    `function(client, task, w, generator)` returns the delta: w minus the model after the client's local steps. w is a
    read-only vector, which may be kept; `generator` is a NumPy Generator that depends on (seed, client, task) alone, so
    that results do not depend on threads or order. A function of three arguments, (client, task, w), gets none.
    `loss`, `grad` and `accuracy` are functions of w for the metrics that need them.

    With batch=m the function takes up to m tasks in one call, `function(clients, tasks, W, generators)`: W (tasks, dim)
    holds their models and is the function's own, `generators[i]` makes the Generator of task i, and the deltas are
    returned as (tasks, dim). Which tasks come together follows from the schedule alone: see docs/frameworks.md.

    With workers=n the function runs in n processes, for what holds the GIL. It is pickled for them, so it must be one
    that a module has by name.

    >>> import numpy as np, fedbuff as fb
    >>> problem = fb.Callback(lambda client, task, w, generator: 0.5 * w, w0=np.ones(2), n_clients=3)
    >>> problem.dim
    2
    >>> problem = fb.Callback(lambda clients, tasks, W: 0.5 * W, w0=np.ones(2), n_clients=3, batch=16)
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        w0: Any,
        n_clients: int,
        n_samples: Any = None,
        batch: int | None = None,
        workers: int = 0,
        loss: Callable[[Floats], float] | None = None,
        grad: Callable[[Floats], Floats] | None = None,
        accuracy: Callable[[Floats], float] | None = None,
    ) -> None:
        self.function = function
        self._takes_generator = _takes_generator(function)
        self.w0 = read_only(as_model("w0", w0))
        self.n_clients = count("n_clients", n_clients)
        self.n_samples = samples_of(np.ones(self.n_clients, np.int64) if n_samples is None else n_samples)
        if len(self.n_samples) != self.n_clients:
            raise ValueError(f"n_samples: expected {self.n_clients} ints, got {len(self.n_samples)}")
        self._set_calls(batch, workers)
        self.loss, self.grad, self.accuracy = loss, grad, accuracy

    @property
    def dim(self) -> int:
        return self.w0.size

    @property
    def dtype(self) -> np.dtype[np.floating[Any]]:
        return self.w0.dtype

    def init(self, seed: int = 0) -> Floats:
        seed_of(seed)
        return self.w0.copy()

    def check_local(self, local: LocalSGD | None) -> None:
        """Refuses local steps, since the function makes its own."""
        if local is not None:
            raise ValueError("local: a Callback does its own local steps; leave it out")

    def work(self, seed: int, local: LocalSGD | None) -> ClientFunction:
        function = self.function
        if not self._takes_generator:
            call: Callable[..., Any] = function
        elif self.batch is None:

            def call(client: int, task: int, w: Floats) -> Any:
                return function(client, task, w, generator_of(seed, client, task))

        else:

            def call(clients: NDArray[np.int64], tasks: NDArray[np.int64], W: Floats) -> Any:
                return function(clients, tasks, W, Generators(seed, clients, tasks))

        return ClientFunction(call, checked_delta, self.batch or 0)

    def in_a_worker(self) -> Callback:
        mine = copy.copy(self)
        mine.loss = mine.grad = mine.accuracy = None  # whoever evaluates is here
        return mine


def generator_of(seed: int, client: int, task: int) -> np.random.Generator:
    """The Generator of a task."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, client, task]))


class Generators(Sequence[np.random.Generator]):
    """The Generators of a group's tasks, each made when it is asked for."""

    def __init__(self, seed: int, clients: NDArray[np.int64], tasks: NDArray[np.int64]) -> None:
        self._seed, self._clients, self._tasks = seed, clients, tasks

    def __len__(self) -> int:
        return len(self._clients)

    @overload
    def __getitem__(self, index: int) -> np.random.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> Generators: ...
    def __getitem__(self, index: int | slice) -> np.random.Generator | Generators:
        clients, tasks = self._clients[index], self._tasks[index]
        if isinstance(index, slice):
            return Generators(self._seed, clients, tasks)
        return generator_of(self._seed, int(clients), int(tasks))


def _takes_generator(function: Any) -> bool:
    """Whether the function takes a fourth argument; TypeError where it takes neither three nor four."""
    if not callable(function):
        raise TypeError(f"function: expected a function, got {type(function).__name__}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some compiled functions have none
        return True
    for n in (4, 3):
        try:
            signature.bind(*range(n))
            return n == 4
        except TypeError:
            continue
    raise TypeError(f"function: expected one of (client, task, w) or (client, task, w, generator), got {signature}")
