"""`Trace`: recorded delays, checked once, then immutable."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.arrays import pick_lists, to_array
from .._base.checks import (
    choice,
    count,
    seed_of,
)
from .._base.files import file_format, replacing
from .._base.html import bars, table
from .._base.text_table import show
from ..backends.python.philox import STREAM_DELAYS, multiply_high, philox
from .availability import Availability
from .bad_rows import refuse_times
from .clients import Tasks, check_flags, code_clients, label_text, offsets_of, reordered, row_order
from .columns import FORMATS
from .immutable import Immutable, digest, float_column, frozen, int_column, spread, write_columns
from .table import Labels
from .task_delay import TaskDelay

if TYPE_CHECKING:
    from .fit import Fit

End = Literal["wrap", "stop"]
PARTS = ("wait", "download", "compute", "upload")
_RESAMPLE, _ASSIGN = 6, 7  # components of the stream of delays, after those of the resolver


def _random_words(seed: int, client: NDArray[Any], number: NDArray[Any], component: int) -> NDArray[np.uint64]:
    """A 64-bit word for every (client, number), in the stream of delays."""
    high, low, _, _ = philox(seed, client, number, component, STREAM_DELAYS)
    words: NDArray[np.uint64] = high.astype(np.uint64) << np.uint64(32) | low
    return words


# Trace


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Trace(Immutable):
    """Recorded delays of each client's tasks, in seconds.

    Rows are sorted by client, then task: the k-th task of client i takes row offsets[i] + k of `wait`, `download`,
    `compute`, `upload` and `ok`. After a client's last row it starts over (end="wrap") or leaves (end="stop").
    A task with ok = False never arrives. `client_ids[i]` is the id that client i had in the file.
    """

    n_clients: int
    client_ids: NDArray[Any]
    offsets: NDArray[np.int64]
    wait: NDArray[np.float64]
    download: NDArray[np.float64]
    compute: NDArray[np.float64]
    upload: NDArray[np.float64]
    ok: NDArray[np.bool_]
    end: End
    availability: Availability | None

    def __init__(
        self,
        client: ArrayLike | Labels,
        compute: ArrayLike | None = None,
        *,
        total: ArrayLike | None = None,
        task: ArrayLike | None = None,
        wait: ArrayLike | None = None,
        download: ArrayLike | None = None,
        upload: ArrayLike | None = None,
        ok: ArrayLike | None = None,
        clients: int | Sequence[Any] | NDArray[Any] | None = None,
        end: End = "wrap",
        availability: Availability | None = None,
        tasks: Tasks = "number",
    ) -> None:
        """Rows in any order: a client's go by `task` (0, 1, 2, ... each once) where given, else as they stand.

        With tasks="order" the numbers in `task` may begin anywhere and have gaps: a client's rows go by their order.
        `total` stands for a task's whole time without its wait, where nobody recorded the parts. `clients` lists the
        ids that may appear (an int n means 0 .. n - 1) and gives them numbers in that order; without it they are the
        ids found, sorted.
        """
        if (compute is None) == (total is None):
            raise ValueError("compute, total: expected exactly one of them")
        if total is not None and not (download is None and upload is None):
            raise ValueError("total: it contains download and upload; give compute with them")
        choice("end", end, ("wrap", "stop"))
        choice("tasks", tasks, ("number", "order"))
        codes, ids = code_clients(client, clients)
        given = {"wait": wait, "download": download, "compute": compute, "total": total, "upload": upload}
        times = {
            name: float_column(name, values, codes.size, copy=False)
            for name, values in given.items()
            if values is not None
        }
        refuse_times(times)
        if total is not None:
            times["compute"] = times.pop("total")
        flags = None if ok is None else check_flags(ok, codes.size)
        numbers = None if task is None else int_column("task", task, codes.size)
        offsets = offsets_of(codes, ids.size)
        if end == "wrap" and np.any(offsets[1:] == offsets[:-1]):
            missing = ids[int(np.argmax(offsets[1:] == offsets[:-1]))]
            raise ValueError(f"end: client {label_text(missing)} has no rows to repeat; end='stop' leaves it out")
        order = row_order(codes, numbers, offsets, ids, tasks)
        given_columns: dict[str, NDArray[Any]] = {**times} if flags is None else {**times, "ok": flags}
        columns = dict(zip(given_columns, reordered(list(given_columns.values()), order), strict=True))
        flags = columns.pop("ok", np.ones(codes.size, dtype=np.bool_))
        columns |= {name: np.zeros(codes.size) for name in PARTS if name not in columns}
        self._set(ids, offsets, columns, flags, end, availability)

    def _set(
        self,
        ids: NDArray[Any],
        offsets: NDArray[np.int64],
        columns: Mapping[str, NDArray[np.float64]],
        ok: NDArray[np.bool_],
        end: End,
        availability: Availability | None,
    ) -> None:
        if availability is not None:
            if not isinstance(availability, Availability):
                raise TypeError(f"availability: expected an Availability, got {type(availability).__name__}")
            if availability.n_clients != ids.size:
                raise ValueError(f"availability: expected {ids.size} clients, got {availability.n_clients}")
        for name, array in {"client_ids": ids, "offsets": offsets, **columns, "ok": ok}.items():
            object.__setattr__(self, name, frozen(array))
        object.__setattr__(self, "n_clients", int(ids.size))
        object.__setattr__(self, "end", end)
        object.__setattr__(self, "availability", availability)

    def _with(self, rows: NDArray[np.int64] | None = None, **changes: Any) -> Trace:
        """A trace of these rows (all) with some attributes changed."""
        made = Trace.__new__(Trace)
        parts = {name: changes.get(name, getattr(self, name)) for name in PARTS}
        ok = self.ok
        if rows is not None:
            parts, ok = {name: values[rows] for name, values in parts.items()}, ok[rows]
        made._set(
            changes.get("client_ids", self.client_ids),
            changes.get("offsets", self.offsets),
            parts,
            ok,
            self.end,
            changes.get("availability", self.availability),
        )
        return made

    @property
    def n_rows(self) -> int:
        return int(self.compute.size)

    @property
    def client(self) -> NDArray[np.int64]:
        """The client number of every row."""
        return np.repeat(np.arange(self.n_clients), np.diff(self.offsets))

    @property
    def total(self) -> NDArray[np.float64]:
        """(download + compute) + upload of every row."""
        return (self.download + self.compute) + self.upload

    def delay(self, client: int, task: int, seed: int = 0) -> TaskDelay:
        """The delays of a client's task 0, 1, 2, ..., as in a schedule; a trace has the same for every seed.

        >>> import fedbuff as fb
        >>> trace = fb.Trace([0, 0, 1], compute=[1.0, 2.0, 5.0], upload=[0.5, 0.5, 0.0])
        >>> trace.delay(0, 1).duration, trace.delay(0, 2).compute
        (2.5, 1.0)

        ValueError for a task after the client's last row, where the trace does not start over.
        """
        client, task = count("client", client, low=0, high=self.n_clients - 1), count("task", task, low=0)
        seed_of(seed)
        first, rows = int(self.offsets[client]), int(self.offsets[client + 1] - self.offsets[client])
        if task >= rows and (self.end == "stop" or rows == 0):
            raise ValueError(f"task: client {client} has {rows} recorded tasks, got {task}")
        row = first + task % rows
        wait, download, compute, upload = (float(getattr(self, name)[row]) for name in PARTS)
        return TaskDelay(wait, download, compute, upload, bool(self.ok[row]))

    def scale(
        self,
        *,
        wait: float | ArrayLike = 1.0,
        download: float | ArrayLike = 1.0,
        compute: float | ArrayLike = 1.0,
        upload: float | ArrayLike = 1.0,
    ) -> Trace:
        """The same trace with parts multiplied, each by one factor or by one for each client."""
        changed = {}
        for name, factor in {"wait": wait, "download": download, "compute": compute, "upload": upload}.items():
            values = to_array(name, factor)
            if values.dtype.kind not in "iuf":
                raise TypeError(f"{name}: expected a number or one for each client, got {values.dtype}")
            if values.ndim and values.shape != (self.n_clients,):
                raise ValueError(f"{name}: expected one factor or {self.n_clients}, got shape {values.shape}")
            scaled = getattr(self, name) * (np.repeat(values, np.diff(self.offsets)) if values.ndim else values)
            if scaled.size and not (scaled.min() >= 0 and scaled.max() < np.inf):
                raise ValueError(f"{name}: expected a factor that leaves delays finite and not negative")
            changed[name] = scaled
        return self._with(**changed)

    def bootstrap(self, tasks: int | None = None, *, seed: int = 0, block: int = 1) -> Trace:
        """A resampled trace: every client gets `tasks` rows (as many as it has) drawn from its own with replacement.

        Whole rows are drawn, in runs of `block` consecutive ones (from the last row on to the first), so that tasks
        that are slow together stay together.
        """
        block, seed = count("block", block), seed_of(seed)
        tasks = None if tasks is None else count("tasks", tasks)
        sizes = np.diff(self.offsets)
        counts = sizes if tasks is None else np.where(sizes > 0, tasks, 0)
        offsets = np.zeros(self.n_clients + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets[1:])
        blocks = -(-counts // block)
        first_block = np.cumsum(blocks) - blocks
        owner = np.repeat(np.arange(self.n_clients), blocks)
        words = _random_words(seed, owner, np.arange(owner.size) - first_block[owner], _RESAMPLE)
        starts = multiply_high(words, sizes[owner].astype(np.uint64)).astype(np.int64)
        position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        start = starts[np.repeat(first_block, counts) + position // block]
        rows = np.repeat(self.offsets[:-1], counts) + (start + position % block) % np.repeat(sizes, counts)
        return self._with(rows, offsets=offsets)

    def assign(self, n_clients: int, seed: int = 0) -> Trace:
        """A trace for n_clients clients, each given one recorded device at random.

        No device is used again before all have been used as often. `client_ids` tells which device a client has; two
        clients with the same device have the same delays.
        """
        n_clients, seed = count("n_clients", n_clients, high=2**31 - 1), seed_of(seed)
        passes = -(-n_clients // self.n_clients)
        words = _random_words(seed, np.arange(self.n_clients), np.arange(passes)[:, None], _ASSIGN)
        device = np.argsort(words, axis=1, kind="stable").ravel()[:n_clients]
        rows, offsets = pick_lists(self.offsets, device)
        availability = None if self.availability is None else self.availability.take(device)
        return self._with(rows, offsets=offsets, client_ids=self.client_ids[device], availability=availability)

    def summary(self) -> dict[str, Any]:
        """The size of the trace, its failures, each part's spread, and how much clients differ.

        `between_clients` is the share of the variance of task times that clients' means explain: near 1, clients are
        persistently fast or slow; near 0, slowness comes and goes.
        """
        total, sizes = self.total, np.diff(self.offsets)
        parts = {name: getattr(self, name) for name in PARTS}
        mean = np.add.reduceat(total, self.offsets[:-1][sizes > 0]) / sizes[sizes > 0]
        # That of equal numbers may round to more than 0.
        variance = float(total.var()) if total.min() < total.max() else 0.0
        between = float(np.average((mean - total.mean()) ** 2, weights=sizes[sizes > 0]))
        return {
            "n_clients": self.n_clients,
            "rows": self.n_rows,
            "rows_per_client": {"min": int(sizes.min()), "median": float(np.median(sizes)), "max": int(sizes.max())},
            "failed": float(1 - self.ok.mean()),
            "total": spread(total),
            **{name: spread(values) for name, values in parts.items() if values.any()},
            "client_mean": spread(mean),
            "between_clients": min(between / variance, 1.0) if variance > 0 else 0.0,
        }

    def fit(self, part: str = "total", families: Sequence[str] | None = None) -> list[Fit]:
        """Distributions fitted to a part of all rows (or to "total"), the nearest first; needs scipy."""
        from .fit import fit

        if part not in (*PARTS, "total"):
            raise ValueError(f"part: expected one of total, {', '.join(PARTS)}, got {part!r}")
        return fit(getattr(self, part), families)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes .csv, .csv.gz, .npz or .parquet, which `read_trace` reads; availability only into NPZ."""
        form = file_format(path, FORMATS)
        columns: dict[str, NDArray[Any]] = {
            "client": self.client_ids[self.client],
            **{name: getattr(self, name) for name in PARTS},
            "ok": self.ok,
        }
        if form != "npz" and self.availability is not None:
            raise ValueError("only NPZ holds a trace's availability: save to .npz")
        if np.unique(self.client_ids).size < self.n_clients:
            columns["client"] = self.client  # after `assign` several clients may share a device's id
        if self.availability is not None:
            windows = self.availability
            columns |= {"availability_offsets": windows.offsets, "availability_begin": windows.begin}
            columns |= {"availability_end": windows.end, "availability_policy": np.array(windows.policy)}
            columns |= {} if windows.period is None else {"availability_period": np.asarray(windows.period)}
        with replacing(path) as beside:
            write_columns(beside, form, columns, path)

    def describe(self) -> dict[str, Any]:
        """What it is, as JSON can hold it."""
        return {
            "kind": "trace",
            "n_clients": self.n_clients,
            "rows": self.n_rows,
            "end": self.end,
            "sha256": digest(self.offsets, self.wait, self.download, self.compute, self.upload, self.ok),
            "availability": None if self.availability is None else self.availability.describe(),
        }

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Trace)
            and np.array_equal(self.client_ids, other.client_ids)
            and self.describe() == other.describe()
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Trace({self.n_rows} rows of {self.n_clients} clients, end={self.end!r})"

    def _repr_html_(self) -> str:
        total = (self.download + self.compute) + self.upload
        whole = total[np.isfinite(total)]
        rows = {
            "clients": self.n_clients,
            "rows": self.n_rows,
            "failed": int(np.count_nonzero(~self.ok)),
            "a client's rows": "are taken again from the first"
            if self.end == "wrap"
            else "end, and so does the client",
            "availability": "always" if self.availability is None else repr(self.availability),
        }
        if whole.size == 0:
            return table("Trace", rows)
        low, middle, high = np.quantile(whole, [0.0, 0.5, 1.0]).tolist()
        rows["time of a task"] = f"{show(middle)} s in the median, {show(low)} to {show(high)} s"
        caption = f"times of tasks, from {show(low)} to {show(high)} s"
        return table("Trace", rows, (caption, bars(np.histogram(whole, 40)[0], caption)))
