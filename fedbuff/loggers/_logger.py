"""What all loggers share: rows in, and an end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Self


class Logger(ABC):
    """Called with each row; closed once."""

    _closed = False

    def __call__(self, row: Mapping[str, float]) -> None:
        """Logs one row of a history; `step` is its server step."""
        if self._closed:
            raise ValueError(f"{type(self).__name__}: expected no row after close(), got step {row['step']:.0f}")
        self._log(int(row["step"]), {name: float(value) for name, value in row.items() if name != "step"})

    def close(self, *, failed: bool = False) -> None:
        """Ends the log; `failed` is told to tools that know how a run ended. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._close(failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=kind is not None)

    @abstractmethod
    def _log(self, step: int, values: dict[str, float]) -> None: ...

    @abstractmethod
    def _close(self, failed: bool) -> None: ...
