"""The encoding: its error bound, its overflow bound, and sums that know no order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import fedbuff as fb
from fedbuff import backends
from fedbuff.backends.spec import EncodeNumbers
from fedbuff.secure import FixedPoint

Array = NDArray[Any]


def encode(encoding: FixedPoint, x: Array, task: int = 0, weight: int = 1, total: Array | None = None) -> Array:
    out = np.empty(x.size, encoding.word)
    rounding = (0, 0, task) if encoding.rounding == "stochastic" else None
    backends.current().encode_add(total, x, EncodeNumbers(weight, encoding.clip, encoding.step, 1.0, rounding), out)
    return out


def decode(encoding: FixedPoint, words: Array) -> Array:
    out = np.empty(words.size)
    backends.current().decode(words, encoding.step, out)
    return out


def random_encoding(rng: np.random.Generator) -> FixedPoint:
    modulus = int(rng.choice([32, 64]))
    return FixedPoint(
        clip=float(2.0 ** rng.uniform(-8, 8)),
        bits=int(rng.integers(2, 24 if modulus == 32 else 40)),
        modulus=modulus,  # type: ignore[arg-type]
        rounding="stochastic" if rng.random() < 0.5 else "nearest",
    )


def test_a_decoded_sum_is_the_sum_within_the_bound_and_in_any_order() -> None:
    """10^4 random buffers: encodings, sizes, weights and numbers, many of them on the edges of the range."""
    rng = np.random.default_rng(1)
    for buffer in range(10_000):
        encoding = random_encoding(rng)
        tasks = int(rng.integers(1, 9))
        weights = rng.integers(1, max(2, min(9, encoding.capacity // tasks + 1)), tasks)
        assert weights.sum() <= encoding.capacity
        x = rng.uniform(-1, 1, (tasks, 6)).astype(rng.choice(["float32", "float64"]))
        x[rng.random(x.shape) < 0.2] = 1.0
        x = (x * x.dtype.type(encoding.clip)).astype(x.dtype)
        total = np.zeros(6, encoding.word)
        for k in range(tasks):
            total = encode(encoding, x[k], k, int(weights[k]), total)
        # The same words in another order: the same bits.
        again = np.zeros(6, encoding.word)
        for k in rng.permutation(tasks):
            again = encode(encoding, x[k], int(k), int(weights[k]), again)
        np.testing.assert_array_equal(again, total)
        # The sum of what the tasks decode to: exactly.
        parts = np.array([decode(encoding, encode(encoding, x[k], k)) for k in range(tasks)])
        got = decode(encoding, total)
        assert got.tolist() == (weights @ parts).tolist()
        # The sum of the numbers: within the bound.
        want = weights @ x.astype(np.float64)
        slack = 1e-14 * (weights @ np.abs(x))
        assert (np.abs(got - want) <= encoding.error(float(weights.sum())) + slack).all(), buffer


@pytest.mark.parametrize("modulus", [32, 64])
@pytest.mark.parametrize("bits", [2, 20, 31])
@pytest.mark.parametrize("clip", [1.0, 0.3, 1.0000001])
def test_a_weight_of_the_capacity_holds_and_one_more_does_not(modulus: Any, bits: int, clip: float) -> None:
    encoding = FixedPoint(clip=clip, bits=bits, modulus=modulus)
    assert encoding.limit <= 2 ** (bits - 1)
    extreme = np.array([encoding.clip, -encoding.clip], np.float32)
    weight = encoding.capacity
    assert weight * encoding.limit <= 2 ** (modulus - 1) - 1 < (weight + 1) * encoding.limit
    signed = np.dtype(f"int{modulus}")
    total = encode(encoding, extreme, weight=weight)
    assert total.view(signed).tolist() == [weight * encoding.limit, -weight * encoding.limit]
    over = encode(encoding, extreme, weight=weight + 1).view(signed)
    assert over[0] < 0


def test_the_clip_is_a_float32_and_cuts_both_dtypes_alike() -> None:
    encoding = FixedPoint(clip=0.1, bits=31)
    assert encoding.clip <= 0.1 and encoding.clip == np.float32(encoding.clip)
    big = [5.0, -5.0, np.inf, -np.inf, np.nan]
    single, double = (encode(encoding, np.array(big, dtype)) for dtype in ("float32", "float64"))
    np.testing.assert_array_equal(single, double)
    assert single.view(np.int32).tolist() == [encoding.limit, -encoding.limit] * 2 + [-encoding.limit]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(x=st.floats(-1, 1, width=32), bits=st.integers(2, 31))
def test_nearest_is_half_a_step(x: float, bits: int) -> None:
    encoding = FixedPoint(bits=bits)
    got = decode(encoding, encode(encoding, np.array([x], np.float32)))[0]
    assert abs(got - x) <= encoding.step / 2


def test_stochastic_rounding_is_right_in_the_mean() -> None:
    encoding = FixedPoint(clip=1.0, bits=4, rounding="stochastic")
    x = np.repeat(np.linspace(-0.9, 0.9, 7), 20_000)
    got = decode(encoding, encode(encoding, x))
    assert set(np.unique(np.abs(got - x) < encoding.step)) == {True}
    mean = got.reshape(7, -1).mean(axis=1)
    deviation = encoding.step / 2 / math.sqrt(20_000)
    np.testing.assert_allclose(mean, x.reshape(7, -1)[:, 0], rtol=0, atol=4 * deviation)
    other = decode(encoding, encode(encoding, x, task=1))
    assert 0.1 < np.mean(other != got) < 0.9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bits": 32}, "bits: expected at most 31"),
        ({"bits": 52, "modulus": 64}, "bits: expected at most 51"),
        ({"bits": 1}, "bits: expected an int >= 2"),
        ({"clip": 0.0}, "clip: expected a number"),
        ({"clip": np.nan}, "clip: expected a number"),
        ({"modulus": 16}, "modulus: expected 32 or 64"),
        ({"rounding": "up"}, "rounding: expected one of nearest, stochastic"),
    ],
)
def test_bad_encodings_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FixedPoint(**options)


def test_a_buffer_that_may_overflow_is_refused() -> None:
    encoding = FixedPoint(bits=28)
    fb.FedBuff(15, secure=fb.secure.Simulate(encoding=encoding))
    with pytest.raises(
        ValueError, match=r"16 updates of weight up to 1 may overflow: .* hold a weight of 15 at 28 bits"
    ):
        fb.FedBuff(16, secure=fb.secure.Simulate(encoding=encoding))
    with pytest.raises(ValueError, match="15 updates of weight up to 2 may overflow"):
        fb.FedBuff(15, secure=fb.secure.Simulate(encoding=encoding, weight_unit=2))
