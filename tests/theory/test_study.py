"""examples/theorem.py, on few numbers and into another folder; and the page that it wrote."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import fedbuff as fb

pytest.importorskip("matplotlib")

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "examples" / "theorem.md"


@pytest.mark.parametrize(("best", "tried"), [(4.0, 4), (30.0, 7), (0.2, 7), (1e9, 8)])
def test_a_grid_is_widened_where_its_best_is_at_an_end(best: float, tried: int) -> None:
    study = runpy.run_path(str(ROOT / "examples" / "theorem.py"))
    seen = []

    def attempt(size: float) -> tuple[float, float, float]:
        seen.append(size)
        return abs(np.log(size / best)), 1.0, 2.0

    size, result = study["best_of_a_grid"](attempt, (1.0, 2.0, 4.0, 8.0))
    assert len(seen) == len(set(seen)) == tried
    assert size == min(seen, key=lambda one: abs(np.log(one / best))) and result[1:] == (1.0, 2.0)
    assert best == 1e9 or min(seen) < size < max(seen)
    never: list[float] = []
    study["best_of_a_grid"](lambda one: (never.append(one) or np.inf, 1.0, 2.0), (1.0, 2.0))
    assert never == [1.0, 2.0]  # where no size reaches the target, there is no direction to go


def test_a_mixing_above_one_scales_the_staleness_function() -> None:
    mixing = runpy.run_path(str(ROOT / "examples" / "theorem.py"))["mixing"]
    for size in (0.25, 1.0, 4.0):
        made = mixing(size)
        assert [made.mixing * made.staleness(age) for age in (0, 3, 28)] == pytest.approx(
            [size / np.sqrt(1 + age) for age in (0, 3, 28)], rel=1e-15
        )


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


def test_rows_below_the_demanded_server_steps_are_marked() -> None:
    page = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    head = "| T | is T enough? |"
    rows = page[page.index(head) :].split("\n\n")[0].splitlines()[2:]
    marks = [(int(row.split(" | ")[0].strip("| ")), row.split(" | ")[1]) for row in rows]
    tau = fb.schedule(fb.Trace(client=[0, 1], compute=[1.0, 10.0]), fb.FedBuff(1), server_steps=1000).tau
    demanded = fb.theory.min_server_steps(0.02, 1, tau)
    assert f"demands T >= {demanded};" in page
    assert {demanded > T for T, _ in marks} == {True, False}
    assert all(mark == ("no: outside" if demanded > T else "yes") for T, mark in marks)
