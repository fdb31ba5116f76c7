"""Errors begin with what they are about: `name: expected ..., got ...`, or the row, client or file and a colon."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
KINDS = {"ValueError", "TypeError", "IndexError", "OverflowError", "ConfigError", "kind"}
# Modules that raise reasons, before which another function puts a name: of a file, a layer, a distribution.
REASONS = {
    *("_base/files.py", "_delays/fit.py", "_delays/read.py", "_rule/server_file.py", "_rule/state.py"),
    *("_study/run_folder.py", "_sweep/parts.py", "datasets", "layers", "torch/_graph.py", "torch/_known.py"),
}


def beginning(message: ast.expr) -> str | None:
    """The text of a message, with {} for what is filled in; None where it is computed."""
    if isinstance(message, ast.Constant):
        return str(message.value)
    if isinstance(message, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in message.values)
    return beginning(message.left) if isinstance(message, ast.BinOp) else None


def unnamed(text: str) -> list[str]:
    """Messages of a module that do not begin with a name and a colon; `it` is a reason that a caller completes."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            message = beginning(node.exc.args[0]) if ast.unparse(node.exc.func) in KINDS else None
            if message is not None and not re.match(r"""[\w{}.,\[\]()= "'/*-]*: |(it|its|not) |\{\}\{\}$""", message):
                found.append(message)
    return found


def test_errors_begin_with_a_name() -> None:
    faults = []
    for path in sorted((ROOT / "fedbuff").rglob("*.py")):
        name = path.relative_to(ROOT / "fedbuff").as_posix()
        if not {name, name.split("/")[0]} & REASONS:
            faults += [f"{name}: {message}" for message in unnamed(path.read_text())]
    assert faults == []


def test_an_error_without_a_name_is_found() -> None:
    assert unnamed("raise ValueError('too small')") == ["too small"]
    assert unnamed("def f(x):\n    raise TypeError(f'got {x}' 'and more')") == ["got {}and more"]
    assert unnamed("raise ValueError(f'{name}: expected an int, got {x}')") == []
