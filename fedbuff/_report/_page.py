"""One HTML file: a page's parts with its data and plotly's script in it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import os
from importlib import resources
from typing import Any

from .._base.files import optional, replacing
from .._study.run_folder import plain

__all__ = ["check_plotly", "write_page"]


def check_plotly() -> Any:
    """plotly's part that gives its script; an error that says what to install where it is missing."""
    return optional("plotly.offline", "report", "a report")


def write_page(path: str | os.PathLike[str], title: str, kind: str, data: dict[str, Any]) -> None:
    """Writes {kind}.html with common.js and {kind}.js, which find `data` in it."""
    folder = resources.files(__package__)

    def part(name: str) -> str:
        return folder.joinpath(name).read_text(encoding="utf-8")

    plotly = check_plotly().get_plotlyjs()
    text = json.dumps(plain({"title": title, **data}), default=str)
    parts = {
        "TITLE": html.escape(title),
        "STYLE": part("page.css"),
        "DATA": text.replace("<", "\\u003c"),  # no text of a user's can end the script
        "SCRIPT": part("common.js") + part(f"{kind}.js"),
        "PACKED": base64.b64encode(gzip.compress(plotly.encode(), 9, mtime=0)).decode(),
    }
    parts["POLICY"] = _policy(parts["SCRIPT"], plotly)
    with replacing(path) as beside, beside.open("w", encoding="utf-8") as file:
        for number, piece in enumerate(part(f"{kind}.html").split("@@")):  # text, name, text, name, ...
            file.write(parts[piece] if number % 2 else piece)


def _policy(*scripts: str) -> str:
    """What a browser may do for the page: run these scripts and no others, and reach nothing outside of it."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{text}'" for text in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
