"""kills.py [--kills N] [--part i/n] [--publish]: kills processes at random moments, starts each again until it is done,
and compares what came out with a run that nobody killed."""

from __future__ import annotations

import argparse
import functools
import random
import shutil
import sys
import time
from pathlib import Path

import forks
import reliability_page
import survivors
from scratch import scratch


def rounds(case: survivors.Survivor, n_kills: int, rng: random.Random) -> tuple[int, int, float]:
    """Runs a case over and over until so many kills have hit it: kills, runs that came to their end, seconds."""
    began = time.monotonic()
    kills = ended = 0
    expected = None
    with scratch() as where:
        for number in range(10 * n_kills + 2):
            folder = Path(where, str(number))
            folder.mkdir()
            call = functools.partial(case.go, folder)
            if expected is None:
                alone = forks.run(call)
                assert alone.error is None, f"{case.name}: {alone.error}"
                expected, length = alone.value, alone.seconds
            else:
                kills += kill_until_done(case, folder, expected, length, rng)
                ended += 1
            shutil.rmtree(folder)
            if kills >= n_kills:
                return kills, ended, time.monotonic() - began
    raise AssertionError(f"{case.name}: {kills} kills hit it in {ended} runs")


def kill_until_done(case: survivors.Survivor, folder: Path, expected: object, length: float, rng: random.Random) -> int:
    """The kills of one run: each at a random moment, then the same call, at the latest the fifth one to its end."""
    call = functools.partial(case.go, folder)
    for kills in range(5):
        hit = forks.run(call, kill_after=rng.uniform(0.0, 1.1 * length) if kills < 4 else None)
        if not hit.killed:
            assert hit.error is None, f"{case.name}, after {kills} kills: {hit.error}"
            assert hit.value == expected, f"{case.name}, after {kills} kills: something else came out"
            assert not [name for name in survivors.leftovers(folder) if case.saves_once], "a save left its rests"
            return kills
        checked = forks.run(functools.partial(case.check, folder))
        assert checked.error is None, f"{case.name}, after {kills + 1} kills: {checked.error}"
    raise AssertionError(f"{case.name}: it was killed by something else")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="1/1", help="i/n: every n-th case alone, from the i-th on")
    parser.add_argument("--publish", action="store_true", help="write the figures into docs/reliability.md")
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    done: list[reliability_page.Recorded] = []
    shares = [
        (case, asked.kills * (number + 1) // len(survivors.GO_ON) - asked.kills * number // len(survivors.GO_ON))
        for number, case in enumerate(survivors.GO_ON)
    ]
    for case, share in reliability_page.part_of(shares, asked.part):
        kills, ended, seconds = rounds(case, max(1, share), rng)
        done.append(reliability_page.Recorded([case.name, kills, ended, 0], seconds, ""))
        print(f"{case.name}: {kills} kills, {ended} runs to their end, {seconds:.1f} s", flush=True)
        if asked.publish:
            reliability_page.record("kills", done[-1].row, seconds)
    print(summary_of(done))
    if asked.publish:
        cases = reliability_page.recorded("kills")
        columns = ["what was killed", "kills", "runs that came to their end", "other results"]
        summary = f"{summary_of(cases)} {reliability_page.builds(cases)}"
        reliability_page.publish("kills", summary, columns, [case.row for case in cases], seed=asked.seed)


def summary_of(cases: list[reliability_page.Recorded]) -> str:
    """An `other result` ends the campaign, so that there is none among these."""
    total, minutes = sum(case.row[1] for case in cases), sum(case.seconds for case in cases) / 60
    return f"{total:,} kills in {minutes:.1f} minutes; 0 runs ended with other bits, 0 files were damaged."


if __name__ == "__main__":
    sys.exit(main())
