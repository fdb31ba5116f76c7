"""Replay asynchronous federated learning (FedBuff) on a CPU, exactly and fast."""

from ._version import __version__

__all__ = ["__version__"]
