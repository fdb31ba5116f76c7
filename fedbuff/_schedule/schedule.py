"""`Schedule`: who arrives when, on which version, in which server step; and its files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .._base.checks import count, instance, seed_of
from .._base.files import (
    file_format,
    optional,
    write_npz,
)
from .._delays.arrival_log import ArrivalLog
from .._delays.distributions import Constant, Distribution
from .._delays.immutable import digest, spread
from .._delays.model import DelayModel
from .._delays.trace import PARTS, Trace
from ..backends.python.portable_math import draw
from .check import check_columns, check_schedule
from .chrome_trace import write_chrome_trace
from .columns import FORMAT_VERSION, FORMATS, IN_FLIGHT_COLUMNS, ROW_COLUMNS, SCALARS, STEP_COLUMNS, Status
from .file import ScheduleWriter
from .html import schedule_html

_DTYPES = {
    dtype: np.dtype(dtype) for group in (ROW_COLUMNS, STEP_COLUMNS, IN_FLIGHT_COLUMNS) for dtype in group.values()
}
_TIMING_OPTIONS = ("max_wait", "period", "trigger", "per_client", "refill", "stop_stale", "restart", "distinct_clients")
_OPTIONS = ("selection", "max_uses", "queues", "server_time", "uplink", "timeout", "start_rate")


class Schedule:
    """An immutable schedule, as `fedbuff.schedule` makes it.

    One row per ended task, in order of arrival:
        client int32, task uint32, version int64 (downloaded), step int64 (the server step that used it, else -1),
        staleness int64 (version at that step, or at its arrival where unused, minus the version downloaded),
        start_time, arrive_time float64 (seconds), status uint8 (a `Status`).
    One per server step, from `first_step`: step_time float64, step_started int64 (tasks started on the version that
        the step made); `started_on_0` counts those on the version before the first step.
    One per task in flight at the end: in_flight_client, in_flight_task, in_flight_version, in_flight_start_time.
    Scalars: n_clients, buffer_size (0 for FedAvg), concurrency (0 where nothing bounds it), seed, tau, and
    `description`, a dictionary that says what made the schedule.
    start_time is NaN where an arrival log did not record it.
    """

    client: NDArray[np.int32]
    task: NDArray[np.uint32]
    version: NDArray[np.int64]
    step: NDArray[np.int64]
    staleness: NDArray[np.int64]
    start_time: NDArray[np.float64]
    arrive_time: NDArray[np.float64]
    status: NDArray[np.uint8]
    step_time: NDArray[np.float64]
    step_started: NDArray[np.int64]
    in_flight_client: NDArray[np.int32]
    in_flight_task: NDArray[np.uint32]
    in_flight_version: NDArray[np.int64]
    in_flight_start_time: NDArray[np.float64]
    n_clients: int
    buffer_size: int
    concurrency: int
    seed: int
    started_on_0: int
    first_step: int

    _GROUPS: ClassVar = (ROW_COLUMNS, STEP_COLUMNS, IN_FLIGHT_COLUMNS)

    def __init__(
        self,
        *,
        client: NDArray[np.int32],
        task: NDArray[np.uint32],
        version: NDArray[np.int64],
        step: NDArray[np.int64],
        staleness: NDArray[np.int64],
        start_time: NDArray[np.float64],
        arrive_time: NDArray[np.float64],
        status: NDArray[np.uint8],
        step_time: NDArray[np.float64],
        step_started: NDArray[np.int64],
        in_flight_client: NDArray[np.int32],
        in_flight_task: NDArray[np.uint32],
        in_flight_version: NDArray[np.int64],
        in_flight_start_time: NDArray[np.float64],
        n_clients: int,
        buffer_size: int,
        concurrency: int,
        seed: int,
        started_on_0: int,
        description: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        first_step: int = 0,
        copy: bool = True,
    ) -> None:
        """Copies the arrays; with copy=False it takes them as they are and makes them read-only. A description may be a
        function that gives it, which is called when somebody asks."""
        given = dict(locals())
        state = self.__dict__
        for group in self._GROUPS:
            length = None
            for name, dtype in group.items():
                array = given[name]
                if not isinstance(array, np.ndarray) or (array.dtype is not _DTYPES[dtype] and array.dtype != dtype):
                    kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
                    raise TypeError(f"{name}: expected an array of {np.dtype(dtype)}, got {kind}")
                length = array.size if length is None else length
                if array.shape != (length,):
                    raise ValueError(f"{name}: expected shape ({length},), as the other columns, got {array.shape}")
                array = array.copy() if copy else array
                array.flags.writeable = False
                state[name] = array
        for name in SCALARS:
            state[name] = seed_of(given[name]) if name == "seed" else count(name, given[name], low=0)
        state["_is_sound"] = False  # nobody has vouched for the columns
        state["_description"] = description
        if not callable(description):
            instance("description", description, Mapping, "a dictionary")
            state["_description"] = json.dumps(description, sort_keys=True)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Schedule is immutable: {name} cannot be set")

    @property
    def description(self) -> dict[str, Any]:
        told = self.__dict__["_description"]
        if callable(told):
            told = self.__dict__["_description"] = json.dumps(told(), sort_keys=True)
        made: dict[str, Any] = json.loads(told)
        return made

    @property
    def n_arrivals(self) -> int:
        """The number of rows."""
        return int(self.client.size)

    @property
    def n_steps(self) -> int:
        """The number of server steps."""
        return int(self.step_time.size)

    @property
    def end_time(self) -> float:
        """The time of the last row or server step."""
        last = [float(times[-1]) for times in (self.arrive_time, self.step_time) if times.size]
        return max(last, default=0.0)

    @cached_property
    def tau(self) -> int:
        """The largest staleness over used arrivals and the age of tasks in flight at the end."""
        used = int(self.staleness.max(where=self.status == Status.USED, initial=0))
        age = self.first_step + self.n_steps - int(self.in_flight_version.min(initial=2**62))
        return max(used, age, 0)

    @cached_property
    def sha256(self) -> str:
        """The content's hash: every column and scalar, not the description."""
        arrays = [getattr(self, name) for group in self._GROUPS for name in group]
        return digest(*arrays, np.array([getattr(self, name) for name in SCALARS], dtype=np.uint64))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in SCALARS) and all(
            np.array_equal(getattr(self, name), getattr(other, name), equal_nan=dtype is np.float64)
            for group in self._GROUPS
            for name, dtype in group.items()
        )

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __repr__(self) -> str:
        return (
            f"Schedule({self.n_steps} server steps, {self.n_arrivals} arrivals, {self.n_clients} clients, "
            f"tau={self.tau}, {self.end_time:.6g} s)"
        )

    def _repr_html_(self) -> str:
        return schedule_html(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_state, (self._state(),)

    def _state(self) -> dict[str, Any]:
        names = [*(name for group in self._GROUPS for name in group), *SCALARS]
        return {**{name: getattr(self, name) for name in names}, "description": self.description}

    def __getitem__(self, steps: slice) -> Schedule:
        """The server steps a:b, as a schedule whose first_step is a.

        Its rows are those after the arrival that made step a - 1, up to the one that made step b - 1; in flight are the
        tasks that had started before that. Step and version numbers stay as they were.
        """
        if not isinstance(steps, slice) or steps.step not in (None, 1):
            raise TypeError("steps: expected a slice of server steps, schedule[a:b]")
        begin, end, _ = steps.indices(self.n_steps)
        end = max(begin, end)
        if (begin, end) == (0, self.n_steps):
            return self
        ends = self._step_ends()
        first, last = (int(ends[at - 1]) if at else 0 for at in (begin, end))
        newest = self.first_step + end
        flying = {
            name: np.concatenate([getattr(self, name.removeprefix("in_flight_"))[last:], getattr(self, name)])
            for name in IN_FLIGHT_COLUMNS
        }
        there = np.flatnonzero(flying["in_flight_version"] < newest)  # the others started after the last step here
        there = there[np.lexsort((flying["in_flight_task"][there], flying["in_flight_client"][there]))]
        state = self._state()
        state |= {name: values[there] for name, values in flying.items()}
        state |= {name: state[name][first:last] for name in ROW_COLUMNS}
        state |= {name: state[name][begin:end].copy() for name in STEP_COLUMNS}
        state["description"]["slice"] = [self.first_step + begin, newest]
        state["first_step"] = self.first_step + begin
        state["started_on_0"] = int(self.step_started[begin - 1]) if begin else self.started_on_0
        if end > begin:
            state["step_started"][-1] = 0
        else:
            state["started_on_0"] = 0
        made = _from_state(state)
        return resolved(made) if self.__dict__["_is_sound"] else made

    def _step_ends(self) -> NDArray[np.int64]:
        """For every step, how many rows had ended when it was made."""
        steps = self.first_step + np.arange(self.n_steps)
        if self.buffer_size == 0:  # FedAvg: a round's tasks all end with it
            return np.searchsorted(np.maximum.accumulate(self.version), steps, side="right")
        # A row's version plus its staleness is the version at its arrival: how many steps were made before it.
        return np.searchsorted(np.maximum.accumulate(self.version + self.staleness), steps, side="right")

    def arrival_log(self) -> ArrivalLog:
        """The arrivals that reached the server, as a log that replays to the same server steps."""
        arrived = np.isin(self.status, [Status.USED, Status.LEFT_IN_BUFFER, Status.TOO_STALE])
        start = self.start_time[arrived]
        return ArrivalLog(
            self.client[arrived],
            self.arrive_time[arrived],
            version=self.version[arrived],
            start_time=None if np.isnan(start).any() else start,
            clients=self.n_clients,
        )

    def parts(self, source: Trace | DelayModel) -> dict[str, NDArray[np.float64]]:
        """wait, download, compute (with the client's factor) and upload of every row, from the delays that made it."""
        instance("source", source, (Trace, DelayModel), "the Trace or DelayModel that made the schedule")
        return task_parts(source, self.seed, self.client, self.task)

    # Looking at it

    def summary(self) -> dict[str, Any]:
        """Counts, staleness over used arrivals, server steps per second, and who took part.

        options are those of the strategy's timing and of `schedule` that are not the default, None where all are;
        at_work is how many tasks are at work at most (a round of FedAvg starts so many), None where nothing bounds it;
        utilisation is the time tasks were at work over what `concurrency` slots had; wasted the share of ended tasks'
        time that no server step used (what is left in the buffer is not wasted). participation_by_speed: the clients
        that ended a task, from the fastest by mean task time to the slowest, in ten groups, or as many as they are,
        whose sizes differ by at most one; for each group its share of the used arrivals divided by its share of these
        clients. 1 is a fair share, 2 twice as much. Clients that never ended a task are in clients_never_ended instead.
        """
        used = self.status == Status.USED
        time = self.end_time
        duration = self.arrive_time - self.start_time
        busy = float(duration.sum() + np.maximum(time - self.in_flight_start_time, 0.0).sum())
        lost = ~(used | (self.status == Status.LEFT_IN_BUFFER))
        spent = float(duration.sum())
        staleness = self.staleness[used]
        ended = np.bincount(self.client, minlength=self.n_clients)
        return {
            "arrivals": self.n_arrivals,
            "server_steps": self.n_steps,
            "time": time,
            "status": {
                status.name.lower(): int(np.count_nonzero(self.status == status))
                for status in Status
                if np.any(self.status == status)
            },
            "options": self._options() or None,
            "at_work": self.concurrency or None,
            "in_flight": int(self.in_flight_client.size),
            "staleness": spread(staleness) if staleness.size else None,
            "tau": self.tau,
            "steps_per_second": self.n_steps / time if time > 0 else float("nan"),
            "utilisation": busy / (self.concurrency * time) if self.concurrency and time > 0 else float("nan"),
            "wasted": float(duration[lost].sum()) / spent if spent > 0 else 0.0,
            "participation_by_speed": self._participation(ended, duration, used),
            "clients_never_ended": int(np.count_nonzero(ended == 0)),
        }

    def _options(self) -> dict[str, Any]:
        made = self.description
        timing = made.get("strategy", {})
        found = {name: timing[name] for name in _TIMING_OPTIONS if name in timing}
        found |= {name: made[name] for name in _OPTIONS if made.get(name) is not None}
        law = made.get("server_time")
        if isinstance(law, dict):
            numbers = law.get("params", [f"{law.get('samples')} samples"])
            found["server_time"] = f"{law['kind']}({', '.join(map(str, numbers))})"
        if isinstance(found.get("selection"), dict):
            found["selection"] = "probabilities"
        return found

    def _participation(
        self, ended: NDArray[np.int64], duration: NDArray[np.float64], used: NDArray[np.bool_]
    ) -> list[float]:
        seen = np.flatnonzero(ended)
        if seen.size == 0 or np.isnan(duration).any():
            return []
        mean = np.bincount(self.client, weights=duration, minlength=self.n_clients)[seen] / ended[seen]
        uses = np.bincount(self.client[used], minlength=self.n_clients)[seen]
        by_speed = uses[np.argsort(mean, kind="stable")]
        groups = min(10, seen.size)
        edges = np.arange(groups + 1) * seen.size // groups
        total = int(by_speed.sum())
        if total == 0:
            return []
        cumulated = np.append(0, np.cumsum(by_speed))
        ratios = np.diff(cumulated[edges]) * seen.size / (np.diff(edges) * total)
        return [float(ratio) for ratio in ratios]

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame, status by name."""
        pd = optional("pandas", None, "to_pandas")
        frame = pd.DataFrame({name: getattr(self, name) for name in ROW_COLUMNS})
        names = [status.name.lower() for status in Status]
        frame["status"] = pd.Categorical.from_codes(self.status, names)
        return frame

    def to_chrome_trace(self, path: str | os.PathLike[str], source: Trace | DelayModel | None = None) -> None:
        """Writes .json or .json.gz for Perfetto or chrome://tracing: the tasks of every client, and the server's steps.

        With the delays that made the schedule, a task shows its download, compute and upload.
        """
        write_chrome_trace(self, path, None if source is None else self.parts(source))

    # Invariants

    def check(self) -> None:
        """Verifies every invariant; raises ValueError with the first arrival (from 0) or step that breaks one.

        Chunks of `iter_schedule` cannot be checked alone, except the last: they leave out the tasks in flight.
        """
        check_schedule(self)

    def require_sound(self) -> None:
        """Verifies what a replay depends on, in one pass, unless our own resolver made the schedule in this process."""
        if not self.__dict__["_is_sound"]:
            check_columns(self)

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes .npz, or .parquet (needs pyarrow); `load_schedule` reads both."""
        if file_format(path, FORMATS) == "npz":
            arrays = {name: getattr(self, name) for group in self._GROUPS for name in group}
            write_npz(path, {"fedbuff_schedule": np.array(self._header()), **arrays})
            return
        with ScheduleWriter(path) as writer:
            writer.write(self)

    def _header(self) -> str:
        scalars = {name: getattr(self, name) for name in SCALARS}
        return json.dumps({"format": FORMAT_VERSION, **scalars, "description": self.description}, sort_keys=True)


def _from_state(state: Mapping[str, Any]) -> Schedule:
    return Schedule(**state, copy=False)


def resolved(schedule: Schedule) -> Schedule:
    """The same schedule, marked as one that needs no check: our own resolver made it, or it was checked and is ours."""
    schedule.__dict__["_is_sound"] = True
    return schedule


def task_parts(
    source: Trace | DelayModel, seed: int, client: NDArray[Any], task: NDArray[Any]
) -> dict[str, NDArray[np.float64]]:
    """wait, download, compute (with the client's factor) and upload of each (client, task)."""
    if isinstance(source, Trace):
        begin, sizes = source.offsets[:-1][client], np.diff(source.offsets)[client]
        row = begin + task.astype(np.int64) % sizes
        return {name: getattr(source, name)[row] for name in PARTS}
    parts = {}
    for component, name in enumerate(PARTS):
        law: Distribution = getattr(source, name)
        if isinstance(law, Constant):
            parts[name] = np.full(client.size, law.value)
        else:
            parts[name] = draw(law.kind, law.params, getattr(law, "samples", None), seed, client, task, component)
    factor = source.compute_factor(client, seed)
    if factor is not None:
        parts["compute"] = parts["compute"] * factor
    return parts
