"""Schedule and replay together beside the hand-written Numba simulator, and two threads beside one.

`pytest benches/bench_replay.py -s`. Both sides train on the same rows with the same rule; the losses that they reach
must agree, as the random numbers of the two differ.
"""

from __future__ import annotations

from typing import Any

import pytest
from side_by_side import in_turn, need_rivals, note, ours, rival

TURNS = 3
RIVALS = {
    "W1": [("hw_numba.py", "W1", "direct", 4000, 3), ("hw_numba.py", "W1", "blas", 4000, 3)],
    "W2": [("hw_numba_w2.py", 2_000_000, 3)],
    "W3": [("hw_numba.py", "W3", "blas", 600, 3)],
}
UPDATES = {"W1": 4000, "W2": 2_000_000, "W3": 600}


@pytest.mark.parametrize("name", ["W1", "W2", "W3"])
def test_replay(benchmark: Any, name: str) -> None:
    need_rivals()
    updates = UPDATES[name]
    runs = [
        lambda: ours("replay", name, updates, 1),
        lambda: ours("replay", name, updates, 2, cores=2),
        *(lambda r=r: rival(*r) for r in RIVALS[name]),
    ]
    one, two, *others = in_turn(TURNS, *runs)
    rate = max(result["rate"] for result in one)
    best_rival = max(result["max"] for results in others for result in results)
    note(
        benchmark,
        updates / rate,
        updates_per_second=rate,
        numba=best_rival,
        ratio_to_numba=rate / best_rival,
        two_threads_to_one=max(r["replay_rate"] for r in two) / max(r["replay_rate"] for r in one),
        outside_kernels=min(result["outside_kernels"] for result in one),
        most_versions=one[0]["most_versions"],
        most_window=one[0]["most_window"],
        loss=one[0]["loss"],
    )
    assert one[0]["loss"] == two[0]["loss"]
    losses = [result["loss"] for results in others for result in results if result.get("loss") is not None]
    assert all(abs(one[0]["loss"] - loss) < 0.05 * loss for loss in losses)
