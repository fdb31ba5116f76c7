"""What a replay gives back: a history that opens in pandas, the model, and why it stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.files import optional
from .._base.html import line, table
from .._base.text_table import show

__all__ = ["RISING", "TRAFFIC", "ExitReason", "History", "Interrupted", "Result", "first_reached"]

TRAFFIC = ("bytes_up", "bytes_down")  # columns where uploads are compressed


class ExitReason(Enum):
    """Why a replay stopped."""

    SCHEDULE_END = "schedule_end"  # all server steps of the schedule were made
    SERVER_STEPS = "server_steps"  # as many as were asked for
    TIME = "time"
    UPDATES = "updates"
    LOSS = "loss"
    ACCURACY = "accuracy"
    GRAD_NORM_SQ = "grad_norm_sq"
    STOP_FUNCTION = "stop_function"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"


class History(Mapping[str, NDArray[Any]]):
    """Columns of equal length, one row per evaluation: step, time, updates, staleness, and the metrics asked for."""

    def __init__(self, rows: list[dict[str, float]] | None = None) -> None:
        self._rows: list[dict[str, float]] = rows if rows is not None else []

    def _names(self) -> list[str]:
        return list(self._rows[0]) if self._rows else []

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._names():
            raise KeyError(f"{name!r}: the history has {', '.join(self._names()) or 'no rows'}")
        return np.array([row[name] for row in self._rows])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    @property
    def n_rows(self) -> int:
        return len(self._rows)

    def append(self, row: dict[str, float]) -> None:
        self._rows.append(row)

    @property
    def last(self) -> dict[str, float]:
        """The newest row."""
        return self._rows[-1]

    def to_pandas(self) -> Any:
        """A DataFrame with one row per evaluation."""
        return optional("pandas", None, "to_pandas").DataFrame({name: self[name] for name in self})

    def __repr__(self) -> str:
        return f"<History: {self.n_rows} rows of {', '.join(self._names()) or 'nothing yet'}>"


_NOT_CURVES = ("step", "time", "updates", "staleness_mean", "staleness_max")  # of a history
RISING = ("accuracy",)  # metrics that are better when they are larger


def first_reached(history: Mapping[str, NDArray[Any]], metric: str, target: float) -> int | None:
    """The first evaluation at which the metric had reached the target, at or above it where it rises; None: none."""
    values = history[metric]
    reached = values >= target if metric in RISING else values <= target
    return int(np.argmax(reached)) if reached.any() else None


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a replay.

    stats       most_versions and most_window are the most models and deltas that were held at once; work_seconds
                (clients' work over all threads), commit_seconds (adding and stepping, of small models by every 64th
                step), wait_seconds and eval_seconds say where the time went
    repeatable  False where noise was drawn from the operating system: the same call gives another model
    releases    then, how often the noise of each server step was drawn, for `secure.epsilon`; else None
    """

    w: NDArray[np.floating[Any]] = field(repr=False)
    version: int
    history: History
    exit_reason: ExitReason
    message: str
    stats: dict[str, float] = field(repr=False)
    repeatable: bool = True
    releases: NDArray[np.int64] | None = field(default=None, repr=False)

    def _repr_html_(self) -> str:
        rows = {
            "server steps": self.version,
            "weights": f"{self.w.size:,} of {self.w.dtype}",
            "ended": self.message or self.exit_reason.value.replace("_", " "),
        }
        if not self.repeatable:
            rows["repeatable"] = "no: its noise came from the operating system"
        if self.history.n_rows:
            last = self.history.last
            rows |= {"virtual time": f"{show(last['time'])} s", "client updates": int(last["updates"])}
        curves = [name for name in self.history if name not in _NOT_CURVES]
        rows |= {name: self.history.last[name] for name in curves}
        pictures = ((name, line(self.history[name], f"{name} by evaluation")) for name in curves)
        return table("Result", rows, *pictures)

    def time_to(self, metric: str, target: float) -> float | None:
        """The virtual time of the first evaluation at which `metric` reached `target`; None where it never did."""
        at = first_reached(self.history, metric, target)
        return None if at is None else float(self.history["time"][at])

    def updates_to(self, metric: str, target: float) -> int | None:
        """The same, in client updates."""
        at = first_reached(self.history, metric, target)
        return None if at is None else int(self.history["updates"][at])


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a replay; `.result` is what was done."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"interrupted at server step {result.version}")
        self.result = result
