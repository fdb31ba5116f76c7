"""Sums that the server learns without their parts: one-time pads for buffered asynchrony, and differential privacy.

Three roles exchange messages (bytes), so that they can sit in three processes:

    Client       encodes its update in fixed point, adds a pad that is expanded from a fresh seed, seals the seed to the
                 aggregator
    Server       untrusted: adds masked vectors, times small integer weights; sees nothing else
    Aggregator   trusted: opens the seeds, adds the pads with the weights that were agreed on, and releases their sum
                 once per buffer, for at least buffer_size tasks, never for a part of them

The pads cancel modulo 2^32 or 2^64, and the sum of the updates is left. docs/security.md has the threat model, what is
promised and what is not.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import backends
from ._base.arrays import (
    all_finite,
    as_array,
    as_vector,
    model_dtype,
    round_down,
)
from ._base.checks import count, number, seed_of
from ._base.files import optional
from ._rule.secure_values import (
    FixedPoint,
    Gaussian,
    OneTimePad,
    Simulate,
)
from ._schedule.columns import Status
from ._schedule.schedule import Schedule

__all__ = [
    "Aggregator",
    "Client",
    "FixedPoint",
    "Gaussian",
    "OneTimePad",
    "Parameters",
    "Refused",
    "Server",
    "Simulate",
    "Spent",
    "Traffic",
    "epsilon",
    "traffic",
]

Message = bytes | bytearray | memoryview
Words = NDArray[np.unsignedinteger[Any]]

_HELLO = struct.Struct("<4s16s32s32s")  # session, parameters, public key
# ..., client, task, version, ephemeral key, sealed seed, the client's weight; then words. "x" is reserved: zeros.
_UPLOAD = struct.Struct("<4s16s32sQQQ32s48sd28x")
_TICKET = struct.Struct("<4s16s32sQQQ32s48sdQI")  # ... as an upload; then buffer, weight
_RECEIPT = struct.Struct("<4s16sQQQI")  # session, buffer, client, task, weight
_REQUEST = struct.Struct("<4s16sQI32s")  # session, buffer, tasks, their digest
_RELEASE = struct.Struct("<4s16sQIQ24x")  # session, buffer, tasks, sum of weights; then words
_RESERVED = {b"FBU1": 28, b"FBP1": 24}  # zeros at the end of a message's head
_NAMES = {
    b"FBH1": "hello",
    b"FBU1": "upload",
    b"FBT1": "ticket",
    b"FBR1": "receipt",
    b"FBQ1": "request",
    b"FBP1": "release",
}
_PROTOCOL = b"fedbuff one-time pad 2"
_SEED_BYTES = 32
_ZEROS = memoryview(bytes(1 << 18))  # what a cipher turns into its key stream, a piece at a time
_MOST = 2**64


class Refused(ValueError):
    """A message that a role does not accept; nothing has changed. `reason` is one word, as in docs/security.md."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """What all roles must agree on; every sealed seed is bound to it.

    dim                numbers in an update
    buffer_size        the fewest tasks whose sum is released
    secure             encoding, unit of weights, and cipher
    distinct_clients   whether a buffer may hold a client only once
    max_staleness      a task that started more buffers ago is refused; None: none is, and then the aggregator keeps the
                       name of every task for ever
    staleness_weights  s of staleness 0, 1, ...; the last one holds for all beyond. The weight of an update follows from
                       it, `weight_of`, and no other is accepted

    >>> import fedbuff as fb
    >>> pads = fb.secure.OneTimePad(weight_unit=8)
    >>> agreed = fb.secure.Parameters(dim=2, buffer_size=2, secure=pads, staleness_weights=(1.0, 0.5, 0.25))
    >>> [agreed.weight_of(staleness) for staleness in range(5)]
    [8, 4, 2, 2, 2]
    """

    dim: int
    buffer_size: int
    secure: OneTimePad = field(default_factory=OneTimePad)
    distinct_clients: bool = False
    max_staleness: int | None = None
    staleness_weights: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        count("dim", self.dim)
        count("buffer_size", self.buffer_size)
        if not isinstance(self.secure, OneTimePad):
            raise TypeError(f"secure: expected fedbuff.secure.OneTimePad, got {type(self.secure).__name__}")
        if self.max_staleness is not None:
            count("max_staleness", self.max_staleness, low=0)
        self.secure.check_capacity(self.buffer_size)
        if isinstance(self.staleness_weights, str) or not isinstance(self.staleness_weights, Iterable):
            kind = type(self.staleness_weights).__name__
            raise TypeError(f"staleness_weights: expected numbers, one for each staleness from 0 on, got {kind}")
        table = tuple(number("staleness_weights", s) for s in self.staleness_weights)
        if not table:
            raise ValueError("staleness_weights: expected at least one number, got none")
        object.__setattr__(self, "staleness_weights", table)

    def weight_of(self, staleness: int, weight: float = 1.0) -> int:
        """The integer weight of an update of this staleness, from a client whose updates weigh `weight`: s e in units
        of 1 / weight_unit. ValueError where that is not from 1 to max_weight."""
        table, unit, most = self.staleness_weights, self.secure.weight_unit, self.secure.most
        s = table[min(count("staleness", staleness, low=0), len(table) - 1)]
        units = s * number("weight", weight, open_low=True) * unit
        if not 1 <= np.rint(units) <= most:
            raise ValueError(
                f"weight: s e = {s * weight:g} of staleness {staleness} is {np.rint(units):g} units of 1 / {unit}; "
                f"expected 1 to {most}"
            )
        return round(units)

    @property
    def digest(self) -> bytes:
        """SHA-256 of all of it."""
        secure, encoding = self.secure, self.secure.encoding
        values = (
            self.dim, self.buffer_size, self.distinct_clients, self.max_staleness, secure.cipher, secure.weight_unit,
            secure.most, encoding.clip.hex(), encoding.bits, encoding.modulus, encoding.rounding,
            *(s.hex() for s in self.staleness_weights),
        )  # fmt: skip
        return hashlib.sha256(repr((_PROTOCOL, *values)).encode()).digest()


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one update and of one buffer, by receiver."""

    update_to_server: int
    update_to_aggregator: int
    update_from_aggregator: int
    buffer_to_aggregator: int
    buffer_from_aggregator: int

    def to_server(self, updates: int) -> int:
        return updates * self.update_to_server

    def to_aggregator(self, updates: int, buffers: int) -> int:
        return updates * self.update_to_aggregator + buffers * self.buffer_to_aggregator

    def from_aggregator(self, updates: int, buffers: int) -> int:
        return updates * self.update_from_aggregator + buffers * self.buffer_from_aggregator


def traffic(dim: int, secure: Simulate | None = None) -> Traffic:
    """What the messages of these roles weigh: the aggregator's are O(buffer_size + dim) for a buffer.

    >>> import fedbuff as fb
    >>> fb.secure.traffic(dim=1000).update_to_server
    4192
    """
    words = count("dim", dim) * (secure or Simulate()).encoding.word.itemsize
    return Traffic(_UPLOAD.size + words, _TICKET.size, _RECEIPT.size, _REQUEST.size, _RELEASE.size + words)


class _Role:
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
        name = _NAMES[kind]
        view = memoryview(message).cast("B")
        expected = form.size + words * self._encoding.word.itemsize
        if len(view) != expected or bytes(view[:4]) != kind:
            self._refuse("malformed", f"{name}: expected {expected} bytes that begin with {kind!r}, got {len(view)}")
        reserved = _RESERVED.get(kind, 0)
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


def _read_hello(parameters: Parameters, hello: Message) -> tuple[bytes, bytes]:
    """Session and public key; refused where the aggregator has other parameters."""
    view = bytes(hello)
    if len(view) != _HELLO.size or view[:4] != b"FBH1":
        raise Refused("malformed", f"hello: expected {_HELLO.size} bytes that begin with b'FBH1', got {len(view)}")
    _, session, digest, public = _HELLO.unpack(view)
    if digest != parameters.digest:
        raise Refused("parameters", "hello: the aggregator has other parameters")
    return session, public


class Client(_Role):
    """One client: makes uploads.

    >>> import numpy as np, fedbuff as fb
    >>> agreed = fb.secure.Parameters(dim=2, buffer_size=1)
    >>> aggregator = fb.secure.Aggregator(agreed)
    >>> server = fb.secure.Server(agreed, aggregator.hello)
    >>> client = fb.secure.Client(agreed, aggregator.hello, client=7)
    >>> ticket = server.receive(client.upload(np.array([0.5, -0.25]), task=0, version=0))
    >>> server.settle(aggregator.admit(ticket))
    1
    >>> server.open(aggregator.release(server.request()))
    array([ 0.5 , -0.25])

    hello  from the aggregator, by a way that the server cannot change: it holds the key that seeds are sealed to
    seed   of stochastic rounding; None: drawn from the operating system
    """

    def __init__(self, parameters: Parameters, hello: Message, client: int, *, seed: int | None = None) -> None:
        session, self._public = _read_hello(parameters, hello)
        super().__init__(parameters, session)
        self.client = _identity("client", client)
        self.cut = 0  # numbers of the last upload that were out of range
        self._seed = seed_of(int.from_bytes(os.urandom(8), "little") if seed is None else seed)

    def upload(
        self,
        delta: Any,
        *,
        task: int,
        version: int,
        factor: float = 1.0,
        weight: float = 1.0,
        out: bytearray | None = None,
    ) -> bytearray:
        """The message to the server: the update times `factor`, under a fresh pad, and the pad's sealed seed.

        task     its number, never used again by this client
        version  of the model that it started from: it can enter this buffer or a later one
        factor   such as what clips the update; rounded down to a number of its dtype
        weight   e, what it counts beside other clients' updates; the server and the aggregator see it
        out      the memory of an earlier message, to be written over: large fresh memory costs more than the cipher
        """
        parameters = self.parameters
        array = as_array("delta", delta)
        update = as_vector("delta", array, parameters.dim, model_dtype("delta", array.dtype))
        number_, model = _identity("task", task), _identity("version", version)
        weight = number("weight", weight, open_low=True)
        size = _UPLOAD.size + parameters.dim * self._encoding.word.itemsize
        message = bytearray(size) if out is None else out
        if len(message) != size:
            raise ValueError(f"out: expected {size} bytes, got {len(message)}")
        seed = os.urandom(_SEED_BYTES)
        scale = round_down(number("factor", factor), update.dtype)
        self.cut = self._mask(update, seed, number_, scale, memoryview(message)[_UPLOAD.size :])
        if self.cut > 0 and not all_finite(update):
            raise ValueError(f"delta: element {int(np.argmin(np.isfinite(update)))} is not finite; nothing was sent")
        context = _context(self.session, self._digest, self.client, number_, model, weight)
        ephemeral, sealed = _seal(seed, self._public, context)
        _UPLOAD.pack_into(
            message, 0, b"FBU1", self.session, self._digest, self.client, number_, model, ephemeral, sealed, weight
        )
        return message

    def _mask(self, update: NDArray[Any], seed: bytes, task: int, factor: float, out: memoryview) -> int:
        """The pad of the seed plus the encoded update. Returns how many numbers were out of range."""
        encoding = self._encoding
        key_stream = _key_stream(self.parameters.secure.cipher, seed)
        for begin, end in _pieces(len(out)):
            key_stream(_ZEROS[: end - begin], out[begin:end])
        words = np.frombuffer(out, encoding.word)
        stochastic = encoding.rounding == "stochastic"
        draws = (self._seed, self.client & 0xFFFFFFFF, task & 0xFFFFFFFF) if stochastic else None
        return backends.current().encode_add(words, update, 1, encoding.clip, encoding.step, factor, draws, words)


@dataclass(slots=True)
class _Held:
    words: Words  # its own memory
    seal: tuple[Any, ...]  # the fields of its upload
    weight: int  # of the last ticket


class Server(_Role):
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
        super().__init__(parameters, _read_hello(parameters, hello)[0])
        self.dtype = model_dtype("dtype", dtype)
        self.buffer = count("buffer", buffer, low=0)
        self._total: Words = np.zeros(parameters.dim, self._encoding.word)
        self._waiting: dict[tuple[int, int], _Held] = {}
        self._added: dict[tuple[int, int], int] = {}

    @property
    def fill(self) -> int:
        """How many updates are in the buffer."""
        return len(self._added)

    def receive(self, upload: Message) -> bytes:
        """Keeps a copy of an upload, until its receipt comes, and gives the ticket for the aggregator.

        A bytes object, which nobody can change, is kept itself.
        """
        fields = self._read(b"FBU1", _UPLOAD, upload, self.parameters.dim)
        digest, client, task, version = fields[:4]
        if digest != self._digest:
            self._refuse("parameters", "upload: the client has other parameters")
        if (client, task) in self._waiting or (client, task) in self._added:
            self._refuse("duplicate", f"upload: task {task} of client {client} is here already")
        if version > self.buffer:
            self._refuse("version", f"upload: version {version} does not exist yet; this is buffer {self.buffer}")
        self._weight(self.buffer - version, fields[-1], "upload")
        words = self._words(upload, _UPLOAD)
        self._waiting[client, task] = _Held(words if isinstance(upload, bytes) else words.copy(), fields, 0)
        return self.ticket(client, task)

    def ticket(self, client: int, task: int) -> bytes:
        """The ticket of a kept upload for the open buffer: again, where the one before came too late."""
        held = self._waiting.get((client, task))
        if held is None:
            self._refuse("unknown", f"ticket: no upload of task {task} of client {client} is kept")
        held.weight = self._weight(self.buffer - held.seal[3], held.seal[-1], "ticket")
        return _TICKET.pack(b"FBT1", self.session, *held.seal, self.buffer, held.weight)

    def settle(self, receipt: Message) -> int:
        """Adds the vector that the aggregator has admitted. Returns the fill."""
        buffer, client, task, weight = self._read(b"FBR1", _RECEIPT, receipt)
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
        return _REQUEST.pack(b"FBQ1", self.session, self.buffer, self.fill, _tasks_digest(self._added))

    def open(self, release: Message) -> NDArray[np.floating[Any]]:
        """The weighted sum of the buffer's updates, weights in units of 1 / weight_unit; the next buffer is open."""
        buffer, tasks, weight = self._read(b"FBP1", _RELEASE, release, self.parameters.dim)
        if (buffer, tasks, weight) != (self.buffer, self.fill, sum(self._added.values())):
            self._refuse("unknown", f"release: not of the {self.fill} tasks of buffer {self.buffer}")
        backend = backends.current()
        minus_one = 2**self._encoding.modulus - 1
        backend.add_words(self._total, self._words(release, _RELEASE), minus_one, self._total)
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


class Aggregator(_Role):
    """The trusted aggregator: keeps the key that seeds are sealed to, and the sum of the open buffer's pads.

    A seed is opened, expanded, added and forgotten; nothing of a single task is kept but its name, and that only while
    `max_staleness` lets its version in.

    hello   what clients and server need: session, parameters and public key
    buffer  the number of the first buffer
    """

    def __init__(self, parameters: Parameters, *, buffer: int = 0) -> None:
        super().__init__(parameters, os.urandom(16))
        x25519 = _x25519()
        self._private = x25519.X25519PrivateKey.generate()
        self._public = self._private.public_key().public_bytes_raw()
        self.hello = _HELLO.pack(b"FBH1", self.session, self._digest, self._public)
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
        digest, client, task, version, ephemeral, sealed, own, buffer, weight = self._read(b"FBT1", _TICKET, ticket)
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
        context = _context(self.session, digest, client, task, version, own)
        seed = self._unseal(ephemeral, sealed, context)
        if seed is None:
            self._refuse("tampered", f"{name}: its sealed seed does not open")
        self._add_pad(seed, weight)
        self._open[client, task] = weight
        self._used.add((client, task))
        if parameters.max_staleness is not None:
            self._by_version.setdefault(version, []).append((client, task))
        return _RECEIPT.pack(b"FBR1", self.session, buffer, client, task, weight)

    def release(self, request: Message) -> bytearray:
        """The sum of the pads of all tasks in the buffer, once; the next buffer is open."""
        buffer, tasks, digest = self._read(b"FBQ1", _REQUEST, request)
        if buffer < self.buffer:
            self._refuse("released", f"request: buffer {buffer} is over")
        if buffer > self.buffer:
            self._refuse("buffer", f"request: buffer {buffer} is not open, buffer {self.buffer} is")
        if self.fill < self.parameters.buffer_size:
            self._refuse("too_few", f"request: {self.fill} of {self.parameters.buffer_size} tasks are in the buffer")
        if tasks != self.fill or not hmac.compare_digest(digest, _tasks_digest(self._open)):
            self._refuse("subset", f"request: it names other tasks than the {self.fill} in the buffer")
        message = bytearray(_RELEASE.size + self._pads.nbytes)
        _RELEASE.pack_into(message, 0, b"FBP1", self.session, buffer, tasks, sum(self._open.values()))
        np.frombuffer(message, self._encoding.word, offset=_RELEASE.size)[:] = self._pads
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
            shared = self._private.exchange(_x25519().X25519PublicKey.from_public_bytes(ephemeral))
            key = _sealing_key(shared, ephemeral, self._public, context)
            seed: bytes = key.decrypt(bytes(12), sealed, context)
        except (exceptions.InvalidTag, ValueError):
            return None
        return seed

    def _add_pad(self, seed: bytes, weight: int) -> None:
        add_words = backends.current().add_words
        word = self._encoding.word
        piece = bytearray(min(len(_ZEROS), self._pads.nbytes))
        key_stream = _key_stream(self.parameters.secure.cipher, seed)
        for begin, end in _pieces(self._pads.nbytes):
            key_stream(_ZEROS[: end - begin], piece)
            total = self._pads[begin // word.itemsize : end // word.itemsize]
            add_words(total, np.frombuffer(piece, word, count=total.size), weight, total)


def _identity(name: str, value: int) -> int:
    number_ = count(name, value, low=0)
    if number_ >= _MOST:
        raise ValueError(f"{name}: expected an int below 2**64, got {number_}")
    return number_


def _tasks_digest(tasks: dict[tuple[int, int], int]) -> bytes:
    digest = hashlib.sha256()
    for (client, task), weight in sorted(tasks.items()):
        digest.update(struct.pack("<QQI", client, task, weight))
    return digest.digest()


def _context(session: bytes, digest: bytes, client: int, task: int, version: int, weight: float) -> bytes:
    """What a sealed seed is bound to."""
    return _PROTOCOL + session + digest + struct.pack("<QQQd", client, task, version, weight)


def _x25519() -> Any:
    return optional("cryptography.hazmat.primitives.asymmetric.x25519", "secure", "a one-time pad")


def _sealing_key(shared: bytes, ephemeral: bytes, public: bytes, context: bytes) -> Any:
    """The cipher for one seed: its key is used once, so its nonce can be zero."""
    hkdf = optional("cryptography.hazmat.primitives.kdf.hkdf", "secure", "a one-time pad")
    hashes = optional("cryptography.hazmat.primitives.hashes", "secure", "a one-time pad")
    aead = optional("cryptography.hazmat.primitives.ciphers.aead", "secure", "a one-time pad")
    key = hkdf.HKDF(algorithm=hashes.SHA256(), length=32, salt=ephemeral + public, info=context).derive(shared)
    return aead.ChaCha20Poly1305(key)


def _seal(seed: bytes, public: bytes, context: bytes) -> tuple[bytes, bytes]:
    """The seed, readable for the owner of the key only: a fresh public key, and the ciphertext with its tag."""
    x25519 = _x25519()
    private = x25519.X25519PrivateKey.generate()
    ephemeral = private.public_key().public_bytes_raw()
    shared = private.exchange(x25519.X25519PublicKey.from_public_bytes(public))
    return ephemeral, _sealing_key(shared, ephemeral, public, context).encrypt(bytes(12), seed, context)


def _key_stream(cipher: str, seed: bytes) -> Callable[[memoryview, Any], int]:
    """A function (zeros, out) that writes the next bytes of the pad. A seed is a key for one pad: its nonce is zero."""
    ciphers = optional("cryptography.hazmat.primitives.ciphers", "secure", "a one-time pad")
    if cipher == "chacha20":
        made = ciphers.Cipher(ciphers.algorithms.ChaCha20(seed, bytes(16)), mode=None)
    else:
        made = ciphers.Cipher(ciphers.algorithms.AES(seed), ciphers.modes.CTR(bytes(16)))
    encrypt: Callable[[memoryview, Any], int] = made.encryptor().update_into
    return encrypt


def _pieces(n_bytes: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, n_bytes, len(_ZEROS)):
        yield begin, min(begin + len(_ZEROS), n_bytes)


class Roles:
    """All roles in one process, for a replay: every update goes through the messages that separate ones would send."""

    def __init__(self, parameters: Parameters, dtype: DTypeLike, seed: int, weights: NDArray[np.float64]) -> None:
        """weights: e of every client's updates."""
        _x25519()  # what is missing is said now, not in the middle of a replay
        self._parameters, self._dtype, self._seed, self._weights = parameters, dtype, seed, weights
        self._aggregator: Aggregator | None = None
        self._server: Server | None = None
        self._upload: bytearray | None = None

    def add(
        self, client: int, task: int, version: int, step: int, weight: int, factor: float, delta: NDArray[Any]
    ) -> int:
        if not all_finite(delta):
            return delta.size
        if self._aggregator is None:
            self._aggregator = Aggregator(self._parameters, buffer=step)
            self._server = Server(self._parameters, self._aggregator.hello, dtype=self._dtype, buffer=step)
        assert self._server is not None
        sender = Client(self._parameters, self._aggregator.hello, client, seed=self._seed)
        own = float(self._weights[client])
        assert self._parameters.weight_of(step - version, own) == weight
        upload = self._upload = sender.upload(
            delta, task=task, version=version, factor=factor, weight=own, out=self._upload
        )
        self._server.settle(self._aggregator.admit(self._server.receive(upload)))
        return sender.cut

    def finish(self, step: int, out: NDArray[Any]) -> None:
        assert self._aggregator is not None and self._server is not None
        out[:] = self._server.open(self._aggregator.release(self._server.request()))


@dataclass(frozen=True, slots=True)
class Spent:
    """What a schedule's updates tell of the client that they tell most of: (epsilon, delta)-differential privacy.

    client     whose updates weigh most
    updates    how many of its updates were used
    buffers    in how many buffers
    releases   how often sums of those buffers were released: more often where a replay was killed and went on
    simulated  the noise is a function of the seed: this is what noise of the operating system would have spent, and
               nothing is private
    """

    epsilon: float
    delta: float
    client: int
    updates: int
    buffers: int
    releases: int
    simulated: bool

    def __str__(self) -> str:
        text = f"epsilon {self.epsilon:.4g} at delta {self.delta:g}: client {self.client}, {self.releases} releases"
        return f"{text}; simulated noise: whoever knows the seed subtracts it" if self.simulated else text


def epsilon(
    schedule: Schedule, privacy: Gaussian, *, delta: float = 1e-5, releases: NDArray[np.int64] | None = None
) -> Spent:
    """The privacy loss of a client, by Google's dp-accounting, for the models of all server steps of a schedule.

    It composes one Gaussian mechanism for each buffer that the client is in; c updates in one buffer count as an update
    c times as long. Nothing is gained from sampling: who arrives is decided by delays, not by chance that anybody
    promised, and the schedule is taken for public. docs/security.md lists all that is assumed. With source="simulated"
    the numbers are those of real noise, and `simulated` says that there was none.

    releases  `Result.releases`: how often each step was made, where a replay was killed and went on; steps beyond it
              were not made. None: every step once
    """
    if not isinstance(privacy, Gaussian):
        raise TypeError(f"privacy: expected fedbuff.secure.Gaussian, got {type(privacy).__name__}")
    number("delta", delta, high=1.0, open_low=True)
    simulated = privacy.source == "simulated"
    used = schedule.status == Status.USED
    pairs, times = np.unique(
        np.stack([schedule.client[used].astype(np.int64), schedule.step[used]]), axis=1, return_counts=True
    )
    made = _releases_of(schedule.n_steps, releases)[pairs[1]]
    pairs, times, made = pairs[:, made > 0], times[made > 0], made[made > 0]
    if times.size == 0:
        return Spent(0.0, delta, -1, 0, 0, 0, simulated)
    weight = np.bincount(pairs[0], made * times.astype(np.float64) ** 2)
    client = int(np.argmax(weight))
    mine = pairs[0] == client
    counts = int(times[mine].sum()), int(np.count_nonzero(mine)), int(made[mine].sum())
    if privacy.noise_multiplier == 0:
        return Spent(math.inf, delta, client, *counts, simulated)
    accounting = optional("dp_accounting", "privacy", "epsilon")
    # Gaussian mechanisms compose to one, with squared sensitivities added: exactly, also where each one depends on the
    # results of those before.
    spent = accounting.get_epsilon_gaussian(privacy.noise_multiplier / math.sqrt(weight[client]), delta)
    return Spent(float(spent), delta, client, *counts, simulated)


def _releases_of(n_steps: int, releases: Any) -> NDArray[np.int64]:
    """How often each step of a schedule was released."""
    if releases is None:
        return np.ones(n_steps, np.int64)
    given = np.asarray(releases)
    if given.ndim != 1 or not np.issubdtype(given.dtype, np.integer):
        raise TypeError(f"releases: expected whole numbers, one for each server step, got {given.dtype} {given.shape}")
    if given.size and int(given.min()) < 0:
        raise ValueError(f"releases: expected numbers >= 0, got {given.min()}")
    if given.size > n_steps:
        raise ValueError(f"releases: expected at most {n_steps}, as many as the schedule has steps, got {given.size}")
    made = np.zeros(n_steps, np.int64)
    made[: given.size] = given
    return made
