"""`Loss`: a loss function of JAX as a problem."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.files import optional
from .._problems.base import ClientWeights
from .._problems.framework import FrameworkProblem, Program, Task
from ..backends.spec import LocalSpec

__all__ = ["Loss"]

Floats = NDArray[np.floating[Any]]
_ROWS_AT_ONCE = 1024


class Loss(FrameworkProblem):
    """A loss of JAX, minimised by local SGD, as built-in problems are.

    >>> import fedbuff as fb                                                            # doctest: +SKIP
    >>> problem = fb.jax.Loss(loss, make_params, X, y, clients, predict=scores)         # doctest: +SKIP
    >>> run = fb.replay(problem, schedule, fb.LocalSGD(steps=10, lr=0.05, batch_size=32))  # doctest: +SKIP
    >>> problem.to_jax(run.w)                                                           # doctest: +SKIP

    loss_fn   loss_fn(params, X, y) is the mean over its rows of a loss of each row; a fourth argument is a key that
              depends on (seed, client, task, local step), for dropout
    params    a pytree of arrays to start from, or a function of a key that makes one
    X, y      rows and targets, as arrays; `clients` is a client number per row, or offsets
    predict   predict(params, X) gives a score per class, for the accuracy
    batch     how many tasks are run together, by jax.vmap; None: one at a time
    workers   how many processes run the tasks, one thread each; 0: this one

    Batches are drawn as for built-in problems. A step is compiled once for each size of a batch.
    """

    def __init__(
        self,
        loss_fn: Callable[..., Any],
        params: Any,
        X: Any,
        y: Any,
        clients: Any,
        *,
        predict: Callable[[Any, Any], Any] | None = None,
        client_weights: ClientWeights = "equal",
        batch: int | None = None,
        workers: int = 0,
        copy: bool = True,
    ) -> None:
        optional("jax", "jax", "fb.jax.Loss")
        if not callable(loss_fn):
            raise TypeError(f"loss_fn: expected a function, got {type(loss_fn).__name__}")
        if predict is not None and not callable(predict):
            raise TypeError(f"predict: expected a function, got {type(predict).__name__}")
        self._function, self._predict = loss_fn, predict
        self._params = params if callable(params) else _as_numpy(params)
        self._set(X, y, clients, client_weights, batch, workers, copy)
        self._make_first_program()
        if predict is None:
            self.__dict__["accuracy"] = None  # there is no such metric

    def _make_program(self) -> _Program:
        return _Program(self._function, self._params, self._predict, self._X, self._y)

    def to_jax(self, w: Any) -> Any:
        """The pytree of params that w holds."""
        program: Any = self.program
        return program.unravel(self._model(w))

    def from_jax(self, params: Any) -> Floats:
        """The vector of a pytree like the first params."""
        program: Any = self.program
        w: Floats = program.imported(params)
        return w


def _as_numpy(params: Any) -> Any:
    """The same tree of NumPy arrays, which every process can unpickle."""
    jax = optional("jax", "jax", "fb.jax.Loss")
    return jax.tree_util.tree_map(np.asarray, params)


class _Program(Program):
    """Compiled steps over vectors, in this process."""

    def __init__(
        self,
        loss_fn: Callable[..., Any],
        params: Any,
        predict: Callable[[Any, Any], Any] | None,
        X: NDArray[Any],
        y: NDArray[Any],
    ) -> None:
        self.jax = jax = optional("jax", "jax", "fb.jax.Loss")
        self._params, self._predict = params, predict
        vector, self.unravel = self._flat(0)
        self.dim, self.dtype = vector.size, vector.dtype
        if self.dtype not in (np.float32, np.float64):
            raise TypeError(f"params: expected arrays that are all float32 or all float64, got {self.dtype}")
        self._X, self._y = jax.numpy.asarray(X), jax.numpy.asarray(y)
        keyed = _takes_key(loss_fn)

        def loss(w: Any, X: Any, y: Any, key: Any) -> Any:
            return loss_fn(self.unravel(w), X, y, key) if keyed else loss_fn(self.unravel(w), X, y)

        def step(w: Any, velocity: Any, start: Any, rows: Any, key: Any, local: Any) -> Any:
            lr, momentum, weight_decay, prox = local
            gradient = jax.grad(loss)(w, self._X[rows], self._y[rows], key)
            gradient = gradient + weight_decay * w + prox * (w - start)
            velocity = momentum * velocity + gradient
            return w - lr * velocity, velocity

        def weighed(w: Any, rows: Any, weight: Any) -> Any:
            """The sum over rows of weight times the row's loss, and the losses."""
            one = jax.vmap(lambda X, y: loss(w, X[None], y[None], jax.random.key(0)))
            losses = one(self._X[rows], self._y[rows])
            return (weight * losses).sum(), losses

        self._step = jax.jit(step)
        self._steps_together = jax.jit(jax.vmap(step, in_axes=(0, 0, 0, 0, 0, None)))
        self._losses = jax.jit(lambda w, rows: weighed(w, rows, 0.0)[1])
        self._gradient = jax.jit(jax.grad(lambda w, rows, weight: weighed(w, rows, weight)[0]))
        self._scores = None if predict is None else jax.jit(lambda w, X: predict(self.unravel(w), X))

    def _flat(self, seed: int) -> tuple[Floats, Callable[[Any], Any]]:
        jax = self.jax
        params = self._params(jax.random.key(seed)) if callable(self._params) else self._params
        leaves = jax.tree_util.tree_leaves(params)
        dtypes = sorted({str(np.asarray(leaf).dtype) for leaf in leaves})
        if len(dtypes) != 1:
            raise TypeError(f"params: expected arrays of one dtype, got {', '.join(dtypes) or 'none'}")
        optional("jax.flatten_util", "jax", "fb.jax.Loss")
        vector, unravel = jax.flatten_util.ravel_pytree(params)
        return np.array(vector), unravel

    def start(self, seed: int) -> Floats:
        return self._flat(seed)[0]

    def imported(self, params: Any) -> Floats:
        structure = self.jax.tree_util.tree_structure
        own = self.unravel(np.zeros(self.dim, self.dtype))
        if structure(params) != structure(own):
            raise ValueError(f"params: expected a tree like {structure(own)}, got {structure(params)}")
        pairs = zip(self.jax.tree_util.tree_leaves(params), self.jax.tree_util.tree_leaves(own), strict=True)
        for given, wanted in pairs:
            if np.shape(given) != wanted.shape:
                raise ValueError(f"params: an array has shape {np.shape(given)}, expected {wanted.shape}")
        return np.array(self.jax.flatten_util.ravel_pytree(params)[0], self.dtype)

    def deltas(self, W: Floats, tasks: Sequence[Task], local: LocalSpec) -> Floats:
        if len(tasks) == 1:
            return self._train(self._step, W[0], tasks[0].rows, self._key(tasks[0]), local)[None]
        out = np.empty_like(W)
        sizes = np.array([len(task.rows[0]) for task in tasks])
        for size in np.unique(sizes):
            chosen = np.flatnonzero(sizes == size)
            rows = [np.stack([tasks[i].rows[step] for i in chosen.tolist()]) for step in range(local.steps)]
            keys = self.jax.numpy.stack([self._key(tasks[i]) for i in chosen.tolist()])
            out[chosen] = self._train(self._steps_together, W[chosen], rows, keys, local)
        return out

    def _key(self, task: Task) -> Any:
        return self.jax.random.key(task.seed % 2**32)

    def _train(self, step: Any, w: Floats, rows: list[NDArray[np.int64]], key: Any, local: LocalSpec) -> Floats:
        """One compiled call a step: XLA's convolutions are slow inside a loop of its own."""
        jax = self.jax
        options = tuple(np.asarray(x, w.dtype) for x in (local.lr, local.momentum, local.weight_decay, local.prox))
        model = start = jax.numpy.asarray(w)
        velocity = jax.numpy.zeros_like(model)
        fold: Any = jax.random.fold_in if key.ndim == 0 else jax.vmap(jax.random.fold_in, in_axes=(0, None))
        for number, chosen in enumerate(rows):
            model, velocity = step(model, velocity, start, chosen, fold(key, number), options)
        delta: Floats = w - np.asarray(model)
        return delta

    def loss(self, w: Floats, offsets: NDArray[np.int64]) -> NDArray[np.float64]:
        first, end = int(offsets[0]), int(offsets[-1])
        losses = np.concatenate([np.asarray(self._losses(w, rows))[:n] for rows, n in _blocks(first, end)])
        return np.add.reduceat(losses.astype(np.float64), offsets[:-1] - first) / np.diff(offsets)

    def gradient(self, w: Floats, offsets: NDArray[np.int64], weight: NDArray[np.float64]) -> Floats:
        by_row = np.repeat(weight / np.diff(offsets), np.diff(offsets)).astype(w.dtype)
        total = np.zeros(w.size, np.float64)
        for rows, n in _blocks(int(offsets[0]), int(offsets[-1])):
            share = np.zeros(_ROWS_AT_ONCE, w.dtype)
            share[:n] = by_row[rows[:n] - offsets[0]]
            total += np.asarray(self._gradient(w, rows, share))
        return total.astype(w.dtype)

    def n_correct(self, w: Floats, X: NDArray[Any], y: NDArray[Any], *, whole: bool) -> int:
        if self._scores is None:
            raise ValueError("predict: expected a function, which the accuracy needs, got None")
        return int((np.asarray(self._scores(w, X)).argmax(axis=1) == y).sum())


def _blocks(first: int, end: int) -> list[tuple[NDArray[np.int64], int]]:
    """Blocks of row numbers, all of one length, and how many of each count."""
    blocks = []
    for at in range(first, end, _ROWS_AT_ONCE):
        n = min(_ROWS_AT_ONCE, end - at)
        rows = np.full(_ROWS_AT_ONCE, at)
        rows[:n] = np.arange(at, at + n)
        blocks.append((rows, n))
    return blocks


def _takes_key(loss_fn: Callable[..., Any]) -> bool:
    try:
        inspect.signature(loss_fn).bind(*range(4))
    except TypeError:
        return False
    return True
