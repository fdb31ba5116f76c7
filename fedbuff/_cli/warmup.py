"""fedbuff warmup"""

from __future__ import annotations

import time

import click

from .. import backends
from .._machine.warm_up import warm_up


@click.command()
def warmup() -> None:
    """Compile the loops of the numba backend, so that no later call waits for it.

    What is compiled is kept on disk: in the folder NUMBA_CACHE_DIR, else beside fedbuff or in the user's cache. The cpp
    backend was compiled when it was installed.

    \b
    Example:
      fedbuff warmup
    """
    name = backends.current().name
    if name != "numba":
        click.echo(f"the {name} backend runs: nothing is to be compiled")
        return
    for what, work in warm_up():
        began = time.perf_counter()
        work()
        click.echo(f"{time.perf_counter() - began:6.1f} s  {what}")
