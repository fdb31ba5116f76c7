"""How problems show themselves: a line of text, and a small table in a notebook."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from .._base.html import table

__all__ = ["as_html", "as_text"]


class Shown(Protocol):
    """What every problem has."""

    @property
    def n_clients(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[np.floating[Any]]: ...


def as_text(problem: Shown) -> str:
    """For `__repr__`."""
    return f"<{type(problem).__name__}: {problem.n_clients:,} clients, {problem.dim:,} {problem.dtype} weights>"


def as_html(problem: Shown, **more: Any) -> str:
    """For `_repr_html_`; `more` are rows of the table."""
    rows = {"clients": f"{problem.n_clients:,}", "weights": f"{problem.dim:,} of {problem.dtype}"}
    return table(type(problem).__name__, rows | more)
