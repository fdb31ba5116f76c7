"""Replay asynchronous federated learning (FedBuff) on a CPU, exactly and fast.

Names are grouped as in docs/api.md.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError("fedbuff runs on Linux and macOS; on Windows, install it inside WSL")

# Problems
from . import layers
from ._problems.base import Problem
from ._problems.callback import Callback
from ._problems.custom import Custom
from ._problems.linear import LeastSquares, Logistic
from ._problems.local import LocalSGD
from ._problems.mlp import MLP, Softmax
from ._problems.network import Network
from ._problems.quadratic import Quadratic

# Data
from . import partition
from ._study.svmlight import read_svmlight

# Delays
from ._base.files import FileError
from ._delays.arrival_log import ArrivalLog
from ._delays.availability import Availability
from ._delays.bad_rows import TraceError
from ._delays.distributions import (
    Constant,
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
from ._delays.model import DelayModel
from ._delays.read import read_arrival_log, read_trace
from ._delays.recorder import Recorder, sample_log
from ._delays.trace import Trace

# Strategies
from . import staleness
from ._rule.algorithms import Algorithm, algorithm, algorithms
from ._rule.delta_weight import DeltaWeight
from ._rule.compression import Compression
from ._rule.optimizers import SGD, Adagrad, Adam, AMSGrad, DelayedNesterov, LearningRate, Nesterov, Yogi
from ._rule.strategies import FedAsync, FedAvg, FedBuff
from ._rule.hidden import HiddenModel
from ._rule.own import OwnRule
from ._rule.table import ClientTable

# Schedules
from ._schedule.columns import Status
from ._schedule.load import load_schedule
from ._schedule.resolve import iter_schedule, schedule
from ._schedule.schedule import Schedule
from ._schedule.uniform import uniform_arrivals

# Replay
from ._replay.history import ExitReason, History, Interrupted, Result
from ._replay.loop import replay, run
from ._replay.replay import Replay
from ._replay.stop import Stop

# Server
from ._machine.config import show_config
from ._machine.embedding import get_cmake_dir, get_include
from ._replay.aggregate import aggregate
from ._version import __version__

if TYPE_CHECKING:
    # Problems
    from . import jax, torch

    # Data
    from . import datasets
    from ._study.data import sample_digits

    # Delays
    from . import traces

    # Server
    from . import secure
    from ._event_queue import EventQueue
    from ._server import DeltaBuffer, Server

    # Theory
    from . import theory

    # Studies and pictures
    from . import loggers, plots
    from ._study.config import StudyConfig
    from ._sweep.results import SweepResults, load_sweep
    from ._sweep.sweep import sweep
    from ._sweep.tune import tune

__all__ = [
    "__version__",
    # Problems
    "Softmax",
    "MLP",
    "Network",
    "layers",
    "Logistic",
    "LeastSquares",
    "Quadratic",
    "Problem",
    "Custom",
    "Callback",
    "torch",
    "jax",
    "LocalSGD",
    # Data
    "partition",
    "datasets",
    "read_svmlight",
    "sample_digits",
    # Delays
    "DelayModel",
    "Constant",
    "Uniform",
    "Exponential",
    "HalfNormal",
    "TruncatedNormal",
    "LogNormal",
    "Pareto",
    "Weibull",
    "Empirical",
    "Distribution",
    "Trace",
    "read_trace",
    "Availability",
    "ArrivalLog",
    "read_arrival_log",
    "FileError",
    "TraceError",
    "Recorder",
    "sample_log",
    "traces",
    # Strategies
    "FedBuff",
    "FedAsync",
    "FedAvg",
    "algorithm",
    "algorithms",
    "Algorithm",
    "SGD",
    "Nesterov",
    "DelayedNesterov",
    "Adam",
    "Adagrad",
    "Yogi",
    "AMSGrad",
    "LearningRate",
    "ClientTable",
    "Compression",
    "DeltaWeight",
    "HiddenModel",
    "OwnRule",
    "staleness",
    # Schedules
    "schedule",
    "iter_schedule",
    "uniform_arrivals",
    "Schedule",
    "Status",
    "load_schedule",
    # Replay
    "replay",
    "run",
    "Replay",
    "Stop",
    "Result",
    "History",
    "ExitReason",
    "Interrupted",
    # Server
    "Server",
    "DeltaBuffer",
    "EventQueue",
    "secure",
    "aggregate",
    "get_include",
    "get_cmake_dir",
    "show_config",
    # Theory
    "theory",
    # Studies and pictures
    "StudyConfig",
    "sweep",
    "SweepResults",
    "load_sweep",
    "tune",
    "plots",
    "loggers",
]

# Not everybody's, and slow to import: on first use.
_LATER_MODULES = ("datasets", "jax", "loggers", "plots", "secure", "theory", "torch", "traces")
_LATER_NAMES = {
    "StudyConfig": "._study.config",
    "SweepResults": "._sweep.results",
    "load_sweep": "._sweep.results",
    "sample_digits": "._study.data",
    "sweep": "._sweep.sweep",
    "tune": "._sweep.tune",
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
