"""A refusal of one argument names it: every public callable, each argument in turn, each bad value."""

from __future__ import annotations

import functools
import json
import pickle
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb

N = 4
EYE, ONES, CLIENTS = np.eye(N), np.ones(N), np.arange(N)


class Unfit:
    """An object that is no number, no array, no path."""


BAD: dict[str, Any] = {
    "an object": Unfit(),
    "text": "nonsense",
    "bytes": b"nonsense",
    "negative": -1,
    "a fraction": -0.5,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "beyond 64 bits": 10**30,
    "far beyond": 10**5000,
    "far below": -(10**30),
    "a list of texts": ["a", "b"],
    "a list of lists": [[1.0], [1.0, 2.0]],
    "an empty list": [],
    "a cube": np.zeros((2, 2, 2)),
    "complex": np.array([1j, 2j]),
    "a dictionary": {"a": 1},
    "a set": {1},
    "objects": np.array([None, Unfit()], object),
}


@functools.cache
def schedule() -> fb.Schedule:
    return fb.schedule(model(), fb.FedBuff(buffer_size=2), server_steps=5)


@functools.cache
def model() -> fb.DelayModel:
    return fb.DelayModel(n_clients=N, compute=fb.Exponential(1.0))


@functools.cache
def trace() -> fb.Trace:
    return fb.Trace([0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0])


@functools.cache
def problem() -> fb.Problem:
    return fb.LeastSquares(EYE, ONES, CLIENTS)


@functools.cache
def folder() -> Path:
    return Path(tempfile.mkdtemp())


@functools.cache
def rows_file() -> Path:
    (folder() / "rows.txt").write_text("1 1:2\n0 2:3\n")
    return folder() / "rows.txt"


@functools.cache
def trace_file() -> Path:
    trace().save(folder() / "t.csv")
    return folder() / "t.csv"


@functools.cache
def schedule_file() -> Path:
    schedule().save(folder() / "s.npz")
    return folder() / "s.npz"


def server() -> Any:
    made = fb.Server(np.zeros(2), fb.FedBuff(buffer_size=3))
    made.download()
    return made


def ticketed() -> Any:
    made = server()
    made.take_ticket()
    return made


@functools.cache
def swept() -> fb.SweepResults:
    return fb.sweep(TABLES, grid={"strategy.buffer_size": [1, 2]}, seeds=[0, 1], progress=False)


TABLES: dict[str, Any] = {
    "problem": {"kind": "quadratic", "centers": [[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]]},
    "trace": {"kind": "model", "n_clients": 3, "compute": {"kind": "exponential", "scale": 1.0}},
    "strategy": {"kind": "fedbuff", "buffer_size": 2},
    "local": {"steps": 1, "lr": 0.5},
    "schedule": {"server_steps": 3},
    "replay": {"metrics": ["loss"], "eval_every": 1},
}
LOCAL = fb.LocalSGD(steps=1, lr=0.1)
TIMING = {"server_steps": 3, "max_time": 4.0, "arrivals": 9, "seed": 1, "concurrency": 2, "timeout": 9.0}
ROWS = {"X": EYE, "y": ONES, "clients": CLIENTS}
LABELLED = {**ROWS, "y": np.array([0, 1, 0, 1])}
OPTIONS = {"l2": 0.1, "client_weights": "equal"}
SMALL = {"L": 1.0, "T": 1000, "Q": 1, "tau": 1, "n": 4, "f_gap": 1.0, "sigma2": 1.0, "gamma2": 1.0, "b": 1.0}

# What is called, and arguments that are right. Names in parentheses are not arguments that may be replaced.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "SGD": (fb.SGD, {"momentum": 0.5}),
    "Adam": (fb.Adam, {"betas": (0.9, 0.99), "epsilon": 1e-8, "weight_decay": 0.1}),
    "Nesterov": (fb.Nesterov, {"momentum": 0.5}),
    "DelayedNesterov": (fb.DelayedNesterov, {"period": 4, "momentum": 0.5, "activation": 0.2}),
    "Adam uncorrected": (fb.Adam, {"betas": (0.9, 0.99), "epsilon": 1e-8, "initial": 0.1, "bias_correction": False}),
    "Adagrad": (fb.Adagrad, {"beta": 0.5, "epsilon": 1e-3, "initial": 0.1}),
    "Yogi": (fb.Yogi, {"betas": (0.9, 0.99), "epsilon": 1e-3, "initial": 0.1}),
    "AMSGrad": (fb.AMSGrad, {"betas": (0.9, 0.99), "epsilon": 1e-3, "initial": 0.1}),
    "LearningRate": (
        fb.LearningRate, {"lr": 0.1, "decay": "step", "steps": 4, "factor": 0.5, "floor": 0.1, "warm_up": 2},
    ),
    "ClientTable": (
        fb.ClientTable, {"own": -0.5, "mean": 0.5, "mean_over": "seen", "wait": True, "rows": "bfloat16"},
    ),
    "DeltaWeight": (fb.DeltaWeight, {"by": "norm", "epsilon": 0.1, "clip": 1.0}),
    "Constant": (fb.Constant, {"value": 1.0}),
    "Uniform": (fb.Uniform, {"low": 0.0, "high": 1.0}),
    "Exponential": (fb.Exponential, {"scale": 1.0}),
    "HalfNormal": (fb.HalfNormal, {"scale": 1.0, "low": 0.5}),
    "TruncatedNormal": (fb.TruncatedNormal, {"loc": 1.0, "scale": 1.0, "low": 0.0, "high": 3.0}),
    "LogNormal": (fb.LogNormal, {"mean": 0.0, "sigma": 1.0}),
    "Pareto": (fb.Pareto, {"shape": 2.0, "scale": 1.0}),
    "Weibull": (fb.Weibull, {"shape": 2.0, "scale": 1.0}),
    "Empirical": (fb.Empirical, {"samples": [1.0, 2.0]}),
    "DelayModel": (
        fb.DelayModel,
        {
            "n_clients": 2, "wait": fb.Constant(0.0), "download": fb.Constant(0.0), "compute": fb.Constant(1.0),
            "upload": fb.Constant(1.0), "client_speed": np.ones(2), "n_samples": np.array([1, 2]),
            "availability": fb.Availability([0], [0.0], [1.0], n_clients=2),
        },
    ),
    "FedBuff": (
        fb.FedBuff,
        {
            "buffer_size": 2, "server_lr": 0.5, "staleness": fb.staleness.Constant(), "base": "start", "norm": "one",
            "weights": "equal", "weight_scale": 1.0, "optimizer": fb.SGD(), "max_staleness": 3, "max_wait": 1.0,
            "n_clients": 9, "distinct_clients": False, "tau_c": 3, "delay_lr": "min",
            "table": fb.ClientTable(), "weight_by": fb.DeltaWeight(),
        },
    ),
    "FedAsync": (fb.FedAsync, {"mixing": 0.5, "staleness": fb.staleness.Constant(), "max_staleness": 3}),
    "FedAvg": (fb.FedAvg, {"clients_per_round": 2, "over_selection": 0.1, "server_lr": 1.0,
        "weights": "samples", "optimizer": fb.SGD()}),
    "FedAvg rate": (fb.FedAvg, {"rate": 0.5}),
    "LocalSGD": (fb.LocalSGD, {"steps": 1, "lr": 0.1, "batch_size": 2, "momentum": 0.1, "weight_decay": 0.1,
        "prox": 0.1}),
    "Stop": (
        fb.Stop,
        {"server_steps": 3, "time": 1.0, "updates": 4, "loss": 0.1, "grad_norm_sq": 0.1, "accuracy": 0.5},
    ),
    "staleness.Polynomial": (fb.staleness.Polynomial, {"exponent": 0.5, "average": 1.0}),
    "staleness.Hinge": (fb.staleness.Hinge, {"slope": 1.0, "threshold": 2.0}),
    "staleness.Threshold": (fb.staleness.Threshold, {"cutoff": 1.0, "after": 0.5}),
    "staleness.DelayAdaptive": (fb.staleness.DelayAdaptive, {"limit": 2.0}),
    "LeastSquares": (fb.LeastSquares, {**ROWS, **OPTIONS, "intercept": True}),
    "Logistic": (fb.Logistic, {**LABELLED, **OPTIONS, "nonconvex": 0.1, "intercept": True}),
    "Softmax": (fb.Softmax, {**LABELLED, **OPTIONS, "intercept": True}),
    "MLP": (fb.MLP, {**LABELLED, **OPTIONS, "hidden": (3,), "activation": "relu"}),
    "Quadratic": (
        fb.Quadratic,
        {"centers": EYE, "curvature": 1.0, "noise_variance": 0.1, "client_weights": "equal"},
    ),
    "Callback": (
        fb.Callback,
        {"function": lambda *a: None, "w0": ONES, "n_clients": 2, "n_samples": np.array([1, 2]), "loss": sum,
            "grad": abs, "accuracy": sum},
    ),
    "Custom": (
        fb.Custom,
        {"gradient": 1 << 40, "dim": 2, "n_samples": np.array([1, 2]), "dtype": np.float32, "loss": sum,
            "accuracy": sum},
    ),
    "Trace": (
        fb.Trace,
        {
            "client": [0, 1], "compute": [1.0, 2.0], "task": [0, 0], "wait": [0.0, 0.0], "download": [0.0, 0.0],
            "upload": [0.0, 0.0], "ok": [True, True], "clients": 2, "end": "wrap",
            "availability": fb.Availability([0, 1], [0.0, 0.0], [1.0, 1.0], n_clients=2, period=2.0),
        },
    ),
    "Trace total": (fb.Trace, {"client": [0, 1], "total": [1.0, 2.0]}),
    "Trace.scale": (lambda **a: trace().scale(**a), {"compute": 2.0, "download": 1.0, "upload": 1.0}),
    "Trace.assign": (lambda **a: trace().assign(**a), {"n_clients": 3, "seed": 1}),
    "Trace.save": (lambda **a: trace().save(**a), {"path": "(good)"}),
    "ArrivalLog": (
        fb.ArrivalLog,
        {"client": [0, 1], "arrive_time": [1.0, 2.0], "version": [0, 0], "start_time": [0.0, 0.0], "clients": 2},
    ),
    "Availability": (
        fb.Availability,
        {"client": [0], "begin": [0.0], "end": [1.0], "n_clients": 2, "period": 5.0, "policy": "wait"},
    ),
    "Recorder": (fb.Recorder, {"clients": 3, "clock": lambda: 0.0}),
    "schedule": (fb.schedule, {"source": model(), "strategy": fb.FedBuff(2), **TIMING}),
    "schedule start_rate": (
        fb.schedule,
        {"source": model(), "strategy": fb.FedBuff(2), "server_steps": 3, "start_rate": 1.0,
            "start_process": "constant", "in_flight": "redraw"},
    ),
    "iter_schedule": (
        lambda **a: next(iter(fb.iter_schedule(**a))),
        {"source": model(), "strategy": fb.FedBuff(2), "chunk": 5, "path": "(good)", **TIMING},
    ),
    "uniform_arrivals": (
        fb.uniform_arrivals,
        {"n_clients": 3, "buffer_size": 2, "max_staleness": 2, "server_steps": 4, "seed": 1, "staleness": "max"},
    ),
    "replay": (
        fb.replay,
        {
            "problem": problem(), "schedule": schedule(), "local": LOCAL, "strategy": fb.FedBuff(2), "w0": ONES,
            "seed": 0, "eval_every": 2, "metrics": ("loss",), "test": None, "stop": fb.Stop(loss=0.0), "threads": 1,
            "checkpoint": "(good)", "checkpoint_every": 2, "callback": repr, "progress": False,
        },
    ),
    "Replay": (
        fb.Replay,
        {"problem": problem(), "schedule": schedule(), "local": LOCAL, "strategy": fb.FedBuff(2), "w0": ONES,
            "seed": 0, "threads": 1},
    ),
    "Replay.run": (
        lambda **a: fb.Replay(problem(), schedule(), LOCAL).run(**a),
        {"max_steps": 3},
    ),
    "run": (
        fb.run,
        {"problem": problem(), "trace": model(), "strategy": fb.FedBuff(2), "local": LOCAL, "server_steps": 3,
            "concurrency": 2, "max_time": 5.0, "arrivals": 9, "seed": 0},
    ),
    "problem.loss": (lambda **a: problem().loss(**a), {"w": ONES}),
    "problem.grad": (lambda **a: problem().grad(**a), {"w": ONES, "out": np.zeros(N)}),
    "problem.client_loss": (lambda **a: problem().client_loss(**a), {"client": 0, "w": ONES}),
    "problem.client_grad": (lambda **a: problem().client_grad(**a), {"client": 0, "w": ONES, "out": np.zeros(N)}),
    "problem.delta": (
        lambda **a: problem().delta(**a),
        {"w": ONES, "client": 0, "local": LOCAL, "task": 1, "seed": 1, "out": np.zeros(N)},
    ),
    "problem.init": (lambda **a: problem().init(**a), {"seed": 1}),
    "Server": (fb.Server, {"w0": ONES, "strategy": fb.FedBuff(2), "unit": 0.5}),
    "Server.upload": (lambda **a: server().upload(**a), {"delta": np.zeros(2), "version": 0, "n_samples": 2}),
    "Server.cancel": (lambda **a: server().cancel(**a), {"version": 0}),
    "Server.cancel_ticket": (lambda **a: ticketed().cancel_ticket(**a), {"ticket": 0}),
    "Server.save": (lambda **a: server().save(**a), {"path": "(good)"}),
    "DeltaBuffer": (fb.DeltaBuffer, {"dim": 2, "dtype": np.float64}),
    "DeltaBuffer.add": (lambda **a: fb.DeltaBuffer(2).add(**a), {"delta": np.zeros(2), "weight": 1.0}),
    "DeltaBuffer.step": (lambda **a: fb.DeltaBuffer(2).step(**a), {"w": np.zeros(2), "lr": 0.5, "out": np.zeros(2)}),
    "aggregate": (
        fb.aggregate,
        {"w": ONES, "deltas": [ONES], "weights": [1.0], "lr": 1.0, "out": np.zeros(N), "threads": 1},
    ),
    "partition.iid": (fb.partition.iid, {"n_rows": 9, "n_clients": 3, "seed": 1}),
    "partition.dirichlet": (
        fb.partition.dirichlet,
        {"labels": [0, 1, 0, 1, 0, 1], "n_clients": 2, "alpha": 0.5, "seed": 1, "min_rows": 1},
    ),
    "partition.shards": (
        fb.partition.shards,
        {"labels": [0, 1, 0, 1, 0, 1], "n_clients": 2, "shards_per_client": 2, "seed": 1},
    ),
    "partition.by_column": (fb.partition.by_column, {"values": [1, 2, 1]}),
    "load_schedule": (fb.load_schedule, {"path": schedule_file()}),
    "load_sweep": (fb.load_sweep, {"out": "(sweep)"}),
    "schedule.save": (lambda **a: schedule().save(**a), {"path": "(good)"}),
    "schedule.to_chrome_trace": (lambda **a: schedule().to_chrome_trace(**a), {"path": "(good)", "source": None}),
    "schedule.parts": (lambda **a: schedule().parts(**a), {"source": model()}),
    "read_trace": (
        fb.read_trace,
        {"path": trace_file(), "columns": {"compute": "compute"}, "unit": "s", "clients": 4, "end": "wrap",
            "availability": None},
    ),
    "read_svmlight": (
        fb.read_svmlight,
        {"path": rows_file(), "dtype": np.float32, "n_features": 3, "zero_based": False},
    ),
    "StudyConfig": (fb.StudyConfig, {"tables": TABLES, "folder": Path()}),
    "StudyConfig.read": (fb.StudyConfig.read, {"path": "(toml)", "settings": ()}),
    "sweep": (
        fb.sweep,
        {"base": TABLES, "grid": {"strategy.buffer_size": [1]}, "seeds": [0], "out": None, "threads": 1,
            "executor": None},
    ),
    "sweep configs": (fb.sweep, {"base": TABLES, "configs": [{}], "seeds": [0]}),
    "tune": (
        fb.tune,
        {"base": TABLES, "buffer_sizes": [1, 2], "concurrencies": [2], "target": {"loss": 0.1}, "seeds": [0,
            1], "eta": 2, "threads": 1},
    ),
    "SweepResults.table": (lambda **a: swept().table(**a), {"metric": "loss", "level": 0.9, "method": "student"}),
    "SweepResults.band": (
        lambda **a: swept().band(**a),
        {"metric": "loss", "axis": "time", "level": 0.9, "method": "student", "at": [1.0]},
    ),
    "SweepResults.paired": (
        lambda **a: swept().paired(**a),
        {"a": 0, "b": 1, "metric": "loss", "level": 0.9, "method": "student"},
    ),
    "SweepResults.time_to": (
        lambda **a: swept().time_to(**a),
        {"metric": "loss", "target": 0.5, "axis": "time", "level": 0.9, "method": "student"},
    ),
    "theory.bound": (fb.theory.bound, {**SMALL, "T": 20_000, "heterogeneity": "average"}),
    "theory.conditions": (fb.theory.conditions, {"L": 1.0, "T": 100, "Q": 1, "tau": 1, "kappa": 1.0}),
    "theory.min_server_steps": (fb.theory.min_server_steps, {"L": 1.0, "Q": 1, "tau": 1}),
    "theory.step_sizes": (fb.theory.step_sizes, {"L": 1.0, "T": 100, "Q": 1, "K": 2}),
    "theory.server_steps_for": (
        fb.theory.server_steps_for,
        {"epsilon": 0.1, **{k: v for k, v in SMALL.items() if k != "T"}, "heterogeneity": "average"},
    ),
    "theory.plan": (fb.theory.plan, {"problem": problem(), "schedule": schedule(), "local": LOCAL, "w0": ONES,
        "allow_outside": True}),
    "traces.fit": (fb.traces.fit, {"samples": [1.0, 2.0, 3.0], "families": ["exponential"]}),
    "traces.from_delay_matrix": (fb.traces.from_delay_matrix, {"source": np.ones((2, 2)), "unit": "s", "end": "wrap"}),
    "traces.from_gradient_ages": (
        fb.traces.from_gradient_ages,
        {"source": np.zeros((2, 2)), "seconds_per_iteration": 1.0},
    ),
    "traces.from_fedscale": (
        fb.traces.from_fedscale,
        {
            "capacity": {0: {"computation": 1.0, "communication": 1.0}}, "model_bytes": 1.0, "samples_per_task": 1.0,
            "availability": None, "upload_bytes": 1.0, "training_factor": 1.0, "policy": "wait",
        },
    ),
    "traces.from_flash": (
        fb.traces.from_flash,
        {
            "states": {"d": {"messages": "0\tscreen_lock\n9\twifi"}}, "compute": 1.0, "model_bytes": 1.0, "tasks": 2,
            "speeds": {"u": {"down_u": 1.0, "down_sigma": 0.0, "up_u": 1.0, "up_sigma": 0.0}}, "seed": 1,
            "policy": "pause",
        },
    ),
    "traces.load_pickle": (fb.traces.load_pickle, {"path": "(pickle)"}),
}  # fmt: skip
PATHS = {"path", "checkpoint", "out", "capacity", "availability", "states", "speeds", "base"}
# What these hold is refused by its own name or row, or is right in itself and does not fit the other arguments.
CONTENTS = {
    (argument, "a dictionary") for argument in ("tables", "base", "capacity", "availability", "states", "speeds")
} | {
    ("labels", "a list of texts"),
    ("labels", "objects"),
    ("labels", "complex"),
    ("L", "beyond 64 bits"),
    ("start_rate", "beyond 64 bits"),
}


def sweep_folder() -> Path:
    if not (folder() / "sweep").exists():
        fb.sweep(TABLES, seeds=[0], out=folder() / "sweep", progress=False)
    return folder() / "sweep"


def written(name: str, content: bytes) -> Path:
    (folder() / name).write_bytes(content)
    return folder() / name


FILES = {
    "(sweep)": sweep_folder,
    "(toml)": lambda: written("run.json", json.dumps(TABLES).encode()),
    "(pickle)": lambda: written("capacity", pickle.dumps({1: 2.0})),
}


def arguments(name: str) -> dict[str, Any]:
    given = dict(CALLS[name][1])
    for key, value in given.items():
        if isinstance(value, str) and value in FILES:
            given[key] = FILES[value]()
        if isinstance(value, str) and value == "(good)":
            kind = "parquet" if name == "iter_schedule" else "json" if "chrome" in name else "npz"
            given[key] = folder() / f"{re.sub(r'[^a-z]', '', name)}.{kind}"
    return given


def refusals(name: str) -> tuple[int, list[str]]:
    """How many bad values were refused, and those whose refusal does not name the argument."""
    call, wrong, n = CALLS[name][0], [], 0
    good = arguments(name)
    for argument in good:
        for what, value in BAD.items():
            if (argument in PATHS and isinstance(value, str)) or (argument, what) in CONTENTS:
                continue
            fresh = {key: part.copy() if isinstance(part, np.ndarray) else part for key, part in good.items()}
            if isinstance(good.get("checkpoint"), Path):
                good["checkpoint"].unlink(missing_ok=True)
            try:
                call(**{**fresh, argument: value})
            except (TypeError, ValueError, OSError) as error:
                n += 1
                if not re.search(rf"\b{argument}\b", str(error)):
                    wrong.append(f"{name}({argument}={what}): {type(error).__name__}: {str(error)[:150]}")
            except Exception as error:
                wrong.append(f"{name}({argument}={what}): {type(error).__name__}: {str(error)[:150]}")
    return n, wrong


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_a_refusal_names_its_argument(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, wrong = refusals(name)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", CALLS)
def test_the_arguments_that_are_right_are_taken(name: str) -> None:
    CALLS[name][0](**arguments(name))


@pytest.mark.parametrize("value", [10**30, 2**63])
def test_counts_beyond_64_bits(value: int) -> None:
    with pytest.raises(ValueError, match=r"^server_steps: expected an int below 2\*\*63, got "):
        fb.schedule(model(), fb.FedBuff(buffer_size=2), server_steps=value)
