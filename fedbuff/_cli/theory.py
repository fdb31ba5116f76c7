"""fedbuff theory"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import click

from .._study.config import StudyConfig
from .._study.tables import ConfigError
from ._shared import (
    A_FILE,
    allow_code_option,
    echo_facts,
    echo_json,
    echo_table,
    json_option,
    set_option,
)

CONSTANTS = ("smoothness", "local_steps", "buffer_size", "tau")
VARIANCES = ("clients", "gap", "sigma2", "gamma2")


@click.command()
@click.argument("config", type=A_FILE, required=False)
@click.option("--smoothness", "-L", type=float, help="L, of every client's objective.")
@click.option("--local-steps", "-Q", type=int, help="Q, local steps.")
@click.option("--buffer-size", "-K", type=int, help="K, arrivals in a server step.")
@click.option("--tau", type=int, help="The largest staleness.")
@click.option("--server-steps", "-T", type=int, help="T; as many as the theorem demands where not given.")
@click.option("--clients", "-n", type=int, help="For the bound: how many clients.")
@click.option("--gap", type=float, help="For the bound: f at the start minus its least value.")
@click.option("--sigma2", type=float, help="For the bound: variance of a sample's gradient.")
@click.option("--gamma2", type=float, help="For the bound: how much clients' gradients differ.")
@click.option("--batch", "-b", type=int, help="For the bound: batch size; without it, exact local gradients.")
@set_option
@allow_code_option
@json_option
def theory(config: Path | None, settings: tuple[str, ...], allow_code: bool, as_json: bool, **numbers: Any) -> None:
    """What the theorem demands and promises: server steps, step sizes, the proof's conditions, the bound.

    Of numbers; or of a CONFIG (.toml), whose problem gives the constants and whose schedule gives tau.

    \b
    Examples:
      fedbuff theory -L 0.5 -Q 2 -K 10 --tau 3
      fedbuff theory -L 0.5 -Q 2 -K 10 --tau 3 -n 100 --gap 1 --sigma2 2 --gamma2 0.5 -b 32 --json
      fedbuff theory run.toml
    """
    found = (
        of_numbers(numbers) if config is None else of_config(StudyConfig.read(config, settings, allow_code=allow_code))
    )
    if as_json:
        echo_json(found)
        return
    conditions = found.pop("conditions")
    echo_facts(found)
    click.echo()
    echo_table(conditions)


def of_numbers(numbers: dict[str, Any]) -> dict[str, Any]:
    theorem = importlib.import_module("fedbuff.theory")
    missing = [name for name in CONSTANTS if numbers[name] is None]
    if missing:
        raise click.UsageError(f"give a CONFIG, or --{missing[0].replace('_', '-')} and the like")
    L, Q, K, tau = (numbers[name] for name in CONSTANTS)
    least = theorem.min_server_steps(L, Q, tau)
    T = numbers["server_steps"] or least
    steps = theorem.step_sizes(L, T, Q, K)
    found = {"server_steps_demanded": least, "server_steps": T, "eta": steps.eta, "beta": steps.beta}
    given = {name: numbers[name] for name in VARIANCES}
    if any(value is not None for value in given.values()):
        absent = [name for name, value in given.items() if value is None]
        if absent:
            raise click.UsageError(f"the bound needs --{absent[0]} too")
        n, gap, sigma2, gamma2 = given.values()
        batch = numbers["batch"] or math.inf
        found |= shown(theorem.bound(L, T, Q, tau, n, gap, sigma2, gamma2, batch, allow_outside=True))
    return found | {"conditions": rows(theorem.conditions(L, T, Q, tau))}


def of_config(study: StudyConfig) -> dict[str, Any]:
    theorem = importlib.import_module("fedbuff.theory")
    if study.local is None:
        raise ConfigError("local: the table is missing; the theorem is about its steps")
    schedule = study.make_schedule()
    plan = theorem.plan(study.problem, schedule, study.local, allow_outside=True)
    found = {"server_steps_demanded": plan.min_server_steps, "server_steps": schedule.n_steps, "tau": schedule.tau}
    found |= {"eta": plan.eta, "beta": plan.beta} | shown(plan.bound)
    return found | {"outside": list(plan.outside), "conditions": rows(plan.conditions)}


def shown(bound: Any) -> dict[str, Any]:
    return {
        "bound": {"total": bound.total, "initial": bound.initial, "noise": bound.noise, "delay": bound.delay},
        "outside": list(bound.outside),
    }


def rows(conditions: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"condition": each.formula, "value": each.value, "limit": each.limit, "holds": each.holds}
        for each in conditions.values()
    ]
