"""Executors of others: threads, processes, Dask workers of which one is killed; the same bits from all of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweep_checks import equal

import fedbuff as fb
from fedbuff._study.data import Rows, load_rows, save_rows
from fedbuff._study.svmlight import CSR
from fedbuff._sweep import store as _sweep_store
from fedbuff._sweep.batches import Batches
from fedbuff._sweep.store import FolderStore

GRID = {"strategy.buffer_size": [1, 2, 0], "problem.l2": [0.0, 0.1]}


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A Dask cluster of two worker processes."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_threads(base: dict[str, Any]) -> None:
    with ThreadPoolExecutor(3) as pool:
        equal(fb.sweep(base, GRID, seeds=range(3)), fb.sweep(base, GRID, seeds=range(3), executor=pool))


def test_processes(base: dict[str, Any], processes: Executor, tmp_path: Path) -> None:
    here = fb.sweep(base, GRID, seeds=range(3))
    equal(here, fb.sweep(base, GRID, seeds=range(3), executor=processes))
    equal(here, fb.sweep(base, GRID, seeds=range(3), executor=processes, out=tmp_path / "out"))
    assert here.column("status").tolist().count("failed") == 6


def test_a_finished_run_is_written_while_others_last(
    quadratic: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run goes on until the first is in a part."""
    written, seen = threading.Event(), list[bool]()
    write = FolderStore._write_part

    def noticed(self: FolderStore, folder: Path, number: int, rows: Any) -> None:
        write(self, folder, number, rows)
        written.set()

    def last(function: Any, *arguments: Any) -> Any:
        seen.append(written.wait(10))
        return function(*arguments)

    class Lasting(ThreadPoolExecutor):
        submitted = 0

        def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
            self.submitted += 1
            if self.submitted > 1:
                return super().submit(last, function, *arguments)
            return super().submit(function, *arguments)

    monkeypatch.setattr(_sweep_store, "_SECONDS_A_PART", (0.5, 0.5))
    monkeypatch.setattr(FolderStore, "_write_part", noticed)
    with Lasting(1) as pool:
        results = fb.sweep(quadratic, seeds=[0, 1], executor=pool, out=tmp_path / "out")
    assert len(results) == 2 and seen == [True]


def test_sweeps_of_one_pool_do_not_mix(quadratic: dict[str, Any], processes: Executor) -> None:
    for grid in ({"local.lr": [0.1, 0.2]}, {"local.lr": [0.3, 0.4]}, {"strategy.buffer_size": [1, 2]}):
        equal(fb.sweep(quadratic, grid, seeds=[0]), fb.sweep(quadratic, grid, seeds=[0], executor=processes))


def test_forked_workers_do_not_hold_the_folder(quadratic: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            for seeds in ([0], [0, 1]):
                assert len(fb.sweep(quadratic, seeds=seeds, executor=pool, out=out)) == len(seeds)
        store = FolderStore.open(out, {}, resume=True)
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            assert pool.submit(os.getpid).result() != os.getpid()
            store._drop()  # as a kill does: nobody unlocks
            FolderStore.open(out, {}, resume=True).close()


def test_processes_map_the_data(base: dict[str, Any], processes: Executor) -> None:
    """Rows of a process are pages of a file, not memory of its own; that file goes with the sweep."""
    seen: list[Any] = []

    class Watching(Executor):
        _max_workers = 2

        def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
            setup = arguments[0]
            seen.append(setup)
            (folder,) = setup.rows.values()
            rows = load_rows(Path(folder))
            assert isinstance(rows.X, np.memmap) and not rows.copy
            return processes.submit(function, *arguments, **named)

    equal(fb.sweep(base, GRID, seeds=[0]), fb.sweep(base, GRID, seeds=[0], executor=Watching()))
    assert seen and not Path(next(iter(seen[0].rows.values()))).exists()


def test_rows_in_order_come_back_from_files(tmp_path: Path) -> None:
    clients = np.array([2, 0, 1, 0])
    dense = Rows(
        np.arange(8.0).reshape(4, 2), np.array(["a", "b", "c", "d"]), clients, (np.ones((1, 2)), np.array(["a"]))
    )
    starts, columns = np.array([0, 1, 3, 3, 4]), np.array([0, 0, 1, 1], np.int32)
    sparse = Rows(CSR(np.arange(4.0), columns, starts, (4, 2)), np.arange(4), clients)
    for number, rows in enumerate((dense, sparse)):
        save_rows(tmp_path / str(number), rows.in_order())
        back = load_rows(tmp_path / str(number))
        order = np.array([1, 3, 2, 0])
        assert back.y.tolist() == rows.y[order].tolist() and back.clients is not None
        assert back.clients.tolist() == [0, 0, 1, 2] and not back.copy
        assert (back.test is None) == (rows.test is None)
    assert load_rows(tmp_path / "0").X.tolist() == dense.X[order].tolist()
    assert load_rows(tmp_path / "1").X.toarray().tolist() == sparse.X.toarray()[order].tolist()


def test_a_worker_that_dies_takes_the_pool_along_but_not_the_runs(quadratic: dict[str, Any], tmp_path: Path) -> None:
    """A pool of the standard library cannot go on; what was done is kept, and the same call goes on."""
    (tmp_path / "deadly.py").write_text(DEADLY)
    config = study(quadratic, tmp_path, "die")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool, pytest.raises(BrokenProcessPool):
        fb.sweep(config, GRID_OF_CALLBACK, seeds=range(6), executor=pool, out=tmp_path / "out")
    assert 0 < len(fb.load_sweep(tmp_path / "out")) < 12
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        results = fb.sweep(config, GRID_OF_CALLBACK, seeds=range(6), executor=pool, out=tmp_path / "out")
    equal(fb.sweep(config, GRID_OF_CALLBACK, seeds=range(6)), results)


# Four arrivals a run; in the 22nd of a process, which is in its sixth run, the first process to come there stops.
DEADLY = """
import os, signal, threading
from pathlib import Path
import numpy as np, fedbuff as fb

def make(folder, way):
    calls = []

    def delta(client, task, w, seed):
        calls.append(client)
        if len(calls) == 22:
            try:
                os.close(os.open(Path(folder) / "first", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                if way == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                with open(Path(folder) / "pid", "w") as pipe:
                    pipe.write(str(os.getpid()))
                threading.Event().wait()
        return 0.1 * w + 0.01 * client + 0.001 * task

    return fb.Callback(delta, w0=np.ones(2), n_clients=3)
"""
GRID_OF_CALLBACK = {"strategy.server_lr": [0.5, 1.0]}


def study(tables: dict[str, Any], folder: Path, way: str) -> fb.StudyConfig:
    options = {"folder": str(folder), "way": way}
    made = {key: value for key, value in tables.items() if key != "local"}
    made["problem"] = {"kind": "factory", "function": "deadly.py:make", "options": options}
    made["strategy"] = {"kind": "fedbuff", "buffer_size": 1}
    made["schedule"] = {"server_steps": 4}
    made["replay"] = {"metrics": [], "eval_every": 2}
    return fb.StudyConfig(made, folder, allow_code=True)


def test_dask(base: dict[str, Any], client: Any, tmp_path: Path) -> None:
    here = fb.sweep(base, GRID, seeds=range(3))
    equal(here, fb.sweep(base, GRID, seeds=range(3), executor=client, out=tmp_path / "out"))


def test_dask_goes_on_when_a_worker_is_killed(
    quadratic: dict[str, Any], client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is killed in the middle of a batch, with runs of it done: all runs are there, once."""
    (tmp_path / "deadly.py").write_text(DEADLY)
    config = study(quadratic, tmp_path, "wait")
    monkeypatch.setattr(Batches, "_size", lambda self: 4)
    os.mkfifo(tmp_path / "pid")
    killed: list[int] = []

    def kill() -> None:
        killed.append(int((tmp_path / "pid").read_text()))  # waits for the worker to write
        os.kill(killed[0], signal.SIGKILL)

    watcher = threading.Thread(target=kill, daemon=True)
    watcher.start()
    workers = set(client.run(os.getpid).values())
    results = fb.sweep(config, GRID_OF_CALLBACK, seeds=range(20), executor=client, out=tmp_path / "out")
    watcher.join(60)
    assert killed and killed[0] in workers
    assert len(results) == 40 and set(results.column("status").tolist()) == {"done"}
    equal(fb.sweep(config, GRID_OF_CALLBACK, seeds=range(20)), results)
