"""The examples in the docstrings of all modules, run as they stand."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from types import ModuleType

import numpy as np
import pytest

import fedbuff as fb

_NOT_RUN = ("fedbuff._core", "fedbuff.libfedbuff", "fedbuff.__main__")


def modules() -> list[str]:
    found = pkgutil.walk_packages(fb.__path__, "fedbuff.")
    return ["fedbuff", *(module.name for module in found if module.name not in _NOT_RUN)]


@pytest.mark.parametrize("name", modules())
def test_module(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if "pip install fedbuff[" not in str(error):
            raise
        pytest.skip(str(error))
    run(module.__name__, module.__doc__, module)
    for key, value in vars(module).items():
        if inspect.isclass(value) or inspect.isfunction(value):
            if getattr(value, "__module__", None) != name:
                continue
            run(f"{name}.{key}", value.__doc__, module)
            for inner, member in vars(value).items() if inspect.isclass(value) else ():
                documented = member.__func__ if isinstance(member, classmethod | staticmethod) else member
                run(f"{name}.{key}.{inner}", getattr(documented, "__doc__", None), module)


@pytest.mark.parametrize("name", ["Server", "DeltaBuffer", "EventQueue"])
def test_classes_of_the_backend(name: str) -> None:
    assert run(name, getattr(fb, name).__doc__, fb) > 0


def run(name: str, text: object, module: ModuleType) -> int:
    """How many examples there were."""
    if not isinstance(text, str) or ">>>" not in text:
        return 0
    examples = doctest.DocTestParser().get_doctest(text, {}, name, module.__file__, 0)
    report: list[str] = []
    with np.printoptions():
        runner = doctest.DocTestRunner(verbose=False)
        runner.run(examples, out=report.append)
    assert runner.failures == 0, "".join(report)
    return len(examples.examples)
