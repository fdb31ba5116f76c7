"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import fedbuff

MODULES = sorted(
    f"fedbuff.{module.name}" for module in pkgutil.iter_modules(fedbuff.__path__) if module.name != "libfedbuff"
)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(str(error))
    assert doctest.testmod(module).failed == 0
