"""What a rule keeps between two server steps: the names, shapes and types of its arrays in files and checkpoints.

first second third   (dim) of the model's dtype: the optimizer's moments, as many as it has

last_step            (dim) the last server step, from the new model to the old one: of weights by its angle
own_w                (dim) the server's own model, of a rule with a hidden one
own_state            float64 (n_state) the numbers of an own rule

control              (dim) the control variate
control_change       (dim) what the clients of the buffer have changed; a server's, where there are some

of a rule with a table, or a ring of models, whose places count as clients

table_total          (dim) the sum of all rows, when the buffer was empty
table_change         (dim) what the arrivals of the buffer changed in it; a server's, where there are some
table_seen           int64 (1) how many rows there were then
table_client         int64 (m) ascending, the clients that have a row
table_rows           (m, dim) their rows: of the model's dtype, or uint16, the bits of bfloat16

of a table of means table_total, table_client and table_rows of the round that is collected, and

step_total           (dim) the sum of the means of the round that steps are made of
step_count           int64 (n_clients) how many deltas are in each of its means
step_client          int64 (m) ascending, the clients that are to make their step
step_rows            (m, dim) their means

of a server, or a table of means, whose trigger hears all clients

heard                int64 (n_clients) how often each client was heard in this round
to_step              int64 (n_clients) 1 where its next arrival makes a step, else 0; of trigger "ringleader"

and of a server with weights "per_client" or an own rule, whose sum is empty then

held_deltas          (fill, dim) the deltas of the buffer
held_client          int64 (fill) their clients
held_staleness       int64 (fill) how stale they were
held_s held_e        float64 (fill) the factors of their weights
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import all_finite
from .strategies import Rule
from .table import values_of

__all__ = ["HELD", "MOMENTS", "NAMES", "ROWS", "check_state", "state_names"]

MOMENTS = ("first", "second", "third")
ROWS = {"table": ("table_client", "table_rows"), "step": ("step_client", "step_rows")}  # keys and rows of a table
HELD = ("held_deltas", "held_client", "held_staleness", "held_s", "held_e")
_TABLE = ("table_total", "table_seen", *ROWS["table"])
_MEANS = ("table_total", *ROWS["table"], "step_total", "step_count", *ROWS["step"])
_HEARD = ("heard", "to_step")
NAMES = (*MOMENTS, "last_step", "own_w", "own_state", "control", *_TABLE, *_MEANS[3:], *_HEARD)  # of all, in a replay
_VECTORS = (*MOMENTS, "last_step", "own_w", "control", "control_change", "table_total", "table_change", "step_total")
_MOST = 2**62  # of counts: what adds to one stays within 64 bits


def state_names(rule: Rule, *, of_server: bool = False) -> tuple[str, ...]:
    """The arrays that a rule keeps."""
    moments = MOMENTS[: len(rule.optimizer.moments)]
    given = {
        "last_step": rule.weight_by.by == "last_step",
        "own_w": rule.hidden,
        "own_state": rule.own,
        "control": rule.has_control,
    }
    more = [name for name, there in given.items() if there]
    means = rule.table is not None and rule.table.keeps == "means"
    table = _MEANS if means else () if rule.kept_rows is None else _TABLE
    heard = {"buffer": (), "every_client": _HEARD[:1], "ringleader": _HEARD}[rule.trigger] if of_server or means else ()
    held = HELD if of_server and rule.holds_deltas else ()
    return (*moments, *more, *table, *heard, *held)


def check_state(
    rule: Rule, state: dict[str, NDArray[Any]], dim: int, dtype: np.dtype[Any], *, of_server: bool = False
) -> None:
    """ValueError unless these are the arrays of a rule, for a model of this size and dtype; `table_change` may be."""
    names = state_names(rule, of_server=of_server)
    for name in names:
        if name not in state:
            raise ValueError(f"{name} is missing")
    for name in (name for name in _VECTORS if name in state):
        value = state[name]
        if value.dtype != dtype or value.shape != (dim,):
            raise ValueError(f"{name} is {value.dtype} {value.shape}, expected {dtype} ({dim},)")
        if not all_finite(value):
            raise ValueError(f"{name} is not finite")
    for name, moment in zip(rule.optimizer.moments, MOMENTS, strict=False):
        if moment in state and name in ("second", "largest") and np.any(state[moment] < 0):
            raise ValueError(f"{moment} has negative numbers")
    optional = (
        *(("table_change",) if "table_seen" in names else ()),
        *(("control_change",) if rule.has_control else ()),
    )
    if extra := set(state) - {*names, *optional}:
        raise ValueError(f"{min(extra)}: its rule keeps none")
    for name in ("heard", "to_step", "step_count"):
        if name in names:
            _check_counts(name, state[name], (rule.n_clients,), 1 if name == "to_step" else _MOST)
    if rule.own is not None:
        numbers = state["own_state"]
        if numbers.dtype != np.float64 or numbers.shape != (rule.own.n_state,) or not np.isfinite(numbers).all():
            raise ValueError(
                f"own_state is {numbers.dtype} {numbers.shape}, expected finite float64 ({rule.own.n_state},)"
            )
    if rule.kept_rows is not None:
        _check_table(rule, state, names, dim, dtype)
    if "held_client" in names:
        _check_held(rule, state, dim, dtype)


def _check_counts(name: str, value: NDArray[Any], shape: tuple[int | None], most: int) -> None:
    if value.dtype != np.int64 or value.shape != shape:
        raise ValueError(f"{name} is {value.dtype} {value.shape}, expected int64 {shape}")
    if value.size and not 0 <= int(value.min()) <= int(value.max()) <= most:
        raise ValueError(f"{name}: expected numbers from 0 to {most}")


def _check_table(
    rule: Rule, state: dict[str, NDArray[Any]], names: tuple[str, ...], dim: int, dtype: np.dtype[Any]
) -> None:
    assert rule.kept_rows is not None
    table, n_rows = rule.kept_rows
    for keys, rows in ROWS.values():
        if keys in names:
            _check_rows((keys, rows), (state[keys], state[rows]), n_rows, dim, table.dtype(dtype))
    clients = state["table_client"]
    if "table_seen" in names:
        seen = state["table_seen"]
        if seen.dtype != np.int64 or seen.shape != (1,) or not 0 <= seen[0] <= len(clients):
            raise ValueError(f"table_seen is {seen} of {len(clients)} rows")
        if rule.ring is not None and len(clients) != n_rows:
            raise ValueError(f"table_client: a ring of {n_rows} models has {len(clients)}")
    else:
        for name, expected in (("table_client", state["heard"]), ("step_client", state["to_step"])):
            if not np.array_equal(state[name], np.flatnonzero(expected)):
                raise ValueError(f"{name}: expected {np.flatnonzero(expected).tolist()}, got {state[name].tolist()}")


def _check_rows(
    names: tuple[str, str], arrays: tuple[NDArray[Any], NDArray[Any]], n: int, dim: int, kind: np.dtype[Any]
) -> None:
    (key, name), (clients, rows) = names, arrays
    if clients.dtype != np.int64 or clients.ndim != 1:
        raise ValueError(f"{key} is {clients.dtype} {clients.shape}")
    if len(clients) and not (clients[0] >= 0 and (np.diff(clients) > 0).all() and clients[-1] < n):
        raise ValueError(f"{key}: expected ascending numbers below {n}")
    if rows.dtype != kind or rows.shape != (len(clients), dim):
        raise ValueError(f"{name} is {rows.dtype} {rows.shape}, expected {kind} ({len(clients)}, {dim})")
    for client, row in zip(clients.tolist(), rows, strict=True):
        if not all_finite(values_of(row, np.dtype(np.float32))):
            raise ValueError(f"{name}: the row of client {client} is not finite")


def _check_held(rule: Rule, state: dict[str, NDArray[Any]], dim: int, dtype: np.dtype[Any]) -> None:
    deltas, clients, staleness, *factors = (state[name] for name in HELD)
    if deltas.dtype != dtype or deltas.shape != (len(deltas), dim) or not np.isfinite(deltas).all():
        raise ValueError(f"held_deltas is {deltas.dtype} {deltas.shape}, expected finite {dtype} (fill, {dim})")
    if rule.clients > 0:
        _check_counts("held_client", clients, (len(deltas),), rule.clients - 1)
    elif clients.dtype != np.int64 or clients.shape != (len(deltas),):
        raise ValueError(f"held_client is {clients.dtype} {clients.shape}")
    _check_counts("held_staleness", staleness, (len(deltas),), _MOST)
    for name, factor in zip(HELD[3:], factors, strict=True):
        if factor.dtype != np.float64 or factor.shape != (len(deltas),) or not (factor >= 0).all():
            raise ValueError(f"{name} is {factor.dtype} {factor.shape}, expected numbers >= 0, one of each delta")
        if not np.isfinite(factor).all():
            raise ValueError(f"{name} is not finite")
