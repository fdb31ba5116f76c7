"""`Client`: masks an update."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import backends
from .._base.arrays import (
    all_finite,
    as_array,
    as_vector,
    model_dtype,
    round_down,
)
from .._base.checks import number, seed_of
from ..backends.spec import EncodeNumbers
from ._cipher import SEED_BYTES, ZEROS, make_key_stream, pieces, seal, sealing_context
from ._messages import UPLOAD, Message, identity
from ._parameters import Parameters
from ._role import Role, read_hello


class Client(Role):
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
        session, self._public = read_hello(parameters, hello)
        super().__init__(parameters, session)
        self.client = identity("client", client)
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
        number_, model = identity("task", task), identity("version", version)
        weight = number("weight", weight, open_low=True)
        size = UPLOAD.size + parameters.dim * self._encoding.word.itemsize
        message = bytearray(size) if out is None else out
        if len(message) != size:
            raise ValueError(f"out: expected {size} bytes, got {len(message)}")
        seed = os.urandom(SEED_BYTES)
        scale = round_down(number("factor", factor), update.dtype)
        self.cut = self._mask(update, seed, number_, scale, memoryview(message)[UPLOAD.size :])
        if self.cut > 0 and not all_finite(update):
            raise ValueError(f"delta: element {int(np.argmin(np.isfinite(update)))} is not finite; nothing was sent")
        context = sealing_context(self.session, self._digest, self.client, number_, model, weight)
        ephemeral, sealed = seal(seed, self._public, context)
        UPLOAD.pack_into(
            message, 0, b"FBU1", self.session, self._digest, self.client, number_, model, ephemeral, sealed, weight
        )
        return message

    def _mask(self, update: NDArray[Any], seed: bytes, task: int, factor: float, out: memoryview) -> int:
        """The pad of the seed plus the encoded update. Returns how many numbers were out of range."""
        encoding = self._encoding
        key_stream = make_key_stream(self.parameters.secure.cipher, seed)
        for begin, end in pieces(len(out)):
            key_stream(ZEROS[: end - begin], out[begin:end])
        words = np.frombuffer(out, encoding.word)
        stochastic = encoding.rounding == "stochastic"
        draws = (self._seed, self.client & 0xFFFFFFFF, task & 0xFFFFFFFF) if stochastic else None
        numbers = EncodeNumbers(1, encoding.clip, encoding.step, factor, draws)
        return backends.current().encode_add(words, update, numbers, words)
