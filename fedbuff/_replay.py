"""Replay: a schedule and a problem go in, the model and its history come out."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, Self, cast

import numpy as np
from numpy.typing import NDArray

from . import backends
from ._alone import OneAtATime, alone
from ._arrays import as_model
from ._check_schedule import ChunkCheck
from ._checks import choice, count, flag, instance, list_of, number, path_of, seed_of
from ._clients import Callback, Custom
from ._files import open_npz, optional, reading, write_npz
from ._history import ExitReason, History, Interrupted, Result
from ._local import LocalSGD
from ._noise_ledger import NoiseLedger, ledger_path
from ._problems import Problem
from ._schedule import Schedule, Status
from ._secure import OneTimePad
from ._server_file import rule_from_json, rule_is_known, rule_to_json
from ._strategy import INVERSE_FREQUENCY, Adam, FedBuff, Rule, rule_of
from .backends._spec import SumSpec

__all__ = ["Replay", "Stop", "replay", "run"]

METRICS = ("loss", "grad_norm_sq", "accuracy", "distance", "step_norm")
FORMAT = "fedbuff-replay"
FORMAT_NUMBER = 2
_ABOUT = (  # what a checkpoint says beside its arrays
    "problem", "function", "kernels", "schedule", "w0", "rule", "local", "staleness_weights", "seed", "version",
    "updates", "time", "taken", "secure", "metrics",
)  # fmt: skip

_ROWS_AT_ONCE = 50_000
_WINDOW_BYTES = 1 << 30
_LONGEST_TABLE = 1 << 16  # of weights by staleness, for a schedule that is not known to its end
_SECONDS_A_RUN = 0.1  # how long Ctrl-C and the progress bar may wait
_STEPS, _NEED_ROWS, _DIVERGED = range(3)

Floats = NDArray[np.floating[Any]]
Columns = dict[str, NDArray[Any]]
AnyProblem = Problem | Custom | Callback


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """When to stop before the schedule ends; whatever comes first.

    server_steps, time (virtual, seconds) and updates (client updates) are exact: no step beyond them is made. loss,
    grad_norm_sq (at or below) and accuracy (at or above) are looked at when the model is evaluated.
    """

    server_steps: int | None = None
    time: float | None = None
    updates: int | None = None
    loss: float | None = None
    grad_norm_sq: float | None = None
    accuracy: float | None = None

    def __post_init__(self) -> None:
        for name in ("server_steps", "updates"):
            if getattr(self, name) is not None:
                count(name, getattr(self, name), low=0)
        for name in ("time", "loss", "grad_norm_sq", "accuracy"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), low=-np.inf if name == "loss" else 0.0)


class _Engine(Protocol):
    """What the compiled and the sequential replay can do."""

    def add(
        self,
        client: NDArray[Any],
        task: NDArray[Any],
        version: NDArray[Any],
        step: NDArray[Any],
        s: NDArray[Any],
        e: NDArray[Any],
        references: NDArray[Any],
        unused: NDArray[Any],
    ) -> None: ...
    def run(self, max_steps: int, threads: int) -> int: ...
    def record_gradients(self, every: int, offset: int) -> None: ...
    def gradients(self) -> NDArray[np.float64]: ...
    def version(self) -> int: ...
    def w(self) -> Floats: ...
    def first_moment(self) -> Floats | None: ...
    def second_moment(self) -> Floats | None: ...
    def divergence(self) -> tuple[int, int]: ...
    def stats(self) -> dict[str, Any]: ...
    def check(self) -> None: ...
    def live_versions(self) -> list[int]: ...
    def model(self, version: int) -> Floats: ...
    def pieces(self) -> int: ...
    def pass_over(self, version: int) -> None: ...
    def restore(
        self, w: Floats, live: list[int], models: Floats, first: Floats | None, second: Floats | None
    ) -> int: ...


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

    def give(self, engine: _Engine) -> None:
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


_ASKED, _END = object(), object()


class _Feed:
    """The schedule, piece by piece. A piece is made once and kept until the next one is asked for."""

    def __init__(
        self, schedule: Schedule | Iterable[Schedule], rule: Rule, e_by_client: NDArray[np.float64], n_clients: int
    ) -> None:
        self.whole = schedule if isinstance(schedule, Schedule) else None
        self._rule, self._e, self._n_clients = rule, e_by_client, n_clients
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
            version, step = (
                column if self._rows is None else column[self._rows] for column in (schedule.version, schedule.step)
            )
            self._references = np.bincount(version, minlength=n_steps)[:n_steps]
            self._bounds = np.concatenate(([0], np.bincount(step, minlength=n_steps).cumsum()))
        else:
            self._stream = iter(schedule)
            # The piece that the stream was asked for, and what came: see _next_chunk.
            self._answer: tuple[int, deque[Any]] = (-1, deque())
            self._first: Schedule | None = None
            self._check = ChunkCheck()

    def piece(self, number: int, first_step: int) -> _Piece | None:
        """The piece of this number, which begins at this step; None where there is none."""
        if self._piece is not None and self._piece.number == number:
            return self._piece
        made = self._cut(number, first_step) if self.whole is not None else self._chunk(number, first_step)
        if made is not None:
            self._piece = made
        return made

    def taken(self, books: _Books) -> str:
        """A hash of the rows and times of the steps that are made: the same for a schedule and a stream of it."""
        if self.whole is None:
            return f"{books.taken:016x}"
        if self._taken is None:
            total = [np.zeros(1, np.uint64)]
            number = step = 0
            while (piece := self._cut(number, step)) is not None:
                end = step + len(piece.step_time)
                ends = self._bounds[step + 1 : end + 1] - self._bounds[step]
                hashes = _step_hash(piece.columns, int(self._bounds[step]), ends, piece.step_time)
                total.append(np.cumsum(hashes, dtype=np.uint64) + total[-1][-1])
                number, step = number + 1, end
            self._taken = np.concatenate(total)
        return f"{int(self._taken[books.version]):016x}"

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
        nothing = np.empty(0, np.int64)
        return self._weighed(number, columns, self._references[begin:end], nothing, self.whole.step_time[begin:end])

    def _chunk(self, number: int, first_step: int) -> _Piece | None:
        """A schedule that comes in chunks: the tasks started on a version are counted, and ended ones let go of it."""
        chunk = self._next_chunk(number)
        if chunk is None:
            return None
        if not isinstance(chunk, Schedule):
            raise TypeError(f"schedule: expected a Schedule or an iterator of them, got {type(chunk).__name__}")
        if chunk.n_clients != self._n_clients:
            raise ValueError(f"schedule: a chunk has {chunk.n_clients} clients, the problem {self._n_clients}")
        if chunk.first_step != first_step:
            raise ValueError(
                f"schedule: a chunk begins at step {chunk.first_step}, the one before ended at {first_step}"
            )
        if self._first is None:
            self._first = chunk
        _refuse_another(self._first, chunk)
        try:
            self._check.add(chunk, number)
        except ValueError as error:
            raise ValueError(f"schedule: the chunk at step {first_step}: {error}") from error
        used = chunk.status == Status.USED
        started = np.concatenate(([chunk.started_on_0], chunk.step_started))[: chunk.n_steps]
        return self._weighed(
            number, _columns(chunk, np.flatnonzero(used)), started, chunk.version[~used], chunk.step_time
        )

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
        columns: Columns,
        references: NDArray[np.int64],
        unused: NDArray[np.int64],
        step_time: NDArray[np.float64],
    ) -> _Piece:
        staleness, client = columns["staleness"], columns["client"]
        if client.size and not 0 <= int(client.min()) <= int(client.max()) < len(self._e):
            raise ValueError(f"schedule: clients {client.min()} to {client.max()} of a problem with {len(self._e)}")
        e = np.full(len(staleness), self._e[0]) if self._one_e else self._e[client]
        s = self.staleness_weights(int(staleness.max(initial=-1)) + 1)[staleness]
        if self._rule.secure is not None or self._rule.privacy is not None:
            s = _whole_weights(self._rule, s, e, staleness)
        counts, ended = np.ascontiguousarray(references, np.int64), np.ascontiguousarray(unused, np.int64)
        return _Piece(number, columns, s, e, counts, ended, step_time, self.whole is None)

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


def _by_step(staleness: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum and maximum of each step's rows, which end at `ends`; zero for a step without rows."""
    begins = np.concatenate(([0], ends[:-1])).astype(np.int64)
    result = np.zeros((2, len(ends)), np.int64)
    full = begins < ends
    if full.any():
        result[0, full] = np.add.reduceat(staleness, begins[full])
        result[1, full] = np.maximum.reduceat(staleness, begins[full])
    return result


def _columns(schedule: Schedule, rows: slice | NDArray[np.int64]) -> Columns:
    names = ("client", "task", "version", "step", "staleness")
    return {name: np.ascontiguousarray(getattr(schedule, name)[rows]) for name in names}


class Replay:
    """A replay that can be stepped, looked at, saved and gone on with. `replay` is the one-call form.

    >>> import numpy as np, fedbuff as fb
    >>> problem = fb.Quadratic(np.zeros((4, 2)))
    >>> schedule = fb.uniform_arrivals(n_clients=4, buffer_size=2, max_staleness=1, server_steps=5, seed=0)
    >>> replay = fb.Replay(problem, schedule, fb.LocalSGD(steps=1, lr=0.5), w0=np.ones(2))
    >>> replay.run(max_steps=2)
    <ExitReason.SERVER_STEPS: 'server_steps'>
    >>> replay.version
    2
    """

    def __init__(
        self,
        problem: AnyProblem,
        schedule: Schedule | Iterable[Schedule],
        local: LocalSGD | None = None,
        *,
        strategy: object | None = None,
        w0: Any = None,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        _check_problem(problem)
        instance("schedule", schedule, (Schedule, Iterable), "a Schedule, or an iterator of its chunks")
        self.problem, self.schedule, self.local = problem, schedule, local
        self.seed = seed_of(seed)
        self.threads = backends.default_threads() if threads is None else count("threads", threads)
        self.rule = rule_of(strategy) if strategy is not None else _default_rule(schedule)
        start = problem.init(self.seed) if w0 is None else as_model("w0", w0)
        if start.dtype != problem.dtype:
            raise TypeError(f"w0: expected {problem.dtype}, got {start.dtype}; pass w0.astype(np.{problem.dtype})")
        if start.shape != (problem.dim,):
            raise ValueError(f"w0: expected shape ({problem.dim},), got {start.shape}")
        if isinstance(schedule, Schedule) and schedule.n_clients != problem.n_clients:
            raise ValueError(
                f"schedule: it has {schedule.n_clients} clients, the problem {problem.n_clients}; "
                "trace.assign(n_clients) maps recorded devices to a problem's clients"
            )
        if isinstance(schedule, Schedule):
            try:
                schedule.require_sound()
            except ValueError as error:
                raise ValueError(f"schedule: {error}") from error
        self._w0_hash = hashlib.sha256(start.tobytes()).hexdigest()
        self._metrics: list[str] | None = None  # of the evaluations in the history
        e_by_client = _update_weights(self.rule, problem, schedule)
        self._feed = _Feed(schedule, self.rule, e_by_client, problem.n_clients)
        self._engine = _make_engine(
            problem, local, self.rule, start, self.seed, _make_roles(self.rule, start, self.seed, schedule, e_by_client)
        )
        self._books = _Books()
        # The version before an evaluation that wants it, and its model.
        self._previous: tuple[int, Floats] | None = None
        # What noise was drawn, where it cannot be drawn again.
        self._ledger = NoiseLedger() if self.rule.privacy is not None and not self.rule.privacy.repeatable else None
        # Numbers cut and seconds spent by secure sums before this engine was made: a checkpoint carries them.
        self._secure_before = {"cut": 0, "seconds": 0.0}
        self.history = History()
        self.message = ""

    @property
    def version(self) -> int:
        """How many server steps were made."""
        return self._engine.version()

    @property
    def time(self) -> float:
        """The virtual time of the last server step, in seconds."""
        return self._settle().time

    @property
    def updates(self) -> int:
        """How many client updates entered these steps."""
        return self._settle().updates

    @property
    def w(self) -> Floats:
        """A copy of the current model."""
        return self._engine.w()

    @property
    def stats(self) -> dict[str, float]:
        return self._engine.stats()

    def secure_columns(self) -> dict[str, float]:
        """What a secure sum has cost so far, for the history; nothing where sums are plain."""
        secure = self.rule.secure
        if secure is None:
            return {}
        from .secure import traffic

        bytes_, (spent, cut) = traffic(self.problem.dim, secure), self._secure_spent()
        return {
            "bytes_to_server": bytes_.to_server(self.updates),
            "bytes_to_aggregator": bytes_.to_aggregator(self.updates, self.version),
            "bytes_from_aggregator": bytes_.from_aggregator(self.updates, self.version),
            "cut": cut,
            "secure_seconds": spent,
        }

    def _secure_spent(self) -> tuple[float, int]:
        stats, before = self._engine.stats(), self._secure_before
        return before["seconds"] + stats["secure_seconds"], int(before["cut"] + stats["cut"])

    def check(self) -> None:
        """Walks every invariant of the engine; raises where one does not hold."""
        self._engine.check()

    @alone
    def run(self, max_steps: int | None = None) -> ExitReason:
        """Makes up to max_steps server steps: SERVER_STEPS when they are made, else SCHEDULE_END or DIVERGED."""
        target = None if max_steps is None else self.version + count("max_steps", max_steps, low=0)
        while target is None or self.version < target:
            steps = 2**62 if target is None else target - self.version
            if self._ledger is not None:
                books = self._settle()
                self._ledger.draw(books.version, min(books.version + steps, books.steps_known))
            code = self._engine.run(steps, self.threads)
            self._settle()
            if code == _DIVERGED:
                self._explain_divergence()
                return ExitReason.DIVERGED
            if code == _NEED_ROWS and not self._more():
                return ExitReason.SCHEDULE_END
        return ExitReason.SERVER_STEPS

    def _settle(self) -> _Books:
        """The books, brought to where the engine is: an interrupt may have come between the two."""
        books, piece = self._books, self._feed._piece
        if self._engine.pieces() > books.pieces and piece is not None:
            books = books.with_piece(piece)
        books = books.advanced(self._engine.version())
        if books is not self._books:
            self._books = books
        if self.history.n_rows < books.n_rows and books.newest is not None:
            self.history.append(books.newest)
        return books

    def _more(self) -> bool:
        """Gives the engine the next piece; False where there is none."""
        books = self._settle()
        piece = self._feed.piece(books.pieces, books.steps_known)
        if piece is None:
            return False
        piece.give(self._engine)
        self._settle()
        return True

    def _note(self, row: dict[str, float], evaluated: Floats | None) -> None:
        """A new row of the history, of the model as it is now."""
        self._books = self._settle().looked(row, evaluated)
        self._settle()

    def record_gradients(self, every: int = 1, offset: int = 0) -> None:
        """From now on the engine notes |grad f(w^t)|^2 for every t with t % every == offset, as server step t is made.

        They are the models that the steps started from: w^0 is among them, the last model is not. A `Quadratic` costs
        O(dim) a step, O(dim^2) where its curvature is dense; any other problem a pass over all of its rows.
        """
        if not isinstance(self.problem, Problem):
            raise TypeError(f"record_gradients: {type(self.problem).__name__} has no gradient inside the engine")
        count("every", every)
        if not 0 <= count("offset", offset, low=0) < every:
            raise ValueError(f"offset: expected an int below every, which is {every}, got {offset}")
        self._engine.record_gradients(every, offset)

    @property
    def gradients(self) -> NDArray[np.float64]:
        """The squared gradient norms that were noted since `record_gradients`, in the order of the steps."""
        return self._engine.gradients()

    def steps_within(self, *, time: float | None, updates: int | None) -> int:
        """How many steps from here stay within these limits, as far as the schedule is known so far."""
        books = self._settle()
        known = len(books.step_time)
        if time is not None:
            known = min(known, int(np.searchsorted(books.step_time, time, side="right")))
        if updates is not None:
            known = min(known, int(np.searchsorted(books.step_rows, updates, side="right")))
        return known

    def _explain_divergence(self) -> None:
        step, row = self._engine.divergence()
        lr = "" if self.local is None else f", local step size {self.local.lr}"
        where = f"server step {step}"
        books = self._settle()
        if row >= 0 and books.last is not None:
            columns = books.last
            at = row - (books.rows_known - len(columns["client"]))
            if 0 <= at < len(columns["client"]):
                where += f", arrival {row}: client {columns['client'][at]}, version {columns['version'][at]}"
        self.message = f"the model is not finite after {where}{lr}, server step size {self.rule.lr}"

    @property
    def releases(self) -> NDArray[np.int64] | None:
        """How often the noise of each server step was drawn, for `secure.epsilon`; None where it is not drawn from the
        operating system. A step has 2 where the replay was killed after it and went on from before it."""
        return None if self._ledger is None else self._ledger.releases()

    # Saving

    @alone
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything that a later `Replay.load` needs, beside `path` first and then in its place."""
        books = self._settle()
        live = [v for v in self._engine.live_versions() if v != books.version]
        arrays: dict[str, NDArray[Any]] = {
            "w": self.w,
            "live": np.array(live, np.int64),
            "models": np.array([self._engine.model(v) for v in live], self.problem.dtype).reshape(
                len(live), self.problem.dim
            ),
            "history": np.frombuffer(json.dumps(self.history._rows).encode(), np.uint8),
            "about": np.frombuffer(json.dumps(self._about()).encode(), np.uint8),
        }
        if books.evaluated is not None:
            arrays["evaluated"] = books.evaluated
        previous = self._previous
        if previous is not None and previous[0] == books.version - 1 and not self._is_evaluated():
            arrays["previous"] = previous[1]
        for name, moment in (("first", self._engine.first_moment()), ("second", self._engine.second_moment())):
            if moment is not None:
                arrays[name] = moment
        if self._ledger is not None:
            self._ledger.attach(path)
        arrays["checksum"] = np.frombuffer(_digest(arrays), np.uint8)
        write_npz(path, arrays)

    def _is_evaluated(self) -> bool:
        """Whether the newest row of the history is of the model as it is now."""
        return self.history.n_rows > 0 and self.history.last["step"] == self.version

    def _about(self) -> dict[str, Any]:
        local, books = self.local, self._settle()
        return {
            "format": FORMAT,
            "format_number": FORMAT_NUMBER,
            "problem": problem_hash(self.problem),
            "function": _code_hash(self.problem.function) if isinstance(self.problem, Callback) else None,
            "kernels": _kernels(),
            "schedule": self.schedule.sha256 if isinstance(self.schedule, Schedule) else None,
            "w0": self._w0_hash,
            "rule": rule_to_json(self.rule),
            "local": None if local is None else _local_to_json(local),
            "staleness_weights": self._staleness_weights(books),
            "seed": self.seed,
            "version": books.version,
            "updates": books.updates,
            "time": books.time,
            "taken": self._feed.taken(books),
            "secure": dict(zip(("seconds", "cut"), self._secure_spent(), strict=True)),
            "metrics": self._metrics,
            **({} if self._ledger is None else {"noise": self._ledger.run}),
        }

    def _staleness_weights(self, books: _Books, needed: int | None = None) -> list[Any] | None:
        """How many values of a staleness function of the user's own were looked up, and their hash."""
        if rule_is_known(self.rule):
            return None
        if needed is None:
            whole = self._feed.whole
            needed = len(self._feed._s) if whole is None else int(whole.staleness.max(initial=-1)) + 1
        values = self._feed.staleness_weights(needed)[:needed]
        return [needed, hashlib.sha256(values.tobytes()).hexdigest()]

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        problem: AnyProblem,
        schedule: Schedule | Iterable[Schedule],
        *,
        strategy: object | None = None,
        threads: int | None = None,
    ) -> Self:
        """A replay as it was saved, over the same problem and schedule; a schedule in chunks is given from its start.

        `strategy` is needed where its staleness function is the user's own, which a file cannot hold.
        """
        about, arrays = _read_checkpoint(path)
        where = os.fspath(path)
        if about["problem"] != problem_hash(problem):
            raise ValueError(f"{where}: it was made with another problem")
        if isinstance(schedule, Schedule) and about["schedule"] not in (None, schedule.sha256):
            raise ValueError(f"{where}: it was made with another schedule")
        given = None if strategy is None else rule_of(strategy)
        with reading(path, "a saved replay that can go on"):
            rule = rule_from_json(about["rule"], given)
            local = None if about["local"] is None else LocalSGD(**about["local"])
            seed = seed_of(about["seed"])
        made = cls(problem, schedule, local, strategy=_Holder(rule), seed=seed, threads=threads)
        made._restore(path, about, arrays)
        if made._ledger is not None:
            made._ledger = NoiseLedger.read(path, about["noise"])
        return made

    def _restore(self, path: str | os.PathLike[str], about: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Goes to where the file stands, over the rows that are done; ValueError where file and schedule differ."""
        where = os.fspath(path)
        kernels, function = _kernels(), self._about()["function"]
        if about["kernels"] != kernels:
            raise ValueError(
                f"{where}: it was made with the kernels {about['kernels']}, and {kernels} run, which round "
                "differently; choose those by FEDBUFF_BACKEND and FEDBUFF_ISA, or begin anew"
            )
        if function is not None and about["function"] is not None and about["function"][0] == function[0]:
            if about["function"] != function:
                raise ValueError(f"{where}: it was made with another problem: its function has other code")
        with reading(path, "a saved replay that can go on"):
            self._go_to(_Position.read(about, arrays, self.problem, self.rule))

    def _go_to(self, at: _Position) -> None:
        whole = self._feed.whole
        if whole is not None and at.version > whole.n_steps:
            raise ValueError(f"it is at server step {at.version}, and the schedule ends at {whole.n_steps}")
        self._engine.pass_over(at.version)
        books = self._pass_over(self._books, at.evaluated_at)
        looked = books
        if at.history:
            books = replace(books.looked(at.history[-1], at.evaluated), n_rows=len(at.history))
        books = self._pass_over(books, at.version)
        found = {"taken": self._feed.taken(books), "updates": books.updates, "time": books.time}
        for name, value in found.items():
            if getattr(at, name) != value:
                if name == "taken":
                    raise ValueError(
                        f"it was made with another schedule: other arrivals up to server step {at.version}"
                    )
                raise ValueError(
                    f"it does not add up: {name} is {getattr(at, name)}, by the schedule {value} at step {at.version}"
                )
        if at.history and (at.history[-1]["time"], at.history[-1]["updates"]) != (looked.time, looked.updates):
            raise ValueError("it does not add up: the last row of its history is not of this schedule")
        needed = self._engine.restore(at.w, at.live, at.models, at.first, at.second)
        if whole is not None and needed != len(at.live):
            raise ValueError(f"it does not add up: it holds {len(at.live)} older models, and {needed} are needed")
        weights = at.staleness_weights
        if weights is not None and weights != self._staleness_weights(books, weights[0]):
            raise ValueError("it was made with another rule: its staleness function gives other weights")
        self.history = History(at.history)
        self._books = books
        self._previous = None if at.previous is None else (at.version - 1, at.previous)
        self._secure_before = at.secure
        self._w0_hash, self._metrics = at.w0, at.metrics

    def _pass_over(self, books: _Books, version: int) -> _Books:
        """The books at a later version, with as many pieces given to the engine, which has no models yet."""
        while books.steps_known < version:
            piece = self._feed.piece(books.pieces, books.steps_known)
            if piece is None:
                raise ValueError(f"schedule: it ends before server step {version}, where the file stands")
            piece.give(self._engine)
            books = books.with_piece(piece)
        return books.advanced(version)


@dataclass(frozen=True, slots=True)
class _Position:
    """What a checkpoint says, with the types, shapes and ranges that it must have."""

    version: int
    updates: int
    time: float
    taken: str
    history: list[dict[str, float]]
    secure: dict[str, float]
    staleness_weights: list[Any] | None
    w0: str
    metrics: list[str] | None
    w: Floats
    live: list[int]
    models: Floats
    first: Floats | None
    second: Floats | None
    evaluated: Floats | None
    previous: Floats | None

    @property
    def evaluated_at(self) -> int:
        return int(self.history[-1]["step"]) if self.history else 0

    @classmethod
    def read(cls, about: dict[str, Any], arrays: dict[str, NDArray[Any]], problem: AnyProblem, rule: Rule) -> _Position:
        """ValueError where something is not what `Replay.save` writes."""
        dim, dtype, optimizer = problem.dim, problem.dtype, rule.optimizer
        adam = isinstance(optimizer, Adam)
        momentum = adam or cast(Any, optimizer).momentum != 0

        def require(holds: bool, what: str) -> None:
            if not holds:
                raise ValueError(f"it does not add up: {what}")

        def vector(name: str, wanted: bool | None = None) -> Floats | None:
            value = arrays.get(name)
            require(wanted is None or (value is not None) == wanted, f"{name}: expected one" if wanted else f"{name}")
            if value is not None:
                require(value.dtype == dtype and value.shape == (dim,), f"{name} is {value.dtype} {value.shape}")
                require(bool(np.isfinite(value).all()), f"{name} is not finite")
            return value

        version, updates, since = (about[name] for name in ("version", "updates", "time"))
        for name in ("version", "updates"):
            require(type(about[name]) is int and about[name] >= 0, f"{name} is {about[name]!r}")
        require(isinstance(since, int | float) and np.isfinite(since), f"time is {since!r}")
        live, models = arrays["live"], arrays["models"]
        require(live.dtype == np.int64 and live.ndim == 1, f"live is {live.dtype} {live.shape}")
        require(bool(((live >= 0) & (live < version)).all() and (np.diff(live) > 0).all()), f"live is {live}")
        require(models.dtype == dtype and models.shape == (live.size, dim), f"models is {models.dtype} {models.shape}")
        secure = about["secure"]
        require(
            isinstance(secure, dict) and all(isinstance(secure.get(name), int | float) for name in ("cut", "seconds")),
            f"secure is {secure!r}",
        )
        weights = about["staleness_weights"]
        require(
            weights is None or (isinstance(weights, list) and len(weights) == 2 and type(weights[0]) is int
                                and 0 <= weights[0] <= max(1, 2 * version)),
            f"staleness_weights is {weights!r}",
        )  # fmt: skip
        metrics = about["metrics"]
        require(metrics is None or isinstance(metrics, list), f"metrics is {metrics!r}")
        w = vector("w", True)
        return cls(
            version=version,
            updates=updates,
            time=float(since),
            taken=str(about["taken"]),
            history=_read_history(arrays["history"], version, require),
            secure=secure,
            staleness_weights=weights,
            w0=str(about["w0"]),
            metrics=metrics,
            w=cast(Floats, w),
            live=live.tolist(),
            models=np.ascontiguousarray(models),
            first=vector("first", momentum),
            second=vector("second", adam),
            evaluated=vector("evaluated"),
            previous=vector("previous"),
        )


def _read_history(content: NDArray[Any], version: int, require: Callable[[bool, str], None]) -> list[dict[str, float]]:
    """The rows of a history: the same names in each, numbers, and steps that ascend up to the version."""
    rows = json.loads(content.tobytes())
    require(isinstance(rows, list) and all(isinstance(row, dict) for row in rows), "history is no list of rows")
    before = -1
    for place, row in enumerate(rows):
        where = f"row {place} of the history"
        require(list(row) == list(rows[0]), f"{where} has other names than the first")
        require(all(type(value) in (int, float) for value in row.values()), f"{where} has something else than numbers")
        require({"step", "time", "updates"} <= set(row), f"{where} has no step, time or updates")
        require(type(row["step"]) is int and before < row["step"] <= version, f"{where} is of step {row['step']}")
        before = row["step"]
    return cast(list[dict[str, float]], rows)


@dataclass(frozen=True, slots=True)
class _Holder:
    """A rule in the place of the strategy that carried it."""

    rule: Rule


def _check_problem(problem: Any) -> None:
    for name in ("init", "dtype", "dim", "n_clients", "n_samples"):
        if not hasattr(problem, name):
            raise TypeError(f"problem: expected a problem, got {type(problem).__name__}, which has no {name}")


def _default_rule(schedule: Schedule | Iterable[Schedule]) -> Rule:
    if not isinstance(schedule, Schedule):
        raise TypeError("strategy: a schedule that comes in chunks needs it")
    saved = schedule.description.get("strategy", {}).get("rule")
    if saved is None:
        return FedBuff(buffer_size=schedule.buffer_size).rule
    try:
        return rule_from_json(json.dumps(saved), None)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise ValueError(f"strategy: the schedule's own cannot be used: {error}") from error


def _update_weights(rule: Rule, problem: AnyProblem, schedule: Schedule | Iterable[Schedule]) -> NDArray[np.float64]:
    """e of every client's updates. A client that never arrives has no share to correct, and no update to weigh."""
    if rule.weighting != INVERSE_FREQUENCY:
        sizes, which = np.unique(problem.n_samples, return_inverse=True)
        return np.array([rule.sample_weight(float(n)) for n in sizes])[which]
    if not isinstance(schedule, Schedule):
        raise ValueError(
            f'schedule: weights="{INVERSE_FREQUENCY}" counts its arrivals first, and this one comes in chunks'
        )
    arrivals = np.bincount(schedule.client[schedule.status == Status.USED], minlength=problem.n_clients)
    share = arrivals / max(int(arrivals.sum()), 1)
    return np.divide(rule.weight_scale, problem.n_clients * share, out=np.zeros(len(share)), where=share > 0)


def _make_roles(
    rule: Rule, w0: Floats, seed: int, schedule: Schedule | Iterable[Schedule], e_by_client: NDArray[np.float64]
) -> Any:
    """Those who make the sums under real pads, and what they agree on; None where there are no pads."""
    if not isinstance(rule.secure, OneTimePad):
        return None
    from .secure import Parameters, Roles

    most = rule.max_staleness
    if isinstance(schedule, Schedule):
        most = int(schedule.staleness[schedule.status == Status.USED].max(initial=0))
    table = []
    for staleness in range(_LONGEST_TABLE if most is None else most + 1):
        table.append(rule.staleness_weight(staleness))
        if most is None and table[-1] * float(e_by_client.max()) * rule.secure.weight_unit < 0.5:
            break  # no weight is left for one that is staler
    agreed = Parameters(
        dim=w0.size,
        buffer_size=rule.buffer_size,
        secure=rule.secure,
        max_staleness=most,
        staleness_weights=tuple(table),
    )
    return Roles(agreed, w0.dtype, seed, e_by_client)


def _make_engine(problem: AnyProblem, local: LocalSGD | None, rule: Rule, w0: Floats, seed: int, roles: Any) -> _Engine:
    function: Any = None
    spec = batch = bound = None
    if isinstance(problem, Callback):
        if local is not None:
            raise ValueError("local: a Callback does its own local steps; leave it out")
        function = problem.client_function(seed)
    else:
        if not isinstance(local, LocalSGD):
            raise TypeError(f"local: expected fedbuff.LocalSGD, got {type(local).__name__}")
        spec, batch = local.spec, local.batches(problem.n_clients)
        if isinstance(problem, Custom):
            function = problem.compiled()
        else:
            bound = problem.bound
    backend = cast(Any, backends.current())
    sums = _sums(rule, problem.dim, seed)
    engine = backend.replay_engine(rule, w0, bound, function, spec, seed, batch, _WINDOW_BYTES, sums, roles)
    return cast(_Engine, OneAtATime(engine))


def _sums(rule: Rule, dim: int, seed: int) -> SumSpec:
    """How the sums of a rule are made."""
    values: dict[str, Any] = {"seed": seed}
    if rule.secure is not None:
        encoding = rule.secure.encoding
        values |= {
            "modulus": encoding.modulus,
            "range": encoding.clip,
            "step": encoding.step,
            "stochastic": encoding.rounding == "stochastic",
            "weight_unit": rule.secure.weight_unit,
        }
    if rule.privacy is not None:
        values |= {
            "clip": rule.privacy.clip_for(rule.secure, dim),
            "deviation": rule.privacy.deviation,
            "system_noise": rule.privacy.source == "system",
        }
    return SumSpec(**values)


def problem_hash(problem: AnyProblem) -> str:
    """The content of a problem: every array and number of its spec. A function is known by its sizes alone."""
    if not isinstance(problem, Problem):
        return f"{type(problem).__name__} {problem.n_clients} {problem.dim} {problem.dtype}"
    spec = problem._spec
    digest = hashlib.sha256()
    for part in fields(spec):
        value = getattr(spec, part.name)
        digest.update(part.name.encode())
        digest.update(np.ascontiguousarray(value).data if isinstance(value, np.ndarray) else repr(value).encode())
    return digest.hexdigest()


def _kernels() -> str:
    """What computes, as far as the bits depend on it: the backend and, of the compiled one, the CPU level."""
    backend = backends.current()
    if backend.name != "cpp":
        return backend.name
    from . import _core

    return f"cpp {_core.level()}"


def _code_hash(function: Any) -> list[str] | None:
    """The Python version and a hash of a function's code, by which a changed one is recognised; None where it has none.

    What the function refers to is not part of it.
    """
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__")
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    digest = hashlib.sha256()

    def add(code: Any) -> None:
        digest.update(code.co_code)
        digest.update(repr((code.co_names, code.co_varnames, code.co_argcount)).encode())
        for value in code.co_consts:
            if hasattr(value, "co_code"):
                add(value)
            else:
                digest.update(repr(sorted(value, key=repr) if isinstance(value, frozenset) else value).encode())

    add(code)
    return [f"{sys.version_info[0]}.{sys.version_info[1]}", digest.hexdigest()]


def _local_to_json(local: LocalSGD) -> dict[str, Any]:
    values = {part.name: getattr(local, part.name) for part in fields(local)}
    if isinstance(values["batch_size"], np.ndarray):
        values["batch_size"] = values["batch_size"].tolist()
    return values


def _digest(arrays: dict[str, NDArray[Any]]) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.digest()


def _read_checkpoint(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    what = "a saved replay"
    with reading(path, what), open_npz(path, what) as file:
        arrays = file.all()
        about = json.loads(arrays["about"].tobytes())
        if about.get("format") != FORMAT:
            raise ValueError("it holds something else")
        if about.get("format_number") != FORMAT_NUMBER:
            raise ValueError(f"its format is number {about.get('format_number')}, this reader's is {FORMAT_NUMBER}")
        for name in _ABOUT:
            about[name]
        for name in ("w", "live", "models", "history"):
            arrays[name]
        checksum = arrays.pop("checksum").tobytes()
        if checksum != _digest(arrays):
            raise ValueError("its checksum does not fit its content")
    return about, arrays


class _Evaluation:
    """The metrics of a model, and what they cost."""

    def __init__(self, problem: AnyProblem, metrics: Sequence[str], test: tuple[Any, Any] | Problem | None) -> None:
        for name in metrics:
            choice("metrics", name, METRICS)
        self.metrics = tuple(metrics)
        self.seconds = 0.0
        self._problem = problem
        self._held_out: Any = None
        for name, needs in (("loss", "loss"), ("grad_norm_sq", "grad"), ("accuracy", "accuracy")):
            if name in metrics and not callable(getattr(problem, needs, None)):
                raise ValueError(f"metrics: {type(problem).__name__} has no {needs}, which {name!r} needs")
        if test is not None:
            if "accuracy" not in metrics:
                raise ValueError("test: it is for the metric 'accuracy', which is not asked for")
            self._held_out = test if isinstance(test, Problem) else cast(Any, problem).held_out(*test)

    def __call__(self, w: Floats, before: Floats | None, previous: Floats | None, threads: int) -> dict[str, float]:
        """The metrics at w; `before` is the model of the evaluation before, `previous` of the version before."""
        begin = time.perf_counter()
        origins = {"distance": before, "step_norm": previous}
        values = {name: self._value(name, w, origins.get(name), threads) for name in self.metrics}
        self.seconds += time.perf_counter() - begin
        return values

    def _value(self, name: str, w: Floats, origin: Floats | None, threads: int) -> float:
        problem = cast(Any, self._problem)
        options = {"threads": threads} if isinstance(problem, Problem) else {}
        if name == "loss":
            return float(problem.loss(w, **options))
        if name == "grad_norm_sq":
            gradient = np.asarray(problem.grad(w, **options))
            return backends.current().dot(gradient, gradient)
        if name == "accuracy":
            return float(problem.accuracy(w) if self._held_out is None else self._held_out.accuracy(w))
        moved = np.zeros_like(w) if origin is None else w - origin
        return float(np.sqrt(backends.current().dot(moved, moved)))


def replay(
    problem: AnyProblem,
    schedule: Schedule | Iterable[Schedule],
    local: LocalSGD | None = None,
    *,
    strategy: object | None = None,
    w0: Any = None,
    seed: int = 0,
    eval_every: int | None = None,
    metrics: Sequence[str] = ("loss",),
    test: tuple[Any, Any] | None = None,
    stop: Stop | Callable[[dict[str, float]], bool] | None = None,
    threads: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1000,
    progress: bool | None = None,
    callback: Callable[[dict[str, float]], object] | None = None,
) -> Result:
    """Trains along a schedule: local SGD for every arrival, the buffer, the server's steps.

    The result has the same bits for every number of threads, and across a checkpoint; but for noise that is drawn from
    the operating system (`secure.Gaussian`), where `Result.repeatable` is False.

    >>> import numpy as np, fedbuff as fb
    >>> problem = fb.Quadratic(np.zeros((4, 2)))
    >>> schedule = fb.uniform_arrivals(n_clients=4, buffer_size=2, max_staleness=1, server_steps=50, seed=0)
    >>> run = fb.replay(problem, schedule, fb.LocalSGD(steps=1, lr=0.5), w0=np.ones(2), eval_every=10)
    >>> run.exit_reason, bool(run.history["loss"][-1] < 1e-6)
    (<ExitReason.SCHEDULE_END: 'schedule_end'>, True)

    schedule      a `Schedule`, or an iterator of its chunks (`iter_schedule`), for one longer than memory
    strategy      what the server computes; None: what the schedule's own strategy does
    eval_every    evaluate the model every so many server steps, and at the start and the end; None: at neither
    metrics       of "loss", "grad_norm_sq" (squared norm of the full gradient), "accuracy", "distance" (from the
                  model of the evaluation before) and "step_norm" (how far the last server step went)
    test          (X, y) held out: "accuracy" is of these rows
    stop          a `Stop`, or a function of the newest history row that says whether to stop
    checkpoint    a file: written every checkpoint_every server steps and at the end; where it is there already and was
                  made from the same inputs, the replay goes on from it
    progress      a progress bar; None: where the output is a terminal
    callback      called with the newest history row after each evaluation

    Ctrl-C raises `Interrupted`, and an error of the callback propagates; both carry `.result`. A model that is not
    finite ends the replay with a warning and exit_reason DIVERGED.
    """
    loop = make_loop(
        problem,
        schedule,
        local,
        strategy=strategy,
        w0=w0,
        seed=seed,
        eval_every=eval_every,
        metrics=metrics,
        test=test,
        stop=stop,
        threads=threads,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        callback=callback,
    )
    result = loop.go(_progress_bar(progress, schedule))
    if result.exit_reason == ExitReason.DIVERGED:
        warnings.warn(f"{result.message}; the history up to there is kept", RuntimeWarning, stacklevel=3)
    return result


def make_loop(
    problem: AnyProblem,
    schedule: Schedule | Iterable[Schedule],
    local: LocalSGD | None,
    *,
    strategy: object | None,
    w0: Any = None,
    seed: int,
    eval_every: int | None,
    metrics: Sequence[str],
    test: tuple[Any, Any] | Problem | None,
    stop: Stop | Callable[[dict[str, float]], bool] | None,
    threads: int | None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1000,
    callback: Callable[[dict[str, float]], object] | None = None,
) -> _Loop:
    """A replay that is ready to go, from the arguments of `replay`; `test` may be what `held_out` of a problem gave."""
    _check_problem(problem)
    if eval_every is not None:
        count("eval_every", eval_every)
    count("checkpoint_every", checkpoint_every)
    metrics = list_of("metrics", metrics, "names of metrics")
    for name in metrics:
        choice("metrics", name, METRICS)
    if stop is not None and not isinstance(stop, Stop) and not callable(stop):
        raise TypeError(f"stop: expected fedbuff.Stop or a function, got {type(stop).__name__}")
    needs_evaluation = callable(stop) or (
        isinstance(stop, Stop) and any(getattr(stop, name) is not None for name in ("loss", "grad_norm_sq", "accuracy"))
    )
    if eval_every is None and (needs_evaluation or callback is not None):
        raise ValueError("eval_every: stop and callback look at evaluations; say how often to make them")
    if isinstance(stop, Stop):
        for name in ("loss", "grad_norm_sq", "accuracy"):
            if getattr(stop, name) is not None and name not in metrics:
                raise ValueError(f"metrics: stop looks at {name!r}, which is not among them")
    evaluate = _Evaluation(problem, metrics if eval_every is not None else (), test)
    path = None if checkpoint is None else path_of("checkpoint", checkpoint)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback: expected a function, got {type(callback).__name__}")
    options: dict[str, Any] = {"strategy": strategy, "threads": threads}
    current = Replay(problem, schedule, local, w0=w0, seed=seed, **options)
    current._metrics = None if eval_every is None else list(metrics)
    if path is not None and path.exists():
        about, arrays = _read_checkpoint(path)
        expected = current._about()
        for name in ("problem", "schedule", "w0", "rule", "local", "seed", "metrics"):
            if about[name] != expected[name]:
                what = "other metrics" if name == "metrics" else f"another {name}"
                raise ValueError(f"{path}: it was made with {what}; remove it, or give another file")
        current._restore(path, about, arrays)
        if current._ledger is not None:
            current._ledger = NoiseLedger.read(path, about["noise"])
    elif path is not None and current._ledger is not None:
        if ledger_path(path).exists():
            raise ValueError(
                f"{ledger_path(path)}: it says what noise a run drew whose {path.name} is gone; "
                "move it away, and count its releases too, or give another file"
            )
        current.save(path)  # noise is noted beside it before it is drawn
    return _Loop(current, evaluate, eval_every, stop, path, checkpoint_every, callback)


class _Loop:
    """Runs a replay in pieces short enough for Ctrl-C, up to the next evaluation, checkpoint or limit."""

    def __init__(
        self,
        current: Replay,
        evaluate: _Evaluation,
        eval_every: int | None,
        stop: Stop | Callable[[dict[str, float]], bool] | None,
        path: Path | None,
        checkpoint_every: int,
        callback: Callable[[dict[str, float]], object] | None,
    ) -> None:
        self._replay, self._evaluate, self._every = current, evaluate, eval_every
        self._stop, self._path, self._checkpoint_every, self._callback = stop, path, checkpoint_every, callback
        self._steps_a_run = 1
        self._wants_previous = "step_norm" in evaluate.metrics

    def result(self, reason: ExitReason) -> Result:
        current = self._replay
        stats = {**current.stats, "eval_seconds": self._evaluate.seconds}
        return Result(
            current.w,
            current.version,
            current.history,
            reason,
            current.message,
            stats,
            repeatable=current._ledger is None,
            releases=current.releases,
        )

    def go(self, bar: Any) -> Result:
        current = self._replay
        try:
            with bar:
                reason = self._run(bar)
        except KeyboardInterrupt as interrupt:
            if self._path is not None:
                current.save(self._path)
            raise Interrupted(self.result(ExitReason.INTERRUPTED)) from interrupt
        except Exception as error:
            error.result = self.result(ExitReason.INTERRUPTED)  # type: ignore[attr-defined]
            raise
        if self._path is not None and reason != ExitReason.DIVERGED:
            current.save(self._path)
        return self.result(reason)

    def _run(self, bar: Any) -> ExitReason:
        current = self._replay
        bar.update(current.updates)
        if self._every is not None:
            # An evaluation that was due when the replay was interrupted, or what its row says to the stopping rule.
            history, is_due = current.history, current.version % self._every == 0
            if history.n_rows == 0 or (is_due and not current._is_evaluated()):
                reason = self._look()
            else:
                reason = self._reached(history.last) if current._is_evaluated() else None
            if reason is not None:
                return reason
        while True:
            before = current.updates
            goal, limit = self._goal()
            if goal == current.version:
                if limit is not None:
                    return self._end(limit)
                if current._more():
                    continue
                return self._end(ExitReason.SCHEDULE_END)
            steps = min(goal - current.version, self._steps_a_run)
            if self._wants_previous:
                if goal - current.version == 1:
                    current._previous = (current.version, current.w)
                else:
                    steps = min(steps, goal - current.version - 1)
            began = time.perf_counter()
            reason = current.run(steps)
            if time.perf_counter() - began < _SECONDS_A_RUN:
                self._steps_a_run *= 2
            else:
                self._steps_a_run = max(1, self._steps_a_run // 2)
            bar.update(current.updates - before)
            if reason == ExitReason.DIVERGED:
                return reason
            due = self._every is not None and current.version % self._every == 0
            if due and (found := self._look()) is not None:
                return found
            if self._path is not None and current.version % self._checkpoint_every == 0:
                current.save(self._path)

    def _goal(self) -> tuple[int, ExitReason | None]:
        """The version to run to next, and the limit that it would be, if any."""
        current, stop = self._replay, self._stop
        goal = current.version + current.steps_within(time=None, updates=None)
        limit = None
        if isinstance(stop, Stop):
            if stop.server_steps is not None and stop.server_steps <= goal:
                goal, limit = max(stop.server_steps, current.version), ExitReason.SERVER_STEPS
            for name, reason in (("time", ExitReason.TIME), ("updates", ExitReason.UPDATES)):
                most = getattr(stop, name)
                if most is not None:
                    within = current.version + current.steps_within(
                        time=most if name == "time" else None, updates=most if name == "updates" else None
                    )
                    if within < goal:
                        goal, limit = within, reason
        for every in (self._every, self._checkpoint_every if self._path is not None else None):
            if every is not None:
                following = (current.version // every + 1) * every
                if following < goal:
                    goal, limit = following, None
        return goal, limit

    def _end(self, reason: ExitReason) -> ExitReason:
        """The last evaluation, where it was not made at this step already."""
        current = self._replay
        if self._every is not None and not current._is_evaluated():
            self._look()
        return reason

    def _look(self) -> ExitReason | None:
        """Evaluates, notes it in the history, and asks the callback and the stopping rule."""
        current, history = self._replay, self._replay.history
        w, books, previous = current.w, current._settle(), current._previous
        before = previous[1] if previous is not None and previous[0] == books.version - 1 else None
        values = self._evaluate(w, books.evaluated, before, current.threads)
        updates = books.updates - books.updates_before
        row: dict[str, float] = {
            "step": books.version,
            "time": books.time,
            "updates": books.updates,
            "staleness_mean": books.staleness_sum / updates if updates else 0.0,
            "staleness_max": books.staleness_max,
            **values,
            **current.secure_columns(),
        }
        if "grad_norm_sq" in values:
            seen = history.n_rows
            mean = history.last["grad_norm_sq_mean"] if seen else 0.0
            row["grad_norm_sq_mean"] = mean + (values["grad_norm_sq"] - mean) / (seen + 1)
        current._note(row, w if "distance" in values else None)
        if self._callback is not None:
            self._callback(dict(row))
        return self._reached(row)

    def _reached(self, row: dict[str, float]) -> ExitReason | None:
        """What the stopping rule says to this row of the history."""
        stop = self._stop
        if isinstance(stop, Stop):
            if stop.loss is not None and row["loss"] <= stop.loss:
                return ExitReason.LOSS
            if stop.grad_norm_sq is not None and row["grad_norm_sq"] <= stop.grad_norm_sq:
                return ExitReason.GRAD_NORM_SQ
            if stop.accuracy is not None and row["accuracy"] >= stop.accuracy:
                return ExitReason.ACCURACY
        elif stop is not None and stop(dict(row)):
            return ExitReason.STOP_FUNCTION
        return None


def _progress_bar(progress: bool | None, schedule: Schedule | Iterable[Schedule]) -> Any:
    total = int(np.count_nonzero(schedule.status == Status.USED)) if isinstance(schedule, Schedule) else None
    tqdm = optional("tqdm", None, "a progress bar").tqdm
    disable = None if progress is None else not flag("progress", progress)
    return tqdm(total=total, unit=" arrivals", unit_scale=True, disable=disable, leave=False)


def run(
    problem: AnyProblem,
    trace: Any,
    strategy: Any,
    local: LocalSGD | None = None,
    *,
    concurrency: int | None = None,
    server_steps: int | None = None,
    max_time: float | None = None,
    arrivals: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Result:
    """`schedule` and `replay` in one call; `options` are those of `replay`.

    >>> import numpy as np, fedbuff as fb
    >>> problem = fb.Quadratic(np.zeros((4, 2)))
    >>> delays = fb.DelayModel(n_clients=4, compute=fb.Exponential(1.0))
    >>> fb.run(problem, delays, fb.FedBuff(2), fb.LocalSGD(steps=1, lr=0.5), server_steps=10).version
    10
    """
    from ._delays import DelayModel
    from ._resolve import schedule
    from ._trace import ArrivalLog, Trace

    instance("trace", trace, (Trace, DelayModel, ArrivalLog), "a Trace, a DelayModel or an ArrivalLog")
    made = schedule(
        trace, strategy, concurrency, server_steps=server_steps, max_time=max_time, arrivals=arrivals, seed=seed
    )
    return replay(problem, made, local, strategy=strategy, seed=seed, **options)
