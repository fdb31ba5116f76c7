"""The plan of a schedule: source, strategy and options, checked and laid out for the event loop."""

from __future__ import annotations

import copy
import functools
import json
import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .._base.checks import (
    as_written,
    count,
    number,
    seed_of,
)
from .._delays.arrival_log import ArrivalLog
from .._delays.availability import Availability
from .._delays.distributions import Constant, Distribution, takes_no_time
from .._delays.immutable import digest
from .._delays.model import DelayModel
from .._delays.trace import Trace
from .._rule.server_file import rule_to_json
from .._rule.strategies import TIMING, Rule, rule_of, timing_of
from ..backends.python import resolver as reference
from ..backends.python.philox import key_words
from ..backends.python.portable_math import KINDS
from ..backends.spec import ROW_NAMES, Columns, Plan, Resolver
from .columns import Status, no_flight
from .options import ScheduleOptions
from .schedule import Schedule, resolved

Source = Trace | DelayModel | ArrivalLog

_NO_TIME = Constant(0.0)
_SPEED_BLOCK = 1 << 13  # temporaries stay in the cache
_IF_BUSY = {"redraw": reference.REDRAW, "skip": reference.SKIP, "allow": reference.OVERLAP}
TRIGGERS = {"buffer": reference.BUFFER, "every_client": reference.EVERY_CLIENT, "ringleader": reference.RINGLEADER}
_SELECTION = {"round_robin": reference.ROUND_ROBIN, "longest_idle": reference.LONGEST_IDLE}
_POLICY = {"wait": reference.WAIT, "pause": reference.PAUSE, "abort": reference.ABORT}


# ---- what is asked for ----


class Request:
    """Source, strategy, options and seed, checked against each other; to make one is to check, and builds nothing.

    `plan` is what the event loop is told. A request of an arrival log has none: the log is replayed as it happened.
    """

    def __init__(self, source: Source, strategy: Any, options: ScheduleOptions, seed: int) -> None:
        if not isinstance(source, Trace | DelayModel | ArrivalLog):
            raise TypeError(f"source: expected a Trace, a DelayModel or an ArrivalLog, got {type(source).__name__}")
        kind = getattr(strategy, "kind", None)
        if kind not in ("fedbuff", "fedasync", "fedavg"):
            raise TypeError(f"strategy: expected FedBuff, FedAsync or FedAvg, got {type(strategy).__name__}")
        self.source, self.strategy, self.kind, self.options = source, strategy, kind, options
        self.seed = seed_of(seed)
        self._timing = timing_of(strategy)
        self._check_starts(source.n_clients)
        if isinstance(source, ArrivalLog):
            self._check_log()
            return
        if not options.has_end:
            raise ValueError("server_steps, max_time, arrivals: expected at least one, to end the schedule, got none")
        self._rules = self._make_rules(source.n_clients)
        if options.max_time is not None and options.start_rate is None:
            self._refuse_timeless(source)
        self._refuse_restarts_without_end(source)

    @cached_property
    def plan(self) -> Plan:
        assert not isinstance(self.source, ArrivalLog)
        return self._make_plan(self.source)

    def _check_starts(self, n_clients: int) -> None:
        concurrency = self.options.concurrency
        if self.kind == "fedavg":
            for name in ("concurrency", "start_rate"):
                if getattr(self.options, name) is not None:
                    raise ValueError(f"{name}: FedAvg starts its own rounds; leave it out")
        if self.options.queues:
            self._check_queues()
        elif concurrency is not None and concurrency > n_clients:
            raise ValueError(f"concurrency: expected an int up to the {n_clients} clients, got {concurrency}")

    def _check_queues(self) -> None:
        options = self.options
        if self.kind == "fedavg":
            raise ValueError("queues: FedAvg starts rounds of idle clients, and no task waits; use FedBuff or FedAsync")
        if isinstance(self.source, ArrivalLog):
            raise ValueError("queues: an arrival log is replayed as it happened; leave it out")
        if options.concurrency is None and options.start_rate is None:
            raise ValueError("queues: every client is always at work on one task, and none waits; give concurrency")
        if options.in_flight != "redraw":
            raise ValueError(f'queues: in_flight="{options.in_flight}" lets no task wait; leave it out')
        if isinstance(options.selection, str) and options.selection == "longest_idle":
            raise ValueError('queues: selection="longest_idle" takes idle clients; give probabilities or another name')
        if getattr(self.strategy, "distinct_clients", False):
            raise ValueError("queues: distinct_clients would hold up tasks behind one that waits for the next buffer")

    def _check_log(self) -> None:
        if self.kind == "fedavg":
            raise ValueError("strategy: expected FedBuff or FedAsync, since an arrival log has no rounds, got FedAvg")
        options = self.options
        if options.concurrency is not None or options.start_rate is not None or options.timeout is not None:
            raise ValueError(
                "concurrency, start_rate, timeout: an arrival log is replayed as it happened; leave them out"
            )
        if options.server_time is not None or options.uplink is not None:
            raise ValueError("server_time, uplink: an arrival log is replayed as it happened; leave them out")
        if options.max_uses is not None or not isinstance(options.selection, str) or options.selection != "uniform":
            raise ValueError("selection, max_uses: an arrival log is replayed as it happened; leave them out")
        for name in ("distinct_clients", "refill", "stop_stale", "restart"):
            if name in self._timing:
                raise ValueError(f"{name}: an arrival log is replayed as it happened; leave it out")
        if self._timing.get("trigger") is not None and getattr(self.source, "step", None) is not None:
            raise ValueError("trigger: the log has recorded server steps, which it would change")

    def _make_plan(self, source: Trace | DelayModel) -> Plan:
        shared = self.options.uplink is not None
        if shared:
            _refuse_no_uploads(source)
        delays = _recorded_fields(source, shared) if isinstance(source, Trace) else _model_fields(source, self._speed)
        delays |= _law_fields(_laws(source) if isinstance(source, DelayModel) else (), self.options.server_time)
        return Plan(**self._rules, **delays, **_window_fields(source.availability, source.n_clients))

    def _make_rules(self, n: int) -> dict[str, Any]:
        """The fields of the plan that follow from strategy, options and seed; refused where they do not fit."""
        low, high = key_words(self.seed)
        if self.kind == "fedavg":
            mode, buffer_size = reference.ROUNDS, self.strategy.round_size(n)
            number("over_selection", self.strategy.over_selection)
            slots = min(n, math.ceil(buffer_size * (1 + as_written(self.strategy.over_selection))))
        else:
            buffer_size = count("buffer_size", self.strategy.buffer_size)
            if self.options.start_rate is not None:
                mode, slots = reference.OPEN_LOOP, 0
            elif self.options.concurrency is not None:
                mode, slots = reference.POOL, self.options.concurrency
            else:
                mode, slots = reference.SLOT_IS_CLIENT, n
        max_staleness = getattr(self.strategy, "max_staleness", None)
        max_wait = getattr(self.strategy, "max_wait", None)
        return {
            "mode": mode,
            "n_clients": n,
            "n_slots": slots,
            "seed_low": low,
            "seed_high": high,
            "rate": 1.0 if self.options.start_rate is None else self.options.start_rate,
            **self._selection_fields(n, slots, mode),
            "poisson": self.options.start_process == "poisson",
            "if_busy": _IF_BUSY[self.options.in_flight],
            "queues": self.options.queues,
            "uplink": math.inf if self.options.uplink is None else self.options.uplink,
            "server_time": self.options.server_time is not None,
            "buffer_size": buffer_size,
            "max_staleness": -1 if max_staleness is None else count("max_staleness", max_staleness, low=0),
            "max_wait": math.inf if max_wait is None else number("max_wait", max_wait, open_low=True),
            "timeout": math.inf if self.options.timeout is None else self.options.timeout,
            "distinct_clients": self._distinct(n, slots, buffer_size),
            **self._timing_fields(slots),
            "server_steps": -1 if self.options.server_steps is None else self.options.server_steps,
            "max_time": math.inf if self.options.max_time is None else self.options.max_time,
            "arrivals": -1 if self.options.arrivals is None else self.options.arrivals,
            "stall_limit": 10_000_000 + 100 * n,
        }

    def _selection_fields(self, n: int, slots: int, mode: int) -> dict[str, Any]:
        """Which client is next, where clients are drawn."""
        selection, most = self.options.selection, self.options.max_uses
        made = {"selection": reference.UNIFORM, "probability": np.zeros(0), "max_uses": -1 if most is None else most}
        if isinstance(selection, str) and selection == "uniform":
            return made
        if mode == reference.SLOT_IS_CLIENT:
            raise ValueError("selection: every client is always at work, and none is drawn; give concurrency")
        if self.options.in_flight != "redraw":
            raise ValueError(f'selection: in_flight="{self.options.in_flight}" draws uniformly; leave it out')
        if isinstance(selection, str):
            return made | {"selection": _SELECTION[selection]}
        probability = cast("NDArray[np.float64]", selection)
        if probability.size != n:
            raise ValueError(f"selection: expected {n} probabilities, one per client, got {probability.size}")
        positive = int(np.count_nonzero(probability))
        if positive < slots and not self.options.queues:
            raise ValueError(
                f"selection: only {positive} clients have a probability above 0, for {slots} tasks at work"
            )
        return made | {"selection": reference.WEIGHTED, "probability": probability}

    def _timing_fields(self, slots: int) -> dict[str, Any]:
        """Triggers, refill and stops, where they fit the way tasks start."""
        timing = TIMING | self._timing
        period, refill, restart = timing["period"], timing["refill"], timing["restart"]
        if period is not None and self.options.max_time == 0:
            raise ValueError("period: no tick comes before max_time=0")
        if self.options.start_rate is not None:
            for name in ("refill", "stop_stale", "restart"):
                if timing[name] != TIMING[name]:
                    raise ValueError(f"{name}: start_rate starts tasks whoever is at work; use concurrency")
        if isinstance(refill, int) and refill > slots:
            raise ValueError(f"refill: expected at most {slots}, the tasks at work, got {refill}")
        return {
            "trigger": TRIGGERS[timing["trigger"]],
            "per_client": float(timing["per_client"]),
            "step_period": math.inf if period is None else float(period),
            "refill": {"arrival": 1, "step": 0}.get(refill, refill),
            "stop_stale": 1 if restart else timing["stop_stale"] or 0,
            "restart": restart is not None,
        }

    def _distinct(self, n: int, slots: int, buffer_size: int) -> bool:
        """Whether no client may be in a buffer twice; refused where such a buffer might never fill."""
        if not getattr(self.strategy, "distinct_clients", False):
            return False
        if buffer_size > n:
            raise ValueError(f"distinct_clients: a buffer of {buffer_size} needs as many clients, there are {n}")
        if self.options.concurrency is not None and slots < buffer_size:
            raise ValueError(
                f"distinct_clients: concurrency is {slots}; with fewer tasks than the buffer's {buffer_size} all of "
                "them may come to wait for the next buffer, which then never comes"
            )
        return True

    def _refuse_timeless(self, source: Trace | DelayModel) -> None:
        """A time horizon is never reached by a client that works and takes no time."""
        if self.options.server_time is not None:
            return
        if isinstance(source, Trace):
            if source.end == "stop":
                return
            rows = np.concatenate([[0], np.cumsum(source.wait + _duration(source) > 0)])
            timeless = np.flatnonzero(rows[source.offsets[1:]] == rows[source.offsets[:-1]])
        else:
            none = [takes_no_time(law) for law in _laws(source)]
            if not (none[0] and none[1] and none[3]):
                return
            factor = self._speed if self._speed.size else np.ones(1)
            timeless = np.flatnonzero((factor == 0.0) | none[2])
        if timeless.size:
            raise ValueError(f"max_time: it is never reached, since the tasks of client {timeless[0]} take no time")

    def _refuse_restarts_without_end(self, source: Trace | DelayModel) -> None:
        """A server step is never made where every tick of a period comes before any task can have ended."""
        timing, options = self._timing, self.options
        period = timing.get("period")
        if timing.get("restart") is None or period is None or options.max_time is not None or options.arrivals:
            return
        if isinstance(source, Trace):
            shortest = float(_duration(source)[source.ok].min(initial=math.inf))
        else:
            _, download, compute, upload = (law.smallest() for law in _laws(source))
            factor = float(self._speed.min()) if self._speed.size else 1.0
            shortest = download + compute * factor + upload
        if options.server_time is not None:
            shortest += cast(Distribution, options.server_time).smallest()
        if period * (1 + 1e-9) < shortest < math.inf:
            raise ValueError(
                f"period: expected at least {shortest:.6g}, what the shortest task takes, for restart stops all tasks "
                f"at every tick; got {period:g}"
            )

    @cached_property
    def _speed(self) -> NDArray[np.float64]:
        return _speed(self.source, self.seed) if isinstance(self.source, DelayModel) else np.zeros(0)

    def expected_rows(self) -> int:
        """Rows to make room for at first."""
        plan = self.plan
        guesses = (
            []
            if self.options.arrivals is None
            else [self.options.arrivals + plan.n_slots * (plan.mode == reference.ROUNDS)]
        )
        if self.options.server_steps is not None:
            per_step = plan.n_slots if plan.mode == reference.ROUNDS else plan.buffer_size
            if math.isfinite(plan.step_period) or math.isfinite(plan.max_wait):  # time may make a step with far fewer
                per_step = min(per_step, plan.n_slots)
            guesses.append(self.options.server_steps * per_step + 2)
        if self.options.max_time is not None:
            guesses.append(65536)
        return max(min(guesses), 16)

    def check_end(self, reason: int) -> None:
        if reason == reference.STALLED:
            raise ValueError(stall_message(self.plan))

    def describe(self) -> dict[str, Any]:
        return self._describe(rule_of(self.strategy))

    def _describe(self, rule: Rule) -> dict[str, Any]:
        made: dict[str, Any] = {
            "source": self.source.describe(),
            "strategy": {"kind": self.kind, **self._timing, "rule": json.loads(rule_to_json(rule))},
            "concurrency": self.options.concurrency,
            "server_steps": self.options.server_steps,
            "max_time": self.options.max_time,
            "arrivals": self.options.arrivals,
            "seed": self.seed,
            "timeout": self.options.timeout,
        }
        selection = self.options.selection
        if not isinstance(selection, str):
            made["selection"] = {"probabilities": digest(cast("NDArray[np.float64]", selection))}
        elif selection != "uniform":
            made["selection"] = selection
        if self.options.max_uses is not None:
            made["max_uses"] = self.options.max_uses
        if self.options.queues:
            made["queues"] = True
        if self.options.server_time is not None:
            made["server_time"] = cast(Distribution, self.options.server_time).describe()
        if self.options.uplink is not None:
            made["uplink"] = self.options.uplink
        if self.options.start_rate is not None:
            made |= {
                "start_rate": self.options.start_rate,
                "start_process": self.options.start_process,
                "in_flight": self.options.in_flight,
            }
        return made

    def build(
        self, columns: Columns, first_row: int, rows: int, first_step: int, resolver: Resolver, last: bool
    ) -> Schedule:
        """A schedule of these rows; of a chunk that is not the last, the step after its own ones tells `started`."""
        steps = len(columns.step_time) if last else len(columns.step_time) - 1
        started = np.append(columns.started, resolver.started if last else 0)[: steps + 1]
        flying = no_flight()
        if last:
            n_steps = first_step + steps
            tail = int(columns.step_rows[-1]) - first_row if steps else 0
            left = tail + np.flatnonzero(columns.step[tail:] >= n_steps)
            columns.step[left] = -1
            columns.status[left] = Status.LEFT_IN_BUFFER
            client, task, version, start = resolver.in_flight()
            order = np.lexsort((task, client))
            flying = {
                "in_flight_client": client[order],
                "in_flight_task": task[order],
                "in_flight_version": version[order],
                "in_flight_start_time": start[order],
            }
        plan = self.plan
        made = Schedule(
            **{name: getattr(columns, name)[:rows] for name in ROW_NAMES},
            step_time=columns.step_time[:steps],
            step_started=started[1:],
            **flying,
            n_clients=plan.n_clients,
            buffer_size=0 if plan.mode == reference.ROUNDS else plan.buffer_size,
            concurrency=plan.n_slots,
            seed=self.seed,
            started_on_0=int(started[0]),
            first_step=first_step,
            description=self._told(),
            copy=False,
        )
        return resolved(made)

    def _told(self) -> Mapping[str, Any] | Callable[[], Mapping[str, Any]]:
        """The description; of a model of delays only when somebody asks, as it takes as long as a short schedule. A
        recorded source is told at once, so that the schedule does not hold its rows."""
        rule = rule_of(self.strategy)
        if not isinstance(self.source, DelayModel):
            return self._describe(rule)
        light = copy.copy(self)
        light.__dict__.pop("plan", None)
        return functools.partial(light._describe, rule)


def stall_message(plan: Plan) -> str:
    if plan.trigger != reference.BUFFER:
        return (
            f"trigger: no server step was made in {plan.stall_limit} events: not every client is heard, because one "
            "never arrives in time, or seldom"
        )
    ends = ["fails", "times out", "is too stale"]
    if plan.restart:
        ends.append("is stopped by a restart before it arrives (expected a period longer than the shortest task)")
    elif plan.stop_stale:
        ends.append("is stopped before it arrives")
    return (
        f"no arrival has reached the buffer in {plan.stall_limit} events: every task {', '.join(ends[:-1])} "
        f"or {ends[-1]}, or no client is available"
    )


def _laws(model: DelayModel) -> tuple[Distribution, ...]:
    return model.wait, model.download, model.compute, model.upload


def _duration(trace: Trace) -> NDArray[np.float64]:
    return (trace.download + trace.compute) + trace.upload


def _refuse_no_uploads(source: Trace | DelayModel) -> None:
    none = not source.upload.any() if isinstance(source, Trace) else takes_no_time(source.upload)
    if none:
        raise ValueError("uplink: expected uploads that take time, got delays whose uploads all take none")


def _recorded_fields(trace: Trace, shared: bool) -> dict[str, Any]:
    """What is recorded; with a shared uplink an upload is not part of a task's duration."""
    return {
        "recorded": True,
        "speed": np.zeros(0),
        "row_offsets": trace.offsets,
        "row_wait": trace.wait,
        "row_duration": trace.download + trace.compute if shared else _duration(trace),
        "row_upload": trace.upload if shared else np.zeros(0),
        "row_ok": trace.ok.view(np.uint8),
        "wrap": trace.end == "wrap",
    }


def _model_fields(model: DelayModel, speed: NDArray[np.float64]) -> dict[str, Any]:
    nothing = np.zeros(0)
    return {
        "recorded": False,
        "speed": speed,
        "row_offsets": np.zeros(1, np.int64),
        "row_wait": nothing,
        "row_duration": nothing,
        "row_upload": nothing,
        "row_ok": np.zeros(0, np.uint8),
        "wrap": True,
    }


def _law_fields(laws: tuple[Distribution, ...], server_time: Any) -> dict[str, Any]:
    """The laws of a model, none where delays are recorded, and that of the server."""
    placed = (*(laws or [_NO_TIME] * 4), _NO_TIME if server_time is None else server_time)
    if any(law.kind == "empirical" for law in placed):
        return _placed_fields(placed)
    return _fields_of_numbers(placed).copy()


@functools.lru_cache(maxsize=64)
def _fields_of_numbers(placed: tuple[Distribution, ...]) -> dict[str, Any]:
    """The same of laws without samples, which many short schedules share."""
    made = _placed_fields(placed)
    for array in made.values():
        array.flags.writeable = False
    return made


def _placed_fields(placed: tuple[Distribution, ...]) -> dict[str, Any]:
    nothing = np.zeros(0)
    params = np.zeros((len(placed), 4))
    pools = [np.asarray(getattr(law, "samples", nothing), np.float64) for law in placed]
    for i, law in enumerate(placed):
        if law.kind != "empirical":
            params[i, : len(law.params)] = law.params
    return {
        "kinds": np.array([KINDS.index(law.kind) for law in placed], np.int64),
        "params": params,
        "sample_offsets": np.concatenate([[0], np.cumsum([pool.size for pool in pools])]).astype(np.int64),
        "samples": np.concatenate(pools),
    }


def _speed(model: DelayModel, seed: int) -> NDArray[np.float64]:
    """What multiplies each client's compute time; empty where nothing does. Drawn in blocks: clients may be 10^8."""
    if model.compute_factor(np.arange(1), seed) is None:
        return np.zeros(0)
    speed = np.empty(model.n_clients)
    for first in range(0, model.n_clients, _SPEED_BLOCK):
        clients = np.arange(first, min(first + _SPEED_BLOCK, model.n_clients))
        speed[clients] = model.compute_factor(clients, seed)
    return speed


def _window_fields(availability: Availability | None, n: int) -> dict[str, Any]:
    nothing = np.zeros(0)
    if availability is None:
        return {
            "availability_policy": reference.NO_WINDOWS,
            "window_offsets": np.zeros(1, np.int64),
            "window_begin": nothing,
            "window_end": nothing,
            "period": nothing,
        }
    period = (
        nothing if availability.period is None else np.ascontiguousarray(np.broadcast_to(availability.period, (n,)))
    )
    return {
        "availability_policy": _POLICY[availability.policy],
        "window_offsets": availability.offsets,
        "window_begin": availability.begin,
        "window_end": availability.end,
        "period": period.astype(np.float64),
    }


# ---- columns ----
