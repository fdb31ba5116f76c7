"""The engine of a replay: what it can do, and how it is made for a problem and a rule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .. import backends
from .._base.alone import OneAtATime
from .._problems.base import Problem
from .._problems.custom import Custom
from .._problems.local import LocalSGD
from .._problems.python_problem import PythonProblem
from .._rule.secure_values import OneTimePad
from .._rule.strategies import Rule
from .._rule.table import check_memory, free_memory, make_rows
from .._schedule.columns import Status
from .._schedule.schedule import Schedule
from ..backends.spec import (
    ClientFunction,
    CompiledGradient,
    EngineSpec,
    ReplayEngine,
    ReplayRun,
    RunSpec,
    SumRoles,
    SumSpec,
)
from ..backends.spec import Vector as Floats
from .check import check_local, check_method

WINDOW_BYTES = 1 << 30
_LONGEST_TABLE = 1 << 16  # of weights by staleness, for a schedule that is not known to its end
AnyProblem = Problem | Custom | PythonProblem


def make_roles(
    rule: Rule, w0: Floats, seed: int, schedule: Schedule | Iterable[Schedule], e_by_client: NDArray[np.float64]
) -> Any:
    """Those who make the sums under real pads, and what they agree on; None where there are no pads."""
    if not isinstance(rule.secure, OneTimePad):
        return None
    from ..secure import Parameters
    from ..secure._roles import Roles

    most = rule.max_staleness
    if isinstance(schedule, Schedule):
        most = int(schedule.staleness[schedule.status == Status.USED].max(initial=0))
    table = []
    for staleness in range(_LONGEST_TABLE if most is None else most + 1):
        table.append(rule.staleness_weight(staleness))
        if most is None and table[-1] * float(e_by_client.max()) * rule.secure.weight_unit < 0.5:
            break  # no weight is left for one that is staler
    agreed = Parameters(
        dim=w0.size,
        buffer_size=rule.buffer_size,
        secure=rule.secure,
        max_staleness=most,
        staleness_weights=tuple(table),
    )
    return Roles(agreed, w0.dtype, seed, e_by_client)


def make_engine(
    problem: AnyProblem, local: LocalSGD | None, rule: Rule, w0: Floats, seed: int, roles: SumRoles | None
) -> ReplayEngine:
    plan = check_local(local, problem)
    check_method(local, rule)
    function: ClientFunction | CompiledGradient | None = None
    bound = None
    if isinstance(problem, PythonProblem):
        function = problem.client_function(seed, local)
    elif isinstance(problem, Custom):
        function = problem.compiled()
    else:
        bound = problem.bound
    sums = _sums(rule, problem.dim, seed)
    _check_control(rule, problem)
    rows = _rows(rule, problem)
    engine = backends.current().replay_engine(
        EngineSpec(
            rule=rule, w0=w0, bound=bound, function=function, local=plan, seed=seed,
            window_bytes=WINDOW_BYTES, sums=sums, roles=roles,
        )
    )  # fmt: skip
    if rows is not None:
        engine.set_table(rows)
    return cast(ReplayEngine, OneAtATime(engine))


def _check_control(rule: Rule, problem: AnyProblem) -> None:
    if rule.has_control and rule.n_clients != problem.n_clients:
        raise ValueError(f"n_clients: {rule.method} has {rule.n_clients}, the problem has {problem.n_clients}")


def keeps_state(local: LocalSGD | None) -> bool:
    """Whether clients keep a state. What is no LocalSGD does not; `check_local` refuses it."""
    return isinstance(local, LocalSGD) and local.keeps_state


def check_states(local: LocalSGD | None, problem: AnyProblem, schedule: Schedule | Iterable[Schedule]) -> None:
    """MemoryError where the states that clients keep do not fit the memory that is free."""
    if local is None or not keeps_state(local):
        return
    n = len(np.unique(schedule.client)) if isinstance(schedule, Schedule) else problem.n_clients
    wanted, free = n * problem.dim * problem.dtype.itemsize, free_memory()
    if wanted > free:
        who = f"method: {local.method}" if local.has_control_variates else "compress: error feedback"
        raise MemoryError(
            f"{who} keeps {problem.dim} {problem.dtype} of each of {n} clients, {wanted} bytes, and {free} are free"
        )


def _rows(rule: Rule, problem: AnyProblem) -> NDArray[Any] | None:
    """Refuses a table that does not fit the problem or the memory; the rows where they are in a file."""
    if rule.kept_rows is None:
        return None
    if rule.table is not None and rule.n_clients != problem.n_clients:
        raise ValueError(f"n_clients: the rule's table is of {rule.n_clients}, the problem has {problem.n_clients}")
    table, n_rows = rule.kept_rows
    check_memory(table, n_rows, problem.dim, problem.dtype)
    return make_rows(table, n_rows, problem.dim, problem.dtype)


def make_run(engine: ReplayEngine, spec: RunSpec) -> ReplayRun:
    """The run of a new engine; while it goes on, neither can be asked anything."""
    guarded = cast(OneAtATime, engine)
    return cast(ReplayRun, OneAtATime(backends.current().replay_run(guarded.engine, spec), guarded))


def _sums(rule: Rule, dim: int, seed: int) -> SumSpec:
    """How the sums of a rule are made."""
    values: dict[str, Any] = {"seed": seed}
    if rule.secure is not None:
        encoding = rule.secure.encoding
        values |= {
            "modulus": encoding.modulus,
            "range": encoding.clip,
            "step": encoding.step,
            "stochastic": encoding.rounding == "stochastic",
            "weight_unit": rule.secure.weight_unit,
        }
    if rule.privacy is not None:
        values |= {
            "clip": rule.privacy.clip_for(rule.secure, dim),
            "deviation": rule.privacy.deviation,
            "system_noise": rule.privacy.source == "system",
        }
    return SumSpec(**values)
