"""examples/theorem.py, on few numbers and into another folder; and the page that it wrote."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "examples" / "theorem.md"


def test_a_quick_run_writes_the_page(tmp_path: Path) -> None:
    study = runpy.run_path(str(ROOT / "examples" / "theorem.py"))
    study["main"](["--quick", "--out", str(tmp_path)])
    page = (tmp_path / "theory.md").read_text(encoding="utf-8")
    assert "Violations: 0 of 4" in page and not re.search(r"\{\w+\}", page)
    figures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page)
    assert len(figures) == 10
    for name in figures:
        picture = (tmp_path / name).read_text(encoding="utf-8")
        assert picture.startswith("<?xml") and len(picture) < 100_000
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {Path(name).name for name in figures}


def test_the_page_is_the_scripts() -> None:
    page = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    for line in TEMPLATE.read_text(encoding="utf-8").splitlines():
        if "{" not in line:
            assert line in page, line
    found = re.search(r"Violations: (\d+) of (\d+)", page)
    assert found is not None and int(found[1]) == 0 and int(found[2]) >= 200
