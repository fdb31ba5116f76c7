"""fedbuff demo"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import click

from .._base.files import optional
from .._report import write_report
from .._study.compare import compare
from .._study.config import StudyConfig
from .._study.run_folder import find_runs
from ._shared import NEW_PATH, echo_table

FOLDER = Path("fedbuff-demo")

# Four real worker processes were recorded; their task times, resampled, are dealt to 40 clients. Handwritten digits are
# split so that a client has few of the ten. Each strategy may choose among three server step sizes.
TABLES: dict[str, Any] = {
    "seed": 0,
    "problem": {
        "kind": "mlp",
        "hidden": [32],
        "data": "sample:digits",
        "test": 0.25,
        "partition": {"kind": "dirichlet", "n_clients": 40, "alpha": 0.3},
    },
    "trace": {
        "kind": "log",
        "file": "sample:recorded_log",
        "as_trace": True,
        "assign": True,
        "bootstrap": 200,
    },
    "strategy": {"kind": "fedbuff", "buffer_size": 5},
    "local": {"steps": 10, "lr": 0.1, "batch_size": 16},
    "schedule": {"max_time": 1.0},
    "target": {"accuracy": 0.9},
    "compare": [
        {
            "name": "FedBuff K=5",
            "schedule": {"concurrency": 12},
            "try": {"strategy.server_lr": [0.2, 0.4, 0.8]},
        },
        {
            "name": "FedAsync",
            "strategy": {"kind": "fedasync", "staleness": "polynomial"},
            "schedule": {"concurrency": 12},
            "try": {"strategy.mixing": [0.25, 0.5, 1.0]},
        },
        {
            "name": "FedAvg m=12",
            "strategy": {"kind": "fedavg", "clients_per_round": 12, "weights": "equal"},
            "try": {"strategy.server_lr": [1.0, 2.0, 4.0]},
        },
    ],
}


@click.command()
@click.option(
    "-o", "--output", type=NEW_PATH, default=FOLDER, show_default=True, help="The folder for runs and report."
)
def demo(output: Path) -> None:
    """FedBuff, FedAsync and FedAvg on delays recorded from real processes: the time to a target, and a report.

    \b
    Examples:
      fedbuff demo
      fedbuff demo -o /tmp/fedbuff-demo
    """
    optional("plotly.offline", "demo", "the demo's report")
    began = time.perf_counter()
    if (output / "compare.json").is_file():  # what an earlier demo left
        shutil.rmtree(output)
    study = StudyConfig(TABLES)
    click.echo(f"{study.problem!r}: handwritten digits, few of the ten for each client.")
    click.echo("Delays of four recorded processes, resampled; 12 tasks at work. Target: 90 % of held-out rows right.\n")
    rows = compare(study.compared(), output, study.target)
    echo_table([{key: value for key, value in row.items() if key not in ("folder", "seeds")} for row in rows])
    click.echo(f"\nTimes are virtual seconds; all of it took {time.perf_counter() - began:.1f} s.")
    click.echo("Each row is the best of three server step sizes. All met the same delays and batches.")
    report = output / "report.html"
    write_report(find_runs(output), report)
    click.echo(f"\nReport: {report.resolve()}")
    click.echo("Next: your own delays (fedbuff trace info delays.csv), or a configuration (fedbuff replay --help).")
