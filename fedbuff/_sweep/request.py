"""What a sweep is asked for: a base, arms and seeds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from .._base.checks import list_of, path_of, shown
from .._study.config import StudyConfig
from .._study.keys import SECTIONS
from .._study.tables import UNSET, ConfigError, combinations, read_tables, seeds_of
from .arms import Arms, Changes, text_of
from .columns import Kind, Row, Schema

__all__ = ["Base", "Request", "arms_of", "study_of"]

Base = StudyConfig | Mapping[str, Any] | str | os.PathLike[str]


def study_of(base: Base, allow_code: bool = False) -> StudyConfig:
    """The configuration that `base` is, holds or names."""
    if isinstance(base, StudyConfig):
        return StudyConfig(base.tables, base.folder, True) if allow_code and not base.allow_code else base
    if isinstance(base, Mapping):
        return StudyConfig(dict(base), allow_code=allow_code)
    path = path_of("base", base)
    try:
        return StudyConfig(read_tables(path), path.parent, allow_code)
    except ValueError as error:
        raise ConfigError(f"base: {error}") from None


def arms_of(grid: Mapping[str, Sequence[Any]] | None, configs: Sequence[Mapping[str, Any]] | None) -> list[Changes]:
    """The changes of every arm; one without any where there is neither grid nor configs."""
    if configs is not None:
        if grid is not None:
            raise TypeError("grid: expected grid or configs, got both")
        configs = list_of("configs", configs, "a list of changes")
        if not all(isinstance(one, Mapping) for one in configs) or not configs:
            raise TypeError("configs: expected a list of changes, each a dictionary by key path")
        return [dict(one) for one in configs]
    if grid is None:
        return [{}]
    if not isinstance(grid, Mapping):
        raise TypeError(f"grid: expected lists by key path, got {type(grid).__name__}")
    lists = {key: list(v) if isinstance(v, tuple | range | np.ndarray) else v for key, v in grid.items()}
    return combinations(lists, "grid")


def _plain(value: Any) -> Any:
    """A value as a table of a file would hold it; None for a key that is to be removed."""
    if isinstance(value, str) and value == UNSET:
        return None
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


class Request:
    """What is asked for: a base, arms and seeds."""

    def __init__(
        self,
        base: StudyConfig,
        grid: Mapping[str, Sequence[Any]] | None,
        configs: Sequence[Mapping[str, Any]] | None,
        seeds: Sequence[int] | str | None,
    ) -> None:
        own = base.sweep_options
        if grid is None and configs is None:
            grid = own.get("grid")
        self.base = base
        self.changes = [{path: _plain(value) for path, value in arm.items()} for arm in arms_of(grid, configs)]
        self.seeds = own.get("seeds", base.seeds) if seeds is None else seeds_of(_listed(seeds), "seeds")
        self.arms = Arms(base, dict(enumerate(self.changes)))
        self.varied = list(dict.fromkeys(path for arm in self.changes for path in arm))
        lists = None if grid is None else {path: _plain(list(values)) for path, values in grid.items()}
        self.tables = {name: base.tables[name] for name in SECTIONS if name in base.tables}
        self.about = {"grid": lists, "configs": self.changes if configs is not None else None, "seeds": self.seeds}

    @cached_property
    def kinds(self) -> Schema:
        """The columns of what varied."""
        return {path: _kind([self.value(arm, path) for arm in range(len(self.changes))]) for path in self.varied}

    def value(self, arm: int, path: str) -> Any:
        """The value at a path: the arm's own, else the base's, else None."""
        if path in self.changes[arm]:
            return self.changes[arm][path]
        table: Any = self.base.tables
        for name in path.split("."):
            table = table.get(name) if isinstance(table, Mapping) else None
        return table

    def tables_of(self, *sections: str) -> list[dict[str, Any]]:
        """The arms' tables of these sections, as far as they are not the base's; each once."""
        found: dict[bytes, Any] = {}
        for arm, changes in enumerate(self.changes):
            for name in {path.partition(".")[0] for path in changes} & set(sections):
                section = self.arms.sections(arm)[name]
                found[section.key] = section.table
        return [table for table in found.values() if isinstance(table, dict)]

    def cells(self, arm: int) -> Row:
        """The arm's number and its values of what varied, as their columns hold them."""
        values = {path: self.value(arm, path) for path in self.varied}
        return {"arm": arm} | {
            path: value if value is None or self.kinds[path] != "text" or isinstance(value, str) else text_of(value)
            for path, value in values.items()
        }


def _listed(seeds: Sequence[int] | str) -> Any:
    if isinstance(seeds, int):
        raise TypeError(f'seeds: expected a list, or a range as "0:{shown(max(seeds, 1))}", got an int')
    return seeds if isinstance(seeds, str | list | tuple | range) else list_of("seeds", seeds, "a list of ints")


def _kind(values: Sequence[Any]) -> Kind:
    """The kind of a column; None, which only text and floats have room for, is a key that is not set."""
    types = {type(value) for value in values}
    if types == {bool}:
        return "bool"
    if types == {int} and all(abs(value) < 2**63 for value in values):
        return "int"
    if any(type(value) is int and abs(value) > 2**53 for value in values):
        return "text"  # float64 would round it
    return "float" if types & {int, float} and types <= {int, float, type(None)} else "text"
