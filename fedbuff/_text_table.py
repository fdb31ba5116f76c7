"""Rows as aligned columns of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["aligned", "show"]


def show(value: Any) -> str:
    """A cell: four digits of a float, a dash for nothing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def aligned(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows of equal keys as lines, the keys first, numbers to the right.

    >>> from fedbuff._text_table import aligned
    >>> aligned([{"name": "a", "n": 1}, {"name": "bc", "n": 20}])
    ['name   n', 'a      1', 'bc    20']
    """
    if not rows:
        return []
    names = list(rows[0])
    cells = [[show(row[name]) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[at]) for line in cells)) for at, name in enumerate(names)]
    numeric = [all(isinstance(row[name], int | float | None) for row in rows) for name in names]
    return [
        "  ".join(
            text.rjust(w) if right else text.ljust(w) for text, w, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in [names, *cells]
    ]
