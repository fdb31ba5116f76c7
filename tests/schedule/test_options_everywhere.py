"""Every option of a schedule through all that takes schedules: one list of options, and the same for each."""

from __future__ import annotations

import importlib
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import FedBuff, Status, backends
from fedbuff._cli import main

N = 6
P = [0.3, 0.2, 0.2, 0.1, 0.1, 0.1]
# name: fields of the strategy, and arguments of `schedule`, as a table of a configuration has them
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "refill step": ({"refill": "step"}, {}),
    "refill 2": ({"refill": 2}, {}),
    "stop_stale": ({"stop_stale": 2}, {}),
    "restart": ({"restart": "step"}, {}),
    "period": ({"period": 0.7}, {}),
    "period with restart": ({"period": 0.9, "restart": "step"}, {}),
    "every_client": ({"trigger": "every_client", "per_client": 1.2}, {}),
    "ringleader": ({"trigger": "ringleader"}, {}),
    "round_robin": ({}, {"selection": "round_robin"}),
    "longest_idle": ({}, {"selection": "longest_idle"}),
    "probabilities": ({}, {"selection": P}),
    "max_uses": ({}, {"max_uses": 40}),
    "queues": ({}, {"queues": True}),
    "queues, stopped": ({"stop_stale": 3}, {"queues": True, "selection": P}),
    "server_time": ({}, {"server_time": 0.05}),
    "server_time, a law": ({}, {"server_time": {"kind": "log_normal", "mean": -3.0, "sigma": 1.0}}),
    "uplink": ({}, {"uplink": 1.5}),
    "uplink and server, stopped": ({"stop_stale": 2}, {"uplink": 1.0, "server_time": 0.1, "queues": True}),
}
COLUMNS = ("client", "task", "version", "step", "staleness", "start_time", "arrive_time", "status")


def arguments(name: str) -> tuple[FedBuff, dict[str, Any]]:
    strategy, options = OPTIONS[name]
    law = options.get("server_time")
    made = {**options, "server_time": fb.LogNormal(law["mean"], law["sigma"])} if isinstance(law, dict) else options
    return FedBuff(3, **strategy), {"concurrency": 4, "server_steps": 20, "seed": 5, **made}


def model(windows: bool = False) -> fb.DelayModel:
    away = fb.Availability(np.arange(N), np.zeros(N), np.full(N, 3.0), n_clients=N, period=4.0, policy="pause")
    return fb.DelayModel(
        n_clients=N,
        wait=fb.Exponential(0.02),
        download=fb.Constant(0.1),
        compute=fb.Exponential(1.0),
        upload=fb.Uniform(0.1, 0.5),
        availability=away if windows else None,
    )


def failing() -> fb.Trace:
    rng = np.random.default_rng(2)
    rows = 8 * N
    return fb.Trace(
        *(np.repeat(np.arange(N), 8), rng.exponential(1.0, rows)),
        upload=rng.uniform(0.1, 0.5, rows),
        ok=rng.random(rows) < 0.8,
    )


def command(*words: str) -> int:
    """Runs the command; its exit code."""
    with pytest.raises(SystemExit) as stopped:
        main(words)
    return int(str(stopped.value.code))


@pytest.fixture(params=list(OPTIONS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def made(name: str) -> fb.Schedule:
    strategy, options = arguments(name)
    return fb.schedule(model(), strategy, **options)


def test_checks_hashes_and_summaries(name: str, made: fb.Schedule) -> None:
    made.check()
    strategy, options = arguments(name)
    plain = fb.schedule(model(), FedBuff(3), 4, server_steps=20, seed=5)
    assert made.n_steps == 20 and (name == "max_uses" or made.sha256 != plain.sha256)
    assert made == fb.schedule(model(), strategy, **options)
    assert made == pickle.loads(pickle.dumps(made))
    summary = json.loads(json.dumps(made.summary()))
    assert summary["server_steps"] == 20 and 0 < summary["utilisation"] <= 1 + 1e-9
    assert ("stopped" in summary["status"]) == ("stop" in name or "restart" in name)
    for key, value in made.description["strategy"].items():
        if key in OPTIONS[name][0]:
            assert value == OPTIONS[name][0][key]
    assert made.description.keys() >= OPTIONS[name][1].keys()
    given = {**OPTIONS[name][0], **OPTIONS[name][1]}
    assert summary["options"].keys() == given.keys() and plain.summary()["options"] is None
    assert all(
        summary["options"][key] == value for key, value in given.items() if key not in ("selection", "server_time")
    )


def test_files_slices_and_streams(name: str, made: fb.Schedule, tmp_path: Path) -> None:
    for file in ("s.npz", "s.parquet"):
        made.save(tmp_path / file)
        again = fb.load_schedule(tmp_path / file)
        again.check()
        assert again == made and again.description == made.description
    strategy, options = arguments(name)
    chunks = list(fb.iter_schedule(model(), strategy, chunk=7, path=tmp_path / "c.parquet", **options))
    assert fb.load_schedule(tmp_path / "c.parquet") == made
    for column in COLUMNS:
        np.testing.assert_array_equal(
            np.concatenate([getattr(part, column) for part in chunks]), getattr(made, column), err_msg=column
        )
    made[5:15].check()
    assert made[:15][5:] == made[5:15]


def test_availability_and_failures(name: str) -> None:
    strategy, options = arguments(name)
    for source in (model(windows=True), failing()):
        met = fb.schedule(source, strategy, **options)
        met.check()
        assert met.n_steps == 20
        assert (Status.FAILED in met.status) == isinstance(source, fb.Trace)
    timed = fb.schedule(model(), strategy, **{**options, "timeout": 1.5})
    timed.check()
    assert Status.TIMED_OUT in timed.status or "restart" in name


def test_replays_and_logs(name: str, made: fb.Schedule) -> None:
    strategy, options = arguments(name)
    problem = fb.Quadratic(np.random.default_rng(0).standard_normal((N, 3)), 1.0, noise_variance=0.1)
    local = fb.LocalSGD(2, 0.1, batch_size=1)
    whole = fb.replay(problem, made, local, strategy=strategy, threads=1)
    chunks = fb.iter_schedule(model(), strategy, chunk=11, **options)
    streamed = fb.replay(problem, chunks, local, strategy=strategy, threads=2)
    np.testing.assert_array_equal(whole.w, streamed.w)
    log = made.arrival_log()
    fields = {key: value for key, value in OPTIONS[name][0].items() if key in ("period", "trigger", "per_client")}
    if "restart" not in name:  # the ticks of an empty buffer are not in a log
        again = fb.schedule(log, FedBuff(3, **fields), server_steps=20)
        np.testing.assert_array_equal(again.step_time, made.step_time)


def test_pictures(name: str, made: fb.Schedule, tmp_path: Path) -> None:
    made.to_chrome_trace(tmp_path / "tasks.json", model())
    events = json.loads((tmp_path / "tasks.json").read_text())["traceEvents"]
    parts = {event["name"] for event in events if event["ph"] == "X"}
    assert {"download", "compute", "upload"} <= parts or {"queues", "uplink"} <= made.description.keys()
    pytest.importorskip("matplotlib").use("Agg")
    for source in (None, model()):
        axes = fb.plots.schedule(made, source, local_steps=2)
        axes.figure.savefig(tmp_path / "s.svg")
    for draw in (fb.plots.staleness, fb.plots.in_flight, fb.plots.buffer_fill, fb.plots.contribution):
        draw(made)
    importlib.import_module("matplotlib.pyplot").close("all")


def test_configurations_sweeps_and_the_command(
    name: str, made: fb.Schedule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strategy, options = OPTIONS[name]
    tables: dict[str, Any] = {
        "seed": 5,
        "problem": {"kind": "quadratic", "centers": np.eye(N, 3).tolist()},
        "trace": {
            "kind": "model",
            "n_clients": N,
            "wait": {"kind": "exponential", "scale": 0.02},
            "download": 0.1,
            "compute": {"kind": "exponential", "scale": 1.0},
            "upload": {"kind": "uniform", "low": 0.1, "high": 0.5},
        },
        "strategy": {"kind": "fedbuff", "buffer_size": 3, **strategy},
        "local": {"steps": 1, "lr": 0.1},
        "schedule": {"concurrency": 4, "server_steps": 20, **options},
    }
    config = fb.StudyConfig(tables)
    assert config.make_schedule() == made
    swept = fb.sweep(config, {"local.lr": [0.05, 0.1]}, seeds=[5], threads=1, progress=False)
    assert len(swept) == 2 and set(swept.column("time")) == {made.end_time}
    (tmp_path / "run.json").write_text(json.dumps(tables))
    assert command("schedule", str(tmp_path / "run.json"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["arrivals"] == made.n_arrivals


def flags(name: str) -> list[str]:
    """The options of the command."""
    strategy, options = OPTIONS[name]
    words = []
    for key, value in {**strategy, **options}.items():
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        if isinstance(value, dict):
            text = f"{value['kind']}:{value['mean']},{value['sigma']}"
        words += [f"--{key.replace('_', '-')}", *([] if value is True else [text])]
    return words


def test_options_of_the_command(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = failing()
    trace.save(tmp_path / "delays.npz")
    strategy, options = arguments(name)
    file = str(tmp_path / "s.npz")
    words = ["-K", "3", "-C", "4", "--server-steps", "20", "--seed", "5", *flags(name)]
    assert command("schedule", str(tmp_path / "delays.npz"), *words, "-o", file) == 0
    assert fb.load_schedule(file) == fb.schedule(fb.read_trace(tmp_path / "delays.npz"), strategy, **options)
    capsys.readouterr()


def by(backend: str, monkeypatch: pytest.MonkeyPatch, name: str) -> fb.Schedule:
    module = importlib.import_module(f"fedbuff.backends.{backend}")
    with monkeypatch.context() as patch:
        patch.setattr(backends, "current", lambda: module)
        strategy, options = arguments(name)
        return fb.schedule(model(windows=True), strategy, **options)


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_backends_agree(backend: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "numba":
        pytest.importorskip("numba")
    assert by(backend, monkeypatch, name) == by("cpp", monkeypatch, name)
