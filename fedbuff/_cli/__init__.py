"""The command `fedbuff`. Every module here without a leading underscore is a command of its name, imported on use."""

from __future__ import annotations

import importlib
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import click

from .._base.files import MissingPackageError
from .._version import __version__

__all__ = ["cli", "main"]

BAD_INPUT, DIVERGED, FAILED_RUNS, MISSING_PACKAGE, INTERRUPTED, TERMINATED = 2, 3, 4, 5, 130, 143


class Commands(click.Group):
    """Finds commands by module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = getattr(importlib.import_module(f"{__name__}.{cmd_name}"), cmd_name)
        return command


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _fail(text: str, code: int) -> NoReturn:
    click.echo(f"fedbuff: {text}", err=True)
    sys.exit(code)


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="fedbuff %(version)s")
@click.option("--cflags", is_flag=True, help="Print what a C or C++ compiler needs to include fedbuff's headers.")
@click.option("--libs", is_flag=True, help="Print what a linker needs to link fedbuff's core.")
@click.option("--cmakedir", is_flag=True, help="Print the folder of fedbuff's CMake package.")
@click.pass_context
def cli(ctx: click.Context, cflags: bool, libs: bool, cmakedir: bool) -> None:
    """Replay asynchronous federated learning on a CPU: from recorded delays to a schedule, a training and a report.

    \b
    Examples:
      fedbuff demo
      fedbuff trace info delays.csv
      fedbuff plot schedule delays.csv --buffer-size 2 --server-steps 12 -o schedule.svg
      fedbuff replay run.toml -o runs/first
      fedbuff report runs/first

    \b
    Exit codes: 0 done; 1 a fault of fedbuff's own; 2 bad input, nothing was written; 3 the model diverged;
    4 runs of a sweep failed; 5 an optional package is not installed; 130 interrupted; 143 terminated.
    FEDBUFF_TRACEBACK=1 shows where an error came from.
    """
    asked = {"cflags": cflags, "libs": libs, "get_cmake_dir": cmakedir}
    if any(asked.values()):
        embedding = importlib.import_module("fedbuff._machine.embedding")
        click.echo(" ".join(getattr(embedding, name)() for name, wanted in asked.items() if wanted))
    elif ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@contextmanager
def _sigterm_as_ctrl_c(seen: list[int]) -> Iterator[None]:
    """Makes SIGTERM raise KeyboardInterrupt, so that results so far are kept, and notes it. In the main thread only."""

    def handle(number: int, frame: object) -> NoReturn:
        seen.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Runs the command: what a user can get wrong is one line on the error output, and an exit code."""
    terminations: list[int] = []
    try:
        with _sigterm_as_ctrl_c(terminations):
            code = cli.main(args, prog_name="fedbuff", standalone_mode=False)
    except click.exceptions.Abort as abort:
        word, code = ("terminated", TERMINATED) if terminations else ("interrupted", INTERRUPTED)
        _fail(str(abort.__cause__ or "") or word, code)
    except click.ClickException as error:
        where = getattr(getattr(error, "ctx", None), "command_path", "fedbuff")
        _fail(f"{error.format_message()} (see {where} --help)", BAD_INPUT)
    except (ValueError, TypeError, ImportError, OSError) as error:
        if os.environ.get("FEDBUFF_TRACEBACK"):
            raise
        _fail(_one_line(error), MISSING_PACKAGE if isinstance(error, MissingPackageError) else BAD_INPUT)
    sys.exit(code if isinstance(code, int) else 0)
