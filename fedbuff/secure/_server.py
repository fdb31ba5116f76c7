"""`Server`: adds masked vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import backends
from .._base.arrays import (
    model_dtype,
)
from .._base.checks import count
from ._messages import RECEIPT, RELEASE, REQUEST, TICKET, UPLOAD, Message, Words, tasks_digest
from ._parameters import Parameters
from ._role import Role, read_hello


@dataclass(slots=True)
class Held:
    words: Words  # its own memory
    seal: tuple[Any, ...]  # the fields of its upload
    weight: int  # of the last ticket


class Server(Role):
    """The untrusted server: adds masked vectors.

    `receive` an upload: its ticket goes to the aggregator, and the receipt comes back to `settle`, which adds the
    vector; where the aggregator refuses, `drop` it. With buffer_size of them in, `request` goes to the aggregator, and
    `open` makes the sum of what it releases, and begins the next buffer.

    dtype   of the sums
    buffer  the number of the first buffer: the version that the clients download now
    """

    def __init__(
        self, parameters: Parameters, hello: Message, *, dtype: DTypeLike = np.float64, buffer: int = 0
    ) -> None:
        super().__init__(parameters, read_hello(parameters, hello)[0])
        self.dtype = model_dtype("dtype", dtype)
        self.buffer = count("buffer", buffer, low=0)
        self._total: Words = np.zeros(parameters.dim, self._encoding.word)
        self._waiting: dict[tuple[int, int], Held] = {}
        self._added: dict[tuple[int, int], int] = {}

    @property
    def fill(self) -> int:
        """How many updates are in the buffer."""
        return len(self._added)

    def receive(self, upload: Message) -> bytes:
        """Keeps a copy of an upload, until its receipt comes, and gives the ticket for the aggregator.

        A bytes object, which nobody can change, is kept itself.
        """
        fields = self._read(b"FBU1", UPLOAD, upload, self.parameters.dim)
        digest, client, task, version = fields[:4]
        if digest != self._digest:
            self._refuse("parameters", "upload: the client has other parameters")
        if (client, task) in self._waiting or (client, task) in self._added:
            self._refuse("duplicate", f"upload: task {task} of client {client} is here already")
        if version > self.buffer:
            self._refuse("version", f"upload: version {version} does not exist yet; this is buffer {self.buffer}")
        self._weight(self.buffer - version, fields[-1], "upload")
        words = self._words(upload, UPLOAD)
        self._waiting[client, task] = Held(words if isinstance(upload, bytes) else words.copy(), fields, 0)
        return self.ticket(client, task)

    def ticket(self, client: int, task: int) -> bytes:
        """The ticket of a kept upload for the open buffer: again, where the one before came too late."""
        held = self._waiting.get((client, task))
        if held is None:
            self._refuse("unknown", f"ticket: no upload of task {task} of client {client} is kept")
        held.weight = self._weight(self.buffer - held.seal[3], held.seal[-1], "ticket")
        return TICKET.pack(b"FBT1", self.session, *held.seal, self.buffer, held.weight)

    def settle(self, receipt: Message) -> int:
        """Adds the vector that the aggregator has admitted. Returns the fill."""
        buffer, client, task, weight = self._read(b"FBR1", RECEIPT, receipt)
        held = self._waiting.get((client, task))
        if held is None or held.weight != weight or buffer != self.buffer:
            self._refuse("unknown", f"receipt: not of an upload that waits for buffer {self.buffer}")
        del self._waiting[client, task]
        backends.current().add_words(self._total, held.words, weight, self._total)
        self._added[client, task] = weight
        return self.fill

    def drop(self, client: int, task: int) -> None:
        """Forgets an upload that the aggregator has refused."""
        self._waiting.pop((client, task), None)

    def request(self) -> bytes:
        """Asks for the pads of all tasks in the buffer."""
        if self.fill < self.parameters.buffer_size:
            self._refuse("too_few", f"request: {self.fill} of {self.parameters.buffer_size} tasks are in the buffer")
        return REQUEST.pack(b"FBQ1", self.session, self.buffer, self.fill, tasks_digest(self._added))

    def open(self, release: Message) -> NDArray[np.floating[Any]]:
        """The weighted sum of the buffer's updates, weights in units of 1 / weight_unit; the next buffer is open."""
        buffer, tasks, weight = self._read(b"FBP1", RELEASE, release, self.parameters.dim)
        if (buffer, tasks, weight) != (self.buffer, self.fill, sum(self._added.values())):
            self._refuse("unknown", f"release: not of the {self.fill} tasks of buffer {self.buffer}")
        backend = backends.current()
        minus_one = 2**self._encoding.modulus - 1
        backend.add_words(self._total, self._words(release, RELEASE), minus_one, self._total)
        values = np.empty(self.parameters.dim, self.dtype)
        backend.decode(self._total, self._encoding.step / self.parameters.secure.weight_unit, values)
        self._clear()
        return values

    def abandon(self) -> None:
        """Gives up the open buffer, as the aggregator must too, and opens the next. Uploads without a receipt stay,
        but for those that are too stale now."""
        self._clear()

    def _clear(self) -> None:
        self._total[:] = 0
        self._added.clear()
        self.buffer += 1
        oldest = self._oldest(self.buffer)
        for key in [key for key, held in self._waiting.items() if held.seal[3] < oldest]:
            del self._waiting[key]
