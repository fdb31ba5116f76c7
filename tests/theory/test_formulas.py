"""The theorem's formulas at values worked out by hand, their refusals, and how they move with each argument."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbuff as fb

theory = fb.theory
deterministic = settings(max_examples=150, deadline=None, derandomize=True)


# By hand


def test_step_sizes() -> None:
    assert theory.step_sizes(L=1.0, T=10_000, Q=1, K=1) == (0.01, 1.0)
    assert theory.step_sizes(L=4.0, T=2500, Q=2, K=10) == (1 / 200, 0.1)
    eta, beta = theory.step_sizes(0.25, 400, 5, 8)
    assert (eta, beta) == (0.02, 0.125)


@pytest.mark.parametrize(
    ("L", "Q", "tau", "steps"),
    [
        (1.0, 1, 0, 1280),
        (1.0, 1, 5, 276_480),
        (0.02, 1, 10, 34_074),  # 160 * 0.02 * 8 * 1331 = 34073.6
        (2, 3, 2, 86_400),
        (0.1, 1, 0, 128),  # a tenth, though the binary number is a little more
        (0.0001, 1, 0, 1),
        (1e-12, 1, 0, 1),
        (3.0, 13, 9, 9_600_000),
    ],
)
def test_min_server_steps(L: float, Q: int, tau: int, steps: int) -> None:
    found = theory.min_server_steps(L, Q, tau)
    assert type(found) is int and found == steps


def test_bound() -> None:
    # sqrt(L / T) = 1/100; sigma2 / b + gamma2 = 2; sigma2 / b + 5 gamma2 = 6
    found = theory.bound(L=1.0, T=10_000, Q=1, tau=0, n=5, f_gap=1.0, sigma2=2.0, gamma2=1.0, b=2)
    assert found.initial == pytest.approx(0.08, rel=1e-15)
    assert found.noise == pytest.approx(0.32, rel=1e-15)
    assert found.delay == pytest.approx(320 * 2 * 6 / 10_000, rel=1e-15)
    assert found.total == pytest.approx(0.784, rel=1e-15) and found.outside == ()
    # sqrt(L / T) = 1/400; Q + 1 = 4; tau^2 + 1 = 5
    arguments: dict[str, Any] = {"L": 4.0, "T": 640_000, "Q": 3, "tau": 2, "n": 10, "f_gap": 3.0, "b": 4}
    average = theory.bound(**arguments, sigma2=8.0, gamma2=0.5)
    uniform = theory.bound(**arguments, sigma2=8.0, gamma2=0.5, heterogeneity="uniform")
    assert (average.initial, average.noise) == pytest.approx((0.06, 0.1), rel=1e-15)
    assert average.delay == pytest.approx(320 * 4 * 4 * 5 * 7 / 640_000, rel=1e-15)
    assert uniform.delay == pytest.approx(320 * 4 * 4 * 5 * 2.5 / 640_000, rel=1e-15)
    assert (uniform.initial, uniform.noise) == (average.initial, average.noise)
    assert theory.bound(**{**arguments, "b": math.inf}, sigma2=8.0, gamma2=0.0).noise == 0.0


def test_stationary_gradient() -> None:
    law = theory.stationary_gradient
    # eta L = 1/2; gamma2 + sigma2 / b = 3; (1/2) 3 / (2 (3/2))
    assert law(L=1.0, eta=0.5, K=2, gamma2=1.0, sigma2=4.0, b=2) == pytest.approx(0.5, rel=1e-15)
    assert law(L=4.0, eta=0.25, K=1, gamma2=3.0, sigma2=9.0, b=math.inf) == pytest.approx(3.0, rel=1e-15)
    for name, bad in {"L": 0.0, "eta": -1.0, "K": 0, "gamma2": -1.0, "sigma2": math.nan, "b": 0}.items():
        good: dict[str, Any] = {"L": 1.0, "eta": 0.5, "K": 2, "gamma2": 1.0, "sigma2": 4.0, "b": 2}
        with pytest.raises(ValueError, match=f"^{name}: "):
            law(**good | {name: bad})
    with pytest.raises(ValueError, match=r"^eta: expected a number < 2 / L = 0.5, got 0.5"):
        law(L=4.0, eta=0.5, K=1, gamma2=1.0, sigma2=0.0, b=1)


def test_server_steps_for() -> None:
    arguments: dict[str, Any] = {"L": 1.0, "Q": 1, "tau": 0, "n": 5, "f_gap": 1.0, "sigma2": 2.0, "gamma2": 1.0, "b": 2}
    assert theory.server_steps_for(0.784, **arguments) == 10_000
    assert theory.server_steps_for(1e9, **arguments) == theory.min_server_steps(1.0, 1, 0) == 1280
    # 40 / sqrt(T) + 3840 / T = 0.01: sqrt(T) = (40 + sqrt(1600 + 153.6)) / 0.02
    assert theory.server_steps_for(0.01, **arguments) == math.ceil(((40 + math.sqrt(1753.6)) / 0.02) ** 2)
    assert type(theory.server_steps_for(0.01, **arguments)) is int


def test_conditions() -> None:
    # phi = 8 * 0.0001 * 4 * 5 * 2 = 0.032; 1 + 4 eta kappa L = 1.08
    found = theory.conditions(L=2.0, T=None, Q=2, tau=3, eta=0.01)
    assert list(found) == ["local_steps", "descent", "staleness", "old_steps"]
    values = {name: (c.value, c.limit) for name, c in found.items()}
    assert values["local_steps"] == pytest.approx((0.01, 1 / 24))
    assert values["descent"] == pytest.approx((0.16, 0.25))
    assert values["staleness"] == pytest.approx((4 * 10 * 1.08 * 0.032, 0.25))
    assert values["old_steps"] == pytest.approx((4 * 3 * 16 * 1.08 * 0.032, 0.25))
    assert [c.holds for c in found.values()] == [True, True, False, False]
    # kappa = 3: phi = 8 * 0.0001 * 4 * 5 * 10 = 0.16; 1 + 4 eta kappa L = 1.24
    wide = theory.conditions(L=2.0, T=None, Q=2, tau=3, kappa=3.0, eta=0.01)
    assert wide["descent"].value == pytest.approx(0.48)
    assert wide["staleness"].value == pytest.approx(4 * 10 * 1.24 * 0.16)
    by_steps = theory.conditions(2.0, 5000, 2, 3)
    assert by_steps["local_steps"].value == theory.step_sizes(2.0, 5000, 2, 1).eta == 1 / 200


def test_table_1() -> None:
    table = theory.TABLE_1
    assert [row.algorithm for row in table] == ["FedAvg"] * 3 + ["FedAsync"] + ["FedBuff"] * 2
    assert [row.asynchronous for row in table] == [False] * 3 + [True] * 3
    assert [row.buffered for row in table] == [True] * 3 + [False] + [True] * 2
    assert [row.unbounded_gradient for row in table] == [None, False, True, False, False, True]
    assert [row.rate for row in table] == [(), *[((-0.5, 0),)] * 2, *[((-0.5, 0), (-1, 2))] * 3]


# Refusals


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_numbers(bad: float) -> None:
    good: dict[str, Any] = {"L": 1.0, "T": 10_000, "Q": 1, "tau": 0, "n": 5, "f_gap": 1.0, "sigma2": 1.0, "gamma2": 1.0}
    good["b"] = 1
    for name in ("L", "f_gap", "sigma2", "gamma2", "b"):
        if (bad == 0 and name in ("f_gap", "sigma2", "gamma2")) or (bad == math.inf and name == "b"):
            continue
        with pytest.raises(ValueError, match=f"^{name}: expected a number"):
            theory.bound(**{**good, name: bad})
    with pytest.raises(ValueError, match=r"^epsilon: expected a number"):
        theory.server_steps_for(bad, **{name: good[name] for name in good if name != "T"})
    with pytest.raises(ValueError, match=r"^kappa: expected a number"):
        theory.conditions(1.0, 10, 1, 0, kappa=bad)
    with pytest.raises(ValueError, match=r"^L: expected a number"):
        theory.min_server_steps(bad, 1, 1)


def test_bad_counts() -> None:
    for name in ("T", "Q", "n", "tau"):
        good: dict[str, Any] = {"L": 1.0, "T": 10_000, "Q": 1, "tau": 0, "n": 5}
        good |= {"f_gap": 1.0, "sigma2": 1.0, "gamma2": 1.0, "b": 1}
        with pytest.raises(ValueError, match=f"^{name}: expected an int"):
            theory.bound(**{**good, name: -1})
        with pytest.raises(TypeError, match=f"^{name}: expected an int"):
            theory.bound(**{**good, name: 1.5})
    with pytest.raises(ValueError, match=r"^K: expected an int >= 1"):
        theory.step_sizes(1.0, 10, 1, 0)
    with pytest.raises(ValueError, match=r"^heterogeneity: expected one of average, uniform"):
        theory.bound(1.0, 10_000, 1, 0, 5, 1.0, 1.0, 1.0, 1, "largest")  # type: ignore[arg-type]
    for arguments in ({"T": None}, {"T": 10, "eta": 0.1}):
        with pytest.raises(ValueError, match=r"^T, eta: expected exactly one"):
            theory.conditions(L=1.0, Q=1, tau=0, **arguments)  # type: ignore[arg-type]


def test_too_few_steps_need_a_flag() -> None:
    arguments = (1.0, 1279, 1, 0, 5, 1.0, 1.0, 1.0, 1)
    with pytest.raises(theory.OutsideTheorem, match="T is 1279, and the theorem demands at least 1280"):
        theory.bound(*arguments)
    assert theory.bound(*arguments, allow_outside=True).outside == ("T is 1279, and the theorem demands at least 1280",)


# For all arguments

positive = st.floats(1e-6, 1e6)
small = st.integers(1, 50)


@st.composite
def settings_of_the_theorem(draw: st.DrawFn) -> dict[str, Any]:
    made: dict[str, Any] = {
        "L": draw(st.floats(1e-4, 1e3)), "Q": draw(small), "tau": draw(st.integers(0, 30)), "n": draw(small),
        "f_gap": draw(positive), "sigma2": draw(positive), "gamma2": draw(positive), "b": draw(small),
        "heterogeneity": draw(st.sampled_from(["average", "uniform"])),
    }  # fmt: skip
    made["T"] = theory.min_server_steps(made["L"], made["Q"], made["tau"]) + draw(st.integers(0, 10**6))
    return made


@deterministic
@given(settings_of_the_theorem(), st.sampled_from(["L", "Q", "tau", "n", "f_gap", "sigma2", "gamma2", "b", "T"]))
def test_monotone(arguments: dict[str, Any], name: str) -> None:
    """More of anything makes the bound larger, but for batch and server steps; n only where it is there."""
    more = {**arguments, name: arguments[name] * 2 + (name == "tau")}
    before = theory.bound(**arguments).total
    after = theory.bound(**more, allow_outside=True).total
    if name in ("b", "T"):
        assert after < before
    elif name == "n" and arguments["heterogeneity"] == "uniform":
        assert after == before
    else:
        assert after > before


@deterministic
@given(settings_of_the_theorem(), st.sampled_from(["L", "Q", "tau"]))
def test_demanded_steps_and_conditions(arguments: dict[str, Any], name: str) -> None:
    L, T, Q, tau = (arguments[key] for key in ("L", "T", "Q", "tau"))
    least = theory.min_server_steps(L, Q, tau)
    exact = 160 * Fraction(repr(L)) * (Q + 7) * (tau + 1) ** 3
    assert least >= exact and (least == 1 or least - 1 < exact)
    more = {"L": L, "Q": Q, "tau": tau} | {name: arguments[name] * 2 + 1}
    assert theory.min_server_steps(**more) > least or exact < 1
    # the proof's claim: from there on all conditions hold
    assert all(condition.holds for condition in theory.conditions(L, T, Q, tau).values())
    for kappa in (1.0, 2.0):
        few = theory.conditions(L, T, Q, tau, kappa)
        assert all(few[key].value >= theory.conditions(L, 4 * T, Q, tau, kappa)[key].value for key in few)


@deterministic
@given(settings_of_the_theorem(), st.floats(1e-3, 1e3))
def test_server_steps_for_is_the_smallest(arguments: dict[str, Any], epsilon: float) -> None:
    del arguments["T"]
    T = theory.server_steps_for(epsilon, **arguments)
    least = theory.min_server_steps(arguments["L"], arguments["Q"], arguments["tau"])
    assert least == T or theory.bound(T=T - 1, **arguments).total > epsilon
    assert least <= T and theory.bound(T=T, **arguments).total <= epsilon * (1 + 1e-12)
    assert theory.server_steps_for(epsilon / 2, **arguments) >= T
