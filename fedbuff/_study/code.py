"""Functions that a configuration names as `where:name`: code of the user."""

from __future__ import annotations

import importlib
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["NamedFunction", "load_function"]


def load_function(folder: Path, text: str) -> Any:
    """The function of 'module:function', or of 'file.py:function' in the folder."""
    where, _, name = text.partition(":")
    if where.endswith(".py"):
        namespace: Mapping[str, Any] = runpy.run_path(str(folder / where))
    else:
        namespace = vars(importlib.import_module(where))
    if not callable(namespace.get(name)):
        raise ValueError(f"{where}: no function {name}")
    return namespace[name]


class NamedFunction:
    """Such a function with some arguments given; it is pickled as its name, and loaded again where it is unpickled."""

    def __init__(self, folder: Path, text: str, options: Mapping[str, Any]) -> None:
        self._given = folder, text, dict(options)
        self.__wrapped__ = load_function(folder, text)  # by which its signature and its code are known

    def __call__(self, *arguments: Any) -> Any:
        return self.__wrapped__(*arguments, **self._given[2])

    def __reduce__(self) -> tuple[Any, ...]:
        return NamedFunction, self._given
