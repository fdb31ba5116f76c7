"""The books of a replay: where it stands, in one value that is replaced and never changed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends.spec import ReplayEngine
from ..backends.spec import Vector as Floats

Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows for the engine, and what is known of their steps."""

    number: int
    columns: Columns
    s: NDArray[np.float64]
    e: NDArray[np.float64]
    references: NDArray[np.int64]
    unused: NDArray[np.int64]
    step_time: NDArray[np.float64]
    of_stream: bool

    def give(self, engine: ReplayEngine) -> None:
        columns = self.columns
        engine.add(
            columns["client"], columns["task"], columns["version"], columns["step"], self.s, self.e, self.references,
            self.unused,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Books:
    """Where a replay stands, all of it in one value that is replaced and never changed.

    So an interrupt finds the old books or the new ones. The engine's version and number of pieces say how far the
    replay really is; `Replay._settle` brings the books there, whenever it is called.
    """

    version: int = 0
    time: float = 0.0
    updates: int = 0
    taken: int = 0  # of a stream: a hash of the rows and times of the steps that are made
    # Since the last evaluation: the updates then, sum and maximum of staleness.
    updates_before: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    # The history's length and newest row; and the model that was evaluated.
    n_rows: int = 0
    newest: dict[str, float] | None = None
    evaluated: Floats | None = None
    # Of steps version, version + 1, ...: time; used rows up to and with the step; sum and maximum of staleness over the
    # step's rows; a hash of them, of a stream.
    step_time: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    step_rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    step_staleness: NDArray[np.int64] = field(default_factory=lambda: np.empty((2, 0), np.int64))
    step_hash: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    pieces: int = 0
    rows_known: int = 0
    last: Columns | None = None  # the newest piece

    @property
    def steps_known(self) -> int:
        return self.version + len(self.step_time)

    def with_piece(self, piece: _Piece) -> _Books:
        """The engine was given this piece."""
        columns = piece.columns
        ends = np.searchsorted(columns["step"], self.steps_known + np.arange(len(piece.step_time)), side="right")
        hashes = np.zeros(len(ends), np.uint64)
        if piece.of_stream:
            hashes = _step_hash(columns, self.rows_known, ends, piece.step_time)
        return replace(
            self,
            step_time=np.concatenate((self.step_time, piece.step_time)),
            step_rows=np.concatenate((self.step_rows, self.rows_known + ends)),
            step_staleness=np.concatenate((self.step_staleness, _by_step(columns["staleness"], ends)), axis=1),
            step_hash=np.concatenate((self.step_hash, hashes)),
            pieces=piece.number + 1,
            rows_known=self.rows_known + len(columns["client"]),
            last=columns,
        )

    def advanced(self, version: int) -> _Books:
        """The server is at this version now."""
        made = version - self.version
        if made == 0:
            return self
        return replace(
            self,
            version=version,
            time=float(self.step_time[made - 1]),
            updates=int(self.step_rows[made - 1]),
            taken=(self.taken + int(self.step_hash[:made].sum())) % 2**64,
            staleness_sum=self.staleness_sum + int(self.step_staleness[0, :made].sum()),
            staleness_max=max(self.staleness_max, int(self.step_staleness[1, :made].max())),
            step_time=self.step_time[made:],
            step_rows=self.step_rows[made:],
            step_staleness=self.step_staleness[:, made:],
            step_hash=self.step_hash[made:],
        )

    def looked(self, row: dict[str, float] | None, evaluated: Floats | None) -> _Books:
        """The model was evaluated, with this new row of the history."""
        return replace(
            self,
            updates_before=self.updates,
            staleness_sum=0,
            staleness_max=0,
            n_rows=self.n_rows + (row is not None),
            newest=row,
            evaluated=evaluated,
        )


def _step_hash(
    columns: Columns, first_row: int, ends: NDArray[np.int64], step_time: NDArray[np.float64]
) -> NDArray[np.uint64]:
    """For every step a number made of its rows, which end at `ends`, and its time, that can be added up."""
    mark = (first_row + np.arange(len(columns["client"]))).astype(np.uint64)
    for name, odd in (("client", 0x9E3779B97F4A7C15), ("task", 0xBF58476D1CE4E5B9), ("version", 0x94D049BB133111EB)):
        mark = (mark ^ columns[name].astype(np.uint64)) * np.uint64(odd)
        mark ^= mark >> np.uint64(31)
    total = np.concatenate((np.zeros(1, np.uint64), np.cumsum(mark, dtype=np.uint64)))
    begins = np.concatenate(([0], ends[:-1])).astype(np.int64)[: len(ends)]
    time = np.ascontiguousarray(step_time, np.float64).view(np.uint64) * np.uint64(0xD6E8FEB86659FD93)
    return total[ends] - total[begins] + (time ^ (time >> np.uint64(32)))


def _by_step(staleness: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum and maximum of each step's rows, which end at `ends`; zero for a step without rows."""
    begins = np.concatenate(([0], ends[:-1])).astype(np.int64)
    result = np.zeros((2, len(ends)), np.int64)
    full = begins < ends
    if full.any():
        result[0, full] = np.add.reduceat(staleness, begins[full])
        result[1, full] = np.maximum.reduceat(staleness, begins[full])
    return result
