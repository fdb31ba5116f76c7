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
MOST = {"top_k": 3.0}  # of a pass
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


@pytest.mark.parametrize("kind", list(KINDS))
def test_compression_beside_a_pass(benchmark: Any, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    rng = np.random.default_rng(0)
    x = [rng.standard_normal(DIM).astype(np.float32) for _ in range(VECTORS)]
    out = [np.empty_like(one) for one in x]
    compress = backends.current().compress
    a_pass = seconds(lambda i: np.copyto(out[i], x[i]))
    took = benchmark.pedantic(lambda: seconds(lambda i: compress(x[i], KINDS[kind], 0, 0, 0, out[i])), rounds=1)
    if kind == "top_k":
        assert np.count_nonzero(out[0]) == DIM // 100
    again = seconds(lambda i: np.copyto(out[i], x[i]))
    with capsys.disabled():
        print(f"\n  {kind} of {DIM} float32: {1e3 * took:.3g} ms, a pass {1e3 * a_pass:.3g} and {1e3 * again:.3g}")
        print(f"  {took / max(a_pass, again):.2f} passes")
    if kind in MOST:
        assert took <= MOST[kind] * max(a_pass, again)
