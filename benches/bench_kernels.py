"""Local SGD, the fused pass and Server.upload beside the best rivals and the machine's own limits, on one core.

`pytest benches/bench_kernels.py -s`. Ratios of one run are what counts; the assertions only say that both sides compute
the same thing and that nothing is absurdly slow, since a shared machine cannot promise more.
"""

from __future__ import annotations

from typing import Any

import pytest
from side_by_side import OTHER_PYTHON, in_turn, need_rivals, note, ours, rival

TURNS = 3


@pytest.mark.parametrize(("name", "variants", "updates"), [("W1", ("direct", "blas"), 4000), ("W3", ("blas",), 600)])
def test_local_sgd(benchmark: Any, name: str, variants: tuple[str, ...], updates: int) -> None:
    need_rivals()
    runs = [
        lambda: ours("sgd", name, updates),
        lambda: ours("sgemm"),
        *(lambda v=v: rival("hw_numba.py", name, v, updates, 3) for v in variants),
    ]
    mine, gemm, *others = in_turn(TURNS, *runs)
    rate = max(result["rate"] for result in mine)
    flops = max(result["flops"] for result in mine)
    best_rival = max(result["max"] for results in others for result in results)
    note(
        benchmark,
        updates / rate,
        updates_per_second=rate,
        numba=best_rival,
        ratio_to_numba=rate / best_rival,
        share_of_sgemm=flops / max(result["flops"] for result in gemm),
    )
    assert rate > 0.5 * best_rival


@pytest.mark.parametrize("dim", [1_000_000, 25_000_000])
def test_fused_pass(benchmark: Any, dim: int) -> None:
    need_rivals()
    runs = [
        lambda: ours("aggregate", dim),
        lambda: ours("read", dim),
        lambda: rival("w4.py", "numba-fused", dim, 5),
        lambda: rival("w4.py", "torch-add_", dim, 5, python=OTHER_PYTHON),
    ]
    try:
        rival("w4.py", "torch-add_", 1000, 1, python=OTHER_PYTHON)
    except Exception:
        runs.pop()  # no PyTorch: say so by leaving it out
    mine, reading, numba, *torch = in_turn(TURNS, *runs)
    rate = max(result["bytes"] for result in mine) / 1e9
    figures = {
        "GB_per_second": rate,
        "share_of_read_bandwidth": rate / max(result["bytes"] for result in reading) * 1e9,
        "ratio_to_numba": rate / max(result["max"] for result in numba),
    }
    if torch:
        figures["ratio_to_torch"] = rate / max(result["max"] for result in torch[0])
    note(benchmark, 12 * 4 * dim / rate / 1e9, **figures)
    assert figures["ratio_to_numba"] > 0.5


def test_upload_of_a_small_delta(benchmark: Any) -> None:
    results = in_turn(TURNS, lambda: ours("upload", 8))[0]
    seconds = 1 / max(result["rate"] for result in results)
    note(benchmark, seconds, microseconds=seconds * 1e6)
    assert seconds < 1e-5
