"""TensorBoard: event files."""

from __future__ import annotations

import os
from typing import Any

from .._base.checks import path_of
from .._base.files import optional
from ._logger import Logger


class TensorBoard(Logger):
    """Event files in a folder, a scalar for each number: `tensorboard --logdir folder` shows them.

    A resumed replay may log into the folder of the first: TensorBoard reads all its files. Needs the extra
    `tensorboard`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = os.fspath(path_of("folder", folder))
        self._writer: Any = optional("tensorboard.summary", "tensorboard", "a TensorBoard log").Writer(path)

    def _log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step=step)

    def _close(self, failed: bool) -> None:
        self._writer.close()
