"""Replay asynchronous federated learning (FedBuff) on a CPU, exactly and fast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import partition, plots, staleness, traces
from ._aggregate import aggregate
from ._clients import Callback, Custom
from ._config import show_config
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
from ._history import ExitReason, History, Interrupted, Result
from ._local import LocalSGD
from ._problems import MLP, LeastSquares, Logistic, Problem, Quadratic, Softmax
from ._recorder import Recorder, sample_log
from ._replay import Replay, Stop, replay, run
from ._resolve import iter_schedule, schedule, uniform_arrivals
from ._schedule import Schedule, Status, load_schedule
from ._strategy import SGD, Adam, FedAsync, FedAvg, FedBuff
from ._svmlight import read_svmlight
from ._trace import ArrivalLog, Availability, Trace, TraceError, read_arrival_log, read_trace
from ._version import __version__

if TYPE_CHECKING:
    from . import theory
    from ._server import DeltaBuffer, Server

__all__ = [
    "MLP",
    "SGD",
    "Adam",
    "ArrivalLog",
    "Availability",
    "Callback",
    "Constant",
    "Custom",
    "DelayModel",
    "DeltaBuffer",
    "Distribution",
    "Empirical",
    "ExitReason",
    "Exponential",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "HalfNormal",
    "History",
    "Interrupted",
    "LeastSquares",
    "LocalSGD",
    "LogNormal",
    "Logistic",
    "Pareto",
    "Problem",
    "Quadratic",
    "Recorder",
    "Replay",
    "Result",
    "Schedule",
    "Server",
    "Softmax",
    "Status",
    "Stop",
    "Trace",
    "TraceError",
    "TruncatedNormal",
    "Uniform",
    "Weibull",
    "__version__",
    "aggregate",
    "get_include",
    "iter_schedule",
    "load_schedule",
    "partition",
    "plots",
    "read_arrival_log",
    "read_svmlight",
    "read_trace",
    "replay",
    "run",
    "sample_log",
    "schedule",
    "show_config",
    "staleness",
    "theory",
    "traces",
    "uniform_arrivals",
]


def get_include() -> str:
    """The folder to give to a C or C++ compiler with -I, so that <fedbuff/fedbuff.h> is found."""
    package = Path(__file__).parent
    installed = package / "include"
    return str(installed if installed.is_dir() else package.parent / "csrc" / "include")


def __getattr__(name: str) -> Any:
    # These come from the backend in force, which is chosen on first use.
    if name in ("Server", "DeltaBuffer"):
        from . import backends

        value = globals()[name] = getattr(backends.current(), name)
        return value
    if name == "theory":  # on first use: what most programs do not need costs them no start-up time
        from importlib import import_module

        return import_module(f"{__name__}.theory")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
