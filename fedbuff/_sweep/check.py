"""Checks of a sweep before its first run: which arms cannot run, and which requests are refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .._replay.history import TRAFFIC
from .._study.build import default_metrics
from .._study.config import StudyConfig
from .._study.keys import refuse_unknown_removals
from .._study.tables import ConfigError, ConflictError, UnknownKeyError
from .arms import Pair
from .columns import HISTORY, Schema
from .request import Request
from .rows import HISTORY_COLUMNS, explain
from .worker import Workshop

__all__ = ["Checks"]

_RUN: Schema = {
    "status": "text",
    "error": "text",
    "exit_reason": "text",
    "server_steps": "int",
    "time": "float",
    "updates": "int",
    "seconds": "float",
    "model_sha256": "text",
}


class Checks:
    """The checks of one request; what a schedule follows from is checked once for all arms that share it."""

    def __init__(self, request: Request, workshop: Workshop) -> None:
        self._request, self._workshop = request, workshop
        self._timing_errors: dict[bytes, ConfigError | None] = {}  # by the key of a schedule

    def run(self, pending: Sequence[Pair], done: Collection[int] = ()) -> tuple[dict[int, str], Schema]:
        """The arms that cannot run, with their errors, and the columns of the results.

        A key that neither the base nor any arm can have, those that are done included, is an error of the grid, and
        nothing is run. So is a key of the base that an arm rules out, as FedAvg does schedule.concurrency.
        """
        request, failed = self._request, dict[int, ConfigError]()
        possible: set[str] = set()
        metrics: dict[str, None] = {}
        traffic: dict[str, None] = {}  # columns of it
        for arm in dict.fromkeys(arm for arm, _ in pending):
            try:
                config = self._workshop.config(arm)
            except ConfigError as error:
                failed[arm] = error
                continue
            config.check_code()
            config.check_repeatable("sweep")
            possible.update(request.changes[arm])
            metrics |= dict.fromkeys(_metrics(config))
            if config.local is not None and config.local.compress is not None:
                traffic = dict.fromkeys(TRAFFIC)
            wrong_timing = self._timing_error(arm, config)
            if wrong_timing is not None:
                failed[arm] = wrong_timing
        if any(isinstance(wrong, UnknownKeyError) for wrong in failed.values()):
            possible.update(path for arm in done for path in request.changes[arm])
        self._refuse_grid(failed, possible)
        return {arm: explain(request.changes[arm], wrong) for arm, wrong in failed.items()}, self._schema(
            metrics, traffic
        )

    def _refuse_grid(self, failed: Mapping[int, ConfigError], possible: Collection[str]) -> None:
        """Raises the errors that are the grid's and not an arm's."""
        request = self._request
        for wrong in failed.values():
            if isinstance(wrong, UnknownKeyError) and not (
                _stands_in(request.tables, wrong.path) or any(_leads_to(path, wrong.path) for path in possible)
            ):
                raise wrong
        for arm, wrong in failed.items():
            if isinstance(wrong, ConflictError) and not any(
                _leads_to(path, wrong.path) for path in request.changes[arm]
            ):
                raise ConfigError(explain(request.changes[arm], wrong))
        for changes in {path: arm for arm in request.changes for path, value in arm.items() if value is None}.values():
            refuse_unknown_removals(request.base.tables, changes)

    def _schema(self, metrics: Collection[str], traffic: Collection[str]) -> Schema:
        """The columns: a run's keys, what varies, how it ended, its last metrics, and its history."""
        schema: Schema = {"run": "text", "arm": "int", "seed": "seed", **self._request.kinds, **_RUN}
        schema |= dict.fromkeys((*metrics, *traffic), "float")
        mean: Schema = {"grad_norm_sq_mean": "floats"} if "grad_norm_sq" in metrics else {}
        history: Schema = {**HISTORY_COLUMNS, **dict.fromkeys(metrics, "floats"), **mean}
        return schema | {HISTORY + name: kind for name, kind in history.items()}

    def _timing_error(self, arm: int, config: StudyConfig) -> ConfigError | None:
        """Why the arm can have no schedule, as with more tasks at work than clients, where the delays are no file."""
        if config.tables["trace"]["kind"] != "model":
            return None
        key = self._workshop.schedule_key(arm)
        if key not in self._timing_errors:
            try:
                config.check_timing()
                self._timing_errors[key] = None
            except ConfigError as error:
                self._timing_errors[key] = error
        return self._timing_errors[key]


def _leads_to(path: str, key: str) -> bool:
    """Whether a change at the path is one of the key, or of a table that holds it."""
    return path == key or key.startswith(f"{path}.")


def _stands_in(tables: Mapping[str, Any], path: str) -> bool:
    value: Any = tables
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return True


def _metrics(config: StudyConfig) -> tuple[str, ...]:
    """The metrics of an arm, as far as they are known without its data."""
    asked = config.replay_options.metrics
    return default_metrics(config.tables["problem"]) if asked is None else asked
