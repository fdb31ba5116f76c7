"""fedbuff sweep"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from .._study.config import StudyConfig
from .._study.tables import ConfigError, parse_setting, seeds_of
from .._sweep.results import SweepResults
from .._sweep.statistics import flat_arms
from .._sweep.sweep import sweep as run_sweep
from . import FAILED_RUNS
from ._shared import (
    A_FILE,
    NEW_PATH,
    allow_code_option,
    cluster_at,
    echo_json,
    echo_table,
    json_option,
    parse_seeds,
    scheduler_option,
    set_option,
    threads_option,
)


@click.command()
@click.argument("config", type=A_FILE)
@click.option("-o", "--output", type=NEW_PATH, help="The folder for the results; without it, only the table is made.")
@click.option(
    "--grid",
    "grids",
    multiple=True,
    metavar="KEY=[...]",
    help="Values to try, in the place of [sweep.grid]; repeatable.",
)
@click.option("--seeds", metavar="FIRST:END", help="Seeds, as 0:100 or 1,2,3.")
@threads_option
@scheduler_option
@click.option("--resume/--no-resume", default=True, help="Go on with a folder that is there; so it is by default.")
@set_option
@allow_code_option
@json_option
def sweep(
    config: Path,
    output: Path | None,
    grids: tuple[str, ...],
    seeds: str | None,
    threads: int | None,
    scheduler: str | None,
    resume: bool,
    settings: tuple[str, ...],
    allow_code: bool,
    as_json: bool,
) -> int:
    """Every combination of a grid, with every seed: a table of arms, and one data set of runs.

    The grid is the configuration's table [sweep.grid], or the options. All arms meet the same delays and batches. What
    was done is kept in the folder; the same command goes on from there. The exit code is 4 where a run failed.

    \b
    Examples:
      fedbuff sweep run.toml -o sweeps/sizes --grid "strategy.buffer_size=[1, 2, 4]" --seeds 0:3
      fedbuff sweep run.toml -o sweeps/sizes --grid "strategy.buffer_size=[1, 2, 4]" --seeds 0:5
    """
    study = StudyConfig.read(config, settings, allow_code=allow_code)
    chosen = None if seeds is None else seeds_of(parse_seeds(seeds), "seeds")
    with cluster_at(scheduler) as executor:
        results = run_sweep(
            study, _grid(grids), seeds=chosen, executor=executor, out=output, resume=resume, threads=threads
        )
    rows = table(results)
    if as_json:
        echo_json({"out": output, "runs": len(results), "failed": results.failed, "arms": rows})
    else:
        echo_table(rows)
    for error in dict.fromkeys(row["error"] for row in results.failed):
        click.echo(f"failed: {error}", err=True)
    if results.failed:
        click.echo(f"{len(results.failed)} of {len(results)} runs failed", err=True)
    return FAILED_RUNS if results.failed else 0


def _grid(given: tuple[str, ...]) -> dict[str, Any] | None:
    pairs = [parse_setting(text) for text in given]
    grid = dict(pairs)
    if len(grid) < len(pairs):
        raise ConfigError("grid: a key stands there twice")
    return grid or None


def table(results: SweepResults) -> list[dict[str, Any]]:
    """A row per arm: what it changes, its runs, and means over its seeds."""
    arm, done = results.column("arm"), results.column("status") == "done"
    names = [name for name in results.columns if "." not in name]
    shown = [name for name in ("server_steps", "time", *names[names.index("model_sha256") + 1 :]) if name in names]
    arms = flat_arms(results.arms)
    varied = list(dict.fromkeys(path for changes in arms for path in changes))
    rows = []
    for number, changes in enumerate(arms):
        mine = (arm == number) & done
        row: dict[str, Any] = {"arm": number, **{path: changes.get(path) for path in varied}}
        row |= {"done": int(mine.sum()), "failed": int(((arm == number) & ~done).sum())}
        row |= {name: float(np.mean(results.column(name)[mine])) if mine.any() else None for name in shown}
        rows.append(row)
    return rows
