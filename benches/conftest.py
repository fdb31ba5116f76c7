"""Machine and limits above every result, and a fixture that compares contenders."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import machine
import pytest
from compare import Measured, Missing, Ratio, compare, present, ratio

from fedbuff._machine import limits as _limits

FULL = os.environ.get("FEDBUFF_BENCH_FULL") == "1"
TURNS = 7 if FULL else 3


def pytest_report_header() -> list[str]:
    measured = machine.describe(seconds=0.1)
    return [*machine.heading(measured["setting"]), "", *machine.tables(measured), ""]


def pytest_benchmark_update_machine_info(config: Any, machine_info: dict[str, Any]) -> None:
    machine_info["fedbuff"] = _limits.setting()


Beside = Callable[..., tuple[list[Measured], list[Ratio]]]


@pytest.fixture
def beside(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> Beside:
    """beside("ours ...", "rival ..."): measures in turn, and puts rates and ratios on the record and on the screen.

    Contenders that are not installed are left out; where that leaves nobody to compare with, the test is skipped.
    """

    def run(*texts: str, cores: int = 1) -> tuple[list[Measured], list[Ratio]]:
        here = present(texts)
        if len(here) < 2:
            pytest.skip(f"not installed: {', '.join(sorted({*texts} - {*here}))}")
        try:
            results = benchmark.pedantic(compare, args=(here,), kwargs={"turns": TURNS, "cores": cores}, rounds=1)
        except Missing as error:
            pytest.skip(str(error))
        ratios = [ratio(results[0], other) for other in results[1:]]
        benchmark.extra_info.update({result.text: result.rate for result in results})
        with capsys.disabled():
            print()
            for result, times in zip(results, ["", *map(str, ratios)], strict=True):
                print(f"  {result.text:45} {result.rate:12.5g} /s  {times}")
        return results, ratios

    return run
