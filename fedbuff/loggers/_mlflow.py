"""MLflow: a run of an experiment."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from .._base.files import optional
from ._logger import Logger


class MLflow(Logger):
    """A run of an MLflow experiment, with a metric for each number.

    experiment: its name; it is made where there is none of that name.
    tracking_uri: the server or store; None is what MLflow's own settings say.
    name: of the run; None lets MLflow choose one.
    parameters: what the run was made with, as MLflow's parameters.
    run_id: goes on with this run, as a resumed replay does; `run_id` of a logger is the id of its run.

    The run is no active run of MLflow: several loggers may be open at once. Needs the extra `mlflow`.
    """

    def __init__(
        self,
        experiment: str = "fedbuff",
        *,
        tracking_uri: str | None = None,
        name: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        run_id: str | None = None,
    ) -> None:
        mlflow = optional("mlflow", "mlflow", "an MLflow log")
        self._entities: Any = mlflow.entities
        self._client: Any = mlflow.MlflowClient(tracking_uri=tracking_uri)
        if run_id is None:
            found = self._client.get_experiment_by_name(experiment)
            number = self._client.create_experiment(experiment) if found is None else found.experiment_id
            run_id = self._client.create_run(number, run_name=name).info.run_id
        else:
            self._client.update_run(run_id, status="RUNNING", name=name)
        self.run_id: str = run_id
        given = [self._entities.Param(key, str(value)) for key, value in (parameters or {}).items()]
        if given:
            self._client.log_batch(run_id, params=given)

    def _log(self, step: int, values: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def _close(self, failed: bool) -> None:
        self._client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")
