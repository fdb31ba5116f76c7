"""fedbuff completion"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands and options in a shell.

    \b
    Examples:
      fedbuff completion bash >> ~/.bashrc
      fedbuff completion fish > ~/.config/fish/completions/fedbuff.fish
    """
    from . import cli

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "fedbuff", "_FEDBUFF_COMPLETE").source())
