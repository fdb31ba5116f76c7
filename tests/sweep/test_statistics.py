"""Intervals against theory, pairs on common random numbers, censored times; and what is left out is said."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._base.student_t import student
from fedbuff._sweep import statistics
from fedbuff._sweep.statistics import (
    carried_forward,
    interval,
    pair,
    survival_median,
)

scipy_stats = pytest.importorskip("scipy.stats")

BASE: dict[str, Any] = {
    "problem": {"kind": "quadratic", "centers": [[float(i), float(i % 3)] for i in range(10)], "noise_variance": 4.0},
    "trace": {"kind": "model", "n_clients": 10, "compute": {"kind": "exponential", "scale": 1.0}},
    "strategy": {"kind": "fedbuff", "buffer_size": 4},
    "local": {"steps": 2, "lr": 0.02, "batch_size": 1},
    "schedule": {"server_steps": 40, "concurrency": 6},
    "replay": {"eval_every": 5},
}


@pytest.fixture(scope="module")
def results() -> fb.SweepResults:
    return fb.sweep(BASE, {"local.lr": [0.02, 0.022], "strategy.buffer_size": [2, 4]}, seeds=range(12), progress=False)


class Runs:
    """Results with rows of our own."""

    def __init__(self, arms: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
        self.arms, self._rows = arms, rows
        self.columns = ["run", "arm", "seed", "status", "error", "exit_reason", "loss"]

    def column(self, name: str) -> Any:
        return np.array([row[name] for row in self._rows])

    def history(self, row: int) -> Any:
        return self._rows[row]["history"]


def run(arm: int, seed: int, losses: list[float], **other: Any) -> dict[str, Any]:
    steps = np.arange(len(losses)) * 10
    history = {"step": steps, "time": steps * 0.5, "updates": steps * 4, "loss": np.array(losses)}
    row = {"arm": arm, "seed": seed, "status": "done", "exit_reason": "schedule_end", "loss": losses[-1]}
    return row | {"history": history} | other


# --- numbers


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95, 0.99, 0.9999])
@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 30, 99, 399, 400, 1001, 10**6])
def test_quantiles_of_students_t(level: float, freedom: int) -> None:
    assert student(level, freedom) == pytest.approx(scipy_stats.t.ppf(0.5 + level / 2, freedom), rel=1e-9)


@pytest.mark.parametrize(("n", "level", "method"), [(2, 0.9, "student"), (6, 0.95, "student"), (60, 0.9, "bootstrap")])
def test_an_interval_covers_as_often_as_it_says(n: int, level: float, method: Any) -> None:
    trials = 4000
    values = 3.0 + 2.0 * np.random.default_rng(7).standard_normal((n, trials))
    _, low, high = interval(values, level, method)
    covered = np.count_nonzero((low <= 3.0) & (high >= 3.0))
    # The bootstrap is short of a factor sqrt((n - 1) / n) and of Student's t beside the normal.
    error = 4 * math.sqrt(level * (1 - level) / trials) + (0.02 if method == "bootstrap" else 0.0)
    assert covered / trials == pytest.approx(level, abs=error)


def test_an_interval_of_one_value_or_none_has_no_limits() -> None:
    mean, low, high = interval([2.0])
    assert mean == 2.0 and np.isnan(low) and np.isnan(high)
    assert all(np.isnan(interval([])))


def test_the_bootstrap_is_the_same_twice() -> None:
    values = np.random.default_rng(1).exponential(size=(9, 4))
    first, second = interval(values, 0.9, "bootstrap"), interval(values, 0.9, "bootstrap")
    np.testing.assert_array_equal(first, second)
    assert np.all(first[1] < first[0]) and np.all(first[0] < first[2])


@pytest.mark.parametrize("level", [0.0, 1.0, 95])
def test_a_level_is_a_share(level: float) -> None:
    with pytest.raises(ValueError, match="level: expected a share"):
        interval([1.0, 2.0], level)


def test_values_are_carried_forward_and_not_beyond_the_end() -> None:
    found = carried_forward([5.0, 10.0], [1.0, 2.0], [0.0, 5.0, 7.0, 10.0, 10.5])
    np.testing.assert_array_equal(found, [np.nan, 1.0, 1.0, 2.0, np.nan])
    assert np.isnan(carried_forward([], [], [1.0])).all()


def test_pairs_are_made_by_seed() -> None:
    a = {3: 10.0, 1: 2.0, 2: 5.0, 9: 0.0}
    b = {1: 1.0, 2: 3.0, 3: 7.0, 8: 100.0}
    seeds, mean, low, high, ratio = pair(a, b)
    assert seeds == [1, 2, 3] and mean == pytest.approx(2.0)
    expected = scipy_stats.ttest_rel([2.0, 5.0, 10.0], [1.0, 3.0, 7.0]).confidence_interval(0.95)
    assert (low, high) == pytest.approx(tuple(expected))
    assert ratio == pytest.approx((np.var([2, 5, 10], ddof=1) + np.var([1, 3, 7], ddof=1)) / 1.0)


def test_a_median_with_runs_that_never_got_there() -> None:
    assert survival_median([4.0, 1.0, 3.0, 2.0], [True] * 4) == 2.0
    # One left at 1.5, before it could be seen: of the two that remain each counts a half.
    assert survival_median([1.0, 1.5, 2.0, 3.0], [True, False, True, True]) == 2.0
    assert survival_median([1.0, 5.0, 5.0], [True, False, False]) == math.inf
    assert survival_median([1.0, math.inf], [True, False]) == 1.0


# --- a sweep


def test_a_table_has_the_mean_of_every_arm(results: fb.SweepResults) -> None:
    made = results.table("loss", level=0.9)
    assert [(row["local.lr"], row["strategy.buffer_size"], row["n"]) for row in made.rows] == [
        (0.02, 2, 12), (0.02, 4, 12), (0.022, 2, 12), (0.022, 4, 12)
    ]  # fmt: skip
    values = results.column("loss")[results.column("arm") == 2]
    expected = scipy_stats.t.interval(0.9, 11, values.mean(), scipy_stats.sem(values))
    assert (made.rows[2]["low"], made.rows[2]["high"]) == pytest.approx(expected)
    assert made.notes == [] and str(made).splitlines()[0].split()[-3:] == ["mean", "low", "high"]


def test_a_table_as_a_data_frame(results: fb.SweepResults) -> None:
    pytest.importorskip("pandas")
    assert list(results.table().to_pandas()["n"]) == [12] * 4


def test_common_random_numbers_make_differences_surer(results: fb.SweepResults) -> None:
    """Nearly the same step sizes on the same delays, batches and noise: what is left is nearly the difference."""
    made = results.paired({"local.lr": 0.02, "strategy.buffer_size": 4}, {"local.lr": 0.022, "strategy.buffer_size": 4})
    assert made.n == 12 and made.variance_ratio > 20
    loss, arm = results.column("loss"), results.column("arm")
    differences = loss[arm == 1] - loss[arm == 3]
    assert made.difference == pytest.approx(differences.mean())
    width = made.high - made.low
    apart = math.sqrt(loss[arm == 1].var(ddof=1) + loss[arm == 3].var(ddof=1)) / math.sqrt(12)
    assert width < 2 * student(0.95, 11) * apart / 4
    assert "times smaller than unpaired" in str(made)


def test_unpaired_seeds_gain_nothing() -> None:
    """The same statistic on arms with other seeds: the ratio is about 1."""
    generator = np.random.default_rng(3)
    a, b = (dict(enumerate(generator.standard_normal(3000))) for _ in range(2))
    assert pair(a, b)[-1] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("axis", ["step", "time", "updates"])
def test_bands_reach_as_far_as_all_runs(results: fb.SweepResults, axis: Any) -> None:
    made = results.band("loss", axis)
    assert [band.arm for band in made] == [0, 1, 2, 3]
    for band in made:
        rows = np.flatnonzero(results.column("arm") == band.arm)
        histories = [results.history(int(row)) for row in rows]
        assert band.x[-1] == pytest.approx(min(history[axis][-1] for history in histories))
        middle = len(band.x) // 2
        newest = [history["loss"][history[axis] <= band.x[middle]][-1] for history in histories]
        assert band.mean[middle] == pytest.approx(np.mean(newest))
        assert np.all(band.low <= band.mean) and np.all(band.mean <= band.high)


def test_a_band_where_it_is_asked_for(results: fb.SweepResults) -> None:
    band = results.band("loss", "step", at=[0, 7, 41])[0]
    rows = np.flatnonzero(results.column("arm") == 0)
    assert band.mean[1] == pytest.approx(np.mean([results.history(int(row))["loss"][1] for row in rows]))
    assert np.isnan(band.mean[2])  # every run ended at step 40


def test_times_to_a_target(results: fb.SweepResults) -> None:
    loss = results.column("loss")
    made = results.time_to("loss", float(loss.max()))
    assert [row["reached"] for row in made.rows] == [12] * 4 and made.notes == []
    rows = np.flatnonzero(results.column("arm") == 1)
    times = [_first(results.history(int(row)), float(loss.max())) for row in rows]
    assert made.rows[1]["mean"] == pytest.approx(np.mean(times))
    steps = results.time_to("loss", float(loss.max()), axis="step")
    assert steps.rows[1]["median"] % 5 == 0


def _first(history: Any, target: float) -> float:
    return float(history["time"][np.argmax(history["loss"] <= target)])


# --- what is missing


def test_runs_that_never_reached_the_target_are_counted() -> None:
    runs: Any = Runs(
        [{"a": 1}, {"a": 2}],
        [run(0, 0, [9, 1]), run(0, 1, [9, 9, 9]), run(0, 2, [9, 5, 1]), run(1, 0, [9, 8]), run(1, 1, [9, 9])],
    )
    made = statistics.time_to(runs, "loss", 2.0, "step", 0.95, "student")
    first, second = made.rows
    assert (first["n"], first["reached"], first["median"]) == (3, 2, 20.0) and math.isnan(first["mean"])
    assert (second["reached"], second["median"]) == (0, math.inf)
    assert made.notes[0] == "a=1: 1 of 3 runs did not reach it by server step 20; there is no mean"


def test_a_diverged_run_never_reaches_the_target() -> None:
    runs: Any = Runs([{}], [run(0, 0, [9, 9], exit_reason="diverged"), run(0, 1, [9, 9, 9, 1]), run(0, 2, [9, 1])])
    (row,) = statistics.time_to(runs, "loss", 2.0, "step", 0.95, "student").rows
    assert row["median"] == 30.0  # not 10: the diverged one did not leave the two others
    table = statistics.table(runs, "loss", 0.95, "student")
    assert table.rows[0]["n"] == 2 and table.notes == ["base: 1 of 3 runs diverged and are left out"]


def test_a_seed_that_one_arm_lacks_is_said() -> None:
    runs: Any = Runs(
        [{"a": 1}, {"a": 2}], [run(0, 0, [3]), run(0, 1, [4]), run(0, 2, [7]), run(1, 0, [1]), run(1, 1, [1])]
    )
    made = statistics.paired(runs, 0, 1, "loss", 0.95, "student")
    assert made.n == 2 and made.difference == 2.5
    assert made.notes == ["a=2: no runs of the seeds 2", "1 seeds are in one of the two only: 2"]


def test_failed_arms_are_left_out_and_said() -> None:
    found = fb.sweep(BASE, {"strategy.buffer_size": [4, -1]}, seeds=[0, 1], progress=False)
    made = found.table()
    assert [row["n"] for row in made.rows] == [2, 0] and "buffer_size=-1: 2 of 2 runs failed" in str(made)
    assert [band.arm for band in found.band()] == [0]
    assert found.time_to("loss", 0.0).rows[1]["n"] == 0
    with pytest.raises(ValueError, match="no seed in common"):
        found.paired(0, 1)


def test_one_seed_has_a_mean_and_no_interval() -> None:
    found = fb.sweep(BASE, seeds=[4], progress=False)
    (row,) = found.table().rows
    assert row["mean"] == found.column("loss")[0] and math.isnan(row["low"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.table("speed"), "metric: expected a column of numbers, .* got 'speed'"),
        (lambda r: r.table("error"), "metric: expected a column of numbers, .* got 'error'"),
        (lambda r: r.table(level=2), "level: expected a share"),
        (lambda r: r.band("accuracy"), "metric: expected one of step.* got 'accuracy'"),
        (lambda r: r.band(axis="seconds"), "axis: expected one of step, time, updates"),
        (lambda r: r.paired(0, 7), "b: there are 4 arms"),
        (lambda r: r.paired({"local.lr": 0.02}, 1), "a: 2 arms have"),
        (lambda r: r.time_to("loss", float("nan")), "target: expected a number"),
        (lambda r: r.table(method="normal"), "method: expected one of student, bootstrap"),
    ],
)
def test_refused(results: fb.SweepResults, call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(results)
