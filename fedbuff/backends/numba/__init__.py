"""The fallback where nothing was compiled: the reference's formulas as loops that Numba compiles.

A loop is compiled once per dtype: every array that is only read is passed as a read-only view, and one that is not
there as an empty one, so that a call never meets a new type.

Sums run in one fixed order; that of `inner` and `inner4` is chosen by the compiler, once, for this CPU.
"""

from __future__ import annotations

from ..python.event_queue import EventQueue
from ..python.schedule_check import ScheduleCheck as schedule_check
from ..python.uniform_arrivals import uniform_arrivals
from .draws import batch_rows, normals, philox
from .fixed_point import add_words, decode, encode_add
from .optimizers import optimizer_step
from .parts import DeltaBuffer, Server, compress, replay_engine, replay_run
from .problem import bind
from .quantize import quantize
from .resolver import make_resolver
from .vectors import accumulate, adam_step, aggregate, dot, sgd_step

__all__ = [
    "DeltaBuffer",
    "EventQueue",
    "Server",
    "accumulate",
    "adam_step",
    "add_words",
    "aggregate",
    "batch_rows",
    "bind",
    "compress",
    "decode",
    "dot",
    "encode_add",
    "make_resolver",
    "name",
    "normals",
    "optimizer_step",
    "philox",
    "quantize",
    "replay_engine",
    "replay_run",
    "schedule_check",
    "sgd_step",
    "uniform_arrivals",
]

name = "numba"
