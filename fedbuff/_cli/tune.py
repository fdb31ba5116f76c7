"""fedbuff tune"""

from __future__ import annotations

from pathlib import Path

import click

from .._study.config import StudyConfig
from .._study.tables import parse_setting
from .._sweep.tune import about
from .._sweep.tune import tune as run_all
from . import FAILED_RUNS
from ._shared import cluster_at, echo_json, json_option, parse_seeds, scheduler_option, study_options, threads_option
from .compare import Numbers


@click.command()
@study_options("The folder for the rungs and tune.json.")
@click.option("--target", metavar="METRIC=VALUE", help="What to reach: accuracy=0.9, loss=0.5.")
@click.option("--buffer-size", "-K", "buffer_sizes", type=Numbers(), default=None, help="Buffer sizes, as in 5,10,20.")
@click.option("--concurrency", "-C", "concurrencies", type=Numbers(), default=None, help="Tasks at work, as in 10,30.")
@click.option("--seeds", metavar="FIRST:END", help="Seeds of the last rung, as 0:8 or 1,2,3.")
@click.option("--eta", type=int, default=3, show_default=True, help="The best 1/eta of a rung go on to the next.")
@threads_option
@scheduler_option
@json_option
def tune(
    config: Path,
    output: Path,
    target: str | None,
    buffer_sizes: list[int] | None,
    concurrencies: list[int] | None,
    seeds: str | None,
    eta: int,
    threads: int | None,
    scheduler: str | None,
    settings: tuple[str, ...],
    allow_code: bool,
    as_json: bool,
) -> int:
    """Which buffer size and concurrency reach a target in the least virtual time, by successive halving.

    All combinations run on a small part of the schedule's budget and of the seeds, the best 1/eta of them on eta times
    as much, and so on to all of it; each rung is a sweep in OUTPUT/rung-1, rung-2, ... Without sizes and concurrencies,
    the grid of the table [sweep]. The same command goes on with a folder where it was stopped. The exit code is 4 where
    a combination could not run.

    \b
    Examples:
      fedbuff tune run.toml -o tuned -K 1,2,4 -C 3,6 --seeds 0:4 --target accuracy=0.6
      fedbuff plot sweep tuned/rung-1 --metric accuracy -o rung.svg
    """
    study = StudyConfig.read(config, settings, allow_code=allow_code)
    with cluster_at(scheduler) as executor:
        found = run_all(
            study,
            target=None if target is None else dict([parse_setting(target)]),
            buffer_sizes=buffer_sizes,
            concurrencies=concurrencies,
            seeds=None if seeds is None else parse_seeds(seeds),
            eta=eta,
            executor=executor,
            out=output,
            threads=threads,
        )
    if as_json:
        echo_json(about(found))
    else:
        click.echo(str(found))
    return FAILED_RUNS if found.rungs[0].failed else 0
