"""fedbuff compare"""

from __future__ import annotations

from pathlib import Path

import click

from .._study.compare import compare as run_all
from .._study.compare import grid
from .._study.config import StudyConfig
from .._study.run_folder import find_runs
from ._shared import echo_json, echo_table, json_option, study_options
from .replay import exit_code


class Numbers(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic from click 8.4 on
    """Whole numbers with commas between."""

    name = "N,N,..."

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        try:
            return [int(text) for text in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r}: expected whole numbers, as in 5,10,20", param, ctx)


@click.command()
@study_options("The folder for the runs and compare.json.")
@click.option(
    "--strategy", "strategies", multiple=True, type=click.Choice(["fedbuff", "fedasync", "fedavg"]), help="Repeatable."
)
@click.option("--buffer-size", "-K", "buffer_sizes", type=Numbers(), default=None, help="Buffer sizes, as in 5,10,20.")
@click.option("--concurrency", "-C", "concurrencies", type=Numbers(), default=None, help="Tasks at work, as in 10,30.")
@click.option(
    "--clients-per-round",
    type=Numbers(),
    default=None,
    help="Clients in a round of fedavg, as in 10,30; as many as the others have at work where not given.",
)
@click.option("--target", metavar="METRIC=VALUE", help="Ask for the virtual time to it: accuracy=0.9, loss=0.5.")
@click.option("--resume", is_flag=True, help="Go on with a folder that is there.")
@json_option
def compare(
    config: Path,
    output: Path,
    strategies: tuple[str, ...],
    buffer_sizes: list[int] | None,
    concurrencies: list[int] | None,
    clients_per_round: list[int] | None,
    target: str | None,
    settings: tuple[str, ...],
    allow_code: bool,
    resume: bool,
    as_json: bool,
) -> int:
    """Several strategies, buffer sizes and concurrencies on the same delays, to a target in virtual time.

    Every combination of the options is run; without them, the tables [[compare]] of the configuration. All meet the
    same delays and, task for task, the same batches, and all have the same number of clients at work: a round of fedavg
    has as many clients as the concurrency, or all of them where there is none. The column "at work" says how many.

    \b
    Examples:
      fedbuff compare run.toml -o runs/sizes --buffer-size 1,2,4 --target accuracy=0.6
      fedbuff compare run.toml -o runs/all --strategy fedbuff --strategy fedasync --strategy fedavg
    """
    if target is not None:
        settings = (*settings, f"target={{{target}}}")
    study = StudyConfig.read(config, settings, allow_code=allow_code)
    lists = (buffer_sizes or (), concurrencies or (), clients_per_round or ())
    groups = grid(study, strategies, *lists) if strategies or any(lists) else study.compared()
    rows = run_all(groups, output, study.target, resume=resume, report=lambda text: click.echo(text, err=True))
    if as_json:
        echo_json({"target": study.target, "rows": rows})
    else:
        echo_table([{key: value for key, value in row.items() if key != "folder"} for row in rows])
    return exit_code(find_runs(output))
