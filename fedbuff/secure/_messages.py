"""Messages of the roles: their layout, and the error that refuses one."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.checks import count

Message = bytes | bytearray | memoryview
Words = NDArray[np.unsignedinteger[Any]]
HELLO = struct.Struct("<4s16s32s32s")  # session, parameters, public key
# ..., client, task, version, ephemeral key, sealed seed, the client's weight; then words. "x" is reserved: zeros.
UPLOAD = struct.Struct("<4s16s32sQQQ32s48sd28x")
TICKET = struct.Struct("<4s16s32sQQQ32s48sdQI")  # ... as an upload; then buffer, weight
RECEIPT = struct.Struct("<4s16sQQQI")  # session, buffer, client, task, weight
REQUEST = struct.Struct("<4s16sQI32s")  # session, buffer, tasks, their digest
RELEASE = struct.Struct("<4s16sQIQ24x")  # session, buffer, tasks, sum of weights; then words
RESERVED = {b"FBU1": 28, b"FBP1": 24}  # zeros at the end of a message's head
NAMES = {
    b"FBH1": "hello",
    b"FBU1": "upload",
    b"FBT1": "ticket",
    b"FBR1": "receipt",
    b"FBQ1": "request",
    b"FBP1": "release",
}
PROTOCOL = b"fedbuff one-time pad 2"


class Refused(ValueError):
    """A message that a role does not accept; nothing has changed. `reason` is one word, as in docs/security.md."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def identity(name: str, value: int) -> int:
    """The number of a client, a task or a version, as messages carry it: 64 bits."""
    return count(name, value, low=0, high=2**64 - 1)


def tasks_digest(tasks: dict[tuple[int, int], int]) -> bytes:
    digest = hashlib.sha256()
    for (client, task), weight in sorted(tasks.items()):
        digest.update(struct.pack("<QQI", client, task, weight))
    return digest.digest()
