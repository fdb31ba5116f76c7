"""Compression of an upload beside one pass over its memory: a vector read, another written."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedbuff import backends
from fedbuff.backends.spec import CompressNumbers

DIM, VECTORS, TURNS = 1_000_000, 16, 12  # vectors in turn, so that none is in the cache
MOST_PASSES = {"top_k": 3.0}
KINDS = {
    "top_k": CompressNumbers(1, DIM // 100),
    "random_k": CompressNumbers(2, DIM // 100),
    "qsgd": CompressNumbers(3, 0, 15.0),
    "sign": CompressNumbers(4),
    "bfloat16": CompressNumbers(5),
}


def seconds(work: Callable[[int], object]) -> float:
    """Of one vector, the best of some turns over all."""
    best = np.inf
    for _ in range(TURNS):
        began = time.perf_counter()
        for i in range(VECTORS):
            work(i)
        best = min(best, (time.perf_counter() - began) / VECTORS)
    return best


def passes(kind: str) -> float:
    """How many passes over memory, a vector read and another written, a compression takes."""
    rng = np.random.default_rng(0)
    x = [rng.standard_normal(DIM).astype(np.float32) for _ in range(VECTORS)]
    out = [np.empty_like(one) for one in x]
    compress = backends.current().compress
    a_pass = seconds(lambda i: np.copyto(out[i], x[i]))
    took = seconds(lambda i: compress(x[i], KINDS[kind], 0, 0, 0, out[i]))
    if kind == "top_k":
        assert np.count_nonzero(out[0]) == DIM // 100
    return took / max(a_pass, seconds(lambda i: np.copyto(out[i], x[i])))


@pytest.mark.parametrize("kind", list(KINDS))
def test_compression_beside_a_pass(benchmark: Any, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    times = benchmark.pedantic(lambda: passes(kind), rounds=1)
    with capsys.disabled():
        print(f"\n  {kind} of {DIM} float32: {times:.2f} passes")
    assert times <= MOST_PASSES.get(kind, np.inf)
