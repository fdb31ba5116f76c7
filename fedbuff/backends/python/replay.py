"""Replay one arrival after the other: the specification of the compiled engine, and what runs where there is none."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._base.arrays import round_down
from ..._rule.own import OwnRule
from ..._rule.state import MOMENTS
from ..spec import (
    ClientFunction,
    EncodeNumbers,
    EngineSpec,
    LocalTask,
    Moments,
    SumSpec,
    UsedRows,
    Vector,
    Words,
)
from .compression import compress_with_feedback
from .control import ControlSum, make_shift, make_state
from .groups import size_of_group
from .philox import Stream, unit_double
from .portable_math import log_positive, sincos2pi
from .round_means import RoundMeans
from .rows import RowTable
from .rule import (
    Kernels,
    WeightSums,
    add_contribution,
    hidden_after,
    initial_moments,
    step_model,
    weight_of_numbers,
)

__all__ = ["DIVERGED", "NEED_ROWS", "STEPS", "SequentialReplay"]

STEPS, NEED_ROWS, DIVERGED = 0, 1, 2

EPSILON = float(np.finfo(np.float64).eps)


def _system_normals(n: int) -> NDArray[np.float64]:
    """Standard normals made, as `normals` are, of words that the operating system gives."""
    words = np.frombuffer(os.urandom(16 * ((n + 1) // 2)), np.uint32).reshape(-1, 4).T.astype(np.uint64)
    radius = np.sqrt(-2.0 * log_positive(1.0 - unit_double(words[0], words[1])))
    sine, cosine = sincos2pi(unit_double(words[2], words[3]))
    return np.stack([radius * cosine, radius * sine], axis=1).ravel()[:n]


class _SimulatedSum:
    """The arithmetic of a sum under masks, which cancel."""

    def __init__(self, kernels: Kernels, sums: SumSpec, dim: int) -> None:
        self._kernels, self._sums = kernels, sums
        self._total: Words = np.zeros(dim, np.uint32 if sums.modulus == 32 else np.uint64)

    def add(self, client: int, task: int, version: int, step: int, weight: int, factor: float, delta: Vector) -> int:
        sums = self._sums
        rounding = (sums.seed, client, task) if sums.stochastic else None
        numbers = EncodeNumbers(weight, sums.range, sums.step, factor, rounding)
        return self._kernels.encode_add(self._total, delta, numbers, self._total)

    def restart(self) -> None:
        """Forgets what was added to a sum that was not finished."""
        self._total[:] = 0

    def finish(self, step: int, out: Vector) -> None:
        self._kernels.decode(self._total, self._sums.step / self._sums.weight_unit, out)
        self._total[:] = 0


class _Journal(NamedTuple):
    """What will be: attributes, models, and what is left and kept of versions."""

    values: dict[str, Any]
    models: dict[int, Vector]
    references: dict[int, int]
    pending: dict[int, int]


@dataclass(slots=True, eq=False)
class _OpenStep:
    """What the arrivals of a server step add up to."""

    total: Vector
    delta: Vector  # the newest arrival's
    change: Vector  # of the table's sum
    sums: WeightSums = field(default_factory=WeightSums)
    rows: dict[int, NDArray[Any]] = field(default_factory=dict)  # of the table, that the step replaces
    cut: int = 0  # numbers out of a secure sum's range
    bad: int = -1  # the first arrival that is not finite
    means: RoundMeans | None = None  # Ringleader's, with the arrivals
    last: int = -1  # client of the newest arrival that was folded into them
    own: Vector | None = None  # the server's next model, where clients have another one
    states: dict[int, Vector] = field(default_factory=dict)  # of clients, after their tasks
    controls: ControlSum | None = None  # what they have changed
    held: list[tuple[Vector, float, int, int]] = field(default_factory=list)  # delta, weight, staleness, client
    numbers: NDArray[np.float64] | None = None  # those two for an own rule: what came, and its state after the step


class SequentialReplay:
    """The methods of the compiled ReplayF32 and ReplayF64, on one thread."""

    def __init__(self, kernels: Kernels, spec: EngineSpec) -> None:
        assert not isinstance(spec.function, tuple), "a compiled gradient needs the cpp backend"
        rule, w0, self._sums = spec.rule, spec.w0, spec.sums
        simulated = spec.roles is None and spec.sums.modulus
        self._roles = _SimulatedSum(kernels, spec.sums, w0.size) if simulated else spec.roles
        self._summing = -1  # the version whose sum was begun
        self._cut = 0
        self._kernels, self._rule = kernels, rule
        self._problem, self._function, self._local = spec.bound, spec.function, spec.local
        self._seed = spec.seed
        # What changes in a step or an addition is first noted here, as the values that will be, and then carried out:
        # an interrupt leaves what `_settle` can finish.
        self._journal: _Journal | None = None
        # A version is its model, or with a control variate both, one after the other.
        self._dim = w0.size
        first = np.concatenate((w0, np.zeros_like(w0))) if rule.has_control else w0.copy()
        self._models: dict[int, Vector] = {0: first}
        self._states: dict[int, Vector] | None = {} if spec.local is not None and spec.local.keeps_state else None
        self._references: dict[int, int] = {}  # tasks that ended or will end on a version and are not committed
        self._pending: dict[int, int] = {}  # of them, rows that are kept
        self._version = 0
        self._table_total: tuple[Vector, int, dict[int, NDArray[Any]]] | None = None  # the newest step's, and its rows
        self._rows: list[tuple[Any, ...]] = []
        self._at = 0  # the next row in _rows
        self._done = 0  # rows of made steps
        self._closed = False  # no more rows come
        # Of groups that were run: by the number of the row, the first row of its group and the delta.
        self._deltas: dict[int, tuple[int, Vector]] = {}
        self._passing = False  # over rows of steps that were done before a restore
        self._steps_known = 0
        self._pieces = 0
        self._diverged = (-1, -1)
        self._most = 1
        self._record: tuple[int, int] | None = None  # every, offset
        self._gradients: tuple[float, ...] = ()
        self._moments = initial_moments(rule, w0)
        self._last_step = np.zeros_like(w0) if rule.weight_by.by == "last_step" else None
        means = rule.table is not None and rule.table.keeps == "means"
        self._means = RoundMeans(kernels, rule, w0.size, w0.dtype) if means else None
        self._numbers = None if rule.own is None else np.zeros(rule.own.n_state)  # of an own rule
        self._own = None if rule.hidden is None else w0.copy()  # the server's model, where clients have another one
        self._rows_of_clients = None if means or rule.kept_rows is None else RowTable(rule, w0.size, w0.dtype)
        if self._rows_of_clients is not None:
            self._rows_of_clients.begin(w0)

    def set_table(self, memory: NDArray[Any]) -> None:
        """Memory for the rows of the rule's table, (n_clients, dim)."""
        assert self._rows_of_clients is not None
        self._rows_of_clients.memory = memory

    def add(self, rows: UsedRows, references: NDArray[np.int64], unused: NDArray[np.int64]) -> None:
        self._settle()
        version = rows.version
        skip = int(np.searchsorted(rows.step, self._version)) if self._passing else 0
        told = dict(enumerate(references.tolist(), self._steps_known))
        ended, kept = Counter([*unused.tolist(), *version[:skip].tolist()]), Counter(version[skip:].tolist())
        touched = {*told, *ended, *kept}
        left = {v: self._references.get(v, 0) + told.get(v, 0) - ended[v] for v in touched}
        pending = {v: self._pending.get(v, 0) + kept[v] for v in touched}
        closed = self._steps_known + len(told)
        for v in sorted(touched):
            gone = v <= self._version and kept[v] and v not in self._models and not self._passing
            if gone or (v < closed and pending[v] > left[v]):
                raise ValueError(f"the model of version {v} is gone: more tasks end on it than were started")
        left_rows = self._rows[self._at :] + list(zip(*(column[skip:].tolist() for column in rows), strict=True))
        values = {"_rows": left_rows, "_at": 0, "_steps_known": closed, "_pieces": self._pieces + 1}
        self._carry_out(_Journal(values | {"_done": self._done + skip}, {}, left, pending))

    def _carry_out(self, journal: _Journal) -> None:
        self._journal = journal
        self._settle()

    def _settle(self) -> None:
        """Carries out what was decided; a second time changes nothing."""
        journal = self._journal
        if journal is None:
            return
        self.__dict__.update(journal.values)
        self._models.update(journal.models)
        self._references.update(journal.references)
        self._pending.update(journal.pending)
        if (table := self._rows_of_clients) is not None and self._table_total is not None:
            table.total, table.seen, rows = self._table_total
            table.keep(rows)
        self._most = max(self._most, len(self._models))
        self._forget()
        self._journal = None

    def pieces(self) -> int:
        self._settle()
        return self._pieces

    def run(self, max_steps: int, threads: int) -> int:
        self._settle()
        if self._diverged[0] >= 0:
            return DIVERGED
        for _ in range(max_steps):
            if self._version >= self._steps_known or not self._run_groups():
                return NEED_ROWS
            if not self._step():
                return DIVERGED
        return STEPS

    def close(self) -> None:
        self._closed = True

    def _run_groups(self) -> bool:
        """Runs the groups with rows of the next step; False where one is not whole."""
        if self._function is None or self._function.batch == 0:
            return True
        at = self._at
        while at < len(self._rows) and self._rows[at][3] == self._version:
            number = self._done + at - self._at
            if number not in self._deltas:
                following = self._rows[at : at + self._function.batch + 1]
                versions, steps = ([row[i] for row in following] for i in (2, 3))
                size = size_of_group(versions, steps, self._function.batch, self._closed)
                if size is None:
                    return False
                deltas = self._group(self._function, following[:size])
                self._deltas.update({number + i: (number, delta) for i, delta in enumerate(deltas)})
            at += 1
        return True

    def _group(self, function: ClientFunction, rows: list[tuple[Any, ...]]) -> Vector:
        clients, tasks = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
        models = np.stack([self._model_of(row[2]) for row in rows])
        return function.check(function.call(clients, tasks, models), models.shape, models.dtype).copy()

    def _step(self) -> bool:
        # Moments are changed in copies, which take their places when the step is made.
        moments = tuple(moment.copy() for moment in self._moments)
        self._begin_sum()
        w = self._model_of(self._version)
        means = None if self._means is None else self._means.copy()
        step = _OpenStep(np.zeros_like(w), np.empty_like(w), np.zeros_like(w), means=means)
        step.controls = ControlSum(self._kernels.accumulate, w) if self._rule.has_control else None
        end = self._at
        while end < len(self._rows) and self._rows[end][3] == self._version:
            if not self._add(step, end):
                self._diverged = (self._version, self._done + end - self._at)
                return False
            end += 1
        new = self._next_model(step, moments)
        if not all(x is None or np.isfinite(x).all() for x in (new, step.own, step.numbers)):
            self._diverged = (self._version, step.bad)
            return False
        if step.means is not None and step.last >= 0:
            step.means.hear(step.last)
        gradients = self._gradients
        if self._record is not None and self._version % self._record[0] == self._record[1]:
            gradients = (*gradients, self._squared_gradient(w))
        ended = Counter(row[2] for row in self._rows[self._at : end])
        done = self._done + end - self._at
        values = {
            "_version": self._version + 1,
            "_at": end,
            "_done": done,
            "_deltas": {n: d for n, d in self._deltas.items() if n >= done},
            "_states": None if self._states is None else self._states | step.states,
            "_cut": self._cut + step.cut,
            "_moments": moments,
            "_last_step": w - new[: w.size] if self._rule.weight_by.by == "last_step" else None,
            "_own": step.own,
            "_numbers": step.numbers,
            "_means": step.means,
            "_gradients": gradients,
        }
        table = self._rows_of_clients
        if table is not None:
            values["_table_total"] = (table.total + step.change, len({*table.rows, *step.rows}), step.rows)
        self._carry_out(
            _Journal(
                values,
                {self._version + 1: new},
                {v: self._references[v] - n for v, n in ended.items()},
                {v: self._pending[v] - n for v, n in ended.items()},
            )
        )
        return True

    def _fold(self, step: _OpenStep, client: int, at: int) -> None:
        """A delta into Ringleader's means."""
        assert step.means is not None
        is_last = at + 1 == len(self._rows) or self._rows[at + 1][3] != self._version
        steps, finite = step.means.fold(client, step.delta)
        if steps != is_last:
            raise ValueError(
                f"step {self._version}: the schedule is not one of Ringleader's rounds; make it with this strategy"
            )
        if not steps:
            step.means.hear(client)
        step.last = client
        if not finite and step.bad < 0 and not np.isfinite(step.delta).all():
            step.bad = self._done + at - self._at

    def _own_step(self, own: OwnRule, w: Vector, step: _OpenStep) -> Vector:
        assert self._numbers is not None
        deltas, weights, staleness, clients = (list(column) for column in zip(*step.held, strict=True))
        code, new, step.numbers = own.step(
            self._version, self._rule.lr_of(self._version, max(staleness)), w, deltas, np.array(weights),
            np.array(staleness, np.int64), np.array(clients, np.int64), self._numbers,
        )  # fmt: skip
        if code != 0:
            raise ValueError(f"step {self._version}: the own rule's function gave {code}")
        return new

    def _minus_model(self, delta: Vector, start: Vector, sums: WeightSums) -> Vector:
        """An arrival as a ring of models keeps it."""
        if sums.arrivals > 1:
            raise ValueError(
                f"step {self._version}: a ring of models takes one arrival in each step; make the schedule with this "
                "strategy"
            )
        return delta - start

    def _begin_sum(self) -> None:
        if isinstance(self._roles, _SimulatedSum):
            self._roles.restart()
        elif self._roles is not None and self._summing == self._version:
            raise RuntimeError("replay: a secure sum was interrupted; go on from a checkpoint")
        self._summing = self._version

    def _add(self, step: _OpenStep, at: int) -> bool:
        """Adds the arrival of this row to the step's sum. False where a secure sum cannot take it, or no step uses it
        and it is not finite."""
        rule, w, delta = self._rule, self._model_of(self._version), step.delta
        client, task, version, _, s, e = self._rows[at]
        start = self._model_of(version)
        if (ready := self._deltas.get(self._done + at - self._at)) is not None:
            delta[:] = ready[1]
        elif self._states is not None:
            found = step.states.get(client, self._states.get(client))
            step.states[client] = after = np.empty_like(w)
            self._work_with_state(client, task, version, delta, found, after)
            if s < 0:  # no step uses it
                return bool(np.isfinite(delta).all())
            if step.controls is not None:
                step.controls.add(after, found)
        else:
            self._work(client, task, version, start, delta)
        factor = self._clip_factor(delta)
        before = None if version == self._version else start
        so_far = step.total if step.sums.arrivals > 0 else None
        q = weight_of_numbers(self._kernels, rule, delta, w, before, self._last_step, so_far)
        step.sums, weight = step.sums.weigh(s, e, self._version - version, q)
        if self._roles is not None:
            whole = round(weight * self._sums.weight_unit)
            outside = self._roles.add(client, task, version, self._version, whole, factor, delta)
            step.cut += outside
            return outside == 0 or bool(np.isfinite(delta).all())
        if step.means is not None:
            self._fold(step, client, at)
            return True
        if rule.own is not None:
            step.held.append((delta.copy(), weight * factor, self._version - version, client))
            if step.bad < 0 and not np.isfinite(delta).all():
                step.bad = self._done + at - self._at
            return True
        base = start if rule.base == "current" and version != self._version else None
        part, table = delta, self._rows_of_clients
        if table is not None:
            if table.is_ring:
                client, part = self._version % table.n_clients, self._minus_model(delta, start, step.sums)
            row = step.rows.get(client, table.rows.get(client))
            part, step.rows[client] = table.contribution(part, row), table.stored(part)
            step.change = table.changed(step.change, row, step.rows[client])
        finite = add_contribution(self._kernels, step.total, part, weight * factor, w, base, step.total)
        if not finite and step.bad < 0 and not np.isfinite(delta).all():
            step.bad = self._done + at - self._at
        return True

    def _next_model(self, step: _OpenStep, moments: Moments) -> Vector:
        rule, w, sums, total = self._rule, self._model_of(self._version), step.sums, step.total
        if self._roles is not None and sums.arrivals > 0:
            self._roles.finish(self._version, total)
        if self._sums.deviation > 0:
            total += self._noise(total)
        if sums.arrivals > 0 and sums.norm(rule) == 0.0:
            raise ValueError(f"step {self._version}: the weights of its arrivals sum to zero")
        before, table, step.numbers = w if self._own is None else self._own, self._rows_of_clients, self._numbers
        if rule.own is not None and sums.arrivals > 0:
            return self._own_step(rule.own, w, step)
        if sums.arrivals == 0 or (table is not None and table.waits(len({*table.rows, *step.rows}))):
            new = before.copy()
        else:
            if table is not None:
                total = table.direction(total, sums.norm(rule))
            if step.means is not None:
                total = step.means.stepped.sum
            new = step_model(self._kernels, rule, before, total, sums, self._version, moments)
        if step.controls is not None:
            control = self._control_of(self._version)
            control = control if sums.arrivals == 0 else step.controls.step(rule, control, new)
            return np.concatenate((new, control))
        if self._own is None:
            return new
        step.own = new
        return w.copy() if sums.arrivals == 0 else hidden_after(self._kernels, rule, w, new, self._version)

    def _clip_factor(self, delta: Vector) -> float:
        """What makes the norm at most clip, also where products are rounded: a number of the dtype, rounded down."""
        clip = self._sums.clip
        norm = self._norm_bound(delta) if clip > 0 else 0.0
        if norm <= clip:
            return 1.0
        limits = np.finfo(delta.dtype)
        lost = math.sqrt(delta.size) * float(limits.smallest_subnormal)
        longest = norm * (1.0 + float(limits.eps))
        most = (clip - lost) / longest * (1.0 - 4 * EPSILON)
        most = math.nextafter(math.nextafter(most, 0.0), 0.0)  # for one that is subnormal
        if most <= 0 or longest == math.inf:
            return 0.0
        return round_down(most, delta.dtype)

    def _norm_bound(self, delta: Vector) -> float:
        """At least the norm; infinite or NaN where a number is not finite."""
        squares = self._kernels.dot(delta, delta)
        norm = math.sqrt(squares)
        if not 1e-280 < squares < 1e300:
            largest = float(np.max(np.abs(delta), initial=0.0))
            if largest == 0 or not math.isfinite(largest):
                return largest
            exponent = math.frexp(largest)[1] - 1
            scaled = np.ldexp(delta.astype(np.float64), -exponent)
            root = math.sqrt(float(np.dot(scaled, scaled)))
            norm = math.ldexp(root, exponent) if exponent < 1000 else root * 2.0**1000 * 2.0 ** (exponent - 1000)
        return math.nextafter(norm * (1.0 + (delta.size + 8) * EPSILON), math.inf)

    def _noise(self, total: Vector) -> Vector:
        if self._sums.system_noise:
            normals = _system_normals(total.size)
        else:
            step = self._version
            normals = self._kernels.normals(
                self._sums.seed, step & 0xFFFFFFFF, step >> 32, 0, Stream.PRIVACY_NOISE, total.size
            )
        noise: Vector = (self._sums.deviation * normals).astype(total.dtype)
        return noise

    def _work(self, client: int, task: int, version: int, start: Vector, delta: Vector) -> None:
        if self._function is not None:
            model = start.view()
            model.flags.writeable = False
            delta[:] = self._function.check(self._function.call(client, task, model), delta.shape, delta.dtype)
            return
        assert self._problem is not None and self._local is not None
        drawn = LocalTask(client, task, self._seed, self._local.batch_of(client))
        self._problem.local_sgd(self._local.task(client, version), start, drawn, delta)
        how = self._local.compress
        if how is not None and not how.feedback:
            self._kernels.compress(delta, how, self._seed, client, task, delta)

    def _work_with_state(
        self, client: int, task: int, version: int, delta: Vector, before: Vector | None, after: Vector
    ) -> None:
        """A task that finds its client's state as `before`, None for zeros, and leaves it as `after`."""
        assert self._problem is not None and self._local is not None
        plan, accumulate = self._local, self._kernels.accumulate
        if not plan.has_control_variates:
            assert plan.compress is not None
            self._work(client, task, version, self._model_of(version), delta)
            key = (self._seed, client, task)
            compress_with_feedback(self._kernels.compress, accumulate, plan.compress, key, delta, before, after)
            return
        spec = plan.task(client, version)
        make_shift(accumulate, plan, before, self._control_of(version), after)
        drawn = LocalTask(client, task, self._seed, plan.batch_of(client), None, after)
        self._problem.local_sgd(spec, self._model_of(version), drawn, delta)
        make_state(accumulate, plan, spec, delta, after)

    def _model_of(self, version: int) -> Vector:
        return self._models[version][: self._dim]

    def _control_of(self, version: int) -> Vector:
        return self._models[version][self._dim :]

    def _forget(self) -> None:
        for version in [v for v in self._models if v < min(self._version, self._steps_known)]:
            if self._references.get(version, 0) == 0:
                self._models.pop(version, None)

    def record_gradients(self, every: int, offset: int) -> None:
        """From now on notes |grad f(w^t)|^2 for every t with t % every == offset, when server step t is made."""
        if self._problem is None:
            raise ValueError("problem: expected a built-in one, whose gradients can be recorded")
        if every < 1 or not 0 <= offset < every:
            raise ValueError(f"every {every}, offset {offset}: expected 0 <= offset < every")
        self._record, self._gradients = (every, offset), ()

    def gradients(self) -> NDArray[np.float64]:
        self._settle()
        return np.array(self._gradients, np.float64)

    def _squared_gradient(self, w: Vector) -> float:
        assert self._problem is not None
        gradient = np.empty_like(w)
        self._problem.gradient(w, gradient, 1)
        return float(np.dot(gradient.astype(np.float64), gradient.astype(np.float64)))

    def version(self) -> int:
        self._settle()
        return self._version

    def w(self) -> Vector:
        self._settle()
        return self._model_of(self._version).copy()

    def rule_state(self) -> dict[str, NDArray[Any]]:
        self._settle()
        state = dict(zip(MOMENTS, (moment.copy() for moment in self._moments), strict=False))
        if self._last_step is not None:
            state["last_step"] = self._last_step.copy()
        if self._own is not None:
            state["own_w"] = self._own.copy()
        if self._numbers is not None:
            state["own_state"] = self._numbers.copy()
        if self._means is not None:
            state |= self._means.state()
        if self._rule.has_control:
            state["control"] = self._control_of(self._version).copy()
        if self._states:
            clients = sorted(self._states)
            state |= {"state_client": np.array(clients), "state_rows": np.array([self._states[c] for c in clients])}
        return state if self._rows_of_clients is None else state | self._rows_of_clients.state()

    def divergence(self) -> tuple[int, int]:
        return self._diverged

    def stats(self) -> dict[str, float]:
        self._settle()
        return {
            "rows": self._done,
            "live_versions": len(self._models),
            "most_versions": self._most,
            "window": 0,
            "most_window": 1,
            "commit_seconds": 0.0,
            "work_seconds": 0.0,
            "wait_seconds": 0.0,
            "secure_seconds": 0.0,
            "cut": self._cut,
        }

    def check(self) -> None:
        if any(row[2] <= self._version and row[2] not in self._models for row in self._rows[self._at :]):
            raise AssertionError("replay: a needed version is there")

    def live_versions(self) -> list[int]:
        self._settle()
        return sorted(self._models)

    def model(self, version: int) -> Vector:
        return self._models[version].copy()

    def waiting_deltas(self) -> Vector:
        self._settle()
        w = self._model_of(self._version)
        waiting = [delta for _, (begin, delta) in sorted(self._deltas.items()) if begin < self._done]
        return np.array(waiting, w.dtype).reshape(-1, w.size)

    def pass_over(self, version: int) -> None:
        if self._pieces or self._version:
            raise RuntimeError("replay: only a new one can pass over steps")
        self._passing, self._version, self._models = True, version, {}

    def restore(
        self, w: Vector, live: list[int], models: Vector, rule_state: dict[str, NDArray[Any]], deltas: Vector
    ) -> int:
        self._settle()
        if not self._passing or self._steps_known < self._version:
            raise RuntimeError("replay: it has not passed over the steps that are done")
        needed = {v: model.copy() for v, model in zip(live, models, strict=True) if self._references.get(v, 0) != 0}
        for v in sorted(v for v, n in self._pending.items() if n > 0 and v < self._version):
            if v not in needed:
                raise ValueError(f"live: the model of version {v} is not there, and a later row needs it")
        now = np.concatenate((w, rule_state["control"])) if self._rule.has_control else w.copy()
        self._models = needed | {self._version: now}
        if self._states is not None:
            clients, rows = rule_state["state_client"].tolist(), rule_state["state_rows"].copy()
            self._states = dict(zip(clients, rows, strict=True))
        self._moments = tuple(rule_state[name].copy() for name in MOMENTS[: len(self._moments)])
        if self._last_step is not None:
            self._last_step = rule_state["last_step"].copy()
        if self._own is not None:
            self._own = rule_state["own_w"].copy()
        if self._numbers is not None:
            self._numbers = rule_state["own_state"].copy()
        if self._means is not None:
            self._means.restore(rule_state)
        if self._rows_of_clients is not None:
            self._rows_of_clients.restore(rule_state)
        self._deltas = {self._done + i: (-1, delta) for i, delta in enumerate(deltas.copy())}
        self._most, self._passing = len(self._models), False
        return len(needed)
