"""`Schedule`: who arrives when, on which version, in which server step; and its files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ._check_schedule import check_columns, check_schedule
from ._checks import count, instance
from ._delays import Constant, DelayModel, Distribution
from ._files import check_parquet, file_format, open_npz, open_text, optional, reading, replacing, write_npz
from ._trace import PARTS, ArrivalLog, Trace, digest, spread
from .backends._portable_math import COMPONENT_SPEED, draw

FORMATS = {".npz": "npz", ".parquet": "parquet"}
FORMAT_VERSION = 1


class Status(IntEnum):
    """What became of a task that ended."""

    USED = 0
    LEFT_IN_BUFFER = 1
    TOO_STALE = 2
    DISCARDED = 3
    TIMED_OUT = 4
    FAILED = 5


ROW_COLUMNS: dict[str, type[np.generic]] = {
    "client": np.int32,
    "task": np.uint32,
    "version": np.int64,
    "step": np.int64,
    "staleness": np.int64,
    "start_time": np.float64,
    "arrive_time": np.float64,
    "status": np.uint8,
}
STEP_COLUMNS: dict[str, type[np.generic]] = {"step_time": np.float64, "step_started": np.int64}
IN_FLIGHT_COLUMNS: dict[str, type[np.generic]] = {
    "in_flight_client": np.int32,
    "in_flight_task": np.uint32,
    "in_flight_version": np.int64,
    "in_flight_start_time": np.float64,
}
SCALARS = ("n_clients", "buffer_size", "concurrency", "seed", "started_on_0", "first_step")


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
        description: Mapping[str, Any],
        first_step: int = 0,
        copy: bool = True,
    ) -> None:
        """Copies the arrays; with copy=False it takes them as they are and makes them read-only."""
        given = dict(locals())
        state = self.__dict__
        for group in self._GROUPS:
            length = None
            for name, dtype in group.items():
                array = given[name]
                if not isinstance(array, np.ndarray) or array.dtype != dtype:
                    kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
                    raise TypeError(f"{name} must be an array of {np.dtype(dtype)}, not {kind}")
                length = array.size if length is None else length
                if array.shape != (length,):
                    raise ValueError(f"{name} has shape {array.shape} beside columns of length {length}")
                array = array.copy() if copy else array
                array.flags.writeable = False
                state[name] = array
        for name in SCALARS:
            state[name] = count(name, given[name], low=0)
        instance("description", description, Mapping, "a dictionary")
        state["_is_sound"] = False  # nobody has vouched for the columns
        state["_description"] = json.dumps(description, sort_keys=True)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Schedule is immutable: {name} cannot be set")

    @property
    def description(self) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(self.__dict__["_description"])
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
            raise TypeError("a schedule is sliced by server step: schedule[a:b]")
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
        # no row on a version stands before the step that made it
        newest = np.maximum.accumulate(self.version)
        until = np.searchsorted(newest, steps + 1)
        if self.buffer_size == 0:  # FedAvg: a round's tasks all end with it
            return until
        used = np.flatnonzero(self.step >= 0)
        entered = np.searchsorted(self.step[used], steps, side="right")
        filled = np.append(0, used + 1)[entered]  # after the last arrival of the step
        count = np.diff(entered, prepend=0)
        by_time = np.minimum(until, np.searchsorted(self.arrive_time, self.step_time, side="right"))
        return np.where(count < self.buffer_size, np.maximum(filled, by_time), filled)

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

        at_work is how many tasks are at work at most (a round of FedAvg starts so many), None where nothing bounds it;
        utilisation is the time tasks were at work over what `concurrency` slots had; wasted the share of ended tasks'
        time that no server step used (what is left in the buffer is not wasted). participation_by_speed: the clients
        that ended a task, from the fastest by mean task time to the slowest, in min(10, n) groups whose sizes differ by
        at most one; for each group its share of the used arrivals divided by its share of these clients. 1 is a fair
        share, 2 twice as much. Clients that never ended a task are in clients_never_ended instead.
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
        form = file_format(path, {".json": "json", ".json.gz": "gzip"})
        if np.isnan(self.start_time).any():
            raise ValueError("the schedule has no start times: it comes from a log without them")
        with replacing(path) as beside, open_text(beside, compressed=form == "gzip") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            file.write('{"name":"process_name","ph":"M","pid":0,"args":{"name":"server"}},\n')
            file.write('{"name":"process_name","ph":"M","pid":1,"args":{"name":"clients"}}')
            for line in self._chrome_events(source):
                file.write(line)
            file.write("\n]}\n")

    def _chrome_events(self, source: Trace | DelayModel | None) -> Any:
        micro = 1e6
        start, end = self.start_time * micro, self.arrive_time * micro
        names = np.array([status.name.lower() for status in Status])[self.status]
        task = (
            ',\n{{"name":"v{}","cat":"{}","ph":"X","pid":1,"tid":{},"ts":{:.3f},"dur":{:.3f},'
            '"args":{{"task":{},"version":{},"step":{},"staleness":{},"status":"{}"}}}}'
        )
        columns = (self.version, names, self.client, start, end - start, self.task, self.version, self.step)
        yield from map(task.format, *(c.tolist() for c in (*columns, self.staleness, names)))
        if source is not None:
            part = ',\n{{"name":"{}","ph":"X","pid":1,"tid":{},"ts":{:.3f},"dur":{:.3f}}}'
            at = start
            for name in ("download", "compute", "upload"):
                until = np.minimum(at + self.parts(source)[name] * micro, end)
                some = until > at
                text = (np.full(int(some.sum()), name), self.client[some], at[some], (until - at)[some])
                yield from map(part.format, *(c.tolist() for c in text))
                at = until
        step = ',\n{{"name":"step {}","ph":"i","s":"g","pid":0,"tid":0,"ts":{:.3f}}}'
        numbers = self.first_step + np.arange(self.n_steps)
        yield from map(step.format, numbers.tolist(), (self.step_time * micro).tolist())

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
    speed = source.client_speed
    factor: Any = 1.0
    if isinstance(speed, Distribution):
        samples = getattr(speed, "samples", None)
        factor = draw(speed.kind, speed.params, samples, seed, client, 0, COMPONENT_SPEED)
    elif speed is not None:
        factor = speed[client]
    if source.n_samples is not None:
        factor = factor * source.n_samples[client]
    parts["compute"] = parts["compute"] * factor
    return parts


class ScheduleWriter:
    """Writes a schedule to one Parquet file as its chunks come; the file appears when all is written.

    Every chunk is a `Schedule` that goes on where the one before ended; the last one's tasks in flight are kept.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if file_format(path, FORMATS) != "parquet":
            raise ValueError(f"{Path(path).name}: only .parquet can be written in chunks")
        self._pa = optional("pyarrow", "parquet", "writing Parquet")
        self._pq = optional("pyarrow.parquet", "parquet", "writing Parquet")
        self._replacing = replacing(path)
        self._writer: Any = None
        self._last: Schedule | None = None
        self._first: Schedule | None = None

    def __enter__(self) -> Self:
        beside = self._replacing.__enter__()
        try:
            self._writer = self._pq.ParquetWriter(
                beside, _parquet_schema(self._pa), use_dictionary=["event", "status"], write_page_checksum=True
            )
        except BaseException as error:
            self._replacing.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def write(self, chunk: Schedule) -> None:
        self._first = self._first or chunk
        self._last = chunk
        rows = {name: getattr(chunk, name) for name in ROW_COLUMNS}
        self._append("arrival", chunk.n_arrivals, rows)
        steps = chunk.first_step + np.arange(chunk.n_steps)
        self._append(
            "step", chunk.n_steps, {"step": steps, "arrive_time": chunk.step_time, "started": chunk.step_started}
        )

    def _append(self, event: str, length: int, columns: Mapping[str, NDArray[Any]]) -> None:
        """A row group at a time, so that signals are heard in between."""
        for begin in range(0, length, _ROW_GROUP):
            part = {name: column[begin : begin + _ROW_GROUP] for name, column in columns.items()}
            self._append_rows(event, min(_ROW_GROUP, length - begin), part)

    def _append_rows(self, event: str, length: int, columns: Mapping[str, NDArray[Any]]) -> None:
        pa = self._pa
        schema = _parquet_schema(pa)
        arrays = []
        for field in schema:
            if field.name == "event":
                code = pa.array(np.full(length, _EVENTS.index(event), dtype=np.int8))
                arrays.append(pa.DictionaryArray.from_arrays(code, list(_EVENTS)))
            elif field.name == "status" and field.name in columns:
                codes = pa.array(columns["status"].astype(np.int8))
                arrays.append(pa.DictionaryArray.from_arrays(codes, [status.name.lower() for status in Status]))
            elif field.name in columns:
                arrays.append(pa.array(columns[field.name], type=field.type))
            else:
                arrays.append(pa.nulls(length, type=field.type))
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=schema))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            try:
                if error is None:
                    self._finish()
            finally:
                self._writer.close()
        except BaseException as failure:
            kind, error, where = type(failure), failure, failure.__traceback__
            raise
        finally:
            self._replacing.__exit__(kind, error, where)

    def _finish(self) -> None:
        if self._first is None or self._last is None:
            raise ValueError("no chunk was written")
        last = self._last
        flying = {name.removeprefix("in_flight_"): getattr(last, name) for name in IN_FLIGHT_COLUMNS}
        self._append("in_flight", last.in_flight_client.size, flying)
        self._writer.add_key_value_metadata({"fedbuff_schedule": self._first._header()})


_EVENTS = ("arrival", "step", "in_flight")
_ROW_GROUP = 1 << 20


def _parquet_schema(pa: Any) -> Any:
    label = pa.dictionary(pa.int8(), pa.string())
    types = {name: label if name == "status" else pa.from_numpy_dtype(dtype) for name, dtype in ROW_COLUMNS.items()}
    return pa.schema([("event", label), *types.items(), ("started", pa.int64())])


_WHAT = "a schedule, or not a whole one"


def load_schedule(path: str | os.PathLike[str]) -> Schedule:
    """Reads what `Schedule.save` wrote; a file that is damaged or holds something else is a FileError."""
    load: Callable[[Path], Schedule] = {"npz": _load_npz, "parquet": _load_parquet}[file_format(path, FORMATS)]
    with reading(path, _WHAT):
        loaded = load(Path(path))
        check_columns(loaded)
        return resolved(loaded)


def _read_header(text: str) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(text)
    if not isinstance(header, dict) or not {"format", "description", *SCALARS} >= header.keys():
        raise ValueError("its header is another's")
    form = header.pop("format")
    if form != FORMAT_VERSION:
        raise ValueError(f"its format is {form}, this version reads {FORMAT_VERSION}")
    return header


def _load_npz(path: Path) -> Schedule:
    with open_npz(path, _WHAT) as file:
        header = _read_header(file.text("fedbuff_schedule"))
        columns: dict[str, Any] = {name: file[name] for group in Schedule._GROUPS for name in group}
        return Schedule(**header, **columns, copy=False)


def _load_parquet(path: Path) -> Schedule:
    pq = optional("pyarrow.parquet", "parquet", "reading Parquet")
    metadata = check_parquet(path, _WHAT).metadata or {}
    if b"fedbuff_schedule" not in metadata:
        raise ValueError("its metadata has no entry fedbuff_schedule")
    header = _read_header(metadata[b"fedbuff_schedule"].decode())

    def columns(kind: str, names: Mapping[str, str], types: Mapping[str, type[np.generic]]) -> dict[str, NDArray[Any]]:
        rows = pq.read_table(
            path,
            columns=list(names.values()),
            filters=[("event", "==", kind)],
            partitioning=None,
            page_checksum_verification=True,
        )
        found = {}
        for ours, theirs in names.items():
            column = rows.column(theirs)
            values = _status_codes(column) if ours == "status" else column.to_numpy()
            found[ours] = values.astype(types[ours], copy=False)
        return found

    in_flight = {name: name.removeprefix("in_flight_") for name in IN_FLIGHT_COLUMNS}
    return _from_state(
        {
            **header,
            **columns("arrival", {name: name for name in ROW_COLUMNS}, ROW_COLUMNS),
            **columns("step", {"step_time": "arrive_time", "step_started": "started"}, STEP_COLUMNS),
            **columns("in_flight", in_flight, IN_FLIGHT_COLUMNS),
        }
    )


def _status_codes(column: Any) -> NDArray[np.uint8]:
    """Statuses of a dictionary column of their names, whatever order its dictionary has."""
    merged = column.unify_dictionaries().combine_chunks()
    if len(merged) == 0:
        return np.zeros(0, dtype=np.uint8)
    codes = np.array([Status[name.upper()] for name in merged.dictionary.to_pylist()], dtype=np.uint8)
    statuses: NDArray[np.uint8] = codes[merged.indices.to_numpy()]
    return statuses
