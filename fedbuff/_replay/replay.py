"""`Replay`: a replay that can be stepped, looked at, saved and gone on with."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .. import backends
from .._base.alone import alone
from .._base.arrays import as_model, little_endian
from .._base.checks import count, instance, seed_of
from .._base.files import reading, write_npz
from .._problems.base import Problem
from .._problems.local import LocalSGD
from .._problems.python_problem import PythonProblem
from .._rule.server_file import rule_from_json, rule_is_known, rule_to_json
from .._rule.strategies import (
    OF_SCHEDULE,
    PER_CLIENT,
    FedBuff,
    Rule,
    rule_of,
)
from .._schedule.ahead import Ahead
from .._schedule.columns import Status
from .._schedule.schedule import Schedule
from ..backends.spec import RunSpec, RunState
from ..backends.spec import Vector as Floats
from .check import check_problem, check_schedule
from .checkpoint import (
    FORMAT,
    FORMAT_NUMBER,
    _code_hash,
    _digest,
    _kernels,
    _local_to_json,
    _Position,
    local_from_json,
    problem_hash,
    read_checkpoint,
    width_of,
)
from .engine import AnyProblem, check_states, keeps_state, make_engine, make_roles, make_run
from .feed import _Feed
from .history import TRAFFIC, ExitReason, History
from .noise_ledger import NoiseLedger

__all__ = ["Replay"]
_SECONDS_A_SLICE = 0.1  # how long Ctrl-C and the progress bar may wait
_ROW = ("step", "time", "updates", "staleness_mean", "staleness_max")
_WHOLE = {"step", "updates", "staleness_max", "cut"}


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
        check_problem(problem)
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
        check_schedule(schedule, problem)
        if isinstance(problem, PythonProblem):  # each worker process is waited for by a thread
            self.threads = max(self.threads, problem.workers)
        self._w0_hash = hashlib.sha256(little_endian(start).tobytes()).hexdigest()
        self._metrics: list[str] | None = None  # of the evaluations in the history
        e_by_client = update_weights(self.rule, problem, schedule)
        check_states(local, problem, schedule)
        marked = not isinstance(schedule, Ahead)  # of whom no checkpoint is made
        self._feed = _Feed(schedule, self.rule, e_by_client, problem.n_clients, keeps_state(local), marked)
        self._engine = make_engine(
            problem, local, self.rule, start, self.seed, make_roles(self.rule, start, self.seed, schedule, e_by_client)
        )
        # What noise was drawn, where it cannot be drawn again.
        self._ledger = NoiseLedger() if self.rule.privacy is not None and not self.rule.privacy.repeatable else None
        self._history = History()
        self.message = ""
        self._start()

    def _start(self, metrics: tuple[str, ...] = (), **options: Any) -> None:
        """A run of the new engine, with the options of a RunSpec."""
        self._spec = RunSpec(
            metrics=metrics, secure=self.rule.secure is not None, announce=self._ledger is not None, **options
        )
        self._run = make_run(self._engine, self._spec)

    @property
    def version(self) -> int:
        """How many server steps were made."""
        return self._engine.version()

    @property
    def time(self) -> float:
        """The virtual time of the last server step, in seconds."""
        return self._run.time()

    @property
    def updates(self) -> int:
        """How many client updates entered these steps."""
        return self._run.updates()

    @property
    def w(self) -> Floats:
        """A copy of the current model."""
        return self._engine.w()

    @property
    def stats(self) -> dict[str, float]:
        return self._engine.stats()

    @property
    def history(self) -> History:
        """One row per evaluation."""
        history = self._history
        for values in self._run.rows(history.n_rows):
            history.append(self._row(values))
        return history

    def _row(self, values: list[float]) -> dict[str, float]:
        """A row of the history, by the names of its columns."""
        secure, mean = self._spec.secure, "grad_norm_sq" in self._spec.metrics
        names = [*_ROW, *self._spec.metrics]
        row = {name: int(value) if name in _WHOLE else value for name, value in zip(names, values, strict=False)}
        if secure:
            cut, seconds = values[len(names) : len(names) + 2]
            row |= self._secure_columns(int(row["step"]), int(row["updates"]), int(cut), seconds)
        if self.local is not None and self.local.compress is not None:
            row |= self._traffic_columns(int(row["updates"]))
        return row | ({"grad_norm_sq_mean": values[-1]} if mean else {})

    def _traffic_columns(self, updates: int) -> dict[str, float]:
        """What the updates that were used took: compressed uploads, and downloads of the model as it is."""
        assert self.local is not None and self.local.compress is not None
        dim, itemsize = self.problem.dim, self.problem.dtype.itemsize
        upload = self.local.compress.upload_bytes(dim, itemsize)
        return dict(zip(TRAFFIC, (updates * upload, updates * dim * itemsize), strict=True))

    def secure_columns(self) -> dict[str, float]:
        """What a secure sum has cost so far, for the history; nothing where sums are plain."""
        if self.rule.secure is None:
            return {}
        return self._secure_columns(self.version, self.updates, self._run.cut(), self._run.secure_seconds())

    def _secure_columns(self, version: int, updates: int, cut: int, seconds: float) -> dict[str, float]:
        from ..secure import traffic

        assert self.rule.secure is not None
        bytes_ = traffic(self.problem.dim, self.rule.secure)
        return {
            "bytes_to_server": bytes_.to_server(updates),
            "bytes_to_aggregator": bytes_.to_aggregator(updates, version),
            "bytes_from_aggregator": bytes_.from_aggregator(updates, version),
            "cut": cut,
            "secure_seconds": seconds,
        }

    def check(self) -> None:
        """Walks every invariant of the engine; raises where one does not hold."""
        self._engine.check()

    @alone
    def run(self, max_steps: int | None = None) -> ExitReason:
        """Makes up to max_steps server steps: SERVER_STEPS when they are made, else SCHEDULE_END or DIVERGED."""
        target = 2**62 if max_steps is None else self.version + count("max_steps", max_steps, low=0)
        while self.version < target:
            state = self._advance(target - self.version)
            if state.is_end:
                return ExitReason[state.name]
        return ExitReason.SERVER_STEPS

    def _advance(self, max_steps: int) -> RunState:
        """Goes on to where the run asks something: rows and noise are answered, the rest is for the caller."""
        run = self._run
        try:
            taken = 1 if isinstance(self.schedule, Ahead) and self.schedule.is_busy else 0
            state = RunState(run.advance(max_steps, _SECONDS_A_SLICE, max(1, self.threads - taken)))
        except KeyboardInterrupt:
            if isinstance(self.problem, PythonProblem):
                self.problem.close()
            raise
        except ValueError:
            if self.rule.own is not None:
                self.rule.own.raise_error()
            raise
        if state == RunState.NEED_ROWS:
            if not self._feed.give(run):
                run.close()
        elif state == RunState.ANNOUNCE:
            assert self._ledger is not None
            end = run.announced()
            self._ledger.draw(run.version(), end)
            run.allow(end)
        elif state == RunState.DIVERGED:
            self._explain_divergence()
        return state

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

    def _explain_divergence(self) -> None:
        step, row = self._engine.divergence()
        lr = "" if self.local is None else f", local step size {self.local.shown_lr}"
        where = f"server step {step}"
        if row >= 0 and (found := self._feed.locate(row)) is not None:
            where += f", arrival {row}: client {found[0]}, version {found[1]}"
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
                len(live), width_of(self.rule, self.problem.dim)
            ),
            "history": np.frombuffer(json.dumps(self.history._rows).encode(), np.uint8),
            "about": np.frombuffer(json.dumps(self._about()).encode(), np.uint8),
        }
        waiting = self._engine.waiting_deltas()
        if len(waiting):
            arrays["deltas"] = waiting
        for name, model in (
            ("evaluated", self._run.evaluated()),
            ("previous", None if self._is_evaluated() else self._run.previous()),
            *self._engine.rule_state().items(),
        ):
            if model is not None:
                arrays[name] = model
        if self._ledger is not None:
            self._ledger.attach(path)
        arrays["checksum"] = np.frombuffer(_digest(arrays), np.uint8)
        write_npz(path, arrays)

    def _is_evaluated(self) -> bool:
        """Whether the newest row of the history is of the model as it is now."""
        history = self.history
        return history.n_rows > 0 and history.last["step"] == self.version

    def _about(self) -> dict[str, Any]:
        local, run = self.local, self._run
        return {
            "format": FORMAT,
            "format_number": FORMAT_NUMBER,
            "problem": problem_hash(self.problem),
            "function": _code_hash(self.problem.function) if isinstance(self.problem, PythonProblem) else None,
            "kernels": _kernels(),
            "schedule": self.schedule.sha256 if isinstance(self.schedule, Schedule) else None,
            "w0": self._w0_hash,
            "rule": rule_to_json(self.rule),
            "local": None if local is None else _local_to_json(local),
            "staleness_weights": self._staleness_weights(),
            "seed": self.seed,
            "version": run.version(),
            "updates": run.updates(),
            "time": run.time(),
            "taken": self._feed.taken(run),
            "secure": {"seconds": run.secure_seconds(), "cut": run.cut()},
            "metrics": self._metrics,
            **({} if self._ledger is None else {"noise": self._ledger.run}),
        }

    def _staleness_weights(self, needed: int | None = None) -> list[Any] | None:
        """How many values of a staleness function of the user's own were looked up, and their hash."""
        if rule_is_known(self.rule):
            return None
        if needed is None:
            whole = self._feed.whole
            needed = len(self._feed._s) if whole is None else int(whole.staleness.max(initial=-1)) + 1
        values = self._feed.staleness_weights(needed)[:needed]
        return [needed, hashlib.sha256(little_endian(values).tobytes()).hexdigest()]

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
        about, arrays = read_checkpoint(path)
        where = os.fspath(path)
        if about["problem"] != problem_hash(problem):
            raise ValueError(f"{where}: it was made with another problem")
        if isinstance(schedule, Schedule) and about["schedule"] not in (None, schedule.sha256):
            raise ValueError(f"{where}: it was made with another schedule")
        given = None if strategy is None else rule_of(strategy)
        with reading(path, "a saved replay that can go on"):
            rule = rule_from_json(about["rule"], given)
            local = None if about["local"] is None else local_from_json(about["local"])
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
        keeps_state = self.local is not None and self.local.keeps_state
        with reading(path, "a saved replay that can go on"):
            self._go_to(_Position.read(about, arrays, self.problem, self.rule, keeps_state))

    def _go_to(self, at: _Position) -> None:
        whole = self._feed.whole
        if whole is not None and at.version > whole.n_steps:
            raise ValueError(f"it is at server step {at.version}, and the schedule ends at {whole.n_steps}")
        run = self._run
        run.pass_over(at.version)
        self._pass_to(at.evaluated_at)
        looked = run.time(), run.updates()
        newest = at.history[-1] if at.history else {}
        values = [newest[name] for name in self._spec.metrics if name in newest]
        mean = newest.get("grad_norm_sq_mean", 0.0)
        secure = at.secure
        run.resume(len(at.history), values, mean, at.evaluated, int(secure["cut"]), secure["seconds"])
        self._pass_to(at.version)
        found = {"taken": self._feed.taken(run), "updates": run.updates(), "time": run.time()}
        for name, value in found.items():
            if getattr(at, name) != value:
                if name == "taken":
                    raise ValueError(
                        f"it was made with another schedule: other arrivals up to server step {at.version}"
                    )
                raise ValueError(
                    f"it does not add up: {name} is {getattr(at, name)}, by the schedule {value} at step {at.version}"
                )
        if at.history and (at.history[-1]["time"], at.history[-1]["updates"]) != looked:
            raise ValueError("it does not add up: the last row of its history is not of this schedule")
        needed = self._engine.restore(at.w, at.live, at.models, at.rule_state, at.deltas)
        if whole is not None and needed != len(at.live):
            raise ValueError(f"it does not add up: it holds {len(at.live)} older models, and {needed} are needed")
        weights = at.staleness_weights
        if weights is not None and weights != self._staleness_weights(weights[0]):
            raise ValueError("it was made with another rule: its staleness function gives other weights")
        run.resumed(at.previous)
        self._history = History(at.history)
        self._w0_hash, self._metrics = at.w0, at.metrics

    def _pass_to(self, version: int) -> None:
        """The run at a later version, with as many pieces given to the engine, which has no models yet."""
        run = self._run
        while run.steps_known() < version:
            if not self._feed.give(run):
                raise ValueError(f"schedule: it ends before server step {version}, where the file stands")
        run.skip_to(version)


@dataclass(frozen=True, slots=True)
class _Holder:
    """A rule in the place of the strategy that carried it."""

    rule: Rule


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


def update_weights(rule: Rule, problem: AnyProblem, schedule: Schedule | Iterable[Schedule]) -> NDArray[np.float64]:
    """e of every client's updates. A client that never arrives has no share to correct, and no update to weigh."""
    e = _weights_alike(rule, problem, schedule)
    if rule.client_weights is None:
        return e
    if len(rule.client_weights) != problem.n_clients:
        raise ValueError(
            f"client_weights: expected {problem.n_clients} numbers, one per client, got {len(rule.client_weights)}"
        )
    weighed: NDArray[np.float64] = e * np.array(rule.client_weights)
    return weighed


def _weights_alike(rule: Rule, problem: AnyProblem, schedule: Schedule | Iterable[Schedule]) -> NDArray[np.float64]:
    """The same without the weights of clients."""
    if rule.weighting == "equal":
        return np.full(problem.n_clients, rule.sample_weight(1.0))
    if rule.weighting not in OF_SCHEDULE:
        sizes, which = np.unique(problem.n_samples, return_inverse=True)
        return np.array([rule.sample_weight(float(n)) for n in sizes])[which]
    if not isinstance(schedule, Schedule):
        raise ValueError(
            f'schedule: weights="{rule.weighting}" counts its arrivals first, and this one comes in chunks'
        )
    if rule.weighting == PER_CLIENT:
        return np.full(problem.n_clients, rule.weight_scale)
    arrivals = np.bincount(schedule.client[schedule.status == Status.USED], minlength=problem.n_clients)
    share = arrivals / max(int(arrivals.sum()), 1)
    return np.divide(rule.weight_scale, problem.n_clients * share, out=np.zeros(len(share)), where=share > 0)
