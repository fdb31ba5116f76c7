"""Local SGD of ten steps on networks beside the ways that PyTorch has, on one core, in one run.

What counts is the ratio to the fastest of them. The rivals check that they compute the same update.
"""

from __future__ import annotations

from typing import Any

import pytest
from conftest import FULL, Beside

VARIANTS = ["module", "module-last", "functional", "functional-last"]
COMPILED = ["compile", "compile-last"]  # a minute each to compile

# Times as fast as the best of PyTorch's, with batches of 32 and of 10.
AIMS = {"W6": (3.5, 5.0), "LeNet-5": (4.0, 6.0), "FEMNIST": (2.3, 2.8), "CIFAR": (1.8, 2.0), "strides": (1.3, 1.3)}


@pytest.mark.parametrize("batch", [32, 10])
@pytest.mark.parametrize("name", list(AIMS))
def test_network(beside: Beside, benchmark: Any, capsys: pytest.CaptureFixture[str], name: str, batch: int) -> None:
    variants = VARIANTS + (COMPILED if FULL else [])
    _, ratios = beside(
        f"ours network {name} {batch}", *(f"torch_networks network {name} {batch} {variant}" for variant in variants)
    )
    best, aim = min(ratio.best for ratio in ratios), AIMS[name][batch == 10]
    benchmark.extra_info |= {"to the best of PyTorch": best, "aim": aim}
    with capsys.disabled():
        print(f"  {name}, batch {batch}: {best:.2f} times the best of PyTorch; {aim} is the aim")
    assert best > 1
