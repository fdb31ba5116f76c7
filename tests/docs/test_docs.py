"""The Python of the README and the pages runs, from top to bottom, one namespace a page; links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    if not blocks:
        pytest.skip("the page has no Python in it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    namespace: dict[str, object] = {"__name__": page.stem}
    for block in blocks:
        before = text[: block.start(1)].count("\n")
        code = compile("\n" * before + block.group(1), str(page), "exec")  # so that errors have the page's line numbers
        try:
            exec(code, namespace)
        except ImportError as error:
            if "pip install fedbuff[" not in str(error):
                raise
            pytest.skip(str(error))


def test_the_readme_shows_what_its_first_block_prints(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert shown is not None
    exec(shown.group(1), {})
    assert capsys.readouterr().out == shown.group(2)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\((?!https?://)([^)#\s]+)", text)
    assert not [link for link in links if not (page.parent / link).exists()]
