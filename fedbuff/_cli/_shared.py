"""What several commands have in common: options, where input comes from, and how tables look."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

import click
import numpy as np

from .._base import files as _files
from .._base.text_table import aligned, show
from .._delays.arrival_log import ArrivalLog
from .._delays.distributions import Distribution
from .._delays.read import read_arrival_log, read_trace
from .._delays.table import labels_from_text
from .._delays.trace import Trace
from .._rule.strategies import FedAsync, FedAvg, FedBuff, Refill, Trigger
from .._schedule.load import load_schedule
from .._schedule.options import Order
from .._schedule.resolve import schedule as resolve
from .._schedule.schedule import Schedule
from .._study.build import DISTRIBUTIONS
from .._study.config import StudyConfig
from .._study.run_folder import Run, find_runs, plain

Function = TypeVar("Function", bound=Callable[..., Any])

EXISTING = click.Path(exists=True, path_type=Path)
A_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW_PATH = click.Path(path_type=Path)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for a program to read.")
seed_option = click.option("--seed", type=int, default=0, show_default=True, help="The key of every draw.")
threads_option = click.option("--threads", type=int, help="How many runs at once; without it, one for every core.")
scheduler_option = click.option(
    "--scheduler", metavar="ADDRESS", help="Run on the Dask cluster at this address, as tcp://host:8786."
)
set_option = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a key of the configuration; repeatable."
)

allow_code_option = click.option(
    "--allow-code", is_flag=True, help="Let the kinds factory, torch and jax run the code that the configuration names."
)


def several(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """One decorator of several options, in the order of the help."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def study_options(output_help: str) -> Callable[[Function], Function]:
    """A configuration, what overrides its keys, and the folder to write to."""
    return several(
        click.argument("config", type=A_FILE),
        click.option("-o", "--output", type=NEW_PATH, required=True, help=output_help),
        set_option,
        allow_code_option,
    )


class Law(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic from click 8.4 on
    """kind:number,number, or a number alone, which is a constant."""

    name = "LAW"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Distribution:
        if isinstance(value, Distribution):
            return value
        kind, _, numbers = str(value).rpartition(":") if ":" in str(value) else ("constant", "", str(value))
        if kind not in DISTRIBUTIONS:
            self.fail(f"{value!r}: expected kind:numbers with one of {', '.join(DISTRIBUTIONS)}", param, ctx)
        try:
            values = [float(text) for text in numbers.split(",")]
            law: Any = DISTRIBUTIONS[kind]
            made: Distribution = law(values) if kind == "empirical" else law(*values)
        except (ValueError, TypeError) as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        return made


LAW = Law()


class SelectionType(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """The name of a selection, or a probability for each client."""

    name = "NAME|P,P,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value in get_args(Order):
            return value
        try:
            return [float(text) for text in value.split(",")]
        except ValueError:
            self.fail(f"{value!r}: expected {', '.join(get_args(Order))} or a probability per client", param, ctx)


READING = "fedbuff.reading"  # in the context: how `read_source` reads a file


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        context.meta.setdefault(READING, {})[parameter.name] = value


def _reading_option(name: str, **options: Any) -> Callable[[Function], Function]:
    """An option that is stored in the context, where `read_source` finds it, and is no argument of the command."""
    return click.option(name, expose_value=False, callback=_keep, **options)


source_options = several(
    click.option("--column", "columns", multiple=True, metavar="NAME=COLUMN", help="Where a column has another name."),
    click.option("--unit", default="s", show_default=True, help="Of the times: s, ms, us, ns, min, h."),
    click.option("--log", is_flag=True, help="The file is an arrival log: client, start_time or version, arrive_time."),
    _reading_option(
        "--missing",
        type=click.Choice(["error", "drop"]),
        help="Rows with missing values: an error (the default), or left out.",
    ),
    _reading_option(
        "--delimiter",
        metavar="CHARACTER",
        help="Between columns: comma, tab, semicolon, pipe, blanks or a character; found where it is not given.",
    ),
    _reading_option(
        "--tasks",
        type=click.Choice(["number", "order"]),
        help="Task numbers: 0, 1, 2, ... (the default), or by order, from any number and with gaps.",
    ),
    _reading_option(
        "--client",
        metavar="NAME",
        help="The one client of all rows, where the file has no column of them.",
    ),
)

timing_options = several(
    click.option("--strategy", type=click.Choice(["fedbuff", "fedasync", "fedavg"]), default="fedbuff"),
    click.option("--buffer-size", "-K", type=int, default=10, show_default=True, help="Arrivals in a server step."),
    click.option("--clients-per-round", type=int, help="For fedavg; the concurrency where it is not given."),
    click.option("--concurrency", "-C", type=int, help="Tasks at work; without it, every client is."),
    click.option("--server-steps", type=int, help="End after so many server steps."),
    click.option("--max-time", type=float, help="End after so many seconds."),
    click.option("--arrivals", type=int, help="End after so many ended tasks."),
    click.option("--timeout", type=float, help="Give a task up after so many seconds."),
    click.option(
        "--selection", type=SelectionType(), help="Who starts next: uniform, round_robin, longest_idle, or P,P,..."
    ),
    click.option("--max-uses", type=int, help="A client starts so many tasks at most."),
    click.option("--queues", is_flag=True, help="Send tasks to busy clients too, where they wait."),
    click.option("--server-time", type=LAW, help="That the server needs for an upload: 0.1, or exponential:0.1."),
    click.option("--uplink", type=float, help="Uploads share a link on which so many run at full speed."),
    click.option("--max-wait", type=float, help="For fedbuff: step after so many seconds, the buffer full or not."),
    click.option("--period", type=float, help="For fedbuff: step every so many seconds too."),
    click.option("--trigger", type=click.Choice(get_args(Trigger)), help="For fedbuff: what makes a server step."),
    click.option("--per-client", type=float, help="For a trigger: how often each client is heard, by harmonic mean."),
    click.option("--refill", metavar="arrival|step|N", help="For fedbuff: when the slots of ended tasks start others."),
    click.option("--stop-stale", type=int, help="For fedbuff: stop tasks at work at this staleness."),
    click.option("--restart", type=click.Choice(["step"]), help="For fedbuff: stop all tasks at work at every step."),
)


def pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE options as a dictionary."""
    for text in given:
        if "=" not in text:
            raise click.BadParameter(f"expected NAME=VALUE, got {text!r}", param_hint=option)
    return {text.partition("=")[0]: text.partition("=")[2] for text in given}


def read_source(path: Path, columns: Sequence[str], unit: str, log: bool) -> Trace | ArrivalLog:
    """A trace or an arrival log from a file."""
    names = pairs("--column", columns)
    options = reading_options("missing", "delimiter", "client", *(() if log else ("tasks",)))
    if "client" in options:  # an integer where the column of a file would hold integers
        options["client"] = labels_from_text([options["client"]], np.zeros(1, np.int64)).ids[0].item()
    if log:
        return read_arrival_log(path, columns=names, unit=unit, **options)
    return read_trace(path, columns=names, unit=unit, **options)


def reading_options(*names: str) -> dict[str, Any]:
    """Those of `source_options` that were given and that a reader takes."""
    given: dict[str, Any] = click.get_current_context().meta.get(READING, {})
    for name in given:
        if name not in names:
            raise click.UsageError(f"--{name} is not for this kind of file")
    return dict(given)


@dataclass(frozen=True)
class Timing:
    """The options of `timing_options`."""

    strategy: str
    buffer_size: int
    clients_per_round: int | None
    concurrency: int | None
    server_steps: int | None
    max_time: float | None
    arrivals: int | None
    timeout: float | None
    max_wait: float | None = None
    period: float | None = None
    trigger: Trigger | None = None
    refill: str | None = None
    stop_stale: int | None = None
    restart: Literal["step"] | None = None
    per_client: float | None = None
    selection: Any = None
    max_uses: int | None = None
    queues: bool = False
    server_time: Distribution | None = None
    uplink: float | None = None

    def make(self) -> FedBuff | FedAsync | FedAvg:
        if self.strategy == "fedbuff":
            refill = self.refill or "arrival"
            return FedBuff(
                self.buffer_size,
                max_wait=self.max_wait,
                period=self.period,
                trigger=self.trigger or "buffer",
                per_client=1.0 if self.per_client is None else self.per_client,
                refill=cast(Refill, int(refill) if refill.isdecimal() else refill),
                stop_stale=self.stop_stale,
                restart=self.restart,
            )
        if self.strategy == "fedasync":
            return FedAsync()
        size = self.concurrency if self.clients_per_round is None else self.clients_per_round
        return FedAvg(rate=1.0) if size is None else FedAvg(clients_per_round=size)

    def options(self) -> dict[str, Any]:
        names = ["concurrency", "server_steps", "max_time", "arrivals", "timeout", "selection", "max_uses", "queues"]
        if self.strategy == "fedavg":
            names.remove("concurrency")  # for FedAvg it is the size of a round
        names += ["server_time", "uplink"]
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class Found:
    """A schedule, what to call it, what gives the delays that made it where they are at hand, and the local steps of
    its tasks where they are known."""

    name: str
    schedule: Schedule
    delays: Callable[[], Any] = lambda: None
    local_steps: int | None = None


def find_schedules(
    path: Path,
    columns: Sequence[str],
    unit: str,
    log: bool,
    seed: int,
    settings: Sequence[str],
    allow_code: bool,
    timing: Timing,
) -> list[Found]:
    """Schedules from a schedule file, a run folder, a configuration, or a trace with the options of timing."""
    if path.is_dir():
        return [_of_run(run) for run in find_runs(path)]
    if path.suffix in (".toml", ".json"):
        config = StudyConfig.read(path, settings, allow_code=allow_code)
        return [Found(config.name, config.make_schedule(), lambda: config.source, _local_steps(config))]
    if is_schedule(path):
        return [Found(path.stem, load_schedule(path))]
    source = read_source(path, columns, unit, log)
    return [Found(path.stem, resolve(source, timing.make(), **timing.options(), seed=seed), lambda: source)]


def _of_run(run: Run) -> Found:
    return Found(run.name, run.seeds[0].schedule, run.delays, _local_steps(run.config))


def _local_steps(config: StudyConfig) -> int | None:
    return None if config.local is None else config.local.one_steps


def is_schedule(path: Path) -> bool:
    if path.suffix == ".npz":
        with _files.open_npz(path, "a whole NPZ file") as file:
            return "fedbuff_schedule" in file.files
    if path.suffix == ".parquet":
        return b"fedbuff_schedule" in (_files.check_parquet(path).metadata or {})
    return False


def echo_json(value: Any) -> None:
    click.echo(json.dumps(plain(value), indent=1, default=str))


_SECONDS = ("time", "time to target", "total", "wait", "download", "compute", "upload", "client mean")
_SHOWN_AS = {
    **{name: f"{name} (s)" for name in _SECONDS},
    **dict.fromkeys(("step", "steps"), "server steps"),
    "exit": "ended by",
    "updates": "client updates",
    "updates to target": "client updates to target",
}


def _shown_as(name: str) -> str:
    """A name with its unit: the same number has the same name in every command."""
    name = name.replace("_", " ") if "." not in name else name
    return _SHOWN_AS.get(name, name)


def echo_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of equal keys as aligned columns, numbers to the right."""
    for line in aligned([{_shown_as(name): value for name, value in row.items()} for row in rows]):
        click.echo(line)


def echo_facts(facts: Mapping[str, Any]) -> None:
    """Names and values, one a line; a dictionary is a line of its own pairs."""
    facts = {_shown_as(name): value for name, value in facts.items()}
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        if isinstance(value, Mapping):
            value = "  ".join(f"{key} {show(part)}" for key, part in value.items())
        elif isinstance(value, list | tuple):
            value = " ".join(show(part) for part in value)
        click.echo(f"{name:{width}}  {show(value)}")


def parse_seeds(text: str) -> Any:
    """Seeds as 0:100 or 1,2,3."""
    if ":" in text:
        return text
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"expected 0:100 or 1,2,3, got {text!r}", param_hint="--seeds") from None


@contextmanager
def cluster_at(address: str | None) -> Iterator[Any]:
    """A client of the Dask cluster at the address; None for None, which is this process."""
    if address is None:
        yield None
        return
    with _files.optional("distributed", "cluster", "--scheduler").Client(address) as client:
        yield client
