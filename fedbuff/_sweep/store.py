"""The rows of a sweep: columns in memory, or parts in a folder, each of which is written whole or not at all.

OUT/sweep.json       what was asked: base tables, arms, seeds; and on what it ran
OUT/parts/           one data set: part-<number>.parquet (or .npz), of many runs each, and failed.parquet
OUT/lock             held by the process that writes

A finished run is in one part and in no other. Failed runs are not finished: they stand in one part of their own, which
goes when the sweep is resumed, and are tried again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from .._base.checks import path_of
from .._base.files import FileError, make_folder, read_json, reading, replacing, sync_folder
from .._study.run_folder import write_json
from .columns import HISTORY, TYPES, Column, Row, Schema, as_cell, column_of, joined
from .parts import default_format, part_format, read_part

__all__ = ["ROWS", "FolderStore", "MemoryStore", "read_about"]

_BESIDE = ".sweep.json.*.part"  # what becomes sweep.json
_NEW, _OLD, _GENERATION = ".parts-new", ".parts-old", ".generation"
ROWS = ".fedbuff-rows-"  # begins the names of folders with data that workers map
FORMAT = "fedbuff-sweep"
FORMAT_NUMBER = 1

_KEYS: Schema = {"run": "text", "arm": "int", "seed": "seed", "status": "text", "history.step": "ints"}  # every sweep's
_ROWS_A_PART = 20_000
_SECONDS_A_PART = (5.0, 60.0)  # at first, and at most
_MANY_PARTS = 200


class MemoryStore:
    """Rows of a sweep without a folder."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._rows: list[Row] = []
        self._seen: set[str] = set()

    def add(self, rows: Iterable[Row]) -> None:
        """Keeps the rows of runs that it does not have yet: after Ctrl-C in this call the caller gives them again."""
        for row in rows:
            if row["run"] not in self._seen:
                self._seen.add(row["run"])
                self._rows.append(row)

    def flush_if_due(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def read(self, names: Sequence[str]) -> dict[str, Column]:
        return {name: column_of(self.schema[name], [row.get(name) for row in self._rows]) for name in names}


def read_about(out: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a sweep's sweep.json."""
    path = path_of("out", out) / "sweep.json"
    if not path.is_file():
        raise FileError("not a sweep's folder: it has no sweep.json", out)
    what = "a sweep's description"
    about = read_json(path, what)
    with reading(path, what):
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise ValueError("it holds something else")
        if about.get("format_number") != FORMAT_NUMBER:
            raise ValueError(f"its format is number {about.get('format_number')}, this reader's is {FORMAT_NUMBER}")
        if about["parts"] not in ("parquet", "npz"):
            raise ValueError(f"its parts are {about['parts']!r}")
        columns = about.get("columns", _KEYS)
        if (
            not isinstance(columns, dict)
            or not set(columns.values()) <= TYPES.keys()
            or not _KEYS.keys() <= columns.keys()
        ):
            raise ValueError("its columns are not those of a sweep")
        if not isinstance(about.get("generation", 0), int):
            raise ValueError(f"its generation is {about['generation']!r}")
    made: dict[str, Any] = about
    return made


def _is_left(entry: Path) -> bool:
    """Whether a sweep that was killed before its first row leaves this in its folder."""
    return (
        entry.name == "lock"
        or entry.match(_BESIDE)
        or (entry.name == "parts" and entry.is_dir() and not any(entry.iterdir()))
    )


class FolderStore:
    """The parts of a sweep's folder: `open` to write, or the constructor to read."""

    def __init__(self, out: str | os.PathLike[str], about: Mapping[str, Any] | None = None) -> None:
        self.path = path_of("out", out)
        self.about = read_about(out) if about is None else dict(about)
        self._format = part_format(self.about["parts"])
        self._lock: int | None = None  # a descriptor
        # Number and rows of the next part; both change at once, so that Ctrl-C has it written again and not twice.
        self._next: tuple[int, list[Row]] = 0, []
        self._seen: set[str] = set()
        self._failed: list[Row] = []
        self._failed_written = 0
        self._interval = _SECONDS_A_PART[0]
        self._flushed = time.monotonic()
        self.schema: Schema = self.about.get("columns", _KEYS)

    @classmethod
    def open(cls, out: str | os.PathLike[str], about: Mapping[str, Any], *, resume: bool) -> FolderStore:
        """The folder, made or gone on with, for this process alone; `about` is written where there is none yet."""
        path = path_of("out", out)
        begun = (path / "sweep.json").is_file()
        if path.is_dir() and not begun and not all(map(_is_left, path.iterdir())):
            raise ValueError(f"{path}: it is there already and not a sweep's; give another folder")
        if begun and not resume:
            raise ValueError(f"{path}: it holds a sweep already; resume it, or give another folder")
        made = {"format": FORMAT, "format_number": FORMAT_NUMBER, "parts": default_format(), **about}
        make_folder(path, exist_ok=True)
        lock = os.open(path / "lock", os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{path}: another process is at work on this sweep") from None
            except OSError as error:
                raise OSError(error.errno, f"cannot lock: {error.strerror}", str(path / "lock")) from error
            if not (path / "sweep.json").is_file():
                write_json(path / "sweep.json", made)
            store = cls(path)
            store._recover()
        except BaseException:
            with suppress(OSError):
                os.close(lock)
            raise
        store._lock = lock
        _held.add(store)
        return store

    # Reading

    def _parts(self) -> list[Path]:
        return sorted(self._folder().glob(f"*{self._format.ending}"))

    def _numbered(self) -> list[Path]:
        return [part for part in self._parts() if part.stem.removeprefix("part-").isdecimal()]

    def read(self, names: Sequence[str]) -> dict[str, Column]:
        kinds = {name: self.schema[name] for name in names}
        pieces = [read_part(self._format, part, kinds) for part in self._parts()]
        return {name: joined([piece[name] for piece in pieces], kind) for name, kind in kinds.items()}

    def finished(self) -> list[str]:
        """The ids of the runs that are done."""
        kinds: Schema = {"run": "text"}
        parts = (read_part(self._format, part, kinds) for part in self._numbered())
        return [str(run) for columns in parts for run in np.asarray(columns["run"])]

    # Writing

    def prepare(
        self, schema: Schema, about: Mapping[str, Any], cells_of: Callable[[str], Row], *, renumbered: bool
    ) -> None:
        """Before the first row: failed runs are forgotten, and parts of other columns, or of other numbers of arms,
        written anew. `about` takes the place of what sweep.json said of the request.

        cells_of  the number of a run's arm, and its values of what varies now
        """
        for part in self._parts():
            if part not in self._numbered():
                part.unlink()
        before = self.schema
        # What does not vary any more has no column; metrics of runs that are done keep theirs.
        kept = [name for name in before if name in schema or name.startswith(HISTORY) or "." not in name]
        if len(kept) < len(before) or not schema.items() <= before.items():
            names = dict.fromkeys([*schema, *kept])
            lists = [name for name in names if name.startswith(HISTORY)]
            plain = [name for name in names if not name.startswith(HISTORY)]
            self.schema = {name: (before | schema)[name] for name in [*plain, *lists]}
        self.about |= {**about, "columns": self.schema}
        parts = len(self._numbered())
        if parts > _MANY_PARTS or (parts and (self.schema != before or renumbered)):
            self._write_anew(before, cells_of)
        else:
            write_json(self.path / "sweep.json", self.about)
        last = self._numbered()[-1:]
        self._next = int(last[0].stem.removeprefix("part-")) + 1 if last else 0, []
        self._flushed = time.monotonic()

    def _write_anew(self, before: Schema, cells_of: Callable[[str], Row]) -> None:
        """All finished runs in few parts, in a folder that takes the old one's place.

        From the moment that sweep.json names its generation, the new folder is the one that counts. All that it holds
        is on the disk before, and the old parts go only when the new ones have their place there too.
        """
        fresh = self.path / _NEW
        shutil.rmtree(fresh, ignore_errors=True)
        make_folder(fresh)
        number, rows = 0, list[Row]()
        for part in self._numbered():
            kept = {name: kind for name, kind in before.items() if name in self.schema}
            columns = read_part(self._format, part, kept)
            for at in range(len(columns["run"])):
                row = {name: as_cell(column[at], before[name]) for name, column in columns.items()}
                rows.append(row | cells_of(row["run"]))
            if len(rows) >= _ROWS_A_PART:
                self._write_part(fresh, number, rows)
                number, rows = number + 1, []
        if rows:
            self._write_part(fresh, number, rows)
        self.about["generation"] = self.about.get("generation", 0) + 1
        with replacing(fresh / _GENERATION) as beside:
            beside.write_text(str(self.about["generation"]), encoding="utf-8")
        write_json(self.path / "sweep.json", self.about)
        self._put_in_place()

    def _put_in_place(self) -> None:
        if (self.path / "parts").is_dir():
            (self.path / "parts").rename(self.path / _OLD)
        (self.path / _NEW).rename(self.path / "parts")
        sync_folder(self.path)  # before the marker and the old parts go
        (self.path / "parts" / _GENERATION).unlink()
        shutil.rmtree(self.path / _OLD, ignore_errors=True)

    def _folder(self) -> Path:
        """The folder of the parts; after a kill it may be the new one beside their place."""
        marker = self.path / _NEW / _GENERATION
        if marker.is_file() and marker.read_bytes() == str(self.about.get("generation")).encode():
            return marker.parent
        return self.path / "parts"

    def _recover(self) -> None:
        """Completes or undoes a change of the folder that a kill interrupted."""
        if self._folder().name == _NEW:
            self._put_in_place()
        elif (self.path / _OLD).is_dir() and not (self.path / "parts").is_dir():
            (self.path / _OLD).rename(self.path / "parts")
            sync_folder(self.path)
        for left in (self.path / _NEW, self.path / _OLD, *self.path.glob(f"{ROWS}*")):
            shutil.rmtree(left, ignore_errors=True)
        make_folder(self.path / "parts", exist_ok=True)
        for rest in (*self.path.glob(_BESIDE), *(self.path / "parts").glob(".*.part")):
            rest.unlink()

    def _write_part(self, folder: Path, number: int, rows: Sequence[Row]) -> None:
        with replacing(folder / f"part-{number:06d}{self._format.ending}") as beside:
            self._format.write(beside, self.schema, rows)

    def add(self, rows: Iterable[Row]) -> None:
        """Keeps the rows of runs that it has not seen, and writes a part when it is time."""
        for row in rows:
            if row["run"] not in self._seen:
                self._seen.add(row["run"])
                (self._failed if row["status"] == "failed" else self._next[1]).append(row)
        if len(self._next[1]) >= _ROWS_A_PART:
            self.flush()
        self.flush_if_due()

    def flush_if_due(self) -> float | None:
        """Writes a part when it is time; in how many seconds that will be, None where nothing waits for it."""
        if not self._next[1] and len(self._failed) == self._failed_written:
            return None
        rest = self._flushed + self._interval - time.monotonic()
        if rest > 0:
            return rest
        self.flush()
        return None

    def flush(self) -> None:
        """Writes what is not written yet."""
        number, rows = self._next
        if rows:
            self._write_part(self.path / "parts", number, rows)
            self._next = number + 1, []
        if len(self._failed) > self._failed_written:
            with replacing(self.path / "parts" / f"failed{self._format.ending}") as beside:
                self._format.write(beside, self.schema, self._failed)
            self._failed_written = len(self._failed)
        self._flushed = time.monotonic()
        self._interval = min(1.5 * self._interval, _SECONDS_A_PART[1])

    def close(self) -> None:
        """Writes the rest and unlocks the folder."""
        if self._lock is not None:
            try:
                self.flush()
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)  # unlocks now, even if another process holds the descriptor too
                self._drop()

    def _drop(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            with suppress(OSError):  # nothing was written through it
                os.close(lock)


_held: weakref.WeakSet[FolderStore] = weakref.WeakSet()  # the stores of this process that were opened to write


def _drop_all() -> None:
    for store in _held:
        store._drop()


# A lock lasts as long as any process has its descriptor: workers that outlive a killed sweep must not.
os.register_at_fork(after_in_child=_drop_all)
