"""What every implementation of `Server`, `DeltaBuffer` and `EventQueue` refuses, and in which words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._base.arrays import as_vector
from .._base.checks import count, integer, number, shown
from .strategies import PER_CLIENT, Rule

__all__ = [
    "change_of",
    "checked_dim",
    "client_error",
    "client_of",
    "closed_error",
    "diverged_error",
    "empty_queue",
    "event_kind",
    "event_time",
    "float_of",
    "forked_error",
    "norm_error",
    "not_finite",
    "overflow_error",
    "own_error",
    "positive",
    "queue_busy",
    "sum_error",
    "ticket_error",
    "unit_of",
    "version_error",
    "wide_error",
]


def checked_dim(dim: int) -> int:
    """How many weights a model has; more than any machine addresses are refused."""
    return count("dim", dim, high=2**56)


def float_of(name: str, value: float) -> float:
    """A float, finite or not, or an error that names the argument."""
    if not isinstance(value, (str, bytes)):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{name}: expected a number that float64 holds, got {shown(value)}") from None
        except (TypeError, ValueError):
            pass
    raise TypeError(f"{name}: expected a number, got {type(value).__name__}")


def wide_error(name: str, value: int) -> OverflowError:
    return OverflowError(f"{name}: expected an int of 64 bits, got {shown(value)}")


def positive(name: str, value: float) -> float:
    number = float_of(name, value)
    if not math.isfinite(number) or number <= 0:
        raise ValueError(f"{name}: expected a finite number > 0, got {number}")
    return number


def client_of(client: int | None, n_clients: int) -> int:
    """The client of an upload to a rule that looks at so many; -1 for 0, where it looks at none."""
    if n_clients == 0:
        return -1 if client is None else integer("client", client)
    if client is None:
        raise ValueError("client: this rule must know whose delta it is; say which client's")
    number = integer("client", client)
    if not 0 <= number < n_clients:
        raise client_error(number, n_clients)
    return number


def client_error(client: int, n_clients: int) -> ValueError:
    return ValueError(f"client: expected an int from 0 to {n_clients - 1}, got {shown(client)}")


def change_of(change: Any, rule: Rule, dim: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """What an upload's client has changed of its state, for a rule with a control variate; None for others."""
    if not rule.has_control:
        if change is not None:
            raise ValueError("change: this rule has no control variate; leave it out")
        return None
    if change is None:
        raise ValueError(f"change: {rule.method} needs what the client's state has changed by")
    array = as_vector("change", change, dim, dtype)
    if not np.isfinite(array).all():
        index = int(np.argmin(np.isfinite(array)))
        raise ValueError(f"change: element {index} is {array[index]}; nothing was added")
    return array


def version_error(version: int, current: int) -> ValueError:
    """The error for a version with no download due, at a server that is at `current`."""
    if 0 <= version <= current:
        return ValueError(f"version {version} has no download left to return")
    return ValueError(f"version {shown(version)} was never given out; the server is at version {current}")


def norm_error() -> ValueError:
    return ValueError("the weights of this buffer sum to zero, there is nothing to divide by; nothing was added")


def not_finite(delta: np.ndarray[Any, Any]) -> ValueError:
    index = int(np.argmin(np.isfinite(delta)))
    return ValueError(f"delta: element {index} is {delta[index]}; nothing was added")


def sum_error(delta: np.ndarray[Any, Any]) -> ValueError | OverflowError:
    """The error for a delta with which a sum of floats is not finite."""
    return overflow_error(delta.dtype) if np.isfinite(delta).all() else not_finite(delta)


def unit_of(unit: float | None, rule: Rule | None) -> float | None:
    """The size of one unit of whole-number deltas, or None."""
    if unit is not None and rule is not None:
        if rule.base != "start":
            raise ValueError('unit: whole-number deltas need base "start"')
        if rule.kept_rows is not None:
            raise ValueError("unit: a table keeps deltas of the model's dtype")
        if rule.own is not None:
            raise ValueError("unit: an own rule is for deltas of the model's dtype")
        if rule.weighting == PER_CLIENT:
            raise ValueError('unit: weights="per_client" is for deltas of the model\'s dtype')
        if rule.weighs_numbers:
            raise ValueError("unit: weight_by is for deltas of the model's dtype")
        if rule.has_control:
            raise ValueError("unit: a control variate is for deltas of the model's dtype")
    return None if unit is None else number("unit", unit, open_low=True)


def overflow_error(dtype: object = "64 bits") -> OverflowError:
    return OverflowError(f"delta: the sum does not fit {dtype}; nothing was added")


def diverged_error(version: int, dtype: object) -> OverflowError:
    """The error for an upload that fills the buffer of a server at this version."""
    return OverflowError(f"delta: after server step {version} the model would not fit {dtype}; nothing was added")


def own_error(version: int, what: str) -> ValueError:
    return ValueError(f"step {version}: the own rule's function {what}; nothing was added")


def ticket_error(ticket: int) -> ValueError:
    return ValueError(f"ticket {shown(ticket)} was never given out, or was used or cancelled already")


def closed_error(what: str) -> ValueError:
    return ValueError(f"the {what} is closed")


def forked_error(what: str) -> ValueError:
    return ValueError(
        f"the {what} was used by other threads when this process was forked, and they are not here; make another one"
    )


def event_time(time: float) -> ValueError:
    return ValueError(f"time: expected a finite number >= 0, got {time}")


def event_kind(kind: int) -> ValueError:
    return ValueError(f"kind: expected 0, 1, 2 or 3, got {kind}")


def queue_busy() -> ValueError:
    return ValueError("event queue: expected one thread at a time, another one is inside")


def empty_queue() -> IndexError:
    return IndexError("the event queue is empty")
