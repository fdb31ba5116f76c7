"""`Roles`: all roles in one process, for a replay."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .._base.arrays import (
    all_finite,
)
from ._aggregator import Aggregator
from ._cipher import x25519_module
from ._client import Client
from ._parameters import Parameters
from ._server import Server


class Roles:
    """All roles in one process, for a replay: every update goes through the messages that separate ones would send."""

    def __init__(self, parameters: Parameters, dtype: DTypeLike, seed: int, weights: NDArray[np.float64]) -> None:
        """weights: e of every client's updates."""
        x25519_module()  # what is missing is said now, not in the middle of a replay
        self._parameters, self._dtype, self._seed, self._weights = parameters, dtype, seed, weights
        self._aggregator: Aggregator | None = None
        self._server: Server | None = None
        self._upload: bytearray | None = None

    def add(
        self, client: int, task: int, version: int, step: int, weight: int, factor: float, delta: NDArray[Any]
    ) -> int:
        if not all_finite(delta):
            return delta.size
        if self._aggregator is None:
            self._aggregator = Aggregator(self._parameters, buffer=step)
            self._server = Server(self._parameters, self._aggregator.hello, dtype=self._dtype, buffer=step)
        assert self._server is not None
        sender = Client(self._parameters, self._aggregator.hello, client, seed=self._seed)
        own = float(self._weights[client])
        assert self._parameters.weight_of(step - version, own) == weight
        upload = self._upload = sender.upload(
            delta, task=task, version=version, factor=factor, weight=own, out=self._upload
        )
        self._server.settle(self._aggregator.admit(self._server.receive(upload)))
        return sender.cut

    def finish(self, step: int, out: NDArray[Any]) -> None:
        assert self._aggregator is not None and self._server is not None
        out[:] = self._server.open(self._aggregator.release(self._server.request()))
