"""One run of the strategy: keeps nodes busy, takes replies as they come, and notes who started and arrived when."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from .. import backends
from .._delays.arrival_log import ArrivalLog
from .._delays.recorder import Recorder
from ..backends.python.philox import STREAM_CLIENT_SELECTION, multiply_high, philox
from ._clock import VirtualClock, clock_of
from ._evaluator import EvaluateFn, Evaluator
from ._records import BadReply, Layout, content_of
from ._state import State

if TYPE_CHECKING:
    from ._strategy import FedBuff

_LOGGER = getLogger("flwr")
_MOST_HELD, _MOST_HELD_BYTES = 16, 1 << 29  # replies that wait for the server's pass, and their numbers
_SHORTEST_TTL = 43200.0  # seconds for which Flower keeps a message, and our least
_NODES_LOGGED_EVERY = 30.0  # seconds, where none is there


def say(level: int, text: str, *values: Any) -> None:
    _LOGGER.log(level, text, *values)


@dataclass(slots=True)
class _Task:
    """A node at work: on which version, whose numbers are `sent`, and how long the server waits for it."""

    node: int
    version: int
    sent: NDArray[Any]
    deadline: float


@dataclass(slots=True)
class _Reply:
    """A reply that arrived and is not yet uploaded: the server adds several in one pass over its memory."""

    task: _Task
    arrays: ArrayRecord
    vectors: list[NDArray[Any]]
    weight: float
    metrics: MetricRecord
    row: int  # of the arrival log


@dataclass(slots=True)
class _Evaluation:
    """Nodes that evaluate a version."""

    step: int
    deadline: float
    waiting: set[str]
    replies: list[Message] = field(default_factory=list)


class Run:
    """What `FedBuff.start` does. `options` is the strategy; a run changes nothing of it but what it counts."""

    def __init__(
        self,
        options: FedBuff,
        grid: Any,
        initial_arrays: ArrayRecord,
        timeout: float,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
        evaluate_fn: EvaluateFn | None,
    ) -> None:
        self.options, self.grid, self.timeout = options, grid, timeout
        self.train_config, self.evaluate_config = train_config, evaluate_config
        self.clock = clock_of(grid)
        self.virtual = isinstance(self.clock, VirtualClock)
        self.layout = Layout(initial_arrays)
        self.result = Result()
        self.failures = self.failures_in_a_row = self.starts = 0
        self.held: list[_Reply] = []
        self.pending: list[RecordDict] = []  # metrics of the open buffer
        self.tasks: dict[str, _Task] = {}  # by message id
        self.busy: set[int] = set()
        self.evaluations: list[_Evaluation] = []
        self.resting: dict[int, float] = {}  # nodes that failed, until when at least
        self.nodes: list[int] = []
        self.listed_at = self.waiting_since = -math.inf
        self._content: tuple[int, RecordDict, NDArray[Any]] | None = None
        self._begin(initial_arrays)
        self.evaluator = Evaluator(evaluate_fn, self.result.evaluate_metrics_serverapp, inline=self.virtual)

    # ---- begin and end ----

    def _begin(self, initial_arrays: ArrayRecord) -> None:
        path = self.options.checkpoint
        earlier = None
        if path is not None and path.exists():
            state = State.read(path, self.layout, self.options.strategy)
            self.server, self.others, earlier = state.server, state.others, state.log
            self.starts = state.starts
            self._take_metrics(state)
            for version in self._downloads():
                self.server.cancel(version)  # whoever worked for the ServerApp that died
            say(INFO, "FedBuff goes on at server step %d, from %s", self.server.version, path)
        else:
            self.server = backends.current().Server(self.layout.vector(initial_arrays), self.options.strategy)
            self.others = self.layout.others(initial_arrays)
        clock = None
        if self.virtual:
            origin = self.grid.time
            begin = 0.0 if earlier is None else float(earlier.arrive_time[-1])
            clock = lambda: begin + (self.grid.time - origin)  # noqa: E731
        self.recorder = Recorder(self.grid.n_clients if self.virtual else None, clock=clock, log=earlier)

    def _downloads(self) -> list[int]:
        """The version of every download that is neither returned nor cancelled."""
        outstanding = self.server._get_state().outstanding
        return [version for version, count in outstanding.items() for _ in range(count)]

    def _take_metrics(self, state: State) -> None:
        for kind, steps in state.metrics.items():
            getattr(self.result, kind).update({step: MetricRecord(values) for step, values in steps.items()})
        self.pending = [RecordDict({"metrics": MetricRecord(values)}) for values in state.pending]

    def save(self, path: Path) -> None:
        """Writes the checkpoint, and the log where one is wanted."""
        self.evaluator.collect(wait=True)
        kinds = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
        metrics = {kind: {step: dict(values) for step, values in getattr(self.result, kind).items()} for kind in kinds}
        pending = [dict(next(iter(content.metric_records.values()))) for content in self.pending]
        State(self.server, self.others, self.arrivals(), self.starts, metrics, pending).write(path, self.layout)

    def arrivals(self) -> ArrivalLog | None:
        """The arrivals so far."""
        return self.recorder.log() if len(self.recorder) else None

    def write_log(self) -> None:
        self.options.log = self.arrivals()
        if self.options.log_path is not None and len(self.recorder):
            self.recorder.save(self.options.log_path)

    # ---- the loop ----

    def to(self, num_rounds: int) -> Result:
        """Goes on to this server step."""
        if self.server.version == 0:
            self.evaluator.submit(0, self.arrays())
        try:
            while self.server.version < num_rounds:
                self._list_nodes()
                if not self._refill() and not self.tasks:
                    if self.virtual and math.isinf(self._next_time()):
                        say(WARNING, "FedBuff ends at server step %d: no node is left to ask", self.server.version)
                        break
                    self._say_that_nobody_is_there()
                replies = self.clock.pull(self._message_ids(), self._next_time())
                for reply in replies:
                    if self.server.version == num_rounds:
                        break
                    self._take(reply)
                self._expire()
            self._upload_held()
            self._finish_evaluations()
            self.evaluator.collect(wait=True)
            if self.options.checkpoint is not None:
                self.save(self.options.checkpoint)
        finally:
            self._give_up_tasks()
            self.evaluator.close()
            self.write_log()
        self.result.arrays = self.arrays()
        return self.result

    def _message_ids(self) -> list[str]:
        return [*self.tasks, *(each for evaluation in self.evaluations for each in evaluation.waiting)]

    def _next_time(self) -> float:
        """When a deadline ends, a node's rest does, or the nodes are to be listed again."""
        times = [task.deadline for task in self.tasks.values()]
        times += [evaluation.deadline for evaluation in self.evaluations]
        if not self.virtual:
            times.append(self.listed_at + self.clock.listing)
        return min(times, default=math.inf)

    def _wanted(self) -> int:
        limit = self.options.concurrency
        return len(self.nodes) if limit is None else limit

    # ---- nodes ----

    def _list_nodes(self) -> None:
        now = self.clock.now()
        if now < self.listed_at + self.clock.listing:
            return
        self.nodes, self.listed_at = sorted(self.grid.get_node_ids()), now
        there = set(self.nodes)
        for node in [node for node, until in self.resting.items() if now >= until or node not in there]:
            del self.resting[node]  # its rest is over and it is listed, or it left
        if not self.virtual:
            for message_id in [each for each, task in self.tasks.items() if task.node not in there]:
                self._fail(message_id, "it is no longer listed")

    def _refill(self) -> bool:
        """Gives tasks to idle nodes until enough are at work; whether one was started."""
        if self.starts == 0 and len(self.nodes) < self.options.min_available_nodes:
            return False
        idle = [node for node in self.nodes if node not in self.busy and node not in self.resting]
        wanted = min(self._wanted() - len(self.tasks), len(idle))
        chosen = []
        for _ in range(wanted):
            chosen.append(idle.pop(self._draw(len(idle))))
        if not chosen:
            return False
        content, sent = self._current()
        deadline = self.clock.now() + self.timeout
        ttl = max(self.timeout, _SHORTEST_TTL) if math.isfinite(self.timeout) else None
        version = self.server.version
        messages = [Message(content, node, MessageType.TRAIN, group_id=str(version + 1), ttl=ttl) for node in chosen]
        ids = [*self.grid.push_messages(messages)]
        ids += [None] * (len(chosen) - len(ids))
        for node, message_id in zip(chosen, ids, strict=True):
            if not message_id:
                self._note_failure(node, "its message was not sent")
                continue
            self.server.download()  # the same version and numbers as `sent`
            self.recorder.started(self._client(node), version)
            self.tasks[message_id] = _Task(node, version, sent, deadline)
            self.busy.add(node)
        return True

    def _draw(self, n: int) -> int:
        """An index below n, a function of the seed and the number of the start."""
        low, high = self.starts & 0xFFFFFFFF, self.starts >> 32
        self.starts += 1
        if n == 1:
            return 0
        a, b, _, _ = philox(self.options.seed, low, high, 0, STREAM_CLIENT_SELECTION)
        return int(multiply_high(np.uint64((int(a) << 32) | int(b)), np.uint64(n)))

    def _client(self, node: int) -> int | str:
        return node if self.virtual else str(node)  # Flower's ids do not fit 63 bits

    def _say_that_nobody_is_there(self) -> None:
        now = self.clock.now()
        if now >= self.waiting_since + _NODES_LOGGED_EVERY:
            self.waiting_since = now
            say(INFO, "FedBuff waits for nodes: %d listed, %d resting", len(self.nodes), len(self.resting))

    # ---- models ----

    def arrays(self) -> ArrayRecord:
        """The current model as a record."""
        return self._current()[0][self.options.arrayrecord_key]

    def _current(self) -> tuple[RecordDict, NDArray[Any]]:
        """The content of a message with the current model, and the model; one record for all nodes of a version."""
        version = self.server.version
        if self._content is None or self._content[0] != version:
            w = self.server.w
            config = ConfigRecord({**self.train_config, "server-round": version + 1})
            arrays = self.layout.record(w, self.others)
            content = RecordDict({self.options.arrayrecord_key: arrays, self.options.configrecord_key: config})
            self._content = version, content, self.layout.as_sent(w)
        return self._content[1:]

    # ---- replies ----

    def _take(self, reply: Message) -> None:
        message_id = reply.metadata.reply_to_message_id
        if message_id not in self.tasks:
            self._take_evaluation(message_id, reply)
            return
        if reply.has_error():
            self._fail(message_id, reply.error.reason or f"error {reply.error.code}")
            return
        try:
            arrays, weight = content_of(reply.content, self.options.weighted_by_key)
            vectors = self.layout.vectors(arrays)
        except BadReply as error:
            self._fail(message_id, str(error))
            return
        task = self._end(message_id)
        self.recorder.arrived(self._client(task.node))
        metrics = next(iter(reply.content.metric_records.values()))
        self.held.append(_Reply(task, arrays, vectors, weight, metrics, len(self.recorder) - 1))
        most = min(_MOST_HELD, max(1, _MOST_HELD_BYTES // (self.layout.dim * self.layout.dtype.itemsize)))
        if len(self.held) >= min(most, self.options.rule.buffer_size - self.server.fill):
            self._upload_held()

    def _upload_held(self) -> None:
        """Uploads what was held: never more than the buffer takes before it is full, so that only the last can step.

        A reply whose numbers the server refuses has no row in the log, like a task that was lost.
        """
        held, self.held = self.held, []
        outcomes = self.server._upload_models(
            [(reply.task.sent, reply.vectors, reply.task.version, reply.weight) for reply in held]
        )
        refused = []
        for reply, outcome in zip(held, outcomes, strict=True):
            if isinstance(outcome, Exception):
                refused.append((reply, outcome))
            else:
                self.failures_in_a_row = 0
            if isinstance(outcome, bool):
                self.others = {**self.others, **self.layout.others(reply.arrays)}
                self.pending.append(RecordDict({"metrics": reply.metrics}))
        for reply, error in reversed(refused):
            if not isinstance(error, ValueError | OverflowError):
                raise error
            self.recorder._take_back(reply.row)
            self.server.cancel(reply.task.version)
            self._note_failure(reply.task.node, str(error))
        if outcomes and outcomes[-1] is True:
            self._stepped()

    def _stepped(self) -> None:
        step = self.server.version
        metrics = self.options.train_metrics_aggr_fn(self.pending, self.options.weighted_by_key)
        self.pending = []
        self.result.train_metrics_clientapp[step] = metrics
        say(INFO, "[STEP %d] %d arrivals, %d at work: %s", step, len(self.recorder), len(self.tasks), metrics)
        if step % self.options.evaluate_every == 0:
            self.evaluator.submit(step, self.arrays())
            self._push_evaluation(step)
        if self.options.checkpoint is not None and step % self.options.checkpoint_every == 0:
            self.save(self.options.checkpoint)
            self.write_log()

    def _end(self, message_id: str) -> _Task:
        task = self.tasks.pop(message_id)
        self.busy.discard(task.node)
        return task

    def _fail(self, message_id: str, why: str, rest: float = 0.0) -> None:
        """A task that will not be used: its download is cancelled, and its node rests until it is listed again."""
        task = self._end(message_id)
        self.server.cancel(task.version)
        self.recorder.cancelled(self._client(task.node))
        self._note_failure(task.node, why, rest)

    def _note_failure(self, node: int, why: str, rest: float = 0.0) -> None:
        self.resting[node] = self.clock.now() + rest
        self.failures += 1
        self.failures_in_a_row += 1
        say(WARNING, "FedBuff replaces the task of node %d: %s", node, why.strip().rpartition("\n")[2])
        if self.failures_in_a_row >= self.options.max_failures_in_a_row and self.held:
            self._upload_held()  # what arrived meanwhile may end the row
        if self.failures_in_a_row >= self.options.max_failures_in_a_row:
            raise RuntimeError(f"{self.failures_in_a_row} tasks failed in a row, the last of node {node}: {why}")

    def _expire(self) -> None:
        now = self.clock.now()
        for message_id in [each for each, task in self.tasks.items() if now >= task.deadline]:
            self._fail(message_id, f"no reply in {self.timeout:g} s", rest=self.clock.rest)
        for evaluation in [each for each in self.evaluations if now >= each.deadline]:
            self._end_evaluation(evaluation)

    def _give_up_tasks(self) -> None:
        for message_id in list(self.tasks):
            task = self._end(message_id)
            self.server.cancel(task.version)

    # ---- evaluation by nodes ----

    def _push_evaluation(self, step: int) -> None:
        config = ConfigRecord(dict(self.evaluate_config))
        messages = list(self.options.configure_evaluate(step, self.arrays(), config, self.grid))
        ids = {each for each in self.grid.push_messages(messages) if each} if messages else set()
        if ids:
            self.evaluations.append(_Evaluation(step, self.clock.now() + self.timeout, ids))

    def _take_evaluation(self, message_id: str, reply: Message) -> None:
        for evaluation in self.evaluations:
            if message_id in evaluation.waiting:
                evaluation.waiting.discard(message_id)
                evaluation.replies.append(reply)
                if not evaluation.waiting:
                    self._end_evaluation(evaluation)
                return

    def _end_evaluation(self, evaluation: _Evaluation) -> None:
        self.evaluations.remove(evaluation)
        metrics = self.options.aggregate_evaluate(evaluation.step, evaluation.replies)
        if metrics is not None:
            self.result.evaluate_metrics_clientapp[evaluation.step] = metrics

    def _finish_evaluations(self) -> None:
        """Waits for the nodes that still evaluate."""
        while self.evaluations:
            ids = [each for evaluation in self.evaluations for each in evaluation.waiting]
            for reply in self.clock.pull(ids, min(evaluation.deadline for evaluation in self.evaluations)):
                self._take_evaluation(reply.metadata.reply_to_message_id, reply)
            now = self.clock.now()
            for evaluation in [each for each in self.evaluations if now >= each.deadline]:
                self._end_evaluation(evaluation)
