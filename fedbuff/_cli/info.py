"""fedbuff info"""

from __future__ import annotations

import importlib.util

import click

from .._machine.config import config
from ._shared import echo_facts, echo_json, json_option

EXTRAS = {
    "numba": "numba",
    "parquet": "pyarrow",
    "fit": "scipy",
    "plot": "matplotlib",
    "report": "plotly",
    "torch": "torch",
    "jax": "jax",
    "flower": "flwr",
    "secure": "cryptography",
    "privacy": "dp_accounting",
    "cluster": "distributed",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
}


@click.command()
@json_option
def info(as_json: bool) -> None:
    """What was built, what runs, and which extras are there.

    \b
    Examples:
      fedbuff info
      fedbuff info --json
    """
    facts = config()
    facts["extras"] = [extra for extra, module in EXTRAS.items() if importlib.util.find_spec(module) is not None]
    if as_json:
        echo_json(facts)
    else:
        echo_facts({name: value for name, value in facts.items() if value or isinstance(value, bool)})
