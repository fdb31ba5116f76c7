"""How many CPUs this process may use: the smaller of its affinity and the quota of its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from math import ceil
from pathlib import Path, PurePosixPath

__all__ = ["usable_cpus"]


def usable_cpus(root: Path = Path("/")) -> int:
    """The CPUs that this process may use at once, at least 1.

    On Linux a control group may grant less CPU time than the machine has cores: a container started with `--cpus=1`
    sees all cores of its host, and threads beyond its quota stop each other. A quota of 1.5 CPUs counts as 2. It is
    read once; `root` is where /proc and the control groups are looked for.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(root)
    return cpus if quota >= cpus else max(1, ceil(quota))


@cache
def _quota(root: Path) -> float:
    """The CPUs that the control groups of this process grant; infinite where none sets a limit."""
    quotas = [float("inf")]
    for line in _lines(root / "proc/self/cgroup"):
        if line.count(":") < 2:
            continue
        _, controllers, group = line.split(":", 2)
        if not controllers:
            quotas += [_quota_v2(folder) for folder in _folders(root, "cgroup2", "", group)]
        elif "cpu" in controllers.split(","):
            quotas += [_quota_v1(folder) for folder in _folders(root, "cgroup", "cpu", group)]
    return min(quotas)


def _folders(root: Path, kind: str, controller: str, group: str) -> Iterator[Path]:
    """Where a control group and all above it are mounted: each may have a quota."""
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, file_system = line.partition(" - ")
        fields, described = mount.split(), file_system.split()
        if len(fields) < 5 or len(described) < 3 or described[0] != kind:
            continue
        if controller and controller not in described[2].split(","):
            continue
        top, point = fields[3], fields[4]
        # In a container the group may be named as its host sees it, while the mount shows the container's part alone.
        path = PurePosixPath(group)
        inside = path.relative_to(top) if path.is_relative_to(top) else PurePosixPath(".")
        for folder in (inside, *inside.parents):
            yield root / point.lstrip("/") / folder


def _quota_v2(folder: Path) -> float:
    quota, _, period = "".join(_lines(folder / "cpu.max")[:1]).partition(" ")
    return _ratio(quota, period)


def _quota_v1(folder: Path) -> float:
    quota, period = ("".join(_lines(folder / f"cpu.cfs_{name}_us")[:1]) for name in ("quota", "period"))
    return _ratio(quota, period)


def _ratio(quota: str, period: str) -> float:
    """Microseconds granted in a period of so many; "max" and -1 are no limit."""
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return float("inf")
    return int(quota) / int(period)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
