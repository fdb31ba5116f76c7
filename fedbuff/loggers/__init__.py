"""The rows of a replay's history for experiment trackers: pass a logger as `callback=` to `fedbuff.replay`.

A logger writes every number of a row under its name, at the row's server step. It is used in a `with` statement, or
closed by `close()`. Each tool is an extra of its own, imported when the first logger of it is made.
"""

from ._mlflow import MLflow
from ._tensorboard import TensorBoard
from ._wandb import WandB

__all__ = ["MLflow", "TensorBoard", "WandB"]
