"""The plan of a schedule: source, strategy and options, checked and laid out for the event loop."""

from __future__ import annotations

import json
import math
from importlib import import_module
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from .._base.checks import (
    as_written,
    choice,
    count,
    number,
    seed_of,
)
from .._delays.arrival_log import ArrivalLog
from .._delays.availability import Availability
from .._delays.distributions import Distribution
from .._delays.model import DelayModel
from .._delays.trace import Trace
from .._rule.server_file import rule_to_json
from .._rule.strategies import rule_of
from ..backends import current
from ..backends.python import resolver as reference
from ..backends.python.philox import key_words
from ..backends.python.portable_math import COMPONENT_SPEED, KINDS, draw
from ..backends.python.resolver import Columns, Plan
from .columns import Status
from .schedule import Schedule, resolved

Source = Trace | DelayModel | ArrivalLog
StartProcess = Literal["constant", "poisson"]
InFlight = Literal["redraw", "skip", "allow"]

_COLUMN_TYPES: dict[str, type[np.generic]] = {
    "client": np.int32,
    "task": np.uint32,
    "version": np.int64,
    "step": np.int64,
    "staleness": np.int64,
    "start_time": np.float64,
    "arrive_time": np.float64,
    "status": np.uint8,
    "step_time": np.float64,
    "started": np.int64,
    "step_rows": np.int64,
}
_ROW_NAMES = tuple(_COLUMN_TYPES)[:8]
_STEP_NAMES = tuple(_COLUMN_TYPES)[8:]
_SPEED_BLOCK = 1 << 13  # temporaries stay in the cache
_IF_BUSY = {"redraw": reference.REDRAW, "skip": reference.SKIP, "allow": reference.OVERLAP}
_POLICY = {"wait": reference.WAIT, "pause": reference.PAUSE, "abort": reference.ABORT}


class Resolver(Protocol):
    """The event loop, as every backend gives it; one `run` takes a bounded number of events, and may fill nothing."""

    def run(self, columns: Columns) -> tuple[int, int, int]: ...
    def in_flight(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]: ...
    @property
    def started(self) -> int: ...
    @property
    def rows_needed(self) -> int: ...


# ---- what is asked for ----


class _Request:
    """The checked arguments, and the plan that they make."""

    def __init__(
        self,
        source: Source,
        strategy: Any,
        concurrency: int | None,
        server_steps: int | None,
        max_time: float | None,
        arrivals: int | None,
        seed: int,
        start_rate: float | None,
        start_process: str,
        in_flight: str,
        timeout: float | None,
    ) -> None:
        if not isinstance(source, Trace | DelayModel | ArrivalLog):
            raise TypeError(f"source must be a Trace, a DelayModel or an ArrivalLog, not {type(source).__name__}")
        kind = getattr(strategy, "kind", None)
        if kind not in ("fedbuff", "fedasync", "fedavg"):
            raise TypeError(f"strategy must be FedBuff, FedAsync or FedAvg, not {type(strategy).__name__}")
        self.source, self.strategy, self.kind = source, strategy, kind
        self.seed = seed_of(seed)
        self.server_steps = None if server_steps is None else count("server_steps", server_steps)
        self.max_time = None if max_time is None else number("max_time", max_time)
        self.arrivals = None if arrivals is None else count("arrivals", arrivals)
        self.timeout = None if timeout is None else number("timeout", timeout, open_low=True)
        self.start_rate = None if start_rate is None else number("start_rate", start_rate, open_low=True)
        choice("start_process", start_process, ("constant", "poisson"))
        choice("in_flight", in_flight, tuple(_IF_BUSY))
        if self.start_rate is None and (start_process, in_flight) != ("constant", "redraw"):
            raise ValueError("start_process and in_flight belong to the open loop: give start_rate")
        self.start_process, self.in_flight = start_process, in_flight
        n = source.n_clients
        self.concurrency = None if concurrency is None else count("concurrency", concurrency)
        if self.concurrency is not None:
            if kind == "fedavg":
                raise ValueError("concurrency is for FedBuff and FedAsync: FedAvg starts its own rounds")
            if self.start_rate is not None:
                raise ValueError("give concurrency (closed loop) or start_rate (open loop), not both")
            if self.concurrency > n:
                raise ValueError(f"concurrency is {self.concurrency}: there are only {n} clients")
        if kind == "fedavg" and self.start_rate is not None:
            raise ValueError("start_rate is for FedBuff and FedAsync: FedAvg starts its own rounds")
        if isinstance(source, ArrivalLog):
            if kind == "fedavg":
                raise ValueError("an arrival log has no rounds: use FedBuff or FedAsync, or a Trace")
            if self.concurrency is not None or self.start_rate is not None or self.timeout is not None:
                raise ValueError("an arrival log is replayed as it happened: no concurrency, start_rate or timeout")
            if getattr(strategy, "distinct_clients", False):
                raise ValueError("an arrival log is replayed as it happened: distinct_clients would change it")
            return
        if self.server_steps is None and self.max_time is None and self.arrivals is None:
            raise ValueError("give server_steps, max_time or arrivals: something must end the schedule")
        self.plan = self._make_plan(source)
        if self.max_time is not None and self.start_rate is None:
            self._refuse_timeless(source)

    def _make_plan(self, source: Trace | DelayModel) -> Plan:
        n = source.n_clients
        low, high = key_words(self.seed)
        if self.kind == "fedavg":
            mode, buffer_size = reference.ROUNDS, self.strategy.round_size(n)
            number("over_selection", self.strategy.over_selection)
            slots = min(n, math.ceil(buffer_size * (1 + as_written(self.strategy.over_selection))))
        else:
            buffer_size = count("buffer_size", self.strategy.buffer_size)
            if self.start_rate is not None:
                mode, slots = reference.OPEN_LOOP, 0
            elif self.concurrency is not None:
                mode, slots = reference.POOL, self.concurrency
            else:
                mode, slots = reference.SLOT_IS_CLIENT, n
        max_staleness = getattr(self.strategy, "max_staleness", None)
        max_wait = getattr(self.strategy, "max_wait", None)
        return Plan(
            mode=mode,
            n_clients=n,
            n_slots=slots,
            seed_low=low,
            seed_high=high,
            rate=1.0 if self.start_rate is None else self.start_rate,
            poisson=self.start_process == "poisson",
            if_busy=_IF_BUSY[self.in_flight],
            **_delay_fields(source, self.seed),
            **_window_fields(source.availability, n),
            buffer_size=buffer_size,
            max_staleness=-1 if max_staleness is None else count("max_staleness", max_staleness, low=0),
            max_wait=math.inf if max_wait is None else number("max_wait", max_wait, open_low=True),
            timeout=math.inf if self.timeout is None else self.timeout,
            distinct_clients=self._distinct(n, slots, buffer_size),
            server_steps=-1 if self.server_steps is None else self.server_steps,
            max_time=math.inf if self.max_time is None else self.max_time,
            arrivals=-1 if self.arrivals is None else self.arrivals,
            stall_limit=10_000_000 + 100 * n,
        )

    def _distinct(self, n: int, slots: int, buffer_size: int) -> bool:
        """Whether no client may be in a buffer twice; refused where such a buffer might never fill."""
        if not getattr(self.strategy, "distinct_clients", False):
            return False
        if buffer_size > n:
            raise ValueError(f"distinct_clients: a buffer of {buffer_size} needs as many clients, there are {n}")
        if self.concurrency is not None and slots < buffer_size:
            raise ValueError(
                f"distinct_clients: concurrency is {slots}; with fewer tasks than the buffer's {buffer_size} all of "
                "them may come to wait for the next buffer, which then never comes"
            )
        return True

    def _refuse_timeless(self, source: Trace | DelayModel) -> None:
        """A time horizon is never reached by a client that works and takes no time."""
        plan = self.plan
        if isinstance(source, Trace):
            if source.end == "stop":
                return
            rows = np.concatenate([[0], np.cumsum(plan.row_wait + plan.row_duration > 0)])
            timeless = np.flatnonzero(rows[source.offsets[1:]] == rows[source.offsets[:-1]])
        else:
            none = [
                KINDS[plan.kinds[i]]
                in ("constant", "exponential", "half_normal", "uniform", "pareto", "weibull", "empirical")
                and _largest(source, name) == 0.0
                for i, name in enumerate(("wait", "download", "compute", "upload"))
            ]
            factor = plan.speed if plan.speed.size else np.ones(1)
            others = none[0] and none[1] and none[3]
            timeless = np.flatnonzero((factor == 0.0) | none[2]) if others else np.zeros(0, np.int64)
        if timeless.size:
            raise ValueError(f"max_time is never reached: the tasks of client {timeless[0]} take no time")

    def expected_rows(self) -> int:
        """Rows to make room for at first."""
        plan = self.plan
        guesses = [] if self.arrivals is None else [self.arrivals + plan.n_slots * (plan.mode == reference.ROUNDS)]
        if self.server_steps is not None:
            per_step = plan.n_slots if plan.mode == reference.ROUNDS else plan.buffer_size
            guesses.append(self.server_steps * per_step + 2)
        if self.max_time is not None:
            guesses.append(65536)
        return max(min(guesses), 16)

    def check_end(self, reason: int) -> None:
        if reason == reference.STALLED:
            raise ValueError(stall_message(self.plan))

    def describe(self) -> dict[str, Any]:
        names = ("buffer_size", "max_staleness", "max_wait", "clients_per_round", "rate", "over_selection")
        strategy = {
            name: getattr(self.strategy, name) for name in names if getattr(self.strategy, name, None) is not None
        }
        if getattr(self.strategy, "distinct_clients", False):
            strategy["distinct_clients"] = True
        made: dict[str, Any] = {
            "source": self.source.describe(),
            "strategy": {"kind": self.kind, **strategy, "rule": json.loads(rule_to_json(rule_of(self.strategy)))},
            "concurrency": self.concurrency,
            "server_steps": self.server_steps,
            "max_time": self.max_time,
            "arrivals": self.arrivals,
            "seed": self.seed,
            "timeout": self.timeout,
        }
        if self.start_rate is not None:
            made |= {"start_rate": self.start_rate, "start_process": self.start_process, "in_flight": self.in_flight}
        return made

    def build(
        self, columns: Columns, first_row: int, rows: int, first_step: int, resolver: Resolver, last: bool
    ) -> Schedule:
        """A schedule of these rows; of a chunk that is not the last, the step after its own ones tells `started`."""
        steps = len(columns.step_time) if last else len(columns.step_time) - 1
        started = np.append(columns.started, resolver.started if last else 0)[: steps + 1]
        flying = _no_flight()
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
            **{name: getattr(columns, name)[:rows] for name in _ROW_NAMES},
            step_time=columns.step_time[:steps],
            step_started=started[1:],
            **flying,
            n_clients=plan.n_clients,
            buffer_size=0 if plan.mode == reference.ROUNDS else plan.buffer_size,
            concurrency=plan.n_slots,
            seed=self.seed,
            started_on_0=int(started[0]),
            first_step=first_step,
            description=self.describe(),
            copy=False,
        )
        return resolved(made)


def stall_message(plan: Plan) -> str:
    return (
        f"no arrival has reached the buffer in {plan.stall_limit} events: every task fails, times out "
        "or is too stale, or no client is available"
    )


def _largest(model: DelayModel, name: str) -> float:
    """The largest delay that a distribution can draw, as far as it matters whether that is 0."""
    law: Distribution = getattr(model, name)
    if law.kind == "empirical":
        return float(cast(Any, law).samples[-1])
    if law.kind == "half_normal":
        return law.params[0] + law.params[1]
    if law.kind in ("uniform", "pareto", "weibull"):
        return law.params[1]
    return law.params[0]


def _delay_fields(source: Trace | DelayModel, seed: int) -> dict[str, Any]:
    nothing, no_rows = np.zeros(0), np.zeros(1, np.int64)
    if isinstance(source, Trace):
        return {
            "recorded": True,
            "kinds": np.zeros(4, np.int64),
            "params": np.zeros((4, 4)),
            "sample_offsets": np.zeros(5, np.int64),
            "samples": nothing,
            "speed": nothing,
            "row_offsets": source.offsets,
            "row_wait": source.wait,
            "row_duration": (source.download + source.compute) + source.upload,
            "row_ok": source.ok.view(np.uint8),
            "wrap": source.end == "wrap",
        }
    laws: list[Distribution] = [source.wait, source.download, source.compute, source.upload]
    params = np.zeros((4, 4))
    pools = [np.asarray(getattr(law, "samples", nothing), np.float64) for law in laws]
    for i, law in enumerate(laws):
        if law.kind != "empirical":
            params[i, : len(law.params)] = law.params
    return {
        "recorded": False,
        "kinds": np.array([KINDS.index(law.kind) for law in laws], np.int64),
        "params": params,
        "sample_offsets": np.concatenate([[0], np.cumsum([pool.size for pool in pools])]).astype(np.int64),
        "samples": np.concatenate(pools),
        "speed": _speed(source, seed),
        "row_offsets": no_rows,
        "row_wait": nothing,
        "row_duration": nothing,
        "row_ok": np.zeros(0, np.uint8),
        "wrap": True,
    }


def _speed(model: DelayModel, seed: int) -> NDArray[np.float64]:
    """What multiplies each client's compute time; empty where nothing does. Drawn in blocks: clients may be 10^8."""
    if model.client_speed is None and model.n_samples is None:
        return np.zeros(0)
    speed = np.ones(model.n_clients)
    if isinstance(model.client_speed, Distribution):
        law = model.client_speed
        samples = getattr(law, "samples", None)
        for first in range(0, model.n_clients, _SPEED_BLOCK):
            clients = np.arange(first, min(first + _SPEED_BLOCK, model.n_clients))
            speed[clients] = draw(law.kind, law.params, samples, seed, clients, 0, COMPONENT_SPEED)
    elif model.client_speed is not None:
        speed *= model.client_speed
    if model.n_samples is not None:
        speed *= model.n_samples
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


def new_columns(rows: int, steps: int) -> Columns:
    """Empty columns with room for so many rows and steps."""
    return Columns(
        **{name: np.empty(rows if name in _ROW_NAMES else steps, dtype) for name, dtype in _COLUMN_TYPES.items()}
    )


def _no_flight() -> dict[str, Any]:
    return {
        "in_flight_client": np.zeros(0, np.int32),
        "in_flight_task": np.zeros(0, np.uint32),
        "in_flight_version": np.zeros(0, np.int64),
        "in_flight_start_time": np.zeros(0),
    }


# ---- backends ----


def backend_name() -> str:
    """The backend in force: cpp, numba or reference."""
    return cast(Any, current()).__name__.rpartition(".")[2]  # type: ignore[no-any-return]


def make_resolver(plan: Plan) -> Resolver:
    """The event loop of the backend in force."""
    name = backend_name()
    if name == "cpp":
        core: Any = import_module("fedbuff._core")
        return cast(Resolver, core.ScheduleResolver(plan))
    if name == "numba":
        compiled = import_module("fedbuff.backends.numba.resolver")
        # Read-only views of all arrays: Numba compiles for one type of plan.
        views: dict[str, Any] = {
            name: value.view() for name, value in plan._asdict().items() if isinstance(value, np.ndarray)
        }
        for view in views.values():
            view.flags.writeable = False
        return reference.GeneratorResolver(plan._replace(**views), compiled.resolve)
    return reference.GeneratorResolver(plan, reference.resolve)
