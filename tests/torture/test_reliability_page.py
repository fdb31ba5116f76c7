"""Blocks of the page of figures."""

from __future__ import annotations

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
