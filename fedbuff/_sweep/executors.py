"""Workers elsewhere: executors of other processes and machines, and the data that they map."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from .._base.cpus import usable_cpus
from .._study.data import save_rows
from .._study.tables import ConfigError
from .arms import Pair
from .store import ROWS
from .worker import Workshop

__all__ = ["MappedRows", "executor_of"]


def executor_of(given: Any) -> tuple[Executor, int]:
    """An executor as the standard library has it, and how many workers it has."""
    if isinstance(given, Executor):
        return given, getattr(given, "_max_workers", None) or usable_cpus()
    if type(given).__module__.partition(".")[0] == "distributed" and hasattr(given, "get_executor"):
        return given.get_executor(pure=False), max(1, sum(given.nthreads().values()))
    raise TypeError(
        f"executor: expected a concurrent.futures.Executor or a distributed.Client, got {type(given).__name__}"
    )


class MappedRows:
    """Folders with the rows of the problems, each array a file that worker processes map into their memory."""

    def __init__(self, workshop: Workshop, pairs: Sequence[Pair], out: Path | None) -> None:
        self._workshop, self._pairs, self._out = workshop, pairs, out

    def __enter__(self) -> dict[str, str]:
        # In the folder of the results where there is one: other machines may see it.
        self._folder = tempfile.TemporaryDirectory(prefix=ROWS, dir=self._out)
        made: dict[str, str] = {}
        sections = self._workshop.arms.sections
        for arm in {sections(arm)["problem"].key: arm for arm, _ in self._pairs}.values():
            config = self._workshop.config(arm)
            key = config.rows_key
            if key is None or key in made:
                continue
            try:
                rows = self._workshop.rows(arm)
            except (ConfigError, OSError):
                continue  # the runs that need them raise the error
            made[key] = str(Path(self._folder.name).resolve() / key)
            save_rows(Path(made[key]), rows)
        return made

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()
