"""Metrics of a model, as a replay evaluates them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from .. import backends
from .._base.checks import choice
from .._problems.base import Problem
from ..backends.spec import Vector as Floats
from .engine import AnyProblem

METRICS = ("loss", "grad_norm_sq", "accuracy", "distance", "step_norm")


class _Evaluation:
    """The metrics of a model, and what they cost."""

    def __init__(self, problem: AnyProblem, metrics: Sequence[str], test: tuple[Any, Any] | Problem | None) -> None:
        for name in metrics:
            choice("metrics", name, METRICS)
        self.metrics = tuple(metrics)
        self.seconds = 0.0
        self._problem = problem
        self._held_out: Any = None
        for name, needs in (("loss", "loss"), ("grad_norm_sq", "grad"), ("accuracy", "accuracy")):
            if name in metrics and not callable(getattr(problem, needs, None)):
                raise ValueError(f"metrics: {type(problem).__name__} has no {needs}, which {name!r} needs")
        if test is not None:
            if "accuracy" not in metrics:
                raise ValueError("test: it is for the metric 'accuracy', which is not asked for")
            self._held_out = test if isinstance(test, Problem) else cast(Any, problem).held_out(*test)

    def __call__(self, w: Floats, before: Floats | None, previous: Floats | None, threads: int) -> dict[str, float]:
        """The metrics at w; `before` is the model of the evaluation before, `previous` of the version before."""
        begin = time.perf_counter()
        origins = {"distance": before, "step_norm": previous}
        values = {name: self._value(name, w, origins.get(name), threads) for name in self.metrics}
        self.seconds += time.perf_counter() - begin
        return values

    def _value(self, name: str, w: Floats, origin: Floats | None, threads: int) -> float:
        problem = cast(Any, self._problem)
        options = {"threads": threads} if isinstance(problem, Problem) else {}
        if name == "loss":
            return float(problem.loss(w, **options))
        if name == "grad_norm_sq":
            gradient = np.asarray(problem.grad(w, **options))
            return backends.current().dot(gradient, gradient)
        if name == "accuracy":
            return float(problem.accuracy(w) if self._held_out is None else self._held_out.accuracy(w))
        moved = np.zeros_like(w) if origin is None else w - origin
        return float(np.sqrt(backends.current().dot(moved, moved)))
