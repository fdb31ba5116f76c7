"""Writes the README's line of speed from docs/performance.md, which benches/report.py writes."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- speed: written by benches/readme.py -->\n", "<!-- end of speed -->\n"
NAMES = {"flwr": "Flower", "fedjax": "FedJAX", "flgo": "FLGo", "pfl": "pfl-research", "flsim": "FLSim"}


def speed_line(page: str) -> str:
    """Client updates a second of W1 on one core, ours and other libraries', as the page has them."""
    section = page[page.index("## Beside other libraries") :].split("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| ([\d,]+) \| (\d+) ", section, re.MULTILINE)
    ours = re.search(r"schedule included: W1 ([\d,]+);", page)
    machine = re.search(r"^```text\n([^,\n]+),", page, re.MULTILINE)
    if not rows or ours is None or machine is None or {name for name, _, _ in rows} - set(NAMES):
        raise ValueError(
            "docs/performance.md: expected rates of W1 and of other libraries as benches/page.py writes them"
        )
    faster = sorted(rows, key=lambda row: int(row[2]))
    others = ", ".join(f"{NAMES[name]} {rate}" for name, rate, _ in faster)
    text = (
        f"One core of an {machine[1]} replays {ours[1]} client updates a second, each ten steps of softmax regression "
        "on batches of 32 pictures of 784 pixels. The same work on the same core, by the loops of other libraries: "
        f"{others} ([how it was measured](docs/performance.md))."
    )
    return textwrap.fill(text, 120, break_on_hyphens=False) + "\n"


def write_readme() -> None:
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    line = speed_line((ROOT / "docs" / "performance.md").read_text(encoding="utf-8"))
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}{line}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write_readme()
