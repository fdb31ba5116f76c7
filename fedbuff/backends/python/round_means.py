"""Ringleader's tables: the mean of each client's deltas, in the round that is collected and in that of the steps."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..._rule.strategies import Rule
from ..spec import Vector
from .hearing import Hearing
from .resolver import EVERY_CLIENT, RINGLEADER
from .rule import Kernels

__all__ = ["Heard", "RoundMeans"]


class Heard:
    """Which clients a server heard, for the triggers that ask for all of them."""

    def __init__(self, rule: Rule) -> None:
        assert rule.n_clients is not None and rule.trigger != "buffer"
        trigger = EVERY_CLIENT if rule.trigger == "every_client" else RINGLEADER
        self.buffer_size = rule.buffer_size
        self.hearing = Hearing(trigger, rule.n_clients, rule.per_client)

    def would_step(self, client: int, fill: int) -> bool:
        """Whether an arrival of a client, with which the buffer holds `fill`, makes a step."""
        return copy.deepcopy(self.hearing).enter(client, fill, self.buffer_size)

    def enter(self, client: int, fill: int) -> bool:
        """It came; whether another round is collected now."""
        before = self.hearing.round
        self.hearing.enter(client, fill, self.buffer_size)
        return self.hearing.round != before

    def on_step(self) -> None:
        self.hearing.on_step()

    def state(self) -> dict[str, NDArray[Any]]:
        """`heard` and `to_step` of `_rule/state.py`."""
        hearing = self.hearing
        heard = np.where(hearing.round_of == hearing.round, hearing.count, 0)
        if hearing.trigger == EVERY_CLIENT:
            return {"heard": heard}
        to_step = (hearing.stepped_in != hearing.round) & (hearing.n_to_step > 0)
        return {"heard": heard, "to_step": to_step.astype(np.int64)}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        hearing, heard = self.hearing, state["heard"]
        for client in np.flatnonzero(heard).tolist():
            hearing.hear(client)
            hearing.count[client] = heard[client]
            hearing.inverses += 1.0 / float(heard[client]) - 1.0
        if "to_step" in state:
            hearing.stepped_in[:] = np.where(state["to_step"], -1, hearing.round)
            hearing.n_to_step = int(state["to_step"].sum())


@dataclass
class _Round:
    """Means by client, how many deltas are in each, and their sum."""

    rows: dict[int, Vector]
    count: NDArray[np.int64]
    sum: Vector

    def copy(self) -> _Round:
        return _Round(dict(self.rows), self.count.copy(), self.sum)


class RoundMeans:
    """Arrays are replaced and never changed, so that a copy costs no models."""

    def __init__(self, kernels: Kernels, rule: Rule, dim: int, dtype: np.dtype[Any]) -> None:
        assert rule.n_clients is not None
        self._kernels, self._n = kernels, rule.n_clients
        self._zeros = np.zeros(dim, dtype)
        self.heard = Heard(rule)
        self.collected, self.stepped = self._new_round(), self._new_round()

    def _new_round(self) -> _Round:
        return _Round({}, np.zeros(self._n, np.int64), self._zeros)

    def copy(self) -> Self:
        other = copy.copy(self)
        other.heard = copy.deepcopy(self.heard)
        other.collected, other.stepped = self.collected.copy(), self.stepped.copy()
        return other

    def fold(self, client: int, delta: Vector) -> tuple[bool, bool]:
        """A delta into its client's mean; whether it makes a step, and whether the results are finite.

        sum = sum + (delta - mean) / count, mean = mean + (delta - mean) / count, count with this delta.
        """
        steps = self.heard.would_step(client, 0)
        table = self.stepped if steps else self.collected
        mean = table.rows[client] if table.count[client] > 0 else self._zeros
        weight = 1.0 / float(table.count[client] + 1)
        total, row = np.empty_like(mean), np.empty_like(mean)
        finite = self._kernels.accumulate(table.sum, delta, weight, self._zeros, mean, total)
        finite = self._kernels.accumulate(mean, delta, weight, self._zeros, mean, row) and finite
        table.sum, table.rows[client] = total, row
        table.count[client] += 1
        return steps, finite

    def hear(self, client: int) -> None:
        """The arrival came; after its step where it makes one."""
        if self.heard.enter(client, 0):
            self.collected, self.stepped = self._new_round(), self.collected

    def state(self) -> dict[str, NDArray[Any]]:
        """The arrays of `_rule/state.py`."""
        arrays = self.heard.state()
        for name, table, of in (("table", self.collected, arrays["heard"]), ("step", self.stepped, arrays["to_step"])):
            clients = np.flatnonzero(of)
            rows = [table.rows[client] for client in clients.tolist()]
            arrays[f"{name}_total"] = table.sum.copy()
            arrays[f"{name}_client"] = clients.astype(np.int64)
            arrays[f"{name}_rows"] = np.array(rows, self._zeros.dtype).reshape(len(rows), self._zeros.size)
        return arrays | {"step_count": self.stepped.count.copy()}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        self.heard.restore(state)
        for name, table in (("table", self.collected), ("step", self.stepped)):
            keys, rows = state[f"{name}_client"].tolist(), state[f"{name}_rows"]
            table.rows = {client: row.copy() for client, row in zip(keys, rows, strict=True)}
            table.sum = state[f"{name}_total"].copy()
            table.count = state["heard" if name == "table" else "step_count"].copy()
