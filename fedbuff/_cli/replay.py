"""fedbuff replay"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .._study.config import StudyConfig
from .._study.run_folder import Run, SeedRun, run_study
from . import DIVERGED
from ._shared import echo_json, echo_table, json_option, study_options


@click.command()
@study_options("The run folder to make.")
@click.option("--resume", is_flag=True, help="Go on with a run folder that is there.")
@json_option
def replay(config: Path, output: Path, settings: tuple[str, ...], allow_code: bool, resume: bool, as_json: bool) -> int:
    """Train along a schedule, as a configuration (.toml) says, into a run folder.

    The folder gets config.json, provenance.json, log.txt, and for every seed a folder with schedule.npz, history.csv,
    checkpoint.npz and, when it is done, result.json. A run that was killed goes on with --resume. The table has the
    last evaluation of every seed; staleness (mean) and stalest are over the whole run, as in `fedbuff compare`.

    \b
    Examples:
      fedbuff replay run.toml -o runs/first
      fedbuff replay run.toml -o runs/large --set strategy.buffer_size=4 --set "seeds=[0, 1]"
      fedbuff replay run.toml -o runs/first --resume
    """
    study = StudyConfig.read(config, settings, allow_code=allow_code)
    run = run_study(study, output, resume=resume, report=lambda text: click.echo(text, err=True))
    rows = [row_of(seed) for seed in run.seeds]
    if as_json:
        echo_json({"folder": str(output), "seeds": rows})
    else:
        echo_table([{**row, "seed": str(row["seed"]), "exit": row["exit"].replace("_", " ")} for row in rows])
    return exit_code([run])


def row_of(seed: SeedRun) -> dict[str, Any]:
    """A seed in a row: where it ended, staleness over the whole run as `compare` has it, and the last metrics."""
    last = {name: value for name, value in seed.result["last"].items() if not name.startswith("staleness_")}
    counts = {name: last.pop(name) for name in ("step", "time", "updates") if name in last}
    stale: dict[str, Any] = seed.staleness or {}
    row: dict[str, Any] = {"seed": seed.seed, "exit": seed.result["exit_reason"], **counts}
    return {**row, "staleness": stale.get("mean"), "stalest": stale.get("max"), **last}


def exit_code(runs: list[Run]) -> int:
    """DIVERGED where any seed did."""
    diverged = any(seed.result["exit_reason"] == "diverged" for run in runs for seed in run.seeds)
    return DIVERGED if diverged else 0
