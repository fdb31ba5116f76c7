"""Blocks of the page of figures."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import reliability_page

PAGE = "Before.\n<!-- begin kills -->\nold\n<!-- end kills -->\nAfter.\n"


def test_a_block_is_replaced_and_the_rest_stays() -> None:
    once = reliability_page.replaced(PAGE, "kills", "new\n")
    assert once == "Before.\n<!-- begin kills -->\nnew\n<!-- end kills -->\nAfter.\n"
    assert reliability_page.replaced(once, "kills", "new") == once


@pytest.mark.parametrize("name", ["other", "kill"])
def test_a_block_that_is_not_there(name: str) -> None:
    with pytest.raises(ValueError, match=f"expected one block <!-- begin {name} -->"):
        reliability_page.replaced(PAGE, name, "new")


def test_a_table() -> None:
    assert (
        reliability_page.table(["what", "kills"], [["replay", 1000]])
        == "| what | kills |\n| --- | --- |\n| replay | 1,000 |"
    )


def test_the_page_has_its_blocks() -> None:
    page = reliability_page.PAGE.read_text(encoding="utf-8")
    for name in ("faults", "kills", "fuzz", "memory"):
        assert f"<!-- begin {name} -->" in reliability_page.replaced(page, name, "")


def test_parts_are_all_cases_once() -> None:
    cases = list("abcdefg")
    assert sorted(case for i in (1, 2, 3) for case in reliability_page.part_of(cases, f"{i}/3")) == cases
    assert list(reliability_page.part_of(cases, "1/1")) == cases
    for part in ("0/2", "3/2", "1", "x/2"):
        with pytest.raises(ValueError, match="--part: expected i/n"):
            list(reliability_page.part_of(cases, part))


def test_a_case_that_ran_again_takes_its_own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reliability_page, "FIGURES", tmp_path)
    built = iter(["one", "one", "two"])
    monkeypatch.setattr(reliability_page, "commit", lambda: next(built))
    for row in (["replay", 3], ["server", 5], ["replay", 4]):
        reliability_page.record("kills", row, 2.5)
    cases = reliability_page.recorded("kills")
    assert [case.row for case in cases] == [["replay", 4], ["server", 5]]
    assert reliability_page.builds(cases) == "Built from two, one."
    assert reliability_page.recorded("other") == []


def test_a_campaign_that_published_has_not_changed_what_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, source = tmp_path / "page.md", tmp_path / "source.py"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for path in (page, source):
        path.write_text("old\n", encoding="utf-8")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *arguments], check=True)
    monkeypatch.setattr(reliability_page, "ROOT", tmp_path)
    monkeypatch.setattr(reliability_page, "PAGE", page)
    asked = reliability_page.commit.__wrapped__  # what is kept for a process is that of the project
    built = asked()
    page.write_text("new\n", encoding="utf-8")
    assert asked() == built
    source.write_text("new\n", encoding="utf-8")
    assert asked() == f"{built}-dirty"
