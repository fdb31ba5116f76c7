"""fedbuff report"""

from __future__ import annotations

import math
from pathlib import Path

import click

from .._report import is_sweep, write_report, write_sweep_report
from .._study.run_folder import find_runs
from .._study.tables import parse_setting
from ._shared import NEW_PATH

A_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("runs", type=A_FOLDER, nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    type=NEW_PATH,
    help="The file; else report.html in the first folder, NAME-report.html beside a sweep.",
)
@click.option("--title", default="fedbuff report", show_default=True)
@click.option("--target", metavar="METRIC=VALUE", help="For sweeps, the virtual time to it: accuracy=0.9, loss=0.5.")
def report(runs: tuple[Path, ...], output: Path | None, title: str, target: str | None) -> None:
    """Runs, a sweep or a search as one HTML file that needs no network.

    RUNS are run folders, or folders that hold them, as `fedbuff compare` leaves one: timeline, curves, staleness,
    configurations, provenance. Or it is one folder of `fedbuff sweep` or `fedbuff tune`: a table of arms, a heat map of
    two options, curves with intervals.

    \b
    Examples:
      fedbuff report runs/first
      fedbuff report runs/first runs/large -o both.html
      fedbuff report sweeps/sizes --target accuracy=0.8 -o sizes.html
    """
    if any(is_sweep(folder) for folder in runs):
        if len(runs) > 1:
            raise click.UsageError("runs: expected one folder of a sweep or a search, got several")
        folder = runs[0].resolve()  # which holds nothing but the sweep
        path = folder.with_name(f"{folder.name}-report.html") if output is None else output
        n = write_sweep_report(runs[0], path, title, None if target is None else _target(target))
    else:
        if target is not None:
            raise click.UsageError("--target: it is for a sweep; runs have theirs in their configuration")
        path = runs[0] / "report.html" if output is None else output
        found = [run for folder in runs for run in find_runs(folder)]
        write_report(found, path, title)
        n = len(found)
    click.echo(f"{path.resolve()}: {n:,} {'run' if n == 1 else 'runs'}")


def _target(text: str) -> tuple[str, float]:
    metric, value = parse_setting(text)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise click.UsageError(f"--target: expected METRIC=VALUE with a number, got {text!r}")
    return metric, float(value)
