"""`fedbuff warmup`, and the line that says that Numba compiles."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from fedbuff import backends
from fedbuff._cli import warmup as command
from fedbuff._cli.warmup import warmup
from fedbuff._machine.warm_up import warm_up


def test_there_is_nothing_to_compile_where_cpp_runs() -> None:
    if backends.current().name != "cpp":
        pytest.skip("the cpp backend does not run")
    result = CliRunner().invoke(warmup)
    assert result.exit_code == 0 and result.output == "the cpp backend runs: nothing is to be compiled\n"


def test_all_works_run_and_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the backend in force, so that this test does not wait for all that Numba compiles."""
    works = warm_up()
    assert len({name for name, _ in works}) == len(works) == 10
    for _, work in works if backends.current().name == "cpp" else works[:1]:
        work()
    done: list[str] = []
    monkeypatch.setattr(backends, "current", lambda: SimpleNamespace(name="numba"))
    monkeypatch.setattr(command, "warm_up", lambda: [("this", lambda: done.append("this"))])
    result = CliRunner().invoke(warmup)
    assert result.exit_code == 0 and result.output == "   0.0 s  this\n" and done == ["this"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_compiling_is_said_once_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    compile = pytest.importorskip("fedbuff.backends.numba.compile")

    def started(module: str) -> Any:
        return SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=SimpleNamespace(__module__=module))})

    for screen, expected in ((Terminal(), 1), (io.StringIO(), 0)):
        monkeypatch.setattr(sys, "stderr", screen)
        notice = compile._Notice()
        notice.on_start(started("somebody.else"))
        assert screen.getvalue() == ""
        for _ in range(2):
            notice.on_start(started("fedbuff.backends.numba.net"))
        assert screen.getvalue().count("fedbuff warmup") == screen.getvalue().count("\n") == expected
