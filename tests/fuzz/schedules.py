"""Random traces and strategies: the compiled event loop and the check against their specification.

The draws and the comparison are those of tests/schedule/test_resolve_oracle.py: each of its tests that Hypothesis
feeds is run with seeds of its own, again and again.
"""

from __future__ import annotations

import random
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import workers
from found import Row, scratch
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parents[1] / "schedule"))
import test_resolve_oracle as oracle

AT_ONCE = 20


def run(seconds: float, seed: int) -> Iterator[Row]:
    warnings.simplefilter("ignore")
    tests = {name: test for name, test in vars(oracle).items() if hasattr(test, "hypothesis")}
    for name, test in tests.items():
        yield run_test(name.removeprefix("test_").replace("_", " "), test, seconds / len(tests), seed)


def run_test(name: str, test: Any, seconds: float, seed: int) -> Row:
    inner, done = test.hypothesis.inner_test, [0]

    def counted(*arguments: Any, **options: Any) -> None:
        done[0] += 1
        inner(*arguments, **options)

    test.hypothesis.inner_test = counted
    # Settings cannot be given twice: these take the place of the test's own.
    test._hypothesis_internal_use_settings = settings(
        max_examples=AT_ONCE, deadline=None, derandomize=False, database=None, suppress_health_check=list(HealthCheck)
    )

    def once(rng: random.Random, folder: Path) -> str | int:
        before = done[0]
        try:
            hypothesis.seed(rng.randrange(2**62))(test)()
        except Exception:
            return traceback.format_exc()
        return done[0] - before

    with scratch() as where:
        folder = Path(where, "files")
        folder.mkdir()
        return workers.run(f"schedules: {name}", once, seconds, seed, folder)
