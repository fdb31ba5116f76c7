"""JAX losses as problems; JAX is imported when the first is made."""

from __future__ import annotations

from ._loss import Loss

__all__ = ["Loss"]
