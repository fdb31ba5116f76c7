"""Metrics of a model, as a replay evaluates them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from .. import backends
from .._problems.base import Problem
from ..backends.spec import PROBLEM_METRICS
from ..backends.spec import Vector as Floats
from .check import check_metrics
from .engine import AnyProblem


class _Evaluation:
    """The metrics of a model: what a run evaluates by itself, and what its host does."""

    def __init__(self, problem: AnyProblem, metrics: Sequence[str], test: tuple[Any, Any] | Problem | None) -> None:
        check_metrics(metrics, problem)
        self.metrics = tuple(metrics)
        self._problem = problem
        self._held_out: Any = None
        if test is not None:
            if "accuracy" not in metrics:
                raise ValueError("test: it is for the metric 'accuracy', which is not asked for")
            self._held_out = test if hasattr(test, "accuracy") else cast(Any, problem).held_out(*cast(Any, test))

    @property
    def options(self) -> dict[str, Any]:
        """What a run evaluates by itself, as a RunSpec has it."""
        problem, held_out = self._problem, self._held_out
        if not isinstance(problem, Problem):
            return {"metrics": self.metrics}
        judged = problem if held_out is None else held_out
        return {
            "metrics": self.metrics,
            "problem": problem.bound,
            "held_out": None if held_out is None else held_out.bound,
            "accuracy_rows": int(judged.n_samples.sum()),
        }

    def values(self, w: Floats) -> list[float]:
        """What the host of a run evaluates: loss, grad_norm_sq and accuracy, those among the metrics."""
        return [self._value(name, w) for name in self.metrics if name in PROBLEM_METRICS]

    def _value(self, name: str, w: Floats) -> float:
        problem = cast(Any, self._problem)
        if name == "loss":
            return float(problem.loss(w))
        if name == "grad_norm_sq":
            gradient = np.asarray(problem.grad(w))
            return backends.current().dot(gradient, gradient)
        return float(problem.accuracy(w) if self._held_out is None else self._held_out.accuracy(w))
