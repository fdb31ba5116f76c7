"""The code of the README and the pages runs, from top to bottom, one namespace a page; links lead somewhere.

A block with a title is a file of that name; a `python` block runs; each line of a `sh` block is the command `fedbuff`.
A `text` block right behind one of these is what it prints; FEDBUFF_WRITE_OUTPUTS=1 writes what it prints now.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from alike import alike

import fedbuff as fb
from fedbuff._cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OUTPUT = re.compile(r"\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = [block for block in BLOCK.finditer(text) if block[2] or block[1] in ("python", "sh")]
    if not blocks:
        pytest.skip("the page has no code in it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    namespace: dict[str, object] = {"__name__": page.stem}
    written = text
    for block in blocks:
        language, title, code = block.groups()
        capsys.readouterr()
        if title:
            Path(title).write_text(code, encoding="utf-8")
        elif language == "sh":
            run_commands(code)
        else:
            before = text[: block.start(3)].count("\n")  # so that errors have the page's line numbers
            try:
                exec(compile("\n" * before + code, str(page), "exec"), namespace)
            except ImportError as error:
                if "pip install fedbuff[" not in str(error):
                    raise
                pytest.skip(str(error))
        shown = OUTPUT.match(text, block.end())
        if shown and language in ("python", "sh") and not title:
            printed = capsys.readouterr().out
            if not os.environ.get("FEDBUFF_WRITE_OUTPUTS"):
                assert alike(shown[1], printed), printed
            written = written.replace(f"{block[0]}\n\n```text\n{shown[1]}```", f"{block[0]}\n\n```text\n{printed}```")
    if written != text:
        page.write_text(written, encoding="utf-8")


def run_commands(code: str) -> None:
    for line in code.splitlines():
        name, *arguments = shlex.split(line)
        assert name == "fedbuff", f"only the command fedbuff is run here: {line}"
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 0, line


def test_the_readme_shows_what_its_first_block_prints(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert shown is not None
    exec(shown.group(1), {})
    assert capsys.readouterr().out == shown.group(2)


def test_texts_that_are_alike() -> None:
    said = "loss  0.2949 in 1,000 steps\n"
    assert alike(said, said) and alike(said, "loss 0.2951 in 1,000 steps\n")
    for other in (
        "loss 0.31 in 1,000 steps\n",
        "loss 0.2949 in 1,011 steps\n",
        "lost 0.2949 in 1,000 steps\n",
        "loss\n",
    ):
        assert not alike(said, other)


@pytest.mark.parametrize(("page", "n"), [("README.md", 1), ("docs/tutorial.md", 6)])
def test_pages_of_the_first_minutes_show_what_is_printed(page: str, n: int) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = [block for block in BLOCK.finditer(text) if OUTPUT.match(text, block.end())]
    assert len(shown) == n and all(block[1] in ("python", "sh") for block in shown)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\((?!https?://)([^)#\s]+)", text)
    assert not [link for link in links if not (page.parent / link).exists()]


def test_every_page_is_in_the_site() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    trees = re.findall(r"^```{toctree}\n.*?\n\n(.*?)^```$", index, re.MULTILINE | re.DOTALL)
    listed = [name for tree in trees for name in tree.split()]
    files = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
    pages = [str(page.relative_to(ROOT / "docs").with_suffix("")) for page in files]
    assert sorted([*listed, "index"]) == sorted(pages)


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\.\. auto\w+:: fedbuff\.(\w+)", text, re.MULTILINE)
    assert sorted(set(listed)) == sorted(set(fb.__all__) - {"__version__"})


def test_names_are_grouped_as_the_reference_groups_them() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\.\. auto\w+:: fedbuff\.(\w+)|^## (.*)", text, re.MULTILINE)
    source = Path(fb.__file__).read_text(encoding="utf-8")
    names = re.findall(
        r'^    "(\w+)",|^    # (.*)', source[source.index("__all__ = [") :].partition("\n]")[0], re.MULTILINE
    )
    assert list(dict.fromkeys(listed)) == [each for each in names if each[0] != "__version__"]
