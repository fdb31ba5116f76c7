"""Replay: a schedule and a problem go in, the model and its history come out."""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, Self, cast

import numpy as np
from numpy.typing import NDArray

from . import backends
from ._alone import OneAtATime, alone
from ._arrays import as_model
from ._checks import choice, count, flag, instance, list_of, number, path_of, seed_of
from ._clients import Callback, Custom
from ._files import open_npz, optional, reading, write_npz
from ._history import ExitReason, History, Interrupted, Result
from ._local import LocalSGD
from ._noise_ledger import NoiseLedger, ledger_path
from ._problems import Problem
from ._schedule import Schedule, Status
from ._secure import OneTimePad
from ._server_file import rule_from_json, rule_to_json
from ._strategy import INVERSE_FREQUENCY, FedBuff, Rule, rule_of
from .backends._spec import SumSpec

__all__ = ["Replay", "Stop", "replay", "run"]

METRICS = ("loss", "grad_norm_sq", "accuracy", "distance", "step_norm")
FORMAT = "fedbuff-replay"
FORMAT_NUMBER = 1

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
    def restore(
        self,
        version: int,
        w: Floats,
        live: list[int],
        models: Floats,
        first: Floats | None,
        second: Floats | None,
        rows_done: int,
    ) -> None: ...


class _Feed:
    """The schedule, piece by piece: rows for the engine, and times and counts of the steps that are not made yet."""

    def __init__(self, schedule: Schedule | Iterable[Schedule], rule: Rule, e_by_client: NDArray[np.float64]) -> None:
        self.whole = schedule if isinstance(schedule, Schedule) else None
        self._pieces = self._cut(schedule) if isinstance(schedule, Schedule) else self._chunks(iter(schedule))
        self._rule, self._e = rule, e_by_client
        self._one_e = bool((e_by_client == e_by_client[:1]).all())  # then no client is looked up
        self._s = np.empty(0)
        self.version = 0
        # Of steps self.version, self.version + 1, ...: time, and used rows up to and with the step.
        self.step_time = np.empty(0)
        self.step_rows = np.empty(0, np.int64)
        self.step_staleness = np.empty((2, 0), np.int64)  # sum and maximum over the step's rows
        self.rows_known = 0
        self.last: Columns | None = None

    def _cut(self, schedule: Schedule) -> Iterator[tuple[Columns, NDArray[np.int64], NDArray[np.int64], Any]]:
        """A schedule at hand: only its used rows matter, and how often they name each version."""
        if schedule.first_step != 0:
            raise ValueError("schedule: it begins at a later step; replay the whole one")
        used = schedule.status == Status.USED
        n_steps = schedule.n_steps
        rows: NDArray[np.int64] | None = None if used.all() else np.flatnonzero(used)
        version, step = (column if rows is None else column[rows] for column in (schedule.version, schedule.step))
        references = np.bincount(version, minlength=n_steps)[:n_steps]
        bounds = np.concatenate(([0], np.bincount(step, minlength=n_steps).cumsum()))
        begin = 0
        nothing = np.empty(0, np.int64)
        while begin < n_steps:
            end = int(np.searchsorted(bounds, bounds[begin] + _ROWS_AT_ONCE))
            end = min(max(end, begin + 1), n_steps)
            piece = slice(bounds[begin], bounds[end])
            columns = _columns(schedule, piece if rows is None else rows[piece])
            yield columns, references[begin:end], nothing, schedule.step_time[begin:end]
            begin = end

    def _chunks(
        self, chunks: Iterator[Schedule]
    ) -> Iterator[tuple[Columns, NDArray[np.int64], NDArray[np.int64], Any]]:
        """A schedule that comes in chunks: the tasks started on a version are counted, and ended ones let go of it."""
        step = 0
        for chunk in chunks:
            if not isinstance(chunk, Schedule):
                raise TypeError(f"schedule: expected a Schedule or an iterator of them, got {type(chunk).__name__}")
            if chunk.first_step != step:
                raise ValueError(f"schedule: a chunk begins at step {chunk.first_step}, the one before ended at {step}")
            used = chunk.status == Status.USED
            started = np.concatenate(([chunk.started_on_0], chunk.step_started))[: chunk.n_steps]
            yield _columns(chunk, np.flatnonzero(used)), started, chunk.version[~used], chunk.step_time
            step += chunk.n_steps

    def more(self, engine: _Engine) -> bool:
        """Gives the engine the next piece; False where there is none."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        columns, references, unused, step_time = piece
        staleness = columns["staleness"]
        needed = int(staleness.max(initial=-1)) + 1
        if needed > len(self._s):
            self._s = np.array([self._rule.staleness_weight(t) for t in range(max(needed, 2 * len(self._s)))])
        if columns["client"].size and int(columns["client"].max()) >= len(self._e):
            raise ValueError(f"schedule: client {columns['client'].max()} of a problem with {len(self._e)} clients")
        e = np.full(len(staleness), self._e[0]) if self._one_e else self._e[columns["client"]]
        s = self._s[staleness]
        if self._rule.secure is not None or self._rule.privacy is not None:
            s = _whole_weights(self._rule, s, e, staleness)
        engine.add(
            columns["client"], columns["task"], columns["version"], columns["step"], s, e,
            np.ascontiguousarray(references, np.int64), np.ascontiguousarray(unused, np.int64),
        )  # fmt: skip
        first = self.version + len(self.step_time)
        ends = np.searchsorted(columns["step"], first + np.arange(len(step_time)), side="right")
        self.step_time = np.concatenate((self.step_time, step_time))
        self.step_staleness = np.concatenate((self.step_staleness, _by_step(staleness, ends)), axis=1)
        self.step_rows = np.concatenate((self.step_rows, self.rows_known + ends))
        self.rows_known += len(columns["client"])
        self.last = columns
        return True

    def advance(self, version: int) -> tuple[float, int, int, int] | None:
        """The server is at this version now: the time of its last step, the rows used by then, and the sum and maximum
        of their staleness since the version before."""
        made = version - self.version
        if made == 0:
            return None
        total, most = int(self.step_staleness[0, :made].sum()), int(self.step_staleness[1, :made].max())
        at = float(self.step_time[made - 1]), int(self.step_rows[made - 1]), total, most
        self.step_time, self.step_rows, self.version = self.step_time[made:], self.step_rows[made:], version
        self.step_staleness = self.step_staleness[:, made:]
        return at


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
        self._w0_hash = hashlib.sha256(start.tobytes()).hexdigest()
        self._metrics: list[str] | None = None  # of the evaluations in the history
        e_by_client = _update_weights(self.rule, problem, schedule)
        self._feed = _Feed(schedule, self.rule, e_by_client)
        self._engine = _make_engine(
            problem, local, self.rule, start, self.seed, _make_roles(self.rule, start, self.seed, schedule, e_by_client)
        )
        # What noise was drawn, where it cannot be drawn again.
        self._ledger = NoiseLedger() if self.rule.privacy is not None and not self.rule.privacy.repeatable else None
        self.time = 0.0
        self.updates = 0
        # Since the last evaluation: updates then, sum and maximum of staleness; and the model that was evaluated.
        self._since = {"updates": 0, "staleness_sum": 0, "staleness_max": 0}
        # Numbers cut and seconds spent by secure sums before this engine was made: a checkpoint carries them.
        self._secure_before = {"cut": 0, "seconds": 0.0}
        self._evaluated: Floats | None = None
        self.history = History()
        self.message = ""

    @property
    def version(self) -> int:
        """How many server steps were made."""
        return self._engine.version()

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
                self._ledger.draw(self.version, self.version + min(steps, len(self._feed.step_time)))
            code = self._engine.run(steps, self.threads)
            at = self._feed.advance(self.version)
            if at is not None:
                self.time, self.updates, total, most = at
                self._since["staleness_sum"] += total
                self._since["staleness_max"] = max(self._since["staleness_max"], most)
            if code == _DIVERGED:
                self._explain_divergence()
                return ExitReason.DIVERGED
            if code == _NEED_ROWS and not self._feed.more(self._engine):
                return ExitReason.SCHEDULE_END
        return ExitReason.SERVER_STEPS

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
        known = len(self._feed.step_time)
        if time is not None:
            known = min(known, int(np.searchsorted(self._feed.step_time, time, side="right")))
        if updates is not None:
            known = min(known, int(np.searchsorted(self._feed.step_rows, updates, side="right")))
        return known

    def _explain_divergence(self) -> None:
        step, row = self._engine.divergence()
        lr = "" if self.local is None else f", local step size {self.local.lr}"
        where = f"server step {step}"
        if row >= 0 and self._feed.last is not None:
            columns = self._feed.last
            at = row - (self._feed.rows_known - len(columns["client"]))
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
        live = [v for v in self._engine.live_versions() if v != self.version]
        arrays: dict[str, NDArray[Any]] = {
            "w": self.w,
            "live": np.array(live, np.int64),
            "models": np.array([self._engine.model(v) for v in live], self.problem.dtype).reshape(
                len(live), self.problem.dim
            ),
            "history": np.frombuffer(json.dumps(self.history._rows).encode(), np.uint8),
            "about": np.frombuffer(json.dumps(self._about()).encode(), np.uint8),
        }
        for name, moment in (("first", self._engine.first_moment()), ("second", self._engine.second_moment())):
            if moment is not None:
                arrays[name] = moment
        if self._evaluated is not None:
            arrays["evaluated"] = self._evaluated
        if self._ledger is not None:
            self._ledger.attach(path)
        arrays["checksum"] = np.frombuffer(_digest(arrays), np.uint8)
        write_npz(path, arrays)

    def _about(self) -> dict[str, Any]:
        local = self.local
        return {
            "format": FORMAT,
            "format_number": FORMAT_NUMBER,
            "problem": problem_hash(self.problem),
            "schedule": self.schedule.sha256 if isinstance(self.schedule, Schedule) else None,
            "w0": self._w0_hash,
            "rule": rule_to_json(self.rule),
            "local": None if local is None else _local_to_json(local),
            "seed": self.seed,
            "version": self.version,
            "updates": self.updates,
            "time": self.time,
            "since": self._since,
            "secure": dict(zip(("seconds", "cut"), self._secure_spent(), strict=True)),
            "metrics": self._metrics,
            **({} if self._ledger is None else {"noise": self._ledger.run}),
        }

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
        made = cls(problem, schedule, local, strategy=_Holder(rule), seed=about["seed"], threads=threads)
        made._restore(path, about, arrays)
        if made._ledger is not None:
            made._ledger = NoiseLedger.read(path, about["noise"])
        return made

    def _restore(self, path: str | os.PathLike[str], about: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        with reading(path, "a saved replay that can go on"):
            self._engine.restore(
                about["version"], arrays["w"], arrays["live"].tolist(), arrays["models"], arrays.get("first"),
                arrays.get("second"), about["updates"],
            )  # fmt: skip
            self.history = History(json.loads(arrays["history"].tobytes()))
        # Rows that are done are given again, so that the references to old versions come out right; the engine skips
        # them. A version whose last row is among them was not kept.
        while self._feed.version + len(self._feed.step_time) < about["version"]:
            if not self._feed.more(self._engine):
                raise ValueError(f"schedule: it ends before server step {about['version']}, where the file stands")
        self._feed.advance(about["version"])
        self.time, self.updates, self._since = about["time"], about["updates"], about["since"]
        self._secure_before = about.get("secure", self._secure_before)
        self._evaluated = arrays.get("evaluated")
        self._w0_hash, self._metrics = about["w0"], about["metrics"]


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
    except ValueError as error:
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
        checksum = arrays.pop("checksum").tobytes()
        if checksum != _digest(arrays):
            raise ValueError("its checksum does not fit its content")
        for name in (
            "problem",
            "schedule",
            "w0",
            "rule",
            "local",
            "seed",
            "metrics",
            "version",
            "updates",
            "time",
            "since",
        ):
            about[name]
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
        self._previous: Floats | None = None  # the model before the last step, where that is wanted

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
        if self._every is not None and current.history.n_rows == 0 and (reason := self._look()) is not None:
            return reason
        while True:
            before = current.updates
            goal, limit = self._goal()
            if goal == current.version:
                if limit is not None:
                    return self._end(limit)
                if current._feed.more(current._engine):
                    continue
                return self._end(ExitReason.SCHEDULE_END)
            steps = min(goal - current.version, self._steps_a_run)
            if self._wants_previous:
                if goal - current.version == 1:
                    self._previous = current.w
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
        if self._every is not None and current.history.last["step"] != current.version:
            self._look()
        return reason

    def _look(self) -> ExitReason | None:
        """Evaluates, notes it in the history, and asks the callback and the stopping rule."""
        current, history = self._replay, self._replay.history
        w, since = current.w, current._since
        values = self._evaluate(w, current._evaluated, self._previous, current.threads)
        updates = current.updates - since["updates"]
        row: dict[str, float] = {
            "step": current.version,
            "time": current.time,
            "updates": current.updates,
            "staleness_mean": since["staleness_sum"] / updates if updates else 0.0,
            "staleness_max": since["staleness_max"],
            **values,
            **current.secure_columns(),
        }
        current._evaluated = w if "distance" in values else None
        current._since = {"updates": current.updates, "staleness_sum": 0, "staleness_max": 0}
        if "grad_norm_sq" in values:
            seen = history.n_rows
            before = history.last["grad_norm_sq_mean"] if seen else 0.0
            row["grad_norm_sq_mean"] = before + (values["grad_norm_sq"] - before) / (seen + 1)
        history.append(row)
        if self._callback is not None:
            self._callback(dict(row))
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
