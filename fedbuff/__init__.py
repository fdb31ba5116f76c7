"""Replay asynchronous federated learning (FedBuff) on a CPU, exactly and fast."""

from . import plots, traces
from ._delays import (
    Constant,
    DelayModel,
    Distribution,
    Empirical,
    Exponential,
    HalfNormal,
    LogNormal,
    Pareto,
    TruncatedNormal,
    Uniform,
    Weibull,
)
from ._schedule import Schedule, Status, load_schedule
from ._trace import ArrivalLog, Availability, Trace, TraceError, read_arrival_log, read_trace
from ._version import __version__

__all__ = [
    "ArrivalLog",
    "Availability",
    "Constant",
    "DelayModel",
    "Distribution",
    "Empirical",
    "Exponential",
    "HalfNormal",
    "LogNormal",
    "Pareto",
    "Schedule",
    "Status",
    "Trace",
    "TraceError",
    "TruncatedNormal",
    "Uniform",
    "Weibull",
    "__version__",
    "load_schedule",
    "plots",
    "read_arrival_log",
    "read_trace",
    "traces",
]
