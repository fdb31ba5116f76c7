"""Local SGD, the fused pass and the full gradient beside the best rivals and the machine's own limits, on one core.

Ratios of one run are what counts. The contenders check that they compute the same thing; the assertions here only say
that nothing is absurdly slow, since a shared machine cannot promise more.
"""

from __future__ import annotations

from typing import Any

import pytest
from conftest import FULL, Beside
from rivals.data import workload

UPDATES = {"W1": 2000, "W3": 300}


@pytest.mark.parametrize(("name", "variants"), [("W1", ["blas", "loops"] if FULL else ["blas"]), ("W3", [""])])
def test_local_sgd(beside: Beside, benchmark: Any, name: str, variants: list[str]) -> None:
    n = UPDATES[name]
    results, ratios = beside(
        f"ours sgd {name} {n}", "ours sgemm", *(f"numba sgd {name} {n} {variant}".rstrip() for variant in variants)
    )
    benchmark.extra_info["share of sgemm"] = results[0].rate * workload(name).flops / results[1].rate
    assert all(faster.best > 0.5 for faster in ratios[1:])


@pytest.mark.parametrize("name", ["W1", "W3"])
def test_shapes_and_dtypes(beside: Beside, benchmark: Any, name: str) -> None:
    n = UPDATES[name] // 2
    (mine, odd, double), _ = beside(f"ours sgd {name} {n}", f"ours sgd {name}-odd {n}", f"ours sgd {name} {n} float64")
    share = odd.rate * workload(f"{name}-odd").flops / (mine.rate * workload(name).flops)
    benchmark.extra_info |= {"odd shape to round": share, "float64 to float32": double.rate / mine.rate}
    assert share > 0.4 and double.rate > 0.2 * mine.rate


@pytest.mark.parametrize("dim", [1_000_000, 25_000_000])
def test_fused_pass(beside: Beside, dim: int) -> None:
    rivals = ("numba", "jax", "torch", "numpy") if FULL else ("numba", "jax")
    _, ratios = beside(f"ours aggregate {dim}", f"ours read {dim} 11", *(f"{who} aggregate {dim}" for who in rivals))
    assert all(faster.best > 0.5 for faster in ratios)


@pytest.mark.parametrize("name", ["W1", "W3"])
def test_loss_and_gradient(beside: Beside, name: str) -> None:
    _, (_, share) = beside(f"ours evaluate {name}", f"numpy evaluate {name}", "ours sgemm")
    assert share.best > 0.2
