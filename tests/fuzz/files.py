"""Every kind of file that fedbuff reads, changed: it is read, or a FileError comes. What was read is used then."""

from __future__ import annotations

import random
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import workers
from found import Row, scratch
from mutations import changed

sys.path.insert(0, str(Path(__file__).parents[1] / "base"))
import test_damaged_files as damaged

import fedbuff as fb

STRATEGY = fb.FedBuff(buffer_size=2)


def use_schedule(schedule: fb.Schedule) -> None:
    if schedule.n_clients <= 100 and schedule.n_steps <= 10_000:
        problem = fb.Quadratic(np.zeros((schedule.n_clients, 2)))
        fb.replay(problem, schedule, fb.LocalSGD(1, 0.1), strategy=STRATEGY, threads=1, progress=False)


def use_server(server: Any) -> None:
    for _ in range(4):
        version, w = server.download()
        try:
            server.upload(0.1 * w, version)
        except OverflowError:  # its numbers are finite, and the next step's are not: nothing was added
            return


def use_delays(source: Any) -> None:
    if isinstance(source, fb.ArrivalLog):
        fb.schedule(source, STRATEGY)
    else:
        fb.schedule(source, STRATEGY, server_steps=3, arrivals=1000)


# What is done with what was read; a ValueError is an answer.
USES: dict[str, Callable[[Any], None]] = {
    "schedule": use_schedule,
    "server": use_server,
    "trace": use_delays,
    "log": use_delays,
}


def run(seconds: float, seed: int, chosen: list[str]) -> Iterator[Row]:
    """All kinds of files, or those chosen, each for the same time."""
    if unknown := set(chosen) - damaged.KINDS.keys():
        raise ValueError(f"files: expected some of {', '.join(damaged.KINDS)}, got {', '.join(unknown)}")
    warnings.simplefilter("ignore")
    wanted = [name for name in chosen or damaged.KINDS if "parquet" not in name or has_pyarrow()]
    yield from (run_kind(name, seconds / len(wanted), seed) for name in wanted)


def has_pyarrow() -> bool:
    """Not under sanitizers, which do not know its allocator."""
    try:
        return find_spec("pyarrow.parquet") is not None
    except ImportError:
        return False


def run_kind(name: str, seconds: float, seed: int) -> Row:
    with scratch() as where:
        folder = Path(where, "files")
        folder.mkdir()
        return workers.run(f"file: {name}", reader(name, folder), seconds, seed, folder)


def reader(name: str, folder: Path) -> workers.Once:
    """Makes a file of the kind in the folder; what is returned changes it and reads it."""
    kind = damaged.KINDS[name]
    use = USES.get(name.partition(".")[0])
    path = kind.make(folder)
    whole = path.read_bytes()

    def once(rng: random.Random, folder: Path) -> str | int:
        data = changed(whole, rng)
        path.write_bytes(damaged.checksummed(data) if name == "checkpoint" else data)
        try:
            value = kind.read(path)
        except fb.FileError as error:
            return 1 if len(str(error)) < 3000 else f"a message of {len(str(error))} characters"
        except Exception:
            return traceback.format_exc()
        try:
            if use is not None:
                use(value)
        except ValueError:
            pass
        except Exception:
            return traceback.format_exc()
        return 1

    return once
