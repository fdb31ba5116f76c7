"""What all pictures share: axes, and lines that stay apart without colour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from .._base.files import optional

Value = TypeVar("Value")

# Okabe and Ito's colours, dark and light in turn, each with dashes of its own.
COLOURS = ("#000000", "#e69f00", "#0072b2", "#cc79a7", "#009e73", "#56b4e9", "#d55e00")
_LONG = 40  # characters of a name that would cover the lines
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (7, 2)), (0, (2, 1)))


def new_axes(ax: Any, width: float = 6.4, height: float = 3.6) -> Any:
    """`ax`, or those of a new figure."""
    pyplot = optional("matplotlib.pyplot", "plot", "plotting")
    if ax is None:
        _, ax = pyplot.subplots(figsize=(width, height), layout="constrained")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def line_style(number: int) -> dict[str, Any]:
    """A colour and dashes: another pair for each of the first 49 lines."""
    turn, at = divmod(number, len(COLOURS))
    return {"color": COLOURS[at], "linestyle": DASHES[(at + turn) % len(DASHES)], "linewidth": 1.6}


def named(value: Mapping[str, Value] | Value) -> dict[str, Value]:
    """Several by name, or one without."""
    return dict(value) if isinstance(value, Mapping) else {"": value}


def add_legend(ax: Any, names: Mapping[str, Any] | list[str]) -> None:
    """Inside where few lines leave room for it; to the right of the picture, or below it where names are long."""
    if any(names):
        place: dict[str, Any] = {}
        if max(len(name) for name in names) > _LONG:
            place = {"loc": "upper left", "bbox_to_anchor": (0.0, -0.18)}
        elif len(names) > 5:
            place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        ax.legend(frameon=False, fontsize=9, **place)
