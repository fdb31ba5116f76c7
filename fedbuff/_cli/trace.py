"""fedbuff trace"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from .. import traces
from .._delays.arrival_log import ArrivalLog
from .._delays.distributions import Distribution
from .._delays.model import DelayModel
from .._delays.trace import PARTS, Trace
from .._schedule.schedule import task_parts
from ._shared import (
    A_FILE,
    LAW,
    NEW_PATH,
    echo_facts,
    echo_json,
    echo_table,
    json_option,
    read_source,
    reading_options,
    seed_option,
)
from ._shared import source_options as reading


@click.group()
def trace() -> None:
    """Recorded delays: look at them, convert them, make them, fit them.

    \b
    Examples:
      fedbuff trace info delays.csv
      fedbuff trace fit delays.csv
    """


@trace.command()
@click.argument("file", type=A_FILE)
@reading
@json_option
def info(file: Path, columns: tuple[str, ...], unit: str, log: bool, as_json: bool) -> None:
    """How many clients and tasks, how long tasks take, how much clients differ.

    between_clients is the share of the variance that clients' means explain: near 1, some clients are always slow;
    near 0, slowness comes and goes.

    \b
    Examples:
      fedbuff trace info delays.csv
      fedbuff trace info phones.csv --column client=device --column total=ms --unit ms --json
    """
    found = read_source(file, columns, unit, log)
    facts = found.as_trace().summary() if isinstance(found, ArrivalLog) else found.summary()
    if as_json:
        echo_json(facts)
    else:
        echo_facts(facts)


@trace.command()
@click.argument("source", type=A_FILE)
@click.argument("target", type=NEW_PATH)
@click.option(
    "--from",
    "form",
    type=click.Choice(["columns", "fedscale", "flash", "delays", "ages"]),
    default="columns",
    show_default=True,
    help="columns: a trace or (--log) an arrival log. delays, ages: a matrix of rounds x workers.",
)
@reading
@click.option("--header/--no-header", default=None, help="delays, ages: whether the first row has the workers' names.")
@click.option("--as-trace", is_flag=True, help="An arrival log becomes a trace of how long its tasks took.")
@click.option("--assign", type=int, metavar="N", help="Deal the recorded devices to N clients.")
@click.option("--availability", type=A_FILE, help="FedScale: the pickle of when devices were there.")
@click.option("--speeds", type=A_FILE, help="FLASH: the JSON of users' network speeds.")
@click.option("--model-bytes", type=float, default=0.0, help="FedScale, FLASH: size of a download and an upload.")
@click.option("--samples-per-task", type=float, default=1.0, help="FedScale: samples that a task computes.")
@click.option("--compute", type=float, default=1.0, help="FLASH: seconds that a task computes.")
@seed_option
def convert(
    source: Path,
    target: Path,
    form: str,
    columns: tuple[str, ...],
    unit: str,
    log: bool,
    header: bool | None,
    as_trace: bool,
    assign: int | None,
    availability: Path | None,
    speeds: Path | None,
    model_bytes: float,
    samples_per_task: float,
    compute: float,
    seed: int,
) -> None:
    """Turn a trace into another format, or what others recorded into a trace.

    TARGET ends in .csv, .tsv (both also .gz), .npz or .parquet; what knows when devices are there fits into .npz only.

    \b
    Examples:
      fedbuff trace convert phones.csv delays.npz --column client=device --column total=ms --unit ms
      fedbuff trace convert matrix.txt workers.csv --from delays
    """
    made: Trace | ArrivalLog
    if header is not None and form not in ("delays", "ages"):
        raise click.UsageError("--header and --no-header are for --from delays and --from ages")
    if form == "fedscale":
        made = traces.from_fedscale(source, availability, model_bytes=model_bytes, samples_per_task=samples_per_task)
    elif form == "flash":
        made = traces.from_flash(source, compute=compute, speeds=speeds, model_bytes=model_bytes, seed=seed)
    elif form == "delays":
        made = traces.from_delay_matrix(source, unit=unit, header=header, **reading_options("missing", "delimiter"))
    elif form == "ages":
        made = traces.from_gradient_ages(source, header=header, **reading_options("delimiter"))
    else:
        made = read_source(source, columns, unit, log)
    if isinstance(made, ArrivalLog) and as_trace:
        made = made.as_trace()
    if assign is not None:
        if isinstance(made, ArrivalLog):
            raise click.UsageError("--assign: an arrival log is what happened; add --as-trace")
        made = made.assign(assign, seed)
    made.save(target)
    click.echo(f"{target}: {made!r}")


@trace.command()
@click.argument("target", type=NEW_PATH)
@click.option("--clients", type=int, required=True, help="How many clients.")
@click.option("--tasks", type=int, default=100, show_default=True, help="Rows of each.")
@click.option("--wait", type=LAW, default="0", show_default=True)
@click.option("--download", type=LAW, default="0", show_default=True)
@click.option("--compute", type=LAW, default="exponential:1", show_default=True)
@click.option("--upload", type=LAW, default="0", show_default=True)
@click.option("--client-speed", type=LAW, help="Drawn once per client: 2 is twice as slow.")
@seed_option
def generate(target: Path, clients: int, tasks: int, seed: int, **laws: Distribution | None) -> None:
    """Draw a trace from distributions.

    LAW is kind:numbers, with the numbers of numpy.random: exponential:1, log_normal:0,1.2, uniform:0.5,2,
    half_normal:1, weibull:0.8,2, pareto:2.5,1, truncated_normal:3,1, or a number for a constant.

    \b
    Examples:
      fedbuff trace generate slow.csv --clients 100 --compute exponential:1 --client-speed log_normal:0,1.2
      fedbuff trace generate small.csv --clients 4 --tasks 10 --upload 0.1
    """
    model = DelayModel(clients, **{name: law for name, law in laws.items() if law is not None})  # type: ignore[arg-type]
    if tasks < 1:
        raise click.BadParameter(f"expected at least 1, got {tasks}", param_hint="--tasks")
    client, task = np.repeat(np.arange(clients), tasks), np.tile(np.arange(tasks), clients)
    parts = task_parts(model, seed, client, task)
    wait, download, compute, upload = (parts[name] for name in PARTS)
    made = Trace(client, compute, wait=wait, download=download, upload=upload)
    made.save(target)
    click.echo(f"{target}: {made!r}")


@trace.command()
@click.argument("file", type=A_FILE)
@reading
@click.option("--part", type=click.Choice(["total", *PARTS]), default="total", show_default=True)
@json_option
def fit(file: Path, columns: tuple[str, ...], unit: str, log: bool, part: str, as_json: bool) -> None:
    """Distributions fitted to the delays, the nearest first, by the largest gap of distribution functions.

    \b
    Examples:
      fedbuff trace fit delays.csv
      fedbuff trace fit delays.csv --part compute --json
    """
    found = read_source(file, columns, unit, log)
    fits = (found.as_trace() if isinstance(found, ArrivalLog) else found).fit(part)
    rows = [{"law": law_text(each.distribution), "gap": each.ks} for each in fits]
    if as_json:
        echo_json(rows)
    else:
        echo_table(rows)


def law_text(law: Distribution) -> str:
    """As `--compute` of `fedbuff trace generate` takes it."""
    return f"{law.kind}:{','.join(f'{value:.6g}' for value in law.params if np.isfinite(value))}"
