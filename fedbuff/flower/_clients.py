"""Clients of a VirtualGrid: a ClientApp that is called in this process, or in others.

A client's messages are handled one after the other, in the order in which they were sent, with one Context of its own.
In worker processes client i belongs to worker i mod their number, which has its Context.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from importlib import import_module
from typing import Any, Protocol

from flwr.app import Context, Error, Message, RecordDict

from .._base.checks import shown

RAISED, UNAVAILABLE = 2, 5  # codes of Flower's errors

ClientApp = Callable[[Message, Context], Message]
Reply = Callable[[], Message]


class Clients(Protocol):
    def submit(self, client: int, message: Message) -> Reply:
        """Takes a message for a client; the function gives its reply."""

    def close(self) -> None: ...


def load_app(reference: str) -> ClientApp:
    """The ClientApp that "module:attribute" names, as in Flower's pyproject.toml."""
    module, colon, name = reference.partition(":")
    if not (colon and module and name):
        raise ValueError(f'client_app: expected "module:attribute", got {shown(reference)}')
    app: Any = import_module(module)
    for part in name.split("."):
        app = getattr(app, part)
    if not callable(app):
        raise TypeError(f"client_app: expected a ClientApp, got {reference} of type {type(app).__name__}")
    return app  # type: ignore[no-any-return]


def handle(app: ClientApp, message: Message, context: Context) -> Message:
    """The ClientApp's reply, or an error as Flower's nodes send it."""
    try:
        reply = app(message, context)
        if not isinstance(reply, Message):
            raise TypeError(f"client_app: expected a Message from it, got {type(reply).__name__}")
    except Exception:
        return Message(Error(RAISED, traceback.format_exc()), reply_to=message)
    return reply


class _Contexts:
    """The Context of every client that was called."""

    def __init__(self, n_clients: int, run_config: dict[str, Any]) -> None:
        self._n_clients, self._run_config = n_clients, run_config
        self._made: dict[int, Context] = {}

    def of(self, client: int) -> Context:
        if client not in self._made:
            self._made[client] = Context(
                run_id=0,
                node_id=client,
                node_config={"partition-id": client, "num-partitions": self._n_clients},
                state=RecordDict(),
                run_config=dict(self._run_config),
            )
        return self._made[client]


class HereClients:
    """Clients in this process; a message is handled when its reply is asked for."""

    def __init__(self, app: ClientApp, n_clients: int, run_config: dict[str, Any]) -> None:
        self._app, self._contexts = app, _Contexts(n_clients, run_config)
        self._waiting: dict[int, deque[tuple[Message, list[Message]]]] = {}

    def submit(self, client: int, message: Message) -> Reply:
        queue = self._waiting.setdefault(client, deque())
        place: list[Message] = []
        queue.append((message, place))

        def reply() -> Message:
            while not place:  # those before it first: each may change the Context
                earlier, its_place = queue.popleft()
                its_place.append(handle(self._app, earlier, self._contexts.of(client)))
            return place[0]

        return reply

    def close(self) -> None:
        self._waiting.clear()


class ProcessClients:
    """Clients in worker processes, which import the ClientApp by its name."""

    def __init__(self, reference: str, n_clients: int, run_config: dict[str, Any], processes: int) -> None:
        start = multiprocessing.get_context("spawn")
        arguments = (reference, n_clients, run_config)
        self._pools = [
            ProcessPoolExecutor(1, mp_context=start, initializer=_begin_worker, initargs=arguments)
            for _ in range(min(processes, n_clients))
        ]

    def submit(self, client: int, message: Message) -> Reply:
        future: Future[Message] = self._pools[client % len(self._pools)].submit(_work, client, message)
        return future.result

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)


_worker: tuple[ClientApp, _Contexts] | None = None


def _begin_worker(reference: str, n_clients: int, run_config: dict[str, Any]) -> None:
    global _worker
    _worker = load_app(reference), _Contexts(n_clients, run_config)


def _work(client: int, message: Message) -> Message:
    assert _worker is not None
    app, contexts = _worker
    return handle(app, message, contexts.of(client))
