"""examples/algorithms.py, on few numbers and into another folder; and the section that it wrote."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb

pytest.importorskip("matplotlib")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / "algorithms.py"))


def test_a_quick_run_writes_the_section(study: dict[str, Any], tmp_path: Path) -> None:
    study["main"](["--quick", "--out", str(tmp_path)])
    page = (tmp_path / "algorithms.md").read_text(encoding="utf-8")
    before, written = page.split(study["BEGIN"])
    written, after = written.split(study["END"])
    original = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    assert original.startswith(before) and original.endswith(after)
    assert "alike, even" in written and "uneven" not in written
    assert written.count("\n| `") == 2 * len(study["TUNED"])
    picture = (tmp_path / "figures" / "algorithms_even.svg").read_text(encoding="utf-8")
    assert picture.startswith("<?xml") and len(picture) < 200_000
    study["main"](["--quick", "--out", str(tmp_path)])
    assert (tmp_path / "algorithms.md").read_text(encoding="utf-8") == page  # written over, with the same numbers


def test_the_page_has_the_whole_study(study: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    written = page.split(study["BEGIN"])[1].split(study["END"])[0]
    assert f"ran with {study['FULL'].seeds} new seeds" in " ".join(written.split())
    for regime in study["REGIMES"]:
        assert all(f"{regime}, {level}" in written for level in study["LEVELS"])
    for level in study["LEVELS"]:
        assert f"(figures/algorithms_{level}.svg)" in written
        assert (ROOT / "docs" / "figures" / f"algorithms_{level}.svg").exists()


def test_all_algorithms_are_in_it(study: dict[str, Any]) -> None:
    assert set(study["TUNED"]) == set(fb.algorithms())
    for name, (_, options) in study["TUNED"].items():
        ((option, values),) = options.items()  # equally many arms for each
        assert option in fb.algorithms()[name].options and len(values) == 3


def test_intervals_are_of_order_statistics(study: dict[str, Any]) -> None:
    """Of 10 the second and ninth: the median is outside with probability 2 (1 + 10) / 1024; of 5 the ends."""
    interval = study["interval"]
    assert interval(np.arange(1.0, 11.0)[::-1]) == (2.0, 9.0)
    assert interval(np.arange(1.0, 9.0)) == (1.0, 8.0)  # the second and seventh would be 93 %
    assert interval(np.array([3.0, np.inf, 1.0])) == (1.0, np.inf)
    rng = np.random.default_rng(0)
    inside = [low < 0 < high for low, high in (interval(rng.standard_normal(10)) for _ in range(2000))]
    assert 0.965 < np.mean(inside) < 0.99
