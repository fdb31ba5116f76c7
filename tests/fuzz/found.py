"""What a campaign counts, and where it keeps what it found."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

FOUND = Path(__file__).parents[2] / "build" / "fuzz" / "found"
_IN_MEMORY = Path("/dev/shm")  # files there cost no disk


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


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for files that are made, read and forgotten; in memory where that is possible."""
    return tempfile.TemporaryDirectory(prefix="fedbuff-fuzz-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None)
