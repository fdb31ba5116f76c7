"""Matrices of delays and of ages: rounds x workers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .._base import checks as _checks
from .._delays.arrival_log import ArrivalLog
from .._delays.columns import check_missing
from .._delays.read import in_seconds
from .._delays.table import (
    Labels,
    Missing,
)
from .._delays.trace import End, Trace
from ._devices import PathLike
from ._matrix import read_matrix


def from_delay_matrix(
    source: PathLike | ArrayLike,
    *,
    unit: str | float = "s",
    end: End = "wrap",
    missing: Missing = "error",
    delimiter: str | None = None,
    header: bool | None = None,
) -> Trace:
    """Delays as rounds x workers (an array, a data frame, .npy, .csv, .tsv or text): task k of worker i takes row k,
    column i.

    Names in a header are the client ids, in the order of the columns. A first column without a name, or one that pandas
    called "Unnamed: 0", is an index and no worker. `header` says whether the first row has names; None finds out.
    `missing="drop"` leaves out cells that are empty or NaN: that worker has a task less.
    """
    check_missing(missing)
    matrix = read_matrix(source, "delays", delimiter, header)
    values = matrix.values
    bad = matrix.cells(
        (values < 0) | np.isinf(values),
        lambda worker, value: f"the delay {value} of {worker} is {'negative' if value < 0 else 'not finite'}",
    )
    absent = np.isnan(values)
    if missing == "drop":
        matrix.refuse([*matrix.bad, *bad])
    else:
        nan = matrix.cells(absent, lambda worker, value: f"the delay of {worker} is missing")
        hint = "missing='drop' (--missing drop) leaves it out" if absent.any() else ""
        matrix.refuse([*matrix.bad, *bad, *nan], hint)
    worker, row = np.nonzero(~absent.T)
    return Trace(Labels(worker, matrix.clients), in_seconds(values[row, worker], unit), clients=matrix.clients, end=end)


def from_gradient_ages(
    source: PathLike | ArrayLike,
    *,
    seconds_per_iteration: float = 1.0,
    delimiter: str | None = None,
    header: bool | None = None,
) -> ArrivalLog:
    """Ages as server iterations x workers: row t has the age, in iterations, of each worker's latest gradient.

    An entry that is not the one above plus 1 is an arrival at iteration t of a gradient made on version t - age, as is
    a 0 in the first row. Arrivals of one iteration keep the order of the workers.

    The log has the server step that each arrival entered: all arrivals of an iteration enter one step, and an iteration
    without an arrival is none, so that versions count the iterations with one. `fb.schedule` of the log has these
    steps, and their staleness. Where they differ in size it needs FedBuff(buffer_size=n, max_wait=...), n workers.
    """
    _checks.number("seconds_per_iteration", seconds_per_iteration)
    matrix = read_matrix(source, "ages", delimiter, header)
    ages = matrix.values
    odd = ~((ages >= 0) & (ages == np.floor(ages)) & (ages < 2**62))
    matrix.refuse(
        [
            *matrix.bad,
            *matrix.cells(odd, lambda worker, value: f"an age is not a whole number from 0: {worker} has {value}"),
        ]
    )
    age = ages.astype(np.int64)
    arrived = np.vstack([age[:1] == 0, age[1:] != age[:-1] + 1])
    iteration, worker = np.nonzero(arrived)
    made_on = iteration - age[iteration, worker]
    early = np.flatnonzero(made_on < 0)
    matrix.refuse(
        [
            (
                iteration[early],
                lambda i: (
                    f"an age of {age[iteration[early[i]], worker[early[i]]]} at iteration {iteration[early[i]]} "
                    "is from before the start"
                ),
            )
        ]
    )
    steps_before = np.append(0, np.cumsum(arrived.any(axis=1)))
    return ArrivalLog(
        Labels(worker, matrix.clients),
        iteration * float(seconds_per_iteration),
        version=steps_before[made_on],
        step=steps_before[iteration],
        clients=matrix.clients,
    )
