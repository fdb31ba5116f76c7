"""The rows of a problem of data, as the table [problem] asks for them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from .._base.checks import count, list_of
from .build import CODE, PARTITIONS
from .data import RowReader, Rows, hold_out
from .keys import DATA_KEYS
from .tables import ConfigError, Tables, at_path, call_with, table_of

__all__ = ["read_rows", "shape_of", "shaped", "tokens_of", "wants_numbers"]


def wants_numbers(problem: Tables) -> bool:
    """Whether targets are numbers, and not labels."""
    return problem["kind"] == "least_squares" or problem.get("loss") == "squared_error"


def shape_of(problem: Tables) -> tuple[int, ...] | None:
    """What a row of a network is to be taken for, where the table says it."""
    if "shape" not in problem:
        return None
    shape = tuple(count("shape", side) for side in list_of("shape", problem["shape"], "a list of ints"))
    if len(shape) not in (1, 2, 3):
        raise ValueError(f"shape: expected [channels, height, width], [height, width] or [features], got {list(shape)}")
    return shape


def shaped(rows: Rows, shape: tuple[int, ...] | None) -> Rows:
    """The same rows with this shape each."""
    if shape is None:
        return rows
    n_features = math.prod(rows.X.shape[1:])
    if math.prod(shape) != n_features:
        raise ValueError(f"shape: {list(shape)} is {math.prod(shape)} numbers, but a row has {n_features}")
    test = None if rows.test is None else (rows.test[0].reshape(-1, *shape), rows.test[1])
    return Rows(rows.X.reshape(-1, *shape), rows.y, rows.clients, test, rows.copy)


def tokens_of(rows: Rows) -> Rows:
    """The same rows with the whole numbers that an Embedding takes."""
    test = None if rows.test is None else (_whole(rows.test[0]), rows.test[1])
    return Rows(_whole(rows.X), rows.y, rows.clients, test, rows.copy)


def _whole(X: Any) -> Any:
    broken = (np.floor(X) != X).any(axis=tuple(range(1, X.ndim)))
    if broken.any():
        raise ValueError(
            f"data: expected whole numbers, as Embedding takes tokens, got others in row {np.argmax(broken)}"
        )
    return X.astype(np.int32)


def read_rows(tables: Tables, folder: Path) -> Rows:
    """The rows of a problem of data, with the client of each; held-out rows in `test`."""
    values = table_of(tables, "problem")
    kind = values["kind"]
    split = table_of(values, "partition")
    way = split.pop("kind", None)
    given = {name: values[name] for name in DATA_KEYS if name in values}
    reader = RowReader(
        flat=kind != "network" and kind not in CODE,
        sparse=kind == "logistic",
        labels=not wants_numbers(values),
        dtype=np.dtype(given.get("dtype", "float32")),
        bytes=kind == "network" and ("scale" in values or "shift" in values),
        form=given.get("format"),
        target=given.get("target", -1),
        divide_by=given.get("divide_by", 1.0),
    )
    test = given.get("test")
    with at_path("problem", DATA_KEYS):
        rows = reader.read(folder, given["data"], client_column=split.get("column"))
        held_out = rows.test
        if isinstance(test, str):
            other = reader.read(folder, test, n_features=rows.X.shape[1])
            held_out = other.X, other.y
        elif test is not None:
            rows, held_out = hold_out(rows, float(test), given.get("test_seed", 0))
    clients = rows.clients
    if way in PARTITIONS:
        subject: dict[str, Any] = {"labels": rows.y}
        if way == "iid":
            subject = {"n_rows": len(rows.y)}
        elif way == "by_writer":
            if clients is None:
                raise ConfigError("problem.partition: the data does not say who wrote a row")
            subject = {"writers": clients}
        clients = call_with(PARTITIONS[way], "problem.partition", {"seed": 0, **split}, **subject)
    if clients is None:
        raise ConfigError("problem.partition: missing; the data does not say which client a row belongs to")
    return Rows(rows.X, rows.y, clients, held_out)
