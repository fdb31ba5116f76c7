"""What heads every result: CPU, feature level, compiler, flags, versions, and what the machine can do at best.

`python benches/machine.py [--json] [--threads 1 2] [--seconds 0.2]`. Run it on a quiet machine: the limits are what
every share on the performance page is a share of.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
from typing import Any

from fedbuff._machine import bench as _bench
from fedbuff._machine import limits as _limits

RIVALS = ("numba", "scipy", "jax", "torch")


def describe(threads: tuple[int, ...] = (1, 2), seconds: float = 0.2) -> dict[str, Any]:
    usable = len(os.sched_getaffinity(0))
    return _limits.machine([n for n in threads if n <= usable], ("float32", "float64"), seconds=seconds)


def heading(setting: dict[str, Any]) -> list[str]:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in RIVALS if installed(name)]
    return [
        f"{setting['cpu']}, {setting['cores']} cores, {setting['system']}",
        f"fedbuff {setting['version']} ({setting['backend']}, {setting['level used']}), Python {setting['python']}",
        f"{setting['compiler']}: {setting['flags']}",
        ", ".join([f"numpy {setting['numpy']}", *versions]),
    ]


def installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def tables(measured: dict[str, Any]) -> list[str]:
    """Markdown: bandwidth in GB/s and arithmetic in GFLOP/s."""
    lines = ["| place | working set | threads | read | write | copy |", "|---|---|---|---|---|---|"]
    for row in measured["bandwidth"]:
        size = f"{row['MiB']:.3g} MiB"
        rates = " | ".join(f"{row[kind]:.3g}" for kind in ("read", "write", "copy"))
        lines.append(f"| {row['place']} | {size} | {row['threads']} | {rates} |")
    lines += [
        "",
        "| dtype | threads | matrix product (NumPy's BLAS) | multiply-adds in registers | clock x width x 2 |",
        "|---|---|---|---|---|",
    ]
    for row in measured["arithmetic"]:
        rates = " | ".join(f"{row[kind]:.3g}" for kind in ("gemm", "multiply_add", "peak"))
        lines.append(f"| {row['dtype']} | {row['threads']} | {rates} |")
    return [
        *lines,
        "",
        f"The clock is {measured['clock']:.3g} GHz, by additions that wait for each other. The last column is two",
        "multiply-adds of whole vectors in every cycle; a CPU whose units are narrower than its vectors reaches half",
        "of it. The bench stops with an error where a rate is more than 5 % above what the clock allows.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    measured = describe(tuple(options.threads), options.seconds)
    print(
        _bench.as_json(measured) if options.json else "\n".join([*heading(measured["setting"]), "", *tables(measured)])
    )


if __name__ == "__main__":
    main()
