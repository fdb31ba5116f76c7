"""A table with a row per client, as a part of a rule."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .._base.checks import choice, flag, number, path_of

__all__ = ["ClientTable", "check_memory", "make_rows"]  # the classes that a saved rule may name

Rows = Literal["full", "bfloat16"]
MeanOver = Literal["clients", "seen"]
Keeps = Literal["delta", "means"]


@dataclass(frozen=True, slots=True)
class ClientTable:
    """The last delta of every client, kept by the server from the client's first arrival on.

    An arrival of client i counts as delta + own row_i, and its delta then takes the row's place: a second one in the
    same buffer is compared with the first. The direction of a step is the sum of these divided by the rule's norm, plus
    `mean` times the mean of all rows, as they were when the buffer was empty.

    >>> import fedbuff as fb
    >>> fb.FedBuff(buffer_size=10, norm="arrivals", n_clients=100, table=fb.ClientTable()).server_lr  # CA2FL
    1.0

    mean_over  "clients", all of them, those without a row counting as zero; or "seen", those that have one
    wait       steps leave the model as it is until every client has a row; they count as versions
    rows       "full", of the model's dtype; or "bfloat16", rounded to the nearest
    path       a folder for a file that the rows are kept in, instead of in memory; it goes with the process
    keeps      "delta", as above; or "means", Ringleader's: the mean of each client's deltas in the round, in two
               tables, and a step's direction is the mean over clients of those of the round before. The other options
               are then left out
    """

    own: float = -1.0
    mean: float = 1.0
    mean_over: MeanOver = "clients"
    wait: bool = False
    rows: Rows = "full"
    path: str | None = field(default=None, compare=False)
    keeps: Keeps = "delta"

    def __post_init__(self) -> None:
        choice("keeps", self.keeps, get_args(Keeps))
        if self.keeps == "means":
            for name, default in (
                ("own", -1.0),
                ("mean", 1.0),
                ("mean_over", "clients"),
                ("wait", False),
                ("rows", "full"),
                ("path", None),
            ):
                if getattr(self, name) != default:
                    raise ValueError(f'{name}: a table that keeps="means" does not look at it; leave it out')
        number("own", self.own, low=-1e300)
        number("mean", self.mean, low=-1e300)
        choice("mean_over", self.mean_over, get_args(MeanOver))
        flag("wait", self.wait)
        choice("rows", self.rows, get_args(Rows))
        if self.path is not None:
            object.__setattr__(self, "path", os.fspath(path_of("path", self.path)))

    def dtype(self, model: np.dtype[Any]) -> np.dtype[Any]:
        """What a row is kept in; uint16 holds the bits of bfloat16."""
        return model if self.rows == "full" else np.dtype(np.uint16)

    def fields(self) -> dict[str, float]:
        """The fields of `fb_rule` that a table decides."""
        return {
            "table": 1 + get_args(Rows).index(self.rows),
            "table_seen": int(self.mean_over == "seen"),
            "table_wait": int(self.wait),
            "table_own": self.own,
            "table_mean": self.mean,
            "table_keeps": get_args(Keeps).index(self.keeps),
        }

    @property
    def n_tables(self) -> int:
        """How many rows there are for each client."""
        return 2 if self.keeps == "means" else 1


NO_TABLE = {"table": 0, "table_seen": 0, "table_wait": 0, "table_own": 0.0, "table_mean": 0.0, "table_keeps": 0}
RING = ClientTable(own=-1.0, mean=0.0)  # of models: minus the model is compared with that which it replaces
RING_FIELDS = RING.fields() | {"table_keeps": 2}


def bfloat16_of(values: NDArray[np.floating[Any]]) -> NDArray[np.uint16]:
    """The bits, rounded to the nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def values_of(row: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The numbers that a row holds."""
    if row.dtype != np.uint16:
        return row
    return (row.astype(np.uint32) << 16).view(np.float32).astype(dtype)


def free_memory() -> int:
    """Bytes that this process may still take, as far as the system tells; else all that there are."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(table: ClientTable, n_rows: int, dim: int, dtype: np.dtype[Any]) -> None:
    """MemoryError where so many rows do not fit the memory that is free."""
    kind = table.dtype(dtype)
    n_rows *= table.n_tables
    wanted, free = n_rows * dim * kind.itemsize, free_memory()
    if table.path is None and wanted > free:
        name = "bfloat16" if kind == np.uint16 else kind.name
        advice = "" if table.keeps == "means" or table is RING else "; keep them in bfloat16 or, with a path, in a file"
        what = "ring" if table is RING else "table"
        raise MemoryError(f"{what}: {n_rows} rows of {dim} {name} take {wanted} bytes, and {free} are free{advice}")


def make_rows(table: ClientTable, n_clients: int, dim: int, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """The rows in a file without a name in the table's folder; None where they are in memory."""
    if table.path is None:
        return None
    try:
        with tempfile.TemporaryFile(dir=table.path) as file:
            return np.memmap(file, table.dtype(dtype), "w+", shape=(n_clients, dim))
    except OSError as error:
        raise type(error)(f"table: path {table.path}: {error.strerror or error}") from error
