"""The backends under test, each at every CPU level it has."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

BACKENDS = ("reference", "numba", "cpp")
DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Case:
    backend: str
    level: str | None = None

    @contextmanager
    def use(self) -> Iterator[Any]:
        """The backend's module, with the level in force."""
        module = importlib.import_module(f"fedbuff.backends.{self.backend}")
        if self.level is None:
            yield module
            return
        core = importlib.import_module("fedbuff._core")
        before = core.level()
        assert core.force_level(self.level) and core.level() == self.level
        try:
            yield module
        finally:
            core.force_level(before)

    def __str__(self) -> str:
        return self.backend if self.level is None else f"{self.backend}-{self.level}"


def cases() -> list[Any]:
    """One parameter per backend and level; a backend that is not there is a skip with the reason."""
    found: list[Any] = []
    for backend in BACKENDS:
        try:
            importlib.import_module(f"fedbuff.backends.{backend}")
        except ImportError as error:
            found.append(pytest.param(Case(backend), id=backend, marks=pytest.mark.skip(reason=str(error))))
            continue
        levels = [None] if backend != "cpp" else list(importlib.import_module("fedbuff._core").available_levels())
        found += [pytest.param(Case(backend, level), id=str(Case(backend, level))) for level in levels]
    return found


every_case = pytest.mark.parametrize("case", cases())
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
