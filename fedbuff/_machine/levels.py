"""The CPU level that a measurement runs at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .. import backends
from ..backends.spec import CompiledBackend
from .config import config


@contextmanager
def at_level(name: str | None) -> Iterator[None]:
    """Runs the kernels of this CPU level inside the block; None changes nothing."""
    if name is None:
        yield
        return
    compiled = compiled_for("level")
    before, found = config()["level used"], config()["levels found"]
    if name not in found:
        raise ValueError(f"level {name!r}: expected one of {', '.join(found)} on this CPU")
    compiled.force_level(name)
    try:
        yield
    finally:
        compiled.force_level(before)


def compiled_for(what: str) -> CompiledBackend:
    compiled = backends.compiled()
    if compiled is None:
        name = backends.current().name
        raise ValueError(f"{what}: only the cpp backend has it, and {name} runs (see fedbuff.show_config())")
    return compiled
