"""Replay asynchronous federated learning (FedBuff) on a CPU, exactly and fast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import staleness
from ._aggregate import aggregate
from ._config import show_config
from ._local import LocalSGD
from ._problems import MLP, LeastSquares, Logistic, Problem, Quadratic, Softmax
from ._strategy import SGD, Adam, FedAsync, FedAvg, FedBuff
from ._version import __version__

if TYPE_CHECKING:
    from ._server import DeltaBuffer, Server

__all__ = [
    "MLP",
    "SGD",
    "Adam",
    "DeltaBuffer",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "LeastSquares",
    "LocalSGD",
    "Logistic",
    "Problem",
    "Quadratic",
    "Server",
    "Softmax",
    "__version__",
    "aggregate",
    "get_include",
    "show_config",
    "staleness",
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
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
