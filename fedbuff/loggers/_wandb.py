"""Weights & Biases: a run, on this machine unless asked otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from .._base.checks import choice
from .._base.files import optional
from ._logger import Logger


class WandB(Logger):
    """A run of Weights & Biases, with a line for each number.

    mode: "offline" writes into `folder`, and nothing leaves the machine until `wandb sync`; "online" sends rows as they
        come.
    name, parameters: of the run; the parameters become its config.
    run_id: goes on with this run, as a resumed replay does; `run_id` of a logger is the id of its run.

    Needs the extra `wandb`.
    """

    def __init__(
        self,
        project: str = "fedbuff",
        *,
        mode: Literal["offline", "online"] = "offline",
        folder: str | os.PathLike[str] | None = None,
        name: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        run_id: str | None = None,
    ) -> None:
        choice("mode", mode, ("offline", "online"))
        wandb = optional("wandb", "wandb", "a Weights & Biases log")
        self._run: Any = wandb.init(
            project=project,
            mode=mode,
            dir=None if folder is None else os.fspath(folder),
            name=name,
            config=dict(parameters or {}),
            id=run_id,
            resume=None if run_id is None else "allow",
            reinit="create_new",
        )
        self.run_id: str = self._run.id

    def _log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def _close(self, failed: bool) -> None:
        self._run.finish(exit_code=1 if failed else 0)
