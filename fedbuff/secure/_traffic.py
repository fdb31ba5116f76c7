"""Bytes of the messages."""

from __future__ import annotations

from dataclasses import dataclass

from .._base.checks import count
from .._rule.secure_values import (
    Simulate,
)
from ._messages import RECEIPT, RELEASE, REQUEST, TICKET, UPLOAD


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
    return Traffic(UPLOAD.size + words, TICKET.size, RECEIPT.size, REQUEST.size, RELEASE.size + words)
