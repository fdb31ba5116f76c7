"""NumExpr: the expression of an aggregation, compiled for its virtual machine, in blocks that a cache holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numexpr
import numpy as np

from .with_numpy import checked, moved, vectors


def aggregate(dim: str) -> Callable[[], dict[str, Any]]:
    """One expression over ten deltas, on as many threads as NUMEXPR_NUM_THREADS says."""
    deltas, weights, model = vectors(int(dim))
    times = max(1, 20_000_000 // len(model))
    names = {f"d{k}": delta for k, delta in enumerate(deltas)} | {f"s{k}": s for k, s in enumerate(weights)}
    names |= {"w": model, "lr": np.float32(0.1)}
    formula = "w - lr * (" + " + ".join(f"s{k} * d{k}" for k in range(len(deltas))) + ")"

    def run() -> dict[str, Any]:
        for _ in range(times):
            numexpr.evaluate(formula, names, out=model)
        return {"amount": moved(deltas) * times}

    return checked(run, lambda: model, deltas, weights, times)
