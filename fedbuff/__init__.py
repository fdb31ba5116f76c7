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
from ._resolve import iter_schedule, schedule, uniform_arrivals
from ._schedule import Schedule, Status, load_schedule
from ._strategy import SGD, Adam, FedAsync, FedAvg, FedBuff
from ._trace import ArrivalLog, Availability, Trace, TraceError, read_arrival_log, read_trace
from ._version import __version__

__all__ = [
    "SGD",
    "Adam",
    "ArrivalLog",
    "Availability",
    "Constant",
    "DelayModel",
    "Distribution",
    "Empirical",
    "Exponential",
    "FedAsync",
    "FedAvg",
    "FedBuff",
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
    "iter_schedule",
    "load_schedule",
    "plots",
    "read_arrival_log",
    "read_trace",
    "schedule",
    "traces",
    "uniform_arrivals",
]
