"""Arrows point down: include <- core <- {bindings, src} <- fedbuff/backends <- the rest of fedbuff."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "fedbuff"

# What backends may use of the package: modules that themselves use only each other.
FOUNDATION = {
    "_arrays",
    "_checks",
    "_files",
    "_secure",
    "_server_checks",
    "_server_file",
    "_strategy",
    "_version",
    "staleness",
}
COMPILED = {"_core", "_event_queue", "_local_sgd", "_server"}
LIGHT = {"numpy"}  # all that `import fedbuff` may import from outside the standard library


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def sources(folder: str) -> list[Path]:
    found = [p for p in sorted((ROOT / folder).rglob("*")) if p.suffix in (".h", ".hpp", ".inl", ".cpp")]
    assert found
    return found


def imports(path: Path, *, top_only: bool = False) -> set[str]:
    """Modules that a file imports, in full: fedbuff._arrays, numpy.typing. Not those under TYPE_CHECKING."""
    package = ["fedbuff", *path.relative_to(PACKAGE).parts[:-1]]
    found = set()
    tree = ast.parse(path.read_text())
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        or (top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *((node.module or "").split(".") if node.module else [])]
            if node.module is None or module == ["fedbuff"]:
                found |= {".".join([*module, alias.name]) for alias in node.names}
            else:
                found.add(".".join(module))
    return found


def test_core_knows_no_python() -> None:
    for path in [*sources("csrc/include"), *sources("csrc/core")]:
        for name in includes(path):
            assert not re.search(r"python|pybind11|numpy|pyconfig", name, re.IGNORECASE), f"{path}: {name}"
            assert not name.startswith(("bindings", "../bindings")), f"{path}: {name}"


def test_public_headers_need_nothing_private() -> None:
    for path in sources("csrc/include"):
        for name in includes(path):
            assert "/" not in name or name.startswith("fedbuff/"), f"{path}: {name}"


def test_the_core_does_not_include_the_level_from_elsewhere() -> None:
    for path in [*sources("csrc/core"), *sources("csrc/bindings")]:
        if not re.fullmatch(r"kernels_\w+\.cpp|kernels\.inl", path.name):
            assert not any(name.startswith("level/") or name.endswith(".inl") for name in includes(path)), path


def test_only_one_header_of_the_bindings_knows_numpy() -> None:
    knowing = {p.name for p in sources("csrc/bindings") if "pybind11/numpy.h" in includes(p)}
    assert knowing == {"numpy_views.hpp"}


def test_cython_sees_only_the_public_header() -> None:
    for path in [*sorted((ROOT / "src").glob("*.pyx")), *sorted(PACKAGE.glob("*.pxd"))]:
        for name in re.findall(r'cdef extern from "([^"]+)"', path.read_text()):
            assert name == "fedbuff/fedbuff.h", f"{path}: {name}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "backends").glob("*.py")), ids=lambda p: p.stem)
def test_backends_use_only_the_foundation(path: Path) -> None:
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "fedbuff" or parts[1] == "backends":
            continue
        allowed = FOUNDATION | (COMPILED if path.stem.startswith("cpp") else set())
        assert parts[1] in allowed, f"{path.name} imports {name}"


@pytest.mark.parametrize("name", sorted(FOUNDATION))
def test_the_foundation_uses_only_itself(name: str) -> None:
    for module in imports(PACKAGE / f"{name}.py"):
        parts = module.split(".")
        assert parts[0] != "fedbuff" or parts[1] in FOUNDATION, f"{name} imports {module}"


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda p: p.stem)
def test_nothing_above_reaches_around_the_backends(path: Path) -> None:
    """Compiled modules are a backend's; what is built is shown by `_config`, events are resolved by `_resolve`."""
    reached = {name for name in imports(path) if name.removeprefix("fedbuff.") in COMPILED}
    assert not reached or path.stem in ("_config", "_resolve"), f"{path.name} imports {reached}"


@pytest.mark.parametrize("path", sorted(set(PACKAGE.glob("*.py")) - {PACKAGE / "__main__.py"}), ids=lambda p: p.stem)
def test_nothing_heavy_at_the_top(path: Path) -> None:
    for name in imports(path, top_only=True):
        top = name.split(".")[0]
        assert top in LIGHT | {"fedbuff"} or top in sys.stdlib_module_names, f"{path.name} imports {name}"
