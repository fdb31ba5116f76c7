"""The weights of stale updates, at points worked out by hand."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

from fedbuff import staleness


@pytest.mark.parametrize(
    ("function", "weights"),
    [
        (staleness.Constant(), {0: 1, 100: 1}),
        (staleness.Polynomial(), {0: 1, 3: 0.5, 8: 1 / 3}),
        (staleness.Polynomial(1.0, average=1), {0: 2, 1: 1, 3: 0.5}),
        (staleness.Polynomial(0.0), {0: 1, 7: 1}),
        (staleness.Hinge(10.0, 4.0), {0: 1, 4: 1, 5: 1 / 11, 6: 1 / 21}),
        (staleness.Threshold(2, after=0.25), {2: 1, 3: 0.25}),
        (staleness.Threshold(2), {3: 0}),
        (staleness.InverseOnePlusSqrt(), {0: 0.5, 3: 1 / 3, 8: 0.25}),
        (staleness.DelayAdaptive(5), {0: 1, 5: 1, 10: 0.5}),
    ],
)
def test_weights(function: Any, weights: dict[int, float]) -> None:
    for tau, weight in weights.items():
        got = function(tau)
        assert type(got) is float
        assert math.isclose(got, weight, rel_tol=2**-52)
    assert pickle.loads(pickle.dumps(function)) == function
    assert hash(function) == hash(pickle.loads(pickle.dumps(function)))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: staleness.Polynomial(-1), "exponent"),
        (lambda: staleness.Polynomial(math.nan), "exponent"),
        (lambda: staleness.Polynomial(0.5, average=-1), "average"),
        (lambda: staleness.Hinge(slope=-1), "slope"),
        (lambda: staleness.Hinge(threshold=math.inf), "threshold"),
        (lambda: staleness.Threshold(-1), "cutoff"),
        (lambda: staleness.Threshold(1, after=-1), "after"),
        (lambda: staleness.DelayAdaptive(0), "limit"),
    ],
)
def test_refusals(call: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected a number"):
        call()
