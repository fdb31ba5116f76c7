"""What C++, C and Python each write down for themselves is the same: streams, problems, plans, columns, faults."""

from __future__ import annotations

import re
from dataclasses import fields
from enum import IntEnum
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import fedbuff as fb
from fedbuff import layers
from fedbuff._rule.compression import Kind
from fedbuff._rule.strategies import Method
from fedbuff._schedule.check import FAULTS
from fedbuff._study.build import LAYERS
from fedbuff.backends.python import compression, network, resolver, schedule_check
from fedbuff.backends.python.philox import Stream
from fedbuff.backends.python.portable_math import KINDS
from fedbuff.backends.spec import (
    COLUMN_TYPES,
    METRICS,
    PROBLEM_METRICS,
    Columns,
    LayerSpec,
    LocalPlan,
    LocalSpec,
    NetworkSpec,
    PackedEnd,
    Plan,
    ProblemSpec,
    RunLimits,
    RunState,
    ScheduleChunk,
)

ROOT = Path(__file__).parents[2]


def text(path: str) -> str:
    return (ROOT / path).read_text()


PHILOX, PROBLEM, HEADER = (
    text(f"csrc/{path}")
    for path in ("core/numbers/philox.hpp", "core/kernels/problem.hpp", "include/fedbuff/fedbuff.h")
)


OPTIONS = text("csrc/core/clients/local_options.hpp")
RATE = text("csrc/core/numbers/learning_rate.hpp")


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def without_comments(source: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)


def cpp_enum(source: str, name: str) -> dict[str, int]:
    """The members of an enum in snake case, with their values."""
    found = re.search(rf"enum (?:class )?{name}\b[^{{]*\{{(.*?)\}}", without_comments(source), re.DOTALL)
    assert found, name
    members: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in found[1].split(","))):
        member, _, value = entry.partition("=")
        members[snake(member.strip())] = int(value) if value else len(members)
    return members


def c_struct(source: str, name: str) -> set[str]:
    """The data members of a struct."""
    found = re.search(rf"struct {name} \{{(.*?)\n\}}", without_comments(source), re.DOTALL)
    assert found, name
    names: set[str] = set()
    for line in found[1].split(";"):
        if "(" in line or "{" in line.partition("=")[0] or not line.strip() or "return" in line:
            break  # functions come last
        declared = re.sub(r"\[[^\]]*\]|=.*", "", line).split(",")
        names |= {re.findall(r"\w+", part)[-1] for part in declared}
    return names


def python_enum(enum: type[IntEnum]) -> dict[str, int]:
    return {member.name.lower(): int(member) for member in enum}


# Streams


def test_streams() -> None:
    assert python_enum(Stream) == cpp_enum(PHILOX, "Stream")


def test_a_planted_stream_is_found() -> None:
    for planted in (PHILOX.replace("Rounding = 6", "Rounding = 7"), PHILOX.replace("  Rounding = 6,\n", "")):
        assert python_enum(Stream) != cpp_enum(planted, "Stream")


@pytest.mark.parametrize("path", sorted((ROOT / "fedbuff").rglob("*.py")), ids=lambda path: path.name)
def test_stream_numbers_are_written_once(path: Path) -> None:
    """A stream is the top four bits of a word: nobody shifts a number of his own there."""
    assert not re.search(r"\b\d+\s*<<\s*28\b", path.read_text())


# Problems

# By field of ProblemSpec: its names in Problem<T> and in fb_problem, where they differ; "" where there is none.
CPP_NAMES = {"sizes": "size", "dtype": ""}
C_NAMES = {"sizes": "layer_size", "dtype": "", "dim": "", "client_weight": ""}
CPP_FOLLOWS = {"max_rows", "n_features", "n_layers", "curvature_shared"}  # from the other fields
C_FOLLOWS = {"size", "abi", "n_layers", "curvature_shared"}


def renamed(names: dict[str, str]) -> set[str]:
    return {names.get(field.name, field.name) for field in fields(ProblemSpec)} - {""}


def problem_faults(cpp: str, c: str) -> set[str]:
    """Names that one of the three has and another has not."""
    there, here = c_struct(cpp, "Problem") - CPP_FOLLOWS, renamed(CPP_NAMES)
    outside, named = c_struct(c, "fb_problem") - C_FOLLOWS, renamed(C_NAMES)
    return there ^ here | outside ^ named


def test_fields_of_a_problem() -> None:
    assert problem_faults(PROBLEM, HEADER) == set()


def test_a_planted_field_is_found() -> None:
    new = PROBLEM.replace("  double l2; ", "  double l1;\n  double l2; ")
    gone = HEADER.replace("  double noise_variance;", "")
    assert problem_faults(new, HEADER) == {"l1"}
    assert problem_faults(PROBLEM, gone) == {"noise_variance"}


@pytest.mark.parametrize(
    ("field", "cpp", "c"),
    [
        ("family", "Family", "fb_family"),
        ("head", "Head", "fb_head"),
        ("activation", "Activation", "fb_activation"),
        ("curvature_form", "Curvature", "fb_curvature"),
    ],
)
def test_choices_of_a_problem(field: str, cpp: str, c: str) -> None:
    choices = {name: number for number, name in enumerate(get_args(get_type_hints(ProblemSpec)[field]))}
    assert cpp_enum(PROBLEM, cpp) == choices
    assert {name.removeprefix("fb_"): value for name, value in cpp_enum(HEADER, c).items()} == choices
    read = re.search(rf'choice<{cpp}>\(spec, "{field}", \{{(.*?)\}}', text("csrc/bindings/bound_problem.hpp"))
    assert read and re.findall(r'"(\w+)"', read[1]) == list(choices)


def test_choices_of_numbas_loops() -> None:
    pytest.importorskip("numba")
    from fedbuff.backends.numba import losses, net, quadratic

    for module, enum in ((losses, "Head"), (net, "Activation"), (quadratic, "Curvature")):
        for name, number in cpp_enum(PROBLEM, enum).items():
            assert getattr(module, name.upper()) == number


def test_fields_of_local_sgd() -> None:
    task = {field.name for field in fields(LocalSpec)}
    assert c_struct(PROBLEM, "LocalConfig") | {"steps_per_pass"} == task
    assert "steps_per_pass" in c_struct(PROBLEM, "Task")
    plan = {field.name for field in fields(LocalPlan)}
    assert c_struct(OPTIONS, "LocalOptions") - {"by_version", "seed"} == plan
    here = {field.name for field in fields(fb.LocalSGD)}
    of_clients = {
        "batch_sizes",
        "client_steps",
        "client_lr",
        *(f"compress_{n}" for n in ("feedback", "share", "levels")),
    }
    assert c_struct(HEADER, "fb_local_config") - {"size", "abi", "seed"} - of_clients == here
    methods = [name.removeprefix("fb_method_") for name in cpp_enum(HEADER, "fb_method")]
    assert methods == list(get_args(Method))
    rate = {field.name for field in fields(fb.LearningRate)}
    kinds = {name: 1 + number for number, name in enumerate(get_args(Kind))} | {"none": 0}
    assert cpp_enum(text("csrc/core/clients/compression.hpp"), "Compressor") == kinds
    short = {"none": 0, "top_k": 1, "random_k": 2, "qsgd": 3, "sign": 4, "bf16": 5}
    assert {name.removeprefix("fb_compress_"): n for name, n in cpp_enum(HEADER, "fb_compress").items()} == short
    assert {name.lower(): getattr(compression, name) for name in compression.__all__ if name.isupper()} | {
        "none": 0
    } == kinds
    assert c_struct(HEADER, "fb_learning_rate") == c_struct(RATE, "LearningRate") == rate


# Networks

NETWORK = text("csrc/core/kernels/network.hpp")


def test_kinds_of_layers() -> None:
    """Of C++, of C, of the binding and of the reference, which may know more than is compiled."""
    kinds = cpp_enum(NETWORK, "LayerKind")
    in_c = {
        name.removeprefix("fb_layer_").replace("2_d", "2d"): n for name, n in cpp_enum(HEADER, "fb_layer_kind").items()
    }
    assert in_c == kinds
    read = re.search(r"choice<LayerKind>\([^{]*\{(.*?)\}", text("csrc/bindings/bound_problem.hpp"), re.DOTALL)
    assert read and re.findall(r'"(\w+)"', read[1]) == list(kinds)
    by_chance = ("dropout", "random_crop", "random_flip")
    assert set(kinds) <= {*network.LAYERS, *by_chance, "residual", "shortcut", "end_residual"}


def test_fields_of_a_layer() -> None:
    here = {field.name for field in fields(LayerSpec)}
    assert c_struct(NETWORK, "LayerRecord") == c_struct(HEADER, "fb_layer") == here
    assert c_struct(HEADER, "fb_network") - {"size", "abi", "n_layers"} == {field.name for field in fields(NetworkSpec)}


def test_public_layers_have_a_name_in_tables() -> None:
    assert {made.__name__ for made in LAYERS.values()} == set(layers.__all__)


# Schedules


def quoted(path: str, begin: str = "", end: str = "\x00") -> set[str]:
    source = text(path)
    return set(re.findall(r'"(\w+)"', source[source.index(begin) : source.find(end) if end in source else None]))


def test_fields_of_a_plan() -> None:
    assert quoted("csrc/bindings/read_plan.hpp", "class PlanReader") == set(Plan._fields)


def test_columns() -> None:
    assert tuple(COLUMN_TYPES) == Columns._fields
    assert quoted("csrc/bindings/bind_schedule.cpp", "ScheduleColumns read_columns", "class Resolver") == set(
        Columns._fields
    )


def test_columns_of_a_check() -> None:
    assert set(ScheduleChunk._fields) <= quoted("csrc/bindings/bind_check_schedule.cpp")


def test_faults() -> None:
    faults = cpp_enum(text("csrc/core/schedule/check_schedule.hpp"), "ScheduleFault")
    assert faults.pop("count_") == len(FAULTS)
    assert list(faults.values()) == list(range(len(FAULTS)))
    assert len(FAULTS) - 1 == schedule_check._WRONG_STARTS


@pytest.mark.parametrize(
    ("enum", "names"),
    [
        ("Mode", ("SLOT_IS_CLIENT", "POOL", "OPEN_LOOP", "ROUNDS")),
        ("IfBusy", ("REDRAW", "SKIP", "OVERLAP")),
        ("StopReason", ("FULL", "SERVER_STEPS", "MAX_TIME", "ARRIVALS", "EXHAUSTED", "STALLED")),
    ],
)
def test_choices_of_a_plan(enum: str, names: tuple[str, ...]) -> None:
    there = cpp_enum(text("csrc/core/schedule/plan.hpp"), enum)
    assert there == {name.lower(): getattr(resolver, name) for name in names}


def test_distributions() -> None:
    there = cpp_enum(text("csrc/core/kernels/delay_model.hpp"), "DistributionKind")
    assert [name.replace("_", "") for name in there] == [kind.replace("_", "") for kind in KINDS]


# Runs


@pytest.mark.parametrize(("enum", "path"), [(RunState, "replay/run.hpp"), (PackedEnd, "replay/packed_runs.hpp")])
def test_ends_of_a_run(enum: type[IntEnum], path: str) -> None:
    source = text(f"csrc/core/{path}")
    name, (first, second) = enum.__name__, [member.name.title().replace("_", "") for member in list(enum)[:2]]
    assert python_enum(enum) == cpp_enum(source, name)
    swapped = source.replace(f"  {first},", "  Moved,").replace(f"  {second},", f"  {first},").replace("Moved", second)
    assert python_enum(enum) != cpp_enum(swapped, name)  # a planted exchange is found


def test_the_first_question_of_a_run() -> None:
    assert [state for state in RunState if state.is_end] == list(RunState)[: RunState.NEED_ROWS]
    assert "kRunEnds = static_cast<int>(RunState::NeedRows)" in text("csrc/core/replay/run.hpp")


def test_metrics_of_a_run() -> None:
    assert cpp_enum(text("csrc/core/replay/run.hpp"), "RunMetric") == {name: at for at, name in enumerate(METRICS)}
    found = re.search(r"struct RunLimits \{(.*?)\n\}", text("csrc/core/replay/run.hpp"), re.DOTALL)
    assert found
    limits = set(re.findall(r"(\w+) =", found[1]))
    assert limits == {name for name in vars(RunLimits) if isinstance(vars(RunLimits)[name], property)}
    assert set(PROBLEM_METRICS) <= limits
