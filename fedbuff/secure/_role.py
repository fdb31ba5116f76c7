"""`Role`: what client, server and aggregator share."""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any, NoReturn

import numpy as np

from ._messages import HELLO, NAMES, RESERVED, Message, Refused, Words
from ._parameters import Parameters


class Role:
    """What the roles share: they read messages of one session, and count what they refuse."""

    def __init__(self, parameters: Parameters, session: bytes) -> None:
        if not isinstance(parameters, Parameters):
            raise TypeError(f"parameters: expected fedbuff.secure.Parameters, got {type(parameters).__name__}")
        self.parameters = parameters
        self.session = session
        self.refused: Counter[str] = Counter()
        self._encoding = parameters.secure.encoding
        self._digest = parameters.digest

    def _refuse(self, reason: str, message: str) -> NoReturn:
        self.refused[reason] += 1
        raise Refused(reason, message)

    def _read(self, kind: bytes, form: struct.Struct, message: Message, words: int = 0) -> tuple[Any, ...]:
        """The fields after the session; refused where it is no such message, or one of another session."""
        name = NAMES[kind]
        view = memoryview(message).cast("B")
        expected = form.size + words * self._encoding.word.itemsize
        if len(view) != expected or bytes(view[:4]) != kind:
            self._refuse("malformed", f"{name}: expected {expected} bytes that begin with {kind!r}, got {len(view)}")
        reserved = RESERVED.get(kind, 0)
        if any(view[form.size - reserved : form.size]):
            self._refuse("malformed", f"{name}: its reserved bytes are not zero")
        session, *fields = form.unpack_from(view)[1:]
        if session != self.session:
            self._refuse("session", f"{name}: it belongs to another session")
        return tuple(fields)

    def _oldest(self, buffer: int) -> int:
        """The oldest version whose tasks this buffer takes."""
        most = self.parameters.max_staleness
        return 0 if most is None else buffer - most

    def _weight(self, staleness: int, weight: float, name: str) -> int:
        """The weight that was agreed on for this staleness and client's weight."""
        try:
            return self.parameters.weight_of(staleness, weight)
        except ValueError as error:
            self._refuse("weight", f"{name}: {error}")

    def _words(self, message: Message, form: struct.Struct) -> Words:
        return np.frombuffer(message, self._encoding.word, offset=form.size)


def read_hello(parameters: Parameters, hello: Message) -> tuple[bytes, bytes]:
    """Session and public key; refused where the aggregator has other parameters."""
    view = bytes(hello)
    if len(view) != HELLO.size or view[:4] != b"FBH1":
        raise Refused("malformed", f"hello: expected {HELLO.size} bytes that begin with b'FBH1', got {len(view)}")
    _, session, digest, public = HELLO.unpack(view)
    if digest != parameters.digest:
        raise Refused("parameters", "hello: the aggregator has other parameters")
    return session, public
