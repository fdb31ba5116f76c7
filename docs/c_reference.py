"""Writes docs/embedding/c-reference.md from csrc/include/fedbuff/fedbuff.h: its comments and declarations."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent
HEADER = DOCS.parent / "csrc" / "include" / "fedbuff" / "fedbuff.h"
PAGE = DOCS / "embedding" / "c-reference.md"

_SECTION = re.compile(r"/\* ---- (.*?) -+ \*/\n")
_COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)
_NAMES = re.compile(r"typedef (?:struct|enum) (fb_\w+)|\b(fb_\w+)\(|^#define (FB_\w+)|typedef \w+ \(?\*?(fb_\w+)", re.M)


def prose(comment: str) -> str:
    """A comment as text, with its lists and formulas, which are indented, as they stand."""
    lines = [re.sub(r"^ ?\* ?", "", line) for line in comment.strip().splitlines()]
    made: list[str] = []
    for line in lines:
        listed = line.startswith("  ")
        if listed != bool(made and made[-1].startswith("    ")):
            made.append("")
        made.append("    " + line.strip() if listed else line.strip())
    text = "\n".join(made).strip("\n")
    return re.sub(r"(?<![`\w])((?:fb|FB)_\w+(?:\.\.\.)?\w*)(?!\w)", r"`\1`", text) if "\n    " not in text else text


def parts(section: str) -> list[tuple[str, str]]:
    """(comment, declarations) of a section: a comment at the begin of a line opens one, and so does an empty line."""
    found: list[tuple[str, str]] = []
    for block in re.split(r"\n\s*\n", section.strip()):
        pieces = re.split(r"(?m)^(?=/\*)", block)
        for piece in filter(str.strip, pieces):
            comment = _COMMENT.match(piece)
            code = (piece[comment.end() :] if comment else piece).strip("\n")
            found.append((prose(comment.group(1)) if comment else "", code))
    return found


def names(code: str) -> list[str]:
    every = [next(filter(None, match)) for match in _NAMES.findall(code)]
    return [name for name in dict.fromkeys(every) if not name.endswith("_INIT")]


def page() -> str:
    text = HEADER.read_text(encoding="utf-8")
    body = text[text.index("/* Grows when") : text.rindex("#ifdef __cplusplus")]
    body = re.sub(r"\bFB_API ", "", body)
    body = re.sub(r"(#define \w+_INIT)\b.*(?:(?<=\\)\n.*)*", r"\1 {...}", body)
    about = _COMMENT.search(text)
    assert about is not None
    made = ["# The C library", "", "Written by `docs/c_reference.py` from `fedbuff/fedbuff.h`.", ""]
    made += [prose(about.group(1).split("\n", 1)[1]), ""]
    titles = ["First", *_SECTION.findall(body)]
    for title, section in zip(titles, re.split(_SECTION, body)[::2], strict=True):
        made += [f"## {title}", ""]
        for comment, code in parts(section):
            if names(code):
                made += [f"### {', '.join(f'`{name}`' for name in names(code))}", ""]
            if comment:
                made += [comment, ""]
            if code:
                made += ["```c", code, "```", ""]
    return "\n".join(made).rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
