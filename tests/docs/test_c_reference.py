"""The page of the C library is what its header says, and has every name of it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
SPEC = importlib.util.spec_from_file_location("c_reference", DOCS / "c_reference.py")
assert SPEC is not None and SPEC.loader is not None
c_reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(c_reference)


def test_the_page_is_that_of_the_header() -> None:
    written = c_reference.PAGE.read_text(encoding="utf-8")
    assert written == c_reference.page(), "run `python docs/c_reference.py`"


def test_every_function_and_struct_has_a_heading() -> None:
    header = c_reference.HEADER.read_text(encoding="utf-8")
    names = set(re.findall(r"^FB_API [^(]*?(fb_\w+)\(", header, re.MULTILINE))
    names |= set(re.findall(r"^typedef (?:struct|enum) (fb_\w+)", header, re.MULTILINE))
    headings = "\n".join(line for line in c_reference.page().splitlines() if line.startswith("### "))
    assert len(names) > 100
    assert {name for name in names if f"`{name}`" not in headings} == set()


def test_the_wrapper_for_cpp_covers_all() -> None:
    header = c_reference.HEADER.read_text(encoding="utf-8")
    wrapper = c_reference.HEADER.with_suffix(".hpp").read_text(encoding="utf-8")
    names = set(re.findall(r"^FB_API [^(]*?(fb_\w+)\(", header, re.MULTILINE))
    of_the_library = {"fb_abi_version", "fb_require_abi", "fb_level"}  # no object has them
    same = {"fb_local_delta", "fb_server_dtype"}  # fb_local_delta_at does it; T is the dtype
    assert {name for name in names - of_the_library - same if not re.search(rf"\b{name}\b", wrapper)} == set()
