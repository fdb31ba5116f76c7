"""Small tables and pictures for notebooks: HTML with inline SVG and without scripts, all text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .text_table import show

__all__ = ["bars", "fields_table", "grid", "line", "table", "timeline"]

_WIDTH, _HEIGHT = 240, 48
_COLOR = "#4477aa"
_FILLS = {"used": "#4477aa", "other": "#ccbb44", "never arrived": "#cc3311"}


def table(title: str, rows: Mapping[str, Any], *pictures: tuple[str, str]) -> str:
    """A heading, a row for each entry, and pictures, each with a caption."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(show(value))}</td></tr>'
        for name, value in rows.items()
    )
    drawn = "".join(
        f'<figure style="margin:0.4em 0"><figcaption>{escape(caption)}</figcaption>{svg}</figure>'
        for caption, svg in pictures
        if svg
    )
    return f"<div><strong>{escape(title)}</strong><table><tbody>{cells}</tbody></table>{drawn}</div>"


def grid(rows: Sequence[Mapping[str, Any]], notes: Iterable[str] = ()) -> str:
    """Rows of equal keys, the keys first."""
    heads = "".join(f"<th>{escape(name)}</th>" for name in (rows[0] if rows else ()))
    body = "".join(f"<tr>{''.join(f'<td>{escape(show(value))}</td>' for value in row.values())}</tr>" for row in rows)
    below = "".join(f"<div>note: {escape(note)}</div>" for note in notes)
    return f"<div><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{below}</div>"


def fields_table(value: Any) -> str:
    """A dataclass: its name, and the fields that are not as they are by default."""
    rows = {}
    for part in fields(value):
        given = getattr(value, part.name)
        default = part.default if part.default_factory is MISSING else part.default_factory()
        if part.repr and (isinstance(given, np.ndarray) or given != default):
            rows[part.name] = f"{given.size} numbers" if isinstance(given, np.ndarray) else repr(given)
    return table(type(value).__name__, rows)


def line(values: NDArray[Any], label: str) -> str:
    """The values from left to right, the finite ones; at most as many points as the picture is wide."""
    y = np.asarray(values, np.float64)
    if y.size > _WIDTH:
        y = y[np.linspace(0, y.size - 1, _WIDTH).astype(np.int64)]
    x = np.linspace(2.0, _WIDTH - 2.0, max(y.size, 2))[: y.size]
    kept = np.isfinite(y)
    if np.count_nonzero(kept) < 2:
        return ""
    x, y = x[kept], y[kept]
    span = float(np.ptp(y)) or 1.0
    height = (_HEIGHT - 3.0) - (y - y.min()) / span * (_HEIGHT - 6.0)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x.tolist(), height.tolist(), strict=True))
    return _svg(label, f'<polyline points="{points}" fill="none" stroke="{_COLOR}" stroke-width="1.5"/>')


def bars(counts: NDArray[Any], label: str) -> str:
    """A bar for each count, from left to right; many counts are summed up in at most 60 bars."""
    heights = np.asarray(counts, np.float64)
    if heights.size > 60:
        edges = np.linspace(0, heights.size, 61).astype(np.int64)[:-1]
        heights = np.add.reduceat(heights, edges)
    if heights.size == 0 or heights.max() <= 0:
        return ""
    width = _WIDTH / heights.size
    drawn = "".join(
        f'<rect x="{i * width:.1f}" y="{_HEIGHT - h:.1f}" width="{max(width - 1.0, 0.8):.1f}" height="{h:.1f}"/>'
        for i, h in enumerate((heights / heights.max() * (_HEIGHT - 2.0)).tolist())
        if h > 0
    )
    return _svg(label, f'<g fill="{_COLOR}">{drawn}</g>')


def timeline(rows: Iterable[tuple[int, float, float, str]], steps: Iterable[float], end: float, label: str) -> str:
    """Bars from start to end in the row of their client, colored by what became of them; a line at each server step."""
    shown = list(rows)
    if not shown or end <= 0:
        return ""
    place = {client: at for at, client in enumerate(sorted({row[0] for row in shown}))}
    height = 9.0
    drawn = []
    for client, start, stop, state in shown:
        left, right = start / end * _WIDTH * 2, stop / end * _WIDTH * 2
        drawn.append(
            f'<rect x="{left:.1f}" y="{place[client] * height + 1:.1f}" width="{max(right - left, 0.8):.1f}" '
            f'height="{height - 2:.1f}" fill="{_FILLS[state]}" fill-opacity="0.75"/>'
        )
    total = height * len(place)
    drawn += [
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{total:.1f}" stroke="#555" stroke-width="0.8"/>'
        for x in (step / end * _WIDTH * 2 for step in steps)
    ]
    return _svg(label, "".join(drawn), _WIDTH * 2, total)


def _svg(label: str, inner: str, width: float = _WIDTH, height: float = _HEIGHT) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(label)}" width="{width:g}" '
        f'height="{height:g}" viewBox="0 0 {width:g} {height:g}">{inner}</svg>'
    )
