"""The layers: a folder uses folders above it in these lists, never one below, for `#include` and for `import`."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "fedbuff"

# Folders of csrc/core, where no file lies beside them.
CORE_LAYERS = ("compiler", "numbers", "memory", "threads", "kernels", "clients", "schedule", "server", "replay", "abi")

# Folders and modules of fedbuff; those of one line do not use each other.
PYTHON_LAYERS = (
    ("_version", "_build_info", "_fedbuff_h"),
    ("_base",),
    ("staleness",),
    ("_rule",),
    ("_core",),
    ("_server",),
    ("_event_queue", "_local_sgd"),
    ("backends",),
    ("layers",),
    ("_problems", "_delays", "partition"),
    ("datasets", "jax", "torch"),
    ("_schedule",),
    ("secure",),
    ("_replay",),
    ("_machine",),
    ("_theory", "_study", "flower", "numba", "traces"),
    ("theory", "_sweep"),
    ("loggers", "plots"),
    ("_report",),
    ("_cli",),
    ("__init__", "__main__"),
)
# Inside backends: what a backend is, the specification's parts, and the backends. `__init__` chooses one.
BACKEND_LAYERS = (("spec",), ("python",), ("reference",), ("cpp", "numba"), ("__init__",))
COMPILED = {"_core", "_event_queue", "_local_sgd", "_server"}
# Modules that import by a computed name: their own later parts, packages from outside, a user's function.
COMPUTED_IMPORTS = {
    "fedbuff/__init__.py",
    "fedbuff/_base/files.py",
    "fedbuff/_cli/__init__.py",
    "fedbuff/_study/code.py",
    "fedbuff/flower/_clients.py",
}
LIGHT = {"numpy"}  # all that `import fedbuff` may import from outside the standard library

Texts = Mapping[str, str]  # by path, relative to the repository


# ---- C++ ----


def includes(text: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.MULTILINE)


def cpp_texts(*folders: str) -> dict[str, str]:
    found = {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".h", ".hpp", ".inl", ".cpp")
    }
    assert found
    return found


def include_faults(texts: Texts) -> list[str]:
    """Includes of csrc/core that point to a folder below their own, or to no folder of the list."""
    faults = []
    for path, text in texts.items():
        parts = path.removeprefix("csrc/core/").split("/")
        own = CORE_LAYERS.index(parts[0])
        for name in includes(text):
            folder = name.split("/")[0]
            if folder in CORE_LAYERS:
                if CORE_LAYERS.index(folder) > own:
                    faults.append(f"{path} includes {name}")
            elif f"csrc/core/{name}" not in texts and name.endswith((".hpp", ".inl")) and folder != "fedbuff":
                if f"{Path(path).parent}/{name}" not in texts:
                    faults.append(f"{path} includes {name}, which is nowhere")
    return faults


def test_core_folders_are_those_of_the_list() -> None:
    assert {path.name for path in (ROOT / "csrc/core").iterdir()} == set(CORE_LAYERS)


def test_core_includes_point_one_way() -> None:
    assert include_faults(cpp_texts("csrc/core")) == []


def test_a_planted_include_is_found() -> None:
    texts = cpp_texts("csrc/core")
    for path in ("csrc/core/numbers/philox.hpp", "csrc/core/clients/custom.hpp", "csrc/core/server/server.cpp"):
        planted = {**texts, path: '#include "replay/replay.hpp"\n' + texts[path]}
        assert include_faults(planted) == [f"{path} includes replay/replay.hpp"]


def unit_cycles(texts: Texts) -> list[str]:
    """Cycles of includes between units of csrc/core; x.hpp and x.cpp are one unit."""
    uses: dict[str, set[str]] = {}
    for path, text in texts.items():
        unit = path.removeprefix("csrc/core/").rsplit(".", 1)[0]
        named = {name.rsplit(".", 1)[0] for name in includes(text) if f"csrc/core/{name}" in texts}
        uses.setdefault(unit, set()).update(named - {unit})
    reached = {unit: set(used) for unit, used in uses.items()}
    for middle in uses:
        for unit in uses:
            if middle in reached[unit]:
                reached[unit] |= reached[middle]
    return [unit for unit in sorted(uses) if unit in reached[unit]]


def test_core_units_do_not_include_each_other_in_a_cycle() -> None:
    assert unit_cycles(cpp_texts("csrc/core")) == []


def test_a_planted_cycle_is_found() -> None:
    texts = cpp_texts("csrc/core")
    source = "csrc/core/replay/secure_sum.cpp"
    planted = {**texts, source: texts[source] + '#include "replay/replay.hpp"\n'}
    assert set(unit_cycles(planted)) >= {"replay/replay", "replay/secure_sum"}


def test_core_knows_no_python() -> None:
    for path, text in cpp_texts("csrc/include", "csrc/core").items():
        for name in includes(text):
            assert not re.search(r"python|pybind11|numpy|pyconfig", name, re.IGNORECASE), f"{path}: {name}"
            assert "bindings" not in name, f"{path}: {name}"


def test_public_headers_need_nothing_private() -> None:
    for path, text in cpp_texts("csrc/include").items():
        for name in includes(text):
            assert "/" not in name or name.startswith("fedbuff/"), f"{path}: {name}"


def test_kernels_are_included_where_a_level_is_compiled_only() -> None:
    for path, text in cpp_texts("csrc/core", "csrc/bindings").items():
        if not re.fullmatch(r"kernels_\w+\.cpp|kernels\.inl", Path(path).name):
            assert not any("level/" in name or name.endswith(".inl") for name in includes(text)), path


def test_only_one_header_of_the_bindings_knows_numpy() -> None:
    knowing = {Path(p).name for p, text in cpp_texts("csrc/bindings").items() if "pybind11/numpy.h" in includes(text)}
    assert knowing == {"numpy_views.hpp"}


def test_cython_sees_only_the_public_header() -> None:
    for path in [*sorted((ROOT / "src").glob("*.pyx")), *sorted(PACKAGE.glob("*.pxd"))]:
        for name in re.findall(r'cdef extern from "([^"]+)"', path.read_text()):
            assert name == "fedbuff/fedbuff.h", f"{path}: {name}"


# ---- Python ----


def python_texts() -> dict[str, str]:
    files = [*sorted(PACKAGE.rglob("*.py")), *sorted((ROOT / "src").glob("*.pyx"))]
    return {str(path.relative_to(ROOT)): path.read_text() for path in files}


def module_of(path: str) -> list[str]:
    """fedbuff/_base/arrays.py: ["fedbuff", "_base", "arrays"]; a package's __init__ keeps its name."""
    if path.startswith("src/"):
        return ["fedbuff", Path(path).stem]
    return list(Path(path).with_suffix("").parts)


def is_package(name: str) -> bool:
    return (ROOT / name.replace(".", "/") / "__init__.py").exists()


def imports(path: str, text: str) -> Iterator[tuple[str, bool]]:
    """Names of fedbuff that a file imports, in full, wherever the statement stands; and whether at the top.

    `from a import b` gives a.b where that is a module, else a. What is only for type checkers does not run, and is left
    out.
    """
    if path.endswith(".pyx"):
        for name in re.findall(r"^\s*(?:from|import)\s+(fedbuff[\w.]*)", text, re.MULTILINE):
            yield name, True
        return
    package = module_of(path)[:-1]
    tree = ast.parse(text)
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    later = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        top = id(node) not in later
        if isinstance(node, ast.Import):
            yield from ((alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{module}.{alias.name}"
                is_module = is_package(full) or (ROOT / (full.replace(".", "/") + ".py")).exists()
                yield (full if is_module or full.removeprefix("fedbuff.") in COMPILED else module), top
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            yield from ((name, top) for name in called_imports(path, package, node))


def called_imports(path: str, package: list[str], node: ast.Call) -> list[str]:
    """What a call of import_module names. One that is computed is for the modules that say so in their own text."""
    name = node.args[0]
    if isinstance(name, ast.Constant):
        text = str(name.value)
        return [".".join(package) + text if text.startswith(".") else text]
    assert path in COMPUTED_IMPORTS, f"{path} computes the name of a module"
    return []


def layer(layers: tuple[tuple[str, ...], ...], name: str) -> int:
    for number, names in enumerate(layers):
        if name in names:
            return number
    raise AssertionError(f"{name} is in no layer: add it to the list")


def import_faults(texts: Texts) -> list[str]:
    """Imports that point to a layer below their own, or sideways."""
    faults = []
    for path, text in texts.items():
        own = module_of(path)
        for name, _ in imports(path, text):
            parts = name.split(".")
            if parts[0] != "fedbuff":
                continue
            node = parts[1] if len(parts) > 1 else "__init__"
            if node != own[1]:
                if layer(PYTHON_LAYERS, node) >= layer(PYTHON_LAYERS, own[1]):
                    faults.append(f"{path} imports {name}")
            elif node == "backends" and len(parts) > 2 and parts[2] != own[2]:
                if layer(BACKEND_LAYERS, parts[2]) >= layer(BACKEND_LAYERS, own[2]):
                    faults.append(f"{path} imports {name}")
            if parts[1:2] == ["_core"] and own[1:3] != ["backends", "cpp"]:
                faults.append(f"{path} imports {name}, which is for backends/cpp")
    return faults


def test_python_imports_point_one_way() -> None:
    assert import_faults(python_texts()) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("fedbuff/_base/checks.py", "from .._rule import strategies"),
        ("fedbuff/_base/checks.py", "def later():\n    from fedbuff._rule.strategies import FedBuff"),
        ("fedbuff/_base/checks.py", "def later():\n    return import_module('fedbuff._rule.strategies')"),
        ("fedbuff/_schedule/resolve.py", "def later():\n    import fedbuff._replay.loop"),
        ("fedbuff/_schedule/resolve.py", "def later():\n    from fedbuff import replay"),
        ("fedbuff/_study/config.py", "from .. import _theory"),
        ("fedbuff/_study/config.py", "def later():\n    from .._core import dot"),
        ("fedbuff/backends/python/server.py", "from .. import reference"),
        ("fedbuff/layers/_stack.py", "from .._problems import network"),
        ("fedbuff/datasets/_npz.py", "from .._study import data"),
        ("fedbuff/torch/_module.py", "def later():\n    from ..jax import Loss"),
        ("fedbuff/jax/_loss.py", "from .._schedule.schedule import Schedule"),
        ("fedbuff/secure/_client.py", "def later():\n    from fedbuff._replay import feed"),
        ("fedbuff/flower/_run.py", "from .._study import config"),
    ],
)
def test_a_planted_import_is_found(path: str, line: str) -> None:
    texts = python_texts()
    faults = import_faults({**texts, path: texts[path] + "\n" + line + "\n"})
    assert faults and all(fault.startswith(f"{path} imports") for fault in faults)


@pytest.mark.parametrize("path", [p for p in python_texts() if p.count("/") < 3 and "/_cli/" not in p])
def test_nothing_heavy_at_the_top(path: str) -> None:
    if path.startswith(("src/", "fedbuff/__main__", "fedbuff/backends/numba")):
        return
    for name, top in imports(path, python_texts()[path]):
        if top:
            first = name.split(".")[0]
            if path.startswith("fedbuff/flower/") and first == "flwr":
                continue  # its classes are subclasses of Flower's; no other folder imports it
            assert first in LIGHT | {"fedbuff"} or first in sys.stdlib_module_names, f"{path} imports {name}"


PYTHON_FOLDERS = [f"fedbuff/{name}" for names in PYTHON_LAYERS for name in names if (PACKAGE / name).is_dir()]


def used_folders(folder: str) -> set[str]:
    """The folders beside this one, and the modules, that its files use."""
    if folder.startswith("csrc"):
        texts = cpp_texts(folder)
        named = {name.split("/")[0] for text in texts.values() for name in includes(text)}
        return named & set(CORE_LAYERS) - {Path(folder).name}
    texts = {path: text for path, text in python_texts().items() if path.startswith(f"{folder}/")}
    above = len(Path(folder).parts) - 1  # parts of a name that say which folder's neighbours it is among
    parts = [name.split(".") for path, text in texts.items() for name, _ in imports(path, text)]
    ours = [name for name in parts if name[0] == "fedbuff" and len(name) > 1]
    used = {name[above] if name[1:above] == folder.split("/")[1:above] else name[1] for name in ours}
    return used - {Path(folder).name}


INNER_FOLDERS = ["csrc/core/kernels/level", "fedbuff/backends/python", "fedbuff/backends/numba"]


@pytest.mark.parametrize("folder", [*(f"csrc/core/{name}" for name in CORE_LAYERS), *PYTHON_FOLDERS, *INNER_FOLDERS])
def test_every_folder_says_what_lives_there_and_what_it_uses(folder: str) -> None:
    text = (ROOT / folder / "README.md").read_text()
    assert text.startswith("# ") and "Does not belong here: " in text
    uses = re.search(r"^Uses: (.*?)^Does not belong here: ", text, re.MULTILINE | re.DOTALL)
    assert uses is not None
    if "everything" not in uses[1]:
        said = {name.strip("/").split("/")[0] for name in re.findall(r"`([^`]+)`", uses[1])}
        assert used_folders(folder) <= said


def test_the_architecture_page_has_these_layers() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    core = re.search(r"^C\+\+ +(.*?) *\|", text, re.MULTILINE)
    python = re.search(r"^Python +(.*?)^backends ", text, re.MULTILINE | re.DOTALL)
    backends = re.search(r"^backends +(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert core is not None and python is not None and backends is not None
    assert tuple(core[1].split()) == CORE_LAYERS
    hidden = {"_version", "_build_info", "_fedbuff_h", "__main__"} | COMPILED
    shown = [[name for name in names if name not in hidden] for names in PYTHON_LAYERS]
    assert layers_of(python[1]) == [names for names in shown if names]
    assert layers_of(backends[1]) == [[name for name in names if name != "__init__"] for names in BACKEND_LAYERS[:-1]]


def layers_of(text: str) -> list[list[str]]:
    """Two blanks part layers, one parts the names within; what stands in brackets is no name."""
    return [names.split() for names in re.split(r"\s{2,}|\n", text.strip()) if not names.startswith("(")]


def test_paths_of_the_architecture_page_exist() -> None:
    paths = [path.relative_to(ROOT) for path in tracked_paths()]
    text = (ROOT / "docs/architecture.md").read_text()
    named = re.findall(r"`([\w.*/-]+(?:/|\.(?:py|pyx|cpp|hpp|inl|h|js|md)))`", text)
    assert len(named) > 50
    assert [name for name in named if not any(path.match(name.rstrip("/")) for path in paths)] == []


def tracked_paths() -> Iterator[Path]:
    for folder in ("benches", "csrc", "docs", "examples", "fedbuff", "src", "tests"):
        yield ROOT / folder
        yield from (ROOT / folder).rglob("*")
