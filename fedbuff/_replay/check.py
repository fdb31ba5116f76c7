"""Checks of a replay's arguments, as functions: the constructors call them, and so does whoever only wants to know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .._base.checks import choice
from .._base.files import optional
from .._problems.custom import Custom
from .._problems.local import LocalSGD
from .._problems.python_problem import PythonProblem
from .._rule.secure_values import OneTimePad
from .._rule.strategies import Rule
from .._schedule.schedule import Schedule
from ..backends.spec import METRICS, PROBLEM_METRICS, LocalPlan
from .stop import Stop

__all__ = [
    "check_local",
    "check_method",
    "check_metrics",
    "check_problem",
    "check_replay",
    "check_schedule",
    "check_stop",
]

_NEEDS = {"loss": "loss", "grad_norm_sq": "grad", "accuracy": "accuracy"}  # methods of a problem, by metric


def check_replay(problem: Any, schedule: Schedule, local: LocalSGD | None, rule: Rule) -> None:
    """Refuses a problem, a schedule, local steps or a rule that `Replay` would refuse. O(schedule), without models."""
    check_problem(problem)
    check_schedule(schedule, problem)
    check_local(local, problem)
    check_method(local, rule)
    if rule.privacy is not None:
        rule.privacy.clip_for(rule.secure, problem.dim)
    if isinstance(rule.secure, OneTimePad):
        optional("cryptography", "secure", "a one-time pad")


def check_problem(problem: Any) -> None:
    """Refuses what lacks an attribute that every problem has."""
    for name in ("init", "dtype", "dim", "n_clients", "n_samples"):
        if not hasattr(problem, name):
            raise TypeError(f"problem: expected a problem, got {type(problem).__name__}, which has no {name}")


def check_schedule(schedule: Schedule | Iterable[Schedule], problem: Any) -> None:
    """Refuses a whole schedule that is for other clients, or unsound; the chunks of one are checked as they come."""
    if not isinstance(schedule, Schedule):
        return
    if schedule.n_clients != problem.n_clients:
        raise ValueError(
            f"schedule: it has {schedule.n_clients} clients, the problem {problem.n_clients}; "
            "trace.assign(n_clients) maps recorded devices to a problem's clients"
        )
    try:
        schedule.require_sound()
    except ValueError as error:
        raise ValueError(f"schedule: {error}") from error


def check_local(local: LocalSGD | None, problem: Any) -> LocalPlan | None:
    """Refuses local steps that do not fit the problem; else its tasks, None where a function of Python runs them."""
    if isinstance(problem, PythonProblem):
        problem.check_local(local)
        return None
    if not isinstance(local, LocalSGD):
        raise TypeError(f"local: expected fedbuff.LocalSGD, got {type(local).__name__}")
    plan = local.plan(problem)
    if isinstance(problem, Custom):
        problem.check_backend()
    return plan


def check_method(local: LocalSGD | None, rule: Rule) -> None:
    """Refuses one half of an algorithm whose other half is missing."""
    clients = "sgd" if local is None else local.method
    if clients == rule.method:
        if local is not None and local.alpha != rule.alpha:
            raise ValueError(f"alpha: the strategy has {rule.alpha}, LocalSGD has {local.alpha}; make them equal")
        return
    if rule.method == "sgd":
        raise ValueError(
            f'method: LocalSGD has "{clients}", the strategy has not; fedbuff.algorithm("{clients}", ...) is its half'
        )
    raise ValueError(
        f'method: the strategy has "{rule.method}", its clients have "{clients}"; use LocalSGD(method="{rule.method}")'
    )


def check_metrics(metrics: Sequence[str], problem: Any) -> None:
    """Refuses metrics that do not exist, or that the problem cannot give."""
    for name in metrics:
        choice("metrics", name, METRICS)
    for name, needs in _NEEDS.items():
        if name in metrics and not callable(getattr(problem, needs, None)):
            raise ValueError(f"metrics: {type(problem).__name__} has no {needs}, which {name!r} needs")


def check_stop(stop: Stop, metrics: Sequence[str]) -> None:
    """Refuses a limit of a metric that is not evaluated."""
    for name in PROBLEM_METRICS:
        if getattr(stop, name) is not None and name not in metrics:
            raise ValueError(f"metrics: stop looks at {name!r}, which is not among them")
