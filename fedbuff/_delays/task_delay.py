"""`TaskDelay`: how long one task takes, and whether it arrives."""

from __future__ import annotations

from typing import NamedTuple


class TaskDelay(NamedTuple):
    """The delays of one task in seconds, as a schedule has them; with ok = False it never arrives."""

    wait: float
    download: float
    compute: float
    upload: float
    ok: bool = True

    @property
    def duration(self) -> float:
        """The time from start to arrival, (download + compute) + upload: without the wait."""
        return (self.download + self.compute) + self.upload
