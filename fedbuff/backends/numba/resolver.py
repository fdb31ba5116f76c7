# mypy: allow-untyped-defs, allow-untyped-calls
"""The event loop of the specification compiled by Numba: the same source, the same bits, for where nothing else was.

Importing this teaches Numba the functions and classes of the loop. It is compiled once for all plans, and kept on disk.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, cast

import numba as nb
import numpy as np
from numba.experimental import structref
from numba.extending import overload, register_jitable

from ..python import event_loop, hearing, resolver, uplink, weighted_clients
from ..spec import Plan, Resolver
from . import random as _numba_random  # noqa: F401  teaches Numba its functions
from .compile import compiled
from .heap import heap_maker, heap_type
from .plain_resolver import PlainResolver, is_plain, viewed
from .struct import Held, Struct, new, struct_kind

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
    resolver.draw_law,
    resolver.recorded_row,
    resolver.wait_of,
    resolver.server_time_of,
    resolver.upload_of,
    resolver.duration_of,
    resolver.tasks_left,
    resolver.selection_word,
    resolver.start_time_of,
    resolver.end_of_task,
    event_loop.longer,
    hearing.Hearing.__init__,
    uplink.Uplink.__init__,
    weighted_clients.WeightedClients.__init__,
    event_loop.EventLoop.__init__,
):
    register_jitable(_function)


class PlanStruct(Struct):
    """A plan."""


class HearingStruct(Struct):
    """A hearing.Hearing."""


class UplinkStruct(Struct):
    """An uplink.Uplink."""


class WeightsStruct(Struct):
    """A weighted_clients.WeightedClients."""


class LoopStruct(Struct):
    """An event_loop.EventLoop."""


class _Loop(Held):
    def run(self, columns):
        return _compiled().run(self, columns)

    def in_flight(self):
        return _compiled().in_flight(self)

    @property
    def started(self):
        return _compiled().started(self)

    @property
    def rows_needed(self):
        return _compiled().rows_needed(self)


struct_kind(PlanStruct, Plan)
struct_kind(HearingStruct, hearing.Hearing)
struct_kind(UplinkStruct, uplink.Uplink)
struct_kind(WeightsStruct, weighted_clients.WeightedClients)
struct_kind(LoopStruct, event_loop.EventLoop)
structref.define_boxing(LoopStruct, _Loop)

_EVENTS = heap_type(nb.float64, 3)
_BOUNDARIES = heap_type(nb.float64, 1)
_KEYS = heap_type(nb.int64, 1)
overload(event_loop.new_events)(heap_maker(_EVENTS))
overload(event_loop.new_boundaries)(heap_maker(_BOUNDARIES))
overload(event_loop.new_keys)(heap_maker(_KEYS))
_TRANSFERS = heap_type(nb.float64, 2)
overload(uplink.new_transfers)(heap_maker(_TRANSFERS))
_HEAPS = {
    "events": _EVENTS,
    "boundaries": _BOUNDARIES,
    "order": _KEYS,
    "ends": _TRANSFERS,
    "deadlines": _TRANSFERS,
}


@overload(event_loop.new_slots)
def _new_slots() -> Any:
    return lambda: nb.typed.List.empty_list(nb.int64)


def _type_of(name: str, value: Any) -> Any:
    """The type of an attribute, from its value in Python."""
    if isinstance(value, list):
        return _HEAPS.get(name, nb.types.ListType(nb.int64))
    if isinstance(value, np.ndarray):
        return nb.types.Array(nb.from_dtype(value.dtype), 1, "C")
    if isinstance(value, hearing.Hearing):
        return _HEARING
    if isinstance(value, uplink.Uplink):
        return _UPLINK
    if isinstance(value, weighted_clients.WeightedClients):
        return _WEIGHTS
    if isinstance(value, bool):
        return nb.boolean
    return nb.float64 if isinstance(value, float) else nb.int64


def _fields(instance: Any) -> list[tuple[str, Any]]:
    return [(name, _type_of(name, value)) for name, value in vars(instance).items() if name != "plan"]


_HEARING = HearingStruct(_fields(hearing.Hearing(resolver.EVERY_CLIENT, 1, 1.0)))
_UPLINK = UplinkStruct(_fields(uplink.Uplink(1.0, 1)))
_WEIGHTS = WeightsStruct(_fields(weighted_clients.WeightedClients(np.ones(1))))


@overload(event_loop.new_uplink)
def _new_uplink(capacity, n_slots):  # as annotated as what it gives
    init = uplink.Uplink.__init__

    def impl(capacity, n_slots):
        made = new(_UPLINK)
        init(made, capacity, n_slots)
        return made

    return impl


@overload(event_loop.new_hearing)
def _new_hearing(trigger, n_clients, per_client):  # as annotated as what it gives
    init = hearing.Hearing.__init__

    def impl(trigger, n_clients, per_client):
        made = new(_HEARING)
        init(made, trigger, n_clients, per_client)
        return made

    return impl


@overload(event_loop.new_weighted_clients)
def _new_weighted_clients(weight):  # as annotated as what it gives
    init = weighted_clients.WeightedClients.__init__

    def impl(weight):
        made = new(_WEIGHTS)
        init(made, weight)
        return made

    return impl


class _Compiled(NamedTuple):
    make: Any
    run: Any
    in_flight: Any
    started: Any
    rows_needed: Any


_types: list[Any] = []  # of the plan and of the loop


@cache
def _compiled() -> _Compiled:
    """The functions that Python calls."""
    plan_type, loop_type = _types
    scope: dict[str, Any] = {}
    exec("def fill(made, plan):\n" + "".join(f"    made.{name} = plan.{name}\n" for name in Plan._fields), scope)
    fill = register_jitable(scope["fill"])
    init = event_loop.EventLoop.__init__

    @compiled
    def make(plan):
        held = new(plan_type)
        fill(held, plan)
        loop = new(loop_type)
        init(loop, held)
        return loop

    @compiled
    def run(loop, columns):
        return loop.run(columns)

    @compiled
    def in_flight(loop):
        return loop.in_flight()

    @compiled
    def started(loop):
        return loop.started

    @compiled
    def rows_needed(loop):
        return loop.rows_needed

    return _Compiled(make, run, in_flight, started, rows_needed)


def make_resolver(plan: Plan) -> Resolver:
    """The compiled loop; that of plain plans where it will do, which is compiled and runs several times as fast."""
    if is_plain(plan):
        return PlainResolver(plan)
    seen = viewed(plan)
    if not _types:
        plan_type = PlanStruct([(name, nb.typeof(value)) for name, value in seen._asdict().items()])
        one = event_loop.EventLoop(seen._replace(n_clients=1, n_slots=1))
        _types.extend((plan_type, LoopStruct([("plan", plan_type), *_fields(one)])))
    return cast(Resolver, _compiled().make(seen))
