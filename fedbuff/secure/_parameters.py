"""`Parameters`: what all roles agree on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from .._base.checks import count, number
from .._rule.secure_values import (
    OneTimePad,
)
from ._messages import PROTOCOL


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
        return hashlib.sha256(repr((PROTOCOL, *values)).encode()).digest()
