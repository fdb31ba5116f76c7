"""The figures of a campaign: a JSON file in build/reliability, and a block of docs/reliability.md made from it.

A block stands between `<!-- begin NAME -->` and `<!-- end NAME -->`. `python reliability_page.py` writes all blocks
anew whose JSON file is there; a campaign calls `publish` at its end. A campaign of several cases may run in pieces:
each case is kept by `record`, with the commit that was built, and `recorded` gives the last figures of each.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
FIGURES = ROOT / "build" / "reliability"


class Recorded(NamedTuple):
    """A case of a campaign: its row of the table, the seconds that it took, and the commit that was built."""

    row: list[Any]
    seconds: float
    built: str


@functools.cache
def commit() -> str:
    """What was built when this process began, as Git calls it; the page itself does not count, as its figures change
    while a campaign runs."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "describe", "--always"], capture_output=True, text=True, check=True).stdout.strip()
    differs = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ".", f":!{PAGE.relative_to(ROOT)}"], check=False)
    return f"{head}-dirty" if differs.returncode else head


def record(name: str, row: Sequence[Any], seconds: float) -> None:
    """Keeps the figures of a case, whose name is the row's first cell, in the place of older ones."""
    kept = {str(one.row[0]): one for one in recorded(name)}
    kept[str(row[0])] = Recorded(list(row), seconds, commit())
    FIGURES.mkdir(parents=True, exist_ok=True)
    (FIGURES / f"{name}-cases.json").write_text(json.dumps(list(kept.values()), indent=1) + "\n", encoding="utf-8")


def recorded(name: str) -> list[Recorded]:
    path = FIGURES / f"{name}-cases.json"
    return [Recorded(*one) for one in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def builds(cases: Sequence[Recorded]) -> str:
    return f"Built from {', '.join(dict.fromkeys(case.built for case in cases))}."


def part_of(cases: Sequence[Any], part: str) -> Iterator[Any]:
    """Every n-th case from the i-th on, of a part "i/n"."""
    number, _, of = part.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise ValueError(f"--part: expected i/n, from 1/n to n/n, got {part}")
    yield from cases[int(number) - 1 :: int(of)]


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
    found = sorted(path for path in FIGURES.glob("*.json") if not path.stem.endswith("-cases"))
    for file in found:
        write_block(json.loads(file.read_text(encoding="utf-8")))
    sys.exit(None if found else f"{FIGURES}: no figures are there; run a campaign first")
