"""A sweep's folder: killed at any moment it goes on, and no run is lost, done twice or there twice."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweep_checks import equal

import fedbuff as fb
from fedbuff._study.tables import ConfigError
from fedbuff._sweep import store as _sweep_store
from fedbuff._sweep.store import FolderStore

GRID = {"local.lr": [0.1, 0.2, 0.3], "strategy.buffer_size": [1, 2]}
FORMS = ["parquet", "npz"]


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Parts in Parquet, or as where pyarrow is missing."""
    if request.param == "npz":
        monkeypatch.setattr(_sweep_store, "default_format", lambda: "npz")
    else:
        pytest.importorskip("pyarrow")
    return str(request.param)


def parts(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "parts").iterdir())


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs each batch makes from now on."""
    from fedbuff._sweep.worker import Workshop

    made: list[int] = []
    original = Workshop.run

    def counted(self: Workshop, pairs: Any, threads: int, cancel: Any) -> Any:
        made.append(len(pairs))
        return original(self, pairs, threads, cancel)

    monkeypatch.setattr(Workshop, "run", counted)
    return made


def test_a_folder_holds_what_memory_does(form: str, quadratic: dict[str, Any], tmp_path: Path) -> None:
    grid = {**GRID, "strategy.staleness": ["constant", {"kind": "polynomial", "exponent": 1.0}]}
    memory = fb.sweep(quadratic, grid, seeds=[0, 2**63 + 1])
    folder = fb.sweep(quadratic, grid, seeds=[0, 2**63 + 1], out=tmp_path / "out")
    equal(memory, folder)
    equal(folder, fb.load_sweep(tmp_path / "out"))
    assert parts(tmp_path / "out") == [f"part-000000.{form}"]
    about = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert about["grid"] == grid and about["seeds"] == [0, 2**63 + 1] and about["provenance"]["fedbuff"]


def test_finished_runs_are_not_made_again(
    form: str, quadratic: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    whole = fb.sweep(quadratic, GRID, seeds=range(4))
    fb.sweep(quadratic, {"local.lr": [0.2], "strategy.buffer_size": [1, 2]}, seeds=[1, 2], out=out)
    made = count_runs(monkeypatch)
    equal(whole, fb.sweep(quadratic, GRID, seeds=range(4), out=out))
    assert sum(made) == 20
    made.clear()
    before = parts(out)
    equal(whole, fb.sweep(quadratic, GRID, seeds=range(4), out=out))
    assert made == [] and parts(out) == before


def test_a_column_of_another_type(form: str, quadratic: dict[str, Any], tmp_path: Path) -> None:
    """Parts of an earlier call are written anew, so that all have the same columns."""
    out = tmp_path / "out"
    fb.sweep(quadratic, {"strategy.server_lr": [1]}, seeds=[0], out=out)
    fb.sweep(quadratic, {"strategy.server_lr": [1, 0.5]}, seeds=[0], out=out)
    configs = [{"strategy.server_lr": 1}, {"strategy.server_lr": 0.5}, {"replay.metrics": ["grad_norm_sq"]}]
    results = fb.sweep(quadratic, configs=configs, seeds=[0, 1], out=out)
    equal(fb.sweep(quadratic, configs=configs, seeds=[0, 1]), results)
    if form == "parquet":
        import pyarrow.parquet as pq

        files = sorted((out / "parts").iterdir())
        assert len({str(pq.read_schema(file)) for file in files}) == 1
        assert pq.read_table(out / "parts").num_rows == 6


def test_keys_that_are_not_set(form: str, quadratic: dict[str, Any], tmp_path: Path) -> None:
    """NaN or no text, null in Parquet; the same before and after the parts are written anew."""
    out = tmp_path / "out"
    stale, wait, flag = "strategy.max_staleness", "strategy.max_wait", "strategy.distinct_clients"
    configs: list[dict[str, Any]] = [{stale: 5, wait: 2.5, flag: True}, {}]
    for more in ([], [{"local.lr": 0.25}]):
        results = fb.sweep(quadratic, configs=configs + more, seeds=[0], out=out)
        equal(fb.sweep(quadratic, configs=configs + more, seeds=[0]), results)
        unset = 1 + len(more)
        np.testing.assert_array_equal(results.column(stale), [5.0] + [np.nan] * unset)
        np.testing.assert_array_equal(results.column(wait), [2.5] + [np.nan] * unset)
        assert results.column(flag).tolist() == ["true"] + [""] * unset
        if form == "parquet":
            import pyarrow.parquet as pq

            table = pq.read_table(out / "parts", columns=[stale, wait, flag])
            assert [column.null_count for column in table.columns] == [unset] * 3
    assert results.column("local.lr").tolist() == [0.5, 0.5, 0.25]


@pytest.mark.parametrize("large", [2**63, -(2**63) - 1, 2**70])
@pytest.mark.parametrize("other", [1, 0.5])
def test_numbers_that_no_column_holds(
    form: str, large: int, other: float, base: dict[str, Any], tmp_path: Path
) -> None:
    results = fb.sweep(base, {"problem.l2": [other, large]}, seeds=[0], out=tmp_path / "out")
    assert results.column("problem.l2").tolist() == [str(other), str(large)]


def test_whole_numbers_that_no_float_is(form: str, quadratic: dict[str, Any], tmp_path: Path) -> None:
    key = "strategy.max_staleness"
    configs: list[dict[str, Any]] = [{key: 2**53 + 1}, {}]
    results = fb.sweep(quadratic, configs=configs, seeds=[0], out=tmp_path / "out")
    assert results.column(key).tolist() == [str(2**53 + 1), ""]
    results = fb.sweep(quadratic, configs=configs[:1], seeds=[0], out=tmp_path / "whole")
    assert results.column(key).tolist() == [2**53 + 1]


def test_a_key_that_varies_later_or_no_more(form: str, quadratic: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    fb.sweep(quadratic, {"strategy.buffer_size": [2]}, seeds=[0], out=out)
    grid = {"local.lr": [0.5, 0.25], "local.steps": [1, 2]}
    equal(fb.sweep(quadratic, grid, seeds=[0]), fb.sweep(quadratic, grid, seeds=[0], out=out))


def test_failed_runs_are_tried_again(form: str, base: dict[str, Any], tmp_path: Path) -> None:
    base["problem"] = {"kind": "logistic", "data": "rows.npz"}
    config = fb.StudyConfig(base, tmp_path)
    grid = {"strategy.buffer_size": [0, 2]}
    results = fb.sweep(config, grid, seeds=[0], out=tmp_path / "out")
    assert results.column("status").tolist() == ["failed", "failed"]
    assert "rows.npz does not exist" in results.failed[1]["error"]
    assert parts(tmp_path / "out") == [f"failed.{form}"]
    X = np.linspace(-1, 1, 48, dtype=np.float32).reshape(24, 2)
    np.savez(tmp_path / "rows.npz", X=X, y=np.arange(24) % 2, clients=np.arange(24) % 12)
    for _ in range(2):
        results = fb.sweep(config, grid, seeds=[0], out=tmp_path / "out")
        assert results.column("status").tolist() == ["failed", "done"]
        assert parts(tmp_path / "out") == [f"failed.{form}", f"part-000000.{form}"]


# What is refused


def test_foreign_folders(quadratic: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    fb.sweep(quadratic, GRID, seeds=[0, 1], out=out)
    other = fb.StudyConfig(quadratic).changed({"local.steps": 2})
    with pytest.raises(ConfigError, match=r"local.steps: .*out was made with 1, this is 2; give another folder"):
        fb.sweep(other, GRID, seeds=[0, 1], out=out)
    with pytest.raises(ConfigError, match=r"grid: .* has 4 runs that are not asked for; a larger grid"):
        fb.sweep(quadratic, {**GRID, "local.lr": [0.1, 0.2]}, seeds=[0, 1], out=out)
    with pytest.raises(ConfigError, match="has 6 runs that are not asked for"):
        fb.sweep(quadratic, GRID, seeds=[1], out=out)
    with pytest.raises(ValueError, match="holds a sweep already; resume it"):
        fb.sweep(quadratic, GRID, seeds=[0, 1], out=out, resume=False)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("all of it")
    with pytest.raises(ValueError, match="not a sweep's; give another folder"):
        fb.sweep(quadratic, GRID, out=mine)
    assert os.listdir(mine) == ["thesis.txt"]
    (mine / "parts").mkdir()
    (mine / "thesis.txt").rename(mine / "parts" / "thesis.txt")
    with pytest.raises(ValueError, match="not a sweep's; give another folder"):
        fb.sweep(quadratic, GRID, out=mine)
    with pytest.raises(ValueError, match=r"not a sweep's folder: it has no sweep.json"):
        fb.load_sweep(mine)
    (mine / "sweep.json").write_text("{}")
    with pytest.raises(ValueError, match="not a sweep's description: it holds something else"):
        fb.load_sweep(mine)
    assert len(fb.load_sweep(out)) == 12


def test_inputs_that_changed(base: dict[str, Any], tmp_path: Path) -> None:
    X = np.linspace(-1, 1, 48, dtype=np.float32).reshape(24, 2)
    np.savez(tmp_path / "rows.npz", X=X, y=np.arange(24) % 2, clients=np.arange(24) % 12)
    base["problem"] = {"kind": "logistic", "data": "rows.npz"}
    config = fb.StudyConfig(base, tmp_path)
    fb.sweep(config, seeds=[0], out=tmp_path / "out")
    np.savez(tmp_path / "rows.npz", X=2 * X, y=np.arange(24) % 2, clients=np.arange(24) % 12)
    with pytest.raises(ConfigError, match=r"rows.npz: the file has changed since .*out was made"):
        fb.sweep(config, seeds=[0, 1], out=tmp_path / "out")


def test_inputs_of_arms_that_changed(base: dict[str, Any], tmp_path: Path) -> None:
    X = np.linspace(-1, 1, 48, dtype=np.float32).reshape(24, 2)

    def write(name: str, scale: float) -> None:
        np.savez(tmp_path / name, X=scale * X, y=np.arange(24) % 2, clients=np.arange(24) % 12)

    names = ["a.npz", "b.npz", "test.npz", "later.npz"]
    for scale, name in enumerate(names, 1):
        write(name, scale)
    base["problem"] = {"kind": "logistic", "data": "a.npz"}
    config, out = fb.StudyConfig(base, tmp_path), tmp_path / "out"
    configs = [{}, {"problem.data": "b.npz"}, {"problem.test": "test.npz"}]
    fb.sweep(config, configs=configs, seeds=[0], out=out)
    configs.append({"problem": {"kind": "logistic", "data": "later.npz"}})
    fb.sweep(config, configs=configs, seeds=[0], out=out)
    assert set(json.loads((out / "sweep.json").read_text())["provenance"]["inputs"]) == set(names)
    for scale, name in enumerate(names, 1):
        write(name, 10 * scale)
        with pytest.raises(ConfigError, match=rf"{name}: the file has changed since .*out was made"):
            fb.sweep(config, configs=configs, seeds=[0, 1], out=out)
        write(name, scale)
    results = fb.sweep(config, configs=configs, seeds=[0, 1], out=out)
    assert results.column("status").tolist() == ["done"] * 8


def test_one_writer(quadratic: dict[str, Any], tmp_path: Path) -> None:
    fb.sweep(quadratic, seeds=[0], out=tmp_path / "out")
    store = FolderStore.open(tmp_path / "out", {}, resume=True)
    try:
        with pytest.raises(ValueError, match="another process is at work on this sweep"):
            fb.sweep(quadratic, seeds=[0, 1], out=tmp_path / "out")
        assert len(fb.load_sweep(tmp_path / "out")) == 1
    finally:
        store.close()
    assert len(fb.sweep(quadratic, seeds=[0, 1], out=tmp_path / "out")) == 2


def test_a_folder_that_cannot_be_locked(
    quadratic: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(_sweep_store.fcntl, "flock", refuse)
    with pytest.raises(OSError, match=r"cannot lock: No locks available: .*out/lock"):
        fb.sweep(quadratic, seeds=[0], out=tmp_path / "out")


# Kills

KILLED = """
import os, signal, sys, fedbuff as fb
from fedbuff._sweep import store as _sweep_store
from fedbuff._sweep.store import FolderStore

base, out, moment, form = {base!r}, sys.argv[1], sys.argv[2], sys.argv[3]
_sweep_store.default_format = lambda: form
_sweep_store._SECONDS_A_PART = (0.0, 0.0)  # a part as often as there is something
flush, write, rename = FolderStore.flush, FolderStore._write_part, os.replace

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def after_three_parts(self):
    flush(self)
    if len(self._numbered()) == 3:
        die()

def while_a_part_is_written(self, folder, number, rows):
    if number == 3:
        (folder / f".part-000003.{{form}}.1.part").write_bytes(b"half of it")
        die()
    write(self, folder, number, rows)

def before_a_rename(self, target):
    if self.name == {{"before the parts": "parts", "between the two": ".parts-new"}}[moment]:
        die()
    return path_rename(self, target)

def before_sweep_json(path, value):
    (path.parent / ".sweep.json.1.part").write_text("half of it")
    die()

def after_sweep_json(path, value):
    write_json(path, value)
    die()

def before_it_counts(path, value):
    if (path.parent / ".parts-new").is_dir():
        die()
    write_json(path, value)

import pathlib
path_rename = pathlib.Path.rename
if moment == "after three parts":
    FolderStore.flush = after_three_parts
elif moment == "in a part":
    FolderStore._write_part = while_a_part_is_written
elif moment.endswith("sweep.json"):
    write_json = _sweep_store.write_json
    _sweep_store.write_json = before_sweep_json if moment == "before sweep.json" else after_sweep_json
elif moment == "before it counts":
    write_json, _sweep_store.write_json = _sweep_store.write_json, before_it_counts
else:
    pathlib.Path.rename = before_a_rename
fb.sweep(base, {{"local.lr": [0.1, 0.2, 0.3], "strategy.buffer_size": [1, 2]}}, seeds="0:8", out=out, threads=2)
"""


# ... the last three while parts are written anew, as arms have other numbers now
MOMENTS = ["after three parts", "in a part", "before it counts", "before the parts", "between the two"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_loses_nothing_that_was_written(
    moment: str, form: str, quadratic: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    anew = moment in MOMENTS[2:]
    if anew:
        first = fb.sweep(quadratic, {"local.lr": [0.2, 0.3], "strategy.buffer_size": [2]}, seeds=[0, 1], out=out)
    code = KILLED.format(base=quadratic)
    ran = subprocess.run(
        [sys.executable, "-c", code, str(out), moment, form], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    made = count_runs(monkeypatch)
    left = fb.load_sweep(out)
    before = len(left)
    assert before == 4 if anew else 3 <= before < 48
    for row in range(before):  # what is there is true, whatever the numbers of its arms
        assert left.arms[int(left.column("arm")[row])]["local.lr"] == left.column("local.lr")[row]
    if anew:
        assert set(left.column("model_sha256").tolist()) == set(first.column("model_sha256").tolist())
    results = fb.sweep(quadratic, GRID, seeds=range(8), out=out)
    assert sum(made) == 48 - before
    equal(fb.sweep(quadratic, GRID, seeds=range(8)), results)
    assert not [name for name in parts(out) if name.startswith(".")]
    assert sorted(name for name in os.listdir(out) if name.startswith(".parts")) == []


@pytest.mark.parametrize("moment", ["before sweep.json", "after sweep.json"])
def test_a_kill_in_the_first_moments(moment: str, quadratic: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = KILLED.format(base=quadratic)
    ran = subprocess.run(
        [sys.executable, "-c", code, str(out), moment, "npz"], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    if moment == "before sweep.json":
        assert sorted(os.listdir(out)) == [".sweep.json.1.part", "lock"]
        (out / "parts").mkdir()
    else:
        left = fb.load_sweep(out)
        assert len(left) == 0 and left.failed == [] and "0 runs" in repr(left)
    equal(fb.sweep(quadratic, GRID, seeds=range(8)), fb.sweep(quadratic, GRID, seeds=range(8), out=out))
    assert sorted(os.listdir(out)) == ["lock", "parts", "sweep.json"]


def test_many_parts_become_few(
    form: str, quadratic: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sweep_store, "_SECONDS_A_PART", (0.0, 0.0))
    monkeypatch.setattr(_sweep_store, "_MANY_PARTS", 2)
    out = tmp_path / "out"
    fb.sweep(quadratic, GRID, seeds=range(4), out=out)
    assert len(parts(out)) > 3
    monkeypatch.setattr(_sweep_store, "_SECONDS_A_PART", (60.0, 60.0))
    results = fb.sweep(quadratic, GRID, seeds=range(5), out=out)
    assert len(parts(out)) == 2
    equal(fb.sweep(quadratic, GRID, seeds=range(5)), results)


# Readers of others


def test_pandas_and_duckdb_read_the_parts(quadratic: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    duckdb = pytest.importorskip("duckdb")
    import pandas as pd

    results = fb.sweep(quadratic, {"local.lr": [0.1, 0.2, -1.0]}, seeds=range(3), out=tmp_path / "out")
    frame = pd.read_parquet(tmp_path / "out" / "parts").sort_values(["arm", "seed"], ignore_index=True)
    assert frame["loss"].isna().sum() == 3 and frame["run"].tolist() == results.column("run").tolist()
    query = f"""
        SELECT "local.lr", count(*), avg(loss), max(len("history.loss"))
        FROM '{tmp_path}/out/parts/*.parquet' WHERE status = 'done' GROUP BY 1 ORDER BY 1
    """
    rows = duckdb.sql(query).fetchall()
    assert [(lr, runs, size) for lr, runs, _, size in rows] == [(0.1, 3, 3), (0.2, 3, 3)]
    assert rows[0][2] == pytest.approx(results.column("loss")[:3].mean(), rel=1e-12)


def test_without_pyarrow(quadratic: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    fb.sweep(quadratic, seeds=[0], out=tmp_path / "parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    fb.sweep(quadratic, seeds=[0], out=tmp_path / "npz")
    assert parts(tmp_path / "npz") == ["part-000000.npz"]
    with pytest.raises(ImportError, match=r"needs pyarrow: pip install fedbuff\[parquet\]"):
        fb.sweep(quadratic, seeds=[0, 1], out=tmp_path / "parquet")


def test_what_a_power_cut_may_not_reorder(
    quadratic: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are written anew: all is on the disk before sweep.json counts it, and the old parts go last."""
    out = tmp_path / "out"
    fb.sweep(quadratic, {"local.lr": [0.2, 0.3], "strategy.buffer_size": [2]}, seeds=[0, 1], out=out)
    order: list[str] = []
    fsync, replace, rename, rmtree = os.fsync, Path.replace, Path.rename, shutil.rmtree

    def name_of(path: str | os.PathLike[str]) -> str:
        name = str(Path(path).relative_to(out))
        return re.sub(r"(^|/)\.([^/]+)\.[0-9a-f]{16}\.part", r"\1\2", name)

    def spy_fsync(descriptor: int) -> None:
        order.append(f"sync {name_of(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        fsync(descriptor)

    def spy_rename(self: Path, target: Any) -> Path:
        order.append(f"rename {name_of(target)}")
        return (replace if self.name.endswith(".part") else rename)(self, target)

    def spy_rmtree(path: Any, *args: Any, **options: Any) -> None:
        if Path(path).exists() and Path(path).is_relative_to(out):
            order.append(f"remove {name_of(path)}")
        rmtree(path, *args, **options)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(Path, "replace", spy_rename)
    monkeypatch.setattr(Path, "rename", spy_rename)
    monkeypatch.setattr(shutil, "rmtree", spy_rmtree)
    fb.sweep(quadratic, GRID, seeds=[0, 1], out=out)
    ending = next(part for part in parts(out)).rpartition(".")[2]
    part, marker = f".parts-new/part-000000.{ending}", ".parts-new/.generation"
    wanted = [
        "sync .",  # the new folder's name
        *(f"sync {part}", f"rename {part}", "sync .parts-new"),
        *(f"sync {marker}", f"rename {marker}", "sync .parts-new"),
        *("sync sweep.json", "rename sweep.json", "sync ."),
        *("rename .parts-old", "rename parts", "sync .", "remove .parts-old"),
    ]
    begin = order.index(f"sync {part}") - 1
    assert order[begin : begin + len(wanted)] == wanted


def test_old_parts_come_back_where_the_new_ones_were_lost(
    quadratic: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    first = fb.sweep(quadratic, {"local.lr": [0.2, 0.3]}, seeds=[0, 1], out=out)
    (out / "parts").rename(out / ".parts-old")
    made = count_runs(monkeypatch)
    again = fb.sweep(quadratic, {"local.lr": [0.2, 0.3]}, seeds=[0, 1], out=out)
    equal(first, again)
    assert sum(made) == 0
    assert sorted(os.listdir(out)) == ["lock", "parts", "sweep.json"]
