"""PyTorch models as problems; PyTorch is imported when the first is made."""

from __future__ import annotations

from ._module import Module
from ._network import network

__all__ = ["Module", "network"]
