"""What a campaign counts, and where it keeps what it found."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "torture"))

from scratch import scratch

__all__ = ["FOUND", "Row", "found_folder", "scratch"]

FOUND = Path(__file__).parents[2] / "build" / "fuzz" / "found"


@dataclass(frozen=True)
class Row:
    """How often a part was tried, and how often it ended otherwise than it is documented to."""

    name: str
    executions: int
    seconds: float
    crashes: int
    hangs: int
    exceptions: int
    sanitized: int = 0  # of the executions: under the address and the undefined-behaviour sanitizer

    def plus(self, other: Row) -> Row:
        both = asdict(self), asdict(other)
        return Row(self.name, **{key: both[0][key] + both[1][key] for key in both[0] if key != "name"})

    @property
    def faults(self) -> int:
        return self.crashes + self.hangs + self.exceptions


def found_folder(name: str) -> Path:
    folder = FOUND / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
