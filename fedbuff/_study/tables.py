"""Tables of a configuration: reading, merging, and errors that name the key."""

from __future__ import annotations

import copy
import difflib
import inspect
import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from .._base.checks import choice, path_of, seed_of
from .._base.files import FileError, file_format, reading

__all__ = ["ConfigError", "merged", "parse_setting", "read_tables", "seeds_of"]

Tables = dict[str, Any]

UNSET = "unset"  # as the value of a change: the key is removed; None does the same


class ConfigError(ValueError):
    """A configuration that cannot be used; the message begins with the key's path, as in strategy.buffer_size."""


class ConfigFileError(FileError, ConfigError):
    """A configuration's file that cannot be read."""


class UnknownKeyError(ConfigError):
    """A key that its table does not have; `path` leads to it."""

    def __init__(self, path: str, hint: str) -> None:
        super().__init__(f"{path}: unknown key; {hint}")
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return ConfigError, (str(self),)


class ConflictError(ConfigError):
    """A key that the rest of the tables rules out; `path` leads to it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}; remove the key, in a change with the value None, in TOML {UNSET!r}")
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return ConfigError, (str(self),)


# ---- tables: reading, changing ----


def read_tables(path: str | os.PathLike[str]) -> Tables:
    """The tables of a .toml or .json file; an error names the file and the line."""
    file = path_of("path", path)
    form = file_format(file, {".toml": "toml", ".json": "json"})
    try:
        with reading(file, form.upper()):
            text = file.read_text(encoding="utf-8")
            tables = tomllib.loads(text) if form == "toml" else json.loads(text)
    except FileError as error:
        raise ConfigFileError(error.reason, file) from None
    if not isinstance(tables, dict):
        raise ConfigFileError(f"expected a table of tables, got {type(tables).__name__}", file)
    return tables


def parse_setting(text: str) -> tuple[str, Any]:
    """The path and the value of `key.path=value`: a TOML value, or a word that stands for itself.

    >>> from fedbuff._study.tables import parse_setting
    >>> parse_setting("strategy.buffer_size=20"), parse_setting("strategy.kind=fedasync")
    (('strategy.buffer_size', 20), ('strategy.kind', 'fedasync'))
    """
    if not isinstance(text, str):
        raise TypeError(f"settings: expected texts key.path=value, got {type(text).__name__}")
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not key or not value:
        raise ConfigError(f"settings: expected key=value, as in strategy.buffer_size=20, got {text!r}")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        if any(sign in value for sign in "[]{}\"'="):
            raise ConfigError(f"{key}: {value} is not a TOML value") from None
        return key, value


def merged(tables: Tables, changes: Mapping[str, Any]) -> Tables:
    """A copy of the tables with changes by path. A table is joined with the one there; one with another `kind` takes
    its place, since another kind has other keys. `seed` and `seeds` take each other's place too. None, or the text
    "unset" (TOML has no None), removes a key; one that is not there may be removed too.

    >>> from fedbuff._study.tables import merged
    >>> merged({"strategy": {"kind": "fedbuff", "buffer_size": 10}}, {"strategy.buffer_size": 20})
    {'strategy': {'kind': 'fedbuff', 'buffer_size': 20}}
    >>> merged({"strategy": {"kind": "fedbuff", "buffer_size": 10}}, {"strategy": {"kind": "fedasync"}})
    {'strategy': {'kind': 'fedasync'}}
    >>> merged({"schedule": {"concurrency": 8, "server_steps": 90}}, {"schedule.concurrency": None})
    {'schedule': {'server_steps': 90}}
    """
    made = copy.deepcopy(tables)
    for path, value in changes.items():
        *parents, last = path.split(".")
        removed = _is_unset(value)
        if path in ("seed", "seeds") and not removed:
            made.pop({"seed": "seeds", "seeds": "seed"}[path], None)
        table = made
        for depth, name in enumerate(parents):
            table = table.get(name, {}) if removed else table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{path}: {'.'.join(parents[: depth + 1])} is not a table")
        there = table.get(last)
        if removed:
            table.pop(last, None)
        elif (
            isinstance(value, Mapping)
            and isinstance(there, dict)
            and value.get("kind", there.get("kind")) == there.get("kind")
        ):
            table[last] = merged(there, value)
        else:
            table[last] = _without_unset(value)
    return made


def _is_unset(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value == UNSET)


def _without_unset(value: Any) -> Any:
    """A copy of a value; of a table, without the keys that are to be removed."""
    if isinstance(value, Mapping):
        return {key: _without_unset(item) for key, item in value.items() if not _is_unset(item)}
    return copy.deepcopy(value)


def removed_in_vain(tables: Mapping[str, Any], changes: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The paths of keys that the changes remove and that are not there."""
    for key, value in changes.items():
        at: Any = tables
        for name in key.split("."):
            at = at.get(name) if isinstance(at, Mapping) else None
        if _is_unset(value) and at is None:
            yield f"{path}{key}"
        elif isinstance(value, Mapping):
            yield from removed_in_vain(at if isinstance(at, Mapping) else {}, value, f"{path}{key}.")


# ---- tables: checking ----


@contextmanager
def at_path(path: str, keys: Sequence[str] = (), *, named_here: bool = True) -> Iterator[None]:
    """Puts the path before an error's message: that of the key which the message begins with, else the table's.

    named_here  whether the table names the files that are read or written; if not, their errors stay as they are
    """
    try:
        yield
    except ConfigError:
        raise
    except (TypeError, ValueError, ImportError) as error:
        if isinstance(error, FileError) and not named_here:
            raise
        text = str(error)
        first = text.partition(" ")[0].rstrip(":,").partition("[")[0]
        raise ConfigError(f"{path}.{text}" if first in keys else f"{path}: {text}") from error
    except OSError as error:
        if not named_here:
            raise
        raise ConfigError(f"{path}: {error.filename}: {error.strerror}") from error


def table_of(tables: Mapping[str, Any], name: str, above: str = "") -> Tables:
    value = tables.get(name, {})
    if not isinstance(value, Mapping):
        raise ConfigError(f"{above}{name}: expected a table, got {type(value).__name__}")
    return dict(value)


def refuse_unknown(path: str, values: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
            raise UnknownKeyError(f"{path}{'.' if path else ''}{key}", hint)


def pop_kind(path: str, values: Tables, kinds: Mapping[str, Any] | Sequence[str]) -> str:
    kind = values.pop("kind", None)
    if kind is None:
        raise ConfigError(f"{path}.kind: missing; one of {', '.join(kinds)}")
    with at_path(path, ("kind",)):
        choice("kind", kind, tuple(kinds))
    return str(kind)


@cache
def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def call_with(function: Callable[..., Any], path: str, values: Mapping[str, Any], **given: Any) -> Any:
    """function(**values, **given), where the values are a table's: the function's parameters are its known keys."""
    parameters = parameters_of(function)
    known = [name for name in parameters if name not in given]
    refuse_unknown(path, values, known)
    for name in known:
        parameter = parameters[name]
        if parameter.default is inspect.Parameter.empty and name not in values:
            raise ConfigError(f"{path}.{name}: missing")
    with at_path(path, known):
        return function(**values, **given)


def of_kind(path: str, value: Any, kinds: Mapping[str, Callable[..., Any]]) -> Any:
    """{kind = "polynomial", exponent = 0.5}, or "polynomial" alone."""
    values = {"kind": value} if isinstance(value, str) else value
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path}: expected a name or a table with a kind, got {type(value).__name__}")
    options = dict(values)
    kind = pop_kind(path, options, kinds)
    return call_with(kinds[kind], path, options)


def seeds_of(given: Any, path: str) -> tuple[int, ...]:
    """Seeds from a list, or from a text: "0:100" are those from 0 up to 99.

    >>> from fedbuff._study.tables import seeds_of
    >>> seeds_of([3, 1], "seeds"), seeds_of("0:4", "seeds")
    ((3, 1), (0, 1, 2, 3))
    """
    if isinstance(given, str):
        first, colon, end = given.partition(":")
        if not colon or not first.isdecimal() or not end.isdecimal() or int(first) >= int(end):
            raise ConfigError(f"{path}: expected ints, or first:end as in 0:100, got {given!r}")
        given = range(int(first), int(end))
    if not isinstance(given, list | tuple | range) or not given:
        raise ConfigError(f"{path}: expected a list of ints")
    try:
        seeds = tuple(seed_of(seed) for seed in given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}{str(error).removeprefix('seed')}") from None
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"{path}: a seed stands there twice")
    return seeds


def combinations(lists: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    """Every choice of one value from each list, the last key changing fastest.

    >>> from fedbuff._study.tables import combinations
    >>> combinations({"strategy.buffer_size": [5, 10], "local.lr": [0.1]}, "try")
    [{'strategy.buffer_size': 5, 'local.lr': 0.1}, {'strategy.buffer_size': 10, 'local.lr': 0.1}]
    """
    chosen: list[dict[str, Any]] = [{}]
    for key, values in lists.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{path}.{key}: expected a list of values to try")
        chosen = [{**before, key: value} for before in chosen for value in values]
    return chosen
