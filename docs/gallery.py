"""Writes docs/figures/gallery-*.svg: runs the code of docs/gallery.md there."""

from __future__ import annotations

import os
import re
from pathlib import Path

os.environ["SOURCE_DATE_EPOCH"] = "0"  # the same bytes every time
DOCS = Path(__file__).resolve().parent


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fedbuff"
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    os.chdir(DOCS / "figures")
    namespace: dict[str, object] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        exec(code, namespace)


if __name__ == "__main__":
    main()
