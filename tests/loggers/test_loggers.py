"""What loggers share, without any tracker; tests/frameworks has the trackers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._base.files import MissingPackageError
from fedbuff.loggers._logger import Logger


class Notes(Logger):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.ends: list[bool] = []

    def _log(self, step: int, values: dict[str, float]) -> None:
        self.rows.append((step, values))

    def _close(self, failed: bool) -> None:
        self.ends.append(failed)


def test_rows_are_those_of_the_history() -> None:
    problem = fb.Quadratic(np.arange(8.0)[:, None] * np.ones(3))
    delays = fb.DelayModel(n_clients=8, compute=fb.Exponential(1.0))
    with Notes() as log:
        options = {"server_steps": 20, "eval_every": 5, "callback": log}
        history = fb.run(problem, delays, fb.FedBuff(2), fb.LocalSGD(steps=1, lr=0.1), **options).history
    assert [step for step, _ in log.rows] == history["step"].tolist() == [0, 5, 10, 15, 20]
    assert [values["loss"] for _, values in log.rows] == history["loss"].tolist()
    assert all("step" not in values and "time" in values for _, values in log.rows)


def test_a_log_ends_once_and_knows_how() -> None:
    log = Notes()
    log.close()
    log.close()
    assert log.ends == [False]
    with pytest.raises(ValueError, match=r"^Notes: expected no row after close\(\), got step 3$"):
        log({"step": 3.0})
    with pytest.raises(KeyError), Notes() as broken:
        raise KeyError
    assert broken.ends == [True]


@pytest.mark.parametrize(
    ("package", "extra", "make"),
    [
        ("tensorboard", "tensorboard", lambda: fb.loggers.TensorBoard("logs")),
        ("mlflow", "mlflow", lambda: fb.loggers.MLflow()),
        ("wandb", "wandb", lambda: fb.loggers.WandB()),
    ],
)
def test_a_missing_package_is_named(
    package: str, extra: str, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf"needs {package}: pip install fedbuff\[{extra}\]"):
        make()


def test_refusals() -> None:
    with pytest.raises(TypeError, match=r"^folder: expected a path, got int$"):
        fb.loggers.TensorBoard(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^mode: expected "):
        fb.loggers.WandB(mode="disabled")  # type: ignore[arg-type]
