"""`fedbuff bench`: what it prints, what it refuses; and that the loops which it measures with do what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fedbuff import _core, backends
from fedbuff._base.threads import split
from fedbuff._cli.bench import bench
from fedbuff._machine import bench as _bench
from fedbuff._machine import limits as _limits
from fedbuff.backends import cpp

pytestmark = pytest.mark.skipif(
    backends.current().name != "cpp", reason="the machine's limits are measured by the cpp backend"
)
QUICK = ["--seconds", "0.001"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(bench, [*arguments, *QUICK])
    if result.exception is not None:
        raise result.exception
    return result.output


def rates(*arguments: str) -> list[dict[str, Any]]:
    measured = json.loads(run(*arguments, "--json"))
    assert measured["setting"]["cpu"] and measured["setting"]["backend"] == "cpp"
    found: list[dict[str, Any]] = measured["rates"]
    return found


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_aggregate(dtype: str, threads: str) -> None:
    rows = rates("aggregate", "--dim", "100", "--dim", "5000", "-k", "3", "--dtype", dtype, "--threads", threads)
    assert [(row["dim"], row["K"]) for row in rows] == [(100, 3), (5000, 3)]
    for row in rows:
        size = np.dtype(dtype).itemsize
        assert row["GB/s"] == pytest.approx(row["updates/s"] / 3 * 5 * row["dim"] * size / 1e9, rel=0.01)
        assert row["% of limit"] == pytest.approx(100 * row["GB/s"] / row["limit GB/s"], rel=0.01)


def test_sgd_and_replay() -> None:
    for command in ("sgd", "replay"):
        rows = rates(
            command, "--features", "5", "--features", "40", "--classes", "3", "--hidden", "4", "--batch-size", "2",
            "--steps", "2", "--threads", "2",
        )  # fmt: skip
        assert [(row["features"], row["dim"]) for row in rows] == [(5, 39), (40, 179)]
        flops = 2 * 2 * (4 * (5 * 4 + 4 * 3) + 2 * 4 * 3)
        assert rows[0]["GFLOP/s"] == pytest.approx(rows[0]["updates/s"] * flops / 1e9, rel=0.01)
        assert all(row["limit GFLOP/s"] > 0 for row in rows)


def test_schedule() -> None:
    (row,) = rates("schedule", "--in-flight", "7", "--arrivals", "1000", "-k", "5")
    assert (row["in flight"], row["clients"], row["arrivals"]) == (7, 70, 1000)
    assert row["arrivals/s"] > 0 and row["limit rows/s"] > 0


def test_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_limits, "places", lambda: {"L1": 4096, "memory": 1 << 16})
    measured = json.loads(run("machine", "--threads", "1", "--threads", "2", "--dtype", "float32", "--json"))
    where = [(row["place"], row["threads"]) for row in measured["bandwidth"]]
    assert where == [("L1", 1), ("memory", 1), ("L1", 2), ("memory", 2)]
    assert all(row[kind] > 0 for row in measured["bandwidth"] for kind in ("read", "write", "copy"))
    assert [(row["dtype"], row["threads"]) for row in measured["arithmetic"]] == [("float32", 1), ("float32", 2)]
    assert all(row["gemm"] > 0 and row["multiply_add"] > 0 for row in measured["arithmetic"])
    assert measured["clock"] > 0 and all(row["multiply_add"] <= 1.05 * row["peak"] for row in measured["arithmetic"])
    assert measured["caches"]["L1"] > 0 and measured["setting"]["flags"]


def test_the_table_has_a_heading_and_a_row_for_each_size() -> None:
    about, empty, heading, *rows = run("aggregate", "--dim", "64", "--dim", "1000").splitlines()
    assert _core.level() in about and empty == ""
    assert heading.split()[:2] == ["dim", "K"] and [row.split()[0] for row in rows] == ["64", "1000"]
    assert len({len(line) for line in (heading, *rows)}) == 1


def test_the_level_is_in_force_inside_and_not_after() -> None:
    before = _core.level()
    measured = json.loads(run("aggregate", "--dim", "64", "--level", "baseline", "--json"))
    assert measured["setting"]["level used"] == "baseline"
    assert _core.level() == before
    with pytest.raises(ValueError, match=f"'sse9': expected one of .*{before}"):
        run("aggregate", "--level", "sse9")


def test_what_other_backends_can_and_cannot() -> None:
    code = """
import json, sys
from fedbuff._machine import bench as _bench
from fedbuff._machine import limits as _limits
(row,) = _bench.aggregate_rates([100], seconds=0.001)
assert row["GB/s"] > 0 and "% of limit" not in row, row
try:
    _limits.machine([1])
except ValueError as error:
    print(error)
"""
    environment = {**os.environ, "FEDBUFF_BACKEND": "reference"}
    folder = Path(_bench.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "only the cpp backend has it, and reference runs" in done.stdout


@pytest.mark.parametrize(
    "arguments", [["aggregate", "--dim", "0"], ["sgd", "--classes", "1"], ["machine", "--threads", "0"]]
)
def test_options_out_of_range(arguments: list[str]) -> None:
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 2 and "is not in the range" in result.output


@pytest.mark.parametrize("name", ["multiply_add", "read", "write", "copy"])
def test_a_rate_that_the_clock_does_not_allow_stops_the_bench(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_limits, "places", lambda: {"L1": 4096})
    monkeypatch.setattr(_limits, "clock_rate", lambda *_: 1e9)
    monkeypatch.setattr(_limits, "gemm_rate", lambda *_: 1.0)
    lanes = cpp.limits(np.float32).lanes()
    possible = {"multiply_add": 2 * 2 * lanes, "read": 3 * 4 * lanes, "write": 2 * 4 * lanes, "copy": 4 * 4 * lanes}
    for factor in (1.04, 1.06):
        rates = {kind: value * (factor if kind == name else 1.0) for kind, value in possible.items()}
        arithmetic = rates.pop("multiply_add")
        monkeypatch.setattr(_limits, "_bandwidth", lambda *_, rates=rates: rates)
        monkeypatch.setattr(_limits, "best_rate", lambda *_, rate=arithmetic: 1e9 * rate)
        if factor < 1.05:
            assert _limits.machine([1])["clock"] == 1.0
        else:
            with pytest.raises(ValueError, match=f"^{name}: expected at most clock x width x ports = "):
                _limits.machine([1])


def test_a_clock_that_was_measured_too_low_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = iter([1e9, 1e9, 2e9])
    monkeypatch.setattr(_limits, "clock_rate", lambda *_: next(clocks))
    peaks = _limits.Peaks(0.1)
    peaks.require_possible("multiply_add", 7.9 * cpp.limits(np.float64).lanes(), np.dtype(np.float64), 1)
    assert peaks.clock == 2e9


@pytest.mark.parametrize("n", [1, 15, 16, 17, 1000, 4097])
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_split_covers_everything_once(n: int, threads: int) -> None:
    parts = split(n, threads)
    assert len(parts) <= threads and all(part.start % 16 == 0 for part in parts)
    assert np.concatenate([np.arange(n)[part] for part in parts]).tolist() == list(range(n))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_loops_that_measure(dtype: Any) -> None:
    limits = cpp.limits(dtype)
    x, out = np.arange(1000, dtype=dtype), np.zeros(1001, dtype)
    assert limits.copy(x, out[1:], True, 2) > 0
    assert out.tolist() == [0, *range(1000)]
    assert limits.write(out, True, 2) > 0
    assert (out == 1).all()
    assert limits.read([x, out[1:]], 3) > 0
    seconds, operations = limits.multiply_add(1000)
    assert seconds > 0 and operations % 2000 == 0
    seconds, additions = limits.additions(1000)
    assert seconds > 0 and additions % 1000 == 0 and limits.lanes() in (2, 4, 8, 16)
    with pytest.raises(TypeError, match="streams: expected a NumPy array"):
        limits.read([[1.0]], 1)  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"streams: expected shape \(1000,\)"):
        limits.read([x, out], 1)
    with pytest.raises(ValueError, match="out: the array is read-only"):
        x.flags.writeable = False
        limits.write(x, False, 1)
