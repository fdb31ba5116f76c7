"""Arms of a sweep: their changes, hashed table by table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._study.config import StudyConfig
from .._study.keys import SECTIONS
from .._study.tables import UnknownKeyError, merged

__all__ = ["Arms", "Changes", "Pair", "Section", "digest", "text_of"]

Changes = dict[str, Any]
Pair = tuple[int, int]  # an arm and a seed
_MOST_KEPT = 10_000  # arms whose sections are kept


def text_of(value: Any) -> str:
    """A value as JSON with sorted keys: the same text for equal tables."""
    return json.dumps(value, sort_keys=True, default=str)


def digest(text: str) -> bytes:
    """A hash of 16 bytes."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Section:
    """A table of an arm, and its hash."""

    table: Any
    key: bytes


def _section(table: Any) -> Section:
    return Section(table, b"\0" * 16 if table is None else digest(text_of(table)))


class Arms:
    """Arms as changes of a base; their tables, each made once for all arms that have it."""

    def __init__(self, base: StudyConfig, changes: Mapping[int, Changes]) -> None:
        self.base, self.changes = base, dict(changes)
        self.base_sections = {name: _section(base.tables.get(name)) for name in SECTIONS}
        self._made: dict[tuple[str, str], Section] = {}
        self._of_arm: dict[int, dict[str, Section]] = {}

    def sections(self, arm: int) -> dict[str, Section]:
        """The arm's tables by name; one without a table where there is none."""
        made = self._of_arm.get(arm)
        if made is None:
            if len(self._of_arm) >= _MOST_KEPT:
                self._of_arm.clear()
            made = self._of_arm[arm] = self._make_sections(arm)
        return made

    def _make_sections(self, arm: int) -> dict[str, Section]:
        by_section: dict[str, Changes] = {}
        for path, value in self.changes[arm].items():
            by_section.setdefault(path.partition(".")[0], {})[path] = value
        made = dict(self.base_sections)
        for name, changes in by_section.items():
            if name not in SECTIONS:
                known = ", ".join(SECTIONS)
                hint = "give seeds to the sweep" if name in ("seed", "seeds") else f"a sweep varies {known}"
                raise UnknownKeyError(name, hint)
            key = name, text_of(changes)
            if key not in self._made:
                whole = merged({name: self.base.tables[name]} if name in self.base.tables else {}, changes)
                self._made[key] = _section(whole.get(name))
            made[name] = self._made[key]
        return made

    def key(self, arm: int) -> bytes:
        """The hash of the arm's tables."""
        return b"".join(section.key for section in self.sections(arm).values())

    def runs(self, seeds: Sequence[int]) -> Iterator[tuple[str, Pair]]:
        """The id of every run, with its arm and seed."""
        tails = [seed.to_bytes(8, "little") for seed in seeds]
        for arm in range(len(self.changes)):
            begin = hashlib.blake2b(self.key(arm), digest_size=12)
            for seed, tail in zip(seeds, tails, strict=True):
                whole = begin.copy()
                whole.update(tail)
                yield whole.hexdigest(), (arm, seed)
