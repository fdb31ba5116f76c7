"""Files of replays: what a checkpoint holds, and what it is compared with."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .. import backends
from .._base.arrays import all_finite, little_endian
from .._base.files import open_npz, reading
from .._problems.base import Problem
from .._problems.local import LocalSGD
from .._problems.python_problem import PythonProblem
from .._rule.compression import Compression
from .._rule.optimizers import LearningRate
from .._rule.state import NAMES, check_state
from .._rule.strategies import Rule
from ..backends.spec import Vector as Floats
from .engine import AnyProblem

FORMAT = "fedbuff-replay"
FORMAT_NUMBER = 2
_ABOUT = (  # what a checkpoint says beside its arrays
    "problem", "function", "kernels", "schedule", "w0", "rule", "local", "staleness_weights", "seed", "version",
    "updates", "time", "taken", "secure", "metrics",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Position:
    """What a checkpoint says, with the types, shapes and ranges that it must have."""

    version: int
    updates: int
    time: float
    taken: str
    history: list[dict[str, float]]
    secure: dict[str, float]
    staleness_weights: list[Any] | None
    w0: str
    metrics: list[str] | None
    w: Floats
    live: list[int]
    models: Floats
    rule_state: dict[str, NDArray[Any]]
    evaluated: Floats | None
    previous: Floats | None
    deltas: Floats  # those that `ReplayEngine.waiting_deltas` gave

    @property
    def evaluated_at(self) -> int:
        return int(self.history[-1]["step"]) if self.history else 0

    @classmethod
    def read(
        cls,
        about: dict[str, Any],
        arrays: dict[str, NDArray[Any]],
        problem: AnyProblem,
        rule: Rule,
        keeps_state: bool = False,
    ) -> _Position:
        """ValueError where something is not what `Replay.save` writes."""
        dim, dtype, width = problem.dim, problem.dtype, width_of(rule, problem.dim)

        def require(holds: bool, what: str) -> None:
            if not holds:
                raise ValueError(f"it does not add up: {what}")

        def vector(name: str, wanted: bool | None = None) -> Floats | None:
            value = arrays.get(name)
            require(wanted is None or (value is not None) == wanted, f"{name}: expected one" if wanted else f"{name}")
            if value is not None:
                require(value.dtype == dtype and value.shape == (dim,), f"{name} is {value.dtype} {value.shape}")
                require(bool(np.isfinite(value).all()), f"{name} is not finite")
            return value

        version, updates, since = (about[name] for name in ("version", "updates", "time"))
        for name in ("version", "updates"):
            require(type(about[name]) is int and about[name] >= 0, f"{name} is {about[name]!r}")
        require(isinstance(since, int | float) and np.isfinite(since), f"time is {since!r}")
        live, models = arrays["live"], arrays["models"]
        require(live.dtype == np.int64 and live.ndim == 1, f"live is {live.dtype} {live.shape}")
        require(bool(((live >= 0) & (live < version)).all() and (np.diff(live) > 0).all()), f"live is {live}")
        require(
            models.dtype == dtype and models.shape == (live.size, width), f"models is {models.dtype} {models.shape}"
        )
        deltas = arrays.get("deltas", np.empty((0, dim), dtype))
        fits = deltas.dtype == dtype and deltas.ndim == 2 and deltas.shape[1] == dim
        require(fits, f"deltas is {deltas.dtype} {deltas.shape}")
        most = problem.batch if isinstance(problem, PythonProblem) else 0
        require(len(deltas) <= max(0, (most or 0) - 1), f"there are {len(deltas)} deltas, in groups of at most {most}")
        secure = about["secure"]
        require(
            isinstance(secure, dict) and all(isinstance(secure.get(name), int | float) for name in ("cut", "seconds")),
            f"secure is {secure!r}",
        )
        weights = about["staleness_weights"]
        require(
            weights is None or (isinstance(weights, list) and len(weights) == 2 and type(weights[0]) is int
                                and 0 <= weights[0] <= max(1, 2 * version)),
            f"staleness_weights is {weights!r}",
        )  # fmt: skip
        metrics = about["metrics"]
        require(metrics is None or isinstance(metrics, list), f"metrics is {metrics!r}")
        w = vector("w", True)
        rule_state = {name: arrays[name] for name in NAMES if name in arrays}
        try:
            check_state(rule, rule_state, dim, dtype)
            if keeps_state:
                rule_state |= _read_states(arrays, problem)
        except ValueError as error:
            raise ValueError(f"it does not add up: {error}") from None
        return cls(
            version=version,
            updates=updates,
            time=float(since),
            taken=str(about["taken"]),
            history=_read_history(arrays["history"], version, require),
            secure=secure,
            staleness_weights=weights,
            w0=str(about["w0"]),
            metrics=metrics,
            w=cast(Floats, w),
            live=live.tolist(),
            models=np.ascontiguousarray(models),
            rule_state=rule_state,
            evaluated=vector("evaluated"),
            previous=vector("previous"),
            deltas=np.ascontiguousarray(deltas),
        )


def width_of(rule: Rule, dim: int) -> int:
    """The numbers of a version: the model's, and as many of a control variate where the rule has one."""
    return 2 * dim if rule.has_control else dim


def _read_states(arrays: dict[str, NDArray[Any]], problem: AnyProblem) -> dict[str, NDArray[Any]]:
    """The states of clients in a checkpoint; none of them may be there."""
    dim, dtype = problem.dim, problem.dtype
    clients = arrays.get("state_client", np.empty(0, np.int64))
    rows = arrays.get("state_rows", np.empty((0, dim), dtype))
    if clients.dtype != np.int64 or clients.ndim != 1:
        raise ValueError(f"state_client: expected int64 of one dimension, got {clients.dtype} {clients.shape}")
    if len(clients) and not (clients[0] >= 0 and (np.diff(clients) > 0).all() and clients[-1] < problem.n_clients):
        raise ValueError(f"state_client: expected ascending numbers below {problem.n_clients}")
    if rows.dtype != dtype or rows.shape != (len(clients), dim):
        raise ValueError(f"state_rows: expected {dtype} ({len(clients)}, {dim}), got {rows.dtype} {rows.shape}")
    for client, row in zip(clients.tolist(), rows, strict=True):
        if not all_finite(row):
            raise ValueError(f"state_rows: the state of client {client} is not finite")
    return {"state_client": clients, "state_rows": np.ascontiguousarray(rows)}


def _read_history(content: NDArray[Any], version: int, require: Callable[[bool, str], None]) -> list[dict[str, float]]:
    """The rows of a history: the same names in each, numbers, and steps that ascend up to the version."""
    rows = json.loads(content.tobytes())
    require(isinstance(rows, list) and all(isinstance(row, dict) for row in rows), "history is no list of rows")
    before = -1
    for place, row in enumerate(rows):
        where = f"row {place} of the history"
        require(list(row) == list(rows[0]), f"{where} has other names than the first")
        require(all(type(value) in (int, float) for value in row.values()), f"{where} has something else than numbers")
        require({"step", "time", "updates"} <= set(row), f"{where} has no step, time or updates")
        require(type(row["step"]) is int and before < row["step"] <= version, f"{where} is of step {row['step']}")
        before = row["step"]
    return cast(list[dict[str, float]], rows)


def problem_hash(problem: AnyProblem) -> str:
    """The content of a problem: every array and number of its spec. A function is known by its sizes alone."""
    if isinstance(problem, PythonProblem):
        return f"{type(problem).__name__} {problem.digest}"
    if not isinstance(problem, Problem):
        return f"{type(problem).__name__} {problem.n_clients} {problem.dim} {problem.dtype}"
    spec = problem._spec
    digest = hashlib.sha256()
    for part in fields(spec):
        value = getattr(spec, part.name)
        digest.update(part.name.encode())
        digest.update(np.ascontiguousarray(value).data if isinstance(value, np.ndarray) else repr(value).encode())
    return digest.hexdigest()


def _kernels() -> str:
    """What computes, as far as the bits depend on it: the backend and, of the compiled one, the CPU level."""
    compiled = backends.compiled()
    return backends.current().name if compiled is None else f"cpp {compiled.level()}"


def _code_hash(function: Any) -> list[str] | None:
    """The Python version and a hash of a function's code, by which a changed one is recognised; None where it has none.

    What the function refers to is not part of it.
    """
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__")
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    digest = hashlib.sha256()

    def add(code: Any) -> None:
        digest.update(code.co_code)
        digest.update(repr((code.co_names, code.co_varnames, code.co_argcount)).encode())
        for value in code.co_consts:
            if hasattr(value, "co_code"):
                add(value)
            else:
                digest.update(repr(sorted(value, key=repr) if isinstance(value, frozenset) else value).encode())

    add(code)
    return [f"{sys.version_info[0]}.{sys.version_info[1]}", digest.hexdigest()]


def _local_to_json(local: LocalSGD) -> dict[str, Any]:
    values = {part.name: getattr(local, part.name) for part in fields(local)}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            values[name] = value.tolist()
        elif isinstance(value, LearningRate | Compression):
            values[name] = asdict(value)
    return values


def local_from_json(values: dict[str, Any]) -> LocalSGD:
    rates = {
        name: LearningRate(**value)
        for name, value in values.items()
        if name in ("lr_by_version", "lr_by_step") and value is not None
    }
    compress = values.get("compress")
    made = {} if compress is None else {"compress": Compression(**compress)}
    return LocalSGD(**(values | rates | made))


def _digest(arrays: dict[str, NDArray[Any]]) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(little_endian(arrays[name]).tobytes())
    return digest.digest()


def read_checkpoint(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    what = "a saved replay"
    with reading(path, what), open_npz(path, what) as file:
        arrays = file.all()
        about = json.loads(arrays["about"].tobytes())
        if about.get("format") != FORMAT:
            raise ValueError("it holds something else")
        if about.get("format_number") != FORMAT_NUMBER:
            raise ValueError(f"its format is number {about.get('format_number')}, this reader's is {FORMAT_NUMBER}")
        for name in _ABOUT:
            about[name]
        for name in ("w", "live", "models", "history"):
            arrays[name]
        checksum = arrays.pop("checksum").tobytes()
        if checksum != _digest(arrays):
            raise ValueError("its checksum does not fit its content")
    return about, arrays
