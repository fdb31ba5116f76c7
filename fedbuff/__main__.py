"""python -m fedbuff: flags for compiling against the package."""

from __future__ import annotations

import click

from . import _embedding


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--cflags", "cflags", is_flag=True, help="Flags for the compiler.")
@click.option("--libs", "libs", is_flag=True, help="Flags for the linker.")
@click.option("--cmakedir", "cmakedir", is_flag=True, help="The folder for CMake's fedbuff_DIR.")
def main(cflags: bool, libs: bool, cmakedir: bool) -> None:
    """Say how to compile and link against fedbuff."""
    asked = [(cflags, _embedding.cflags), (libs, _embedding.libs), (cmakedir, _embedding.get_cmake_dir)]
    click.echo(" ".join(give() for wanted, give in asked if wanted))


if __name__ == "__main__":
    main(prog_name="python -m fedbuff")
