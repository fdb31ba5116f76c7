"""The figures of a campaign: a JSON file in build/reliability, and a block of docs/reliability.md made from it.

A block stands between `<!-- begin NAME -->` and `<!-- end NAME -->`. `python reliability_page.py` writes all blocks
anew whose JSON file is there; a campaign calls `publish` at its end.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
FIGURES = ROOT / "build" / "reliability"


def replaced(page: str, name: str, text: str) -> str:
    """The page with another text in the block of this name; a ValueError where it has no such block, or several."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"{PAGE.name}: expected one block {begin} ... {end}")
    before, rest = page.split(begin)
    return f"{before}{begin}\n{text.strip()}\n{end}{rest.split(end)[1]}"


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; whole numbers have commas between thousands."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(f'{c:,}' if type(c) is int else str(c) for c in line)} |" for line in lines)


def block(figures: Mapping[str, Any]) -> str:
    """A campaign's table, and when and on what it ran."""
    return f"{figures['summary']}\n\n{table(figures['columns'], figures['rows'])}\n\n{figures['where']}"


def publish(name: str, summary: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], **more: Any) -> None:
    """Writes build/reliability/NAME.json and the block NAME of the page; `more` is for the JSON file alone."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    when = datetime.datetime.now(datetime.UTC).date()
    where = f"{when}, {cpus} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}."
    figures = {"name": name, "summary": summary, "columns": columns, "rows": rows, "where": where, **more}
    FIGURES.mkdir(parents=True, exist_ok=True)
    (FIGURES / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    write_block(figures)


def write_block(figures: Mapping[str, Any]) -> None:
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), figures["name"], block(figures)), encoding="utf-8")


if __name__ == "__main__":
    found = sorted(FIGURES.glob("*.json"))
    for file in found:
        write_block(json.loads(file.read_text(encoding="utf-8")))
    sys.exit(None if found else f"{FIGURES}: no figures are there; run a campaign first")
