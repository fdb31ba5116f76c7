# mypy: allow-untyped-defs, allow-untyped-calls
"""The event loop of plans without the rarer options: one function over a few arrays, compiled in seconds.

The rules are those of python/resolver.py, and the rows have the same bits; `is_plain` says for which plans. In such a
plan every slot has one event at all times, so the events lie in a heap that keeps its size: an event is replaced by the
next one of its slot. Delays are drawn ahead, a batch of starts at a time, which LLVM turns into vector code; one is
used where the client and its task turn out to be those that were guessed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..python.philox import STREAM_CLIENT_SELECTION, STREAM_DELAYS
from ..python.portable_math import COMPONENT_COMPUTE, COMPONENT_DOWNLOAD, COMPONENT_UPLOAD, COMPONENT_WAIT
from ..python.resolver import (
    ARRIVALS,
    BUFFER,
    EXHAUSTED,
    FAILED,
    FREE,
    FULL,
    MASK,
    MAX_TIME,
    NO_WINDOWS,
    POOL,
    RUNNING,
    SERVER_STEPS,
    SLOT_IS_CLIENT,
    STALLED,
    TIMED_OUT,
    TOO_STALE,
    UNIFORM,
    USED,
    WAITING,
    draw_component,
    duration_of,
    recorded_row,
    wait_of,
)
from ..spec import Columns, Plan
from .compile import compiled, helper, inlined, reads
from .lend import lend
from .memory import prefetch
from .random import bits_of, double_of, log_positive, multiply_high, philox_words, unit_double

# Fields of a plan of which this loop knows every value, where those of the second table have the value there.
KNOWN = frozenset(
    (
        *("mode", "n_clients", "n_slots", "seed_low", "seed_high", "rate", "poisson", "if_busy", "probability"),
        *("recorded", "kinds", "params", "sample_offsets", "samples", "speed", "row_offsets", "row_wait"),
        *("row_duration", "row_upload", "row_ok", "wrap", "window_offsets", "window_begin", "window_end", "period"),
        *("buffer_size", "max_staleness", "timeout", "per_client", "server_steps", "max_time", "arrivals"),
        "stall_limit",
    )
)
NEUTRAL: dict[str, Any] = {
    "selection": UNIFORM,
    "max_uses": -1,
    "queues": False,
    "uplink": np.inf,
    "server_time": False,
    "availability_policy": NO_WINDOWS,
    "max_wait": np.inf,
    "distinct_clients": False,
    "trigger": BUFFER,
    "step_period": np.inf,
    "refill": 1,
    "stop_stale": 0,
    "restart": False,
}

_SLOT_BITS = 26
_NUMBER_BITS = 36
_EVENTS_PER_CALL = 1 << 17  # so that a run hears of signals
_BATCH = 32  # starts that are drawn ahead together
_FEW = 4 * _BATCH  # of so few eligible ones a guess is mostly wrong
_EXPONENTIAL = 2  # in KINDS of python/portable_math.py

# Events are two words each: the bits of the time, which order times that are not negative, and
# start << 62 | number of creation << 26 | slot. The root is entry 3, so that four children lie in one cache line.
_ROOT = 3
_START = np.uint64(1 << 62)
_SLOT_MASK = np.uint64((1 << _SLOT_BITS) - 1)
_SHIFT = np.uint64(_SLOT_BITS)
_U1, _U2, _U3, _U4, _U6 = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4), np.uint64(6)
_U0, _U32 = np.uint64(0), np.uint64(32)
_MANY, _NEAR = np.uint64(1 << 16), np.uint64(1 << 12)  # events, and of them those that lie in the caches
_LARGEST = float(np.finfo(np.float64).max)

# `_State.slots`: client and task (the task above), version, bits of the start (while it waits: of its duration), and
# status and state (the state above).
_WHO, _VERSION, _START_BITS, _STATUS = range(4)
_TASK_SHIFT, _STATE_SHIFT = 32, 8
_CLIENT_MASK, _STATUS_MASK = (1 << _TASK_SHIFT) - 1, (1 << _STATE_SHIFT) - 1
# `_State.counters`
_N_COUNTERS = 10
(
    _FILL, _AT_VERSION, _STARTED, _TOTAL_ROWS, _QUIET, _CREATED, _STARTS, _N_ELIGIBLE, _REASON, _AHEAD_BEGIN,
) = range(_N_COUNTERS)  # fmt: skip


class _State(NamedTuple):
    """What lasts from call to call."""

    counters: Any
    heap: Any
    slots: Any
    eligible: Any  # the first n_eligible of them
    tasks: Any  # started by each client
    words: Any  # drawn ahead: of the starts from counters[_AHEAD_BEGIN] on,
    guess: Any  # which client it will be, or -1,
    task: Any  # its task,
    delays: Any  # and wait and duration of that


@helper
def _earlier(time0, order0, time1, order1):
    return (time0 < time1) | ((time0 == time1) & (order0 < order1))


@helper
def _replace_top(heap, end, time, order):
    """The first event is replaced by this one; `end` is behind the last entry.

    Where there are many, a group's line of the cache is asked from memory while the group above it is looked at.
    """
    at, child = _U3, _U4
    far = end > _MANY
    while child < end:
        i = child << _U1
        if far and child > _NEAR:
            for below in range(4):
                prefetch(heap, np.int64((child + np.uint64(below) - _U2) << _U3))
        t0, o0, t1, o1 = heap[i], heap[i + _U1], heap[i + _U2], heap[i + _U3]
        i += _U4
        t2, o2, t3, o3 = heap[i], heap[i + _U1], heap[i + _U2], heap[i + _U3]
        second = _earlier(t1, o1, t0, o0)
        ta, oa, a = (t1, o1, child + _U1) if second else (t0, o0, child)
        fourth = _earlier(t3, o3, t2, o2)
        tb, ob, b = (t3, o3, child + _U3) if fourth else (t2, o2, child + _U2)
        last = _earlier(tb, ob, ta, oa)
        ta, oa, a = (tb, ob, b) if last else (ta, oa, a)
        if not _earlier(ta, oa, time, order):
            break
        i = at << _U1
        heap[i], heap[i + _U1] = ta, oa
        at = a
        child = (at - _U2) << _U2
    i = at << _U1
    heap[i], heap[i + _U1] = time, order


@helper
def _selection_words(k0, k1, start, words_out):
    """The words of `selection_word`, for this start and those after it."""
    for i in range(_BATCH):
        s = np.uint64(start + i)
        w0, w1, _, _ = philox_words(k0, k1, s & MASK, s >> _U32, _U0, STREAM_CLIENT_SELECTION)
        words_out[i] = (w0 << _U32) | w1


@helper
def _exponentials(k0, k1, component, scale, guess, task, out):
    """Exponential delays of the guessed tasks, as `draw_component` gives them."""
    for i in range(_BATCH):
        w0, w1, _, _ = philox_words(k0, k1, np.uint64(guess[i]), np.uint64(task[i]), component, STREAM_DELAYS)
        out[i] = (0.0 - log_positive(1.0 - unit_double(w0, w1))) * scale


@helper
def _draws(plan, component, guess, task, out):
    """This component of the delays of the guessed tasks."""
    for i in range(_BATCH):
        out[i] = draw_component(plan, component, guess[i], task[i])


@inlined
def _draw_batch(plan, component, guess, task, out):
    """The same; the usual kinds without a call that takes a plan."""
    kind, scale = plan.kinds[component], plan.params[component, 0]
    if kind == _EXPONENTIAL:
        _exponentials(plan.seed_low, plan.seed_high, np.uint64(component), scale, guess, task, out)
    elif kind == 0:
        for i in range(_BATCH):
            out[i] = scale
    else:
        _draws(plan, component, guess, task, out)


@helper
def _look_ahead(plan, state, start, n_eligible, filling):
    """Places of the next starts and, as far as they can be guessed, their clients and delays.

    filling: no task has ended yet, as a rule.
    """
    words, guess, task, eligible, tasks = state.words, state.guess, state.task, state.eligible, state.tasks
    _selection_words(plan.seed_low, plan.seed_high, start, words)
    if n_eligible < _FEW:
        for i in range(_BATCH):
            guess[i] = -1
        return
    for i in range(_BATCH):
        n = n_eligible - i if filling else n_eligible
        guess[i] = eligible[np.int64(multiply_high(words[i], np.uint64(n)))]
    for i in range(_BATCH):
        task[i] = tasks[guess[i]]
    wait, duration, part = state.delays[0], state.delays[1], state.delays[2]
    if plan.recorded:
        for i in range(_BATCH):
            row = recorded_row(plan, guess[i], task[i])
            wait[i], duration[i] = plan.row_wait[row], plan.row_duration[row]
        return
    _draw_batch(plan, COMPONENT_COMPUTE, guess, task, part)
    if len(plan.speed) > 0:
        for i in range(_BATCH):
            part[i] *= plan.speed[guess[i]]
    _draw_batch(plan, COMPONENT_DOWNLOAD, guess, task, duration)
    _draw_batch(plan, COMPONENT_UPLOAD, guess, task, wait)
    for i in range(_BATCH):
        duration[i] = (duration[i] + part[i]) + wait[i]
    _draw_batch(plan, COMPONENT_WAIT, guess, task, wait)


@inlined
def _write(out, row, slots, slot, staleness, step, status, now):
    """The row of the task of a slot, which is over."""
    who = slots[slot, _WHO]
    out.client[row], out.task[row] = who & _CLIENT_MASK, who >> _TASK_SHIFT
    out.version[row], out.staleness[row] = slots[slot, _VERSION], staleness
    out.start_time[row], out.arrive_time[row] = double_of(slots[slot, _START_BITS]), now
    out.step[row], out.status[row] = step, status
    slots[slot, _STATUS] = FREE << _STATE_SHIFT


@inlined
def _end_of(plan, version, total_rows):
    """Why the schedule ends after the end of a task; FULL where it goes on."""
    if version == plan.server_steps:
        return SERVER_STEPS
    return ARRIVALS if total_rows >= plan.arrivals >= 0 else FULL


@inlined
def _take(eligible, place, n_eligible):
    """The eligible client at this place; the last one comes there."""
    client = np.int64(eligible[place])
    eligible[place] = eligible[n_eligible - 1]
    return client


@inlined
def _load(counters):
    return (
        counters[_FILL], counters[_AT_VERSION], counters[_STARTED], counters[_TOTAL_ROWS], counters[_QUIET],
        counters[_STARTS], counters[_N_ELIGIBLE], counters[_AHEAD_BEGIN], counters[_REASON],
    )  # fmt: skip


@inlined
def _store(counters, fill, version, started, total_rows, quiet, starts, n_eligible, ahead_begin, reason):
    counters[_FILL], counters[_AT_VERSION], counters[_STARTED] = fill, version, started
    counters[_TOTAL_ROWS], counters[_QUIET], counters[_STARTS] = total_rows, quiet, starts
    counters[_N_ELIGIBLE], counters[_AHEAD_BEGIN], counters[_REASON] = n_eligible, ahead_begin, reason


@inlined
def _put_in_slot(slots, slot, version, bits, status, state):
    slots[slot, _VERSION], slots[slot, _START_BITS] = version, np.int64(bits)
    slots[slot, _STATUS] = status | (state << _STATE_SHIFT)


@compiled
def _run(plan, state, out):
    """Rows, steps and reason."""
    plan, state, out = lend(plan), lend(state), lend(out)
    heap, slots, eligible, tasks, counters = state.heap, state.slots, state.eligible, state.tasks, state.counters
    words, guess, guessed_task, delays = state.words, state.guess, state.task, state.delays
    fill, version, started, total_rows, quiet, starts, n_eligible, ahead_begin, reason = _load(counters)
    created, is_pool = np.uint64(counters[_CREATED]), plan.mode == POOL
    end, horizon = np.uint64(_ROOT + plan.n_slots), bits_of(min(plan.max_time, _LARGEST))
    rows, steps, left = 0, 0, _EVENTS_PER_CALL
    while left > 0 and reason == FULL and rows < len(out.client) and steps + 2 <= len(out.step_time):
        left -= 1
        if end > _MANY:
            for second in range(8, 16, 2):  # one of these four comes next
                prefetch(slots, np.int64(heap[second + 1] & _SLOT_MASK) * 4)
        time, order = heap[_U6], heap[_U6 + _U1]
        if time > horizon:
            reason = MAX_TIME if plan.max_time < np.inf else EXHAUSTED
            break
        quiet += 1
        now, slot = double_of(time), np.int64(order & _SLOT_MASK)
        if order < _START and quiet <= plan.stall_limit:  # a task ends
            staleness, status = version - slots[slot, _VERSION], slots[slot, _STATUS] & _STATUS_MASK
            status = TOO_STALE if status == USED and staleness > plan.max_staleness >= 0 else status
            _write(out, rows, slots, slot, staleness, version if status == USED else -1, status, now)
            rows, total_rows = rows + 1, total_rows + 1
            if is_pool:
                eligible[n_eligible] = slots[slot, _WHO] & _CLIENT_MASK
                n_eligible += 1
            if status == USED:
                quiet, fill = 0, fill + 1
                if fill == plan.buffer_size:
                    out.step_time[steps], out.started[steps], out.step_rows[steps] = now, started, total_rows
                    steps, version, fill, started = steps + 1, version + 1, 0, 0
            reason = _end_of(plan, version, total_rows)
            if reason != FULL:
                break
            order = _START | (created << _SHIFT) | np.uint64(slot)
            created += _U1
            # Where nothing else happens at this time, the slot asks at once.
            if heap[8] <= time or heap[10] <= time or heap[12] <= time or heap[14] <= time:
                _replace_top(heap, end, time, order)
                continue
            quiet += 1
        if quiet > plan.stall_limit:
            reason = STALLED
            break
        if slots[slot, _STATUS] >> _STATE_SHIFT == WAITING:
            client, task = slots[slot, _WHO] & _CLIENT_MASK, slots[slot, _WHO] >> _TASK_SHIFT
            duration = double_of(slots[slot, _START_BITS])
        else:  # the slot asks for a client
            client, ahead, guessed = slot, starts & (_BATCH - 1), False
            if is_pool:
                if starts - ahead_begin >= _BATCH:
                    ahead_begin = starts - ahead
                    _look_ahead(plan, state, ahead_begin, n_eligible, plan.n_slots > starts)
                client = _take(eligible, np.int64(multiply_high(words[ahead], np.uint64(n_eligible))), n_eligible)
                n_eligible -= 1
                guessed = guess[ahead] == client and guessed_task[ahead] == np.int64(tasks[client])
            starts += 1
            task = np.int64(tasks[client])
            tasks[client] = task + 1
            slots[slot, _WHO] = client | (task << _TASK_SHIFT)
            wait, duration = delays[0, ahead], delays[1, ahead]
            if not guessed:
                wait, duration = wait_of(plan, client, task), duration_of(plan, client, task)  # type: ignore[arg-type]
            if now + wait > now:
                _put_in_slot(slots, slot, version, bits_of(duration), USED, WAITING)
                _replace_top(heap, end, bits_of(now + wait), _START | (created << _SHIFT) | np.uint64(slot))
                created += _U1
                continue
        failed = plan.recorded and plan.row_ok[recorded_row(plan, client, task)] == 0
        ends, status = now + duration, FAILED if failed else USED
        if ends > now + plan.timeout:
            ends, status = now + plan.timeout, TIMED_OUT
        _put_in_slot(slots, slot, version, time, status, RUNNING)
        started += 1
        _replace_top(heap, end, bits_of(ends), (created << _SHIFT) | np.uint64(slot))
        created += _U1
    _store(counters, fill, version, started, total_rows, quiet, starts, n_eligible, ahead_begin, reason)
    counters[_CREATED] = np.int64(created)
    return rows, steps, reason


def is_plain(plan: Plan) -> bool:
    """Whether `PlainResolver` gives the rows of this plan."""
    if plan.mode not in (SLOT_IS_CLIENT, POOL) or not 0 < plan.n_slots <= min(plan.n_clients, 1 << _SLOT_BITS):
        return False
    if any(getattr(plan, name) != value for name, value in NEUTRAL.items()):
        return False
    return not plan.recorded or (plan.wrap and bool((np.diff(plan.row_offsets) > 0).all()))


class PlainResolver:
    """A schedule as it is made."""

    rows_needed = 1

    def __init__(self, plan: Plan) -> None:
        self._plan = viewed(plan)
        n, n_slots = plan.n_clients, plan.n_slots
        counters = np.zeros(_N_COUNTERS, np.int64)
        counters[_CREATED], counters[_N_ELIGIBLE], counters[_REASON] = n_slots, n, FULL
        counters[_AHEAD_BEGIN] = -_BATCH
        self._state = _State(
            counters=counters,
            heap=_first_requests(n_slots),
            slots=np.zeros((n_slots, 4), np.int64),
            eligible=np.arange(n if plan.mode == POOL else 0, dtype=np.int32),
            tasks=np.zeros(n, np.uint32),
            words=np.zeros(_BATCH, np.uint64),
            guess=np.full(_BATCH, -1, np.int64),
            task=np.zeros(_BATCH, np.int64),
            delays=np.zeros((3, _BATCH)),
        )

    def run(self, columns: Columns) -> tuple[int, int, int]:
        if self._state.counters[_CREATED] + 2 * _EVENTS_PER_CALL >= 1 << _NUMBER_BITS:
            raise ValueError("schedule: expected at most 68,719,476,735 events")
        made: tuple[int, int, int] = _run(self._plan, self._state, columns)
        return made

    def in_flight(self) -> Any:
        slots = self._state.slots
        running = slots[slots[:, _STATUS] >> _STATE_SHIFT == RUNNING]
        client = (running[:, _WHO] & _CLIENT_MASK).astype(np.int32)
        task = (running[:, _WHO] >> _TASK_SHIFT).astype(np.uint32)
        return client, task, running[:, _VERSION].copy(), running[:, _START_BITS].copy().view(np.float64)

    @property
    def started(self) -> int:
        return int(self._state.counters[_STARTED])


def viewed(plan: Plan) -> Plan:
    """The plan with read-only views, so that Numba compiles for one type of plan."""
    arrays: dict[str, Any] = {
        name: reads(value) for name, value in plan._asdict().items() if isinstance(value, np.ndarray)
    }
    return plan._replace(**arrays)


def _first_requests(n_slots: int) -> Any:
    """Every slot asks at time 0, in this order; behind them entries that are later than every event."""
    n_words = 2 * ((_ROOT + n_slots + 3) // 4 * 4 + 4)
    room = np.full(n_words + 8, 2**64 - 1, np.uint64)
    heap = room[-(room.ctypes.data // 8) % 8 :][:n_words]  # begins with a line of the cache
    slot = np.arange(n_slots, dtype=np.uint64)
    heap[2 * _ROOT : 2 * (_ROOT + n_slots) : 2] = 0
    heap[2 * _ROOT + 1 : 2 * (_ROOT + n_slots) : 2] = _START | (slot << _SHIFT) | slot
    return heap
