"""Which clients the server heard, for the triggers that ask for all of them."""

from __future__ import annotations

import numpy as np

from .resolver import BUFFER, EVERY_CLIENT

MEAN_SLACK = 1.0 + 1e-9  # of the harmonic mean, whose sum is kept in doubles


class Hearing:
    """Counts the arrivals of each client in a round. Numba compiles this source, so attributes keep their types."""

    def __init__(self, trigger: int, n_clients: int, per_client: float) -> None:
        n = n_clients if trigger != BUFFER else 0
        self.trigger = trigger
        self.n_clients = n_clients
        self.per_client = per_client
        self.count = np.zeros(n, np.int64)  # arrivals of each client in this round,
        self.round_of = np.full(n, -1, np.int64)  # if this is its number
        self.stepped_in = np.full(n, -1, np.int64)  # Ringleader: the last round in which the client made a step
        self.round = 0
        self.n_heard = 0
        self.inverses = 0.0  # sum over the clients heard of 1 / arrivals
        self.n_to_step = 0  # Ringleader: clients that have not made their step in this round's second phase

    def enter(self, client: int, fill: int, buffer_size: int) -> bool:
        """An arrival enters a buffer that holds `fill` with it; whether the server steps."""
        if self.trigger == EVERY_CLIENT:
            self.hear(client)
            return fill >= buffer_size and self.all_are_heard()
        # Phase one ends, without a step, when all are heard. In phase two each client's next arrival makes a step.
        steps = self.n_to_step > 0 and self.stepped_in[client] != self.round
        if steps:
            self.stepped_in[client] = self.round
            self.n_to_step -= 1
        else:
            self.hear(client)
        if self.n_to_step == 0 and self.all_are_heard():
            self.n_to_step = self.n_clients
            self.new_round()
        return steps

    def on_step(self) -> None:
        if self.trigger == EVERY_CLIENT:
            self.new_round()

    def hear(self, client: int) -> None:
        if self.round_of[client] != self.round:
            self.round_of[client] = self.round
            self.count[client] = 1
            self.n_heard += 1
            self.inverses += 1.0
        else:
            count = self.count[client] + 1
            self.count[client] = count
            self.inverses -= 1.0 / (float(count) * float(count - 1))

    def all_are_heard(self) -> bool:
        """Whether the harmonic mean over clients of their arrivals in this round is per_client or more."""
        if self.n_heard < self.n_clients:
            return False
        return self.inverses * self.per_client <= float(self.n_clients) * MEAN_SLACK

    def new_round(self) -> None:
        self.round += 1
        self.n_heard = 0
        self.inverses = 0.0
