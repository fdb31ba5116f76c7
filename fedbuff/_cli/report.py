"""fedbuff report"""

from __future__ import annotations

from pathlib import Path

import click

from .._report import write_report
from .._study.run_folder import find_runs
from ._shared import NEW_PATH

A_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("runs", type=A_FOLDER, nargs=-1, required=True)
@click.option("-o", "--output", type=NEW_PATH, help="The file; report.html in the first folder where not given.")
@click.option("--title", default="fedbuff report", show_default=True)
def report(runs: tuple[Path, ...], output: Path | None, title: str) -> None:
    """Runs as one HTML file that needs no network: timeline, curves, staleness, configurations, provenance.

    RUNS are run folders, or folders that hold them, as `fedbuff compare` leaves one.

    \b
    Examples:
      fedbuff report runs/first
      fedbuff report runs/first runs/large -o both.html
    """
    found = [run for folder in runs for run in find_runs(folder)]
    path = runs[0] / "report.html" if output is None else output
    write_report(found, path, title)
    click.echo(f"{path.resolve()}: {len(found)} {'run' if len(found) == 1 else 'runs'}")
