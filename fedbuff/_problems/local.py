"""What a client does with the model that it downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import to_array
from .._base.checks import choice, count, flag, instance, number
from .._rule.compression import Compression, Kind
from .._rule.optimizers import LearningRate
from .._rule.strategies import Method
from ..backends.spec import CompressNumbers, LocalPlan

__all__ = ["LocalSGD"]

MOST_STEPS = 2**32 - 1  # a local step is a word of a counter of random numbers
Whole = int | Sequence[int] | NDArray[np.integer[Any]]
Number = float | Sequence[float] | NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class LocalSGD:
    """`steps` times, or through `epochs` passes: draw a batch, w <- w - lr * gradient.

    >>> import fedbuff as fb
    >>> fb.LocalSGD(steps=10, lr=0.05, batch_size=32)
    LocalSGD(steps=10, lr=0.05, batch_size=32)
    >>> fb.LocalSGD(epochs=2, lr=0.05, batch_size=32).steps_of([60, 100])
    array([4, 8])

    steps          local steps of a task, the same for all clients or one number per client
    lr             the step size, the same for all clients or one number per client
    batch_size     rows of a step, the same for all clients or one number per client; None is the exact gradient over
                   all of the client's rows
    momentum       v <- momentum v + gradient, w <- w - lr v; v is zero when a task starts
    weight_decay   adds weight_decay * w to the gradient
    prox           adds prox * (w - model downloaded) to the gradient (FedProx)
    epochs         instead of steps: passes over the client's rows, each in another shuffled order and without
                   replacement; with `steps` rows are drawn with replacement. The last batch of a pass has what is left
    drop_last      a pass ends before a batch that is not full
    lr_by_version  a `LearningRate` that lr is multiplied by, of the version that the task starts from
    lr_by_step     the same of the local step, from 0
    method         "sgd", this loop; or the clients' half of an algorithm, with which its strategy must go:
                   "fednova", the delta times Q / a, a what the task's gradients weigh together: how many steps it made,
                   with momentum m the sum of (1 - m^k) / (1 - m) for k = 1 to their number
                   "scaffold" and "feddyn", which correct gradients by a state of each client that its next task reads.
                   They take no momentum, weight_decay, prox, lr_by_version and lr_by_step
    effective_steps  FedNova's Q; None is the mean of a over the clients
    alpha          FedDyn's pull to the model downloaded
    compress       a `Compression` of the upload
    """

    steps: Whole | None = None
    lr: Number = field(default=None)  # type: ignore[assignment]
    batch_size: Whole | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: float = 0.0
    epochs: int | None = None
    drop_last: bool = False
    lr_by_version: LearningRate | None = None
    lr_by_step: LearningRate | None = None
    method: Method = "sgd"
    effective_steps: float | None = None
    alpha: float | None = None
    compress: Compression | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            given = "neither" if self.steps is None else "both"
            raise TypeError(f"steps: expected steps or epochs, got {given}")
        if self.epochs is not None:
            count("epochs", self.epochs, high=MOST_STEPS)
        else:
            self._set_whole("steps", MOST_STEPS, "no step")
        if flag("drop_last", self.drop_last) and self.epochs is None:
            raise ValueError("drop_last: it is for epochs; steps draw their batches with replacement")
        if self.lr is None:
            raise TypeError("lr: expected a number, or one per client, got nothing")
        rates = np.empty(()) if isinstance(self.lr, (float, int, str)) else to_array("lr", self.lr).copy()
        if rates.ndim == 0:
            number("lr", self.lr)  # type: ignore[arg-type]
        else:
            if rates.ndim != 1 or rates.dtype.kind not in "iuf":
                raise TypeError("lr: expected a number, or one number per client")
            for client in np.flatnonzero(~((rates >= 0) & np.isfinite(rates)))[:1]:
                raise ValueError(f"lr: expected a finite number >= 0 for client {client}, got {rates[client]}")
            self._freeze("lr", rates.astype(np.float64))
        for name in ("momentum", "weight_decay", "prox"):
            object.__setattr__(self, name, number(name, getattr(self, name)))
        if self.batch_size is not None:
            self._set_whole("batch_size", 2**30, "no batch")
        for name in ("lr_by_version", "lr_by_step"):
            if getattr(self, name) is not None:
                instance(name, getattr(self, name), LearningRate, "a LearningRate")
        choice("method", self.method, get_args(Method))
        self._check_method()
        if self.compress is not None:
            instance("compress", self.compress, Compression, "a Compression")
            if self.has_control_variates:
                raise ValueError(f"compress: {self.method} uploads what it computes; leave one of them out")

    def _check_method(self) -> None:
        if self.method == "feddyn":
            if self.alpha is None:
                raise TypeError("alpha: feddyn needs it")
            number("alpha", self.alpha, open_low=True)
        elif self.alpha is not None:
            raise ValueError(f'alpha: it is for method="feddyn"; {self.method} has none')
        if self.has_control_variates:
            for name in ("momentum", "weight_decay", "prox", "lr_by_version", "lr_by_step"):
                if getattr(self, name):
                    raise ValueError(f"{name}: {self.method} needs plain steps of one size; leave it out")
        if self.method == "scaffold" and np.any(np.asarray(self.lr) == 0):
            raise ValueError("lr: scaffold divides by it; expected a number above 0")
        if self.effective_steps is not None:
            number("effective_steps", self.effective_steps, open_low=True)
            if self.method != "fednova":
                raise ValueError(f'effective_steps: it is for method="fednova"; {self.method} has none')
        if self.method == "fednova":
            for name in ("prox", "lr_by_step"):
                if getattr(self, name):
                    raise ValueError(f"{name}: FedNova divides by what equal steps weigh; leave it out")
            if self.momentum >= 1:
                raise ValueError(f"momentum: FedNova needs a number below 1, got {self.momentum}")

    def _set_whole(self, name: str, most: int, what: str) -> None:
        given = getattr(self, name)
        if isinstance(given, int):
            count(name, given, high=most)
            return
        values = to_array(name, given).copy()
        if values.ndim == 0:
            object.__setattr__(self, name, count(name, given, high=most))
            return
        if values.ndim != 1 or values.dtype.kind not in "iu":
            extra = ", or None" if name == "batch_size" else ""
            raise TypeError(f"{name}: expected an int, one int per client{extra}")
        if values.size == 0 or values.min() < 1:
            raise ValueError(f"{name}: client {int(np.argmin(values)) if values.size else 0} has {what} of at least 1")
        if values.max() > most:
            client = int(np.argmax(values))
            raise ValueError(f"{name}: expected ints up to {most}, got {values[client]} for client {client}")
        self._freeze(name, values.astype(np.int64))

    def _freeze(self, name: str, values: NDArray[Any]) -> None:
        values.flags.writeable = False
        object.__setattr__(self, name, values)

    def __repr__(self) -> str:
        shown = []
        for part in fields(self):
            value = getattr(self, part.name)
            if value is not part.default and value != part.default if not isinstance(value, np.ndarray) else True:
                shown.append(
                    f"{part.name}={f'<{len(value)} numbers>' if isinstance(value, np.ndarray) else repr(value)}"
                )
        return f"LocalSGD({', '.join(shown)})"

    def check_clients(self, n_clients: int) -> None:
        """Refuses numbers that are not one for each client."""
        for name, what in (("steps", "ints"), ("lr", "numbers"), ("batch_size", "ints")):
            values = getattr(self, name)
            if isinstance(values, np.ndarray) and len(values) != n_clients:
                raise ValueError(f"{name}: expected {n_clients} {what}, one per client, got {len(values)}")

    def batch_of(self, client: int, n_clients: int) -> int:
        """The client's batch size; 0 stands for all of its rows."""
        self.check_clients(n_clients)
        return int(self.batch_size[client]) if isinstance(self.batch_size, np.ndarray) else self._one_batch()

    def batches(self, n_clients: int) -> NDArray[np.int64]:
        """The batch size of every client; 0 stands for all rows."""
        self.check_clients(n_clients)
        return np.array(np.broadcast_to(self._batch(), n_clients))

    def steps_of(self, n_samples: Any) -> NDArray[np.int64]:
        """The local steps of every client, for clients with so many rows; `DelayModel(local_steps=...)` takes them."""
        samples = to_array("n_samples", n_samples)
        self.check_clients(len(samples))
        steps = self._passes(samples) * self.epochs if self.epochs is not None else self._steps()
        return np.array(np.broadcast_to(steps, len(samples)))

    @property
    def has_control_variates(self) -> bool:
        """Whether a client's state corrects its gradients."""
        return self.method in ("scaffold", "feddyn")

    @property
    def keeps_state(self) -> bool:
        """Whether a client's task reads what its task before it left: then they are run in their order."""
        return self.has_control_variates or (self.compress is not None and self.compress.error_feedback)

    @property
    def shown_lr(self) -> str:
        """The step size as a message shows it."""
        return f"up to {self.lr.max()}" if isinstance(self.lr, np.ndarray) else str(self.lr)

    @property
    def one_steps(self) -> int | None:
        """The local steps of every client where they are known to be the same."""
        return int(self.steps) if isinstance(self.steps, int) else None

    def plan(self, problem: Any) -> LocalPlan:
        """The tasks of a problem's clients, as a backend takes them. Refuses what does not fit the problem."""
        self.check_clients(problem.n_clients)
        steps, per_pass = self._steps(), np.zeros(1, np.int64)
        if self.epochs is not None:
            if not getattr(problem, "has_rows", True):
                raise ValueError(f"epochs: a {type(problem).__name__} has no rows to go through; give steps")
            per_pass = self._passes(np.asarray(problem.n_samples))
            for client in np.flatnonzero(per_pass == 0)[:1]:
                rows, batch = int(problem.n_samples[client]), self.batch_of(int(client), problem.n_clients)
                raise ValueError(f"drop_last: client {client} has {rows} rows, fewer than its batch of {batch}")
            if int(per_pass.max()) * self.epochs > MOST_STEPS:
                raise ValueError(f"epochs: client {int(np.argmax(per_pass))} would make more than {MOST_STEPS} steps")
            steps = self.epochs * per_pass
            if (per_pass == per_pass[0]).all():
                per_pass, steps = per_pass[:1], steps[:1]
        factors = np.empty(0)
        if self.lr_by_step is not None:
            factors = np.array([self.lr_by_step.at(q) for q in range(int(steps.max()))])
        lr = self.lr if isinstance(self.lr, np.ndarray) else np.array([float(self.lr)])  # type: ignore[arg-type]
        return LocalPlan(
            steps=steps,
            lr=np.asarray(lr, np.float64),
            batch=self._batch(),
            steps_per_pass=per_pass,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            prox=self.prox if self.alpha is None else self.alpha,
            method=self.method,
            compress=self._compression(problem.dim),
            version_rate=self.lr_by_version,
            lr_factors=factors,
            scale=self._scale(steps, problem.n_clients),
        )

    def _compression(self, dim: int) -> CompressNumbers | None:
        how = self.compress
        if how is None:
            return None
        if dim >= 2**31:
            raise ValueError(f"compress: expected a model of fewer than 2^31 numbers, got {dim}")
        kind = 1 + get_args(Kind).index(how.kind)
        return CompressNumbers(kind, how.kept(dim), float(how.levels or 0), how.error_feedback)

    def _scale(self, steps: NDArray[np.int64], n_clients: int) -> NDArray[np.float64]:
        """What the deltas of clients that make so many steps, each or all alike, are multiplied by."""
        if self.method != "fednova":
            return np.ones(1)
        m, steps = self.momentum, np.broadcast_to(steps, n_clients)
        weights = [n if m == 0 else (n - m * (1 - m**n) / (1 - m)) / (1 - m) for n in map(float, steps.tolist())]
        common = sum(weights) / len(weights) if self.effective_steps is None else self.effective_steps
        return np.array([common / weight for weight in weights])

    def _steps(self) -> NDArray[np.int64]:
        """Of every client, or of all; with epochs nothing that counts."""
        return np.array(1 if self.steps is None else self.steps, np.int64, ndmin=1)

    def _batch(self) -> NDArray[np.int64]:
        return np.array(0 if self.batch_size is None else self.batch_size, np.int64, ndmin=1)

    def _one_batch(self) -> int:
        return int(self._batch()[0])

    def _passes(self, samples: NDArray[Any]) -> NDArray[np.int64]:
        """The steps of one pass of every client."""
        batch = np.broadcast_to(self._batch(), len(samples))
        rows = samples.astype(np.int64)
        if self.drop_last:
            return np.where(batch == 0, 1, rows // np.maximum(batch, 1))
        return np.where(batch == 0, 1, -(-rows // np.maximum(batch, 1)))
