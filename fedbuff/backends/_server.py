"""The server as a state machine, and the buffer alone, over any backend's kernels.

Both are the specification of the compiled ones, exceptions and their texts included.
"""

from __future__ import annotations

import math
import operator
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike

from .._arrays import as_model, as_vector, model_dtype, read_only
from .._server_checks import norm_error, not_finite, positive, server_rule, version_error
from .._server_file import ServerState, read_server, write_server
from .._strategy import Adam, rule_of
from ._spec import Vector

__all__ = ["DeltaBuffer", "Kernels", "Server"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The four functions of a backend that a server needs, as in `Backend`."""

    accumulate: Callable[[Vector, Vector, float, Vector | None, Vector | None, Vector], bool]
    aggregate: Callable[[Vector, list[Vector], Vector, float, Vector], None]
    sgd_step: Callable[[Vector, Vector, float, float, float, Vector | None, Vector], None]
    adam_step: Callable[
        [Vector, Vector, float, float, tuple[float, float], float, float, int, Vector, Vector, Vector], None
    ]


class Server:
    """FedBuff's server, fed by hand.

    >>> import numpy as np, fedbuff as fb
    >>> server = fb.Server(np.zeros(2), fb.FedBuff(buffer_size=1))
    >>> version, w = server.download()
    >>> server.upload(np.array([1.0, -1.0]), version)
    True
    >>> server.version, server.w
    (1, array([-1.,  1.]))

    One arrival: s and e in float64, their product rounded to the dtype is the weight; sums of e and s e in float64,
    from which a full buffer's norm is made. Calls from several threads are made one after another. An upload that
    raises changes nothing.
    """

    kernels: ClassVar[Kernels]

    def __init__(self, w0: Any, strategy: object) -> None:
        w = as_model("w0", w0)
        rule = server_rule(strategy)
        dim, dtype = w.size, w.dtype
        adam = isinstance(rule.optimizer, Adam)
        momentum = 0.0 if isinstance(rule.optimizer, Adam) else rule.optimizer.momentum
        self._restore(
            ServerState(
                rule=rule,
                w=w,
                total=np.zeros(dim, dtype),
                velocity=np.zeros(dim, dtype) if momentum != 0 else None,
                first=np.zeros(dim, dtype) if adam else None,
                second=np.zeros(dim, dtype) if adam else None,
            )
        )

    def _restore(self, state: ServerState) -> None:
        self._state = state
        self._rule = state.rule
        self._spare = np.empty_like(state.total)  # an arrival is summed here, and kept only where it was finite
        self._shared = False  # whether someone may hold a view of the current model
        self._lock = threading.Lock()

    @property
    def version(self) -> int:
        """How many steps were made."""
        return self._state.version

    @property
    def fill(self) -> int:
        """How many arrivals are in the buffer."""
        return self._state.fill

    @property
    def dropped(self) -> int:
        """How many arrivals were refused because they were staler than max_staleness."""
        return self._state.dropped

    @property
    def dim(self) -> int:
        return self._state.w.size

    @property
    def dtype(self) -> np.dtype[np.floating]:
        return self._state.w.dtype

    @property
    def w(self) -> Vector:
        """The current model, read-only; like a download it stays as it is while the server moves on."""
        with self._lock:
            self._shared = True
            return read_only(self._state.w)

    @property
    def outstanding(self) -> int:
        """How many downloads were neither returned nor cancelled."""
        with self._lock:
            return sum(self._state.outstanding.values())

    @property
    def live_versions(self) -> int:
        """How many models are kept, the current one included: 1 unless the rule's base is "current"."""
        return 1 + len(self._state.kept)

    def download(self) -> tuple[int, Vector]:
        """The version and its model, read-only, valid and unchanged for as long as it is held."""
        with self._lock:
            state = self._state
            self._shared = True
            state.outstanding[state.version] = state.outstanding.get(state.version, 0) + 1
            return state.version, read_only(state.w)

    def upload(self, delta: Any, version: int, n_samples: float = 1) -> bool:
        """Takes in the delta of a client that downloaded `version`; whether the server stepped.

        A delta staler than max_staleness is counted in `dropped` and not read.
        """
        with self._lock:
            state, rule = self._state, self._rule
            version = self._check_version(version)
            samples = positive("n_samples", n_samples)
            array = as_vector("delta", delta, state.w.size, state.w.dtype)
            staleness = state.version - version
            if rule.max_staleness is not None and staleness > rule.max_staleness:
                state.dropped += 1
                self._return_download(version)
                return False
            e = rule.sample_weight(samples)
            se = rule.staleness_weight(staleness) * e
            weight_sum, scaled_weight_sum = state.weight_sum + e, state.scaled_weight_sum + se
            full = state.fill + 1 == rule.buffer_size
            norm = self._norm(weight_sum, scaled_weight_sum) if full else 1.0
            start = state.kept.get(version)  # there where the base is "current" and the model has moved on
            current = None if start is None else state.w
            if not self.kernels.accumulate(state.total, array, se, current, start, self._spare):
                raise not_finite(array)
            state.total, self._spare = self._spare, state.total
            state.weight_sum, state.scaled_weight_sum = weight_sum, scaled_weight_sum
            state.fill += 1
            self._return_download(version)
            if full:
                self._step(norm)
            return full

    def cancel(self, version: int) -> None:
        """Gives up one download of `version`: its client died."""
        with self._lock:
            self._return_download(self._check_version(version))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all of the state, beside `path` first and then in its place."""
        with self._lock:
            write_server(path, self._state)

    @classmethod
    def load(cls, path: str | os.PathLike[str], strategy: object | None = None) -> Self:
        """A server as it was saved. `strategy` is needed, and must be the same, where its staleness function is one of
        the user's own, which a file cannot hold; otherwise it may be given to be compared."""
        server = cls.__new__(cls)
        server._restore(read_server(path, None if strategy is None else rule_of(strategy)))
        return server

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}: version {self.version}, {self.fill} of {self._rule.buffer_size} in the buffer, "
            f"{self.dim} {self.dtype} weights>"
        )

    def _check_version(self, version: int) -> int:
        number = operator.index(version)
        if number not in self._state.outstanding:
            raise version_error(number, self._state.version)
        return number

    def _return_download(self, version: int) -> None:
        state = self._state
        state.outstanding[version] -= 1
        if state.outstanding[version] == 0:
            del state.outstanding[version]
            state.kept.pop(version, None)

    def _norm(self, weight_sum: float, scaled_weight_sum: float) -> float:
        norm = self._rule.norm_of(self._rule.buffer_size, weight_sum, scaled_weight_sum)
        if norm == 0.0:
            raise norm_error()
        return norm

    def _step(self, norm: float) -> None:
        state, rule, optimizer = self._state, self._rule, self._rule.optimizer
        keep = rule.base == "current" and state.version in state.outstanding
        out = np.empty_like(state.w) if self._shared or keep else state.w
        if isinstance(optimizer, Adam):
            assert state.first is not None and state.second is not None
            decay, step = optimizer.weight_decay, state.version + 1
            self.kernels.adam_step(
                state.w, state.total, rule.lr, norm, optimizer.betas, optimizer.epsilon, decay, step, state.first,
                state.second, out,
            )  # fmt: skip
        else:
            self.kernels.sgd_step(state.w, state.total, rule.lr, norm, optimizer.momentum, state.velocity, out)
        if keep:
            state.kept[state.version] = state.w
        state.w = out
        self._shared = False
        state.total[:] = 0
        state.fill = 0
        state.weight_sum = state.scaled_weight_sum = 0.0
        state.version += 1


class DeltaBuffer:
    """A sum of deltas, for those who write their own server; for one thread at a time, unlike `Server`.

    >>> import numpy as np, fedbuff as fb
    >>> buffer = fb.DeltaBuffer(2, np.float64)
    >>> buffer.add(np.array([1.0, 2.0]), weight=0.5)
    >>> buffer.step(np.zeros(2), lr=1.0)
    array([-0.5, -1. ])
    """

    kernels: ClassVar[Kernels]

    def __init__(self, dim: int, dtype: DTypeLike = np.float64) -> None:
        if operator.index(dim) < 1:
            raise ValueError(f"dim: expected an int >= 1, got {dim}")
        self._sum: Vector = np.zeros(operator.index(dim), model_dtype("dtype", dtype))
        self._spare = np.empty_like(self._sum)
        self._count = 0

    @property
    def dim(self) -> int:
        return self._sum.size

    @property
    def dtype(self) -> np.dtype[np.floating]:
        return self._sum.dtype

    @property
    def count(self) -> int:
        """How many deltas are in the sum."""
        return self._count

    @property
    def sum(self) -> Vector:
        """The sum, read-only; valid until the next change of the buffer."""
        return read_only(self._sum)

    def add(self, delta: Any, weight: float = 1.0) -> None:
        """sum + weight * delta; a delta that is not finite raises, and changes nothing."""
        array = as_vector("delta", delta, self.dim, self.dtype)
        factor = float(weight)
        if not math.isfinite(factor):
            raise ValueError(f"weight: expected a finite number, got {factor}")
        if not self.kernels.accumulate(self._sum, array, factor, None, None, self._spare):
            raise not_finite(array)
        self._sum, self._spare = self._spare, self._sum
        self._count += 1

    def clear(self) -> None:
        """Empties the buffer."""
        self._sum[:] = 0
        self._count = 0

    def step(self, w: Any, lr: float, out: Vector | None = None) -> Vector:
        """w - lr * sum, into `out` (which may be w) or a new array; empties the buffer."""
        model = as_vector("w", w, self.dim, self.dtype)
        target = np.empty_like(self._sum) if out is None else as_vector("out", out, self.dim, self.dtype)
        if not target.flags.writeable:
            raise ValueError("out: read-only; pass an array that may be written")
        factor = float(lr)
        if not math.isfinite(factor):
            raise ValueError(f"lr: expected a finite number, got {factor}")
        self.kernels.sgd_step(model, self._sum, factor, 1.0, 0.0, None, target)
        self.clear()
        return target if out is None else out

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.count} deltas of {self.dim} {self.dtype} weights>"
