"""Progress bars: on a terminal and in a notebook where nobody says otherwise, of what takes longer than a moment."""

from __future__ import annotations

import sys
import warnings
from functools import cache
from typing import Any

from .checks import flag
from .files import optional

__all__ = ["progress_bar"]

_DELAY = 0.5  # seconds: work that is done before shows no bar, where nobody asked for one


def progress_bar(total: int | None, unit: str, progress: bool | None, **options: Any) -> Any:
    """A bar of tqdm; `progress` is what the user asked for, None: where somebody looks."""
    if progress is not None:
        wanted = flag("progress", progress)
    else:
        wanted = in_notebook() or (sys.stderr is not None and sys.stderr.isatty())
    return _bar_type()(total=total, unit=unit, delay=0.0 if progress else _DELAY, **options) if wanted else _NoBar()


class _NoBar:
    """In the place of a bar where nobody looks: to make one of tqdm takes as long as a short replay."""

    disable = True

    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        pass

    def update(self, n: int = 1) -> None:
        pass


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config


@cache
def _bar_type() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")  # a notebook without ipywidgets has bars of text
        tqdm = optional("tqdm.auto", None, "a progress bar").tqdm

    class Bar(tqdm):  # type: ignore[misc, valid-type]
        """A bar that ends whole: a limit may have come before all was done."""

        def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
            if kind is None and not self.disable and self.last_print_t >= self.start_t + self.delay:
                self.total = self.n
                self.refresh()
            super().__exit__(kind, error, trace)

    return Bar
