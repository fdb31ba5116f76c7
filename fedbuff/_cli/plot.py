"""fedbuff plot"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import numpy as np

from .. import plots
from .._base.files import (
    file_format,
    optional,
    reading,
    replacing,
)
from .._delays.arrival_log import ArrivalLog
from .._study.run_folder import find_runs
from .._sweep.results import load_sweep
from .._sweep.statistics import Axis
from ._shared import (
    A_FILE,
    EXISTING,
    NEW_PATH,
    Found,
    Timing,
    allow_code_option,
    find_schedules,
    read_source,
    seed_option,
    set_option,
    source_options,
    timing_options,
)
from ._shared import several as together

output_option = click.option("-o", "--output", type=NEW_PATH, required=True, help="The picture: .svg, .png or .pdf.")


@click.group()
def plot() -> None:
    """Pictures of traces, schedules, runs and sweeps, as SVG, PNG or PDF.

    \b
    Examples:
      fedbuff plot trace delays.csv -o delays.svg
      fedbuff plot schedule delays.csv -K 2 --server-steps 12 -o schedule.svg
      fedbuff plot convergence runs/first runs/large --metric accuracy -o accuracy.png
    """


def save(path: Path, draw: Callable[[], Any]) -> None:
    """Draws, without a screen, and writes the figure whole."""
    form = file_format(path, {".svg": "svg", ".png": "png", ".pdf": "pdf"})
    optional("matplotlib", "plot", "plotting").use("Agg")
    figure = draw().figure
    with replacing(path) as beside:
        figure.savefig(beside, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
    optional("matplotlib.pyplot", "plot", "plotting").close(figure)
    click.echo(f"{path}")


@plot.command()
@click.argument("file", type=A_FILE)
@source_options
@output_option
def trace(file: Path, columns: tuple[str, ...], unit: str, log: bool, output: Path) -> None:
    """How long each client's tasks take, the fastest client first.

    \b
    Examples:
      fedbuff plot trace delays.csv -o delays.svg
      fedbuff plot trace phones.csv --column client=device --column total=ms --unit ms -o phones.png
    """
    found = read_source(file, columns, unit, log)
    save(output, lambda: plots.trace(found.as_trace() if isinstance(found, ArrivalLog) else found))


def of_schedules(name: str, text: str, draw: Callable[..., Any], *options: Callable[..., Any]) -> None:
    """Adds a command that draws one schedule or several; the values of its own options are passed to `draw`."""

    @plot.command(name, help=text)
    @click.argument("sources", type=EXISTING, nargs=-1, required=True)
    @together(*options)
    @timing_options
    @source_options
    @seed_option
    @set_option
    @allow_code_option
    @output_option
    def command(
        sources: tuple[Path, ...],
        columns: tuple[str, ...],
        unit: str,
        log: bool,
        seed: int,
        settings: tuple[str, ...],
        allow_code: bool,
        output: Path,
        **given: Any,
    ) -> None:
        options = (columns, unit, log, seed, settings, allow_code)
        timing = Timing(**{field.name: given.pop(field.name) for field in fields(Timing)})
        found = [each for source in sources for each in find_schedules(source, *options, timing)]
        save(output, lambda: draw(found, **given))


def several(function: Callable[..., Any]) -> Callable[[list[Found]], Any]:
    def draw(found: list[Found]) -> Any:
        return function(found[0].schedule if len(found) == 1 else {each.name: each.schedule for each in found})

    return draw


def one(function: Callable[..., Any]) -> Callable[[list[Found]], Any]:
    def draw(found: list[Found]) -> Any:
        if len(found) > 1:
            raise click.UsageError(f"one schedule, please: there are {len(found)} in what was given")
        return function(found[0].schedule)

    return draw


def timeline(found: list[Found], local_steps: int | None) -> Any:
    (first, *others) = found
    if others:
        raise click.UsageError(f"one schedule, please: there are {len(found)} in what was given")
    if first.schedule.n_arrivals > 3000:
        raise click.UsageError(
            f"{first.schedule.n_arrivals} arrivals cannot be told apart: end earlier, or fedbuff report"
        )
    source = first.delays()
    if isinstance(source, ArrivalLog):
        source = None
    known = first.local_steps if source is not None else None  # local steps are drawn within the parts of a task
    return plots.schedule(first.schedule, source, local_steps=local_steps or known or 1)


SOURCES = """SOURCES are traces, with the options of timing; configurations; saved schedules; or run folders."""
of_schedules(
    "schedule",
    f"""Who works when and when the server steps, as in Figure 1 of the paper.

    {SOURCES} A task is drawn with its local steps: those of the configuration's [local], or of the option.

    \b
    Examples:
      fedbuff plot schedule delays.csv -K 2 --server-steps 12 -o schedule.svg
      fedbuff plot schedule delays.csv -K 2 --max-time 20 --local-steps 3 -o figure-1.svg
      fedbuff plot schedule run.toml -o run.svg
    """,
    timeline,
    click.option("--local-steps", "-Q", type=click.IntRange(min=1), help="Local steps that a task is drawn with."),
)
of_schedules(
    "staleness",
    f"""How stale the used arrivals are, as a histogram.

    {SOURCES}

    \b
    Examples:
      fedbuff plot staleness delays.csv -K 2 --server-steps 200 -o staleness.svg
      fedbuff plot staleness runs/first runs/large -o both.svg
    """,
    several(plots.staleness),
)
of_schedules(
    "staleness-over-time",
    f"""Mean, least and greatest staleness along virtual time.

    {SOURCES}

    \b
    Examples:
      fedbuff plot staleness-over-time runs/first -o over-time.svg
    """,
    one(plots.staleness_over_time),
)
of_schedules(
    "in-flight",
    f"""How many tasks are at work along virtual time.

    {SOURCES}

    \b
    Examples:
      fedbuff plot in-flight delays.csv -K 2 --max-time 20 -o at-work.svg
    """,
    several(plots.in_flight),
)
of_schedules(
    "buffer-fill",
    f"""How full the buffer is along virtual time.

    {SOURCES}

    \b
    Examples:
      fedbuff plot buffer-fill delays.csv -K 4 --server-steps 10 -o buffer.svg
    """,
    one(plots.buffer_fill),
)
of_schedules(
    "contribution",
    f"""How much of the arrivals groups of clients gave, from the fastest to the slowest: 1 is a fair share.

    The clients are cut into ten groups of equal numbers (fewer where there are fewer clients); a bar is the group's
    share of the used arrivals divided by its share of the clients.

    {SOURCES}

    \b
    Examples:
      fedbuff plot contribution runs/first -o contribution.svg
    """,
    several(plots.contribution),
)


@plot.command()
@click.argument("runs", type=EXISTING, nargs=-1, required=True)
@click.option("--metric", type=click.Choice(["loss", "accuracy", "grad_norm_sq"]), default="loss", show_default=True)
@click.option("--against", type=click.Choice(["time", "step", "updates"]), default="time", show_default=True)
@output_option
def convergence(runs: tuple[Path, ...], metric: str, against: str, output: Path) -> None:
    """A metric against virtual time, server steps or client updates, with a band over the seeds of a run.

    \b
    Examples:
      fedbuff plot convergence runs/first -o loss.svg
      fedbuff plot convergence runs/first runs/large --metric accuracy --against updates -o accuracy.png
    """
    found = {run.name: [seed.history for seed in run.seeds] for folder in runs for run in find_runs(folder)}
    save(output, lambda: plots.convergence(found, metric=metric, against=against))


@plot.command()
@click.argument("folder", type=EXISTING)
@click.option("--metric", default="loss", show_default=True, help="A metric of the histories.")
@click.option("--against", type=click.Choice(["time", "step", "updates"]), default="time", show_default=True)
@click.option("--level", type=float, default=0.95, show_default=True, help="The probability that a band covers a mean.")
@output_option
def sweep(folder: Path, metric: str, against: Axis, level: float, output: Path) -> None:
    """The arms of a sweep: means over the seeds and the bands that cover them; and the table of the last values.

    FOLDER is what `fedbuff sweep` wrote to, or a rung of `fedbuff tune`.

    \b
    Examples:
      fedbuff plot sweep tuned/rung-1 -o rung.svg
      fedbuff plot sweep tuned/rung-1 --metric accuracy --against updates -o accuracy.png
    """
    results = load_sweep(folder)
    save(output, lambda: plots.sweep(results, metric=metric, axis=against, level=level))
    click.echo(str(results.table(metric, level=level)))


@plot.command("heat-map")
@click.argument("folder", type=EXISTING)
@click.option("--target", type=float, required=True, help="The value to be reached.")
@click.option("--metric", default="loss", show_default=True, help="A metric of the histories.")
@click.option("-x", "across", default="schedule.concurrency", show_default=True, help="The option along the picture.")
@click.option("-y", "up", default="strategy.buffer_size", show_default=True, help="The option that goes up.")
@click.option("--against", type=click.Choice(["time", "step", "updates"]), default="time", show_default=True)
@output_option
def heat_map(folder: Path, target: float, metric: str, across: str, up: str, against: Axis, output: Path) -> None:
    """When a metric first reached a target, for each pair of values of two options: the median over the seeds.

    FOLDER is what `fedbuff sweep` wrote to, or a rung of `fedbuff tune`.

    \b
    Examples:
      fedbuff sweep run.toml -o sweeps/grid --grid strategy.buffer_size=[1,2] --grid local.lr=[0.05,0.1] --seeds 0:3
      fedbuff plot heat-map sweeps/grid --metric accuracy --target 0.6 -x local.lr -o grid.svg
    """
    results = load_sweep(folder)
    save(output, lambda: plots.heat_map(results, target, metric=metric, x=across, y=up, axis=against))
    click.echo(str(results.time_to(metric, target, axis=against)))


@plot.command()
@click.argument("run", type=EXISTING)
@allow_code_option
@output_option
def bound(run: Path, allow_code: bool, output: Path) -> None:
    """The mean of the squared gradient norms so far, beside the theorem's bound for as many server steps.

    RUN is a run folder whose replay.metrics have grad_norm_sq. The theorem speaks of its own step sizes and of uniform
    arrivals: `fedbuff theory` says what is outside.

    \b
    Examples:
      fedbuff plot bound runs/first -o bound.svg
    """
    theorem = importlib.import_module("fedbuff.theory")
    (found, *others) = find_runs(run, allow_code=allow_code)
    if others:
        raise click.UsageError(f"one run, please: there are {len(others) + 1} in {run}")
    first, config = found.seeds[0], found.config
    if "grad_norm_sq" not in first.history:
        raise ValueError(f"{run}: its replay.metrics have no grad_norm_sq")
    plan = theorem.plan(config.problem, first.schedule, config.local, allow_outside=True)
    known = (plan.n, plan.f_gap, plan.constants.sigma2.value, plan.constants.gamma2.value, plan.b)
    later = first.history["step"] >= 1
    steps = first.history["step"][later].astype(int)
    limits = [theorem.bound(plan.L, int(T), plan.Q, plan.tau, *known, allow_outside=True).total for T in steps]
    columns = {name: values[later] for name, values in first.history.items()}
    save(output, lambda: plots.bound(columns, limits))


@plot.command()
@click.argument("file", type=A_FILE)
@output_option
def rate(file: Path, output: Path) -> None:
    """Rates in GB/s against the dimension, beside the machine's limit.

    FILE is a .csv with a column d, one column of rates for each line to draw, and perhaps a column limit.

    \b
    Examples:
      fedbuff plot rate rates.csv -o rates.svg
    """
    with reading(file, "a table of rates"), file.open(newline="", encoding="utf-8") as text:
        names, *rows = csv.reader(text)
    if "d" not in names or len(names) < 2:
        raise ValueError(f"{file}: expected columns d and at least one of rates, got {', '.join(names)}")
    try:
        table = dict(zip(names, np.array(rows, np.float64).T, strict=True))
    except ValueError:
        raise ValueError(f"{file}: a field is not a number, or a row is short") from None
    dims, limit = table.pop("d"), table.pop("limit", None)
    save(output, lambda: plots.rate(dims, table, limit=limit))
