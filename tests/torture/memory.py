"""memory.py [--seconds N] [--part i/n] [--quick] [--publish]: calls each public function that allocates again and
again, and looks whether the memory of the process grows.

A function is called a million times where a call takes less than 10 us, else for `seconds` and at least 1,000 times
(200 where it writes files). Its growth is that of the second half of the calls: what a first half leaves is warm-up.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import reliability_page
import survivors
from scratch import scratch

import fedbuff as fb

MOST = 1 << 20  # bytes that the second half of the calls may leave: pools and fragments of the allocator
Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    name: str
    call: Call
    writes: bool = False

    def least(self) -> int:
        return 200 if self.writes else 1000


def resident() -> int:
    """Bytes of this process in memory, without what the allocator keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cases(folder: Path) -> Iterator[Case]:
    """What is public and allocates; sizes are such that a leak of one array in a call is seen."""
    dim = 4000
    w, delta = np.zeros(dim), np.ones(dim)
    server = fb.Server(w, fb.FedBuff(2))
    buffer, queue = fb.DeltaBuffer(dim), fb.EventQueue()
    problem = fb.Quadratic(np.zeros((5, dim)))
    tiny, local = survivors.PROBLEM, survivors.LOCAL
    schedule, delays, strategy = survivors.schedule(20), survivors.DELAYS, survivors.STRATEGY
    trace, log = survivors.trace(), survivors.log()
    recorder = fb.Recorder(3)
    rows = np.random.default_rng(0).standard_normal((60, 4))
    labels = np.arange(60) % 3

    def exchange() -> None:
        version, model = server.download()
        server.upload(delta, version)
        del model

    def ticketed() -> None:
        version, _ = server.download()
        server.upload(delta, version, ticket=server.take_ticket())

    def refused() -> None:
        with contextlib.suppress(ValueError):
            server.upload(delta[:-1], 0)

    def push_and_pop() -> None:
        queue.push(1.0, 7)
        queue.pop()

    def recorded() -> None:
        recorder.started(1)
        recorder.cancelled(1)

    def replayed() -> None:
        replay = fb.Replay(tiny, schedule, local, strategy=strategy, threads=1)
        replay.run(7)
        replay.history.items()
        replay.run()

    def interrupted() -> None:
        def fail(row: dict[str, float]) -> None:
            raise KeyboardInterrupt

        with contextlib.suppress(fb.Interrupted):
            fb.replay(tiny, schedule, local, strategy=strategy, eval_every=5, callback=fail, threads=1, progress=False)

    def replay(source: Any, of: Any = tiny, **options: Any) -> Any:
        return fb.replay(
            of, source, options.pop("local", local), strategy=strategy, threads=1, progress=False, **options
        )

    callback = fb.Callback(lambda number, task, w, generator: 0.1 * w, w0=np.ones(3), n_clients=5)
    yield Case("Server.download, upload", exchange)
    yield Case("Server.take_ticket, upload", ticketed)
    yield Case("Server.upload, refused", refused)
    yield Case("Server.w", lambda: server.w)
    yield Case("Server", lambda: fb.Server(w, fb.FedBuff(2, optimizer=fb.Adam())))
    yield Case("DeltaBuffer.add, step", lambda: (buffer.add(delta), buffer.step(w, 0.1)))
    yield Case("DeltaBuffer", lambda: fb.DeltaBuffer(dim))
    yield Case("EventQueue.push, pop", push_and_pop)
    yield Case("EventQueue", fb.EventQueue)
    yield Case("aggregate", lambda: fb.aggregate(w, [delta, delta], [1.0, 2.0]))
    yield Case("Recorder.started, cancelled", recorded)
    yield Case("problem.delta", lambda: problem.delta(w, 1, local))
    yield Case("problem.loss, full gradient", lambda: (problem.loss(w), problem.grad(w)))
    yield Case("Softmax", lambda: fb.Softmax(rows, labels, clients=labels))
    yield Case("schedule", lambda: fb.schedule(delays, strategy, concurrency=4, server_steps=20))
    yield Case("iter_schedule", lambda: list(fb.iter_schedule(delays, strategy, 4, server_steps=20, chunk=8)))
    yield Case(
        "uniform_arrivals", lambda: fb.uniform_arrivals(n_clients=5, buffer_size=2, max_staleness=2, server_steps=9)
    )
    yield Case("Schedule.summary", schedule.summary)
    yield Case("Schedule, sliced and checked", lambda: fb.Schedule(**schedule[2:9]._state()).check())
    yield Case("schedule of a log", lambda: fb.schedule(log, fb.FedBuff(2)))
    yield Case("Trace", survivors.trace)
    yield Case("ArrivalLog", survivors.log)
    yield Case("Replay", replayed)
    yield Case("replay", lambda: replay(schedule, eval_every=5))
    yield Case("replay, interrupted", interrupted)
    yield Case("replay of a Callback", lambda: replay(schedule, callback, local=None))
    yield Case("sweep", lambda: fb.sweep(survivors.TABLES, grid={"local.lr": [0.1, 0.2]}, progress=False, threads=1))
    yield from of_problems(rows, labels)
    yield from of_rules(w, delta)
    yield from of_readers(folder)
    for name, thing, read in (
        ("schedule.npz", schedule, fb.load_schedule),
        ("schedule.parquet", schedule, fb.load_schedule),
        ("trace.npz", trace, fb.read_trace),
        ("trace.csv", trace, fb.read_trace),
        ("log.csv", log, fb.read_arrival_log),
        ("server.npz", server, fb.Server.load),
    ):
        yield written(folder / name, thing, read)
    damaged = folder / "damaged.npz"
    schedule.save(folder / "whole.npz")
    damaged.write_bytes((folder / "whole.npz").read_bytes()[:-40])

    def read_damaged() -> None:
        with contextlib.suppress(fb.FileError):
            fb.load_schedule(damaged)

    yield Case("load_schedule of a damaged file", read_damaged)
    path = folder / "checkpoint.npz"

    def with_checkpoint() -> None:
        path.unlink(missing_ok=True)
        replay(schedule, checkpoint=path)

    yield Case("replay with a checkpoint", with_checkpoint, writes=True)


def of_problems(rows: Any, labels: Any) -> Iterator[Case]:
    """Problems, and one task of each."""
    local = fb.LocalSGD(2, 0.1, batch_size=4)
    dense = [fb.layers.Dense(8), fb.layers.ReLU(), fb.layers.Dropout(0.2), fb.layers.Dense(3)]
    makers: dict[str, Callable[[], Any]] = {
        "MLP": lambda: fb.MLP(rows, labels, hidden=(8,), clients=labels),
        "Network": lambda: fb.Network(rows, labels, clients=labels, layers=dense),
        "Logistic": lambda: fb.Logistic(rows, labels % 2, clients=labels),
        "LeastSquares": lambda: fb.LeastSquares(rows, rows[:, 0], clients=labels),
    }
    for name, make in makers.items():
        problem = make()
        model = np.full(problem.dim, 0.1, problem.dtype)
        yield Case(name, make)
        yield Case(f"{name}.delta", lambda problem=problem, model=model: problem.delta(model, 1, local))
        yield Case(f"{name}.loss", lambda problem=problem, model=model: problem.loss(model))


def of_rules(w: Any, delta: Any) -> Iterator[Case]:
    """Servers whose rules keep more: rows of clients, moments, weights made from numbers."""
    table = fb.Server(w, fb.FedBuff(2, n_clients=3, norm="arrivals", table=fb.ClientTable(own=-1.0, mean=1.0)))
    weighted = fb.Server(w, fb.FedBuff(2, optimizer=fb.AMSGrad(), weight_by=fb.DeltaWeight("norm")))

    def exchange(server: Any, **options: Any) -> None:
        version, model = server.download()
        server.upload(delta, version, **options)
        del model

    yield Case("Server with a table", lambda: exchange(table, client=1))
    yield Case("Server with weights from norms", lambda: exchange(weighted))
    queued = {"concurrency": 8, "queues": True, "server_steps": 20}
    yield Case("schedule with queues", lambda: fb.schedule(survivors.DELAYS, survivors.STRATEGY, **queued))
    stops = fb.FedBuff(2, stop_stale=2, refill="step")
    yield Case("schedule with stops", lambda: fb.schedule(survivors.DELAYS, stops, concurrency=4, server_steps=20))
    yield Case("sample_log", fb.sample_log)


def of_readers(folder: Path) -> Iterator[Case]:
    """Files that others made."""
    images, labels = folder / "i-images-idx3-ubyte", folder / "i-labels-idx1-ubyte"
    images.write_bytes(b"\0\0\x08\x03\0\0\0\x05\0\0\0\x20\0\0\0\x20" + bytes(5 * 32 * 32))
    labels.write_bytes(b"\0\0\x08\x01\0\0\0\x05" + bytes(5))
    svm, delays = folder / "rows.svm", folder / "delays.txt"
    svm.write_text("".join(f"{row % 2} 1:{row} 3:0.5\n" for row in range(200)))
    delays.write_text("1.5 2.5\n" * 200)
    yield Case("datasets.read_mnist", lambda: fb.datasets.read_mnist(images))
    yield Case("read_svmlight", lambda: fb.read_svmlight(svm))
    yield Case("traces.from_delay_matrix", lambda: fb.traces.from_delay_matrix(delays))
    numbers = np.arange(1000) % 7
    yield Case("partition.dirichlet", lambda: fb.partition.dirichlet(numbers, 5, alpha=0.5, seed=1))


def written(path: Path, thing: Any, read: Callable[[Path], Any]) -> Case:
    def call() -> None:
        thing.save(path)
        read(path)

    return Case(f"save and read {path.name}", call, writes=True)


def growth(case: Case, seconds: float, quick: bool) -> tuple[int, int]:
    """How many calls were made, and by how many bytes the process grew in the second half of them."""
    began = time.perf_counter()
    for _ in range(20):
        case.call()
    each = (time.perf_counter() - began) / 20
    n = 1_000_000 if each < 10e-6 else max(case.least(), round(seconds / each))
    n = min(n, max(20, round(seconds / each))) if quick else n
    for _ in range(n // 2):
        case.call()
    before = resident()
    for _ in range(n - n // 2):
        case.call()
    return n, resident() - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--part", default="1/1", help="i/n: every n-th function alone, from the i-th on")
    parser.add_argument("--quick", action="store_true", help="so many seconds each at most, as in the tests")
    parser.add_argument("--publish", action="store_true", help="write the figures into docs/reliability.md")
    asked = parser.parse_args()
    if asked.quick and asked.publish:
        parser.error("--publish: expected a campaign that is not --quick")
    warnings.simplefilter("ignore")
    done: list[reliability_page.Recorded] = []
    grown = []
    with scratch() as where:
        for case in reliability_page.part_of(list(cases(Path(where))), asked.part):
            began = time.monotonic()
            n, left = growth(case, asked.seconds, asked.quick)
            if left > MOST:  # once more: an allocator's pool may grow once, a leak grows always
                n, left = growth(case, asked.seconds, asked.quick)
            row, seconds = [case.name, n, f"{left / 1024:.0f} kB"], time.monotonic() - began
            done.append(reliability_page.Recorded(row, seconds, ""))
            grown += [case.name] if left > MOST else []
            print(f"{case.name}: {n:,} calls, {left / 1024:.0f} kB", flush=True)
            if asked.publish and left <= MOST:
                reliability_page.record("memory", row, seconds)
    print(*(f"FAILED {name}" for name in grown), summary_of(done, len(grown)), sep="\n")
    if asked.publish and not grown:
        kept = reliability_page.recorded("memory")
        columns = ["what was called", "calls", "growth in their second half"]
        summary = f"{summary_of(kept, 0)} {reliability_page.builds(kept)}"
        reliability_page.publish("memory", summary, columns, [case.row for case in kept])
    return bool(grown)


def summary_of(done: list[reliability_page.Recorded], n_grown: int) -> str:
    return (
        f"{len(done)} functions, {sum(case.row[1] for case in done):,} calls in "
        f"{sum(case.seconds for case in done) / 60:.1f} minutes; {n_grown} of them left more than "
        f"{MOST // 1024:,} kB in the second half of their calls."
    )


if __name__ == "__main__":
    sys.exit(main())
