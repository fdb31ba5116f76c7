"""The server as a state machine, and the buffer alone, over any backend's kernels.

Both are the specification of the compiled ones, exceptions and their texts included.
"""

from __future__ import annotations

import math
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..._base.arrays import (
    as_model,
    as_units,
    as_vector,
    model_dtype,
    read_only,
)
from ..._base.checks import integer
from ..._rule.server_errors import (
    change_of,
    checked_dim,
    client_of,
    closed_error,
    diverged_error,
    float_of,
    forked_error,
    norm_error,
    not_finite,
    own_error,
    positive,
    sum_error,
    ticket_error,
    unit_of,
    version_error,
)
from ..._rule.server_file import ServerState, read_server, write_server
from ..._rule.state import HELD, MOMENTS
from ..._rule.strategies import PER_CLIENT, plain_rule_of, rule_of
from ..._rule.table import check_memory, make_rows
from ..spec import Vector
from .control import ControlSum
from .round_means import Heard, RoundMeans
from .rows import RowTable
from .rule import (
    Kernels,
    WeightSums,
    accumulate_fixed,
    add_contribution,
    fixed_weight,
    from_units,
    hidden_after,
    initial_moments,
    step_model,
    weight_of_numbers,
)

__all__ = ["DeltaBuffer", "Kernels", "Server"]


class Turns:
    """Lets threads in one after the other, in the order of their tickets."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._waiting: set[int] = set()
        self._over: set[int] = set()  # later than the next one, and used up
        self._next = self._given_out = 0
        self._closed = False

    def take_ticket(self) -> int:
        """A place in the order: it ends in one turn, or is cancelled."""
        with self._lock():
            self._check_open()
            self._given_out += 1
            return self._given_out - 1

    def cancel_ticket(self, ticket: int) -> None:
        with self._lock():
            self._finish(self._check(ticket))

    def close(self) -> None:
        with self._lock():
            self._closed = True
            self._changed.notify_all()

    @contextmanager
    def turn(self, ticket: int | None) -> Iterator[None]:
        """The lock, when all earlier tickets are used up; uses this one up, whatever happens inside."""
        with self._lock():
            self._check_open()
            if ticket is None:
                number, self._given_out = self._given_out, self._given_out + 1
            else:
                number = self._check(ticket)
            self._waiting.add(number)
            self._changed.wait_for(lambda: self._closed or self._next == number)
            self._check_open()
            try:
                yield
            finally:
                self._waiting.remove(number)
                self._finish(number)

    @contextmanager
    def between(self, *, closed: bool = False) -> Iterator[None]:
        """The lock, between two turns; with `closed` also after the end."""
        with self._lock():
            if not closed:
                self._check_open()
            yield

    def _lock(self) -> threading.Condition:
        """The lock, which in a fork's child may be held, or waited for, by threads that stayed with the parent."""
        if self._process != os.getpid():
            if self._waiting or not self._changed.acquire(blocking=False):
                raise forked_error(self._what)
            self._changed.release()
            self._process = os.getpid()
        return self._changed

    def _check(self, ticket: int) -> int:
        number = integer("ticket", ticket)
        if not self._next <= number < self._given_out or number in self._waiting or number in self._over:
            raise ticket_error(number)
        return number

    def _check_open(self) -> None:
        if self._closed:
            raise closed_error(self._what)

    def _finish(self, ticket: int) -> None:
        self._over.add(ticket)
        while self._next in self._over:
            self._over.remove(self._next)
            self._next += 1
        self._changed.notify_all()


class _Held(NamedTuple):
    """A delta that waits for its weight."""

    delta: Vector
    client: int
    staleness: int
    s: float
    e: float


def _held_state(held: list[_Held], w: Vector) -> dict[str, NDArray[Any]]:
    """The arrays of `_rule/state.py`."""
    deltas = np.array([one.delta for one in held], w.dtype).reshape(len(held), w.size)
    types = {"client": np.int64, "staleness": np.int64, "s": np.float64, "e": np.float64}
    columns = {f"held_{name}": np.array([getattr(one, name) for one in held], kind) for name, kind in types.items()}
    return {"held_deltas": deltas, **columns}


class Server:
    """FedBuff's server, fed by hand.

    >>> import numpy as np, fedbuff as fb
    >>> server = fb.Server(np.zeros(2), fb.FedBuff(buffer_size=1))
    >>> version, w = server.download()
    >>> server.upload(np.array([1.0, -1.0]), version)
    True
    >>> server.version, server.w
    (1, array([-1.,  1.]))

    One arrival: s and e in float64, their product rounded to the dtype is the weight; sums of e and s e in float64,
    from which a full buffer's norm is made. Calls from several threads are made one after another; `take_ticket` fixes
    the place of an upload beforehand. An upload that raises changes nothing.

    unit  deltas are then int32 or int64 arrays that count units of this size. They are summed exactly, so that a full
          buffer gives the same bits in whatever order it came: weights count to a multiple of 2**-24, contributions to
          the nearest unit
    """

    kernels: ClassVar[Kernels]

    def __init__(self, w0: Any, strategy: object, *, unit: float | None = None) -> None:
        w = as_model("w0", w0)
        rule = plain_rule_of(strategy)
        size = unit_of(unit, rule)
        dim, dtype = w.size, w.dtype
        self._restore(
            ServerState(
                rule=rule,
                w=w,
                unit=size,
                total=np.zeros(dim, dtype if size is None else np.int64),
                kept_by_rule={
                    **dict(zip(MOMENTS, initial_moments(rule, w), strict=False)),
                    **({"last_step": np.zeros(dim, dtype)} if rule.weight_by.by == "last_step" else {}),
                    **({"control": np.zeros(dim, dtype)} if rule.has_control else {}),
                    **({"own_w": w.copy()} if rule.hidden is not None else {}),
                    **({"own_state": np.zeros(rule.own.n_state)} if rule.own is not None else {}),
                },
            )
        )

    def _restore(self, state: ServerState) -> None:
        self._state = state
        self._rule = state.rule
        self._rows: RowTable | None = None
        self._means: RoundMeans | None = None
        self._heard = None if state.rule.trigger == "buffer" else Heard(state.rule)
        self._own_state = np.empty(0)  # of an own rule, after the step that is being made
        self._held: list[_Held] = []  # the buffer, where its weights are known at the step only
        self._make_table()
        if self._heard is not None and self._means is None and "heard" in state.kept_by_rule:
            self._heard.restore(state.kept_by_rule)
        if "held_client" in state.kept_by_rule:
            columns = [state.kept_by_rule[name] for name in HELD]
            self._held = [
                _Held(*row) for row in zip(columns[0].copy(), *(c.tolist() for c in columns[1:]), strict=True)
            ]
        self._spare = np.empty_like(state.total)  # an arrival is summed here, and kept only where it was finite
        self._turns = Turns("server")

    def _make_table(self) -> None:
        """Refuses a table that does not fit the memory; its rows as they were saved."""
        state, rule = self._state, self._rule
        if rule.kept_rows is None:
            return
        table, n_rows = rule.kept_rows
        size = (n_rows, state.w.size, state.w.dtype)
        check_memory(table, *size)
        saved = "table_rows" in state.kept_by_rule
        if table.keeps == "means":
            self._means = RoundMeans(self.kernels, rule, *size[1:])
            if saved:
                self._means.restore(state.kept_by_rule)
            self._heard = self._means.heard
            return
        self._rows = RowTable(rule, *size[1:], make_rows(table, *size))
        if saved:
            self._rows.restore(state.kept_by_rule)
        else:
            self._rows.begin(state.w)

    @property
    def version(self) -> int:
        """How many steps were made."""
        with self._turns.between(closed=True):
            return self._state.version

    @property
    def fill(self) -> int:
        """How many arrivals are in the buffer."""
        with self._turns.between(closed=True):
            return self._state.fill

    @property
    def dropped(self) -> int:
        """How many arrivals were refused because they were staler than max_staleness."""
        with self._turns.between(closed=True):
            return self._state.dropped

    @property
    def dim(self) -> int:
        return self._state.w.size

    @property
    def dtype(self) -> np.dtype[np.floating]:
        return self._state.w.dtype

    @property
    def unit(self) -> float | None:
        """What whole-number deltas count, or None."""
        return self._state.unit

    @property
    def w(self) -> Vector:
        """The current model, read-only; like a download it stays as it is while the server moves on."""
        with self._turns.between(closed=True):
            return read_only(self._state.w)

    @property
    def outstanding(self) -> int:
        """How many downloads were neither returned nor cancelled."""
        with self._turns.between(closed=True):
            return sum(self._state.outstanding.values())

    @property
    def live_versions(self) -> int:
        """How many models are kept, the current one included: 1 unless the rule's base is "current"."""
        with self._turns.between(closed=True):
            return 1 + len(self._state.kept)

    @property
    def overdue(self) -> dict[int, int]:
        """The versions whose tasks the rule stops (stop_stale, restart), and how many tasks are due on each.

        A server that is fed by hand cannot stop them: stop them, `cancel` each, and send their clients the present
        model. Their uploads are counted in `dropped`.
        """
        with self._turns.between(closed=True):
            state, most = self._state, self._rule.stop_stale
            due = sorted(state.outstanding.items())
            return {v: n for v, n in due if most is not None and state.version - v >= most}

    def download(self) -> Any:
        """The version and its model, read-only, valid and unchanged for as long as it is held.

        With a rule that has a control variate it comes third: (version, w, control).
        """
        with self._turns.between():
            state = self._state
            state.outstanding[state.version] = state.outstanding.get(state.version, 0) + 1
            if self._rule.has_control:
                return state.version, read_only(state.w), read_only(state.kept_by_rule["control"])
            return state.version, read_only(state.w)

    def take_ticket(self) -> int:
        """A place in the order in which deltas are added: pass it to one `upload`, or to `cancel_ticket`."""
        return self._turns.take_ticket()

    def cancel_ticket(self, ticket: int) -> None:
        """Gives up a ticket: nothing will be uploaded with it, and those after it wait no longer."""
        self._turns.cancel_ticket(ticket)

    def upload(
        self,
        delta: Any,
        version: int,
        n_samples: float = 1,
        *,
        client: int | None = None,
        change: Any = None,
        ticket: int | None = None,
    ) -> bool:
        """Takes in the delta of a client that downloaded `version`; whether the server stepped.

        Rules that look at clients need to know the client, 0 to n_clients - 1. Rules with a control variate need
        `change`, what the client's state has changed by.

        A delta that is too stale is counted in `dropped` and not read. With a ticket the delta is added in its place,
        and the call waits for those before it. A ticket is used up unless the arguments do not fit the server.
        """
        rule, dim, dtype = self._rule, self.dim, self.dtype
        number = integer("version", version)
        samples = positive("n_samples", n_samples)
        who = client_of(client, rule.clients)
        of_state = change_of(change, rule, dim, dtype)
        array = as_vector("delta", delta, dim, dtype) if self.unit is None else as_units("delta", delta, dim)
        with self._turns.turn(ticket):
            state = self._state
            self._check_version(number)
            staleness = state.version - number
            if staleness >= rule.too_stale:
                state.dropped += 1
                self._return_download(number)
                return False
            e = rule.sample_weight(samples) * (1.0 if rule.client_weights is None else rule.client_weights[who])
            s = rule.staleness_weight(staleness)
            if rule.holds_deltas:
                stepped = self._hold(_Held(cast(Vector, array).copy(), who, staleness, s, e))
            else:
                stepped = self._add(array, number, s, e, who, of_state)
            self._return_download(number)
            return stepped

    def step(self) -> bool:
        """Steps with what is in the buffer, as a server does whose steps have times (period, max_wait); False, and
        nothing else, where it is empty."""
        if self._rule.trigger == "ringleader":
            raise ValueError('step: trigger="ringleader" steps at arrivals only')
        with self._turns.turn(None):
            state = self._state
            if state.fill == 0:
                return False
            if self._held:
                self._advance(*self._stepped_held(self._held))
                return True
            sums = WeightSums(state.fill, state.weight_sum, state.scaled_weight_sum, state.buffer_staleness)
            if sums.norm(self._rule) == 0.0:
                raise norm_error()
            self._advance(*self._stepped(state.total, sums, -1, self._controls(None)))
            return True

    def _completes(self, client: int, fill: int) -> bool:
        """Whether an arrival of a client, with which the buffer holds `fill`, makes a step."""
        return fill == self._rule.buffer_size if self._heard is None else self._heard.would_step(client, fill)

    def _hear(self, client: int, fill: int) -> None:
        if self._means is not None:
            self._means.hear(client)
        elif self._heard is not None:
            self._heard.enter(client, fill)

    def _add(self, array: NDArray[Any], version: int, s: float, e: float, client: int, of_state: Vector | None) -> bool:
        """An arrival into the buffer; whether the server stepped."""
        state, rule = self._state, self._rule
        staleness = state.version - version
        before = WeightSums(state.fill, state.weight_sum, state.scaled_weight_sum, state.buffer_staleness)
        q = self._weight_of_numbers(array, version)
        sums, weight = before.weigh(s, e, staleness, q, fixed=state.unit is not None)
        full = self._completes(client, sums.arrivals)
        if full and sums.norm(rule) == 0.0:
            raise norm_error()
        start, row = state.kept.get(version), client
        if rule.ring is not None:
            array, row = cast(Vector, array - (state.w if start is None else start)), state.version % rule.ring
        means = None if self._means is None else self._means.copy()
        if means is not None:
            if not means.fold(client, cast(Vector, array))[1]:
                raise sum_error(array)
            total, change = means.stepped.sum, None
        else:
            total, change = self._added(array, weight, start if rule.base == "current" else None, row)
        controls = self._controls(of_state)
        # All that may raise comes before any change.
        following = self._stepped(total, sums, row, controls) if full else None
        if means is not None:
            self._means, self._heard = means, means.heard
        else:
            state.total, self._spare = total, state.total
        state.fill, state.weight_sum, state.scaled_weight_sum, state.buffer_staleness = sums
        if self._rows is not None:
            assert change is not None
            self._rows.keep({row: self._rows.stored(cast(Vector, array))})
            self._rows.change = change
        if controls is not None:
            state.kept_by_rule["control_change"] = controls.total
        self._hear(client, sums.arrivals)
        if following is not None:
            self._advance(*following)
        return full

    def _hold(self, held: _Held) -> bool:
        """An arrival whose weight is known at the step only; whether the server stepped."""
        if not np.isfinite(held.delta).all():
            raise not_finite(held.delta)
        fill = len(self._held) + 1
        full = self._completes(held.client, fill)
        following = self._stepped_held([*self._held, held]) if full else None
        self._held.append(held)
        self._state.fill = fill
        self._hear(held.client, fill)
        if following is not None:
            self._advance(*following)
        return full

    def _stepped_held(self, held: list[_Held]) -> tuple[Vector, Vector, tuple[Vector, ...], None]:
        """`_stepped` from deltas that were kept."""
        state = self._state
        if (own := self._rule.own) is not None:
            numbers = {name: np.array([getattr(one, name) for one in held]) for name in ("staleness", "client")}
            weights = np.array([one.s * e for one, e in zip(held, self._shared(held), strict=True)])
            lr = self._rule.lr_of(state.version, int(numbers["staleness"].max()))
            code, w, after = own.step(
                state.version, lr, state.w, [one.delta for one in held], weights, numbers["staleness"],
                numbers["client"], state.kept_by_rule["own_state"],
            )  # fmt: skip
            own.raise_error()
            if code != 0:
                raise own_error(state.version, "failed")
            if not (np.isfinite(w).all() and np.isfinite(after).all()):
                raise diverged_error(state.version, state.w.dtype)
            self._own_state = after
            return w, w, (), None
        sums, total = self._held_sum(held)
        if sums.norm(self._rule) == 0.0:
            raise norm_error()
        shown, own_w, moments, _ = self._stepped(total, sums, -1, None)
        return shown, own_w, moments, None

    def _shared(self, held: list[_Held]) -> list[float]:
        """e of deltas, divided by the arrivals of their clients where the rule shares them out."""
        if self._rule.weighting != PER_CLIENT:
            return [one.e for one in held]
        counts = Counter(one.client for one in held)
        return [one.e / counts[one.client] for one in held]

    def _held_sum(self, held: list[_Held]) -> tuple[WeightSums, Vector]:
        """The sum of deltas whose weights are known now."""
        sums, total = WeightSums(), np.zeros_like(self._state.w)
        for one, e in zip(held, self._shared(held), strict=True):
            sums, weight = sums.weigh(one.s, e, one.staleness)
            if not add_contribution(self.kernels, total, one.delta, weight, self._state.w, None, total):
                raise sum_error(one.delta)
        return sums, total

    def _upload_models(
        self, replies: Sequence[tuple[Vector, Sequence[Vector], int, float]]
    ) -> list[bool | Exception | None]:
        """Uploads of models that came back in parts: (start, parts, version, n_samples) of each, the start and the
        parts vectors of the server's dtype. For each: whether the server stepped, None where it was too stale, or the
        exception that `upload` of start - model raises."""
        outcomes: list[bool | Exception | None] = []
        for start, parts, version, n_samples in replies:
            dropped = self.dropped
            try:
                stepped = self.upload(np.subtract(start, np.concatenate(parts)), version, n_samples)
                outcomes.append(stepped if self.dropped == dropped else None)
            except Exception as error:
                outcomes.append(error)
        return outcomes

    def _weight_of_numbers(self, delta: NDArray[Any], version: int) -> float:
        state = self._state
        if state.unit is not None:
            return 1.0
        total = state.total if state.fill > 0 else None
        last = state.kept_by_rule.get("last_step")
        return weight_of_numbers(self.kernels, self._rule, delta, state.w, state.kept.get(version), last, total)

    def _added(
        self, array: NDArray[Any], weight: float, start: Vector | None, client: int
    ) -> tuple[NDArray[Any], Vector | None]:
        """The sum with one more arrival, and what the buffer changed in the sum of rows."""
        state, rows, change, delta = self._state, self._rows, None, array
        if state.unit is not None:
            return accumulate_fixed(state.total, array, weight), None
        if rows is not None:
            row = rows.rows.get(client)
            delta, change = rows.contribution(array, row), rows.changed(rows.change, row, rows.stored(array))
        finite = add_contribution(self.kernels, state.total, delta, weight, state.w, start, self._spare)
        if not finite or (change is not None and not np.isfinite(change).all()):
            raise sum_error(array)
        return self._spare, change

    def _controls(self, change: Vector | None) -> ControlSum | None:
        """The sum of the clients' changes, with one more; None where the rule has no control variate."""
        if not self._rule.has_control:
            return None
        kept = self._state.kept_by_rule
        controls = ControlSum(self.kernels.accumulate, kept["control"], kept.get("control_change"))
        if change is not None and not controls.add_change(change):
            raise sum_error(change)
        return controls

    def cancel(self, version: int) -> None:
        """Gives up one download of `version`: its client died."""
        number = integer("version", version)
        with self._turns.between():
            self._check_version(number)
            self._return_download(number)

    def close(self) -> None:
        """Ends uploads and downloads: those that wait for their turn raise, and so do later ones. `w` stays."""
        self._turns.close()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all of the state, beside `path` first and then in its place."""
        with self._turns.between(closed=True):
            write_server(path, self._whole_state())

    @classmethod
    def load(cls, path: str | os.PathLike[str], strategy: object | None = None) -> Self:
        """A server as it was saved. `strategy` is needed, and must be the same, where its staleness function is one of
        the user's own, which a file cannot hold; otherwise it may be given to be compared."""
        server = cls.__new__(cls)
        server._restore(read_server(path, None if strategy is None else rule_of(strategy)))
        return server

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}: version {self.version}, {self.fill} of {self._rule.buffer_size} in the buffer, "
            f"{self.dim} {self.dtype} weights>"
        )

    def _check_version(self, version: int) -> None:
        if version not in self._state.outstanding:
            raise version_error(version, self._state.version)

    def _return_download(self, version: int) -> None:
        state = self._state
        state.outstanding[version] -= 1
        if state.outstanding[version] == 0:
            del state.outstanding[version]
            state.kept.pop(version, None)

    def _whole_state(self) -> ServerState:
        kept = dict(self._state.kept_by_rule)
        if self._rows is not None:
            kept |= self._rows.state()
            if self._state.fill > 0:
                kept["table_change"] = self._rows.change
        if self._means is not None:
            kept |= self._means.state()
        elif self._heard is not None:
            kept |= self._heard.state()
        if self._rule.holds_deltas:
            kept |= _held_state(self._held, self._state.w)
        return replace(self._state, kept_by_rule=kept)

    def _stepped(
        self, total: NDArray[Any], sums: WeightSums, client: int, controls: ControlSum | None
    ) -> tuple[Vector, Vector, tuple[Vector, ...], Vector | None]:
        """What is downloaded next, the server's own next model, and with them the moments and the control variate, each
        in memory of its own.

        client: whose row the arrival that makes the step adds, or -1.
        """
        state = self._state
        moments = tuple(state.kept_by_rule[name].copy() for name in MOMENTS[: len(self._rule.optimizer.moments)])
        own = state.kept_by_rule.get("own_w", state.w)
        if state.unit is not None:
            total = from_units(total, state.unit, state.w.dtype)
        waits = False
        if (rows := self._rows) is not None:
            waits = rows.waits(len({*rows.rows, *([client] if client >= 0 else [])}))
            total = rows.direction(total, sums.norm(self._rule))
        out = own.copy()
        if not waits:
            out = step_model(self.kernels, self._rule, own, total, sums, state.version, moments)
        control = None if controls is None else controls.step(self._rule, state.kept_by_rule["control"], out)
        hidden = self._rule.hidden is not None
        shown = hidden_after(self.kernels, self._rule, state.w, out, state.version) if hidden else out
        if not all(np.isfinite(made).all() for made in (out, shown, control) if made is not None):
            raise diverged_error(state.version, state.w.dtype)
        return shown, out, moments, control

    def _advance(self, w: Vector, own: Vector, moments: tuple[Vector, ...], control: Vector | None) -> None:
        state = self._state
        if self._rule.hidden is not None:
            state.kept_by_rule["own_w"] = own
        if self._rule.own is not None:
            state.kept_by_rule["own_state"] = self._own_state
        if self._rule.needs_start and state.version in state.outstanding:
            state.kept[state.version] = state.w
        if self._rule.weight_by.by == "last_step":
            state.kept_by_rule["last_step"] = state.w - w
        state.w = w
        state.kept_by_rule.update(zip(MOMENTS, moments, strict=False))
        if control is not None:
            state.kept_by_rule["control"] = control
            state.kept_by_rule.pop("control_change", None)
        if (rows := self._rows) is not None:
            rows.total, rows.change, rows.seen = rows.total + rows.change, np.zeros_like(rows.total), len(rows.rows)
        if self._heard is not None:
            self._heard.on_step()
        self._held = []
        state.total[:] = 0
        state.fill = state.buffer_staleness = 0
        state.weight_sum = state.scaled_weight_sum = 0.0
        state.version += 1


class DeltaBuffer:
    """A sum of deltas, for those who write their own server. Many threads may add at once.

    >>> import numpy as np, fedbuff as fb
    >>> buffer = fb.DeltaBuffer(2, np.float64)
    >>> buffer.add(np.array([1.0, 2.0]), weight=0.5)
    >>> buffer.step(np.zeros(2), lr=1.0)
    array([-0.5, -1. ])

    unit  deltas are whole numbers that count units of this size, as in `Server`; `sum` is then int64
    """

    kernels: ClassVar[Kernels]

    def __init__(self, dim: int, dtype: DTypeLike = np.float64, *, unit: float | None = None) -> None:
        size = checked_dim(dim)
        self._dtype = model_dtype("dtype", dtype)
        self._unit = unit_of(unit, None)
        self._sum: NDArray[Any] = np.zeros(size, self._dtype if unit is None else np.int64)
        self._spare = np.empty_like(self._sum)
        self._count = 0
        self._turns = Turns("buffer")

    @property
    def dim(self) -> int:
        return self._sum.size

    @property
    def dtype(self) -> np.dtype[np.floating]:
        return self._dtype

    @property
    def unit(self) -> float | None:
        """What whole-number deltas count, or None."""
        return self._unit

    @property
    def count(self) -> int:
        """How many deltas are in the sum."""
        with self._turns.between(closed=True):
            return self._count

    @property
    def sum(self) -> NDArray[Any]:
        """The sum, read-only; valid until the next change of the buffer."""
        with self._turns.between(closed=True):
            return read_only(self._sum)

    def take_ticket(self) -> int:
        """A place in the order in which deltas are added: pass it to one `add`, or to `cancel_ticket`."""
        return self._turns.take_ticket()

    def cancel_ticket(self, ticket: int) -> None:
        """Gives up a ticket: nothing will be added with it, and those after it wait no longer."""
        self._turns.cancel_ticket(ticket)

    def add(self, delta: Any, weight: float = 1.0, *, ticket: int | None = None) -> None:
        """sum + weight * delta; a delta that is not finite raises, and changes nothing."""
        fixed = self._unit is not None
        array: NDArray[Any] = (
            as_units("delta", delta, self.dim) if fixed else as_vector("delta", delta, self.dim, self.dtype)
        )
        factor = float_of("weight", weight)
        if not math.isfinite(factor):
            raise ValueError(f"weight: expected a finite number, got {factor}")
        with self._turns.turn(ticket):
            if fixed:
                self._sum = accumulate_fixed(self._sum, array, fixed_weight(factor))
            elif not self.kernels.accumulate(self._sum, array, factor, None, None, self._spare):
                raise sum_error(array)
            else:
                self._sum, self._spare = self._spare, self._sum
            self._count += 1

    def clear(self) -> None:
        """Empties the buffer."""
        with self._turns.between(closed=True):
            self._empty()

    def step(self, w: Any, lr: float, out: Vector | None = None) -> Vector:
        """w - lr * sum, into `out` (which may be w) or a new array; empties the buffer."""
        model = as_vector("w", w, self.dim, self.dtype)
        target = np.empty(self.dim, self.dtype) if out is None else as_vector("out", out, self.dim, self.dtype)
        if not target.flags.writeable:
            raise ValueError("out: read-only; pass an array that may be written")
        factor = float_of("lr", lr)
        if not math.isfinite(factor):
            raise ValueError(f"lr: expected a finite number, got {factor}")
        with self._turns.between(closed=True):
            total = self._sum if self._unit is None else from_units(self._sum, self._unit, self._dtype)
            self.kernels.sgd_step(model, total, factor, 1.0, 0.0, None, target)
            self._empty()
        return target if out is None else out

    def close(self) -> None:
        """Ends additions: those that wait for their turn raise, and so do later ones."""
        self._turns.close()

    def _empty(self) -> None:
        self._sum[:] = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.count} deltas of {self.dim} {self.dtype} weights>"
