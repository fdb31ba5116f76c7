"""A configuration that names code: it is run where that was asked for, and nowhere else."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedbuff as fb
from fedbuff._study.run_folder import load_run, run_study
from fedbuff._study.tables import ConfigError

FACTORY = """
from pathlib import Path
import numpy as np, fedbuff as fb
with open(Path(__file__).with_name("ran"), "a") as file:
    file.write("x")

def make():
    return fb.Quadratic(np.arange(6.0).reshape(3, 2))
"""
TABLES: dict[str, Any] = {
    "problem": {"kind": "factory", "function": "mine.py:make"},
    "trace": {"kind": "recorded", "file": "three.csv", "assign": True},
    "strategy": {"kind": "fedbuff", "buffer_size": 2},
    "local": {"steps": 1, "lr": 0.1},
    "schedule": {"server_steps": 4},
    "replay": {"metrics": ["loss", "grad_norm_sq"], "eval_every": 1},
    "sweep": {"grid": {"local.lr": [0.1, 0.2]}},
    "target": {"loss": 1.0},
    "compare": [{"name": "other", "strategy": {"buffer_size": 1}}],
}
REFUSED = r'problem\.kind: "factory" runs code .* --allow-code, or allow_code=True'


@pytest.fixture
def mine(folder: Path) -> Path:
    (folder / "mine.py").write_text(FACTORY)
    (folder / "three.csv").write_text("client,compute\na,1.0\nb,2.0\nc,1.5\na,1.2\n")
    (folder / "mine.json").write_text(json.dumps(TABLES))
    return folder


COMMANDS = {
    "replay": ("replay", "mine.json", "-o", "out"),
    "compare": ("compare", "mine.json", "-o", "out"),
    "compare by options": ("compare", "mine.json", "-o", "out", "-K", "1,2"),
    "sweep": ("sweep", "mine.json", "-o", "out"),
    "tune": ("tune", "mine.json", "-o", "out"),
    "schedule": ("schedule", "mine.json"),
    "theory": ("theory", "mine.json"),
    "plot": ("plot", "staleness", "mine.json", "-o", "out.svg"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_run_code_where_they_are_told_to(name: str, mine: Path, fedbuff: Callable[..., Any]) -> None:
    if name == "plot":
        pytest.importorskip("matplotlib")
    ran = fedbuff(*COMMANDS[name])
    assert ran.code == 2 and "--allow-code" in ran.err and 'problem.kind: "factory"' in ran.err, ran
    assert not (mine / "ran").exists() and not (mine / "out").exists()
    ran = fedbuff(*COMMANDS[name], "--allow-code")
    assert ran.code == 0, ran.err
    assert (mine / "ran").exists()


def test_a_report_runs_nothing_and_a_bound_only_what_it_may(mine: Path, fedbuff: Callable[..., Any]) -> None:
    config = fb.StudyConfig.read("mine.json", allow_code=True)
    assert run_study(config, "out").config.allow_code
    (mine / "ran").unlink()
    assert not load_run("out").config.allow_code
    assert fedbuff("report", "out").code == 0
    pytest.importorskip("matplotlib")
    assert fedbuff("plot", "convergence", "out", "-o", "c.svg").code == 0
    refused = fedbuff("plot", "bound", "out", "-o", "b.svg")
    assert refused.code == 2 and "--allow-code" in refused.err
    assert not (mine / "ran").exists()
    assert fedbuff("plot", "bound", "out", "-o", "b.svg", "--allow-code").code == 0


def test_python_runs_code_where_it_is_told_to(mine: Path) -> None:
    config = fb.StudyConfig(TABLES, mine)
    calls: dict[str, Callable[[], object]] = {
        "problem": lambda: config.problem,
        "held_out": lambda: config.held_out,
        "source": lambda: config.source,
        "run": config.run,
        "changed": lambda: config.changed({"local.lr": 0.3}).problem,
        "read": lambda: fb.StudyConfig.read("mine.json").run(),
        "sweep": lambda: fb.sweep("mine.json"),
        "sweep of tables": lambda: fb.sweep(TABLES),
        "sweep of a config": lambda: fb.sweep(config),
        "tune": lambda: fb.tune("mine.json"),
        "run_study": lambda: run_study(config, "out"),
        "pickled": lambda: pickle.loads(pickle.dumps(config)).problem,
    }
    for name, call in calls.items():
        with pytest.raises(ConfigError, match=REFUSED):
            call()
        assert not (mine / "ran").exists(), name
    allowed = fb.StudyConfig(TABLES, mine, allow_code=True)
    assert allowed.changed({"local.lr": 0.3}).problem.dim == 2
    assert pickle.loads(pickle.dumps(allowed)).problem.dim == 2
    assert all(variant.allow_code for group in allowed.compared() for variant in group)
    assert len(fb.sweep("mine.json", allow_code=True)) == 2
    assert len(fb.sweep(config, allow_code=True)) == 2 and not config.allow_code
    assert fb.tune("mine.json", allow_code=True).winner


def test_an_arm_cannot_bring_code_along(mine: Path) -> None:
    plain = {**TABLES, "problem": {"kind": "quadratic", "centers": [[0.0], [1.0], [2.0]]}}
    base = fb.StudyConfig(plain, mine)
    with pytest.raises(ConfigError, match=REFUSED):
        fb.sweep(base, configs=[{"local.lr": 0.2}, {"problem": TABLES["problem"]}])
    with pytest.raises(ConfigError, match=REFUSED):
        fb.tune(base, {"problem": [plain["problem"], TABLES["problem"]]})
    assert not (mine / "ran").exists()


# Noise that cannot be drawn again


PRIVATE = {
    "problem": {"kind": "quadratic", "centers": [[0.0], [1.0], [2.0]]},
    "trace": {"kind": "model", "n_clients": 3, "compute": {"kind": "exponential", "scale": 1.0}},
    "strategy": {"kind": "fedbuff", "buffer_size": 2, "privacy": {"clip": 1.0, "noise_multiplier": 0.1}},
    "local": {"steps": 1, "lr": 0.1},
    "schedule": {"server_steps": 4},
    "target": {"loss": 0.5},
    "sweep": {"grid": {"local.lr": [0.1, 0.2]}},
    "compare": [{"name": "other", "strategy": {"buffer_size": 1}}],
}


@pytest.mark.parametrize("what", ["sweep", "tune", "compare"])
def test_what_runs_many_times_needs_simulated_noise(what: str, folder: Path, fedbuff: Callable[..., Any]) -> None:
    (folder / "private.json").write_text(json.dumps(PRIVATE))
    refused = fedbuff(what, "private.json", "-o", "out")
    assert refused.code == 2 and not (folder / "out").exists()
    assert f'strategy.privacy.source: {what} needs "simulated", got "system"' in refused.err
    done = fedbuff(what, "private.json", "-o", "out", "--set", "strategy.privacy.source=simulated")
    assert done.code == 0, done.err


def test_the_python_calls_say_the_same() -> None:
    base = fb.StudyConfig(PRIVATE)
    for what, call in {"sweep": lambda: fb.sweep(base), "tune": lambda: fb.tune(base)}.items():
        with pytest.raises(ConfigError, match=f'{what} needs "simulated", got "system"'):
            call()
    simulated = base.changed({"strategy.privacy.source": "simulated"})
    with pytest.raises(ConfigError, match='sweep needs "simulated"'):  # one arm is enough
        fb.sweep(simulated, {"strategy.privacy.source": ["simulated", "system"]})
    assert len(fb.sweep(simulated, {"strategy.privacy.noise_multiplier": [0.0, 0.1]})) == 2
    assert len(fb.sweep(base, {"strategy.privacy.noise_multiplier": [0.0]})) == 1  # there is no noise
    assert not base.run().repeatable


def test_a_run_folder_says_whether_it_is_repeatable(folder: Path, fedbuff: Callable[..., Any]) -> None:
    (folder / "private.json").write_text(json.dumps(PRIVATE))
    assert fedbuff("replay", "private.json", "-o", "out").code == 0
    assert load_run("out").seeds[0].result["repeatable"] is False
    assert (folder / "out" / "seed-0" / "checkpoint.npz.noise").exists()


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"clip": 1.0}, "strategy.privacy.noise_multiplier: missing"),
        ({"clip": 1.0, "noise": 1.0}, "strategy.privacy.noise: unknown key"),
        ({"clip": -1.0, "noise_multiplier": 1.0}, "strategy.privacy.clip: expected a number > 0, got -1.0"),
        (3, "strategy.privacy: expected a table, got int"),
    ],
)
def test_bad_tables_of_privacy(privacy: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fb.StudyConfig({**PRIVATE, "strategy": {"kind": "fedbuff", "buffer_size": 2, "privacy": privacy}})
    assert str(caught.value).startswith(message)
