"""Which server steps had noise of the operating system drawn for them, and how often.

Such noise cannot be drawn again: a replay that is killed and goes on from its checkpoint makes the steps in between
once more, with other noise, and whoever saw both models saw two releases of the same updates. So the steps are noted
before their noise is drawn, in a file beside the checkpoint that is only ever added to: a line "begin end" for steps
begin, ..., end - 1, on the disk before they are made. The first line names the run, so that a checkpoint knows its own.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .._base.files import naming, replacing

__all__ = ["NoiseLedger", "ledger_path"]

_HEAD = "fedbuff-noise 1"


def ledger_path(path: str | os.PathLike[str]) -> Path:
    """The file of a ledger: beside the saved replay."""
    saved = Path(path)
    return saved.with_name(f"{saved.name}.noise")


class NoiseLedger:
    """The steps whose noise was drawn, in memory and in the files beside the saved replays of a run."""

    def __init__(self, run: str | None = None) -> None:
        self.run = secrets.token_hex(16) if run is None else run
        self._ranges: list[tuple[int, int]] = []
        self._files: list[Path] = []

    def draw(self, begin: int, end: int) -> None:
        """Notes steps whose noise is drawn next; it is on the disk when this returns."""
        if begin >= end:
            return
        for file in self._files:
            _append(file, [(begin, end)])
        self._note(begin, end)

    def _note(self, begin: int, end: int) -> None:
        if self._ranges and self._ranges[-1][1] == begin:
            begin = self._ranges.pop()[0]
        self._ranges.append((begin, end))

    def attach(self, path: str | os.PathLike[str]) -> None:
        """From now on also writes beside a replay that is saved at `path`, with all that was noted so far."""
        file = ledger_path(path).absolute()
        if file in self._files and file.exists():
            return
        if file.exists() and _read(file)[0] == self.run:
            _append(file, self._ranges)  # it may know of steps that this replay does not: it keeps them
        else:
            with replacing(file) as beside:
                lines = [f"{_HEAD} {self.run}", *(f"{begin} {end}" for begin, end in self._ranges)]
                beside.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        if file not in self._files:
            self._files.append(file)

    @classmethod
    def read(cls, path: str | os.PathLike[str], run: str) -> NoiseLedger:
        """The ledger beside a saved replay of this run; a ValueError where it is not there."""
        file = ledger_path(path).absolute()
        if not file.exists():
            raise ValueError(f"{path}: expected {file.name} beside it, which says what noise was drawn; it is missing")
        found, ranges = _read(file)
        if found != run:
            raise ValueError(f"{path}: expected its own ledger of noise in {file.name}, got that of another run")
        made = cls(run)
        for begin, end in ranges:
            made._note(begin, end)
        made._files.append(file)
        return made

    def releases(self) -> NDArray[np.int64]:
        """How often the noise of step 0, 1, ... was drawn."""
        steps = np.zeros(max((end for _, end in self._ranges), default=0) + 1, np.int64)
        for begin, end in self._ranges:
            steps[begin] += 1
            steps[end] -= 1
        counts: NDArray[np.int64] = np.cumsum(steps)[:-1]
        return counts


def _append(file: Path, ranges: list[tuple[int, int]]) -> None:
    with naming(file), file.open("a", encoding="ascii") as stream:
        stream.writelines(f"{begin} {end}\n" for begin, end in ranges)
        stream.flush()
        os.fsync(stream.fileno())


def _read(file: Path) -> tuple[str, list[tuple[int, int]]]:
    """The run and the steps. A last line that was not written to its end is removed: its noise was never drawn."""
    text = file.read_text(encoding="ascii", errors="replace")
    whole, newline, torn = text.rpartition("\n")
    head, *lines = whole.split("\n")
    if not head.startswith(f"{_HEAD} ") or not newline:
        raise ValueError(f"{file}: expected a ledger of noise, which begins with {_HEAD!r}")
    ranges = []
    for number, line in enumerate(lines, 2):
        begin, _, end = line.partition(" ")
        if not (begin.isdecimal() and end.isdecimal() and int(begin) < int(end) < 2**48):
            raise ValueError(f"{file}: line {number}: expected two steps, begin < end, got {line[:40]!r}")
        ranges.append((int(begin), int(end)))
    if torn:
        with replacing(file) as beside:
            beside.write_text(whole + newline, encoding="ascii")
    return head.removeprefix(f"{_HEAD} "), ranges
