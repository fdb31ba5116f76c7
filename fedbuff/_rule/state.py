"""What a rule keeps between two server steps: the names, shapes and types of its arrays in files and checkpoints.

first second third   (dim) of the model's dtype: the optimizer's moments, as many as it has

last_step            (dim) the last server step, from the new model to the old one: of weights by its angle

and of a rule with a table

table_total          (dim) the sum of all rows, when the buffer was empty
table_change         (dim) what the arrivals of the buffer changed in it; a server's, where there are some
table_seen           int64 (1) how many rows there were then
table_client         int64 (m) ascending, the clients that have a row
table_rows           (m, dim) their rows: of the model's dtype, or uint16, the bits of bfloat16
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import all_finite
from .strategies import Rule
from .table import values_of

__all__ = ["MOMENTS", "NAMES", "TABLE", "check_state", "state_names"]

MOMENTS = ("first", "second", "third")
TABLE = ("table_total", "table_seen", "table_client", "table_rows")
NAMES = (*MOMENTS, "last_step", *TABLE)  # of all rules


def state_names(rule: Rule) -> tuple[str, ...]:
    """The arrays that a rule keeps."""
    moments = MOMENTS[: len(rule.optimizer.moments)]
    last = ("last_step",) if rule.weight_by.by == "last_step" else ()
    return (*moments, *last, *(() if rule.table is None else TABLE))


def check_state(rule: Rule, state: dict[str, NDArray[Any]], dim: int, dtype: np.dtype[Any]) -> None:
    """ValueError unless these are the arrays of a rule, for a model of this size and dtype; `table_change` may be."""
    for name in state_names(rule):
        if name not in state:
            raise ValueError(f"{name} is missing")
    vectors = [name for name in (*MOMENTS, "last_step", "table_total", "table_change") if name in state]
    for name in vectors:
        value = state[name]
        if value.dtype != dtype or value.shape != (dim,):
            raise ValueError(f"{name} is {value.dtype} {value.shape}, expected {dtype} ({dim},)")
        if not all_finite(value):
            raise ValueError(f"{name} is not finite")
    for name, moment in zip(rule.optimizer.moments, MOMENTS, strict=False):
        if moment in state and name in ("second", "largest") and np.any(state[moment] < 0):
            raise ValueError(f"{moment} has negative numbers")
    optional = () if rule.table is None else ("table_change",)
    if extra := set(state) - {*state_names(rule), *optional}:
        raise ValueError(f"{min(extra)}: its rule keeps none")
    if rule.table is not None:
        _check_rows(rule, state, dim, dtype)


def _check_rows(rule: Rule, state: dict[str, NDArray[Any]], dim: int, dtype: np.dtype[Any]) -> None:
    assert rule.table is not None and rule.n_clients is not None
    clients, rows, seen = (state[name] for name in ("table_client", "table_rows", "table_seen"))
    if clients.dtype != np.int64 or clients.ndim != 1 or seen.dtype != np.int64 or seen.shape != (1,):
        raise ValueError(f"table_client is {clients.dtype} {clients.shape}, table_seen {seen.dtype} {seen.shape}")
    if len(clients) and not (clients[0] >= 0 and (np.diff(clients) > 0).all() and clients[-1] < rule.n_clients):
        raise ValueError(f"table_client: expected ascending numbers below {rule.n_clients}")
    if not 0 <= seen[0] <= len(clients):
        raise ValueError(f"table_seen is {seen[0]} of {len(clients)} rows")
    kind = rule.table.dtype(dtype)
    if rows.dtype != kind or rows.shape != (len(clients), dim):
        raise ValueError(f"table_rows is {rows.dtype} {rows.shape}, expected {kind} ({len(clients)}, {dim})")
    for client, row in zip(clients.tolist(), rows, strict=True):
        if not all_finite(values_of(row, dtype)):
            raise ValueError(f"table_rows: the row of client {client} is not finite")
