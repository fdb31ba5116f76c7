"""Sums that the server learns without the single updates: one-time pads for buffered asynchrony, and differential
privacy.

Three roles exchange messages (bytes), so that they can run in three processes:

    Client       encodes its update in fixed point, adds a pad that is expanded from a fresh seed, seals the seed to the
                 aggregator
    Server       untrusted: adds masked vectors, times small integer weights; sees nothing else
    Aggregator   trusted: opens the seeds, adds the pads with the weights that were agreed on, and releases their sum
                 once per buffer, for at least buffer_size tasks, never for some of them

The pads cancel modulo 2^32 or 2^64, and the sum of the updates is left. docs/security.md has the threat model, what is
promised and what is not.
"""

from .._rule.secure_values import FixedPoint, Gaussian, OneTimePad, Simulate
from ._accounting import Spent, epsilon
from ._aggregator import Aggregator
from ._client import Client
from ._messages import Refused
from ._parameters import Parameters
from ._server import Server
from ._traffic import Traffic, traffic

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
