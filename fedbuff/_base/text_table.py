"""Rows as aligned columns of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["aligned", "show"]


def show(value: Any) -> str:
    """A cell: four digits of a float, whole numbers of five digits and more with commas, a dash for nothing.

    >>> from fedbuff._base.text_table import show
    >>> show(0.123456), show(106_800), show(106_799.5), show(1.5e12), show(None)
    ('0.1235', '106,800', '106,800', '1.5e+12', '-')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e12 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:,}"
    return str(value)


def aligned(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows of equal keys as lines, the keys first, numbers to the right.

    >>> from fedbuff._base.text_table import aligned
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
