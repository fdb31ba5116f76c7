"""`Aggregator`: opens seeds and adds pads."""

from __future__ import annotations

import hmac
import os

import numpy as np

from .. import backends
from .._base.checks import count
from .._base.files import optional
from ._cipher import ZEROS, make_key_stream, pieces, sealing_context, sealing_key, x25519_module
from ._messages import HELLO, RECEIPT, RELEASE, REQUEST, TICKET, Message, Words, tasks_digest
from ._parameters import Parameters
from ._role import Role


class Aggregator(Role):
    """The trusted aggregator: keeps the key that seeds are sealed to, and the sum of the open buffer's pads.

    A seed is opened, expanded, added and forgotten; nothing of a single task is kept but its name, and that only while
    `max_staleness` lets its version in.

    hello   what clients and server need: session, parameters and public key
    buffer  the number of the first buffer
    """

    def __init__(self, parameters: Parameters, *, buffer: int = 0) -> None:
        super().__init__(parameters, os.urandom(16))
        x25519 = x25519_module()
        self._private = x25519.X25519PrivateKey.generate()
        self._public = self._private.public_key().public_bytes_raw()
        self.hello = HELLO.pack(b"FBH1", self.session, self._digest, self._public)
        self.buffer = count("buffer", buffer, low=0)
        self._pads: Words = np.zeros(parameters.dim, self._encoding.word)
        self._open: dict[tuple[int, int], int] = {}
        self._used: set[tuple[int, int]] = set()
        self._by_version: dict[int, list[tuple[int, int]]] = {}  # the same, where max_staleness will let go of them

    @property
    def fill(self) -> int:
        """How many tasks are in the open buffer."""
        return len(self._open)

    def admit(self, ticket: Message) -> bytes:
        """Takes a task into the open buffer. Returns the receipt for the server."""
        digest, client, task, version, ephemeral, sealed, own, buffer, weight = self._read(b"FBT1", TICKET, ticket)
        parameters, name = self.parameters, f"ticket of task {task} of client {client}"
        if digest != self._digest:
            self._refuse("parameters", f"{name}: the client has other parameters")
        if buffer != self.buffer:
            self._refuse("buffer", f"{name}: buffer {buffer} is not open, buffer {self.buffer} is")
        if version > buffer:
            self._refuse("version", f"{name}: version {version} does not exist yet; this is buffer {buffer}")
        if version < self._oldest(buffer):
            self._refuse("late", f"{name}: staleness {buffer - version} is above {parameters.max_staleness}")
        if (client, task) in self._open:
            self._refuse("duplicate", f"{name}: it is in the buffer already")
        if (client, task) in self._used:
            self._refuse("replay", f"{name}: it was in an earlier buffer")
        if parameters.distinct_clients and any(client == other for other, _ in self._open):
            self._refuse("repeat", f"{name}: its client is in the buffer already")
        agreed = self._weight(buffer - version, own, name)
        if weight != agreed:
            self._refuse("weight", f"{name}: weight {weight}, agreed is {agreed} for staleness {buffer - version}")
        if sum(self._open.values()) + weight > self._encoding.capacity:
            self._refuse("overflow", f"{name}: the buffer's weights would exceed {self._encoding.capacity}")
        context = sealing_context(self.session, digest, client, task, version, own)
        seed = self._unseal(ephemeral, sealed, context)
        if seed is None:
            self._refuse("tampered", f"{name}: its sealed seed does not open")
        self._add_pad(seed, weight)
        self._open[client, task] = weight
        self._used.add((client, task))
        if parameters.max_staleness is not None:
            self._by_version.setdefault(version, []).append((client, task))
        return RECEIPT.pack(b"FBR1", self.session, buffer, client, task, weight)

    def release(self, request: Message) -> bytearray:
        """The sum of the pads of all tasks in the buffer, once; the next buffer is open."""
        buffer, tasks, digest = self._read(b"FBQ1", REQUEST, request)
        if buffer < self.buffer:
            self._refuse("released", f"request: buffer {buffer} is over")
        if buffer > self.buffer:
            self._refuse("buffer", f"request: buffer {buffer} is not open, buffer {self.buffer} is")
        if self.fill < self.parameters.buffer_size:
            self._refuse("too_few", f"request: {self.fill} of {self.parameters.buffer_size} tasks are in the buffer")
        if tasks != self.fill or not hmac.compare_digest(digest, tasks_digest(self._open)):
            self._refuse("subset", f"request: it names other tasks than the {self.fill} in the buffer")
        message = bytearray(RELEASE.size + self._pads.nbytes)
        RELEASE.pack_into(message, 0, b"FBP1", self.session, buffer, tasks, sum(self._open.values()))
        np.frombuffer(message, self._encoding.word, offset=RELEASE.size)[:] = self._pads
        self._clear()
        return message

    def abandon(self) -> None:
        """Gives up the open buffer without a release; its tasks cannot be used again. The next buffer is open."""
        self._clear()

    def _clear(self) -> None:
        self._pads[:] = 0
        self._open.clear()
        self.buffer += 1
        # Older tasks are refused as late, so that their names need not be kept.
        oldest = self._oldest(self.buffer)
        for version in [version for version in self._by_version if version < oldest]:
            self._used.difference_update(self._by_version.pop(version))

    def _unseal(self, ephemeral: bytes, sealed: bytes, context: bytes) -> bytes | None:
        exceptions = optional("cryptography.exceptions", "secure", "a one-time pad")
        try:
            shared = self._private.exchange(x25519_module().X25519PublicKey.from_public_bytes(ephemeral))
            key = sealing_key(shared, ephemeral, self._public, context)
            seed: bytes = key.decrypt(bytes(12), sealed, context)
        except (exceptions.InvalidTag, ValueError):
            return None
        return seed

    def _add_pad(self, seed: bytes, weight: int) -> None:
        add_words = backends.current().add_words
        word = self._encoding.word
        piece = bytearray(min(len(ZEROS), self._pads.nbytes))
        key_stream = make_key_stream(self.parameters.secure.cipher, seed)
        for begin, end in pieces(self._pads.nbytes):
            key_stream(ZEROS[: end - begin], piece)
            total = self._pads[begin // word.itemsize : end // word.itemsize]
            add_words(total, np.frombuffer(piece, word, count=total.size), weight, total)
