"""`sweep`: every run once, with the bits that it has alone; what it refuses; what fails alone."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweep_checks import equal, same_as_alone

import fedbuff as fb
from fedbuff import backends
from fedbuff._study import config as config_module
from fedbuff._study.tables import ConfigError, merged
from fedbuff._sweep.arms import Arms
from fedbuff._sweep.worker import Workshop
from fedbuff.backends.spec import PackedEnd

RECORDED = "client,task,compute\n" + "".join(f"{c},{t},{1 + (c * 5 + t * 3) % 7}\n" for c in range(5) for t in range(6))

# Changes of the small study that reach every part of the core's own way through a run.
PACKED: dict[str, dict[str, Any]] = {
    "as it is": {},
    "about a hundred evaluations": {"replay": {"eval_every": 1}, "schedule.server_steps": 250},
    "more rows than the core is fed at once": {"schedule.server_steps": 9000, "replay.eval_every": 3000},
    "an end between two evaluations": {"schedule.server_steps": 25},
    "all metrics": {"replay.metrics": ["accuracy", "grad_norm_sq", "loss"]},
    "no metrics": {"replay.metrics": []},
    "more test rows": {"problem.test": 0.5},
    "mlp": {"problem.kind": "mlp", "problem.hidden": [8]},
    "float64": {"problem.dtype": "float64"},
    "momentum": {"strategy.optimizer": {"kind": "sgd", "momentum": 0.9}},
    "adam": {"strategy.optimizer": {"kind": "adam"}, "strategy.server_lr": 0.01},
    "amsgrad": {
        "strategy.optimizer": {"kind": "amsgrad", "betas": [0.9, 0.99]},
        "strategy.server_lr": {"lr": 0.1, "decay": "step", "steps": 5, "warm_up": 3},
        "strategy.tau_c": 2,
    },
    "weights by the last step": {"strategy.weight_by": {"by": "last_step", "clip": 1.0}, "strategy.norm": "arrivals"},
    "ca2fl": {"strategy": {"kind": "ca2fl", "buffer_size": 3, "n_clients": 12, "table": "bfloat16"}},
    "base current": {"strategy.base": "current", "strategy.norm": "arrivals", "strategy.server_lr": 1.0},
    "weights by samples": {"strategy.weights": "samples", "strategy.norm": "weights"},
    "stale updates count less": {"strategy.staleness": {"kind": "polynomial", "exponent": 0.5}},
    "a long table of staleness": {
        "schedule.concurrency": 12,
        "schedule.server_steps": 400,
        "strategy.buffer_size": 1,
        "trace.compute": {"kind": "pareto", "shape": 1.05, "scale": 1.0},
        "strategy.staleness": "polynomial",
    },
    "late ones are dropped": {"strategy.max_staleness": 1},
    "a time trigger": {"strategy.max_wait": 0.3},
    "fedasync": {"strategy": {"kind": "fedasync"}},
    "fedavg": {
        "strategy": {"kind": "fedavg", "clients_per_round": 3, "over_selection": 0.5},
        "schedule": {"server_steps": 30},
    },
    "everyone at work": {"schedule": {"server_steps": 20}},
    "until a time": {"schedule": {"max_time": 6.0}},
    "open loop": {"schedule": {"server_steps": 20, "start_rate": 3.0}},
    "speeds drawn by the seed": {"trace.client_speed": {"kind": "log_normal", "mean": 0.0, "sigma": 1.0}},
    "a recorded trace": {"trace": {"kind": "recorded", "file": "delays.csv", "assign": True}},
    "a resampled trace": {"trace": {"kind": "recorded", "file": "delays.csv", "assign": True, "bootstrap": 9}},
    "full gradients": {"local": {"steps": 1, "lr": 0.1, "momentum": 0.5, "prox": 0.1}},
    "stop after steps": {"replay.stop": {"server_steps": 17}},
    "stop after all steps": {"replay.stop": {"server_steps": 30}},
    "stop at once": {"replay.stop": {"server_steps": 0}},
    "stop by time": {"replay.stop": {"time": 3.0}},
    "stop by updates": {"replay.stop": {"updates": 41}},
    "stop by loss": {"replay.stop": {"loss": 1.9}},
    "stop by loss at the start": {"replay.stop": {"loss": 100.0}},
    "stop by accuracy": {"replay.stop": {"accuracy": 0.3}},
    "stop by gradient": {"replay.stop": {"grad_norm_sq": 0.3}, "replay.metrics": ["loss", "grad_norm_sq"]},
    "diverges": {"local.lr": 3e38},
    "distances": {"replay.metrics": ["loss", "distance", "step_norm"]},
}
# ... and those that go one by one.
OTHERS: dict[str, dict[str, Any]] = {
    "uniform arrivals": {
        "trace": {"kind": "uniform", "n_clients": 12, "max_staleness": 3},
        "schedule": {"server_steps": 30},
    },
    "inverse frequency": {"strategy.weights": "inverse_frequency"},
    "a factory": {
        "problem": {"kind": "factory", "function": "factory.py:make"},
        "trace.n_clients": 3,
        "schedule.concurrency": 2,
    },
}
FACTORY = "import numpy as np, fedbuff as fb\n\ndef make():\n    return fb.Quadratic(np.eye(3))\n"


def study(tables: dict[str, Any], changes: dict[str, Any], folder: Path) -> fb.StudyConfig:
    (folder / "delays.csv").write_text(RECORDED)
    (folder / "factory.py").write_text(FACTORY)
    if "schedule" in changes:  # takes the place of the whole table
        tables = {**tables, "schedule": {}}
    return fb.StudyConfig(merged(tables, changes), folder, allow_code=True)


@pytest.mark.parametrize("name", [*PACKED, *OTHERS])
def test_a_run_has_the_bits_that_it_has_alone(name: str, base: dict[str, Any], tmp_path: Path) -> None:
    config = study(base, (PACKED | OTHERS)[name], tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = fb.sweep(config, {"local.lr": [config.local.lr, 0.03]} if config.local else None, seeds=[0, 3])
    assert len(results) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for row in range(len(results)):
            same_as_alone(results, row, config)


@pytest.mark.parametrize("packed", [True, False])
def test_recorded_delays_follow_the_seed(
    packed: bool, base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed or one by one, the rows are the same; so are they one seed at a time, as large traces are run."""
    tables = merged(base, {} if packed else {"strategy.weights": "inverse_frequency"})
    all_at_work = {"schedule": {"server_steps": 30}}  # nobody is drawn: times differ by the delays alone
    config = study(tables, PACKED["a resampled trace"] | all_at_work, tmp_path)
    results = fb.sweep(config, seeds=range(5))
    assert len(set(results.column("time").tolist())) > 1
    for row in range(5):
        same_as_alone(results, row, config)
    monkeypatch.setattr("fedbuff._sweep.worker._TRACE_BYTES", 1)
    equal(fb.sweep(config, seeds=range(5)), results)


@pytest.mark.parametrize("name", PACKED)
def test_the_core_runs_what_it_can(name: str, base: dict[str, Any], tmp_path: Path) -> None:
    if backends.current().name != "cpp":
        pytest.skip("only the compiled backend packs runs")
    workshop = Workshop(Arms(study(base, PACKED[name], tmp_path), {0: {}}))
    rows, others = workshop._run_packed([(0, 0), (0, 1)], 1, np.zeros(1, np.uint8))
    assert len(rows) == 2 and others == []


@pytest.mark.parametrize("kind", ["logistic", "least_squares", "quadratic"])
def test_other_problems(kind: str, base: dict[str, Any], quadratic: dict[str, Any], tmp_path: Path) -> None:
    rng = np.random.Generator(np.random.Philox(7))
    X = rng.standard_normal((60, 4))
    y = X @ np.ones(4) + 0.1 * rng.standard_normal(60)
    labels = y if kind == "least_squares" else (y > 0).astype(np.int64)
    np.savez(tmp_path / "rows.npz", X=X, y=labels, clients=rng.permutation(np.arange(60) % 12))
    tables = (
        quadratic if kind == "quadratic" else base | {"problem": {"kind": kind, "data": str(tmp_path / "rows.npz")}}
    )
    if kind == "quadratic":
        tables["problem"]["noise_variance"] = 0.5
    results = fb.sweep(tables, {"local.lr": [0.1, 0.2], "strategy.buffer_size": [1, 3]}, seeds="0:3")
    assert len(results) == 12
    for row in range(12):
        same_as_alone(results, row, fb.StudyConfig(tables))


def test_sparse_rows(base: dict[str, Any], tmp_path: Path) -> None:
    lines = [f"{1 if i % 3 else -1} {1 + i % 5}:{0.5 + i % 4} {7 + i % 2}:1.5\n" for i in range(48)]
    (tmp_path / "rows.svm").write_text("".join(lines))
    problem = {"kind": "logistic", "data": str(tmp_path / "rows.svm")}
    tables = base | {"problem": problem | {"partition": {"kind": "iid", "n_clients": 12}}}
    results = fb.sweep(tables, {"problem.l2": [0.0, 0.1]}, seeds=[0])
    for row in range(2):
        same_as_alone(results, row, fb.StudyConfig(tables))


def test_threads_and_order_do_not_show(base: dict[str, Any]) -> None:
    grid = {"strategy.buffer_size": [1, 2, 4], "local.lr": [0.05, 0.1]}
    one = fb.sweep(base, grid, seeds=range(5), threads=1)
    equal(one, fb.sweep(base, grid, seeds=range(5), threads=3))
    equal(one, fb.sweep(base, grid, seeds=[4, 2, 0, 1, 3], threads=2))


def test_ids_do_not_depend_on_the_rest_of_the_grid(quadratic: dict[str, Any]) -> None:
    large = fb.sweep(quadratic, {"local.lr": [0.1, 0.2], "strategy.buffer_size": [1, 2]}, seeds=[0, 1])
    small = fb.sweep(quadratic, configs=[{"strategy.buffer_size": 2, "local.lr": 0.2}], seeds=[1])
    assert small.column("run")[0] == large.column("run")[-1]
    base = fb.sweep(merged(quadratic, {"strategy.buffer_size": 2, "local.lr": 0.2}), seeds=[1])
    assert base.column("run")[0] == small.column("run")[0]


def test_arms_that_share_a_schedule_resolve_it_once(base: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    original = fb.StudyConfig.make_schedule

    def counted(self: fb.StudyConfig, seed: int | None = None) -> fb.Schedule:
        made.append(-1 if seed is None else seed)
        return original(self, seed)

    monkeypatch.setattr(fb.StudyConfig, "make_schedule", counted)
    base["strategy"]["weights"] = "inverse_frequency"  # runs go one by one
    grid = {"local.lr": [0.1, 0.2], "strategy.server_lr": [0.5, 1.0]}
    fb.sweep(base, grid, seeds=[0, 1], threads=1)
    assert made == [0, 1]


def test_data_is_read_once(base: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from fedbuff._study import config as _study_config

    made = []
    original = _study_config.read_rows
    monkeypatch.setattr(_study_config, "read_rows", lambda *given: made.append(1) or original(*given))
    results = fb.sweep(base, {"problem.l2": [0.0, 0.1, 0.2], "local.lr": [0.1, 0.2]}, seeds=[0], threads=2)
    assert len(results) == 6 and len(made) == 1
    made.clear()
    config = fb.StudyConfig(base)
    for lr in (0.1, 0.2):
        fb.sweep(config, {"local.lr": [lr]}, seeds=[0])
    assert config.problem.n_clients == 12 and len(made) == 1


# Results


def test_results(base: dict[str, Any]) -> None:
    results = fb.sweep(base, {"strategy.buffer_size": [2, 4]}, seeds=[5, 1])
    assert len(results) == 4 and results.column("arm").tolist() == [0, 0, 1, 1]
    assert results.column("seed").tolist() == [1, 5, 1, 5]
    assert results.column("strategy.buffer_size").tolist() == [2, 2, 4, 4]
    run = results.column("run")[2]
    assert results.history(2)["loss"].tolist() == results.history(run)["loss"].tolist()
    frame = results.to_pandas()
    assert frame["loss"].tolist() == [results.history(row)["loss"][-1] for row in range(4)]
    long = results.to_pandas(history=True)
    assert len(long) == 16 and long["run"].nunique() == 4 and long["step"].tolist() == [0, 10, 20, 30] * 4
    assert long["strategy.buffer_size"].tolist() == [2] * 8 + [4] * 8
    with pytest.raises(KeyError, match="'nothing': the results have run, arm"):
        results.column("nothing")
    with pytest.raises(KeyError, match="no run has this id"):
        results.history("abc")
    with pytest.raises(IndexError):
        results.history(4)


def test_columns_of_what_varied(quadratic: dict[str, Any]) -> None:
    grid = {
        "strategy.server_lr": [1, 0.5],
        "strategy.staleness": ["constant", {"kind": "polynomial", "exponent": 0.5}],
    }
    results = fb.sweep(quadratic, grid, seeds=[0])
    assert results.column("strategy.server_lr").tolist() == [1.0, 1.0, 0.5, 0.5]
    assert results.column("strategy.staleness").tolist()[:2] == ["constant", '{"exponent": 0.5, "kind": "polynomial"}']
    configs = [{"local.lr": 0.1}, {"strategy.buffer_size": 1}]
    results = fb.sweep(quadratic, configs=configs, seeds=[0])
    assert results.column("local.lr").tolist() == [0.1, 0.5]
    assert results.column("strategy.buffer_size").tolist() == [2, 1]
    assert results.arms == configs


def test_metrics_may_vary(quadratic: dict[str, Any]) -> None:
    results = fb.sweep(quadratic, {"replay.metrics": [["loss"], ["grad_norm_sq"]]}, seeds=[0])
    assert np.isnan(results.column("loss")).tolist() == [False, True]
    assert set(results.history(1)) >= {"grad_norm_sq", "grad_norm_sq_mean"} and "loss" not in results.history(1)
    long = results.histories()
    assert np.isnan(long["loss"]).tolist() == [False] * 3 + [True] * 3


def test_neither_grid_nor_configs_is_one_arm(quadratic: dict[str, Any]) -> None:
    results = fb.sweep(quadratic | {"seeds": [4, 5]})
    assert results.arms == [{}] and results.column("seed").tolist() == [4, 5]
    assert repr(results) == "<SweepResults: 2 runs of 1 arms, 2 seeds; all done>"


def test_the_table_of_a_configuration(quadratic: dict[str, Any], tmp_path: Path) -> None:
    quadratic["sweep"] = {"grid": {"local.lr": [0.1, 0.2]}, "seeds": "0:2"}
    results = fb.sweep(quadratic)
    assert len(results) == 4 and len(results.arms) == 2
    assert len(fb.sweep(quadratic, {"local.lr": [0.3]}, seeds=[0])) == 1


# What fails


def test_an_impossible_arm_fails_alone(base: dict[str, Any]) -> None:
    grid = {"strategy.buffer_size": [2, 0], "schedule.concurrency": [4, 1000]}
    results = fb.sweep(base, grid, seeds=[0, 1])
    assert results.column("status").tolist() == ["done"] * 2 + ["failed"] * 6
    assert repr(results).endswith("2 done, 6 failed>")
    errors = [row["error"] for row in results.failed]
    assert errors[0] == (
        "schedule.concurrency: expected an int up to the 12 clients, got 1000 (with strategy.buffer_size = 2, "
        "schedule.concurrency = 1000)"
    )
    assert errors[2].startswith("strategy.buffer_size: expected an int >= 1, got 0 (with strategy.buffer_size = 0,")
    assert [row["arm"] for row in results.failed] == [1, 1, 2, 2, 3, 3]
    assert results.failed[0]["schedule.concurrency"] == 1000
    assert np.isnan(results.column("loss")[2]) and results.history(2) == {}
    same_as_alone(results, 0, fb.StudyConfig(base))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"problem.data": "nowhere.npz"}, "problem.data: nowhere.npz does not exist"),
        ({"trace.n_clients": 3, "schedule.concurrency": 2}, "3 clients, the problem 12"),
        ({"replay.metrics": ["speed"]}, "replay.metrics"),
        ({"replay.stop": {"grad_norm_sq": 1.0}}, "stop looks at 'grad_norm_sq'"),
        ({"trace.compute": {"kind": "constant", "value": -1.0}}, "trace.compute: Constant"),
        ({"local.batch_size": [1, 2]}, "batch_size: expected 12 ints, one per client, got 2"),
        ({"strategy": {"kind": "fedavg", "clients_per_round": 3}, "schedule.concurrency": 3}, "its own rounds"),
    ],
)
def test_what_an_arm_may_have_wrong(changes: dict[str, Any], error: str, base: dict[str, Any]) -> None:
    results = fb.sweep(base, configs=[changes, {"local.lr": 0.2}], seeds=[0])
    assert results.column("status").tolist() == ["failed", "done"]
    assert error in results.failed[0]["error"] and f"(with {next(iter(changes))} = " in results.failed[0]["error"]


FEDAVG = {"kind": "fedavg", "clients_per_round": 3}


def test_an_arm_that_rules_out_a_key_of_the_base_is_found_before_anything_runs(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workshop, "run", lambda *arguments: pytest.fail("something ran"))
    with pytest.raises(ConfigError, match=r"^schedule\.concurrency: FedAvg starts its own rounds.*with strategy = "):
        fb.sweep(base, configs=[{"local.lr": 0.2}, {"strategy": FEDAVG}], seeds=[0], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_arm_without_a_schedule_is_found_before_anything_runs(
    base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[int, int]] = []
    run = Workshop.run
    monkeypatch.setattr(Workshop, "run", lambda self, pairs, *rest: (ran.extend(pairs), run(self, pairs, *rest))[1])
    results = fb.sweep(base, {"schedule.concurrency": [1000, 4]}, seeds=[0])
    assert ran == [(1, 0)] and results.column("status").tolist() == ["failed", "done"]
    assert results.failed[0]["error"].startswith("schedule.concurrency: expected an int up to the 12 clients, got 1000")


@pytest.mark.parametrize("removed", [None, "unset"])
def test_an_arm_removes_a_key(removed: Any, base: dict[str, Any], tmp_path: Path) -> None:
    configs: list[dict[str, Any]] = [{}, {"strategy": FEDAVG, "schedule.concurrency": removed}, {"replay": removed}]
    results = fb.sweep(base, configs=configs, seeds=[0, 1], out=tmp_path / "out")
    assert results.column("status").tolist() == ["done"] * 6
    np.testing.assert_array_equal(results.column("schedule.concurrency"), [4.0] * 2 + [np.nan] * 2 + [4.0] * 2)
    for row in range(6):
        same_as_alone(results, row, fb.StudyConfig(base))
    equal(fb.load_sweep(tmp_path / "out"), results)
    equal(fb.sweep(base, configs=configs, seeds=[0, 1], out=tmp_path / "out"), results)
    assert results.column("server_steps").tolist() == [30] * 6


def test_a_grid_with_and_without_a_key(quadratic: dict[str, Any]) -> None:
    """A key that is not there may be removed: the arm is the base."""
    results = fb.sweep(quadratic, {"schedule.concurrency": [2, None]}, seeds=[0])
    assert results.column("status").tolist() == ["done"] * 2
    assert results.column("run")[1] == fb.sweep(quadratic, seeds=[0]).column("run")[0]
    with pytest.raises(ConfigError, match=r"^schedule\.concurency: unknown key; did you mean concurrency"):
        fb.sweep(quadratic, {"schedule.concurency": [None]}, seeds=[0])


def ends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on, what each packed run came to."""
    seen: list[int] = []
    packed_runs = Workshop._runs

    class Watched:
        def __init__(self, runs: Any) -> None:
            self._runs = runs

        def run(self, *args: Any) -> Any:
            found = self._runs.run(*args)
            seen.extend(run[0] for run in found)
            return found

    monkeypatch.setattr(Workshop, "_runs", lambda *args: Watched(packed_runs(*args)))
    return seen


@pytest.mark.skipif(backends.compiled() is None, reason="runs are packed by the compiled backend")
def test_a_packed_run_whose_schedule_stalls_fails_alone(
    quadratic: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No task is in time, so no server step is made; the other arm's runs are not touched by it."""
    plans_of = config_module.plans_of

    def impatient(*args: Any) -> Any:
        plans, rows = plans_of(*args)
        return [plan._replace(stall_limit=1000) for plan in plans], rows

    monkeypatch.setattr(config_module, "plans_of", impatient)
    seen = ends(monkeypatch)
    results = fb.sweep(quadratic, {"schedule.timeout": [1e-9, 50.0]}, seeds=[0, 1], threads=1)
    assert sorted(seen) == [PackedEnd.ENDED] * 2 + [PackedEnd.STALLED] * 2
    assert results.column("status").tolist() == ["failed"] * 2 + ["done"] * 2
    for row in results.failed:
        assert row["error"].startswith("schedule: no arrival has reached the buffer in 1000 events")
        assert row["error"].endswith("(with schedule.timeout = 1e-09)")
    for row in (2, 3):
        same_as_alone(results, row, fb.StudyConfig(quadratic))


@pytest.mark.skipif(backends.compiled() is None, reason="runs are packed by the compiled backend")
def test_a_packed_run_that_raises_fails_alone(quadratic: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """All weights of a buffer are zero, and the rule divides by their sum: the words are those of the run alone."""
    quadratic["strategy"]["norm"] = "scaled_weights"
    seen = ends(monkeypatch)
    rules = [{"kind": "threshold", "cutoff": 0}, {"kind": "constant"}]
    results = fb.sweep(quadratic, {"strategy.staleness": rules}, seeds=[0, 1], threads=1)
    assert sorted(seen) == [PackedEnd.ENDED] * 2 + [PackedEnd.FAILED] * 2
    assert results.column("status").tolist() == ["failed"] * 2 + ["done"] * 2
    for row in results.failed:
        config = fb.StudyConfig(merged(quadratic, {"strategy.staleness": rules[0]}))
        with pytest.raises(ConfigError, match="the weights of its arrivals sum to zero") as raised:
            config.run(row["seed"])
        assert row["error"].startswith(f"{raised.value} (with strategy.staleness = ")
    for row in (2, 3):
        same_as_alone(results, row, fb.StudyConfig(quadratic))


def test_a_run_that_diverges_is_done(base: dict[str, Any]) -> None:
    results = fb.sweep(base, {"local.lr": [0.1, 3e38]}, seeds=[0])
    assert results.column("status").tolist() == ["done", "done"]
    assert results.column("exit_reason").tolist() == ["schedule_end", "diverged"]


@pytest.mark.parametrize(
    ("arguments", "kind", "error"),
    [
        ({"grid": {"local.rate": [1]}}, ConfigError, "local.rate: unknown key; known: alpha, batch_size"),
        ({"grid": {"strategy.bufer_size": [1, 2]}}, ConfigError, "did you mean buffer_size"),
        ({"grid": {"seed": [1, 2]}}, ConfigError, "seed: unknown key; give seeds to the sweep"),
        ({"grid": {"name": ["a"]}}, ConfigError, "name: unknown key; a sweep varies problem, trace"),
        ({"grid": {"local.lr.x": [1]}}, ConfigError, "local.lr.x: local.lr is not a table"),
        ({"grid": {"local.lr": 0.1}}, ConfigError, "grid.local.lr: expected a list"),
        ({"grid": {"local.lr": []}}, ConfigError, "grid.local.lr: expected a list"),
        ({"grid": {"local.lr": [0.1, 0.1]}}, ConfigError, "grid: two arms are the same configuration"),
        ({"grid": [1]}, TypeError, "grid: expected lists by key path, got list"),
        ({"grid": {"local.lr": [1]}, "configs": [{}]}, TypeError, "grid: expected grid or configs, got both"),
        ({"configs": []}, TypeError, "configs: expected a list of changes"),
        ({"configs": {"local.lr": 1}}, TypeError, "configs: expected a list of changes"),
        ({"seeds": []}, ConfigError, "seeds: expected a list of ints"),
        ({"seeds": [1, 1]}, ConfigError, "seeds: a seed stands there twice"),
        ({"seeds": [-1]}, ConfigError, "seeds: expected an int >= 0, got -1"),
        ({"seeds": "5:2"}, ConfigError, "seeds: expected ints, or first:end"),
        ({"threads": 0}, ValueError, "threads: expected an int >= 1, got 0"),
        ({"executor": 3}, TypeError, "executor: expected a concurrent.futures.Executor or a distributed.Client"),
    ],
)
def test_bad_requests(arguments: dict[str, Any], kind: type[Exception], error: str, base: dict[str, Any]) -> None:
    with pytest.raises(kind, match=error):
        fb.sweep(base, **arguments)


def test_a_key_of_one_kind_only_is_no_error_of_the_grid(quadratic: dict[str, Any]) -> None:
    configs = [{"strategy.buffer_size": 3}, {"strategy": {"kind": "fedasync"}, "strategy.buffer_size": 3}]
    results = fb.sweep(quadratic, configs=configs, seeds=[0])
    assert results.column("status").tolist() == ["done", "failed"]


# Ctrl-C

INTERRUPTED = """
import os, signal, sys, fedbuff as fb
from fedbuff._sweep import store as _sweep_store

base, out = {base!r}, sys.argv[1]
add = _sweep_store.FolderStore.add

def interrupt_after_some(self, rows):
    rows = list(rows)
    add(self, rows)
    interrupt_after_some.seen += len(rows)
    if interrupt_after_some.seen >= 5:
        os.kill(os.getpid(), signal.SIGINT)

interrupt_after_some.seen = 0
_sweep_store.FolderStore.add = interrupt_after_some
try:
    fb.sweep(base, {{"local.lr": [0.1, 0.2]}}, seeds="0:2000", out=out, threads=2)
except KeyboardInterrupt as interrupt:
    print(type(interrupt).__name__, len(interrupt.results), len(fb.load_sweep(out)))
"""


def test_ctrl_c_keeps_what_was_done(quadratic: dict[str, Any], tmp_path: Path) -> None:
    quadratic["schedule"]["server_steps"] = 2000
    code = INTERRUPTED.format(base=quadratic)
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out")], capture_output=True, text=True, timeout=300, check=False
    )
    name, returned, kept = ran.stdout.split()
    assert name == "SweepInterrupted" and int(returned) == int(kept), ran.stderr
    assert 5 <= int(kept) < 4000


def test_a_kind_that_lacks_a_key_of_the_base_fails_alone(quadratic: Any) -> None:
    results = fb.sweep(quadratic, {"strategy.kind": ["fedbuff", "fedasync"]}, progress=False)
    assert results.column("status").tolist() == ["done", "failed"]
    assert "strategy.buffer_size" in results.failed[0]["error"]


def test_the_same_sweep_again_knows_the_keys_of_what_is_done(quadratic: Any, tmp_path: Path) -> None:
    base = merged(quadratic, {"strategy": {"kind": "fedasync", "mixing": 0.5}})
    configs = [
        {"strategy": {"kind": "fedbuff", "buffer_size": 1}},
        {"strategy.buffer_size": 2},
        {"strategy": {"kind": "fedbuff"}, "strategy.buffer_size": 3},
    ]
    for _ in range(2):
        results = fb.sweep(base, configs=configs, out=tmp_path / "out", progress=False)
        assert results.column("status").tolist() == ["done", "failed", "done"]


def test_what_is_no_list_of_seeds_or_no_name_is_said(quadratic: Any) -> None:
    with pytest.raises(TypeError, match='seeds: expected a list, or a range as "0:3", got an int'):
        fb.sweep(quadratic, seeds=3, progress=False)  # type: ignore[arg-type]
    results = fb.sweep(quadratic, configs=[{}, {"strategy.preset": []}], progress=False)
    assert "strategy.preset: expected a name, got list" in results.failed[0]["error"]


def test_histories_name_a_whole_table_that_varied(quadratic: Any) -> None:
    configs = [{"local": {"steps": 1, "lr": 0.5}}, {"local": {"steps": 2, "lr": 0.1}}]
    assert "local" in fb.sweep(quadratic, configs=configs, progress=False).histories()
