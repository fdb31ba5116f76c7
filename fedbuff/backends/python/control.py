"""SCAFFOLD and FedDyn: what is taken off a task's gradients, its client's state after it, the server's mean of that.

          shift, off every gradient    state after the task
SCAFFOLD  state - control              shift + delta / (steps lr)
FedDyn    state                        shift + alpha delta

The server's control variate is the mean of the clients' states, kept by their changes:

c <- c + (sum over the step's arrivals of state after - state before) / n; w <- w - control_pull c
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..._rule.strategies import Rule
from ..spec import LocalPlan, LocalSpec, Vector

__all__ = ["ControlSum", "make_shift", "make_state"]

Accumulate = Callable[[Vector, Vector, float, Vector | None, Vector | None, Vector], bool]


def make_shift(
    accumulate: Accumulate, plan: LocalPlan, state: Vector | None, control: Vector | None, out: Vector
) -> None:
    """The shift of a task; a state of None is zeros. out may be the state."""
    before = np.zeros_like(out) if state is None else state
    if plan.method == "scaffold":
        assert control is not None
        accumulate(before, control, -1.0, None, None, out)
    else:
        out[:] = before


def make_state(accumulate: Accumulate, plan: LocalPlan, spec: LocalSpec, delta: Vector, shift: Vector) -> None:
    """The shift becomes the state after a task with this delta."""
    rate = 1.0 / (spec.steps * spec.lr) if plan.method == "scaffold" else spec.prox
    accumulate(shift, delta, rate, None, None, shift)


class ControlSum:
    """The changes of the clients' states in one step."""

    def __init__(self, accumulate: Accumulate, like: Vector, so_far: Vector | None = None) -> None:
        self._accumulate = accumulate
        self.total: Vector = np.zeros_like(like) if so_far is None else so_far.copy()

    def add(self, after: Vector, before: Vector | None) -> None:
        change = after
        if before is not None:
            change = np.empty_like(after)
            self._accumulate(after, before, -1.0, None, None, change)
        self.add_change(change)

    def add_change(self, change: Vector) -> bool:
        """Whether the sum is finite."""
        return self._accumulate(self.total, change, 1.0, None, None, self.total)

    def step(self, rule: Rule, control: Vector, w: Vector) -> Vector:
        """The next control variate; the next model w is changed in place."""
        assert rule.n_clients is not None
        result = np.empty_like(control)
        self._accumulate(control, self.total, 1.0 / rule.n_clients, None, None, result)
        if rule.control_pull:
            self._accumulate(w, result, -rule.control_pull, None, None, w)
        return result
