"""Folders for files that are made, read and forgotten."""

from __future__ import annotations

import tempfile
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder that goes at the end; in memory where that is possible, so that nothing waits for a disk.

    A killed process, and a system call that a shim fails, find there what they find on a disk.
    """
    return tempfile.TemporaryDirectory(prefix="fedbuff-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None)
