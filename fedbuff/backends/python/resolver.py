"""The rules of the event loop that turns delays into a schedule, and what a plan says about clients and tasks.

`event_loop.EventLoop` is the specification of every other resolver: the one in C++ gives the same rows, and Numba
compiles that very source for where nothing else was (numba/resolver.py).

Rules:
- Events happen in the order (time, kind, creation). Kinds: a task ends; (a tick;) a task starts or a slot asks for a
  client; waiting slots are tried again because a window opened.
- A slot that asks gets a client and that client's next task number; the task starts after its wait, and where there are
  windows not before one is open. The version is pinned at the start.
- A client is eligible if it is idle, available and has tasks left. The eligible ones stand in an array, at first by
  number: one that becomes eligible goes to its end, one that no longer is is replaced by the last. A start draws a
  place. Before a draw and before a client is released, those whose windows opened or closed are brought up to date, in
  the order of the times at which they first did.
- With another selection the next client is the eligible one with the lowest number after the one drawn last, and
  around; the one idle for longest, at first by number; or drawn with probability in proportion to the given ones.
- A slot that finds nobody eligible waits in line. The line is served, oldest first, whenever a slot asks or a window
  opens. In the open loop a start that finds nobody is lost.
- A slot that becomes free asks at once (refill = 1), when the server steps (0), or when `refill` slots are open; and
  where nothing else would ever happen. Those that ask together go in the order in which they became free.
- The tick of max_wait is the first of last step + k max_wait, k = 1, 2, ..., from the buffer's first arrival on, that
  of step_period the first of k step_period; an empty buffer lets its ticks pass. With restart, or refill 0, every tick
  of step_period happens: one that finds an empty buffer stops the running tasks, or refills, without a step.
- A step that makes version v stops the running tasks of versions up to v - stop_stale (`restart` is stop_stale = 1), in
  the order of their starts, before anything else happens: their rows come behind the step. Each client of them, if it
  has a task left, keeps its slot and asks for its next task at that time; else the slot asks for a client.
- trigger EVERY_CLIENT steps when buffer_size have arrived and the harmonic mean over all clients of their arrivals
  in the buffer is at least per_client. RINGLEADER collects until that mean is reached, without a step; then each
  client's next arrival makes a step, and what others send meanwhile counts for the next collection.
- With queues every available client with tasks left is eligible, busy or not. A task starts as always, on the version
  of that time; if its client is busy it waits behind the tasks that were sent there before it, and the client turns to
  it at the first time, not before the end of the one before it, at which a window is open. That is the first thing that
  happens at that end. A timeout counts from when the client turns to the task.
- With server_time an upload that reached the server stands in one line, first in first out; the task ends when the
  server has handled it. What fails or times out does not join, a client with a queue turns to its next task when its
  upload joins, and one that is stopped leaves: the server turns to the next one before anything else.
- With an uplink the client's work is download and compute, which windows cut; then the upload is a transfer, which
  runs at min(1, uplink / m) of its speed alone while m are active (uplink.py). At one time transfers are complete, in
  the order of the work at which they end and then of their begins, before those that reach their deadline (begin of
  the work + timeout) are given up, and these before other ends.
- A task that can never end, because its client's windows are over, keeps its client for good. A round ends without it.
- Rows are written optimistically: an arrival in the buffer carries the step that it will enter. The rows of a buffer
  that is not full at the end are the caller's to mark.
- With distinct_clients, an arrival whose client is in the open buffer already does not happen yet: the task keeps its
  slot, and ends again at the time of the next server step, behind the arrivals of that time. Those that wait go in the
  order in which they came. One that is too stale by then is dropped, as at any arrival.
- The run ends at once when the last server step is made or the last arrival is in; a time horizon includes its end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..spec import Plan
from .philox import (
    STREAM_CLIENT_SELECTION,
    STREAM_DELAYS,
    philox_words,
    unit_double,
)
from .portable_math import (
    COMPONENT_COMPUTE,
    COMPONENT_DOWNLOAD,
    COMPONENT_SERVER,
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
# Plan.trigger: what makes a server step
BUFFER, EVERY_CLIENT, RINGLEADER = range(3)
# Plan.selection
UNIFORM, ROUND_ROBIN, LONGEST_IDLE, WEIGHTED = range(4)
# Plan.availability_policy
NO_WINDOWS, WAIT, PAUSE, ABORT = range(4)
# status
USED, LEFT_IN_BUFFER, TOO_STALE, DISCARDED, TIMED_OUT, FAILED, STOPPED = range(7)
# why a run ended; FULL: it did not, the columns are full
FULL, SERVER_STEPS, MAX_TIME, ARRIVALS, EXHAUSTED, STALLED = range(6)
# kinds of event, in the order of equal times
END, START, RETRY = range(3)
# state of a slot
FREE, WAITING, RESTARTING, RUNNING, SENDING, AT_SERVER, DONE = range(7)

EVENTS_PER_CALL = 4096  # so that a run hears of signals
_U0 = np.uint64(0)
_U32 = np.uint64(32)
MASK = np.uint64(0xFFFFFFFF)


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

    Where max_wait is too small to be added to `now`, or for k to be counted, every time is a tick.
    """
    if now + max_wait == now or (now - base) / max_wait >= 2.0**52:
        return now
    k = max(1.0, np.floor((now - base) / max_wait) - 1.0)
    while base + k * max_wait < now or (passed and base + k * max_wait == now):
        k += 1.0
    return base + k * max_wait


SERVER_LAW = 4  # its place behind the laws of a model


def draw_component(plan: Plan, component: int, client: int, task: int) -> Any:
    """One delay of a model; the bits of _portable_math.draw."""
    return draw_law(plan, component, component, client, task)


def draw_law(plan: Plan, law: int, component: int, client: int, task: int) -> Any:
    """A draw of the law at this place of the plan, under the component's counters."""
    kind = plan.kinds[law]
    p = plan.params[law]
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
    samples = plan.samples[plan.sample_offsets[law] : plan.sample_offsets[law + 1]]
    return float(draw_words(kind, p[0], p[1], samples, w0, w1, w2, w3))


def recorded_row(plan: Plan, client: int, task: int) -> Any:
    first = plan.row_offsets[client]
    return first + task % (plan.row_offsets[client + 1] - first)


def wait_of(plan: Plan, client: int, task: int) -> Any:
    if plan.recorded:
        return plan.row_wait[recorded_row(plan, client, task)]
    return draw_component(plan, COMPONENT_WAIT, client, task)


def server_time_of(plan: Plan, client: int, task: int) -> Any:
    return draw_law(plan, SERVER_LAW, COMPONENT_SERVER, client, task)


def upload_of(plan: Plan, client: int, task: int) -> Any:
    """What an upload takes alone, where uploads share a link."""
    if plan.recorded:
        return plan.row_upload[recorded_row(plan, client, task)]
    return draw_component(plan, COMPONENT_UPLOAD, client, task)


def duration_of(plan: Plan, client: int, task: int) -> Any:
    """What a task takes its client; without the upload where uploads share a link."""
    if plan.recorded:
        return plan.row_duration[recorded_row(plan, client, task)]
    compute = draw_component(plan, COMPONENT_COMPUTE, client, task)
    if len(plan.speed) > 0:
        compute = compute * plan.speed[client]
    download = draw_component(plan, COMPONENT_DOWNLOAD, client, task)
    if plan.uplink < np.inf:
        return download + compute
    return (download + compute) + draw_component(plan, COMPONENT_UPLOAD, client, task)


def tasks_left(plan: Plan, client: int, done: int) -> bool:
    if done >= plan.max_uses >= 0:
        return False
    if not plan.recorded:
        return True
    rows = plan.row_offsets[client + 1] - plan.row_offsets[client]
    return bool(done < rows or (plan.wrap and rows > 0))


def selection_word(plan: Plan, start: int, attempt: int) -> Any:
    s, a = np.uint64(start), np.uint64(attempt)
    w0, w1, _, _ = philox_words(plan.seed_low, plan.seed_high, s & MASK, s >> _U32, a, STREAM_CLIENT_SELECTION)
    return (w0 << _U32) | w1


def start_time_of(plan: Plan, previous: float, start: int) -> float:
    """When the open loop makes its start of this number."""
    if not plan.poisson:
        return start / plan.rate
    s = np.uint64(start)
    w0, w1, _, _ = philox_words(
        plan.seed_low, plan.seed_high, s & MASK, s >> _U32, np.uint64(COMPONENT_START), STREAM_DELAYS
    )
    return float(previous + (0.0 - log_positive(1.0 - unit_double(w0, w1))) / plan.rate)


def end_of_task(plan: Plan, client: int, task: int, start: float) -> Any:
    """When the work that its client begins at `start` ends, how, and whether something ends it before it is done.

    USED stands for an arrival.
    """
    status = USED
    cut = False
    if start == np.inf:
        return start, status, cut
    if plan.recorded and plan.row_ok[recorded_row(plan, client, task)] == 0:
        status = FAILED
    duration = duration_of(plan, client, task)
    end = work_until(plan, client, start, duration) if plan.availability_policy == PAUSE else start + duration
    if plan.availability_policy == ABORT:
        close = close_of(plan, client, start)
        if end > close:
            end = close
            status = FAILED
            cut = True
    if end > start + plan.timeout:
        end = start + plan.timeout
        status = TIMED_OUT
        cut = True
    return end, status, cut
