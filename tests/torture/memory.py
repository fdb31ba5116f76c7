"""memory.py [--seconds N] [--quick] [--publish]: calls each public function that allocates again and again, and looks
whether the memory of the process grows.

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
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import survivors

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
    damaged.write_bytes((folder / "schedule.npz").read_bytes()[:-40] if (folder / "schedule.npz").exists() else b"PK")

    def read_damaged() -> None:
        with contextlib.suppress(fb.FileError):
            fb.load_schedule(damaged)

    yield Case("load_schedule of a damaged file", read_damaged)
    path = folder / "checkpoint.npz"

    def with_checkpoint() -> None:
        path.unlink(missing_ok=True)
        replay(schedule, checkpoint=path)

    yield Case("replay with a checkpoint", with_checkpoint, writes=True)


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
    parser.add_argument("--quick", action="store_true", help="so many seconds each at most, as in the tests")
    parser.add_argument("--publish", action="store_true", help="write the figures into docs/reliability.md")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[list[Any]] = []
    grown = []
    with tempfile.TemporaryDirectory() as where:
        for case in cases(Path(where)):
            n, left = growth(case, asked.seconds, asked.quick)
            if left > MOST:  # once more: an allocator's pool may grow once, a leak grows always
                n, left = growth(case, asked.seconds, asked.quick)
            rows.append([case.name, n, f"{left / 1024:.0f} kB"])
            grown += [case.name] if left > MOST else []
            print(f"{case.name}: {n:,} calls, {left / 1024:.0f} kB", flush=True)
    summary = (
        f"{len(rows)} functions, {sum(row[1] for row in rows):,} calls; {len(grown)} of them left more than "
        f"{MOST // 1024:,} kB in the second half of their calls."
        f"{f' This was a short campaign: at most {asked.seconds:g} s of calls each.' if asked.quick else ''}"
    )
    print(*(f"FAILED {name}" for name in grown), summary, sep="\n")
    if asked.publish and not grown:
        import reliability_page

        reliability_page.publish("memory", summary, ["what was called", "calls", "growth in their second half"], rows)
    return bool(grown)


if __name__ == "__main__":
    sys.exit(main())
