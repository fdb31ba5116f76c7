"""What a client does with the model that it downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import to_array
from .._base.checks import count, number
from ..backends.spec import LocalSpec

__all__ = ["LocalSGD"]


@dataclass(frozen=True, slots=True, eq=False)
class LocalSGD:
    """`steps` times: draw a batch, w <- w - lr * gradient.

    >>> import fedbuff as fb
    >>> fb.LocalSGD(steps=10, lr=0.05, batch_size=32)
    LocalSGD(steps=10, lr=0.05, batch_size=32, momentum=0.0, weight_decay=0.0, prox=0.0)

    batch_size    rows drawn with replacement in each step, the same for all clients or one number per client; None is
                  the exact gradient over all of the client's rows
    momentum      v <- momentum v + gradient, w <- w - lr v; v is zero when a task starts
    weight_decay  adds weight_decay * w to the gradient
    prox          adds prox * (w - model downloaded) to the gradient (FedProx)
    """

    steps: int
    lr: float
    batch_size: int | Sequence[int] | NDArray[np.integer[Any]] | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: float = 0.0

    def __post_init__(self) -> None:
        count("steps", self.steps)
        number("lr", self.lr)
        for name in ("momentum", "weight_decay", "prox"):
            object.__setattr__(self, name, number(name, getattr(self, name)))
        if self.batch_size is None or isinstance(self.batch_size, int):
            if self.batch_size is not None:
                count("batch_size", self.batch_size)
            return
        sizes = to_array("batch_size", self.batch_size).copy()
        if sizes.ndim != 1 or sizes.dtype.kind not in "iu":
            raise TypeError("batch_size: expected an int, one int per client, or None")
        if sizes.size == 0 or sizes.min() < 1:
            raise ValueError(
                f"batch_size: client {int(np.argmin(sizes)) if sizes.size else 0} has no batch of at least 1"
            )
        sizes = sizes.astype(np.int64)
        sizes.flags.writeable = False
        object.__setattr__(self, "batch_size", sizes)

    @property
    def spec(self) -> LocalSpec:
        return LocalSpec(int(self.steps), float(self.lr), self.momentum, self.weight_decay, self.prox)

    def check_clients(self, n_clients: int) -> None:
        """Refuses batch sizes that are not one for each client."""
        if isinstance(self.batch_size, np.ndarray) and len(self.batch_size) != n_clients:
            raise ValueError(f"batch_size: expected {n_clients} ints, one per client, got {len(self.batch_size)}")

    def batch_of(self, client: int, n_clients: int) -> int:
        """The client's batch size; 0 stands for all of its rows."""
        if self.batch_size is None:
            return 0
        if isinstance(self.batch_size, np.ndarray):
            self.check_clients(n_clients)
            return int(self.batch_size[client])
        return int(self.batch_size)  # type: ignore[arg-type]

    def batches(self, n_clients: int) -> NDArray[np.int64]:
        """The batch size of every client; 0 stands for all rows."""
        if isinstance(self.batch_size, np.ndarray):
            self.check_clients(n_clients)
            return self.batch_size.astype(np.int64)
        return np.full(n_clients, self.batch_of(0, n_clients), np.int64)
