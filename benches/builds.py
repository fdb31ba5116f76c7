"""Two builds of fedbuff in turn on the same core: does a change cost speed?

    python benches/builds.py OLD/.venv/bin/python NEW/.venv/bin/python
    python benches/builds.py OLD/.venv/bin/python NEW/.venv/bin/python --only W2 upload --turns 30

Each interpreter imports the fedbuff that is installed for it and takes turns with the other, pinned to one core. The
old build takes part twice, so that its spread against itself is known: a ratio (new rate / old rate, by best turns)
passes at 0.98, or at the old build's ratio to itself where that is lower. Only public names are used here, so that the
script runs with any two builds. The schedules of W1 to W3 are made by the old build and read by both, so that a change
of how clients are drawn leaves the bits of a replay alone; what makes its own schedules (W5, sweeps) gives other bits
then, which --other-draws allows. Where a call takes some hundred nanoseconds, as `upload` does, the place of the code
counts as well: the same objects linked in another order may differ by more than the bar. The script exits with 1 where
a ratio does not pass, or where the builds give other bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BAR = 0.98
Work = Callable[[], tuple[float, bytes]]  # one turn's work: its amount, and the bits that it gave


def replay(name: str, updates: int) -> Work:
    import numpy as np
    from rivals.data import initial_model, rows_of, workload

    import fedbuff as fb

    w = workload(name)
    X, y = rows_of(w)
    rows = X.reshape(-1, w.features), y.ravel(), np.arange(w.n_clients + 1) * w.rows
    problem = (
        fb.Logistic(*rows) if w.outputs == 1 else fb.MLP(*rows, hidden=(w.hidden,)) if w.hidden else fb.Softmax(*rows)
    )
    strategy = fb.FedBuff(w.buffer_size)
    delays = fb.DelayModel(n_clients=w.n_clients, compute=fb.Exponential(1.0))
    local = fb.LocalSGD(w.steps, w.lr, w.batch)
    file = Path(os.environ["FEDBUFF_BUILDS_FOLDER"]) / f"{name}.npz"
    if not file.exists():  # the old build is the first to come here
        fb.schedule(delays, strategy, w.in_flight, server_steps=updates // w.buffer_size).save(file)
    schedule = fb.load_schedule(file)

    def run() -> tuple[float, bytes]:
        result = fb.replay(problem, schedule, local, w0=initial_model(w), threads=1)
        return float(updates), result.w.tobytes()

    return run


def aggregate(dim: int) -> Work:
    import numpy as np

    import fedbuff as fb

    rng = np.random.default_rng(0)
    deltas = [rng.standard_normal(dim, np.float32) for _ in range(10)]
    model, out = rng.standard_normal(dim, np.float32), np.empty(dim, np.float32)

    def run() -> tuple[float, bytes]:
        fb.aggregate(model, deltas, np.ones(10), lr=0.1, out=out, threads=1)
        return 1.0, out[:1000].tobytes()

    return run


def schedule(in_flight: int, arrivals: int) -> Work:
    import fedbuff as fb

    delays = fb.DelayModel(n_clients=10 * in_flight, compute=fb.Exponential(1.0))

    def run() -> tuple[float, bytes]:
        made = fb.schedule(delays, fb.FedBuff(10), in_flight, arrivals=arrivals)
        return float(arrivals), made.client[-1000:].tobytes() + made.arrive_time[-1000:].tobytes()

    return run


def upload(dim: int) -> Work:
    import numpy as np

    import fedbuff as fb

    delta = np.full(dim, 1e-9)

    def run() -> tuple[float, bytes]:
        server = fb.Server(np.zeros(dim), fb.FedBuff(10))
        for _ in range(20_000):
            version, _ = server.download()
            server.upload(delta, version)
        return 20_000.0, server.w.tobytes()

    return run


def sweep(runs: int) -> Work:
    import numpy as np
    from rivals.data import FOLDER, rows_of, workload

    import fedbuff as fb

    w = workload("W2")
    X, y = rows_of(w)
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / f"builds-{os.getpid()}.npz"
    np.savez(file, X=X.reshape(-1, w.features), y=y.ravel(), clients=np.arange(w.n_clients * w.rows) // w.rows)
    config = fb.StudyConfig(
        {
            "problem": {"kind": "logistic", "data": str(file)},
            "trace": {"kind": "model", "n_clients": w.n_clients, "compute": {"kind": "exponential", "scale": 1.0}},
            "strategy": {"kind": "fedbuff", "buffer_size": 10},
            "local": {"steps": 1, "lr": 0.1, "batch_size": 4},
            "schedule": {"concurrency": 100, "server_steps": 1000},
            "replay": {"eval_every": 1000},
        }
    )
    config.problem  # noqa: B018  read before the first turn
    file.unlink()

    def run() -> tuple[float, bytes]:
        results = fb.sweep(config, seeds=range(runs), progress=False, threads=1)
        return float(runs), np.sort(results.column("loss")).tobytes()

    return run


WORK: dict[str, Callable[[], Work]] = {
    "W1": lambda: replay("W1", 4000),
    "W2": lambda: replay("W2", 1_000_000),
    "W3": lambda: replay("W3", 600),
    "W4 10^6": lambda: aggregate(10**6),
    "W4 2.5 10^7": lambda: aggregate(25 * 10**6),
    "W5 100": lambda: schedule(100, 2_000_000),
    "W5 10^4": lambda: schedule(10**4, 2_000_000),
    "W5 10^6": lambda: schedule(10**6, 4_000_000),
    "upload 8": lambda: upload(8),
    "sweep W2": lambda: sweep(20),
}

DRAWS = ("W5", "sweep")  # what draws clients in every turn


def take_turns(name: str) -> None:
    """The other side of `Build`: ready, then a turn of so many seconds for every line."""
    sys.path.insert(0, str(HERE))
    run = WORK[name]()
    _, bits = run()
    print(json.dumps({"bits": hashlib.sha256(bits).hexdigest()}), flush=True)
    for line in sys.stdin:
        amount, begin = 0.0, time.process_time()
        while time.process_time() - begin < float(line):
            amount += run()[0]
        print(json.dumps({"rate": amount / (time.process_time() - begin)}), flush=True)


class Build:
    """One build's process for one workload."""

    def __init__(self, python: str, name: str, folder: str) -> None:
        core = max(os.sched_getaffinity(0))
        self._process = subprocess.Popen(
            [python, str(HERE / "builds.py"), "--worker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "FEDBUFF_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "FEDBUFF_BUILDS_FOLDER": folder},
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
        self.bits = self._answer()["bits"]
        self.best = 0.0

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args}: it ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def turn(self, seconds: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        self.best = max(self.best, self._answer()["rate"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(old: str, new: str, name: str, turns: int, seconds: float, other_draws: bool) -> bool:
    """Prints a line for one workload; whether it passes."""
    with tempfile.TemporaryDirectory() as folder:
        builds = [Build(python, name, folder) for python in (old, new, old)]
    for turn in range(turns):
        for at in range(3):
            builds[(turn + at) % 3].turn(seconds)
    for build in builds:
        build.close()
    first, second, again = builds
    itself = min(first.best, again.best) / max(first.best, again.best)
    ratio = second.best / max(first.best, again.best)
    same = first.bits == second.bits
    allowed = other_draws and name.startswith(DRAWS)
    fast = ratio >= min(BAR, itself)
    bits = "same bits" if same else "other draws" if allowed else "OTHER BITS"
    print(
        f"| {name} | {second.best:.4g} | {ratio:.3f} | {itself:.3f} | {bits} |{'' if fast else ' too slow'}", flush=True
    )
    return fast and (same or allowed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", help="the interpreter that has the old build")
    parser.add_argument("new", nargs="?", help="the interpreter that has the new one")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="NAME", help=f"of {', '.join(WORK)}; a beginning will do"
    )
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3, help="that a turn lasts at least")
    parser.add_argument(
        "--other-draws", action="store_true", help="the builds draw the clients of a schedule differently"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        take_turns(options.worker)
        return
    if options.new is None:
        parser.error("give two interpreters")
    print("| work | new, per second | new / old | old / itself | |\n|---|---|---|---|---|")
    names = [name for name in WORK if name.startswith(tuple(options.only))]
    results = [
        compare(options.old, options.new, name, options.turns, options.seconds, options.other_draws) for name in names
    ]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
