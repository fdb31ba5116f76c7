"""`SweepResults`: the results of a sweep, one row per run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.files import FileError, optional, reading
from . import statistics
from .columns import HISTORY, Column, Ragged, take
from .request import arms_of
from .statistics import (
    Axis,
    Band,
    Method,
    Paired,
    Table,
)
from .store import FolderStore, MemoryStore

__all__ = ["SweepResults", "load_sweep"]


class SweepResults:
    """The runs of a sweep, by arm and then by seed.

    >>> import fedbuff as fb
    >>> base = {
    ...     "problem": {"kind": "quadratic", "centers": [[0.0, 0.0], [2.0, 0.0]]},
    ...     "trace": {"kind": "model", "n_clients": 2, "compute": {"kind": "exponential", "scale": 1.0}},
    ...     "strategy": {"kind": "fedbuff", "buffer_size": 2},
    ...     "local": {"steps": 1, "lr": 0.5},
    ...     "schedule": {"server_steps": 10},
    ... }
    >>> results = fb.sweep(base, {"strategy.buffer_size": [1, 2]}, seeds=[0, 1, 2])
    >>> results
    <SweepResults: 6 runs of 2 arms, 3 seeds; all done>
    >>> results.column("strategy.buffer_size").tolist()
    [1, 1, 1, 2, 2, 2]
    >>> results.history(0)["step"].tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]

    arms  the changes that each arm makes to the base, by key path
    """

    def __init__(self, store: FolderStore | MemoryStore, arms: Sequence[dict[str, Any]]) -> None:
        self.arms = list(arms)
        self._store = store
        found = store.read([name for name in store.schema if not name.startswith(HISTORY)])
        order = np.lexsort((found["seed"], found["arm"]))  # type: ignore[arg-type]
        self._columns: dict[str, Column] = {name: take(column, order) for name, column in found.items()}

    def __len__(self) -> int:
        return len(self._columns["run"])

    @property
    def columns(self) -> list[str]:
        """The names of the columns: the run, its arm and seed, what varied, what came out; then the histories."""
        return list(self._store.schema)

    def _column(self, name: str) -> Column:
        if name not in self._columns:
            if name not in self._store.schema:
                raise KeyError(f"{name!r}: the results have {', '.join(self.columns)}")
            # By id, since the folder may have gained rows meanwhile.
            found = self._store.read(["run", name])
            row_of = {found["run"][row]: row for row in range(len(found["run"]))}
            rows = np.array([row_of[run] for run in self.column("run")], np.int64)
            self._columns[name] = take(found[name], rows)
        return self._columns[name]

    def column(self, name: str) -> NDArray[Any]:
        """One value per run; of a history column, one array per run."""
        found = self._column(name)
        if not isinstance(found, Ragged):
            return found
        made = np.empty(len(found), np.object_)
        for row in range(len(found)):
            made[row] = found[row]
        return made

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The rows of runs that failed: run, arm, seed, error and what varied."""
        rows = np.flatnonzero(self.column("status") == "failed")
        names = ["run", "arm", "seed", "error"]
        return [
            {**{name: self.column(name).item(row) for name in names}, **self.arms[int(self.column("arm")[row])]}
            for row in rows.tolist()
        ]

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {run: row for row, run in enumerate(self.column("run"))}

    def history(self, run: int | str) -> dict[str, NDArray[Any]]:
        """The history of a run, by its row or its id: columns by name, without those that it has not."""
        if isinstance(run, str):
            if run not in self._row_of:
                raise KeyError(f"{run!r}: no run has this id")
            row = self._row_of[run]
        else:
            row = range(len(self))[run]
        return {name: values for name, values in self._lists(row).items() if len(values)}

    def _lists(self, row: int) -> dict[str, NDArray[Any]]:
        names = [name for name in self.columns if name.startswith(HISTORY)]
        return {name.removeprefix(HISTORY): self._column(name)[row] for name in names}

    def histories(self) -> dict[str, NDArray[Any]]:
        """All histories in long form: a row per evaluation, with its run, arm, seed and what varied."""
        steps = self._column(f"{HISTORY}step")
        assert isinstance(steps, Ragged)
        sizes = np.diff(steps.offsets)
        made: dict[str, NDArray[Any]] = {}
        varied = {path for changes in self.arms for path in changes}
        for name in self.columns:
            if name in ("run", "arm", "seed") or name in varied:
                made[name] = np.repeat(self.column(name), sizes)
        for name in self.columns:
            if name.startswith(HISTORY):
                column = self._column(name)
                assert isinstance(column, Ragged)
                made[name.removeprefix(HISTORY)] = _spread(column, sizes)
        return made

    def to_pandas(self, *, history: bool = False) -> Any:
        """A DataFrame with a row per run; with `history` a row per evaluation."""
        pd = optional("pandas", None, "to_pandas")
        if history:
            return pd.DataFrame(self.histories())
        return pd.DataFrame({name: self.column(name) for name in self.columns if not name.startswith(HISTORY)})

    def table(self, metric: str = "loss", *, level: float = 0.95, method: Method = "student") -> Table:
        """A row for each arm: its changes, the number of runs n, and the metric's mean at the end with the interval
        that covers the true mean with probability `level`.

        method  "student", Student's t; or "bootstrap", quantiles of resampled means
        """
        return statistics.table(self, metric, level, method)

    def band(
        self,
        metric: str = "loss",
        axis: Axis = "time",
        *,
        level: float = 0.95,
        method: Method = "student",
        at: ArrayLike | None = None,
    ) -> list[Band]:
        """For each arm, mean and interval of a metric along "step", "time" or "updates", over its seeds.

        at  where; None: where the runs were evaluated, or at even distances as far as all runs of the arm reach. A
            metric keeps its value until the next evaluation; it is NaN where a run has ended.
        """
        return statistics.bands(self, metric, axis, level, method, at)

    def paired(
        self,
        a: int | Mapping[str, Any],
        b: int | Mapping[str, Any],
        *,
        metric: str = "loss",
        level: float = 0.95,
        method: Method = "student",
    ) -> Paired:
        """The mean difference between two arms, seed by seed: both met the same delays and batches.

        a, b  arms: their numbers, or changes that only they have, as in {"strategy.buffer_size": 5}
        """
        return statistics.paired(self, a, b, metric, level, method)

    def time_to(
        self,
        metric: str,
        target: float,
        *,
        axis: Axis = "time",
        level: float = 0.95,
        method: Method = "student",
    ) -> Table:
        """A row for each arm: how many of its n runs reached the target (accuracy at or above it, others at or below),
        the median by Kaplan and Meier, and, where all did, the mean with its interval.

        axis  "time" (virtual), "step" or "updates"
        """
        return statistics.time_to(self, metric, target, axis, level, method)

    def __repr__(self) -> str:
        counts = Counter(self.column("status").tolist())
        state = "all done" if counts["done"] == len(self) else f"{counts['done']} done, {counts['failed']} failed"
        seeds = len(set(self.column("seed").tolist()))
        return f"<SweepResults: {len(self)} runs of {len(self.arms)} arms, {seeds} seeds; {state}>"

    def _repr_html_(self) -> str:
        metric = next((name for name in ("accuracy", "loss") if name in self.columns), None)
        shown = "" if metric is None else f"<div>{metric} at the end</div>{self.table(metric)._repr_html_()}"
        return f"<div><strong>{escape(repr(self).strip('<>'))}</strong>{shown}</div>"


def _spread(column: Ragged, sizes: NDArray[np.int64]) -> NDArray[Any]:
    """The values of every run beside its steps: NaN for a run that has the steps and not this column."""
    own = np.diff(column.offsets)
    if np.array_equal(own, sizes):
        return column.values
    if np.any((own != sizes) & (own > 0)):
        raise FileError("a run's histories differ in length")
    made = np.full(int(sizes.sum()), np.nan)
    made[np.repeat(own > 0, sizes)] = column.values
    return made


def load_sweep(out: str | os.PathLike[str]) -> SweepResults:
    """The results in a folder that `sweep` wrote to, as far as it has come.

    >>> import tempfile, fedbuff as fb
    >>> base = {
    ...     "problem": {"kind": "quadratic", "centers": [[0.0, 0.0], [2.0, 0.0]]},
    ...     "trace": {"kind": "model", "n_clients": 2, "compute": {"kind": "exponential", "scale": 1.0}},
    ...     "strategy": {"kind": "fedbuff", "buffer_size": 2},
    ...     "local": {"steps": 1, "lr": 0.5},
    ...     "schedule": {"server_steps": 10},
    ... }
    >>> with tempfile.TemporaryDirectory() as out:
    ...     _ = fb.sweep(base, seeds=[0, 1], out=out)
    ...     len(fb.load_sweep(out))
    2
    """
    store = FolderStore(out)
    with reading(store.path / "sweep.json", "a sweep's description"):
        arms = arms_of(store.about.get("grid"), store.about.get("configs"))
    return SweepResults(store, arms)
