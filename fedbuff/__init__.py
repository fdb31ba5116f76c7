"""Replay asynchronous federated learning (FedBuff) on a CPU, exactly and fast."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import partition, staleness
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
from ._embedding import get_cmake_dir, get_include
from ._files import FileError
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
    from . import plots, secure, theory, traces
    from ._event_queue import EventQueue
    from ._server import DeltaBuffer, Server
    from ._study_config import StudyConfig
    from ._study_data import sample_digits
    from ._sweep import sweep
    from ._sweep_results import SweepResults, load_sweep
    from ._tune import tune

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
    "EventQueue",
    "ExitReason",
    "Exponential",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FileError",
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
    "StudyConfig",
    "SweepResults",
    "Trace",
    "TraceError",
    "TruncatedNormal",
    "Uniform",
    "Weibull",
    "__version__",
    "aggregate",
    "get_cmake_dir",
    "get_include",
    "iter_schedule",
    "load_schedule",
    "load_sweep",
    "partition",
    "plots",
    "read_arrival_log",
    "read_svmlight",
    "read_trace",
    "replay",
    "run",
    "sample_digits",
    "sample_log",
    "schedule",
    "secure",
    "show_config",
    "staleness",
    "sweep",
    "theory",
    "traces",
    "tune",
    "uniform_arrivals",
]

# Not everybody's, and slow to import: on first use.
_LATER_MODULES = ("plots", "secure", "theory", "traces")
_LATER_NAMES = {
    "StudyConfig": "._study_config",
    "SweepResults": "._sweep_results",
    "load_sweep": "._sweep_results",
    "sample_digits": "._study_data",
    "sweep": "._sweep",
    "tune": "._tune",
}


def __getattr__(name: str) -> Any:
    # These come from the backend in force, which is chosen on first use.
    if name in ("Server", "DeltaBuffer", "EventQueue"):
        from . import backends

        value = globals()[name] = getattr(backends.current(), name)
        return value
    if name in _LATER_MODULES:
        return import_module(f".{name}", __name__)
    if name in _LATER_NAMES:
        value = globals()[name] = getattr(import_module(_LATER_NAMES[name], __name__), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
