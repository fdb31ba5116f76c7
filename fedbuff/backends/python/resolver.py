"""The event loop that turns delays into a schedule, in plain Python: the specification of every other resolver.

`resolve` is a generator: it fills the columns it was given and yields when they are full, and at the end. The resolver
in C++ gives the same rows, and Numba compiles this very source for where nothing else was (numba/resolver.py).

Rules:
- Events happen in the order (time, kind, creation). Kinds: a task ends; (the time trigger;) a task starts or a slot
  asks for a client; waiting slots are tried again because a window opened.
- A slot that asks gets a client and that client's next task number; the task starts after its wait, and where there are
  windows not before one is open. The version is pinned at the start.
- A slot that finds nobody eligible waits in line. The line is served, oldest first, whenever a slot asks or a window
  opens. In the open loop a start that finds nobody is lost.
- The time trigger is the first tick, last step + k max_wait with k = 1, 2, ..., from the buffer's first arrival on; an
  empty buffer lets its ticks pass.
- A task that can never end, because its client's windows are over, keeps its client for good. A round ends without it.
- Rows are written optimistically: an arrival in the buffer carries the step that it will enter. The rows of a buffer
  that is not full at the end are the caller's to mark.
- With distinct_clients, an arrival whose client is in the open buffer already does not happen yet: the task keeps its
  slot, and ends again at the time of the next server step, behind the arrivals of that time. Those that wait go in the
  order in which they came. One that is too stale by then is dropped, as at any arrival.
- The run ends at once when the last server step is made or the last arrival is in; a time horizon includes its end.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..spec import Columns, Integers, Plan, new_columns
from .philox import (
    STREAM_CLIENT_SELECTION,
    STREAM_DELAYS,
    multiply_high,
    philox_words,
    unit_double,
)
from .portable_math import (
    COMPONENT_COMPUTE,
    COMPONENT_DOWNLOAD,
    COMPONENT_START,
    COMPONENT_UPLOAD,
    COMPONENT_WAIT,
    TRUNCATED_NORMAL_ATTEMPTS,
    draw_words,
    log_positive,
    standard_normal,
)

# Plan.mode
SLOT_IS_CLIENT, POOL, OPEN_LOOP, ROUNDS = range(4)
# Plan.if_busy, for the open loop
REDRAW, SKIP, OVERLAP = range(3)
# Plan.availability_policy
NO_WINDOWS, WAIT, PAUSE, ABORT = range(4)
# status
USED, LEFT_IN_BUFFER, TOO_STALE, DISCARDED, TIMED_OUT, FAILED, IN_FLIGHT = range(7)
# why a run ended; FULL: it did not, the columns are full
FULL, SERVER_STEPS, MAX_TIME, ARRIVALS, EXHAUSTED, STALLED = range(6)
# kinds of event, in the order of equal times
END, START, RETRY = range(3)
# state of a slot
FREE, WAITING, RUNNING = range(3)

ATTEMPTS = 64
EVENTS_PER_TURN = 4096  # between two yields, where no column is full, so that a run hears of signals
_U0 = np.uint64(0)
_U32 = np.uint64(32)
_MASK = np.uint64(0xFFFFFFFF)


def period_of(plan: Plan, client: int) -> Any:
    return plan.period[client] if len(plan.period) > 0 else 0.0


def window_end(plan: Plan, client: int, window: int, cycle: float) -> Any:
    """When this window of this cycle ends. The end of a period is the begin of the next one, to the bit."""
    period = period_of(plan, client)
    end = plan.window_end[window]
    return (cycle + 1.0) * period if end == period else cycle * period + end


def window_at(plan: Plan, client: int, time: float) -> Any:
    """Index of the client's first window that ends after `time`, and the number of the cycle (a float)."""
    cycle = 0.0
    period = period_of(plan, client)
    if period > 0.0:
        cycle = np.floor(time / period)
        if cycle * period > time:
            cycle -= 1.0
        elif (cycle + 1.0) * period <= time:
            cycle += 1.0
    low, high = plan.window_offsets[client], plan.window_offsets[client + 1]
    while low < high:
        middle = (low + high) // 2
        if window_end(plan, client, middle, cycle) > time:
            high = middle
        else:
            low = middle + 1
    return low, cycle


def next_open(plan: Plan, client: int, time: float) -> Any:
    """The earliest time from `time` on when the client is available; infinite where there is none."""
    if plan.availability_policy == NO_WINDOWS or time == np.inf:
        return time
    first, last = plan.window_offsets[client], plan.window_offsets[client + 1]
    window, cycle = window_at(plan, client, time)
    if window < last:
        return max(time, cycle * period_of(plan, client) + plan.window_begin[window])
    if len(plan.period) > 0 and first < last:
        return max(time, (cycle + 1.0) * period_of(plan, client) + plan.window_begin[first])
    return np.inf


def available(plan: Plan, client: int, time: float) -> bool:
    return bool(next_open(plan, client, time) <= time)


def close_of(plan: Plan, client: int, time: float) -> Any:
    """When the window that the client is in at `time` closes; windows that touch across the period are one."""
    first, last = plan.window_offsets[client], plan.window_offsets[client + 1] - 1
    window, cycle = window_at(plan, client, time)
    if window > last:  # time is too large for its doubles to tell the windows of a period apart: they do not close
        return np.inf
    period = period_of(plan, client)
    if window == last and period > 0.0 and plan.window_end[last] == period and plan.window_begin[first] == 0.0:
        return np.inf if first == last else window_end(plan, client, first, cycle + 1.0)
    return window_end(plan, client, window, cycle)


def work_until(plan: Plan, client: int, start: float, duration: float) -> Any:
    """When work of this duration, begun inside a window, is done if it stops outside the windows.

    It goes on to the end of its window and of its cycle; then whole cycles are taken at once, by an exact remainder,
    and the last one, of which the work takes more than nothing and at most all, window by window.
    """
    close = close_of(plan, client, start)
    if start + duration <= close:
        return start + duration
    left = duration - (close - start)
    if left <= 0.0:
        return close
    first, end = plan.window_offsets[client], plan.window_offsets[client + 1]
    period = period_of(plan, client)
    window, cycle = window_at(plan, client, close)
    in_last_cycle = False
    while True:
        for w in range(window, end):
            length = plan.window_end[w] - plan.window_begin[w]
            if left <= length or (in_last_cycle and w == end - 1):
                done = (cycle * period + plan.window_begin[w]) + left
                return max(close, min(done, window_end(plan, client, w, cycle)))
            left -= length
        if period == 0.0:
            return np.inf
        per_cycle = 0.0
        for w in range(first, end):
            per_cycle += plan.window_end[w] - plan.window_begin[w]
        rest = np.fmod(left, per_cycle)
        if rest == 0.0:
            rest = per_cycle
        cycle += 1.0 + np.rint((left - rest) / per_cycle)
        left = rest
        window = first
        in_last_cycle = True


def next_tick(base: float, max_wait: float, now: float, passed: bool) -> Any:
    """The first of base + k max_wait, k = 1, 2, ..., that is not before `now`; after it where that of now has passed.

    Where max_wait is too small to be added to `now`, every time is a tick.
    """
    if now + max_wait == now:
        return now
    k = max(1.0, np.floor((now - base) / max_wait) - 1.0)
    while base + k * max_wait < now or (passed and base + k * max_wait == now):
        k += 1.0
    return base + k * max_wait


def draw_component(plan: Plan, component: int, client: int, task: int) -> Any:
    """One delay of a model; the bits of _portable_math.draw."""
    kind = plan.kinds[component]
    p = plan.params[component]
    c = np.uint64(client)
    k = np.uint64(task)
    if kind == 0:
        return p[0]
    if kind == 4:
        for block in range(TRUNCATED_NORMAL_ATTEMPTS):
            word = STREAM_DELAYS | np.uint64(block)
            w0, w1, w2, w3 = philox_words(plan.seed_low, plan.seed_high, c, k, np.uint64(component), word)
            x = p[0] + p[1] * standard_normal(w0, w1, w2, w3)
            if p[2] <= x <= p[3]:
                return float(x)
        return p[2] if p[0] < p[2] else p[3]
    w0, w1, w2, w3 = philox_words(plan.seed_low, plan.seed_high, c, k, np.uint64(component), STREAM_DELAYS)
    samples = plan.samples[plan.sample_offsets[component] : plan.sample_offsets[component + 1]]
    return float(draw_words(kind, p[0], p[1], samples, w0, w1, w2, w3))


def recorded_row(plan: Plan, client: int, task: int) -> Any:
    first = plan.row_offsets[client]
    return first + task % (plan.row_offsets[client + 1] - first)


def wait_of(plan: Plan, client: int, task: int) -> Any:
    if plan.recorded:
        return plan.row_wait[recorded_row(plan, client, task)]
    return draw_component(plan, COMPONENT_WAIT, client, task)


def duration_of(plan: Plan, client: int, task: int) -> Any:
    if plan.recorded:
        return plan.row_duration[recorded_row(plan, client, task)]
    compute = draw_component(plan, COMPONENT_COMPUTE, client, task)
    if len(plan.speed) > 0:
        compute = compute * plan.speed[client]
    download = draw_component(plan, COMPONENT_DOWNLOAD, client, task)
    return (download + compute) + draw_component(plan, COMPONENT_UPLOAD, client, task)


def tasks_left(plan: Plan, client: int, done: int) -> bool:
    if not plan.recorded:
        return True
    rows = plan.row_offsets[client + 1] - plan.row_offsets[client]
    return bool(done < rows or (plan.wrap and rows > 0))


def eligible(plan: Plan, client: int, tasks: Integers, busy: Integers, time: float) -> bool:
    if busy[client] > 0 and not (plan.mode == OPEN_LOOP and plan.if_busy == OVERLAP):
        return False
    # A round takes its clients from all; a task then waits for its window.
    return tasks_left(plan, client, tasks[client]) and (plan.mode == ROUNDS or available(plan, client, time))


def selection_word(plan: Plan, start: int, attempt: int) -> Any:
    s = np.uint64(start)
    w0, w1, _, _ = philox_words(
        plan.seed_low, plan.seed_high, s & _MASK, s >> _U32, np.uint64(attempt), STREAM_CLIENT_SELECTION
    )
    return (w0 << _U32) | w1


def draw_client(plan: Plan, start: int, tasks: Integers, busy: Integers, time: float) -> Any:
    """The client of start number `start`, uniform over the eligible ones; -1 where there is none."""
    n = np.uint64(plan.n_clients)
    skip = plan.mode == OPEN_LOOP and plan.if_busy == SKIP
    for attempt in range(1 if skip else ATTEMPTS):
        client: Any = np.int64(multiply_high(selection_word(plan, start, attempt), n))
        if eligible(plan, client, tasks, busy, time):
            return client
    if skip:
        return -1
    count = 0
    for client in range(plan.n_clients):
        if eligible(plan, client, tasks, busy, time):
            count += 1
    if count == 0:
        return -1
    rank: Any = np.int64(multiply_high(selection_word(plan, start, ATTEMPTS), np.uint64(count)))
    for client in range(plan.n_clients):
        if eligible(plan, client, tasks, busy, time):
            if rank == 0:
                return client
            rank -= 1
    return -1


def next_opening(plan: Plan, tasks: Integers, busy: Integers, time: float) -> float:
    """When the next idle client with tasks left becomes available."""
    earliest = np.inf
    if plan.availability_policy != NO_WINDOWS:
        for client in range(plan.n_clients):
            if busy[client] == 0 and tasks_left(plan, client, tasks[client]):
                earliest = min(earliest, next_open(plan, client, time))
    return earliest


def start_time_of(plan: Plan, previous: float, start: int) -> float:
    """When the open loop makes its start of this number."""
    if not plan.poisson:
        return start / plan.rate
    s = np.uint64(start)
    w0, w1, _, _ = philox_words(
        plan.seed_low, plan.seed_high, s & _MASK, s >> _U32, np.uint64(COMPONENT_START), STREAM_DELAYS
    )
    return float(previous + (0.0 - log_positive(1.0 - unit_double(w0, w1))) / plan.rate)


def end_of_task(plan: Plan, client: int, task: int, start: float) -> Any:
    """When a task started now ends, and how: USED stands for an arrival."""
    status = USED
    if plan.recorded and plan.row_ok[recorded_row(plan, client, task)] == 0:
        status = FAILED
    duration = duration_of(plan, client, task)
    end = work_until(plan, client, start, duration) if plan.availability_policy == PAUSE else start + duration
    if plan.availability_policy == ABORT:
        close = close_of(plan, client, start)
        if end > close:
            end = close
            status = FAILED
    if end > start + plan.timeout:
        end = start + plan.timeout
        status = TIMED_OUT
    return end, status


def resolve(plan: Plan, out: Columns) -> Iterator[tuple[int, int, int, float, int]]:
    """Yields (rows, steps, reason, time, tasks started on the last version) whenever `out` is full and at the end.

    After the end come the tasks in flight, as rows of status IN_FLIGHT, with reason FULL except on the last.
    """
    tasks = np.zeros(plan.n_clients, np.int64)  # started by each client
    busy = np.zeros(plan.n_clients, np.int64)  # tasks of each client that hold a slot
    spent = 0  # clients with no task left
    for client in range(plan.n_clients):
        if not tasks_left(plan, client, 0):
            spent += 1
    state = [FREE] * plan.n_slots
    client_of = [0] * plan.n_slots
    task_of = [0] * plan.n_slots
    version_of = [0] * plan.n_slots
    start_of = [0.0] * plan.n_slots
    status_of = [USED] * plan.n_slots
    endless = [False] * plan.n_slots  # rounds: the task of this slot never ends
    free_slots = [0][1:]
    line = [0][1:]  # slots that wait for a client, oldest first
    entered = np.full(plan.n_clients if plan.distinct_clients else 0, -1, np.int64)  # the last buffer of each client
    deferred = [0][1:]  # slots whose arrivals wait for the next buffer
    events = [(0.0, START, 0, -1)][1:]  # (time, kind, number of creation, slot)
    created = 0
    starts = 0
    if plan.mode == SLOT_IS_CLIENT or plan.mode == POOL:
        for slot in range(plan.n_slots):
            heapq.heappush(events, (0.0, START, created, slot))
            created += 1
    else:
        first = start_time_of(plan, 0.0, 0) if plan.mode == OPEN_LOOP else 0.0
        heapq.heappush(events, (first, START, created, -1))
        created += 1

    now = 0.0
    version = 0
    fill = 0
    started = 0
    live = 0  # slots taken
    retry_time = np.inf
    last_step = 0.0
    last_start = -1.0  # when a task or a request started last
    trigger = np.inf  # when the buffer, which is not empty, makes a step although it is not full
    total_rows = 0
    quiet = 0  # events since an arrival entered the buffer
    rows = 0
    steps = 0
    reason = FULL
    turn = 0
    turns = max(min(EVENTS_PER_TURN, (1 << 22) // plan.n_clients), 1)
    margin = plan.n_slots if plan.mode == ROUNDS else 1

    while True:
        turn += 1
        if rows + margin > len(out.client) or steps + 2 > len(out.step_time) or turn > turns:
            yield rows, steps, FULL, now, started
            rows = 0
            steps = 0
            turn = 0
        time = np.inf
        kind = END
        slot = -1
        if len(events) > 0:
            time, kind, _, slot = events[0]

        # The time trigger: after the arrivals and before the starts of its time.
        tied = trigger == time and trigger < np.inf and kind != END
        if trigger <= plan.max_time and (trigger < time or tied):
            now = trigger
            out.step_time[steps], out.started[steps], out.step_rows[steps] = now, started, total_rows
            steps += 1
            version, fill, started = version + 1, 0, 0
            last_step, trigger = now, np.inf
            for waiting in deferred:
                heapq.heappush(events, (now, END, created, waiting))
                created += 1
            deferred.clear()
            if version == plan.server_steps:
                reason = SERVER_STEPS
                break
            continue

        # A round whose last tasks never end is over.
        round_over = plan.mode == ROUNDS and live > 0 and time == np.inf
        if not round_over:
            if time == np.inf or time > plan.max_time:
                reason = MAX_TIME if plan.max_time < np.inf else EXHAUSTED
                break
            now = time
            heapq.heappop(events)
        quiet += 1
        if quiet > plan.stall_limit:
            reason = STALLED
            break

        if round_over or kind == END:
            if not round_over:
                client = client_of[slot]
                status = status_of[slot]
                staleness = version - version_of[slot]
                if status == USED and staleness > plan.max_staleness >= 0:
                    status = TOO_STALE
                if plan.distinct_clients and status == USED:
                    if entered[client] == version:
                        deferred.append(slot)
                        continue
                    entered[client] = version
                busy[client] -= 1
                live -= 1
                state[slot] = FREE
                out.client[rows], out.task[rows] = client, task_of[slot]
                out.version[rows], out.staleness[rows] = version_of[slot], staleness
                out.start_time[rows], out.arrive_time[rows] = start_of[slot], now
                out.step[rows], out.status[rows] = version if status == USED else -1, status
                rows += 1
                total_rows += 1
                if status == USED:
                    fill += 1
                    quiet = 0
                    if fill == 1 and plan.max_wait < np.inf:
                        trigger = next_tick(last_step, plan.max_wait, now, last_start == now)
            stepped = fill == plan.buffer_size
            if plan.mode == ROUNDS and (stepped or round_over or live == 0):
                stepped = fill > 0
                for other in range(plan.n_slots):
                    if state[other] != FREE:
                        if state[other] == WAITING:  # it did not start; it ends on the version of its round
                            start_of[other] = now
                            started += 1
                        client = client_of[other]
                        if not endless[other]:
                            busy[client] -= 1
                        state[other] = FREE
                        out.client[rows], out.task[rows] = client, task_of[other]
                        out.version[rows], out.staleness[rows] = version, 0
                        out.start_time[rows], out.arrive_time[rows] = start_of[other], now
                        out.step[rows], out.status[rows] = -1, DISCARDED
                        rows += 1
                        total_rows += 1
                live = 0
                events.clear()
                heapq.heappush(events, (now, START, created, -1))
                created += 1
            if stepped:
                out.step_time[steps], out.started[steps], out.step_rows[steps] = now, started, total_rows
                steps += 1
                version, fill, started = version + 1, 0, 0
                last_step, trigger = now, np.inf
                for waiting in deferred:
                    heapq.heappush(events, (now, END, created, waiting))
                    created += 1
                deferred.clear()
                if version == plan.server_steps:
                    reason = SERVER_STEPS
                    break
            if total_rows >= plan.arrivals >= 0:
                reason = ARRIVALS
                break
            if plan.mode == SLOT_IS_CLIENT or plan.mode == POOL:
                heapq.heappush(events, (now, START, created, slot))
                created += 1
            elif plan.mode == OPEN_LOOP:
                free_slots.append(slot)
            continue

        last_start = now
        if kind == START and slot >= 0 and state[slot] == WAITING:
            state[slot] = RUNNING
            version_of[slot], start_of[slot] = version, now
            started += 1
            end, status_of[slot] = end_of_task(plan, client_of[slot], task_of[slot], now)
            endless[slot] = end == np.inf
            heapq.heappush(events, (end, END, created, slot))
            created += 1
            continue

        # A client is asked for: by a slot, a round, a start of the open loop, or the line again.
        if kind == RETRY:
            retry_time = np.inf
        elif plan.mode == POOL:
            line.append(slot)
        wanted = 1
        if plan.mode == POOL:
            wanted = len(line)
        elif plan.mode == ROUNDS:
            wanted = plan.n_slots
        for served in range(wanted):
            if plan.mode == SLOT_IS_CLIENT:
                client = slot if tasks_left(plan, slot, tasks[slot]) else -1
            else:
                client = draw_client(plan, starts, tasks, busy, now)
            if client < 0:
                break
            if plan.mode == POOL:
                slot = line.pop(0)
            elif plan.mode == ROUNDS:
                slot = served
            elif plan.mode == OPEN_LOOP and len(free_slots) > 0:
                slot = free_slots.pop()
            elif plan.mode == OPEN_LOOP:
                slot = len(state)
                state.append(FREE)
                client_of.append(0)
                task_of.append(0)
                version_of.append(0)
                start_of.append(0.0)
                status_of.append(USED)
                endless.append(False)
            if plan.mode != OPEN_LOOP:
                starts += 1
            task = tasks[client]
            tasks[client] += 1
            if not tasks_left(plan, client, tasks[client]):
                spent += 1
            busy[client] += 1
            live += 1
            client_of[slot], task_of[slot] = client, task
            begin = next_open(plan, client, now + wait_of(plan, client, task))
            endless[slot] = begin == np.inf
            if begin > now:
                state[slot] = WAITING
                heapq.heappush(events, (begin, START, created, slot))
            else:
                state[slot] = RUNNING
                version_of[slot], start_of[slot] = version, now
                started += 1
                end, status_of[slot] = end_of_task(plan, client, task, now)
                endless[slot] = end == np.inf
                heapq.heappush(events, (end, END, created, slot))
            created += 1
        if plan.mode == OPEN_LOOP:
            starts += 1
            if spent < plan.n_clients:
                heapq.heappush(events, (start_time_of(plan, now, starts), START, created, -1))
                created += 1
        elif plan.mode == POOL and len(line) > 0:
            opening = next_opening(plan, tasks, busy, now)
            if opening < retry_time:
                heapq.heappush(events, (opening, RETRY, created, -1))
                created += 1
                retry_time = opening

    for slot in range(len(state)):
        if state[slot] == RUNNING:
            if rows == len(out.client):
                yield rows, steps, FULL, now, started
                rows = 0
                steps = 0
            out.client[rows], out.task[rows] = client_of[slot], task_of[slot]
            out.version[rows], out.start_time[rows] = version_of[slot], start_of[slot]
            out.status[rows] = IN_FLIGHT
            rows += 1
    yield rows, steps, reason, now, started


class GeneratorResolver:
    """`resolve`, or its compiled form, behind the interface of the C++ resolver."""

    def __init__(self, plan: Plan, generator: Callable[[Plan, Columns], Iterator[Any]], chunk: int = 4096) -> None:
        rows = max(chunk, plan.n_slots)
        self._out = new_columns(rows, rows + 2)
        self._arrays: list[npt.NDArray[Any]] = list(self._out)
        self._chunks = generator(plan, self._out)
        self._rows = self._steps = 0  # at hand
        self._row = self._step = 0  # of them, given out
        self._given = 0
        self._reason = FULL
        self._flying: list[Any] = []
        self.started = 0
        self.rows_needed = max(plan.n_slots, 1) if plan.mode == ROUNDS else 1

    def run(self, columns: Columns) -> tuple[int, int, int]:
        if self._row == self._rows and self._step == self._steps and self._reason == FULL:
            self._advance()
        out = self._out
        rows = min(self._rows - self._row, len(columns.client))
        until = self._given + rows
        due = int(np.searchsorted(out.step_rows[self._step : self._steps], until, side="right"))
        steps = min(due, len(columns.step_time))
        for name in Columns._fields:
            n, begin = (steps, self._step) if name in ("step_time", "started", "step_rows") else (rows, self._row)
            getattr(columns, name)[:n] = getattr(out, name)[begin : begin + n]
        self._row += rows
        self._step += steps
        self._given = until
        done = self._row == self._rows and self._step == self._steps
        return rows, steps, self._reason if done else FULL

    def _advance(self) -> None:
        """Runs to the next full set of columns; at the end, takes in all the tasks in flight."""
        rows, steps, reason, _, self.started = next(self._chunks)
        flying = np.flatnonzero(self._out.status[:rows] == IN_FLIGHT)
        self._rows, self._steps, self._row, self._step = rows - flying.size, steps, 0, 0
        self._reason = reason
        if flying.size == 0:
            return
        held = [array.copy() for array in self._arrays]
        while True:
            at = np.flatnonzero(self._out.status[:rows] == IN_FLIGHT)
            taken = (self._out.client, self._out.task, self._out.version, self._out.start_time)
            self._flying.append([column[at].copy() for column in taken])
            if reason != FULL:
                break
            rows, _, reason, _, self.started = next(self._chunks)
        self._reason = reason
        for array, kept in zip(self._arrays, held, strict=True):
            array[:] = kept

    def in_flight(self) -> tuple[Any, Any, Any, Any]:
        """client, task, version and start_time of the tasks in flight."""
        if not self._flying:
            out = self._out
            return out.client[:0].copy(), out.task[:0].copy(), out.version[:0].copy(), out.start_time[:0].copy()
        client, task, version, start = (np.concatenate(column) for column in zip(*self._flying, strict=True))
        return client, task, version, start
