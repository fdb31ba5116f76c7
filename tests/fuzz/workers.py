"""Workers that are forked, so that a crash or a hang ends one of them and is counted here."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import resource
import signal
import struct
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from found import Row, found_folder

LONGEST, SLEPT = 20, 300  # seconds of one execution, of work and in all: longer is a hang
MEMORY = 1 << 30  # bytes that a worker may ask for beyond what it has at its start
MOST_FAULTS = 10  # then the part is given up

# Returns how many executions it made, or the text of an exception that is not documented.
Once = Callable[[random.Random, Path], int | str]


def run(name: str, once: Once, seconds: float, seed: int, folder: Path) -> Row:
    """Executes `once` again and again in workers, each in its turn; `folder` is theirs, and is kept as it was left by a
    fault."""
    began, executions, crashes, hangs, exceptions = time.monotonic(), 0, 0, 0, 0
    while (left := seconds - (time.monotonic() - began)) > 0 and crashes + hangs + exceptions < MOST_FAULTS:
        counter = mmap.mmap(-1, 16)
        seed += 1
        child = os.fork()
        if child == 0:
            _work(once, random.Random(f"{name} {seed}"), left, counter, folder)
        _, status = os.waitpid(child, 0)
        done, _ = struct.unpack("qq", counter[:16])
        executions += done
        if os.WIFSIGNALED(status):
            is_hang = os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGPROF)
            hangs, crashes = hangs + is_hang, crashes + (not is_hang)
            _keep(name, folder, f"{signal.Signals(os.WTERMSIG(status)).name} in execution {done} of seed {seed}")
        elif os.WEXITSTATUS(status) != 0:
            exceptions += 1
            _keep(name, folder, (folder.parent / "exception.txt").read_text(errors="replace"))
    return Row(name, executions, time.monotonic() - began, crashes, hangs, exceptions)


def _work(once: Once, rng: random.Random, seconds: float, counter: mmap.mmap, folder: Path) -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(folder)  # a name without a folder is a file there
    until, done = time.monotonic() + seconds, 0
    try:
        while time.monotonic() < until:
            signal.setitimer(signal.ITIMER_PROF, LONGEST)
            signal.alarm(SLEPT)
            found = once(rng, folder)
            done += 1 if isinstance(found, str) else found
            counter[:16] = struct.pack("qq", done, 0)
            if isinstance(found, str):
                (folder.parent / "exception.txt").write_text(found)
                os._exit(1)
    except BaseException:
        (folder.parent / "exception.txt").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def _keep(name: str, folder: Path, why: str) -> None:
    kept = found_folder(name.replace(" ", "-").replace(":", "").replace("/", "-"))
    number = len(list(kept.glob("*.txt")))
    (kept / f"{number}.txt").write_text(why)
    with contextlib.suppress(OSError):
        for path in folder.rglob("*"):
            if path.is_file():
                (kept / f"{number}-{path.name}").write_bytes(path.read_bytes())
    print(f"{name}: {why.strip().splitlines()[-1][:300]}", flush=True)
