"""fedbuff schedule"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ._shared import (
    EXISTING,
    NEW_PATH,
    Timing,
    allow_code_option,
    echo_facts,
    echo_json,
    find_schedules,
    json_option,
    seed_option,
    set_option,
    source_options,
    timing_options,
)


@click.command()
@click.argument("source", type=EXISTING)
@timing_options
@source_options
@seed_option
@set_option
@allow_code_option
@click.option("-o", "--output", type=NEW_PATH, help="Save the schedule: .npz or .parquet.")
@json_option
def schedule(
    source: Path,
    columns: tuple[str, ...],
    unit: str,
    log: bool,
    seed: int,
    settings: tuple[str, ...],
    allow_code: bool,
    output: Path | None,
    as_json: bool,
    **timing: Any,
) -> None:
    """Who arrives when, and how stale: known before any training.

    SOURCE is a trace, with the options of timing; a configuration (.toml), which says all of it; or a schedule that was
    saved, to look at it again.

    \b
    Examples:
      fedbuff schedule delays.csv --buffer-size 2 --server-steps 50
      fedbuff schedule delays.csv -K 2 -C 3 --max-time 30 -o s.npz
      fedbuff schedule s.npz --json
    """
    for found in find_schedules(source, columns, unit, log, seed, settings, allow_code, Timing(**timing)):
        if output is not None:
            found.schedule.save(output)
        if as_json:
            echo_json(found.schedule.summary())
        else:
            echo_facts({key: value for key, value in found.schedule.summary().items() if value not in (None, [])})
