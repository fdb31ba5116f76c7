"""campaign.py [--seconds N] [--only PART,...] [--publish]: fuzzes what fedbuff is given, and counts.

targets    the C ABI and the check of schedules, by libFuzzer under ASan and UBSan (Clang)
files      every format that fedbuff reads, changed with a knowledge of its structure
calls      random sequences of calls of the Python API
schedules  random traces and strategies: the compiled event loop against its specification

What is found is kept in build/fuzz/found; the figures of each part in build/fuzz/figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from found import Row

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FIGURES = ROOT / "build" / "fuzz" / "figures"
SHARES = {"targets": 0.4, "files": 0.4, "calls": 0.1, "schedules": 0.1}


def run_part(part: str, seconds: float, seed: int) -> Iterator[Row]:
    if part == "targets":
        import targets

        return targets.run(seconds, seed)
    if part == "files":
        import files

        return files.run(seconds, seed)
    if part == "calls":
        import calls

        return calls.run(seconds, seed)
    import schedules

    return schedules.run(seconds, seed)


def publish() -> None:
    """The figures of all parts into docs/reliability.md."""
    sys.path.insert(0, str(HERE.parent / "torture"))
    import reliability_page

    rows = [row for part in SHARES for row in read_figures(part)]
    total = sum(row.executions for row in rows)
    hours = sum(row.seconds for row in rows) / 3600
    crashes, hangs, others = (sum(getattr(row, name) for row in rows) for name in ("crashes", "hangs", "exceptions"))
    summary = (
        f"{total:,} executions in {hours:.1f} hours by the clock: {crashes} crashes, {hangs} hangs, "
        f"{others} exceptions that are not documented."
    )
    columns = ["what was fuzzed", "executions", "minutes", "crashes", "hangs", "undocumented exceptions"]
    table = [
        [row.name, row.executions, f"{row.seconds / 60:.1f}", row.crashes, row.hangs, row.exceptions] for row in rows
    ]
    reliability_page.publish("fuzz", summary, columns, table)


def read_figures(part: str) -> list[Row]:
    path = FIGURES / f"{part}.json"
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--only", default=",".join(SHARES), help="the parts to run")
    parser.add_argument("--seed", type=int, default=round(time.time()), help="of all draws; without it, the time")
    parser.add_argument("--add", action="store_true", help="add to the figures of earlier campaigns")
    parser.add_argument("--publish", action="store_true", help="write the figures into docs/reliability.md")
    asked = parser.parse_args()
    parts = [part for part in asked.only.split(",") if part]
    if unknown := set(parts) - SHARES.keys():
        parser.error(f"--only: expected some of {', '.join(SHARES)}, got {', '.join(unknown)}")
    total = sum(SHARES[part] for part in parts)
    rows: list[Row] = []
    for part in parts:
        before = {row.name: row for row in read_figures(part)} if asked.add else {}
        for row in run_part(part, asked.seconds * SHARES[part] / total, asked.seed):
            print(f"{row.name}: {row.executions:,} in {row.seconds:.0f} s, {row.crashes} crashes, {row.hangs} hangs, "
                  f"{row.exceptions} undocumented exceptions", flush=True)  # fmt: skip
            rows.append(row)
            before[row.name] = before[row.name].plus(row) if row.name in before else row
            FIGURES.mkdir(parents=True, exist_ok=True)
            figures = [asdict(counted) for counted in before.values()]
            (FIGURES / f"{part}.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")
    if asked.publish:
        publish()
    return any(row.faults for row in rows)


if __name__ == "__main__":
    sys.exit(main())
