"""Loggers: what a tracker stored is the history; each test needs the tracker's package."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb

ROOT = Path(__file__).parents[2]
PROBLEM = fb.Quadratic(np.arange(8.0)[:, None] * np.ones(3))
DELAYS = fb.DelayModel(n_clients=8, compute=fb.Exponential(1.0))


def train(log: Any, **options: Any) -> fb.History:
    local = fb.LocalSGD(steps=2, lr=0.1)
    return fb.run(
        PROBLEM, DELAYS, fb.FedBuff(4), local, server_steps=40, eval_every=10, callback=log, **options
    ).history


def numbers(history: fb.History) -> dict[str, list[tuple[int, float]]]:
    steps = history["step"].astype(int).tolist()
    names = [name for name in history if name != "step"]
    return {name: list(zip(steps, history[name].astype(float).tolist(), strict=True)) for name in names}


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="this logger needs tensorboard: pip install fedbuff[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    with fb.loggers.TensorBoard(tmp_path) as log:
        history = train(log)
    stored = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0})
    stored.Reload()
    found = {
        name: [(event.step, float(make_ndarray(event.tensor_proto))) for event in stored.Tensors(name)]
        for name in stored.Tags()["tensors"]
    }
    expected = numbers(history)
    assert set(found) == set(expected) and len(found["loss"]) == 5
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6)  # it stores float32


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return pytest.importorskip("mlflow", reason="this logger needs mlflow: pip install fedbuff[mlflow]")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_mlflow(mlflow: Any, tmp_path: Path) -> None:
    uri = f"file:{tmp_path}/store"
    with fb.loggers.MLflow("tests", tracking_uri=uri, name="one", parameters={"K": 4}) as log:
        history = train(log)
    client = mlflow.MlflowClient(tracking_uri=uri)
    run = client.get_run(log.run_id)
    assert (run.info.status, run.data.params, run.info.run_name) == ("FINISHED", {"K": "4"}, "one")
    for name, values in numbers(history).items():
        found = sorted((one.step, one.value) for one in client.get_metric_history(log.run_id, name))
        assert found == values
    with pytest.raises(ZeroDivisionError), fb.loggers.MLflow(tracking_uri=uri, run_id=log.run_id) as again:
        again({"step": 50.0, "loss": 1.5})
        raise ZeroDivisionError
    assert again.run_id == log.run_id and client.get_run(log.run_id).info.status == "FAILED"
    assert len(client.get_metric_history(log.run_id, "loss")) == 6


def records(stored: bytes) -> Iterator[bytes]:
    """The records of a run's file: in blocks of 32 KiB, each part behind its checksum, its length and its kind."""
    at, whole = 7, b""
    while at < len(stored):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(stored[at + 4 : at + 6], "little"), stored[at + 6]
        whole += stored[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="this logger needs wandb: pip install fedbuff[wandb]")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_SILENT", "true")
    with fb.loggers.WandB("tests", folder=tmp_path, name="one", parameters={"K": 4}) as log:
        history = train(log)
    (path,) = tmp_path.rglob(f"*{log.run_id}*.wandb")
    rows = []
    for data in records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            values = ((item.key or item.nested_key[0], json.loads(item.value_json)) for item in record.history.item)
            rows.append(dict(values))
    for name, values in numbers(history).items():
        assert [(row["_step"], row[name]) for row in rows] == values


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="docs/replay.md needs tensorboard")
    text = (ROOT / "docs" / "replay.md").read_text(encoding="utf-8")
    block = re.search(r'^```py title="with_logger.py"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)
    assert block is not None
    monkeypatch.chdir(tmp_path)
    exec(block[1], {})
    assert list(tmp_path.glob("logs/first/*"))
