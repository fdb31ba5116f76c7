"""campaign.py [--seconds N] [--only PART,...] [--names NAME,...] [--sanitized] [--anew] [--publish]: fuzzes what
fedbuff is given, and counts.

targets    the C ABI, the event loop and the check of schedules, by libFuzzer under ASan and UBSan (Clang)
files      every format that fedbuff reads, changed with a knowledge of its structure
calls      random sequences of calls of the Python API
schedules  random traces and strategies: the compiled event loop against its specification

A campaign may run in pieces: each adds to the counts of those before it, in build/fuzz/figures, with the commit that
was built. In a checkout without them the first piece adds to the figures on the page. What is found is kept in
build/fuzz/found; once it is mended, --anew begins that count again.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "torture")]  # also where PYTHONSAFEPATH is set

import reliability_page  # noqa: E402
from found import Row  # noqa: E402

FIGURES = ROOT / "build" / "fuzz" / "figures"
SANITIZED = ROOT / "build" / "sanitize"
SHARES = {"targets": 0.4, "files": 0.4, "calls": 0.1, "schedules": 0.1}
COUNTED = {
    "targets": "executions of C++ targets",
    "files": "changed files",
    "calls": "sequences of calls",
    "schedules": "random schedules",
}


def run_part(part: str, seconds: float, seed: int, names: list[str]) -> Iterator[Row]:
    if part == "targets":
        import targets

        return targets.run(seconds, seed, names)
    if part == "files":
        import files

        return files.run(seconds, seed, names)
    if part == "calls":
        import calls

        return calls.run(seconds, seed)
    import schedules

    return schedules.run(seconds, seed)


def add(part: str, row: Row, built: str, *, anew: bool) -> None:
    """Adds to the figures of a part, which another piece may be adding to as well."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    path = FIGURES / f"{part}.json"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows, builds = read_figures(part)
        if not anew and row.name in rows:
            row = rows[row.name].plus(row)
        rows[row.name] = row
        builds = list(dict.fromkeys([*builds, built]))
        figures = {"builds": builds, "rows": [asdict(one) for one in rows.values()]}
        path.with_suffix(".part").write_text(json.dumps(figures, indent=1), encoding="utf-8")
        path.with_suffix(".part").replace(path)


def read_figures(part: str) -> tuple[dict[str, Row], list[str]]:
    """The rows of a part by name, and the commits that were built for them."""
    path = FIGURES / f"{part}.json"
    if not path.exists():
        rows, builds = rows_of_page(reliability_page.PAGE.read_text(encoding="utf-8"))
        return {name: row for name, row in rows.items() if part_of(name) == part}, builds
    figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {row["name"]: Row(**row) for row in figures["rows"]}, figures["builds"]


def part_of(name: str) -> str:
    """The part that a row belongs to."""
    beginnings = {"C++: ": "targets", "file: ": "files", "calls ": "calls"}
    return next((part for beginning, part in beginnings.items() if name.startswith(beginning)), "schedules")


def rows_of_page(page: str) -> tuple[dict[str, Row], list[str]]:
    """The rows of all parts on the page, and what they were built from."""
    block = page.partition("<!-- begin fuzz -->")[2].partition("<!-- end fuzz -->")[0]
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in block.splitlines() if line[:1] == "|"]
    rows = {}
    for name, executions, sanitized, minutes, *faults in cells[2:]:
        numbers = [int(cell.replace(",", "")) for cell in (executions, *faults, sanitized)]
        rows[name] = Row(name, numbers[0], 60 * float(minutes), *numbers[1:])
    built = re.search(r"Built from (.*)\.\n", block)
    return rows, built[1].split(", ") if built else []


def publish() -> None:
    """The figures of all parts into docs/reliability.md."""
    figures = {part: read_figures(part) for part in SHARES}
    rows = [row for found, _ in figures.values() for row in found.values()]
    totals = [
        f"{sum(row.executions for row in found.values()):,} {COUNTED[part]}"
        for part, (found, _) in figures.items()
        if found
    ]
    hours = sum(row.seconds for row in rows) / 3600
    crashes, hangs, others = (sum(getattr(row, name) for row in rows) for name in ("crashes", "hangs", "exceptions"))
    builds = list(dict.fromkeys(built for _, part in figures.values() for built in part))
    summary = (
        f"{', '.join(totals)}, in {hours:.1f} hours by the clock: {crashes} crashes, {hangs} hangs, "
        f"{others} exceptions that are not documented. Built from {', '.join(builds)}."
    )
    print(summary)
    columns = [
        *("what was fuzzed", "executions", "of them under sanitizers", "minutes"),
        *("crashes", "hangs", "undocumented exceptions"),
    ]
    table = [
        [
            *(row.name, row.executions, row.sanitized, f"{row.seconds / 60:.1f}"),
            *(row.crashes, row.hangs, row.exceptions),
        ]
        for row in rows
    ]
    reliability_page.publish("fuzz", summary, columns, table)


def built_targets(as_built: bool) -> str:
    """Builds the targets, unless they are to be taken as they are; the commit of their sources."""
    import targets

    if not as_built:
        targets.build()
    return targets.BUILT.read_text(encoding="utf-8")


def again_under_sanitizers() -> int:
    """The same command on the sanitized build, which `make sanitize` makes."""
    script = HERE.parent / "sanitized_python.sh"
    environment = {**os.environ, "FEDBUFF_FUZZ_SANITIZED": "1"}
    command = [str(script), sys.executable, str(SANITIZED), str(HERE / "campaign.py"), *sys.argv[1:]]
    return subprocess.run(command, env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--only", default=",".join(SHARES), help="the parts to run; none, to publish alone")
    parser.add_argument("--names", default="", help="some of the targets, or of the kinds of files")
    parser.add_argument("--seed", type=int, default=round(time.time()), help="of all draws; without it, the time")
    parser.add_argument("--sanitized", action="store_true", help="files and calls on the build with sanitizers")
    parser.add_argument("--as-built", action="store_true", help="the targets as they are, of an older commit")
    parser.add_argument("--anew", action="store_true", help="forget the counts of earlier pieces, of what is run")
    parser.add_argument("--publish", action="store_true", help="write the figures into docs/reliability.md")
    asked = parser.parse_args()
    parts, names = ([word for word in text.split(",") if word] for text in (asked.only, asked.names))
    if unknown := set(parts) - SHARES.keys():
        parser.error(f"--only: expected some of {', '.join(SHARES)}, got {', '.join(unknown)}")
    if asked.sanitized and not set(parts) <= {"files", "calls"}:
        parser.error("--sanitized: expected --only files, calls or both; targets have sanitizers always")
    if asked.sanitized and "FEDBUFF_FUZZ_SANITIZED" not in os.environ:
        return again_under_sanitizers()
    if asked.sanitized:
        import fedbuff._core

        if not Path(fedbuff._core.__file__).is_relative_to(SANITIZED):
            parser.error(f"--sanitized: {fedbuff._core.__file__} is not the sanitized build; run make sanitize")
    total = sum(SHARES[part] for part in parts)
    faults = 0
    for part in parts:
        built = built_targets(asked.as_built) if part == "targets" else reliability_page.commit()
        for row in run_part(part, asked.seconds * SHARES[part] / total, asked.seed, names):
            if part == "targets" or asked.sanitized:
                row = Row(**{**asdict(row), "sanitized": row.executions})
            print(f"{row.name}: {row.executions:,} in {row.seconds:.0f} s, {row.crashes} crashes, {row.hangs} hangs, "
                  f"{row.exceptions} undocumented exceptions", flush=True)  # fmt: skip
            faults += row.faults
            add(part, row, built, anew=asked.anew)
    if asked.publish:
        publish()
    return faults > 0


if __name__ == "__main__":
    sys.exit(main())
