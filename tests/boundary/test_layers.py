"""Arrows point down: no module uses one of a layer above its own (docs/architecture.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fedbuff"

# From the bottom; a module that is not named here belongs to the layer "rest".
FOUNDATION = {
    "_arrays",
    "_checks",
    "_server_checks",
    "_server_file",
    "_strategy",
    "_version",
    "_build_info",
    "staleness",
}
COMPILED = {"_core", "_server", "_fedbuff_h"}
LAYERS = ("foundation", "compiled", "backends", "rest", "__init__")


def layer(module: str) -> int:
    """The layer of a module of the package, by its path below `fedbuff`, such as "backends.cpp"."""
    first = module.partition(".")[0]
    if first == "":
        return LAYERS.index("__init__")
    if first == "backends":
        return LAYERS.index("backends")
    return LAYERS.index("foundation" if first in FOUNDATION else "compiled" if first in COMPILED else "rest")


def python_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and module, below `fedbuff`, of every import of the package; what only type checkers read is left out."""
    inside = path.relative_to(PACKAGE).with_suffix("").parts[:-1]
    tree = ast.parse(path.read_text())
    unread = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in unread or not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif node.level:
            base = [*inside[: len(inside) - node.level + 1], *(node.module or "").split(".")]
            path_of = ".".join(part for part in ["fedbuff", *base] if part)
            names = [path_of] if node.module else [f"{path_of}.{alias.name}" for alias in node.names]
        else:
            names = [node.module or ""]
        for name in names:
            if name.split(".")[0] == "fedbuff":
                yield node.lineno, name.partition(".")[2]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_python_imports_downwards(path: Path) -> None:
    own = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    mine = LAYERS.index("__init__") if own == "__init__" else layer(own)
    up = [f"line {line}: {module}" for line, module in python_imports(path) if layer(module) > mine]
    assert not up


def test_cython_imports_downwards() -> None:
    pattern = re.compile(r"^(?:from\s+fedbuff\.?(\S*)\s+c?import|c?import\s+fedbuff\.?(\S*))", re.MULTILINE)
    sources = [*(ROOT / "src").glob("*.pyx"), *PACKAGE.glob("_*.pxd")]
    found = [
        (path.name, a or b) for path in sources for a, b in pattern.findall(path.read_text()) if path.stem != "__init__"
    ]
    assert found
    assert not [(name, module) for name, module in found if layer(module) > LAYERS.index("compiled")]


@pytest.mark.parametrize(
    ("folder", "foreign"),
    [
        ("csrc/include", r'<(?:Python|numpy|pybind11)|"(?!fedbuff)'),
        ("csrc/core", r'[<"](?:Python|numpy|pybind11|bindings)'),
    ],
    ids=["include", "core"],
)
def test_includes_point_downwards(folder: str, foreign: str) -> None:
    include = re.compile(rf"^\s*#\s*include\s+(?:{foreign}).*$", re.MULTILINE)
    sources = [path for path in (ROOT / folder).rglob("*") if path.suffix in (".h", ".hpp", ".cpp", ".inl")]
    assert sources
    assert not {path.name: include.findall(path.read_text()) for path in sources if include.search(path.read_text())}
