"""Writing files so that a reader sees the old one or the whole new one, and choosing formats by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a path beside `path` to write to; renames it to `path` at the end, or removes it after an error."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield beside
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def optional(module: str, extra: str | None, purpose: str) -> Any:
    """Imports what only an extra (or, with None, nothing of ours) brings; says what to install where it is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        wanted = package if extra is None else f"fedbuff[{extra}]"
        raise ImportError(f"{purpose} needs {package}: pip install {wanted}") from error


def file_format(path: str | os.PathLike[str], known: dict[str, str]) -> str:
    """The format that the name's ending stands for."""
    name = Path(path).name.lower()
    for ending, form in known.items():
        if name.endswith(ending):
            return form
    raise ValueError(f"{name}: the name must end in {', '.join(known)}")
