"""`fedbuff info` looks for what pyproject.toml offers."""

from __future__ import annotations

import tomllib
from pathlib import Path

from fedbuff._cli.info import EXTRAS

FOR_DEVELOPERS = {"demo", "test", "docs", "dist", "lint"}  # `demo` is `report`


def test_all_extras_are_looked_for() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert EXTRAS.keys() == project["optional-dependencies"].keys() - FOR_DEVELOPERS
