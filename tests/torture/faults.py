"""faults.py [--part i/n] [--quick] [--publish]: fails each system call of each save in turn, with each fault, and kills
the process at each of them.

Starts itself again under the shim (`fault_shim.c`, LD_PRELOAD). What must hold after a fault: the call raised an
OSError that names a file of the save, or did its work; every file is the old one or the whole new one; the same call
works once the fault is gone, and gives what it always gives.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import reliability_page
from scratch import scratch

HERE = Path(__file__).parent
ONCE, FROM, HALF, KILL_BEFORE, KILL_AFTER = 1, 2, 3, 4, 5


class Fault(NamedTuple):
    name: str
    action: int
    error: int = 0

    @property
    def kills(self) -> bool:
        return self.action in (KILL_BEFORE, KILL_AFTER)


FAULTS = [
    Fault("the disk is full from there on (ENOSPC)", FROM, errno.ENOSPC),
    Fault("read-only from there on (EROFS)", FROM, errno.EROFS),
    Fault("the disk fails once (EIO)", ONCE, errno.EIO),
    Fault("half of a write is done", HALF),
    Fault("killed before the call", KILL_BEFORE),
    Fault("killed after the call", KILL_AFTER),
]


def build(folder: Path) -> Path:
    """The shim, compiled."""
    shim = folder / "fault_shim.so"
    compiler = os.environ.get("CC", "gcc")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", str(HERE / "fault_shim.c"), "-o", str(shim), "-ldl"], check=True
    )
    return shim


class Shim:
    """The shim that this process was started with."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self._library.fault_disarm.restype = self._library.fault_hit.restype = ctypes.c_long

    def arm(self, folder: Path, n: int, fault: Fault) -> None:
        self._library.fault_arm(os.fsencode(folder), ctypes.c_long(n), fault.action, fault.error)

    def disarm(self) -> int:
        return int(self._library.fault_disarm())

    @property
    def hit(self) -> bool:
        return bool(self._library.fault_hit())


class Trial:
    """One case in one folder: with what an earlier call left there, or with nothing."""

    def __init__(self, case: Any, shim: Shim, where: Path, with_old: bool) -> None:
        self.case, self.shim, self.where = case, shim, where
        self.old = where / "old"
        self.old.mkdir()
        if with_old:
            case.go(self.old)
        self.folder = self._fresh()
        shim.arm(self.folder, 0, Fault("none", 0))
        self.expected = case.go(self.folder)
        self.n_calls = shim.disarm()

    def _fresh(self) -> Path:
        folder = self.where / "new"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.old, folder)
        return folder

    def meet(self, n: int, fault: Fault) -> bool:
        """Whether the fault was met at the n-th call, and was survived; AssertionError where it was not."""
        import forks

        folder = self._fresh()
        what = f"{self.case.name}: {fault.name}, call {n}"
        if fault.kills:
            ended = forks.run(functools.partial(self._faulty, folder, n, fault))
            met = ended.killed
            assert ended.error is None, f"{what}: {ended.error}"
        else:
            met = self._faulty(folder, n, fault)
        self.case.check(folder)
        again = self.case.go(folder)
        assert again == self.expected, f"{what}: the next call gives something else"
        self.case.check(folder)
        return met

    def _faulty(self, folder: Path, n: int, fault: Fault) -> bool:
        what = f"{self.case.name}: {fault.name}, call {n}"
        self.shim.arm(folder, n, fault)
        try:
            try:
                found = self.case.go(folder)
            finally:
                self.shim.disarm()
            assert found == self.expected, f"{what}: something else came out"
        except OSError as error:
            assert self.shim.hit, f"{what}: {error!r} without a fault"
            assert error.errno == fault.error, f"{what}: {error!r}"
            name = os.fspath(error.filename or "")
            assert name.startswith(str(folder)), f"{what}: {error!r} names no file"
            assert not name.endswith(".part"), f"{what}: {error!r} names the file beside"
        return self.shim.hit


def calls_of(n_calls: int, most: int | None) -> Iterator[int]:
    """Each call, or so many of them, the first and the last ones among them."""
    if most is None or n_calls <= most:
        yield from range(1, n_calls + 1)
    else:
        yield from sorted({1 + round(place * (n_calls - 1) / (most - 1)) for place in range(most)})


def campaign(quick: bool, part: str, keep: bool) -> tuple[list[reliability_page.Recorded], list[str]]:
    import survivors

    shim, failures = Shim(), []
    done: list[reliability_page.Recorded] = []
    for case in reliability_page.part_of((*survivors.SAVES, *survivors.GO_ON), part):
        began, failed = time.monotonic(), len(failures)
        met, calls = dict.fromkeys(FAULTS, 0), 0
        for with_old in (True, False) if not quick else (True,):
            with scratch() as where:
                trial = Trial(case, shim, Path(where), with_old and case.saves_once)
                calls = max(calls, trial.n_calls)
                most = None if not quick else 6 if case.saves_once else 3
                for fault in FAULTS if not quick else (FAULTS[0], FAULTS[2], FAULTS[4]):
                    for n in calls_of(trial.n_calls, most):
                        try:
                            met[fault] += trial.meet(n, fault)
                        except Exception as error:
                            failures.append(f"{type(error).__name__}: {error}")
            if not case.saves_once:
                break
        done.append(reliability_page.Recorded([case.name, calls, *met.values()], time.monotonic() - began, ""))
        print(f"{case.name}: {calls} calls, {sum(met.values())} faults", flush=True)
        if keep and len(failures) == failed:
            reliability_page.record("faults", done[-1].row, done[-1].seconds)
    return done, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="1/1", help="i/n: every n-th save alone, from the i-th on")
    parser.add_argument("--quick", action="store_true", help="some calls of each save, as in the tests")
    parser.add_argument("--publish", action="store_true", help="write the figures into docs/reliability.md")
    asked = parser.parse_args()
    if asked.quick and asked.publish:
        parser.error("--publish: expected a campaign that is not --quick")
    if "LD_PRELOAD" not in os.environ:
        with scratch() as where:
            environment = {**os.environ, "LD_PRELOAD": str(build(Path(where)))}
            return subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode
    done, failures = campaign(asked.quick, asked.part, asked.publish)
    for failure in failures[:20]:
        print(f"FAILED {failure}")
    print(summary_of(done, len(failures)))
    if asked.publish and not failures:
        cases = reliability_page.recorded("faults")
        columns = ["what was saved", "system calls", *(fault.name for fault in FAULTS)]
        summary = f"{summary_of(cases, 0)} {reliability_page.builds(cases)}"
        reliability_page.publish("faults", summary, columns, [case.row for case in cases])
    return bool(failures)


def summary_of(done: list[reliability_page.Recorded], n_failures: int) -> str:
    total, minutes = sum(sum(case.row[2:]) for case in done), sum(case.seconds for case in done) / 60
    return f"{total:,} faults in {minutes:.1f} minutes; {n_failures} were not survived."


if __name__ == "__main__":
    sys.exit(main())
