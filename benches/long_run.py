"""Streams a long schedule and notes how fast it goes and what memory it has, over time: a line of JSON.

    python benches/long_run.py 1000000000

`fedbuff.iter_schedule` over 10,000 clients with exponential delays, 1,000 tasks in flight, buffers of 10, in chunks of
a million rows that are looked at and let go.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import fedbuff as fb

SAMPLES = 100


def resident() -> float:
    """MiB that this process holds now; the most that it ever held where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def stream(arrivals: int) -> dict[str, Any]:
    """Arrivals, seconds and MiB at SAMPLES places of the stream, and the mean staleness of all."""
    delays = fb.DelayModel(n_clients=10_000, compute=fb.Exponential(1.0))
    done, stale, rows = 0, 0, [[0, 0.0, resident()]]
    begin = time.perf_counter()
    for chunk in fb.iter_schedule(
        delays, fb.FedBuff(10), 1000, arrivals=arrivals, chunk=min(1_000_000, arrivals // 10)
    ):
        done += chunk.n_arrivals
        stale += int(chunk.staleness.sum())
        if done * SAMPLES >= arrivals * len(rows):
            rows.append([done, time.perf_counter() - begin, resident()])
    if rows[-1][0] != done:
        rows.append([done, time.perf_counter() - begin, resident()])
    return {"arrivals": done, "staleness": stale / done, "rows": rows}


if __name__ == "__main__":
    print(json.dumps(stream(int(float(sys.argv[1])))))
