"""No function of the library is longer than a reader takes in at once: 80 lines, without its docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 80

Lengths = Iterator[tuple[str, int]]  # of functions: how each begins, and its lines


def python_lengths(text: str) -> Lengths:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            documented = ast.get_docstring(node) is not None
            docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
            yield node.name, (node.end_lineno or 0) - node.lineno + 1 - docstring


def cython_lengths(text: str) -> Lengths:
    lines = text.splitlines()
    for start, line in enumerate(lines):
        match = re.match(r"( *)(?:def|cdef|cpdef) .*\(", line)
        if match is not None:
            inside = rf"{match[1]} |{match[1]}\)|\s*$"  # deeper, the end of its arguments, or blank
            end = next((n for n in range(start + 1, len(lines)) if not re.match(inside, lines[n])), len(lines))
            yield line.strip(), end - start


def cpp_lengths(text: str) -> Lengths:
    """Of all blocks but those of types and namespaces, as clang-format indents them."""
    begun: dict[int, tuple[int, str]] = {}  # by indentation: the last line that may begin a block
    for number, line in enumerate(text.splitlines()):
        indent = len(line) - len(line.lstrip(" "))
        if not line.strip() or line.startswith("#"):
            continue
        if line.lstrip().startswith("}"):
            start, first = begun.get(indent, (number, ""))
            types = re.match(r" *(?:typedef )?(?:class|struct|union|enum)\b(?!.*\()", first)
            if types is None and not re.match(r'\}  // (?:namespace|extern "C")', line):
                yield first.strip(), number - start + 1
        begun[indent] = number, line


LENGTHS = {".py": python_lengths, ".pyx": cython_lengths} | dict.fromkeys((".cpp", ".hpp", ".inl"), cpp_lengths)


def long_functions(suffix: str, text: str) -> list[str]:
    return [f"{name}: {lines} lines" for name, lines in LENGTHS[suffix](text) if lines > MOST]


def files() -> list[Path]:
    tracked = [path for folder in ("fedbuff", "csrc", "src") for path in sorted((ROOT / folder).rglob("*"))]
    return [path for path in tracked if path.suffix in LENGTHS]


def test_functions_are_short() -> None:
    found = {str(path.relative_to(ROOT)): long_functions(path.suffix, path.read_text()) for path in files()}
    assert len(found) > 250
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("path", "begin", "line", "end"),
    [
        ("fedbuff/_base/checks.py", "def long():\n", "    print()\n", ""),
        ("fedbuff/_base/checks.py", "class A:\n    async def long(\n        self,\n    ):\n", "        print()\n", ""),
        ("src/_server.pyx", "cdef int long() except -1:\n", "    print()\n", ""),
        ("src/_server.pyx", "cdef class A:\n    def long(\n        self\n    ):\n", "        print()\n", ""),
        ("csrc/core/server/server.cpp", "void long(int a,\n          int b) {\n", "  f();\n", "}\n"),
        ("csrc/core/server/server.hpp", "struct A {\n  int f() {\n", "    f();\n", "  }\n};\n"),
    ],
)
def test_a_planted_function_is_found(path: str, begin: str, line: str, end: str) -> None:
    text = (ROOT / path).read_text() + "\n"
    begun = len(begin.splitlines()) - (1 if begin.startswith(("class", "cdef class", "struct")) else 0)
    enough = MOST - begun - (1 if end else 0)
    suffix = Path(path).suffix
    assert long_functions(suffix, text + begin + enough * line + end) == []
    assert len(long_functions(suffix, text + begin + (enough + 1) * line + end)) == 1
