"""CPUs that a process may use: affinity and the quotas of control groups, from files made up for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedbuff._base.cpus import usable_cpus

V2_MOUNT = "30 23 0:26 {top} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct\n"
OTHER_MOUNT = "36 31 0:33 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def made(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(quotas: dict[str, str], group: str = "/", top: str = "/") -> dict[str, str]:
    files = {f"sys/fs/cgroup{folder}/cpu.max": text for folder, text in quotas.items()}
    return {"proc/self/cgroup": f"0::{group}\n", "proc/self/mountinfo": V2_MOUNT.format(top=top), **files}


def v1(quota: str, group: str = "/", top: str = "/", folder: str = "") -> dict[str, str]:
    return {
        "proc/self/cgroup": f"9:memory:/other\n4:cpu,cpuacct:{group}\n0::/\n",
        "proc/self/mountinfo": OTHER_MOUNT + V1_MOUNT.format(top=top),
        f"sys/fs/cgroup/cpu,cpuacct{folder}/cpu.cfs_quota_us": quota,
        f"sys/fs/cgroup/cpu,cpuacct{folder}/cpu.cfs_period_us": "100000\n",
    }


@pytest.mark.usefixtures("eight")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),  # no control groups at all
        (v2({"": "max 100000\n"}), 8),
        (v2({"": "100000 100000\n"}), 1),
        (v2({"": "150000 100000\n"}), 2),  # a part of a CPU is one
        (v2({"": "1000 100000\n"}), 1),
        (v2({"": "6400000 100000\n"}), 8),  # more than there are
        (v2({"": "max 100000\n", "/a": "300000 100000\n", "/a/b": "max 100000\n"}, group="/a/b"), 3),  # of a parent
        (v2({"": "200000 100000\n"}, group="/docker/1f", top="/docker/1f"), 2),  # as the host names the group
        (v2({"": "200000 100000\n"}, group="/elsewhere", top="/docker/1f"), 2),
        (v2({"": "garbage\n"}), 8),
        (v2({"": "100000 0\n"}), 8),
        (v1("-1\n"), 8),
        (v1("200000\n"), 2),
        (v1("400000\n", group="/slice/job", folder="/slice"), 4),
        (v1("100000\n", group="/docker/1f", top="/docker/1f"), 1),
        ({"proc/self/cgroup": "broken\n", "proc/self/mountinfo": "broken\n"}, 8),
    ],
)
def test_quota(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert usable_cpus(made(tmp_path, files)) == expected


def test_affinity_without_quota(tmp_path: Path) -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system has no affinity")
    assert usable_cpus(tmp_path) == len(os.sched_getaffinity(0))
