"""plan, verify and rate: what they compute, what they refuse, and that the numbers depend on nothing else."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._base.student_t import student
from fedbuff._base.threads import map_in_threads
from fedbuff._theory.verify import _interval

theory = fb.theory
RNG = np.random.default_rng(0)
CENTERS = RNG.normal(size=(5, 3))
QUADRATIC = fb.Quadratic(CENTERS, 0.1, noise_variance=1.0)
LOCAL = fb.LocalSGD(steps=2, lr=1.0, batch_size=4)


def arrivals(steps: int, tau: int = 1) -> fb.Schedule:
    return fb.uniform_arrivals(5, 2, tau, steps, seed=0)


# plan


def test_plan_puts_the_formulas_together() -> None:
    schedule = arrivals(2000)
    w0 = np.ones(3)
    made = theory.plan(QUADRATIC, schedule, LOCAL, w0=w0)
    known = QUADRATIC.constants()
    f_gap = QUADRATIC.loss(w0) - known.f_star.value
    assert (made.L, made.n, made.K, made.Q, made.b, made.tau, made.T) == (0.1, 5, 2, 2, 4, schedule.tau, 2000)
    assert (made.eta, made.beta) == theory.step_sizes(0.1, 2000, 2, 2)
    assert made.min_server_steps == theory.min_server_steps(0.1, 2, 1) == 1152 and made.outside == ()
    assert made.f_gap == f_gap
    assert made.bound == theory.bound(0.1, 2000, 2, 1, 5, f_gap, 1.0, known.gamma2.value, 4)
    assert made.conditions == theory.conditions(0.1, 2000, 2, 1)
    assert (made.local.lr, made.local.batch_size, made.strategy) == (made.eta, 4, fb.FedBuff(2))
    uniform = theory.plan(QUADRATIC, schedule, LOCAL, w0=w0, heterogeneity="uniform")
    assert uniform.bound == theory.bound(0.1, 2000, 2, 1, 5, f_gap, 1.0, known.gamma2_max.value, 4, "uniform")


def test_plan_takes_the_smallest_batch() -> None:
    mixed = fb.LocalSGD(steps=1, lr=1.0, batch_size=[8, 3, 9, 4, 5])
    assert theory.plan(QUADRATIC, arrivals(2000), mixed).b == 3
    exact = theory.plan(QUADRATIC, arrivals(2000), fb.LocalSGD(steps=1, lr=1.0))
    assert exact.b == math.inf
    assert exact.bound.noise == pytest.approx(16 * math.sqrt(0.1 / 2000) * QUADRATIC.constants().gamma2.value)


def outside_cases() -> list[Any]:
    delays = fb.DelayModel(5, compute=fb.Exponential(1.0))
    weighed = fb.Quadratic(CENTERS, 0.1, client_weights=[1.0, 1.0, 1.0, 1.0, 2.0])
    apart = fb.Quadratic(CENTERS, [0.1, 0.1, 0.1, 0.1, 0.05], per_client=True)
    momentum = fb.LocalSGD(steps=2, lr=1.0, batch_size=4, momentum=0.5)
    log = arrivals(2000).arrival_log()
    return [
        pytest.param(QUADRATIC, arrivals(1151), LOCAL, "T is 1151, and the theorem demands at least 1152", id="T"),
        pytest.param(
            QUADRATIC, fb.schedule(delays, fb.FedBuff(2), server_steps=3000), LOCAL, "not known to be independent",
            id="delays",
        ),
        pytest.param(QUADRATIC, fb.schedule(log, fb.FedBuff(2)), LOCAL, "not known to be independent", id="log"),
        pytest.param(weighed, arrivals(2000), LOCAL, "the clients do not weigh the same in f", id="weights"),
        pytest.param(QUADRATIC, arrivals(2000), momentum, "local has momentum", id="momentum"),
        pytest.param(apart, arrivals(2000), LOCAL, "gamma\\^2 is infinite", id="infinite"),
    ]  # fmt: skip


@pytest.mark.parametrize(("problem", "schedule", "local", "reason"), outside_cases())
def test_outside_needs_a_flag(problem: Any, schedule: Any, local: Any, reason: str) -> None:
    with pytest.raises(theory.OutsideTheorem, match=reason):
        theory.plan(problem, schedule, local)
    made = theory.plan(problem, schedule, local, allow_outside=True)
    assert any(re.search(reason, one) for one in made.outside) and made.bound.outside == made.outside


def test_a_saved_schedule_is_still_known(tmp_path: Any) -> None:
    arrivals(2000).save(tmp_path / "s.npz")
    assert theory.plan(QUADRATIC, fb.load_schedule(tmp_path / "s.npz"), LOCAL).outside == ()


def test_plan_refuses_what_is_not_its_own() -> None:
    with pytest.raises(ValueError, match="schedule: expected the problem's 5 clients, got 3"):
        theory.plan(QUADRATIC, fb.uniform_arrivals(3, 2, 1, 2000), LOCAL)
    function = fb.Callback(lambda client, task, w, generator: 0.1 * w, w0=np.ones(2), n_clients=5)
    with pytest.raises(TypeError, match="problem: expected a built-in problem"):
        theory.plan(function, arrivals(2000), LOCAL)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="schedule: expected a Schedule"):
        theory.plan(QUADRATIC, [arrivals(2000)], LOCAL)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="its L is 0"):
        theory.plan(fb.Quadratic(CENTERS, 0.0), arrivals(2000), LOCAL)


# verify


def test_verify_measures_the_theorems_mean() -> None:
    found = theory.verify(QUADRATIC, Q=2, K=2, tau=1, b=4, seeds=[3, 5], w0=np.ones(3))
    made = found.plan
    assert (made.T, made.tau, made.K, made.outside) == (1152, 1, 2, ())
    for seed, value in zip([3, 5], found.per_seed, strict=True):
        schedule = fb.uniform_arrivals(5, 2, 1, 1152, seed)
        run = fb.replay(
            QUADRATIC, schedule, made.local, w0=np.ones(3), seed=seed, eval_every=1, metrics=["grad_norm_sq"]
        )
        assert value == pytest.approx(run.history["grad_norm_sq"][:-1].mean(), rel=1e-12)  # w^0 in, w^T out
    assert found.measured == pytest.approx(np.mean(found.per_seed))
    assert found.low < found.measured < found.high < found.bound.total
    assert not found.violated and found.looseness == found.bound.total / found.measured


def test_the_numbers_do_not_depend_on_threads() -> None:
    one = theory.verify(QUADRATIC, K=3, tau=2, seeds=5, threads=1)
    assert one.per_seed == theory.verify(QUADRATIC, K=3, tau=2, seeds=5, threads=3).per_seed
    assert len(set(one.per_seed)) == 5


def test_other_problems_at_evenly_spaced_steps() -> None:
    X = RNG.normal(size=(40, 3))
    problem = fb.Logistic(X, X[:, 0] > 0, np.repeat(np.arange(4), 10), l2=0.01, nonconvex=0.05)
    found = theory.verify(problem, K=2, tau=2, b=2, T=20_000, seeds=2)
    for seed, value in enumerate(found.per_seed):
        schedule = fb.uniform_arrivals(4, 2, 2, 20_000, seed)
        replay = fb.Replay(problem, schedule, found.plan.local, seed=seed)
        replay.record_gradients()
        replay.run()
        some = replay.gradients[int(np.random.default_rng(seed).integers(10)) :: 10]
        assert value == some.mean() and len(some) == 2000
    assert not found.violated


def test_a_violation_is_a_lower_limit_above_the_bound() -> None:
    """Two clients, one ten times as fast: the model stays at the fast one's optimum."""
    problem = fb.Quadratic(np.array([[-1.0], [1.0]]), 0.02)
    trace = fb.Trace(client=[0, 1], compute=[1.0, 10.0])

    def schedule(seed: int) -> fb.Schedule:
        return fb.schedule(trace, fb.FedBuff(1), server_steps=40_000, seed=seed)

    with pytest.raises(theory.OutsideTheorem, match="not known to be independent"):
        theory.verify(problem, b=None, schedule=schedule)
    found = theory.verify(problem, b=None, schedule=schedule, seeds=2, allow_outside=True)
    floor = (0.02 * 9 / 11) ** 2  # the optimum under shares 10/11 and 1/11, seen from the middle
    assert found.violated and found.measured == pytest.approx(floor, rel=0.1)
    corrected = fb.FedBuff(1, weights="inverse_frequency")
    mended = theory.verify(problem, b=None, schedule=schedule, strategy=corrected, seeds=2, allow_outside=True)
    assert not mended.violated and mended.measured < 0.02 * found.measured
    assert len(mended.plan.outside) == 2 and "rule" in mended.plan.outside[1]


def test_a_diverged_run_counts_as_infinite() -> None:
    found = theory.verify(QUADRATIC, K=1, tau=0, strategy=fb.FedBuff(1, server_lr=1e6), seeds=2, allow_outside=True)
    assert found.measured == math.inf and found.violated


def test_infinite_constants_and_estimates() -> None:
    apart = fb.Quadratic(CENTERS, [0.1, 0.1, 0.1, 0.1, 0.05], per_client=True)
    with pytest.raises(ValueError, match=r"its gamma\^2 is infinite"):
        theory.verify(apart, K=2, tau=1, allow_outside=True)
    X = RNG.normal(size=(20, 2))
    squares = fb.LeastSquares(np.tile(X[:4] / 4, (5, 1)), X[:, 0], np.repeat(np.arange(5), 4))
    with pytest.raises(ValueError, match=r"its sigma\^2 is infinite"):
        theory.verify(squares, K=2, tau=1)
    assert not theory.verify(squares, K=2, tau=1, b=None).violated  # alike Gram matrices, exact local gradients
    net = fb.MLP(X.astype(np.float32), X[:, 0] > 0, np.repeat(np.arange(5), 4), hidden=(2,))
    with pytest.raises(ValueError, match=r"its L, sigma\^2, gamma\^2 is only an estimate"):
        theory.verify(net, K=1, tau=0)
    found = theory.verify(net, K=1, tau=0, T=50, seeds=2, allow_estimates=True, allow_outside=True)
    assert found.measured > 0 and found.plan.constants.L.tag == theory.Tag.ESTIMATE


def test_refusals() -> None:
    with pytest.raises(TypeError, match="K, tau: expected both, or a schedule"):
        theory.verify(QUADRATIC, K=2)
    with pytest.raises(TypeError, match="K, tau, T: they are the schedule's"):
        theory.verify(QUADRATIC, K=2, schedule=lambda seed: arrivals(2000))
    with pytest.raises(ValueError, match="seeds: expected an int >= 2"):
        theory.verify(QUADRATIC, K=2, tau=1, seeds=1)
    with pytest.raises(ValueError, match="seeds: expected at least two"):
        theory.verify(QUADRATIC, K=2, tau=1, seeds=[1])
    with pytest.raises(theory.OutsideTheorem, match="T is 100"):
        theory.verify(QUADRATIC, K=2, tau=1, T=100)
    with pytest.raises(ValueError, match="schedule: expected schedules of as many server steps each"):
        theory.verify(QUADRATIC, schedule=lambda seed: arrivals(2000 + seed))


def test_students_t() -> None:
    # the tables' values for 99 %, two-sided
    for freedom, expected in {1: 63.657, 2: 9.925, 3: 5.841, 7: 3.499, 8: 3.355, 30: 2.750}.items():
        assert student(0.99, freedom) == pytest.approx(expected, abs=6e-4)
    mean, low, high = _interval(np.array([1.0, 2.0, 3.0]))
    assert (mean, low, high) == pytest.approx((2.0, 0.0, 2.0 + 9.925 / math.sqrt(3)), abs=1e-3)


# rate


def test_rate() -> None:
    problem = fb.Quadratic(np.zeros((4, 8)), 0.1, noise_variance=1.0)
    found = theory.rate(problem, "T", [2000, 8000, 32_000], K=2, tau=1, seeds=4)
    assert found.slope == pytest.approx(-0.5, abs=0.05) and found.slope_error < 0.05
    assert [one.plan.eta for one in found.found] == [theory.step_sizes(0.1, T, 1, 2).eta for T in (2000, 8000, 32_000)]
    smaller = theory.rate(problem, "b", [1, 4, 16], K=2, tau=1, seeds=4)
    assert smaller.slope == pytest.approx(-1.0, abs=0.05)
    assert {one.plan.T for one in smaller.found} == {theory.min_server_steps(0.1, 1, 1)}
    wider = theory.rate(problem, "tau", [0, 2], K=2, seeds=2)
    assert {one.plan.T for one in wider.found} == {theory.min_server_steps(0.1, 1, 2)}
    expected = math.log(wider.measured[1] / wider.measured[0]) / math.log(3)
    assert wider.slope == pytest.approx(expected) and (wider.bounds > wider.measured).all()

    def scaled(gamma: float) -> fb.Problem:
        return fb.Quadratic(math.sqrt(gamma) * CENTERS, 0.1)

    apart = theory.rate(scaled, "heterogeneity", [1.0, 10.0, 100.0], K=2, tau=1, b=None, seeds=2)
    assert apart.slope == pytest.approx(1.0, abs=1e-6)  # w0 = 0 scales with the centers


def test_rate_refusals() -> None:
    for over, message in (("speed", "over: expected one of"), ("T", "values: expected at least two")):
        with pytest.raises(ValueError, match=message):
            theory.rate(QUADRATIC, over, [1000], K=2, tau=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="K: it is swept"):
        theory.rate(QUADRATIC, "K", [1, 2], K=2, tau=1)
    with pytest.raises(TypeError, match="T: it is swept"):
        theory.rate(QUADRATIC, "T", [2000, 4000], T=2, K=2, tau=1)
    with pytest.raises(TypeError, match="expected a function of the value, got"):
        theory.rate(QUADRATIC, "n", [1, 2], K=2, tau=1)
    with pytest.raises(TypeError, match="expected a Problem, got"):
        theory.rate(lambda value: QUADRATIC, "K", [1, 2], tau=1)
    with pytest.raises(ValueError, match="values: expected two that differ"):
        theory.rate(QUADRATIC, "K", [2, 2], tau=0, seeds=2)


def test_the_pool_stops_at_an_error() -> None:
    began = []

    def work(item: int) -> int:
        began.append(item)
        if item == 1:
            raise ValueError(f"item {item}")
        return item

    for threads in (1, 2):
        began.clear()
        with pytest.raises(ValueError, match="item 1"):
            map_in_threads(work, range(1000), threads)
        assert len(began) < 1000
    assert map_in_threads(work, [5, 4, 3], 2) == [5, 4, 3]
