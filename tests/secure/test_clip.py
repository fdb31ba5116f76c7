"""The norm of an update after clipping: never above the clip, whatever its numbers, dtype, backend and level."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedbuff as fb
from fedbuff import backends
from fedbuff.secure import FixedPoint, Gaussian, Simulate

Array = NDArray[Any]

# clip, and the numbers of the update
FLOAT32: list[tuple[float, list[float]]] = [
    (1.0, [3e38] * 9),
    (1e-7, [3.4e38, 1.0, -3.4e38]),  # the factor is subnormal: 2^-149 times a few
    (3.6e-7, [3.4e38, 3.4e38]),  # 0.53 times 2^-149, of which the nearest float32 is 2^-149
    (1.6e-6, [3.2e38] * 5),
    (1e-44, [1.0, 2.0, -3.0]),  # as is the clip
    (1e-45, [1e-40] * 4),
    (3e-44, [1e-44] * 20),
    (1e-60, [1.0]),
    (0.1, [0.1, 0.1, 0.1]),
    (1.0, [0.57735026919] * 3),
    (1.0, list(np.random.default_rng(0).standard_normal(5001))),
]
FLOAT64: list[tuple[float, list[float]]] = [
    (1.0, [1e200, -1e200, 1e10]),  # the sum of squares overflows
    (1.0, [1.7e308] * 4),  # as does the norm
    (1e-170, [1e-165] * 7),  # the squares vanish
    (1e-320, [1e-318] * 3),
    (5e-324, [1.0, -2.0]),
    (1e-310, [1e10, 3.0, 1e-5]),
    (3e-321, [2e-3] * 50),
    (0.1, [0.1, 0.1, 0.1]),
    (1.0, list(np.random.default_rng(1).standard_normal(5001))),
]
CASES = [("float32", *case) for case in FLOAT32] + [("float64", *case) for case in FLOAT64]


def runners() -> list[str]:
    found = ["reference", "numba"]
    if backends.current().name == "cpp":
        from fedbuff import _core

        found += [f"cpp {level}" for level in _core.available_levels()]
    return found


@pytest.fixture(params=runners())
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One backend at one level."""
    name, _, level = request.param.partition(" ")
    if name != "cpp":
        if name == "numba":
            pytest.importorskip("numba")
        backend = importlib.import_module(f"fedbuff.backends.{name}")
        monkeypatch.setattr(backends, "current", lambda: backend)
        yield name
        return
    from fedbuff import _core

    before = _core.level()
    _core.force_level(level)
    yield request.param
    _core.force_level(before)


def clipped(delta: Array, clip: float, secure: Any = None) -> Array:
    """What a buffer of one adds for this update."""

    def update(client: int, task: int, w: Array, generator: Any) -> Array:
        return delta

    problem = fb.Callback(update, n_clients=1, w0=np.zeros_like(delta))
    privacy = Gaussian(clip=clip, noise_multiplier=0.0)
    strategy = fb.FedBuff(1, server_lr=1.0, privacy=privacy, secure=secure)
    return -fb.replay(problem, fb.uniform_arrivals(1, 1, 0, 1), strategy=strategy).w


def square(values: Array) -> Fraction:
    return sum((Fraction(float(value)) ** 2 for value in values), Fraction(0))


@pytest.mark.parametrize(("dtype", "clip", "numbers"), CASES)
def test_a_clipped_norm_is_never_above_the_clip(runner: str, dtype: str, clip: float, numbers: list[float]) -> None:
    delta = np.array(numbers, dtype)
    sent = clipped(delta, clip)
    assert square(sent) <= Fraction(clip) ** 2
    # Nothing is lost beside what rounding must take: of numbers that are not subnormal a share of 10^-5.
    least = float(np.finfo(dtype).tiny)
    if clip > 1e4 * least and float(np.max(np.abs(delta))) < 1e307 and clip > 1e4 * least * np.max(np.abs(delta)):
        assert square(sent) >= min(Fraction(clip) ** 2, square(delta)) * Fraction(1 - 1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_update_well_within_the_clip_is_left_alone(runner: str, dtype: str) -> None:
    delta = np.array([0.5, -0.25, 1e-30], dtype)
    np.testing.assert_array_equal(clipped(delta, 1.0), delta)
    np.testing.assert_array_equal(clipped(np.zeros(3, dtype), 1.0), np.zeros(3))


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_what_is_sent_in_fixed_point_keeps_the_clip(runner: str, rounding: Any) -> None:
    rng = np.random.default_rng(3)
    secure = Simulate(encoding=FixedPoint(clip=1.0, bits=12, rounding=rounding))
    for scale in (1e-3, 1.0, 1e30):
        delta = (scale * rng.standard_normal(300)).astype(np.float32)
        assert square(clipped(delta, 0.25, secure)) <= Fraction(0.25) ** 2


def test_the_backends_agree_on_the_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of squares may differ in their last bit, and so may factors."""
    if backends.current().name != "cpp":
        pytest.skip("the compiled backend is not there")
    from fedbuff.backends import reference

    for dtype, clip, numbers in CASES:
        delta = np.array(numbers, dtype)
        with monkeypatch.context() as patch:
            got = clipped(delta, clip)
            patch.setattr(backends, "current", lambda: reference)
            np.testing.assert_array_max_ulp(clipped(delta, clip), got, maxulp=3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_clipping_hides_no_number_that_is_not_finite(runner: str, bad: float) -> None:
    with pytest.warns(RuntimeWarning, match="not finite"):
        clipped(np.array([1.0, bad], np.float32), 0.5)
