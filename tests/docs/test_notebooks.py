"""The notebooks of docs/notebooks: their code runs from top to bottom, and what they show is what it gives."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from alike import alike

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
Cell = dict[str, Any]


def code_cells(path: Path) -> list[Cell]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def run(code: str, namespace: dict[str, Any]) -> tuple[str, str]:
    """What a cell prints, and its last value as text, where it ends with one and no semicolon."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), namespace)
        value = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)
    shown = value is not None and not code.rstrip().endswith(";")
    return printed.getvalue(), repr(value) if shown else ""


def stored(cell: Cell) -> tuple[str, str]:
    """The same as the notebook has it."""
    outputs = cell["outputs"]
    printed = "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")
    values = [output["data"]["text/plain"] for output in outputs if output["output_type"] == "execute_result"]
    return printed, "".join("".join(value) for value in values)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="the notebooks draw with matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    cells = code_cells(path)
    if any("import torch" in "".join(cell["source"]) for cell in cells):
        pytest.importorskip("torch", reason="this notebook needs PyTorch: pip install fedbuff[torch]")
    namespace: dict[str, Any] = {}
    try:
        for cell in cells:
            printed, value = run("".join(cell["source"]), namespace)
            told, kept = stored(cell)
            assert alike(told, printed), printed
            assert alike(kept.replace("\n", " "), value.replace("\n", " ")), value  # a notebook breaks long lines
    finally:
        pyplot.close("all")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_pictures_are_kept(path: Path) -> None:
    """Who reads a notebook without running it sees its pictures, and no warning."""
    outputs = [output for cell in code_cells(path) for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert all(output.get("name") != "stderr" and output["output_type"] != "error" for output in outputs)
    assert path.stat().st_size < 800_000


def test_there_are_three() -> None:
    assert len(NOTEBOOKS) == 3
