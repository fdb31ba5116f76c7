"""`schedule`, `iter_schedule` and `uniform_arrivals`: from delays and a strategy to who arrives when."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ._checks import as_written, choice, count, number, seed_of
from ._delays import DelayModel, Distribution
from ._schedule import Schedule, ScheduleWriter, Status, resolved
from ._server_file import rule_to_json
from ._strategy import rule_of
from ._trace import ArrivalLog, Availability, Trace, TraceError
from .backends import _resolver_reference as reference
from .backends import current
from .backends._philox import STREAM_CLIENT_SELECTION, key_words, multiply_high, philox_words
from .backends._portable_math import COMPONENT_SPEED, KINDS, draw
from .backends._resolver_reference import Columns, Plan

UNIFORM_ARRIVALS = "uniform_arrivals"  # the kind of source in the description of such a schedule

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


def schedule(
    source: Source,
    strategy: Any,
    concurrency: int | None = None,
    *,
    server_steps: int | None = None,
    max_time: float | None = None,
    arrivals: int | None = None,
    seed: int = 0,
    start_rate: float | None = None,
    start_process: StartProcess = "constant",
    in_flight: InFlight = "redraw",
    timeout: float | None = None,
) -> Schedule:
    """Resolves who arrives when, on which version and in which server step.

    source: a `Trace` or `DelayModel`, played by an event loop; or an `ArrivalLog`, taken as it happened.
    concurrency: None keeps every client always at work; M keeps M tasks at work, the next client drawn uniformly from
        the idle and available ones. FedAvg starts its own rounds and takes none.
    server_steps, max_time, arrivals: at least one; the first that is reached ends the schedule. `arrivals` counts
        ended tasks, whatever became of them; `max_time` includes what happens at that time.
    start_rate: the open loop: tasks start at this rate (per second), evenly ("constant", the first at 0) or as a
        "poisson" process, whoever is at work. `in_flight` says what happens when a start draws a client: "redraw" draws
        among the idle and available ones, and the start is lost where there is none; "skip" draws once among all, and
        the start is lost where that client is busy or away; "allow" lets a client have several tasks at once.
    timeout: a task that takes longer, without its wait, is given up that long after its start.
    """
    request = _Request(
        source,
        strategy,
        concurrency,
        server_steps,
        max_time,
        arrivals,
        seed,
        start_rate,
        start_process,
        in_flight,
        timeout,
    )
    if isinstance(source, ArrivalLog):
        return _replay_log(request, source)
    resolver = make_resolver(request.plan)
    room = request.expected_rows()
    columns = new_columns(max(room, resolver.rows_needed), max(room, 2) + 2)
    rows, steps, reason = _run(resolver, columns)
    while reason == reference.FULL:
        columns = _grown(columns, rows, steps, resolver.rows_needed)
        more_rows, more_steps, reason = _run(resolver, _slice(columns, slice(rows, None), slice(steps, None)))
        rows, steps = rows + more_rows, steps + more_steps
    request.check_end(reason)
    columns = _slice(columns, slice(0, rows), slice(0, steps))
    return request.build(columns, 0, rows, 0, resolver, last=True)


def iter_schedule(
    source: Source,
    strategy: Any,
    concurrency: int | None = None,
    *,
    chunk: int = 1_000_000,
    path: str | os.PathLike[str] | None = None,
    server_steps: int | None = None,
    max_time: float | None = None,
    arrivals: int | None = None,
    seed: int = 0,
    start_rate: float | None = None,
    start_process: StartProcess = "constant",
    in_flight: InFlight = "redraw",
    timeout: float | None = None,
) -> Iterator[Schedule]:
    """The schedule in chunks of about `chunk` rows, in memory bounded by clients, tasks in flight and the chunk.

    Every chunk is a `Schedule` that goes on where the one before ended (`first_step`). All but the last end at a server
    step and hold no tasks in flight. With `path` (.parquet) each is also written as it comes; the file appears, whole,
    when the last was taken. The other arguments are those of `schedule`.
    """
    request = _Request(
        source,
        strategy,
        concurrency,
        server_steps,
        max_time,
        arrivals,
        seed,
        start_rate,
        start_process,
        in_flight,
        timeout,
    )
    size = count("chunk", chunk)
    chunks = _iter_chunks(request, size)
    return chunks if path is None else _written(chunks, path)


def _written(chunks: Iterator[Schedule], path: str | os.PathLike[str]) -> Iterator[Schedule]:
    with ScheduleWriter(path) as writer:
        for chunk in chunks:
            writer.write(chunk)
            yield chunk


def _iter_chunks(request: _Request, size: int) -> Iterator[Schedule]:
    if isinstance(request.source, ArrivalLog):
        yield _replay_log(request, request.source)
        return
    resolver = make_resolver(request.plan)
    room = max(size, resolver.rows_needed)
    held = _slice(new_columns(0, 0), slice(0), slice(0))
    first_row = first_step = 0
    while True:
        fresh = new_columns(room, room + 2)
        rows, steps, reason = _run(resolver, fresh)
        request.check_end(reason)
        columns = _joined(held, _slice(fresh, slice(0, rows), slice(0, steps)))
        if reason != reference.FULL:
            yield request.build(columns, first_row, len(columns.client), first_step, resolver, last=True)
            return
        # The last step at hand is kept back: how many tasks start on its version is known when the next is made.
        done = len(columns.step_time) - 1
        held = columns
        if done > 0:
            cut = int(columns.step_rows[done - 1]) - first_row
            yield request.build(
                _slice(columns, slice(0, cut), slice(0, done + 1)), first_row, cut, first_step, resolver, last=False
            )
            held = _slice(columns, slice(cut, None), slice(done, None))
            first_row += cut
            first_step += done


def uniform_arrivals(
    n_clients: int,
    buffer_size: int,
    max_staleness: int,
    server_steps: int,
    seed: int = 0,
    staleness: Literal["uniform", "max"] = "uniform",
) -> Schedule:
    """The paper's Assumption 1: clients uniform with replacement, staleness bounded by `max_staleness`.

    The k-th arrival of step t comes from a uniform client, whose version is uniform between the newest of 0,
    t - max_staleness and the version just after its previous arrival, and t; or that lowest one ("max"). Time counts
    arrivals.
    """
    n, size = count("n_clients", n_clients), count("buffer_size", buffer_size)
    bound, steps = count("max_staleness", max_staleness, low=0), count("server_steps", server_steps)
    choice("staleness", staleness, ("uniform", "max"))
    key = seed_of(seed)
    columns = new_columns(steps * size, steps)
    if backend_name() == "cpp":
        import_module("fedbuff._core").uniform_arrivals(n, size, bound, staleness == "max", key, columns)
    else:
        _fill_uniform_arrivals(n, size, bound, staleness == "max", key, columns)
    made = Schedule(
        **{name: getattr(columns, name) for name in _ROW_NAMES},
        step_time=columns.step_time,
        step_started=np.append(columns.started[1:], 0),
        **_no_flight(),
        n_clients=n,
        buffer_size=size,
        concurrency=0,
        seed=seed,
        started_on_0=int(columns.started[0]),
        description={
            "source": {"kind": UNIFORM_ARRIVALS, "max_staleness": bound, "staleness": staleness},
            "strategy": {"kind": "fedbuff", "buffer_size": size},
            "server_steps": steps,
            "seed": seed,
        },
        copy=False,
    )
    return resolved(made)


def _fill_uniform_arrivals(n: int, size: int, bound: int, oldest: bool, seed: int, columns: Columns) -> None:
    """The rows of csrc/core/uniform_arrivals.cpp, column by column."""
    k0, k1 = key_words(seed)
    index = np.arange(len(columns.client), dtype=np.uint64)
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    words = philox_words(k0, k1, index & mask, index >> shift, np.uint64(0), STREAM_CLIENT_SELECTION)
    client = multiply_high((words[0] << shift) | words[1], np.uint64(n)).astype(np.int64)
    row = index.astype(np.int64)
    step = row // size
    task, previous = _per_client(client)
    after_previous = np.where(previous >= 0, (previous + 1) // size, 0)
    version = np.maximum(np.maximum(step - bound, 0), after_previous)
    if not oldest:
        span = (step - version + 1).astype(np.uint64)
        version = version + multiply_high((words[2] << shift) | words[3], span).astype(np.int64)
    columns.client[:] = client
    columns.task[:] = task
    columns.version[:] = version
    columns.step[:] = step
    columns.staleness[:] = step - version
    columns.start_time[:] = np.maximum(version * size, previous + 1)
    columns.arrive_time[:] = row + 1
    columns.status[:] = Status.USED
    steps = len(columns.step_time)
    columns.step_rows[:] = np.arange(1, steps + 1) * size
    columns.step_time[:] = columns.step_rows
    columns.started[:] = np.bincount(version, minlength=steps)


def plans_of(
    source: Trace | DelayModel,
    strategy: Any,
    seeds: Sequence[int],
    concurrency: int | None = None,
    *,
    server_steps: int | None = None,
    max_time: float | None = None,
    arrivals: int | None = None,
    start_rate: float | None = None,
    start_process: StartProcess = "constant",
    in_flight: InFlight = "redraw",
    timeout: float | None = None,
) -> tuple[list[Plan], int]:
    """What `schedule` tells its resolver, for each of the seeds, and how many rows to make room for at first."""

    def request(seed: int) -> _Request:
        ends = server_steps, max_time, arrivals
        return _Request(source, strategy, concurrency, *ends, seed, start_rate, start_process, in_flight, timeout)

    first = request(seeds[0])
    if isinstance(getattr(source, "client_speed", None), Distribution):  # drawn by seed
        return [request(seed).plan for seed in seeds], first.expected_rows()
    words = [key_words(seed_of(seed)) for seed in seeds]
    return [first.plan._replace(seed_low=low, seed_high=high) for low, high in words], first.expected_rows()


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
            raise ValueError(
                f"no arrival has reached the buffer in {self.plan.stall_limit} events: every task fails, times out "
                "or is too stale, or no client is available"
            )

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


def _slice(columns: Columns, rows: slice, steps: slice) -> Columns:
    return Columns(*(array[rows if name in _ROW_NAMES else steps] for name, array in columns._asdict().items()))


def _run(resolver: Resolver, columns: Columns) -> tuple[int, int, int]:
    """Runs until the columns are full or the schedule ends; a call of the resolver is short, and signals are heard."""
    rows = steps = 0
    while True:
        space = _slice(columns, slice(rows, None), slice(steps, None))
        if len(space.client) < resolver.rows_needed or len(space.step_time) < 2:
            return rows, steps, reference.FULL
        more_rows, more_steps, reason = resolver.run(space)
        rows, steps = rows + more_rows, steps + more_steps
        if reason != reference.FULL:
            return rows, steps, reason


def _grown(columns: Columns, rows: int, steps: int, least: int) -> Columns:
    """Columns with twice the room, that hold the first rows and steps of these."""
    wide = new_columns(2 * len(columns.client) + least, 2 * len(columns.client) + least + 2)
    for name, array in columns._asdict().items():
        used = rows if name in _ROW_NAMES else steps
        getattr(wide, name)[:used] = array[:used]
    return wide


def _joined(first: Columns, second: Columns) -> Columns:
    if len(first.client) == 0 and len(first.step_time) == 0:
        return second
    return Columns(*(np.concatenate(cast(Any, pair)) for pair in zip(first, second, strict=True)))


def _no_flight() -> dict[str, Any]:
    return {
        "in_flight_client": np.zeros(0, np.int32),
        "in_flight_task": np.zeros(0, np.uint32),
        "in_flight_version": np.zeros(0, np.int64),
        "in_flight_start_time": np.zeros(0),
    }


def _per_client(client: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For every row, how many rows of its client come before, and the last of them (-1)."""
    order = np.argsort(client, kind="stable")
    grouped = client[order]
    first = np.append(True, grouped[1:] != grouped[:-1])[: client.size]
    begin = np.maximum.accumulate(np.where(first, np.arange(client.size), 0))
    number, previous = np.empty_like(client), np.empty_like(client)
    number[order] = np.arange(client.size) - begin
    previous[order] = np.where(first, -1, np.append(-1, order[:-1])[: client.size])
    return number, previous


# ---- arrival logs ----


def _replay_log(request: _Request, log: ArrivalLog) -> Schedule:
    """The log as it happened: every buffer_size arrivals that are not too stale make a step."""
    size = count("buffer_size", request.strategy.buffer_size)
    bound = request.strategy.max_staleness
    max_wait = request.strategy.max_wait
    rows = int(log.client.size)
    arrive = log.arrive_time
    if request.max_time is not None:
        rows = int(np.searchsorted(arrive, request.max_time, side="right"))
    if request.arrivals is not None:
        rows = min(rows, request.arrivals)
    if log.step is not None:
        at, used, step_ends, step_time = _recorded_steps(log, rows, size, bound, max_wait)
    elif bound is None and max_wait is None:
        log.check_versions(size)
        step_ends = np.arange(size, rows + 1, size)
        step_time = arrive[step_ends - 1]
        at = np.arange(log.client.size) // size
        used = np.ones(rows, np.bool_)
    else:
        at, used, step_ends, step_time = _walk_log(request, log, rows, size, bound, max_wait)
    if request.server_steps is not None and step_ends.size >= request.server_steps:
        step_ends, step_time = step_ends[: request.server_steps], step_time[: request.server_steps]
        rows = int(step_ends[-1])
    n_steps = step_ends.size
    if log.version is not None:
        version = log.version
        if log.step is None:
            _warn_of_other_rule(log, version, at[:rows], step_time, size)
    else:
        version = np.minimum(
            np.searchsorted(step_time, cast(Any, log.start_time), side="right"), np.minimum(at, n_steps)
        )
    step = np.where(used[:rows] & (at[:rows] < n_steps), at[:rows], -1)
    status = np.where(used[:rows], np.where(step >= 0, Status.USED, Status.LEFT_IN_BUFFER), Status.TOO_STALE)
    number, _ = _per_client(log.client)
    later = np.arange(rows, log.client.size)
    flying = later[version[later] < n_steps]
    if log.start_time is not None and rows:
        flying = flying[log.start_time[flying] <= arrive[rows - 1]]
    flying = flying[np.lexsort((number[flying], log.client[flying]))]
    start = np.full(log.client.size, np.nan) if log.start_time is None else log.start_time
    started = np.bincount(np.concatenate([version[:rows], version[flying]]), minlength=n_steps + 1)
    return Schedule(
        client=log.client[:rows].astype(np.int32),
        task=number[:rows].astype(np.uint32),
        version=version[:rows].astype(np.int64),
        step=step,
        staleness=np.asarray(at[:rows] - version[:rows], np.int64),
        start_time=start[:rows].copy(),
        arrive_time=arrive[:rows].copy(),
        status=status.astype(np.uint8),
        step_time=step_time.astype(np.float64),
        step_started=started[1:],
        in_flight_client=log.client[flying].astype(np.int32),
        in_flight_task=number[flying].astype(np.uint32),
        in_flight_version=version[flying].astype(np.int64),
        in_flight_start_time=start[flying],
        n_clients=log.n_clients,
        buffer_size=size,
        concurrency=0,
        seed=request.seed,
        started_on_0=int(started[0]),
        description=request.describe(),
        copy=False,
    )


def _recorded_steps(
    log: ArrivalLog, rows: int, size: int, bound: int | None, max_wait: float | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64], NDArray[np.float64]]:
    """The server steps that the log has, where the strategy could have made them; returns what `_walk_log` does."""
    step = cast(Any, log.step)
    sizes = np.bincount(step)
    if sizes[-1] < size and max_wait is None:
        sizes = sizes[:-1]  # the log ends before the buffer is full
    low, high = int(sizes.min(initial=size)), int(sizes.max(initial=size))
    if high > size or (low < size and max_wait is None):
        low, high = int(sizes.min()), int(sizes.max())
        took = f"{low} arrivals each" if low == high else f"{low} to {high} arrivals each"
        keeps = f"FedBuff(buffer_size={high}{'' if low == high else ', max_wait=...'})"
        raise ValueError(
            f"strategy: the log's server steps took {took}, which buffer_size={size} cannot make; {keeps} takes the "
            "steps as they were recorded"
        )
    if bound is not None and log.version is not None:
        stale = np.flatnonzero(step - log.version > bound)
        if stale.size:
            row = int(stale[0])
            raise ValueError(
                f"strategy: max_staleness={bound} would drop row {row + 1}, with staleness "
                f"{step[row] - log.version[row]}, which entered step {step[row]} of the log"
            )
    ends = np.cumsum(sizes)
    ends = ends[ends <= rows]
    return step, np.ones(rows, np.bool_), ends, log.arrive_time[ends - 1]


def _warn_of_other_rule(
    log: ArrivalLog, version: NDArray[np.int64], at: NDArray[np.int64], step_time: NDArray[np.float64], size: int
) -> None:
    """Warns where the recorded versions are not those of a server with this rule, which is then not what happened.

    With start times, at least a tenth of the tasks began on a version that this server did not have then (its clock and
    its server's may differ by little). Without them, versions fall ever further behind.
    """
    rows = at.size
    if log.start_time is not None:
        start, found = log.start_time[:rows], version[:rows]
        low, high = (np.searchsorted(step_time, start, side=side) for side in ("left", "right"))
        other = np.flatnonzero((found < low) | (found > high))
        if 10 * other.size <= rows:
            return
        row = int(other[0])
        what = (
            f"{other.size} of {rows} tasks began on a version that this server did not have then; row {row + 1} on "
            f"{found[row]}, when it had {low[row]}"
        )
    else:
        newest = np.maximum.accumulate(version[:rows])
        behind, half = at - newest, rows // 2
        if rows < 8 or newest[half] == 0 or behind[-(rows // 4) :].min() <= behind[:half].max():
            return
        what = f"versions fall ever further behind, by {behind[-1]} steps at row {rows}"
    warnings.warn(
        f"strategy: buffer_size={size} is not the rule that made the log: {what}. Its staleness is not what was "
        "recorded. Use the recorded buffer size, or leave the versions out of the log",
        RuntimeWarning,
        stacklevel=4,
    )


def _walk_log(
    request: _Request, log: ArrivalLog, rows: int, size: int, bound: int | None, max_wait: float | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64], NDArray[np.float64]]:
    """Row by row, where drops or a time trigger decide what fills the buffer.

    Returns the server's version at every arrival, whether it entered the buffer, and rows and time of every step.
    """
    at = np.zeros(log.client.size, np.int64)
    used = np.zeros(rows, np.bool_)
    ends: list[int] = []
    times: list[float] = []
    fill, base, trigger = 0, 0.0, math.inf
    for row in range(rows):
        time = float(log.arrive_time[row])
        if trigger < time:
            ends.append(row)
            times.append(trigger)
            fill, base, trigger = 0, trigger, math.inf
        now = len(times)
        at[row] = now
        if log.version is not None:
            version = int(log.version[row])
            if version > now:
                raise TraceError(f"version {version} does not exist yet: the server has made {now} steps", row + 1)
        else:
            version = min(now, int(np.searchsorted(times, cast(Any, log.start_time)[row], side="right")))
        used[row] = bound is None or now - version <= bound
        fill += int(used[row])
        if fill == size:
            ends.append(row + 1)
            times.append(time)
            fill, base, trigger = 0, time, math.inf
        elif fill == 1 and used[row] and max_wait is not None:
            trigger = float(reference.next_tick(base, float(max_wait), time, False))
    if trigger < math.inf and (request.max_time is None or trigger <= request.max_time):
        ends.append(rows)
        times.append(trigger)
    at[rows:] = len(times)
    return at, used, np.array(ends, np.int64), np.array(times)


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
        compiled = import_module("fedbuff.backends._resolver_numba")
        # Read-only views of all arrays: Numba compiles for one type of plan.
        views: dict[str, Any] = {
            name: value.view() for name, value in plan._asdict().items() if isinstance(value, np.ndarray)
        }
        for view in views.values():
            view.flags.writeable = False
        return reference.GeneratorResolver(plan._replace(**views), compiled.resolve)
    return reference.GeneratorResolver(plan, reference.resolve)
