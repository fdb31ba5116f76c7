"""`VirtualGrid`: Flower's apps on delays that were recorded or drawn, in virtual time."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Self

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from .._base.checks import count, instance, mapping, number, seed_of
from .._delays.model import DelayModel
from .._delays.trace import Trace
from ._clients import UNAVAILABLE, ClientApp, Clients, HereClients, ProcessClients, Reply, load_app


@dataclass(slots=True)
class _Sent:
    """A message on its way: when its reply is there, and how it is got."""

    end: float
    place: int  # in the order in which messages were sent
    message: Message
    reply: Reply | None  # None: the task is lost

    @property
    def order(self) -> tuple[float, int]:
        return self.end, self.place


class VirtualGrid(Grid):  # type: ignore[misc]
    """A Grid of Flower in virtual time: unmodified ClientApps and strategies, on recorded or modelled delays.

        grid = fedbuff.flower.VirtualGrid(app, fb.DelayModel(n_clients=100, compute=fb.LogNormal(0, 1)))
        result = FedAvg().start(grid, initial_arrays, num_rounds=10)
        grid.time  # what that would have taken

    client_app  a ClientApp, or its name "module:attribute"
    delays      a `fedbuff.Trace` or `DelayModel`, without availability. Train messages take its delays, a client's k-th
                the k-th; a task that is not ok is lost: its reply is an error. Other messages take no time
    n_clients   the first so many clients of `delays`; all unless told. Node ids are 0 .. n_clients - 1, and each
                Context's node_config has "partition-id" and "num-partitions", as in Flower's simulations
    seed        of the delays
    run_config  what each Context has under that name
    processes   how many worker processes call the ClientApp, which must then be given by its name; 0: this one does

    Nothing waits: time moves on when a reply is asked for and none is there. A node handles one message at a time.
    The same apps and arguments give the same replies at the same times, for any number of processes. Strategies that
    draw from Python's `random`, as Flower's do, need `random.seed` for that.
    """

    def __init__(
        self,
        client_app: ClientApp | str,
        delays: Trace | DelayModel,
        n_clients: int | None = None,
        seed: int = 0,
        *,
        run_config: dict[str, Any] | None = None,
        processes: int = 0,
    ) -> None:
        instance("delays", delays, (Trace, DelayModel), "a Trace or a DelayModel")
        if delays.availability is not None:
            raise ValueError("delays: expected some without availability, which a VirtualGrid does not know")
        n = delays.n_clients if n_clients is None else count("n_clients", n_clients)
        if n > delays.n_clients:
            raise ValueError(f"n_clients: expected at most {delays.n_clients}, as delays has, got {n}")
        config = {} if run_config is None else mapping("run_config", run_config)
        self._clients: Clients
        if count("processes", processes, low=0):
            if not isinstance(client_app, str):
                raise TypeError('client_app: expected its name, "module:attribute", with processes')
            load_app(client_app)  # what is wrong with it is said here
            self._clients = ProcessClients(client_app, n, config, processes)
        else:
            app = load_app(client_app) if isinstance(client_app, str) else client_app
            if not callable(app):
                raise TypeError(f"client_app: expected a ClientApp or its name, got {type(app).__name__}")
            self._clients = HereClients(app, n, config)
        self._delays, self._seed = delays, seed_of(seed)
        self._tasks = [0] * n  # started by each client
        self._free_at = [0.0] * n
        self._time = 0.0
        self._n_sent = 0
        self._sent: dict[str, _Sent] = {}  # by message id
        self._run: Any = None
        _identify()

    # ---- time ----

    @property
    def time(self) -> float:
        """Virtual seconds since the grid was made."""
        return self._time

    @property
    def n_clients(self) -> int:
        """How many nodes there are, with tasks left or not."""
        return len(self._tasks)

    def next_arrival(self, message_ids: Collection[str]) -> float:
        """When the first reply to these messages is there; infinite where none will be."""
        return min((self._sent[each].end for each in message_ids if each in self._sent), default=math.inf)

    def advance(self, until: float) -> None:
        """Lets time pass until then."""
        until = number("until", until)
        if until < self._time:
            raise ValueError(f"until: expected a time from {self._time} on, got {until}")
        self._time = until

    # ---- Flower's Grid ----

    def set_run(self, run: Any) -> None:
        """Notes what `run` returns."""
        self._run = run

    @property
    def run(self) -> Any:
        """What was given to `set_run`."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> list[int]:
        """The clients that have a task left."""
        return [client for client in range(len(self._tasks)) if self._has_tasks(client)]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Sends messages now; the ids to pull their replies by."""
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that are there; where none is, time moves on to the first."""
        ids = [each for each in message_ids if each in self._sent]
        if not ids:
            return []
        self._time = max(self._time, self.next_arrival(ids))
        due = [each for each in ids if self._sent[each].end <= self._time]
        return [self._deliver(each) for each in sorted(due, key=lambda each: self._sent[each].order)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Sends messages, and returns the replies that are there before virtual time has moved on by `timeout`."""
        end = math.inf if timeout is None else self._time + timeout
        ids = set(self.push_messages(messages))
        replies: list[Message] = []
        while ids:
            if self.next_arrival(ids) > end:
                self.advance(end)
                break
            found = self.pull_messages(ids)
            ids -= {reply.metadata.reply_to_message_id for reply in found}
            replies += found
        return replies

    def close(self) -> None:
        """Ends worker processes."""
        self._clients.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- messages ----

    def _has_tasks(self, client: int) -> bool:
        delays = self._delays
        if isinstance(delays, DelayModel) or delays.end == "wrap":
            return True
        return self._tasks[client] < int(delays.offsets[client + 1] - delays.offsets[client])

    def _push(self, message: Message) -> str:
        client = message.metadata.dst_node_id
        if not (isinstance(client, int) and 0 <= client < len(self._tasks)):
            raise ValueError(f"messages: expected nodes 0 .. {len(self._tasks) - 1}, got {client}")
        message_id = str(self._n_sent)
        message.metadata.__dict__["_message_id"] = message_id  # as Flower's own grids do
        end, ok = max(self._time, self._free_at[client]), True
        if message.metadata.message_type.split(".")[0] == MessageType.TRAIN:
            if not self._has_tasks(client):
                raise ValueError(f"messages: node {client} has no task left")
            delay = self._delays.delay(client, self._tasks[client], self._seed)
            self._tasks[client] += 1
            end, ok = (end + delay.wait) + delay.duration, delay.ok
        self._free_at[client] = end
        reply = self._clients.submit(client, _copy(message)) if ok else None
        self._sent[message_id] = _Sent(end, self._n_sent, message, reply)
        self._n_sent += 1
        return message_id

    def _deliver(self, message_id: str) -> Message:
        sent = self._sent.pop(message_id)
        if sent.reply is None:
            return Message(Error(UNAVAILABLE, "the task was lost"), reply_to=sent.message)
        reply = sent.reply()
        if not reply.metadata.message_id:
            reply.metadata.__dict__["_message_id"] = f"reply-{message_id}"
        return reply


def _copy(message: Message) -> Message:
    """The message with metadata and records of its own, as if it had gone over a wire; arrays' bytes are shared."""
    made = copy.copy(message)
    made.__dict__["_metadata"] = copy.copy(message.metadata)
    made.__dict__["_content"] = RecordDict({name: type(each)(dict(each)) for name, each in message.content.items()})
    return made


def _identify() -> None:
    """Lets this process make messages where Flower started none here: it asks for a run and a node then."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:  # Flower before it asked
        return
    for name, value in (("_run_id", 0), ("_node_id", 1), ("_task_id", 0)):
        if getattr(TaskIdentity, name) is None:
            setattr(TaskIdentity, name, value)
