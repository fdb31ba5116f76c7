"""Random sequences of calls of the Python API, with arguments that fit and arguments that do not.

Objects are made and their public methods and properties called by name, as introspection finds them, so that a new one
takes part. An answer, or an error of a documented type; nothing else. A sequence is of thirty calls.
"""

from __future__ import annotations

import functools
import random
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import workers
from found import Row, scratch

import fedbuff as fb
from fedbuff.backends import reference

LENGTH = 30
DOCUMENTED = (ValueError, TypeError, MemoryError, OSError, IndexError)  # the last one of an empty queue
OVERFLOWS = (": expected an int of 64 bits", "nothing was added")  # of C's integers, and of a model that diverges
WHOLE = [0, 0, 1, 1, 2, 3, 5, -1, 255, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30]
REAL = [0.0, -0.0, 0.5, 1.0, 3.25, -1.0, 1e-310, 1e308, float("nan"), float("inf"), -float("inf")]
OTHER = [
    None,
    True,
    "",
    "x",
    "é\0",
    b"x",
    [],
    {},
    (),
    [1.0],
    {"a": 1},
    object(),
    1j,
    lambda: None,
    np.float32(1),
    np.int8(3),
]
# They wait for their turn, which never comes in one thread; `ticketed` calls them in their order.
WAITING = {"take_ticket", "cancel_ticket"}


def array(rng: random.Random) -> np.ndarray[Any, Any]:
    dtype = rng.choice(["f8", "f8", "f8", "f4", "i8", "i4", "u1", "?", ">f8", "f2", "c16", "U3", "O"])
    shape = rng.choice([(3,), (3,), (3,), (0,), (1,), (4,), (3, 2), (2, 3), (), (3, 1)])
    filled = np.full(shape, rng.choice([0, 1, 2, 3]), dtype)
    if filled.dtype.kind == "f" and filled.size and rng.random() < 0.2:
        filled.reshape(-1)[0] = rng.choice(REAL)
    return filled[::-1] if filled.ndim and rng.random() < 0.1 else filled


def value(rng: random.Random) -> Any:
    pool = rng.choice((WHOLE, WHOLE, REAL, OTHER, "array", "array", "array"))
    return array(rng) if isinstance(pool, str) else rng.choice(pool)


def strategy(rng: random.Random) -> Any:
    make = rng.choice((fb.FedBuff, fb.FedBuff, fb.FedBuff, fb.FedAsync, fb.FedAvg))
    options: dict[str, Any] = {}
    if make is fb.FedBuff:
        options["buffer_size"] = rng.choice((1, 2, 3))
        options["optimizer"] = rng.choice((fb.SGD(), fb.SGD(0.9), fb.Adam()))
        options["base"] = rng.choice(("start", "current"))
        options["max_staleness"] = rng.choice((None, None, 0, 2))
    elif make is fb.FedAsync:
        options["mixing"] = rng.choice((0.5, 1.0))
    else:
        options["clients_per_round"] = rng.choice((1, 3))
    if rng.random() < 0.2:
        options[rng.choice([*options, "server_lr", "norm", "max_wait", "weight_scale"])] = value(rng)
    return make(**options)


class Sequence:
    """The objects of a sequence, and how one is made or called."""

    def __init__(self, rng: random.Random, folder: Path) -> None:
        self.rng, self.folder = rng, folder
        self.objects: list[Any] = []

    def make(self) -> Any:
        rng = self.rng
        makers: list[Callable[[], Any]] = [
            lambda: fb.Server(self.near(np.zeros(3)), self.near(strategy(rng))),
            lambda: reference.Server(self.near(np.zeros(3)), self.near(strategy(rng))),
            lambda: fb.DeltaBuffer(self.near(3)),
            lambda: fb.EventQueue(),
            lambda: fb.Recorder(self.near(None), clock=self.near(functools.partial(next, iter(range(99))))),
            self.replay,
            lambda: fb.Trace(self.near([0, 1, 2]), self.near([1.0, 2.0, 3.0]), upload=self.near([0.1, 0.2, 0.3])),
            lambda: fb.ArrivalLog(
                self.near([0, 1, 0, 1]), self.near([1.0, 2.0, 3.0, 4.0]), version=self.near([0, 0, 1, 1])
            ),
            lambda: fb.DelayModel(n_clients=self.near(3), compute=self.near(fb.Exponential(1.0))),
            lambda: self.schedule(),
        ]
        return rng.choice(makers)()

    def near(self, usual: Any) -> Any:
        return value(self.rng) if self.rng.random() < 0.15 else usual

    def schedule(self, made_by: Any = None) -> fb.Schedule:
        model = fb.DelayModel(n_clients=3, compute=fb.Exponential(1.0))
        rule = self.near(fb.FedBuff(2) if made_by is None else made_by)
        return fb.schedule(model, rule, server_steps=5, arrivals=200, seed=self.near(1))

    def replay(self) -> fb.Replay:
        rng = self.rng

        def client(number: int, task: int, w: Any, generator: Any) -> Any:
            return array(rng) if rng.random() < 0.1 else 0.1 * w

        problem: Any = fb.Quadratic(np.arange(9.0).reshape(3, 3))
        if rng.random() < 0.4:
            problem = fb.Callback(client, w0=np.ones(3), n_clients=3)
        local = None if isinstance(problem, fb.Callback) else fb.LocalSGD(1, 0.1)
        rule = fb.FedBuff(2)
        source: Any = self.schedule(rule)
        if rng.random() < 0.3:
            source = iter([source[0:2], source[2:4], self.near(source[4:5])])
        return fb.Replay(problem, self.near(source), self.near(local), strategy=rule, threads=1)

    def call(self) -> None:
        rng = self.rng
        if rng.random() < 0.1 or not self.objects:
            self.objects = [*self.objects[-4:], self.make()]
            return
        owner = rng.choice(self.objects)
        if isinstance(owner, fb.Server | reference.Server | fb.DeltaBuffer) and rng.random() < 0.15:
            self.ticketed(owner)
            return
        if isinstance(owner, fb.Server | reference.Server) and rng.random() < 0.5:
            self.exchange(owner)
            return
        names = [name for name in dir(type(owner)) if not name.startswith("_") and name not in WAITING]
        name = rng.choice(names)
        found = getattr(owner, name)
        if callable(found):
            found(*self.arguments(name))

    def arguments(self, name: str) -> list[Any]:
        rng = self.rng
        path = self.folder / rng.choice(("a.npz", "b.npz", "c.csv", "d.parquet", "e"))
        if name in ("save", "load", "to_chrome_trace", "read"):
            return [self.near(path)]
        if name == "run":
            return [self.near(rng.choice((0, 1, 2, 100)))]
        return [value(rng) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]

    def exchange(self, server: Any) -> None:
        """What servers are for: a download and an upload, of this version or of another one."""
        version, w = server.download()
        if self.rng.random() < 0.3:
            server.download()
        server.upload(self.near(0.1 * w), self.near(version))
        assert np.isfinite(w).all() and not w.flags.writeable

    def ticketed(self, owner: Any) -> None:
        first, second = owner.take_ticket(), owner.take_ticket()
        owner.cancel_ticket(second)
        if self.rng.random() < 0.3 or isinstance(owner, fb.DeltaBuffer):
            owner.cancel_ticket(first)
        else:
            version, w = owner.download()
            owner.upload(0.1 * w, version, ticket=first)
        owner.cancel_ticket(self.near(first))


def once(rng: random.Random, folder: Path) -> str | int:
    sequence = Sequence(rng, folder)
    for _ in range(LENGTH):
        try:
            sequence.call()
        except DOCUMENTED:
            continue
        except OverflowError as error:
            if not any(text in str(error) for text in OVERFLOWS):
                return traceback.format_exc()
        except Exception:
            return traceback.format_exc()
    return 1


def run(seconds: float, seed: int) -> Iterator[Row]:
    warnings.simplefilter("ignore")
    with scratch() as where:
        folder = Path(where, "files")
        folder.mkdir()
        yield workers.run("calls of the Python API, in sequences of thirty", once, seconds, seed, folder)
