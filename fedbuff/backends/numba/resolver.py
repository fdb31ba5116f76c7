# mypy: allow-untyped-defs, allow-untyped-calls
"""The event loop of the specification compiled by Numba: the same source, the same bits, for where nothing else was.

Importing this teaches Numba the functions that the loop calls. `EventLoop` is compiled as a class, once for all plans.
"""

from __future__ import annotations

from typing import Any, cast

import numba as nb
import numpy as np
from numba.experimental import jitclass  # type: ignore[attr-defined]
from numba.extending import overload, register_jitable

from ..python import event_loop, hearing, resolver, weight_tree
from ..spec import Plan, Resolver
from . import random as _numba_random  # noqa: F401  teaches Numba Philox and the portable functions
from .compile import reads

for _function in (
    resolver.period_of,
    resolver.window_end,
    resolver.window_at,
    resolver.next_open,
    resolver.available,
    resolver.close_of,
    resolver.work_until,
    resolver.next_tick,
    resolver.draw_component,
    resolver.recorded_row,
    resolver.wait_of,
    resolver.duration_of,
    resolver.tasks_left,
    resolver.selection_word,
    resolver.start_time_of,
    resolver.end_of_task,
    event_loop.longer,
    weight_tree.new_weights,
    weight_tree.sum_of_eight,
    weight_tree.total_weight,
    weight_tree.set_weight,
    weight_tree.client_at,
):
    register_jitable(_function)

_EVENT = nb.types.Tuple((nb.float64, nb.int64, nb.int64, nb.int64))
_BOUNDARY = nb.types.Tuple((nb.float64, nb.int64))
_KEY = nb.types.Tuple((nb.int64, nb.int64))
_FLOATS = ("now", "retry_time", "last_step", "last_start", "trigger", "tick", "inverses", "per_client")


@overload(event_loop.new_slots)
def _new_slots() -> Any:
    return lambda: nb.typed.List.empty_list(nb.int64)


@overload(event_loop.new_boundaries)
def _new_boundaries() -> Any:
    return lambda: nb.typed.List.empty_list(_BOUNDARY)


@overload(event_loop.new_keys)
def _new_keys() -> Any:
    return lambda: nb.typed.List.empty_list(_KEY)


@overload(event_loop.new_events)
def _new_events() -> Any:
    return lambda: nb.typed.List.empty_list(_EVENT)


def _attribute_types(instance: Any) -> dict[str, Any]:
    """The types of the attributes of a class, found from an instance in Python."""
    types: dict[str, Any] = {}
    for name, value in vars(instance).items():
        if name == "events":
            types[name] = nb.types.ListType(_EVENT)
        elif name == "boundaries":
            types[name] = nb.types.ListType(_BOUNDARY)
        elif name == "order":
            types[name] = nb.types.ListType(_KEY)
        elif isinstance(value, list):
            types[name] = nb.types.ListType(nb.int64)
        elif isinstance(value, np.ndarray):
            types[name] = nb.types.Array(nb.from_dtype(value.dtype), 1, "C")
        elif isinstance(value, hearing.Hearing):
            types[name] = _Hearing.class_type.instance_type
        elif name == "plan":
            types[name] = nb.typeof(value)
        else:
            types[name] = nb.boolean if isinstance(value, bool) else nb.float64 if name in _FLOATS else nb.int64
    return types


_Hearing: Any = jitclass(_attribute_types(hearing.Hearing(resolver.EVERY_CLIENT, 1, 1.0)))(hearing.Hearing)


@overload(event_loop.new_hearing)
def _new_hearing(trigger, n_clients, per_client):  # as annotated as what it gives
    return lambda trigger, n_clients, per_client: _Hearing(trigger, n_clients, per_client)


_loops: list[Any] = []  # the compiled class


def make_resolver(plan: Plan) -> Resolver:
    """The compiled loop; Numba compiles for one type of plan, so all its arrays are passed as read-only views."""
    views: dict[str, Any] = {
        name: reads(value) for name, value in plan._asdict().items() if isinstance(value, np.ndarray)
    }
    viewed = plan._replace(**views)
    if not _loops:
        _loops.append(
            jitclass(_attribute_types(event_loop.EventLoop(viewed._replace(n_slots=1))))(event_loop.EventLoop)
        )
    return cast(Resolver, _loops[0](viewed))
