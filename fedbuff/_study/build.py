"""Objects from tables: strategies, delays, problems."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .. import layers as _layers
from .. import partition, staleness
from .._delays import distributions as _delays
from .._delays.distributions import Distribution
from .._delays.model import DelayModel
from .._problems.linear import LeastSquares, Logistic
from .._problems.local import LocalSGD
from .._problems.mlp import MLP, Softmax
from .._problems.network import Network
from .._problems.quadratic import Quadratic
from .._replay.engine import AnyProblem
from .._rule.algorithms import algorithms
from .._rule.compression import Compression
from .._rule.delta_weight import DeltaWeight
from .._rule.hidden import HiddenModel
from .._rule.optimizers import SGD, Adagrad, Adam, AMSGrad, DelayedNesterov, LearningRate, Nesterov, Yogi
from .._rule.secure_values import Gaussian
from .._rule.strategies import (
    FedAsync,
    FedAvg,
    FedBuff,
)
from .._rule.table import ClientTable
from ..jax import Loss
from ..torch import Module
from .tables import ConfigError, Tables, at_path, call_with, of_kind, pop_kind, refuse_unknown, table_of

Strategy = FedBuff | FedAsync | FedAvg
_STRATEGIES: dict[str, type[Strategy]] = {cls.kind: cls for cls in (FedBuff, FedAsync, FedAvg)}
PROBLEMS: dict[str, Callable[..., AnyProblem]] = {
    "softmax": Softmax,
    "mlp": MLP,
    "network": Network,
    "logistic": Logistic,
    "least_squares": LeastSquares,
    "quadratic": Quadratic,
    "torch": Module,
    "jax": Loss,
}
# The kinds whose functions are code that the configuration names: arguments of their class, by key.
CODE: dict[str, dict[str, str]] = {
    "torch": {"model": "model_fn"},
    "jax": {"loss": "loss_fn", "params": "params", "predict": "predict"},
}
_PRESET_OPTIONS = {"appfl": ("alpha", "total_samples"), "flsim": ("average_samples",)}
PARTITIONS: dict[str, Callable[..., Any]] = {
    "iid": partition.iid,
    "dirichlet": partition.dirichlet,
    "shards": partition.shards,
    "pathological": partition.pathological,
    "label_skew": partition.label_skew,
    "by_writer": partition.by_writer,
}
LAYERS: dict[str, Callable[..., Any]] = {
    made.kind: made for name in _layers.__all__ if (made := getattr(_layers, name))
}
DISTRIBUTIONS: dict[str, type[Distribution]] = {
    cls.kind: cls
    for cls in vars(_delays).values()
    if isinstance(cls, type) and issubclass(cls, Distribution) and hasattr(cls, "kind")
}
_STALENESS: dict[str, Callable[..., Any]] = {
    "constant": staleness.Constant,
    "polynomial": staleness.Polynomial,
    "hinge": staleness.Hinge,
    "threshold": staleness.Threshold,
    "inverse_one_plus_sqrt": staleness.InverseOnePlusSqrt,
    "delay_adaptive": staleness.DelayAdaptive,
}
_OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": SGD,
    "nesterov": Nesterov,
    "delayed_nesterov": DelayedNesterov,
    "adam": Adam,
    "adagrad": Adagrad,
    "yogi": Yogi,
    "amsgrad": AMSGrad,
}


def _distribution(path: str, value: Any) -> Distribution:
    """A distribution by its kind, or a number, which is a constant."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with at_path(path):
            return _delays.Constant(value)
    made: Distribution = of_kind(path, value, DISTRIBUTIONS)
    return made


def make_delay_model(values: Tables) -> DelayModel:
    laws = ("wait", "download", "compute", "upload")
    made = {
        key: _distribution(f"trace.{key}", value)
        if key in laws or (key == "client_speed" and not isinstance(value, list))
        else value
        for key, value in values.items()
    }
    if "availability" in made:
        raise ConfigError("trace.availability: a table cannot hold it; save a trace with it as .npz")
    if isinstance(made.get("client_speed"), list):
        with at_path("trace.client_speed"):
            made["client_speed"] = np.array(made["client_speed"], np.float64)
    for key in ("n_samples", "local_steps"):
        if isinstance(made.get(key), list):
            made[key] = np.array(made[key])
    model: DelayModel = call_with(DelayModel, "trace", made)
    return model


def make_schedule_options(values: Tables) -> Tables:
    """The arguments of `schedule` that a table gives."""
    if "server_time" in values:
        return {**values, "server_time": _distribution("schedule.server_time", values["server_time"])}
    return values


def make_local(values: Tables) -> LocalSGD:
    rates = {
        key: call_with(LearningRate, f"local.{key}", values[key])
        for key in LOCAL_RATES
        if isinstance(values.get(key), Mapping)
    }
    if isinstance(values.get("compress"), Mapping):
        rates["compress"] = call_with(Compression, "local.compress", values["compress"])
    made: LocalSGD = call_with(LocalSGD, "local", {**values, **rates})
    return made


def make_layers(path: str, values: Any) -> list[Any]:
    """Layers from a list of names and tables; the tables of a residual block hold lists of their own."""
    if not isinstance(values, list):
        raise ConfigError(f"{path}: expected a list of layers, got {type(values).__name__}")
    made = []
    for at, value in enumerate(values):
        here = f"{path}[{at}]"
        if isinstance(value, Mapping):
            inner = {key: make_layers(f"{here}.{key}", value[key]) for key in ("layers", "shortcut") if key in value}
            value = {**value, **inner}
        made.append(of_kind(here, value, LAYERS))
    return made


def make_strategy(values: Tables) -> Strategy:
    kind = pop_kind("strategy", values, [*_STRATEGIES, *(name for name in algorithms() if name not in _STRATEGIES)])
    if "staleness" in values:
        values["staleness"] = of_kind("strategy.staleness", values["staleness"], _STALENESS)
    if "optimizer" in values:
        values["optimizer"] = of_kind("strategy.optimizer", values["optimizer"], _OPTIMIZERS)
    if isinstance(values.get("server_lr"), Mapping):
        values["server_lr"] = call_with(LearningRate, "strategy.server_lr", values["server_lr"])
    if kind in _STRATEGIES and isinstance(values.get("table"), Mapping):
        values["table"] = call_with(ClientTable, "strategy.table", values["table"])
    if isinstance(values.get("hidden"), Mapping):
        values["hidden"] = call_with(HiddenModel, "strategy.hidden", values["hidden"])
    if "weight_by" in values:
        table = values["weight_by"]
        given = {"by": table} if isinstance(table, str) else table_of(values, "weight_by", "strategy.")
        values["weight_by"] = call_with(DeltaWeight, "strategy.weight_by", given)
    if "privacy" in values:
        values["privacy"] = privacy_of(values)
    if kind not in _STRATEGIES:
        named: Strategy = call_with(algorithms()[kind].make, "strategy", values)
        return named
    preset = values.pop("preset", None)
    if preset is None:
        made: Strategy = call_with(_STRATEGIES[kind], "strategy", values)
        return made
    if kind != "fedbuff":
        raise ConfigError(f"strategy.preset: {kind} has none, fedbuff has")
    if not isinstance(preset, str):
        raise ConfigError(f"strategy.preset: expected a name, got {type(preset).__name__}")
    known = (*inspect.signature(FedBuff).parameters, *_PRESET_OPTIONS.get(preset, ()))
    refuse_unknown("strategy", values, known)
    with at_path("strategy", (*known, "preset")):
        return FedBuff.preset(preset, **values)


def describe_strategy(strategy: Strategy) -> str:
    """A strategy in a few words, for tables and legends.

    >>> import fedbuff as fb
    >>> from fedbuff._study.build import describe_strategy
    >>> describe_strategy(fb.FedBuff(buffer_size=10))
    'FedBuff K=10'
    """
    if isinstance(strategy, FedBuff):
        return f"FedBuff K={strategy.buffer_size}"
    if isinstance(strategy, FedAsync):
        return "FedAsync"
    size = f"m={strategy.clients_per_round}" if strategy.rate is None else f"rate={strategy.rate:g}"
    over = f" +{strategy.over_selection:.0%}" if strategy.over_selection else ""
    return f"FedAvg {size}{over}"


def default_metrics(problem: Tables) -> tuple[str, ...]:
    """What is measured of the problem of this table; of a factory's, which is not known yet, what it may be."""
    kind = PROBLEMS.get(problem["kind"], Softmax)
    has_accuracy = hasattr(kind, "accuracy") and problem.get("loss") != "squared_error"
    return ("loss", "accuracy") if has_accuracy else ("loss",)


# The objects that a table of a kind stands for, by the table's path.
KINDS_OF: dict[str, Mapping[str, Callable[..., Any]]] = {
    "strategy.staleness": _STALENESS,
    "strategy.optimizer": _OPTIMIZERS,
    "schedule.server_time": DISTRIBUTIONS,
    **{f"trace.{law}": DISTRIBUTIONS for law in ("wait", "download", "compute", "upload", "client_speed")},
}


LOCAL_RATES = ("lr_by_version", "lr_by_step")  # keys of [local] that are a table of a LearningRate


def strategy_keys(kind: Any, preset: Any) -> tuple[str, ...] | None:
    """The keys of [strategy] beside `kind`; None for a kind that there is not."""
    if kind not in _STRATEGIES:
        return None
    of_preset = _PRESET_OPTIONS.get(preset, ()) if isinstance(preset, str) else ()
    return (*inspect.signature(_STRATEGIES[kind]).parameters, "preset", *of_preset)


def privacy_of(strategy: Mapping[str, Any]) -> Gaussian | None:
    """The noise that the table [strategy] asks for."""
    given = strategy.get("privacy")
    if given is None or isinstance(given, Gaussian):
        return given
    made: Gaussian = call_with(Gaussian, "strategy.privacy", table_of(strategy, "privacy", "strategy."))
    return made
