"""`fedbuff bench`: how fast this machine is, and how near to that fedbuff comes on it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from .._machine import bench as _bench
from .._machine import levels as _levels
from .._machine import limits as _limits

__all__ = ["bench"]

DIMS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
FEATURES = (2, 16, 64, 784, 4096)


@click.group()
def bench() -> None:
    """Measure this CPU, and fedbuff's kernels beside what it can do.

    Every rate is the best of many turns. Close other programs, and expect a few per cent from one run to the next.

    \b
    Examples:
      fedbuff bench machine --threads 1 --threads 2
      fedbuff bench aggregate --dim 1000000 -k 10 --threads 2
      fedbuff bench sgd --features 784 --hidden 128 --dtype float64
      fedbuff bench replay --level avx2 --json
    """


def _together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda function: functools.reduce(lambda inner, option: option(inner), reversed(options), function)


_positive = click.IntRange(min=1)
_threads = click.option("--threads", type=_positive, default=1, show_default=True, help="Threads at work.")
_dtype = click.option(
    "--dtype", type=click.Choice(["float32", "float64"]), default="float32", show_default=True, help="Of all numbers."
)
_buffer_size = click.option(
    "-k", "--buffer-size", type=_positive, default=10, show_default=True, help="Updates in a buffer."
)
_common = _together(
    click.option("--level", help="CPU level, such as avx2 or baseline; the best that there is unless given."),
    click.option(
        "--seconds",
        type=click.FloatRange(min=0, min_open=True),
        default=0.3,
        show_default=True,
        help="Time for each number.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table."),
)
_model = _together(
    click.option(
        "--features",
        type=_positive,
        multiple=True,
        default=FEATURES,
        show_default=True,
        help="Inputs; may be given several times.",
    ),
    click.option("--classes", type=click.IntRange(min=2), default=10, show_default=True, help="Outputs."),
    click.option("--hidden", type=click.IntRange(min=0), default=0, show_default=True, help="Hidden units; 0 is none."),
    click.option("--batch-size", type=_positive, default=32, show_default=True, help="Rows of a local step."),
    click.option("--steps", type=_positive, default=10, show_default=True, help="Local steps of an update."),
)


@bench.command()
@click.option(
    "--threads", type=_positive, multiple=True, default=(1,), show_default=True, help="May be given several times."
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64"]),
    multiple=True,
    default=("float32", "float64"),
    show_default=True,
    help="Of the arithmetic; may be given several times.",
)
@_common
def machine(threads: tuple[int, ...], dtype: tuple[str, ...], level: str | None, seconds: float, as_json: bool) -> None:
    """Bandwidth of each cache and of memory, in GB/s; matrix products and multiply-adds, in GFLOP/s.

    \b
    Examples:
      fedbuff bench machine --threads 1 --threads 2
    """
    with _levels.at_level(level):
        measured = _limits.machine(threads, dtype, seconds=seconds)
    _show(measured, as_json, "bandwidth", "arithmetic")


@bench.command()
@click.option(
    "--dim", type=_positive, multiple=True, default=DIMS, show_default=True, help="Model sizes; may be repeated."
)
@_buffer_size
@_dtype
@_threads
@_common
def aggregate(
    dim: tuple[int, ...],
    buffer_size: int,
    dtype: str,
    threads: int,
    level: str | None,
    seconds: float,
    as_json: bool,
) -> None:
    """One pass over a buffer of K updates, beside reading as many vectors.

    \b
    Examples:
      fedbuff bench aggregate --dim 1000000 -k 10 --threads 2
    """
    _measure(lambda: _bench.aggregate_rates(dim, buffer_size, dtype, threads, seconds), level, as_json)


@bench.command()
@_model
@_dtype
@_threads
@_common
def sgd(
    features: tuple[int, ...],
    classes: int,
    hidden: int,
    batch_size: int,
    steps: int,
    dtype: str,
    threads: int,
    level: str | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Local SGD of one client after the other, beside products of large matrices.

    \b
    Examples:
      fedbuff bench sgd --features 784 --hidden 128 --dtype float64
    """
    _measure(
        lambda: _bench.sgd_rates(
            features,
            classes=classes,
            hidden=hidden,
            batch=batch_size,
            steps=steps,
            dtype=dtype,
            threads=threads,
            seconds=seconds,
        ),
        level,
        as_json,
    )


@bench.command()
@click.option(
    "--in-flight",
    type=_positive,
    multiple=True,
    default=(100, 10_000, 1_000_000),
    show_default=True,
    help="Tasks at work; may be given several times.",
)
@click.option("--arrivals", type=_positive, default=1_000_000, show_default=True, help="Arrivals of a turn.")
@_buffer_size
@_common
def schedule(
    in_flight: tuple[int, ...], arrivals: int, buffer_size: int, level: str | None, seconds: float, as_json: bool
) -> None:
    """The event loop alone, ten clients for each task in flight, beside writing as many rows.

    \b
    Examples:
      fedbuff bench schedule --arrivals 1000000
    """
    _measure(
        lambda: _bench.schedule_rates(in_flight, arrivals=arrivals, buffer_size=buffer_size, seconds=seconds),
        level,
        as_json,
    )


@bench.command()
@_model
@_buffer_size
@click.option("--in-flight", type=_positive, default=100, show_default=True, help="Tasks at work.")
@_dtype
@_threads
@_common
def replay(
    features: tuple[int, ...],
    classes: int,
    hidden: int,
    batch_size: int,
    steps: int,
    buffer_size: int,
    in_flight: int,
    dtype: str,
    threads: int,
    level: str | None,
    seconds: float,
    as_json: bool,
) -> None:
    """A schedule and its replay together, beside products of large matrices.

    \b
    Examples:
      fedbuff bench replay --in-flight 100 --json
    """
    _measure(
        lambda: _bench.replay_rates(
            features,
            classes=classes,
            hidden=hidden,
            batch=batch_size,
            steps=steps,
            buffer_size=buffer_size,
            in_flight=in_flight,
            dtype=dtype,
            threads=threads,
            seconds=seconds,
        ),
        level,
        as_json,
    )


def _measure(rates: Callable[[], list[dict[str, Any]]], level: str | None, as_json: bool) -> None:
    with _levels.at_level(level):
        measured = {"setting": _limits.setting(), "rates": rates()}
    _show(measured, as_json, "rates")


def _show(measured: dict[str, Any], as_json: bool, *tables: str) -> None:
    if as_json:
        click.echo(_bench.as_json(measured))
        return
    about = measured["setting"]
    level = f", level {about['level used']}" if about["level used"] else ""
    click.echo(f"{about['cpu']}, {about['cores']} cores; fedbuff {about['version']}, {about['backend']}{level}")
    for name in tables:
        click.echo()
        click.echo(_table(measured[name]))


def _table(rows: list[dict[str, Any]]) -> str:
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
