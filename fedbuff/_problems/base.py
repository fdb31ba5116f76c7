"""What the clients minimise: f is the mean over clients of f_i, f_i the mean over the rows of client i.

A problem keeps a private copy of its rows and targets, grouped by client and aligned for the kernels; with copy=False
it works on the caller's arrays, which must then be in order and must not change. Problems are immutable and may be
shared between threads.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import backends
from .._base.arrays import (
    as_output,
    as_vector,
    read_only,
    to_array,
)
from .._base.checks import (
    choice,
    count,
    instance,
    seed_of,
)
from ..backends.python.compression import compress_with_feedback
from ..backends.python.control import make_shift, make_state
from ..backends.python.philox import Stream
from ..backends.spec import BoundProblem, CompressNumbers, LocalPlan, LocalTask, ProblemSpec
from .constants import Constants, constants_of
from .local import LocalSGD
from .shown import as_html, as_text

__all__ = ["Problem"]

Floats = NDArray[np.floating]
ClientWeights = Literal["equal", "samples"] | ArrayLike

INT32_MAX = 2**31 - 1


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
    def has_rows(self) -> bool:
        """Whether clients have rows of data; those of a `Quadratic` have none."""
        return self._spec.offsets is not None

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
                normals = backends.current().normals(key, 0, 0, layer, Stream.INITIAL_MODEL, n)
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
        version: int = 0,
        out: Floats | None = None,
        state: Floats | None = None,
        control: Any = None,
    ) -> Floats:
        """One client's upload: w minus the model after its local steps from w.

        Batches are a function of (seed, client, task, local step). `batches` (steps, batch_size) gives them instead, as
        row numbers within the client. `version` is that of w, for a step size that follows it. With a method that keeps
        a state of clients, and with error feedback, `state` is the client's, zeros before its first task, and is
        changed; `control` is the server's control variate of this version, which scaffold needs.
        """
        model = self._model(w)
        result = self._output(out, model)
        which = self._client(client)
        instance("local", local, LocalSGD, "a LocalSGD")
        plan = local.plan(self)
        spec, batch = plan.task(which, count("version", version, low=0)), plan.batch_of(which)
        if batches is not None and local.epochs is not None:
            raise ValueError("batches: they are for steps; epochs go through all rows")
        rows = None if batches is None else self._batches(batches, which, spec.steps, batch)
        if rows is not None:
            batch = rows.shape[1]
        task_number, key = count("task", task, low=0), seed_of(seed)
        if task_number >= 2**32:
            raise ValueError(f"task: expected an int below 2**32, got {task_number}")
        shift = self._shift(plan, model, state, control)
        self.bound.local_sgd(spec, model, LocalTask(which, task_number, key, batch, rows, shift), result)
        if shift is not None:
            assert state is not None
            make_state(backends.current().accumulate, plan, spec, result, shift)
            state[:] = shift
        if plan.compress is not None:
            self._compress(plan.compress, (key, which, task_number), result, state)
        return result

    def _compress(self, how: CompressNumbers, key: tuple[int, int, int], delta: Floats, state: Floats | None) -> None:
        backend = backends.current()
        if not how.feedback:
            backend.compress(delta, how, *key, delta)
            return
        before = as_output("state", state, self.dim, self.dtype, delta)
        compress_with_feedback(backend.compress, backend.accumulate, how, key, delta, before, before)

    def _shift(self, plan: LocalPlan, model: Floats, state: Floats | None, control: Any) -> Floats | None:
        """What is taken off a task's gradients; None where clients keep no state."""
        for name, given, needed in (
            ("state", state, plan.keeps_state),
            ("control", control, plan.method == "scaffold"),
        ):
            if needed and given is None:
                raise TypeError(f"{name}: {plan.method if plan.has_control_variates else 'error_feedback'} needs it")
            if not needed and given is not None:
                raise ValueError(f'{name}: method="{plan.method}" has none')
        if not plan.has_control_variates:
            return None
        before = as_output("state", state, self.dim, self.dtype, model)
        mean = None if control is None else as_vector("control", control, self.dim, self.dtype)
        shift = np.empty(self.dim, self.dtype)
        make_shift(backends.current().accumulate, plan, before, mean, shift)
        return shift

    def __getstate__(self) -> dict[str, Any]:
        """Without what the backend in force made of it, which is made again where it is needed."""
        return {**self.__dict__, "_bound": None}

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
        return as_text(self)

    def _repr_html_(self) -> str:
        if not self.has_rows:
            return as_html(self)
        least, most = int(self._samples.min()), int(self._samples.max())
        return as_html(self, rows=f"{int(self._samples.sum()):,}, {least:,} to {most:,} a client")


def client_weights_of(given: ClientWeights, samples: NDArray[np.int64]) -> NDArray[np.float64]:
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
