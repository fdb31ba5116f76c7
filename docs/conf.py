"""The documentation as a static site: `make docs` builds it into build/site, and every warning is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fedbuff import __version__

project = "fedbuff"
author = "The fedbuff authors"
release = version = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc"]
nb_execution_mode = "off"  # notebooks keep what they showed when docs/notebooks.py ran them
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"fedbuff {__version__}"
html_theme_options = {"light_css_variables": {"color-brand-primary": "#0060a0", "color-brand-content": "#0060a0"}}
autodoc_mock_imports = ["flwr"]  # has no place in the environment that builds the site
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True}
autoclass_content = "both"
add_module_names = False
html_copy_source = False
_SIMULATOR = Path(__file__).parents[1] / "build" / "simulator" / "schedule.js"  # the page says so where there is none
html_extra_path = ["simulator/simulator.html", *([str(_SIMULATOR)] if _SIMULATOR.exists() else [])]

ARGUMENT = re.compile(r"^(\w[\w*]*(?:(?:, | and )\w+)*) {2,}(\S.*)$")


def rewrite(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Our docstrings are plain text: code in single backticks, arguments in aligned columns. Both become markup."""
    made: list[str] = []
    listing = False
    for line in lines:
        example = line.lstrip().startswith((">>>", "..."))
        found = None if example else ARGUMENT.match(line)
        if found:
            made += [] if listing else [""]
            line, listing = f"* ``{found[1]}``: {escaped(found[2])}", True
        elif listing and line.startswith("  "):
            line = f"  {escaped(line.strip())}"
        else:
            made += [""] if listing and line.strip() else []
            listing = False
            line = line if example or line.startswith("    ") else escaped(line)
        made.append(line)
    lines[:] = literal_blocks(made)


def escaped(text: str) -> str:
    """Single backticks as literals; what reStructuredText would take for markup (*, |, trailing _) as it is."""
    parts = re.split(r"(``[^`]+``|`[^`]+`)", text)
    return "".join(
        f"``{part.strip('`')}``" if number % 2 else re.sub(r"([*|\\]|_(?=\W|$))", r"\\\1", part)
        for number, part in enumerate(parts)
    )


def literal_blocks(lines: list[str]) -> list[str]:
    """An indented block after a blank line is a formula or a program: it stays as it is."""
    made: list[str] = []
    inside = False
    for number, line in enumerate(lines):
        indented = line.startswith("    ") and not line.lstrip().startswith((">>>", "...", "*"))
        after_blank = number > 0 and not lines[number - 1].strip()
        if indented and not inside and after_blank:
            made += ["::", ""]
            inside = True
        elif inside and line.strip() and not indented:
            made += [""]
            inside = False
        elif indented and not inside:
            line = line.strip()  # a continuation of the line above
        made.append(line)
    return made


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", rewrite)
