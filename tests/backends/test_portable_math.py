"""Our own log, exp, pow and sincos: close to the truth in ulp, and drawn delays follow their distributions."""

from __future__ import annotations

import numpy as np
import pytest

from fedbuff.backends.python import portable_math as pm
from fedbuff.backends.python.philox import multiply_high, philox, unit_double

ONES = 0xFFFFFFFF
long = np.longdouble
needs_long_double = pytest.mark.skipif(np.finfo(long).nmant < 63, reason="needs an extended long double as the truth")


def largest_ulp(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.max(np.abs((got.astype(long) - want) / np.spacing(np.abs(want.astype(np.float64))))))


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0, 0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ONES, ONES), (ONES, ONES, ONES, ONES), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0xA4093822, 0x299F31D0),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_known_answers(key: tuple[int, int], counter: tuple[int, ...], words: str) -> None:
    got = philox(key[1] << 32 | key[0], *counter)
    assert " ".join(f"{int(word):08x}" for word in got) == words
    assert all(word.dtype == np.uint32 and word.shape == () for word in got)


def test_philox_broadcasts() -> None:
    words = philox(5, np.arange(6).reshape(2, 3), 1, 2, 3)
    assert words[0].shape == (2, 3)
    assert words[3][1, 2] == philox(5, 5, 1, 2, 3)[3]


def test_multiply_high_is_exact() -> None:
    rng = np.random.default_rng(0)
    x, n = rng.integers(0, 2**64, (2, 1000), dtype=np.uint64)
    x[0] = n[0] = 2**64 - 1
    assert [int(v) for v in multiply_high(x, n)] == [int(a) * int(b) >> 64 for a, b in zip(x, n, strict=True)]


def test_unit_double_range() -> None:
    words = np.array([0, ONES], np.uint64)
    assert unit_double(words, words).tolist() == [0.0, 1.0 - 2.0**-53]


@needs_long_double
def test_log_within_an_ulp() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate(
        [rng.random(50_000), np.exp(rng.uniform(-700, 700, 50_000)), 1 + rng.uniform(-1e-3, 1e-3, 50_000)]
    )
    assert largest_ulp(pm.log(x), np.log(x.astype(long))) < 1.0


def test_log_special_values() -> None:
    got = pm.log(np.array([0.0, -1.0, np.inf, np.nan, 1.0, 5e-324]))
    np.testing.assert_array_equal(got[:5], [-np.inf, np.nan, np.inf, np.nan, 0.0])
    assert got[5] == pytest.approx(np.log(5e-324), rel=1e-15)


@needs_long_double
def test_exp_within_an_ulp() -> None:
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.uniform(-700, 700, 50_000), rng.uniform(-1, 1, 50_000)])
    assert largest_ulp(pm.exp(x), np.exp(x.astype(long))) < 1.0


def test_exp_special_values() -> None:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        got = pm.exp(np.array([-800.0, -745.0, 800.0, 0.0, np.nan, np.inf, -np.inf]))
    np.testing.assert_array_equal(got, [0.0, 5e-324, np.inf, 1.0, np.nan, np.inf, 0.0])


@needs_long_double
def test_pow_within_two_ulp() -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.random(50_000), np.exp(rng.uniform(-50, 50, 50_000))])
    y = np.concatenate([rng.uniform(-14, 14, 50_000), rng.uniform(-13, 13, 50_000)])
    assert largest_ulp(pm.pow(x, y), np.power(x.astype(long), y.astype(long))) < 2.0


@needs_long_double
def test_sincos_within_an_ulp() -> None:
    u = np.concatenate([np.random.default_rng(4).random(50_000), np.arange(64) / 64, [1e-300, 1 - 2.0**-53]])
    quarter = np.floor(u.astype(long) * 4 + long(0.5))
    rest = (u - quarter / 4) * long("6.283185307179586476925286766559005768394")
    turn = quarter.astype(int) % 4
    sine, cosine = pm.sincos2pi(u)
    want_sine = np.choose(turn, [np.sin(rest), np.cos(rest), -np.sin(rest), -np.cos(rest)])
    want_cosine = np.choose(turn, [np.cos(rest), -np.sin(rest), -np.cos(rest), np.sin(rest)])
    zero = want_sine == 0
    assert np.all(sine[zero] == 0)
    assert largest_ulp(sine[~zero], want_sine[~zero]) < 1.0
    zero = want_cosine == 0
    assert np.all(cosine[zero] == 0)
    assert largest_ulp(cosine[~zero], want_cosine[~zero]) < 1.0


SAMPLES = np.array([0.5, 1.0, 4.0])
MEANS = [
    ("constant", (2.0,), None, 2.0, 0.0),
    ("uniform", (1.0, 3.0), None, 2.0, 1 / np.sqrt(3)),
    ("exponential", (2.0,), None, 2.0, 2.0),
    ("half_normal", (2.0, 0.5), None, 0.5 + 2 * np.sqrt(2 / np.pi), 2 * np.sqrt(1 - 2 / np.pi)),
    ("truncated_normal", (1.0, 1.0, 0.0, 2.0), None, 1.0, 0.539560),
    ("log_normal", (0.25, 0.5), None, np.exp(0.375), np.exp(0.375) * np.sqrt(np.exp(0.25) - 1)),
    ("pareto", (5.0, 2.0), None, 2.5, 2.5 * np.sqrt(1 / 15)),
    ("weibull", (2.0, 3.0), None, 3 * np.sqrt(np.pi) / 2, 3 * np.sqrt(1 - np.pi / 4)),
    ("empirical", (), SAMPLES, SAMPLES.mean(), SAMPLES.std()),
]


@pytest.mark.parametrize(("kind", "params", "samples", "mean", "std"), MEANS, ids=[row[0] for row in MEANS])
def test_draws_have_the_mean_and_spread_of_their_distribution(
    kind: str, params: tuple[float, ...], samples: np.ndarray | None, mean: float, std: float
) -> None:
    n = 100_000
    got = pm.draw(kind, params, samples, 7, np.arange(n), 3, 2)
    assert got.dtype == np.float64
    assert got.min() >= 0
    assert abs(got.mean() - mean) <= 5 * std / np.sqrt(n)
    assert got.std() == pytest.approx(std, rel=0.03, abs=1e-12)
    one = pm.draw(kind, params, samples, 7, 41, 3, 2)
    assert one.shape == () and one == got[41]


def test_draws_depend_on_every_word() -> None:
    base = pm.draw("exponential", (1.0,), None, 1, 2, 3, 1)
    others = [(2, 2, 3, 1), (1, 3, 3, 1), (1, 2, 4, 1), (1, 2, 3, 2), (1 + 2**32, 2, 3, 1)]
    assert all(pm.draw("exponential", (1.0,), None, *other) != base for other in others)


def test_truncated_normal_far_out_gives_the_bound() -> None:
    assert pm.draw("truncated_normal", (0.0, 1.0, 30.0, 31.0), None, 0, 0, 0, 0) == 30.0
