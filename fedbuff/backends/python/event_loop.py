"""The event loop of the specification: its state, and what each event does. The rules are said in resolver.py.

`EventLoop` is plain Python; Numba compiles this very source (numba/resolver.py), so its attributes keep their types.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import numpy.typing as npt

from ..spec import Columns, Floats, Plan
from .hearing import Hearing
from .philox import multiply_high, unit_double
from .resolver import (
    ARRIVALS,
    AT_SERVER,
    BUFFER,
    DISCARDED,
    DONE,
    END,
    EVENTS_PER_CALL,
    EXHAUSTED,
    FREE,
    FULL,
    LONGEST_IDLE,
    MASK,
    MAX_TIME,
    NO_WINDOWS,
    OPEN_LOOP,
    OVERLAP,
    POOL,
    RESTARTING,
    RETRY,
    ROUND_ROBIN,
    ROUNDS,
    RUNNING,
    SENDING,
    SERVER_STEPS,
    SKIP,
    SLOT_IS_CLIENT,
    STALLED,
    START,
    STOPPED,
    TIMED_OUT,
    TOO_STALE,
    UNIFORM,
    USED,
    WAITING,
    WEIGHTED,
    close_of,
    end_of_task,
    next_open,
    next_tick,
    selection_word,
    server_time_of,
    start_time_of,
    tasks_left,
    upload_of,
    wait_of,
)
from .uplink import Uplink
from .weighted_clients import WeightedClients


def new_slots() -> list[int]:
    """An empty list of slots."""
    return []


def new_events() -> list[tuple[float, int, int, int]]:
    """An empty heap of events: time, kind, number of creation, slot (-1: of no slot)."""
    return []


def new_boundaries() -> list[tuple[float, int]]:
    """An empty heap of times and clients."""
    return []


def new_keys() -> list[tuple[int, int]]:
    """An empty heap of keys and clients."""
    return []


def new_hearing(trigger: int, n_clients: int, per_client: float) -> Hearing:
    return Hearing(trigger, n_clients, per_client)


def new_uplink(capacity: float, n_slots: int) -> Uplink:
    return Uplink(capacity, n_slots)


def new_weighted_clients(weight: Floats) -> WeightedClients:
    return WeightedClients(weight)


def longer(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values, and as many zeros again."""
    return np.concatenate((values, np.zeros_like(values)))


class EventLoop:
    """A schedule as it is made. `run` fills columns and says why it stopped; after FULL it goes on."""

    def __init__(self, plan: Plan) -> None:
        n, slots = plan.n_clients, max(plan.n_slots, 1)
        self.plan = plan
        self.tasks = np.zeros(n, np.int64)  # started by each client
        self.busy = np.zeros(n, np.int64)  # tasks of each client that hold a slot
        self.spent = 0  # clients with no task left
        for client in range(n):
            if not tasks_left(plan, client, 0):
                self.spent += 1

        self.state = np.zeros(slots, np.int64)
        self.client_of = np.zeros(slots, np.int64)
        self.task_of = np.zeros(slots, np.int64)
        self.version_of = np.zeros(slots, np.int64)
        self.start_of = np.zeros(slots, np.float64)
        self.status_of = np.zeros(slots, np.int64)
        self.endless = np.zeros(slots, np.bool_)  # the task of this slot never ends
        self.event_of = np.zeros(slots, np.int64)  # the number of its event; others of this slot do not happen
        self.n_slots = plan.n_slots  # of the open loop: made so far
        self.free_slots = new_slots()  # of the open loop
        self.line = new_slots()  # slots that wait for a client, oldest first
        self.open_slots = new_slots()  # slots that wait to be refilled, in the order in which they became free
        self.running = new_slots()  # where tasks are stopped: the slots of running ones, in the order of their starts
        self.stops = plan.stop_stale > 0

        queued = n if plan.queues else 0  # where a client has a queue: the tasks that it was sent and has not ended
        self.first_of = np.full(queued, -1, np.int64)  # the slot of the one it works on, -1 where it is idle,
        self.last_of = np.full(queued, -1, np.int64)  # and of the one sent last
        self.before = np.full(slots, -1, np.int64)  # by slot: those of the same client sent before and after it
        self.behind = np.full(slots, -1, np.int64)

        self.is_shared = plan.uplink < np.inf  # uploads are transfers that share a link
        self.has_parts = self.is_shared or plan.server_time  # a task has events before it ends
        self.uplink = new_uplink(plan.uplink, slots if self.is_shared else 0)
        self.turn_of = np.zeros(slots, np.float64)  # when the client began to work on the task of this slot
        self.cut = np.zeros(slots, np.bool_)  # and whether its work ends before it is done
        self.server_line = new_slots()  # slots whose uploads have reached the server, which handles the first

        distinct = n if plan.distinct_clients else 0
        self.entered = np.full(distinct, -1, np.int64)  # the last buffer of each client
        self.deferred = new_slots()  # slots whose arrivals wait for the next buffer
        self.hearing = new_hearing(plan.trigger, n, plan.per_client)

        self.eligible = np.zeros(n, np.int64)  # idle and available clients with tasks left: the first n_eligible,
        self.place = np.full(n, -1, np.int64)  # and where each stands in it; -1 where it does not
        self.n_eligible = 0
        drawn = plan.mode == POOL or plan.mode == OPEN_LOOP  # a task of a round waits for its window
        keyed = plan.selection == ROUND_ROBIN or plan.selection == LONGEST_IDLE
        self.key = np.arange(n if keyed else 0)  # by client: the smallest of an eligible one is next
        self.order = new_keys()  # keys and clients; those that do not count any more are passed over
        # longest idle: of the next client that becomes idle; round robin: of the last one drawn, plus 1
        self.next_key = n if plan.selection == LONGEST_IDLE else 0
        self.weights = new_weighted_clients(plan.probability)
        self.has_windows = drawn and plan.availability_policy != NO_WINDOWS
        self.open = np.ones(n, np.bool_)  # inside a window, until the client's boundary
        self.tracked = np.zeros(n, np.bool_)  # the client's boundary is among those to come
        self.boundaries = new_boundaries()

        self.events = new_events()
        self.created = 0
        self.starts = 0
        self.live = 0  # slots taken
        self.now = 0.0
        self.version = 0
        self.fill = 0
        self.started = 0
        self.retry_time = np.inf
        self.last_step = 0.0
        self.last_start = -1.0  # when a task or a request started last
        self.trigger = np.inf  # when the buffer, which is not empty, makes a step although it is not full
        self.always_ticks = plan.step_period < np.inf and (plan.restart or plan.refill == 0)
        self.tick = plan.step_period if self.always_ticks else np.inf  # the next tick of those that always happen
        self.stop_until = -1  # running tasks of versions up to this are stopped before anything else happens
        self.total_rows = 0
        self.quiet = 0  # events since an arrival entered the buffer; where all clients must be heard: since a step
        self.rows, self.steps = 0, 0  # written in this call
        self.reason = FULL
        self.rows_needed = max(plan.n_slots, 1) if plan.mode == ROUNDS else 1

        self.ask_first()

    def ask_first(self) -> None:
        """The first eligible clients, and the first events."""
        plan = self.plan
        for client in range(plan.n_clients):
            self.update(client)
        if plan.mode == SLOT_IS_CLIENT or plan.mode == POOL:
            for slot in range(plan.n_slots):
                self.put(0.0, START, slot)
        else:
            self.put(start_time_of(plan, 0.0, 0) if plan.mode == OPEN_LOOP else 0.0, START, -1)

    def run(self, out: Columns) -> Any:
        """Rows, steps and reason. A call handles a bounded number of events."""
        self.rows = 0
        self.steps = 0
        left = max(min(EVENTS_PER_CALL, (1 << 22) // self.plan.n_clients), 1)
        while left > 0 and self.reason == FULL:
            if self.rows + self.rows_needed > len(out.client) or self.steps + 2 > len(out.step_time):
                break
            self.advance(out)
            left -= 1
        return self.rows, self.steps, self.reason

    def in_flight(self) -> Any:
        """client, task, version and start_time of the tasks in flight."""
        at = np.flatnonzero(self.state >= RUNNING)
        client, task = self.client_of[at].astype(np.int32), self.task_of[at].astype(np.uint32)
        return client, task, self.version_of[at], self.start_of[at]

    # Events

    def put(self, time: float, kind: int, slot: int) -> None:
        if slot >= 0:
            self.event_of[slot] = self.created
        heapq.heappush(self.events, (time, kind, self.created, slot))
        self.created += 1

    def next_event(self) -> tuple[float, int, int]:
        """Time, kind and slot of the event that comes next; infinite where there is none."""
        while len(self.events) > 0:
            time, kind, number, slot = self.events[0]
            if slot < 0 or self.event_of[slot] == number:
                return time, kind, slot
            heapq.heappop(self.events)
        return np.inf, END, -1

    def is_stalled(self) -> bool:
        """Counts what happens while nothing arrives in the buffer, or no step is made where all must be heard."""
        self.quiet += 1
        if self.quiet > self.plan.stall_limit:
            self.reason = STALLED
        return self.reason == STALLED

    def advance(self, out: Columns) -> None:
        """What comes next: a task is stopped, a tick, or an event."""
        plan = self.plan
        if self.stop_until >= 0:
            self.stop_next(out)
            return
        time, kind, slot = self.next_event()
        is_upload = False
        if self.is_shared and self.uplink.active > 0:
            sent = self.uplink.next_time()
            is_upload = sent <= time
            if is_upload:
                time, kind = sent, END
        due = min(self.trigger, self.tick)
        if due <= plan.max_time and (due < time or (due == time and due < np.inf and kind != END)):
            self.on_tick(out, due)
            return
        if time == np.inf and due == np.inf and len(self.open_slots) > 0:  # nothing else would ever happen
            self.refill()
            return
        # A round whose last tasks never end is over.
        round_over = plan.mode == ROUNDS and self.live > 0 and time == np.inf
        if not round_over and (time == np.inf or time > plan.max_time):
            self.reason = MAX_TIME if plan.max_time < np.inf else EXHAUSTED
            return
        if not round_over:
            self.now = time
            if not is_upload:
                heapq.heappop(self.events)
        if self.is_stalled():
            return
        if round_over:
            self.end_round(out)
            self.after_end(out, self.fill > 0)
        elif is_upload:
            self.on_upload(out)
        elif kind == END:
            self.on_part(out, slot)
        else:
            self.on_start(kind, slot)

    def on_tick(self, out: Columns, due: float) -> None:
        """After the arrivals and before the starts of its time."""
        plan = self.plan
        self.now = due
        is_period = due == self.tick
        if is_period:
            self.tick = next_tick(0.0, plan.step_period, due, True)
        if self.fill > 0:
            self.make_step(out)
        elif not self.is_stalled() and is_period:
            if plan.restart:
                self.stop_until = self.version
            if plan.refill == 0:
                self.refill()

    def on_part(self, out: Columns, slot: int) -> None:
        """The client has done its work, or the server has handled the upload."""
        if self.has_parts and self.state[slot] == RUNNING and not self.cut[slot]:
            if self.is_shared:
                self.state[slot] = SENDING
                size = upload_of(self.plan, self.client_of[slot], self.task_of[slot])
                self.uplink.join(slot, self.now, size, self.turn_of[slot] + self.plan.timeout)
                return
            if self.joins_server(slot):
                return
        self.on_end(out, slot)

    def on_upload(self, out: Columns) -> None:
        """A transfer is complete, or given up."""
        slot, complete = self.uplink.take()
        self.state[slot] = RUNNING
        if not complete:
            self.status_of[slot] = TIMED_OUT
        elif self.joins_server(slot):
            return
        self.on_end(out, slot)

    def on_end(self, out: Columns, slot: int) -> None:
        plan = self.plan
        client = self.client_of[slot]
        status = self.status_of[slot]
        staleness = self.version - self.version_of[slot]
        if status == USED and staleness > plan.max_staleness >= 0:
            status = TOO_STALE
        if plan.distinct_clients and status == USED:
            if self.entered[client] == self.version:
                self.deferred.append(slot)
                if self.state[slot] == AT_SERVER:
                    self.leave_server(slot)
                self.state[slot] = DONE
                return
            self.entered[client] = self.version
        self.leave(slot)
        self.release(client)
        self.write(out, slot, staleness, status)
        steps = self.enter(client) if status == USED else False
        if plan.mode == ROUNDS and (steps or self.live == 0):
            self.end_round(out)
            steps = self.fill > 0
        closed = plan.mode == SLOT_IS_CLIENT or plan.mode == POOL
        if closed and plan.refill != 1:
            self.open_slots.append(slot)
        self.after_end(out, steps)
        if self.reason != FULL:
            return
        if closed and plan.refill == 1:
            self.put(self.now, START, slot)
        elif closed and len(self.open_slots) >= plan.refill > 1:
            self.refill()
        elif plan.mode == OPEN_LOOP:
            self.free_slots.append(slot)

    def after_end(self, out: Columns, steps: bool) -> None:
        if steps:
            self.make_step(out)
        if self.reason == FULL and self.total_rows >= self.plan.arrivals >= 0:
            self.reason = ARRIVALS

    def leave(self, slot: int) -> None:
        """The task of the slot is over; its client turns to the next one in its queue."""
        self.live -= 1
        state = self.state[slot]
        self.state[slot] = FREE
        if self.stops:
            self.running.remove(slot)
        if state == SENDING:
            self.uplink.leave(slot, self.now)
        if state == AT_SERVER:
            self.leave_server(slot)
        elif self.plan.queues:
            self.leave_queue(slot)

    def write(self, out: Columns, slot: int, staleness: int, status: int) -> None:
        at = self.rows
        out.client[at], out.task[at] = self.client_of[slot], self.task_of[slot]
        out.version[at], out.staleness[at] = self.version_of[slot], staleness
        out.start_time[at], out.arrive_time[at] = self.start_of[slot], self.now
        out.step[at], out.status[at] = self.version if status == USED else -1, status
        self.rows += 1
        self.total_rows += 1

    # The server

    def enter(self, client: int) -> bool:
        """An arrival enters the buffer; whether the server steps with it."""
        plan = self.plan
        self.fill += 1
        if plan.trigger == BUFFER:
            self.quiet = 0
        if self.fill == 1:
            passed = self.last_start == self.now
            if plan.max_wait < np.inf:
                self.trigger = next_tick(self.last_step, plan.max_wait, self.now, passed)
            if plan.step_period < np.inf and not self.always_ticks:
                self.trigger = min(self.trigger, next_tick(0.0, plan.step_period, self.now, passed))
        if plan.trigger == BUFFER:
            return self.fill == plan.buffer_size
        return self.hearing.enter(client, self.fill, plan.buffer_size)

    def make_step(self, out: Columns) -> None:
        plan = self.plan
        at = self.steps
        out.step_time[at], out.started[at], out.step_rows[at] = self.now, self.started, self.total_rows
        self.steps += 1
        self.version += 1
        self.fill = 0
        self.started = 0
        self.last_step = self.now
        self.trigger = np.inf
        self.quiet = 0
        self.hearing.on_step()
        if self.version == plan.server_steps:
            self.reason = SERVER_STEPS
            return
        if self.stops:
            self.stop_until = max(self.version - plan.stop_stale, -1)
        for waiting in self.deferred:
            if not self.stops or self.version_of[waiting] > self.stop_until:
                self.put(self.now, END, waiting)
        self.deferred.clear()
        if plan.refill == 0:
            self.refill()

    def end_round(self, out: Columns) -> None:
        """Discards what is left of the round and asks for the next one."""
        for slot in range(self.plan.n_slots):
            if self.state[slot] != FREE:
                if self.state[slot] == WAITING:  # it starts and ends here
                    self.start_of[slot] = self.now
                    self.started += 1
                self.version_of[slot] = self.version
                if not self.endless[slot]:
                    self.release(self.client_of[slot])
                self.state[slot] = FREE
                self.write(out, slot, 0, DISCARDED)
        self.live = 0
        self.events.clear()
        self.uplink.clear()
        self.server_line.clear()
        self.put(self.now, START, -1)

    def stop_next(self, out: Columns) -> None:
        """Stops the running task that started first, if it is one of those to stop; its client starts again."""
        if len(self.running) == 0 or self.version_of[self.running[0]] > self.stop_until:
            self.stop_until = -1
            return
        if self.is_stalled():
            return
        slot = self.running[0]
        client = self.client_of[slot]
        self.leave(slot)
        self.write(out, slot, self.version - self.version_of[slot], STOPPED)
        if tasks_left(self.plan, client, self.tasks[client]):
            self.state[slot] = RESTARTING
        else:
            self.release(client)
        self.put(self.now, START, slot)
        if self.total_rows >= self.plan.arrivals >= 0:
            self.reason = ARRIVALS

    # Starts

    def refill(self) -> None:
        """Open slots ask for clients, in the order in which they became free."""
        for slot in self.open_slots:
            self.put(self.now, START, slot)
        self.open_slots.clear()

    def on_start(self, kind: int, slot: int) -> None:
        """A task starts after its wait, or a client is asked for: by a slot, a round, the open loop, or the line."""
        plan = self.plan
        self.last_start = self.now
        if slot >= 0 and self.state[slot] == WAITING:
            self.begin(slot)
            return
        if slot >= 0 and self.state[slot] == RESTARTING:
            self.assign(self.client_of[slot], slot)
            return
        if kind == RETRY:
            self.retry_time = np.inf
        if plan.mode == SLOT_IS_CLIENT:
            if tasks_left(plan, slot, self.tasks[slot]):
                self.assign(slot, slot)
        elif plan.mode == POOL:
            if slot >= 0:
                self.line.append(slot)
            self.serve_line()
        elif plan.mode == ROUNDS:
            self.start_round()
        else:
            self.start_of_open_loop()

    def serve_line(self) -> None:
        """Slots in line get clients, oldest first, as long as some are eligible."""
        while len(self.line) > 0:
            client = self.draw_client()
            if client < 0:
                break
            self.starts += 1
            self.assign(client, self.line.pop(0))
        if len(self.line) > 0:
            opening = self.next_opening()
            if opening < self.retry_time:
                self.put(opening, RETRY, -1)
                self.retry_time = opening

    def start_round(self) -> None:
        for slot in range(self.plan.n_slots):
            client = self.draw_client()
            if client < 0:
                break
            self.starts += 1
            self.assign(client, slot)

    def start_of_open_loop(self) -> None:
        """A start that finds no eligible client is lost."""
        client = self.draw_client()
        if client >= 0:
            self.assign(client, self.free_slot())
        self.starts += 1
        if self.spent < self.plan.n_clients:
            self.put(start_time_of(self.plan, self.now, self.starts), START, -1)

    def free_slot(self) -> int:
        """A slot of the open loop: the one that became free last, or a new one."""
        if len(self.free_slots) > 0:
            return self.free_slots.pop()
        slot = self.n_slots
        self.n_slots += 1
        if slot == len(self.state):
            self.state, self.client_of = longer(self.state), longer(self.client_of)
            self.task_of, self.version_of = longer(self.task_of), longer(self.version_of)
            self.start_of, self.status_of = longer(self.start_of), longer(self.status_of)
            self.endless, self.event_of = longer(self.endless), longer(self.event_of)
            self.before, self.behind = longer(self.before), longer(self.behind)
            self.turn_of, self.cut = longer(self.turn_of), longer(self.cut)
            self.uplink.number_of = longer(self.uplink.number_of)
        return slot

    def assign(self, client: int, slot: int) -> None:
        """The client takes the slot for its next task, which starts after its wait."""
        plan = self.plan
        task = self.tasks[client]
        self.tasks[client] += 1
        if self.state[slot] != RESTARTING:
            self.busy[client] += 1
        self.update(client)
        if not tasks_left(plan, client, task + 1):
            self.spent += 1
        self.live += 1
        self.client_of[slot], self.task_of[slot] = client, task
        begin = next_open(plan, client, self.now + wait_of(plan, client, task))
        if begin > self.now:
            self.state[slot] = WAITING
            self.endless[slot] = begin == np.inf
            self.put(begin, START, slot)
        else:
            self.begin(slot)

    def begin(self, slot: int) -> None:
        """The task of the slot starts now, on the present version; if its client is busy, it waits in the queue."""
        self.state[slot] = RUNNING
        self.version_of[slot], self.start_of[slot] = self.version, self.now
        self.started += 1
        if self.stops:
            self.running.append(slot)
        if not self.plan.queues or self.is_first_in_queue(slot):
            self.work(slot, self.now)

    def work(self, slot: int, begin: float) -> None:
        """The client works on the task of the slot from `begin` on."""
        end, status, cut = end_of_task(self.plan, self.client_of[slot], self.task_of[slot], begin)
        self.status_of[slot] = status
        self.turn_of[slot], self.cut[slot] = begin, cut
        self.endless[slot] = end == np.inf
        self.put(end, END, slot)

    # The server's line

    def joins_server(self, slot: int) -> bool:
        """Puts an upload that the server has to handle at the end of its line; whether it has to."""
        if not self.plan.server_time or self.status_of[slot] != USED:
            return False
        if self.plan.queues:
            self.leave_queue(slot)
        self.state[slot] = AT_SERVER
        self.server_line.append(slot)
        if len(self.server_line) == 1:
            self.handle(slot)
        return True

    def handle(self, slot: int) -> None:
        """The server begins with the upload of the slot."""
        self.put(self.now + server_time_of(self.plan, self.client_of[slot], self.task_of[slot]), END, slot)

    def leave_server(self, slot: int) -> None:
        """Takes the slot out of the line; if it was handled, the next one's turn comes."""
        was_first = self.server_line[0] == slot
        self.server_line.remove(slot)
        if was_first and len(self.server_line) > 0:
            self.handle(self.server_line[0])

    # Queues of clients

    def is_first_in_queue(self, slot: int) -> bool:
        """Puts the slot at the end of its client's queue; whether nothing is before it."""
        client = self.client_of[slot]
        last = self.last_of[client]
        self.before[slot], self.behind[slot] = last, -1
        self.last_of[client] = slot
        if last >= 0:
            self.behind[last] = slot
            return False
        self.first_of[client] = slot
        return True

    def leave_queue(self, slot: int) -> None:
        """Takes the slot out; if its client worked on it, the next one's turn comes as soon as the client is there."""
        client = self.client_of[slot]
        before, behind = self.before[slot], self.behind[slot]
        if behind >= 0:
            self.before[behind] = before
        else:
            self.last_of[client] = before
        if before >= 0:
            self.behind[before] = behind
            return
        self.first_of[client] = behind
        if behind >= 0:
            self.work(behind, next_open(self.plan, client, self.now))

    # Clients

    def draw_client(self) -> Any:
        """The client of this start, uniform over the eligible ones; -1 where there is none."""
        plan = self.plan
        self.cross_boundaries()
        if plan.selection != UNIFORM:
            return self.draw_otherwise()
        word = selection_word(plan, self.starts, 0)
        if plan.mode == OPEN_LOOP and plan.if_busy == SKIP:
            client = np.int64(multiply_high(word, np.uint64(plan.n_clients)))
            return client if self.place[client] >= 0 else np.int64(-1)
        if self.n_eligible == 0:
            return np.int64(-1)
        return self.eligible[np.int64(multiply_high(word, np.uint64(self.n_eligible)))]

    def draw_otherwise(self) -> Any:
        """The next client of a selection that is not uniform."""
        plan = self.plan
        if self.n_eligible == 0:
            return np.int64(-1)
        if plan.selection == WEIGHTED:
            return self.draw_weighted()
        while True:
            key, client = heapq.heappop(self.order)
            if self.place[client] >= 0 and self.key[client] == key:
                if plan.selection == ROUND_ROBIN:
                    self.next_key = key + 1
                    if plan.queues:  # it stays among those that may be drawn
                        self.enter_otherwise(client)
                return np.int64(client)

    def draw_weighted(self) -> Any:
        """The candidate among all clients, or the first that is drawn among the eligible ones."""
        if self.weights.is_empty():
            return np.int64(-1)
        client = self.weights.candidate(self.selection_double(0))
        attempt = 0
        while client < 0:
            attempt += 1
            client = self.weights.draw(self.selection_double(attempt))
        return client

    def selection_double(self, attempt: int) -> Any:
        word = selection_word(self.plan, self.starts, attempt)
        return unit_double(word >> np.uint64(32), word & MASK)

    def enter_otherwise(self, client: int) -> None:
        """An eligible client joins those that may be drawn."""
        plan = self.plan
        if plan.selection == WEIGHTED:
            self.weights.insert(client)
            return
        if plan.selection == ROUND_ROBIN:  # lap * n + client: behind the last one drawn, in this lap or the next
            key = self.next_key // plan.n_clients * plan.n_clients + client
            self.key[client] = key if key >= self.next_key else key + plan.n_clients
        heapq.heappush(self.order, (int(self.key[client]), int(client)))

    def release(self, client: int) -> None:
        """A task of the client is over."""
        self.busy[client] -= 1
        if self.plan.selection == LONGEST_IDLE:
            self.key[client] = self.next_key
            self.next_key += 1
        self.cross_boundaries()
        self.update(client)

    def may_be_drawn(self, client: int) -> bool:
        """Whether the client may be drawn inside its windows."""
        several = self.plan.queues or (self.plan.mode == OPEN_LOOP and self.plan.if_busy == OVERLAP)
        return (several or self.busy[client] == 0) and tasks_left(self.plan, client, self.tasks[client])

    def update(self, client: int) -> None:
        """Puts a client that became eligible at the end; the last one takes the place of one that no longer is."""
        may = self.may_be_drawn(client)
        if may and self.has_windows and not self.tracked[client]:
            self.read_windows(client)
        wanted = may and self.open[client]
        at = self.place[client]
        if wanted and at < 0:
            self.place[client] = self.n_eligible
            self.eligible[self.n_eligible] = client
            self.n_eligible += 1
            if self.plan.selection != UNIFORM:
                self.enter_otherwise(client)
        elif not wanted and at >= 0:
            self.n_eligible -= 1
            last = self.eligible[self.n_eligible]
            self.eligible[at] = last
            self.place[last] = at
            self.place[client] = -1
            if self.plan.selection == WEIGHTED:
                self.weights.remove(client)

    def read_windows(self, client: int) -> None:
        """Whether the client is available, and when that changes."""
        opening = next_open(self.plan, client, self.now)
        self.open[client] = opening <= self.now
        boundary = close_of(self.plan, client, self.now) if self.open[client] else opening
        self.tracked[client] = True
        if boundary < np.inf:
            heapq.heappush(self.boundaries, (float(boundary), int(client)))

    def cross_boundaries(self) -> None:
        """Brings the windows of the clients that may be drawn up to now, in the order of their boundaries."""
        while len(self.boundaries) > 0 and self.boundaries[0][0] <= self.now:
            client = heapq.heappop(self.boundaries)[1]
            self.tracked[client] = False
            self.update(client)

    def next_opening(self) -> float:
        """With no client eligible: when the next one that may be drawn becomes available."""
        while len(self.boundaries) > 0:
            time, client = self.boundaries[0]
            if self.may_be_drawn(client):
                return time
            heapq.heappop(self.boundaries)
            self.tracked[client] = False
        return np.inf
