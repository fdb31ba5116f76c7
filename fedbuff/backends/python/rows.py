"""A table with a row per client: what arrivals are compared with, and what a step adds of all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._rule.strategies import Rule
from ..._rule.table import ClientTable, bfloat16_of, values_of
from ..spec import Vector

__all__ = ["RowTable"]


class RowTable:
    """The rows, and their sum when the buffer was empty; the buffer's own changes of both until they are kept.

    total_change adds stored delta - row, from zero, in the order of arrival.
    """

    def __init__(self, rule: Rule, dim: int, dtype: np.dtype[Any], memory: NDArray[Any] | None = None) -> None:
        assert rule.kept_rows is not None
        self.table: ClientTable
        self.table, self.n_clients = rule.kept_rows
        self.is_ring = rule.ring is not None
        self.memory = memory
        self.rows: dict[int, NDArray[Any]] = {}  # as they are kept, bfloat16 as uint16
        self.total: Vector = np.zeros(dim, dtype)
        self.change: Vector = np.zeros(dim, dtype)
        self.seen = 0  # rows that there were when the buffer was empty

    def begin(self, w: Vector) -> None:
        """The rows before the first arrival, at the first model: in a ring each is minus a model."""
        if self.is_ring:
            self.keep(dict.fromkeys(range(self.n_clients), -w))

    def numbers(self, row: NDArray[Any] | None) -> Vector | None:
        return None if row is None else values_of(row, self.total.dtype)

    def contribution(self, delta: Vector, row: NDArray[Any] | None) -> Vector:
        """delta + own row."""
        before = self.numbers(row)
        return delta if before is None else delta + self.total.dtype.type(self.table.own) * before

    def stored(self, delta: Vector) -> NDArray[Any]:
        """A delta as a row keeps it."""
        return delta.copy() if self.table.rows == "full" else bfloat16_of(delta)

    def changed(self, change: Vector, row: NDArray[Any] | None, stored: NDArray[Any]) -> Vector:
        """The change with one more row replaced."""
        before, after = self.numbers(row), self.numbers(stored)
        assert after is not None
        result: Vector = change + (after if before is None else after - before)
        return result

    def waits(self, n_rows: int) -> bool:
        """Whether a step leaves the model as it is, with so many rows."""
        return self.table.wait and n_rows < self.n_clients

    def direction(self, sum_of_buffer: Vector, norm: float) -> Vector:
        """The sum that is then divided by the norm, with the mean of all rows in it."""
        n = max(self.seen, 1) if self.table.mean_over == "seen" else self.n_clients
        result: Vector = sum_of_buffer + self.total.dtype.type(norm * self.table.mean / n) * self.total
        return result

    def keep(self, rows: dict[int, NDArray[Any]]) -> None:
        for client, row in rows.items():
            if self.memory is not None:
                self.memory[client] = row
                row = self.memory[client]
            self.rows[client] = row

    def state(self) -> dict[str, NDArray[Any]]:
        """The arrays of `_rule/state.py`, of an empty buffer."""
        clients = sorted(self.rows)
        kind = self.table.dtype(self.total.dtype)
        return {
            "table_total": self.total.copy(),
            "table_seen": np.array([self.seen]),
            "table_client": np.array(clients, np.int64),
            "table_rows": np.array([self.rows[c] for c in clients], kind).reshape(len(clients), self.total.size),
        }

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        self.total = state["table_total"].copy()
        self.change = state["table_change"].copy() if "table_change" in state else np.zeros_like(self.total)
        self.seen = int(state["table_seen"][0])
        self.keep({c: row.copy() for c, row in zip(state["table_client"].tolist(), state["table_rows"], strict=True)})
