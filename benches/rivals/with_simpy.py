"""SimPy, the simulator that most people take in Python: M/M/1 and PHOLD as its own examples would write them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import simpy


def mm1(customers: str) -> Callable[[], dict[str, Any]]:
    """A process for each customer, a Resource for the server; two events of the model each, as for the others."""
    n = int(customers)

    def run() -> dict[str, Any]:
        generator, total = random.Random(1), 0.0
        world = simpy.Environment()
        server = simpy.Resource(world)

        def customer() -> Iterator[Any]:
            nonlocal total
            came = world.now
            with server.request() as turn:
                yield turn
                yield world.timeout(generator.expovariate(1.0))
            total += world.now - came

        def arrivals() -> Iterator[Any]:
            for _ in range(n):
                yield world.timeout(generator.expovariate(0.75))
                world.process(customer())

        world.process(arrivals())
        world.run()
        return {"amount": 2 * n, "stay": total / n}

    return run


def phold(in_flight: str, events: str) -> Callable[[], dict[str, Any]]:
    """A process for each event in flight, which waits and goes to a place drawn at random."""
    n_tasks, n = int(in_flight), int(events)

    def run() -> dict[str, Any]:
        generator, world, seen = random.Random(1), simpy.Environment(), [0] * (10 * n_tasks)
        done, last = 0, 0.0
        end = world.event()

        def task() -> Iterator[Any]:
            nonlocal done, last
            while True:
                yield world.timeout(generator.expovariate(1.0))
                seen[generator.randrange(len(seen))] += 1
                done += 1
                if done == n:
                    last = world.now
                    end.succeed()
                    return

        for _ in range(n_tasks):
            world.process(task())
        world.run(end)
        return {"amount": n, "pace": last * n_tasks / n}

    return run
