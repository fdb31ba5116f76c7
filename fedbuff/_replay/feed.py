"""The feed: a schedule, piece by piece, as rows for the engine."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._rule.strategies import PER_CLIENT, Rule
from .._schedule.check import ChunkCheck
from .._schedule.columns import Status
from .._schedule.schedule import Schedule
from ..backends.spec import ReplayRun, UsedRows

Columns = dict[str, NDArray[Any]]

_ROWS_AT_ONCE = 50_000
_NO_STEP = np.iinfo(np.int64).max
_ASKED, _END = object(), object()


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows for a run, and what is known of their steps; `marks` only of a stream."""

    number: int
    first_row: int
    columns: Columns
    s: NDArray[np.float64]
    e: NDArray[np.float64]
    references: NDArray[np.int64]
    unused: NDArray[np.int64]
    step_time: NDArray[np.float64]
    marks: NDArray[np.uint64] | None

    def give(self, run: ReplayRun) -> None:
        columns = self.columns
        rows = UsedRows(columns["client"], columns["task"], columns["version"], columns["step"], self.s, self.e)
        run.add(rows, self.references, self.unused, self.step_time, self.marks)


class _Feed:
    """The schedule, piece by piece. A piece is made once and kept until the next one is asked for."""

    def __init__(
        self,
        schedule: Schedule | Iterable[Schedule],
        rule: Rule,
        e_by_client: NDArray[np.float64],
        n_clients: int,
        keeps_state: bool = False,
        marked: bool = True,
    ) -> None:
        """`marked`: chunks are hashed step by step, for checkpoints."""
        self._marked = marked
        self.whole = schedule if isinstance(schedule, Schedule) else None
        self._rule, self._e, self._n_clients, self._keeps_state = rule, e_by_client, n_clients, keeps_state
        self._one_e = bool((e_by_client == e_by_client[:1]).all())  # then no client is looked up
        self._s = np.empty(0)
        self._piece: _Piece | None = None
        self._taken: NDArray[np.uint64] | None = None  # of a whole schedule, by version
        if isinstance(schedule, Schedule):
            if schedule.first_step != 0:
                raise ValueError("schedule: it begins at a later step; replay the whole one")
            used = schedule.status == Status.USED
            n_steps = schedule.n_steps
            self._rows: NDArray[np.int64] | None = None if used.all() else np.flatnonzero(used)
            self._step: NDArray[np.int64] | None = None  # where it is not the schedule's
            if keeps_state:
                self._rows, self._step = _rows_with_state(schedule)
            version, step = (
                column if self._rows is None else column[self._rows] for column in (schedule.version, schedule.step)
            )
            step = step if self._step is None else self._step
            self._references = np.bincount(version, minlength=n_steps)[:n_steps]
            self._bounds = np.concatenate(([0], np.bincount(step, minlength=n_steps).cumsum()))
        else:
            self._stream = iter(schedule)
            # The piece that the stream was asked for, and what came: see _next_chunk.
            self._answer: tuple[int, deque[Any]] = (-1, deque())
            self._first: Schedule | None = None
            self._check = ChunkCheck()
            self._ends_open = False  # the newest chunk, with a change of a client's state that no step follows

    def give(self, run: ReplayRun) -> bool:
        """Gives the run its next piece; False where there is none."""
        number, first_step, first_row = run.pieces(), run.steps_known(), run.rows_known()
        if self._piece is None or self._piece.number != number:
            made = (
                self._cut(number, first_step) if self.whole is not None else self._chunk(number, first_step, first_row)
            )
            if made is None:
                return False
            self._piece = made
        self._piece.give(run)
        return True

    def locate(self, row: int) -> tuple[int, int] | None:
        """Client and version of a row of the newest piece."""
        piece = self._piece
        if piece is None or not 0 <= row - piece.first_row < len(piece.columns["client"]):
            return None
        client, version = (int(piece.columns[name][row - piece.first_row]) for name in ("client", "version"))
        return client, version

    def taken(self, run: ReplayRun) -> str:
        """A hash of the rows and times of the steps that are made: the same for a schedule and a stream of it."""
        if self.whole is None:
            return f"{run.mark():016x}"
        if self._taken is None:
            total = [np.zeros(1, np.uint64)]
            number = step = 0
            while (piece := self._cut(number, step)) is not None:
                end = step + len(piece.step_time)
                hashes = _step_hash(piece.columns, piece.first_row, step, piece.step_time)
                total.append(np.cumsum(hashes, dtype=np.uint64) + total[-1][-1])
                number, step = number + 1, end
            self._taken = np.concatenate(total)
        return f"{int(self._taken[run.version()]):016x}"

    def _cut(self, number: int, begin: int) -> _Piece | None:
        """A schedule at hand: only its used rows matter, and how often they name each version."""
        assert self.whole is not None
        n_steps, bounds = self.whole.n_steps, self._bounds
        if begin >= n_steps:
            return None
        end = int(np.searchsorted(bounds, bounds[begin] + _ROWS_AT_ONCE))
        end = min(max(end, begin + 1), n_steps)
        rows: Any = slice(bounds[begin], bounds[end])
        columns = _columns(self.whole, rows if self._rows is None else self._rows[rows])
        if self._step is not None:
            columns |= {"step": self._step[rows], "used": columns["step"] >= 0}
        nothing = np.empty(0, np.int64)
        return self._weighed(
            number,
            int(bounds[begin]),
            columns,
            self._references[begin:end],
            nothing,
            self.whole.step_time[begin:end],
            None,
        )

    def _chunk(self, number: int, first_step: int, first_row: int) -> _Piece | None:
        """A schedule that comes in chunks: the tasks started on a version are counted, and ended ones let go of it."""
        chunk = self._next_chunk(number)
        if chunk is None:
            return None
        if not isinstance(chunk, Schedule):
            raise TypeError(f"schedule: expected a Schedule or an iterator of them, got {type(chunk).__name__}")
        if chunk.n_clients != self._n_clients:
            raise ValueError(f"schedule: expected chunks of {self._n_clients} clients, got {chunk.n_clients}")
        if chunk.first_step != first_step:
            raise ValueError(
                f"schedule: expected a chunk that begins at step {first_step}, got one at {chunk.first_step}"
            )
        if self._first is None:
            self._first = chunk
        _refuse_another(self._first, chunk)
        try:
            self._check.add(chunk, number)
        except ValueError as error:
            raise ValueError(f"schedule: the chunk at step {first_step}: {error}") from error
        started = np.concatenate(([chunk.started_on_0], chunk.step_started))[: chunk.n_steps]
        if self._ends_open:
            raise ValueError(f"schedule: the chunk before step {first_step} does not end at a step")
        is_used = chunk.status == Status.USED
        if is_used.all() and not self._keeps_state:
            columns = _columns(chunk, slice(None))
            marks = _step_hash(columns, first_row, first_step, chunk.step_time) if self._marked else None
            nothing = np.empty(0, np.int64)
            return self._weighed(number, first_row, columns, started, nothing, chunk.step_time, marks)
        rows = np.flatnonzero(is_used)
        columns = _columns(chunk, rows)
        if self._keeps_state:
            rows, step = _rows_with_state(chunk)
            columns = _columns(chunk, rows)
            columns |= {"step": step, "used": columns["step"] >= 0}
            last = np.flatnonzero(chunk.status == Status.TOO_STALE)[-1:]
            self._ends_open = last.size > 0 and (rows.size == 0 or last[0] > rows[-1])
        unused = np.ones(len(chunk.status), bool)
        unused[rows] = False
        marks = _step_hash(columns, first_row, first_step, chunk.step_time) if self._marked else None
        return self._weighed(number, first_row, columns, started, chunk.version[unused], chunk.step_time, marks)

    def _next_chunk(self, number: int) -> Any:
        """The chunk of this number; None at the end.

        What the stream gives is kept in one call of C, which no interrupt can cut in two: _ASKED, the chunk if there is
        one, and _END. An interrupt or error inside the stream leaves _ASKED alone. A generator is at its end after
        that; whether another stream can go on shows when it is asked again.
        """
        if self._answer[0] != number:
            self._answer = (number, deque())
        answer = self._answer[1]
        if not answer or answer[-1] is not _END:
            answer.extend(itertools.chain((_ASKED,), itertools.islice(self._stream, 1), (_END,)))
        if answer[-2] is not _ASKED:
            return answer[-2]
        if len(answer) > 2:
            raise ValueError(
                "schedule: the stream was interrupted while it made a chunk, and ended; go on from a checkpoint with a "
                "new stream"
            )
        return None

    def _weighed(
        self,
        number: int,
        first_row: int,
        columns: Columns,
        references: NDArray[np.int64],
        unused: NDArray[np.int64],
        step_time: NDArray[np.float64],
        marks: NDArray[np.uint64] | None,
    ) -> _Piece:
        staleness, client = columns["staleness"], columns["client"]
        if client.size and not 0 <= int(client.min()) <= int(client.max()) < len(self._e):
            raise ValueError(f"schedule: clients {client.min()} to {client.max()} of a problem with {len(self._e)}")
        used = columns.get("used")
        if used is not None:
            staleness = np.where(used, staleness, 0)
        e = np.full(len(staleness), self._e[0]) if self._one_e else self._e[client]
        if self._rule.weighting == PER_CLIENT:
            step = columns["step"] if used is None else np.where(used, columns["step"], -1)
            _, which, counts_of = np.unique(step * self._n_clients + client, return_inverse=True, return_counts=True)
            e = e / counts_of[which]  # whole steps are in a piece
        s = self.staleness_weights(int(staleness.max(initial=-1)) + 1)[staleness]
        if self._rule.secure is not None or self._rule.privacy is not None:
            s = _whole_weights(self._rule, s, e, staleness)
        if used is not None:
            s = np.where(used, s, -1.0)
        counts, ended = np.ascontiguousarray(references, np.int64), np.ascontiguousarray(unused, np.int64)
        times = np.ascontiguousarray(step_time, np.float64)
        return _Piece(number, first_row, columns, s, e, counts, ended, times, marks)

    def staleness_weights(self, needed: int) -> NDArray[np.float64]:
        """s of staleness 0, 1, ..., at least so many."""
        if needed > len(self._s):
            self._s = np.array([self._rule.staleness_weight(t) for t in range(max(needed, 2 * len(self._s)))])
        return self._s


def _refuse_another(first: Schedule, chunk: Schedule) -> None:
    """ValueError for a chunk that does not belong to the schedule of the first one."""
    where = f"schedule: the chunk at step {chunk.first_step} is of another schedule"
    for name in ("n_clients", "buffer_size", "concurrency", "seed"):
        ours, others = getattr(first, name), getattr(chunk, name)
        if ours != others:
            raise ValueError(f"{where}: its {name} is {others}, that of the first chunk is {ours}")
    ours, others = first.description, chunk.description
    for name in ("source", "strategy"):
        if ours.get(name) != others.get(name):
            raise ValueError(f"{where}: it was made with another {name} than the first chunk")


def _whole_weights(
    rule: Rule, s: NDArray[np.float64], e: NDArray[np.float64], staleness: NDArray[np.int64]
) -> NDArray[np.float64]:
    """s so that s e is a weight that a secure or private sum may have: a whole number of 1 / weight_unit, at most 1."""
    weight = s * e
    secure = rule.secure
    if secure is not None:
        whole = np.rint(weight * secure.weight_unit)
        bad = (whole < 1) | (whole > secure.most)
        if bad.any():
            at = int(np.argmax(bad))
            raise ValueError(
                f"secure: the weight s e = {weight[at]:g} of staleness {staleness[at]} is {whole[at]:g} units of "
                f"1 / {secure.weight_unit}; expected 1 to {secure.most}: change weight_unit, max_weight or weight_scale"
            )
        weight = whole / secure.weight_unit
        s = weight / e
    if rule.privacy is not None and bool((weight > 1).any()):
        at = int(np.argmax(weight > 1))
        raise ValueError(
            f"privacy: the weight s e = {weight[at]:g} of staleness {staleness[at]} is above 1, for which the noise is "
            "made; change weight_scale"
        )
    return s


def _columns(schedule: Schedule, rows: slice | NDArray[np.int64]) -> Columns:
    names = ("client", "task", "version", "step", "staleness")
    return {name: np.ascontiguousarray(getattr(schedule, name)[rows]) for name in names}


def _rows_with_state(schedule: Schedule) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows that are run where clients keep a state, and their steps: those that a step uses, and those that were
    too stale, which get the step of the used row after them. Behind the last used row nobody sees what changes."""
    used = schedule.status == Status.USED
    rows = np.flatnonzero(used | (schedule.status == Status.TOO_STALE))
    step = np.where(used[rows], schedule.step[rows], _NO_STEP)
    step = np.minimum.accumulate(step[::-1])[::-1]
    return rows[step < _NO_STEP], np.ascontiguousarray(step[step < _NO_STEP])


def _step_hash(columns: Columns, first_row: int, first_step: int, step_time: NDArray[np.float64]) -> NDArray[np.uint64]:
    """For every step from first_step on a number made of its rows and its time, that can be added up."""
    ends = np.searchsorted(columns["step"], first_step + np.arange(len(step_time)), side="right")
    mark = (first_row + np.arange(len(columns["client"]))).astype(np.uint64)
    for name, odd in (("client", 0x9E3779B97F4A7C15), ("task", 0xBF58476D1CE4E5B9), ("version", 0x94D049BB133111EB)):
        mark = (mark ^ columns[name].astype(np.uint64)) * np.uint64(odd)
        mark ^= mark >> np.uint64(31)
    total = np.concatenate((np.zeros(1, np.uint64), np.cumsum(mark, dtype=np.uint64)))
    begins = np.concatenate(([0], ends[:-1])).astype(np.int64)[: len(ends)]
    time = np.ascontiguousarray(step_time, np.float64).view(np.uint64) * np.uint64(0xD6E8FEB86659FD93)
    return total[ends] - total[begins] + (time ^ (time >> np.uint64(32)))
