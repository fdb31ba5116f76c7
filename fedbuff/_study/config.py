"""`StudyConfig`: a run written down as tables (TOML, JSON or a dict), checked, and turned into fedbuff's objects.

    seeds = [0, 1, 2]                       # or seed = 0

    [problem]                               # what the clients minimise
    kind = "softmax"                        # softmax, mlp, network, logistic, least_squares, quadratic,
                                            # torch, jax, factory
    data = "digits.npz"
    test = 0.2                              # a share of the rows, held out; or another file
    partition = { kind = "dirichlet", n_clients = 40, alpha = 0.3 }

    [trace]                                 # how slow they are
    kind = "recorded"                       # recorded, log, model, uniform
    file = "delays.csv"
    assign = true                           # recorded devices are dealt to the problem's clients, by the seed

    [strategy]                              # FedBuff, FedAsync or FedAvg, by the names of their arguments
    kind = "fedbuff"
    buffer_size = 10

    [local]                                 # fb.LocalSGD
    steps = 5
    lr = 0.1

    [schedule]                              # the arguments of fb.schedule
    concurrency = 20
    server_steps = 300

    [replay]                                # some arguments of fb.replay
    eval_every = 10

The keys of a table are the arguments of the function or class that it stands for, so that this module has no list of
them to keep: an unknown key, a missing one and a value of the wrong kind are errors that begin with the key's path. A
`StudyConfig` is immutable and pickles as its tables alone; what it builds from files is built once per object. Kinds
"factory", "torch" and "jax" run functions that the file names, and with them any code: only where `allow_code` says so.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from .._base.checks import (
    choice,
    count,
    list_of,
    mapping,
    number,
    path_of,
)
from .._base.files import FileError, reading
from .._delays.arrival_log import ArrivalLog
from .._delays.model import DelayModel
from .._delays.read import read_arrival_log, read_trace
from .._delays.recorder import sample_log
from .._delays.trace import Trace
from .._problems.base import Problem
from .._problems.local import LocalSGD
from .._problems.quadratic import Quadratic
from .._replay.check import check_metrics, check_replay, check_stop
from .._replay.engine import AnyProblem
from .._replay.history import Result
from .._replay.loop import replay
from .._replay.stop import Stop
from .._rule.secure_values import Gaussian
from .._rule.strategies import FedAvg, FedBuff, rule_of
from .._schedule.options import ScheduleOptions
from .._schedule.plan import Request
from .._schedule.resolve import plans_of
from .._schedule.resolve import schedule as resolve
from .._schedule.schedule import Schedule
from .._schedule.uniform import uniform_arrivals
from ..layers import Embedding
from .build import (
    CODE,
    PARTITIONS,
    PROBLEMS,
    Strategy,
    describe_strategy,
    make_delay_model,
    make_layers,
    make_local,
    make_schedule_options,
    make_strategy,
)
from .code import NamedFunction, load_function
from .data import (
    SAMPLE,
    HeldOut,
    Rows,
    format_of,
)
from .keys import (
    DATA_KEYS,
    SECTIONS,
    SWEEP_KEYS,
    TARGETS,
    TOP_KEYS,
    partition_keys,
    problem_keys,
    refuse_unknown_removals,
    schedule_keys,
    trace_keys,
)
from .options import ReplayOptions
from .rows import read_rows, shape_of, shaped, tokens_of, wants_numbers
from .tables import (
    ConfigError,
    ConfigFileError,
    ConflictError,
    Tables,
    at_path,
    call_with,
    combinations,
    merged,
    parameters_of,
    parse_setting,
    pop_kind,
    read_tables,
    refuse_unknown,
    seeds_of,
    table_of,
)

__all__ = ["StudyConfig"]
Source = Trace | DelayModel | ArrivalLog


def check_code(tables: Tables, allow_code: bool) -> None:
    """Refuses tables whose problem runs code, unless that is allowed."""
    kind = table_of(tables, "problem").get("kind")
    if kind in ("factory", *CODE) and not allow_code:
        raise ConfigError(
            f'problem.kind: "{kind}" runs code that the configuration names; where you trust it as you trust a '
            "program, give --allow-code, or allow_code=True in Python"
        )


def check_repeatable(privacy: Gaussian | None, what: str) -> None:
    """Refuses noise that is drawn from the operating system, for `what` must get the same run twice."""
    if privacy is not None and not privacy.repeatable:
        raise ConfigError(
            f'strategy.privacy.source: {what} needs "simulated", got "system": its runs must be repeatable, and '
            "releases of every one of them would have to be counted"
        )


def at_replay() -> AbstractContextManager[None]:
    """The keys of the problem's errors are arguments of replay: names the table that gave them."""
    return at_path("replay", ("metrics", "eval_every", "threads", "checkpoint_every"), named_here=False)


# ---- the configuration ----


@dataclass(frozen=True, eq=False)
class StudyConfig:
    """A configuration whose tables were checked as far as that needs no file; `folder` is what its paths start from.

    With `allow_code` a problem of the kind "factory", "torch" or "jax" may call its function. Then the configuration is
    a program: give it for your own ones only.

    >>> import fedbuff as fb
    >>> config = fb.StudyConfig({
    ...     "problem": {"kind": "quadratic", "centers": [[0.0, 0.0], [2.0, 0.0]]},
    ...     "trace": {"kind": "model", "n_clients": 2, "compute": {"kind": "exponential", "scale": 1.0}},
    ...     "strategy": {"kind": "fedbuff", "buffer_size": 2},
    ...     "local": {"steps": 1, "lr": 0.5},
    ...     "schedule": {"server_steps": 10},
    ... })
    >>> config.run(seed=0).version
    10
    >>> config.changed({"strategy.buffer_size": 0})
    Traceback (most recent call last):
        ...
    fedbuff._study.tables.ConfigError: strategy.buffer_size: expected an int >= 1, got 0
    """

    tables: Tables
    folder: Path = Path()
    allow_code: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", copy.deepcopy(mapping("tables", self.tables)))
        object.__setattr__(self, "folder", path_of("folder", self.folder))
        refuse_unknown("", self.tables, TOP_KEYS)
        for name in ("problem", "trace", "strategy"):
            if name not in self.tables:
                raise ConfigError(f"{name}: the table is missing")
        if not isinstance(self.tables.get("name", ""), str):
            raise ConfigError(f"name: expected a string, got {type(self.tables['name']).__name__}")
        _ = self.seeds, self.target, self.sweep_options
        self._check_problem()
        self._check_sections()

    def _check_sections(self) -> None:
        """The checks that need no file and are cheap once the objects of the tables exist."""
        _ = self.strategy, self.local, self.schedule_options, self.replay_options
        self._check_trace()
        if isinstance(self.strategy, FedAvg):
            for key in ("concurrency", "start_rate"):
                if self.schedule_options.get(key) is not None:
                    raise ConflictError(f"schedule.{key}", "FedAvg starts its own rounds, of clients_per_round clients")

    @classmethod
    def read(
        cls, path: str | os.PathLike[str], settings: Sequence[str] = (), *, allow_code: bool = False
    ) -> StudyConfig:
        """A .toml or .json file, with settings `key.path=value` that override it."""
        changes = [parse_setting(setting) for setting in list_of("settings", settings, "texts key.path=value")]
        tables = read_tables(path)
        try:
            with reading(path, "a configuration"):
                tables = merged(tables, {})
                for key, value in changes:
                    refuse_unknown_removals(tables, {key: value})
                    tables = merged(tables, {key: value})
                return cls(tables, Path(path).parent, allow_code)
        except FileError as error:
            cause = error.__cause__
            wrong = ConfigFileError(f"{cause if isinstance(cause, ConfigError) else error.reason} ({Path(path).name})")
            wrong.path = path
            raise wrong from None

    def changed(self, changes: Mapping[str, Any]) -> StudyConfig:
        """The same with other values, by path; None removes a key (see `merged`)."""
        return StudyConfig(merged(self.tables, changes), self.folder, self.allow_code)

    def named(self, name: str) -> StudyConfig:
        """The same with another name: tables and what was built of them are shared, and nothing is checked again."""
        made = object.__new__(StudyConfig)
        made.__dict__.update(self.__dict__)
        made.__dict__["tables"] = {**self.tables, "name": name}
        return made

    def with_sections(self, sections: Mapping[str, Any], ready: Mapping[str, Any], *, checked: bool) -> StudyConfig:
        """These tables with other sections, which are shared and not copied; only what they can break is checked.
        A section that is None is left out.

        `ready` holds, by name, values of properties that are known already; `checked` says that the table
        [problem] is one that was checked before.
        """
        made = object.__new__(StudyConfig)
        made.__dict__.update(ready)
        made.__dict__["tables"] = {name: t for name, t in {**self.tables, **sections}.items() if t is not None}
        made.__dict__["folder"] = self.folder
        made.__dict__["allow_code"] = self.allow_code
        if not checked:
            made._check_problem()
        made._check_sections()
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {"tables": self.tables, "folder": self.folder, "allow_code": self.allow_code}

    @property
    def sha256(self) -> str:
        """The hash of the tables; files count by their name, not by their content."""
        return hashlib.sha256(json.dumps(self.tables, sort_keys=True, default=str).encode()).hexdigest()

    @property
    def name(self) -> str:
        """`name` in the file, else the strategy in a few words."""
        return str(self.tables.get("name") or describe_strategy(self.strategy))

    # What needs no file

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        if "seed" in self.tables and "seeds" in self.tables:
            raise ConfigError("seed: expected seed or seeds, got both")
        given = self.tables.get("seeds", [self.tables.get("seed", 0)])
        return seeds_of(given, "seed" if "seed" in self.tables else "seeds")

    @cached_property
    def strategy(self) -> Strategy:
        return make_strategy(table_of(self.tables, "strategy"))

    @cached_property
    def local(self) -> LocalSGD | None:
        """None where there is no table [local], as a problem that does its own local steps wants it."""
        if "local" not in self.tables:
            if self.tables["problem"].get("kind") != "factory":
                raise ConfigError("local: the table is missing")
            return None
        return make_local(table_of(self.tables, "local"))

    @cached_property
    def schedule_options(self) -> Tables:
        values = table_of(self.tables, "schedule")
        refuse_unknown("schedule", values, schedule_keys())
        return make_schedule_options(values)

    @cached_property
    def replay_options(self) -> ReplayOptions:
        values = table_of(self.tables, "replay")
        if "stop" in values:
            values["stop"] = call_with(Stop, "replay.stop", table_of(values, "stop"))
        made: ReplayOptions = call_with(ReplayOptions, "replay", values)
        return made

    @cached_property
    def sweep_options(self) -> Tables:
        """The table [sweep]: `grid`, lists of values by key path, and `seeds`, a list or "0:100"."""
        values = table_of(self.tables, "sweep")
        refuse_unknown("sweep", values, SWEEP_KEYS)
        if "grid" in values:
            combinations(table_of(values, "grid"), "sweep.grid")
        if "seeds" in values:
            values["seeds"] = seeds_of(values["seeds"], "sweep.seeds")
        return values

    def _check_problem(self) -> None:
        values = table_of(self.tables, "problem")
        kind = pop_kind("problem", values, (*PROBLEMS, "factory"))
        known = problem_keys(kind)
        if kind == "factory":
            refuse_unknown("problem", values, known)
            if not isinstance(values.get("function"), str) or ":" not in values["function"]:
                raise ConfigError("problem.function: expected 'module:function' or 'file.py:function'")
            return
        if kind in CODE:
            self._check_named(kind, values)
        if kind == "quadratic":
            if "centers" not in values:
                raise ConfigError("problem.centers: missing")
        elif "data" not in values:
            raise ConfigError("problem.data: missing; a file, or sample:digits")
        refuse_unknown("problem", values, known)
        with at_path("problem", known):
            choice("dtype", values.get("dtype", "float32"), ("float32", "float64"))
            if "format" in values:
                format_of(values["format"])
            if kind == "network":
                _ = make_layers("problem.layers", values.get("layers")), shape_of(values)
            if not isinstance(values.get("test", 0.5), str):
                number("test", values.get("test", 0.5), high=1.0, open_low=True)
        if "partition" in values:
            given = table_of(values, "partition")
            kind = pop_kind("problem.partition", given, (*PARTITIONS, "column"))
            refuse_unknown("problem.partition", given, partition_keys(kind))

    @staticmethod
    def _check_named(kind: str, values: Tables) -> None:
        optional_keys = ("predict",)
        for key in CODE[kind]:
            if key not in values and key in optional_keys:
                continue
            if not isinstance(values.get(key), str) or ":" not in values[key]:
                raise ConfigError(f"problem.{key}: expected 'module:function' or 'file.py:function'")

    def _check_trace(self) -> None:
        values = table_of(self.tables, "trace")
        kind = pop_kind("trace", values, ("recorded", "log", "model", "uniform"))
        if kind == "model":
            _ = self._model
        elif kind == "uniform":
            refuse_unknown("trace", values, trace_keys(kind))
            for name in ("n_clients", "max_staleness"):
                if name not in values:
                    raise ConfigError(f"trace.{name}: missing")
            if "buffer_size" not in dir(self.strategy):
                raise ConfigError("strategy.kind: uniform arrivals fill a buffer, and FedAvg has none")
            if "server_steps" not in self.schedule_options:
                raise ConfigError("schedule.server_steps: missing; uniform arrivals go on for so many steps")
        else:
            refuse_unknown("trace", values, trace_keys(kind))
            if not isinstance(values.get("file"), str):
                raise ConfigError(f"trace.file: {'missing' if 'file' not in values else 'expected a file name'}")
            if kind == "log" and not values.get("as_trace") and (values.get("assign") or values.get("bootstrap")):
                raise ConfigError("trace.assign: a log is replayed as it happened; set trace.as_trace = true")

    @cached_property
    def _model(self) -> DelayModel:
        values = table_of(self.tables, "trace")
        values.pop("kind")
        return make_delay_model(values)

    def path(self, name: str) -> Path:
        """A file that the configuration names."""
        return self.folder / name

    # What needs files

    @cached_property
    def problem(self) -> AnyProblem:
        return self._problem_and_test[0]

    @cached_property
    def held_out(self) -> HeldOut | None:
        """Rows that no client has, for the accuracy."""
        return self._problem_and_test[1]

    @cached_property
    def held_out_rows(self) -> Problem | None:
        """The same, ready to be evaluated."""
        return None if self.held_out is None else cast(Any, self.problem).held_out(*self.held_out)

    @cached_property
    def _problem_and_test(self) -> tuple[AnyProblem, HeldOut | None]:
        values = table_of(self.tables, "problem")
        kind = values.pop("kind")
        if kind == "factory":
            return self._from_factory(values)
        if kind == "quadratic":
            dtype = values.pop("dtype", "float64")
            with at_path("problem.centers"):
                values["centers"] = np.array(values["centers"], dtype)
            return call_with(Quadratic, "problem", values), None
        if kind in CODE:
            self._load_named(kind, values)
        rows = self.rows
        if kind == "network":
            values["layers"] = make_layers("problem.layers", values["layers"])
            with at_path("problem", ("shape",)):
                rows = shaped(rows, shape_of(values))
            values.pop("shape", None)
        given: dict[str, Any] = {}
        if kind == "network" and rows.X.dtype == np.uint8:
            given["dtype"] = values.get("dtype", "float32")
        if kind == "network" and any(isinstance(layer, Embedding) for layer in values["layers"][:1]):
            with at_path("problem", ("data",)):
                rows, given["dtype"] = tokens_of(rows), values.get("dtype", "float32")
        values = {key: value for key, value in values.items() if key not in (*DATA_KEYS, "partition")}
        given |= {"X": rows.X, "y": rows.y, "clients": rows.clients, "copy": rows.copy}
        return call_with(PROBLEMS[kind], "problem", values, **given), rows.test

    @property
    def rows_key(self) -> str | None:
        """The hash of what the rows follow from; None for a problem that is not made of rows."""
        values = self.tables["problem"]
        kind = values["kind"]
        if kind in ("quadratic", "factory", *CODE):
            return None
        kept = {name: values[name] for name in (*DATA_KEYS, "partition") if name in values}
        read_as = [kind == "logistic", wants_numbers(values), kind == "network", "scale" in values or "shift" in values]
        text = json.dumps([read_as, kept], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def rows(self) -> Rows:
        """The data of a problem that is made of rows."""
        return read_rows(self.tables, self.folder)

    def check_code(self) -> None:
        """Refuses a problem that runs code where that was not asked for."""
        check_code(self.tables, self.allow_code)

    def check_repeatable(self, what: str) -> None:
        """Refuses noise that is drawn from the operating system, for `what` must get the same run twice."""
        check_repeatable(getattr(self.strategy, "privacy", None), what)

    def _from_factory(self, values: Tables) -> tuple[AnyProblem, HeldOut | None]:
        self.check_code()
        with at_path("problem.function"):
            function = load_function(self.folder, values["function"])
        made = call_with(function, "problem.options", table_of(values, "options"))
        return made if isinstance(made, tuple) else (made, None)

    def _load_named(self, kind: str, values: Tables) -> None:
        """Puts the functions that the table names in the places of their names; the first one's, or those of params,
        are the options."""
        self.check_code()
        options = table_of(values, "options", "problem.") if "options" in values else {}
        values.pop("options", None)
        for key, argument in CODE[kind].items():
            if key not in values:
                continue
            with at_path(f"problem.{key}"):
                given = options if key in ("model", "params") else {}
                function = NamedFunction(self.folder, values.pop(key), given)
            values[argument] = function

    @cached_property
    def source(self) -> Source | None:
        """The delays of the first of `seeds`; None for uniform arrivals, which have none."""
        return self._make_source(self.seeds[0])

    @property
    def delays_by_seed(self) -> bool:
        """Whether a seed has recorded delays of its own: they are resampled by it, or dealt by it to the clients."""
        values = table_of(self.tables, "trace")
        dealt = values.get("assign", False) is not False and "assign_seed" not in values
        return "file" in values and (dealt or bool(values.get("bootstrap")))

    def source_of(self, seed: int) -> Source | None:
        """The delays that runs with this seed meet, as they are given to `fedbuff.schedule`."""
        return self._make_source(seed) if self.delays_by_seed and seed != self.seeds[0] else self.source

    def _make_source(self, seed: int) -> Source | None:
        values = table_of(self.tables, "trace")
        kind = values.pop("kind")
        if kind == "uniform":
            return None
        if kind == "model":
            return self._model
        made = self._recorded_source
        if isinstance(made, ArrivalLog):
            return made
        with at_path("trace", tuple(values)):
            assign = values.get("assign", False)
            if assign is not False:
                n_clients = self.problem.n_clients if assign is True else count("assign", assign)
                made = made.assign(n_clients, values.get("assign_seed", seed))
            if values.get("bootstrap"):
                made = made.bootstrap(None if values["bootstrap"] is True else values["bootstrap"], seed=seed)
        return made

    @cached_property
    def _recorded_source(self) -> Trace | ArrivalLog:
        """What the file of [trace] holds, before it is dealt or resampled."""
        values = table_of(self.tables, "trace")
        return self._recorded(values.pop("kind"), values)

    def _recorded(self, kind: str, values: Tables) -> Trace | ArrivalLog:
        name: str = values["file"]
        reading = ("columns", "unit", "end", "missing", "delimiter", "tasks", "client")
        options = {key: values[key] for key in reading if key in values}
        with at_path("trace", tuple(options)):
            if name == f"{SAMPLE}recorded_log":
                made: Trace | ArrivalLog = sample_log()
            elif name.startswith(SAMPLE):
                raise ConfigError(f"trace.file: {name} is unknown; there is {SAMPLE}recorded_log")
            else:
                file = self.path(name)
                if not file.exists():
                    raise ConfigError(f"trace.file: {file} does not exist")
                made = read_trace(file, **options) if kind == "recorded" else read_arrival_log(file, **options)
        if isinstance(made, ArrivalLog) and values.get("as_trace"):
            with at_path("trace.as_trace"):
                return made.as_trace()
        return made

    def make_schedule(self, seed: int | None = None) -> Schedule:
        """Who arrives when, with this seed (the first of `seeds`)."""
        seed = self.seeds[0] if seed is None else seed
        options = self.schedule_options
        source = self.source_of(seed)
        if source is None:
            values = table_of(self.tables, "trace")
            values.pop("kind")
            size = cast(FedBuff, self.strategy).buffer_size
            given = {"buffer_size": size, "server_steps": options["server_steps"], "seed": seed}
            made: Schedule = call_with(uniform_arrivals, "trace", values, **given)
            return made
        with at_path("schedule", (*parameters_of(resolve),)):
            return resolve(source, self.strategy, **options, seed=seed)

    def check_timing(self) -> None:
        """Refuses a source, strategy and options that do not fit each other, as `make_schedule` would."""
        with at_path("schedule", (*parameters_of(resolve),)):
            Request(cast(Any, self.source), self.strategy, ScheduleOptions(**self.schedule_options), self.seeds[0])

    def plans(self, seeds: Sequence[int]) -> tuple[list[Any], int]:
        """What a resolver is told for each seed, and how many rows to expect; of delays only."""
        with at_path("schedule", (*parameters_of(resolve),)):
            options = ScheduleOptions(**self.schedule_options)
            if not self.delays_by_seed:
                return plans_of(cast(Any, self.source), self.strategy, options, seeds)
            sources = [cast(Any, self.source_of(seed)) for seed in seeds]
            made = [
                plans_of(source, self.strategy, options, [seed]) for source, seed in zip(sources, seeds, strict=True)
            ]
        return [plan for plans, _ in made for plan in plans], max(rows for _, rows in made)

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is measured: as asked, or the loss, and the accuracy where the problem has one."""
        asked = self.replay_options.metrics
        if asked is not None:
            return asked
        has_accuracy = callable(getattr(self.problem, "accuracy", None))
        return ("loss", "accuracy") if has_accuracy else ("loss",)

    def check(self, schedule: Schedule) -> None:
        """Refuses what `make_replay` would refuse, before any work: delays of other clients, unknown metrics."""
        n_clients, stop = self.problem.n_clients, self.replay_options.stop
        if schedule.n_clients != n_clients:
            fix = "set trace.assign = true" if "file" in self.tables["trace"] else "make them equal"
            raise ConfigError(f"trace: it is for {schedule.n_clients} clients, the problem has {n_clients}; {fix}")
        with at_path("replay", ("metrics",)):
            check_metrics(self.metrics, self.problem)
            _ = self.held_out_rows if "accuracy" in self.metrics else None
            if stop is not None:
                check_stop(stop, self.metrics)
        with at_path("local", tuple(parameters_of(LocalSGD))):
            check_replay(self.problem, schedule, self.local, rule_of(self.strategy))

    def make_replay(
        self,
        schedule: Schedule,
        seed: int | None = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        callback: Callable[[dict[str, float]], object] | None = None,
    ) -> Result:
        """The numbers along a schedule that `make_schedule` gave for the same seed."""
        with at_replay():
            return replay(
                self.problem,
                schedule,
                self.local,
                **self.replay_arguments(schedule),
                seed=self.seeds[0] if seed is None else seed,
                threads=self.replay_options.threads,
                checkpoint=checkpoint,
                checkpoint_every=self.replay_options.checkpoint_every,
                progress=progress,
                callback=callback,
            )

    def replay_arguments(self, schedule: Schedule) -> dict[str, Any]:
        """What `replay` is told of the rule and of evaluations."""
        options, metrics = self.replay_options, self.metrics
        return {
            "strategy": self.strategy,
            "eval_every": options.eval_every or max(1, schedule.n_steps // 100),
            "metrics": metrics,
            "test": self.held_out_rows if "accuracy" in metrics else None,
            "stop": options.stop,
        }

    def run(self, seed: int | None = None, **options: Any) -> Result:
        """`make_schedule` and `make_replay` in one call."""
        return self.make_replay(self.make_schedule(seed), seed, **options)

    @cached_property
    def target(self) -> tuple[str, float] | None:
        """The metric and its value that comparisons ask the time of."""
        given = table_of(self.tables, "target")
        if not given:
            return None
        refuse_unknown("target", given, TARGETS)
        if len(given) > 1:
            raise ConfigError(f"target: expected one metric, got {', '.join(given)}")
        (metric, value), *_ = given.items()
        with at_path("target", (metric,)):
            return metric, number(metric, value, low=-np.inf)

    def compared(self) -> list[list[StudyConfig]]:
        """The variants that the tables [[compare]] ask for: for each, what its lists under `try` make of it."""
        given = self.tables.get("compare", [])
        if not isinstance(given, list) or not all(isinstance(entry, Mapping) for entry in given):
            raise ConfigError(f"compare: expected tables [[compare]], got {type(given).__name__}")
        base = {key: value for key, value in self.tables.items() if key not in ("compare", "name")}
        groups = []
        for at, entry in enumerate(given):
            path = f"compare[{at}]"
            refuse_unknown(path, entry, ("name", "try", *SECTIONS))
            changes = {key: value for key, value in entry.items() if key != "try"}
            refuse_unknown_removals(base, changes)
            tables = merged(base, changes)
            group = []
            for chosen in combinations(table_of(entry, "try"), f"{path}.try"):
                try:
                    variant = StudyConfig(merged(tables, chosen), self.folder, self.allow_code)
                except ConfigError as error:
                    raise ConfigError(f"{path}: {error}") from None
                values = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in chosen.items())
                group.append(variant.named(f"{variant.name}, {values}") if chosen else variant)
            groups.append(group)
        return groups
