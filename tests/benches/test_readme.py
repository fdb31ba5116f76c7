"""The README's figures are those of docs/performance.md."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benches"))

from readme import BEGIN, END, speed_line  # noqa: E402

PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


def test_the_readme_has_the_pages_figures() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{BEGIN}{speed_line(PAGE)}{END}" in text


def test_the_line_follows_the_page() -> None:
    changed = PAGE.replace("schedule included: W1 21,689;", "schedule included: W1 30,000;")
    assert changed != PAGE and "30,000 client updates" in speed_line(changed)
    with pytest.raises(ValueError, match=r"docs/performance\.md: expected"):
        speed_line(PAGE.replace("| flsim |", "| other |"))
