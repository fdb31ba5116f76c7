"""What is written in several places says the same; what the workflows call exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import fedbuff as fb

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_one_version() -> None:
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "fedbuff._version.__version__"
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited is not None and cited[1] == fb.__version__


def test_workflows_call_make_targets() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    called = set()
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        text = workflow.read_text(encoding="utf-8")
        called |= {*re.findall(r"run: make ([a-z-]+)$", text, re.MULTILINE), *re.findall(r"target: ([a-z-]+)", text)}
        assert not re.findall(r"run: (?!make )", text), "a workflow calls make and nothing else"
    assert {"test", "lint", "docs", "dist", "wheels"} <= called <= targets


def test_every_package_is_listed() -> None:
    found = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "fedbuff").rglob("*.py")}
    assert found | {"fedbuff.include"} == set(PROJECT["tool"]["setuptools"]["packages"])


def test_what_wheels_are_tested_with_exists() -> None:
    command = PROJECT["tool"]["cibuildwheel"]["test-command"]
    files = re.findall(r"{project}/(\S+)", command)
    assert files and all((ROOT / name).is_file() for name in files)


def test_the_demo_needs_little() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert [re.split(r"[<>=]", each)[0] for each in extras["demo"]] == ["plotly"]
