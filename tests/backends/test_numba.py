"""What is Numba's own: few compilations, the cache on disk, the GIL."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import every_dtype

import fedbuff as fb
from fedbuff._rule.strategies import Rule, rule_of
from fedbuff.backends.python.replay import DIVERGED, NEED_ROWS, STEPS
from fedbuff.backends.spec import EngineSpec, LocalPlan, LocalSpec, LocalTask, ProblemSpec, SumSpec, UsedRows

backend = pytest.importorskip("fedbuff.backends.numba")
parts = pytest.importorskip("fedbuff.backends.numba.parts")
replay = pytest.importorskip("fedbuff.backends.numba.replay")
net = pytest.importorskip("fedbuff.backends.numba.net")
vectors = pytest.importorskip("fedbuff.backends.numba.vectors")


def softmax(dtype: Any, n_features: int = 3, frozen: bool = False, n_rows: int = 4) -> ProblemSpec:
    arrays: dict[str, Any] = {
        "x": np.ones((n_rows, n_features), dtype),
        "label": np.zeros(n_rows, np.int32),
        "offsets": np.array([0, n_rows]),
        "client_weight": np.ones(1),
    }
    for array in arrays.values():
        array.flags.writeable = not frozen
    sizes = (n_features, 2)
    return ProblemSpec(
        family="net", dtype=np.dtype(dtype), n_clients=1, dim=2 * n_features, sizes=sizes, head="softmax", **arrays
    )


@every_dtype
def test_one_compilation_per_dtype(dtype: str) -> None:
    """Read-only arrays, given rows and absent outputs meet the same code."""
    for frozen in (False, True):
        problem = backend.bind(softmax(dtype, frozen=frozen))
        w = np.zeros(6, dtype)
        w.flags.writeable = not frozen
        rows = np.zeros((2, 3), np.int64)
        rows.flags.writeable = not frozen
        out = np.empty(6, dtype)
        for given in (None, rows):
            problem.local_sgd(LocalSpec(2, 0.1), w, LocalTask(0, 0, 1, 3, given), out)
        problem.client_gradient(0, w, out)
        problem.gradient(w, None, 1)
        for start in (None, w):
            backend.accumulate(w, w, 1.0, start, start, out)
    for function, argument in ((net.net_local_sgd, 3), (net.net_objective, 3), (vectors._accumulate, 0)):
        assert [str(types[argument].dtype) for types in function.signatures].count(dtype) == 1


def engine_spec(rule: Any, local: LocalPlan, dtype: str = "float32", **options: Any) -> EngineSpec:
    rng = np.random.default_rng(0)
    sizes = np.array([5, 9, 6, 12, 7])
    dim, n = 3 * (7 + 1), int(sizes.sum())
    spec = ProblemSpec(
        family="net", dtype=np.dtype(dtype), n_clients=5, dim=dim, client_weight=np.full(5, 0.2),
        offsets=np.concatenate(([0], np.cumsum(sizes))), x=rng.standard_normal((n, 7)).astype(dtype),
        label=rng.integers(0, 3, n).astype(np.int32), sizes=(7, 3), head="softmax", intercept=True,
    )  # fmt: skip
    return EngineSpec(
        rule=rule_of(rule), w0=rng.standard_normal(dim).astype(dtype), bound=backend.bind(spec), local=local, seed=3,
        window_bytes=1 << 20, sums=SumSpec(seed=3), **options,
    )  # fmt: skip


def local_plan(**options: Any) -> LocalPlan:
    columns = {"steps": [2], "lr": [0.3], "batch": [4], "steps_per_pass": [0]}
    given = {name: np.array(options.pop(name, value)) for name, value in columns.items()}
    return LocalPlan(**given, **options)


def fed(engine: Any, schedule: fb.Schedule) -> Any:
    """The engine, given the rows of a schedule in two pieces."""
    rng = np.random.default_rng(1)
    used = schedule.status == 0
    version, step = schedule.version[used], schedule.step[used]
    s, e = rng.uniform(0.5, 1.0, len(step)), rng.uniform(0.5, 2.0, len(step))
    references = np.bincount(version, minlength=schedule.n_steps)[: schedule.n_steps]
    middle = schedule.n_steps // 2
    cut = int(np.searchsorted(step, middle))
    for rows, steps in ((slice(0, cut), slice(0, middle)), (slice(cut, None), slice(middle, None))):
        columns = (column[used][rows] for column in (schedule.client, schedule.task))
        engine.add(
            UsedRows(*columns, version[rows], step[rows], s[rows], e[rows]), references[steps], np.empty(0, np.int64)
        )
    return engine


def schedule_of(steps: int = 40) -> fb.Schedule:
    delays = fb.DelayModel(n_clients=5, compute=fb.Exponential(1.0))
    return fb.schedule(delays, fb.FedBuff(3), concurrency=4, server_steps=steps, seed=5)


RULES = {
    "paper": fb.FedBuff(3),
    "momentum": fb.FedBuff(3, optimizer=fb.SGD(0.9), norm="scaled_weights"),
    "adam": fb.FedBuff(3, optimizer=fb.Adam(), norm="weights", server_lr=0.01),
    "fedadam": fb.FedBuff(3, optimizer=fb.Adam(bias_correction=False, initial=1e-4), server_lr=0.01),
    "nesterov": fb.FedBuff(3, optimizer=fb.Nesterov(0.5), server_lr=0.1),
    "delayed": fb.FedBuff(3, optimizer=fb.DelayedNesterov(period=4, activation=0.1), server_lr=0.1),
    "yogi": fb.FedBuff(3, optimizer=fb.Yogi(), server_lr=0.01),
    "adagrad": fb.FedBuff(3, optimizer=fb.Adagrad(beta=0.5), server_lr=0.01),
    "amsgrad": fb.FedBuff(3, optimizer=fb.AMSGrad(), server_lr=0.01),
    "current": fb.FedBuff(3, base="current", norm="arrivals", server_lr=fb.LearningRate(0.5, "inverse_sqrt")),
}
LOCALS = {
    "plain": local_plan(),
    "by client": local_plan(steps=[1, 3, 2, 0, 4], lr=[0.1, 0.2, 0.3, 0.4, 0.5], batch=[0, 3, 40, 1, 2]),
    "dense": local_plan(momentum=0.5, weight_decay=0.1, prox=0.2, scale=np.array([0.5])),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
def test_compiled_steps_have_the_bits_of_steps_one_by_one(rule: Any, local: LocalPlan) -> None:
    spec, schedule = engine_spec(rule, local), schedule_of()
    want = fed(parts._replay_step_by_step(spec), schedule)
    assert want.run(40, 1) == STEPS
    for threads, at_once in ((1, 40), (1, 3), (2, 40), (3, 7)):
        engine = fed(backend.replay_engine(spec), schedule)
        assert type(engine) is replay.CompiledReplay
        while engine.version() < 40:
            assert engine.run(min(at_once, 40 - engine.version()), threads) == STEPS
            engine.check()
        assert engine.run(1, threads) == NEED_ROWS
        np.testing.assert_array_equal(engine.w(), want.w())
        for name, value in want.rule_state().items():
            np.testing.assert_array_equal(engine.rule_state()[name], value)
        assert engine.live_versions() == want.live_versions()
        assert engine.stats()["most_versions"] == want.stats()["most_versions"]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_step_that_diverges_is_not_made(threads: int) -> None:
    local, schedule = local_plan(lr=[0.1, 0.1, 1e38, 0.1, 0.1], momentum=0.9, steps=[6]), schedule_of()
    spec = engine_spec(fb.FedBuff(3, optimizer=fb.SGD(0.9)), local)
    want, got = fed(parts._replay_step_by_step(spec), schedule), fed(backend.replay_engine(spec), schedule)
    assert want.run(40, 1) == got.run(40, threads) == DIVERGED == got.run(1, threads)
    assert want.divergence() == got.divergence() and want.divergence()[1] >= 0
    np.testing.assert_array_equal(got.w(), want.w())
    np.testing.assert_array_equal(got.rule_state()["first"], want.rule_state()["first"])
    assert got.live_versions() == want.live_versions() and got.stats()["rows"] == want.stats()["rows"]


def test_gradients_are_noted_and_weights_of_zero_refused() -> None:
    spec, schedule = engine_spec(fb.FedBuff(3, norm="weights"), LOCALS["plain"]), schedule_of()
    want, got = fed(parts._replay_step_by_step(spec), schedule), fed(backend.replay_engine(spec), schedule)
    for engine in (want, got):
        engine.record_gradients(4, 3)
        engine.run(21, 1)
    assert len(got.gradients()) == 5
    np.testing.assert_array_equal(got.gradients(), want.gradients())
    nothing = backend.replay_engine(spec)
    rows = UsedRows(*(np.zeros(3, np.int64) for _ in range(4)), np.ones(3), np.zeros(3))
    nothing.add(rows, np.array([3]), np.empty(0, np.int64))
    for threads in (1, 2):
        with pytest.raises(ValueError, match="step 0: the weights of its arrivals sum to zero"):
            nothing.run(1, threads)
        assert nothing.version() == 0


def test_what_the_compiled_replay_is_told() -> None:
    """A field that is added must be known to numba/replay.py, or `can_replay` must say no; then name it here."""

    def names(kind: Any) -> set[str]:
        return {field.name for field in dataclasses.fields(kind)}

    assert names(LocalPlan) == {
        *("steps", "lr", "batch", "steps_per_pass", "momentum", "weight_decay", "prox", "version_rate"),
        *("lr_factors", "scale", "method", "compress"),
    }
    assert names(EngineSpec) == {"rule", "w0", "bound", "function", "local", "seed", "window_bytes", "sums", "roles"}
    assert names(Rule) == {
        *("buffer_size", "lr", "base", "norm", "staleness", "weighting", "weight_scale", "optimizer", "max_staleness"),
        *("n_clients", "secure", "privacy", "rate", "tau_c", "delay_lr", "table", "weight_by", "client_weights"),
        *("ring", "hidden", "trigger", "per_client", "stop_stale", "method", "alpha", "own"),
    }


SCRIPT = """
import warnings
warnings.simplefilter("error")
import numpy as np
from fedbuff.backends.numba.vectors import dot, dot_float64
assert dot(np.ones(3), np.ones(3)) == 3.0
print(type(dot_float64._cache).__name__, sum(dot_float64.stats.cache_hits.values()))
"""


def run(root: Path, **environment: str) -> str:
    variables = {**os.environ, "PYTHONPATH": str(root), **environment}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=variables, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_compiled_code_is_kept(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    assert run(root, NUMBA_CACHE_DIR=str(tmp_path)) == "FunctionCache 0"
    assert run(root, NUMBA_CACHE_DIR=str(tmp_path)) == "FunctionCache 1"


def test_no_folder_for_the_cache_is_no_error(tmp_path: Path) -> None:
    """Neither the package's folder nor the user's can be written: a file stands where a folder would be made."""
    (tmp_path / "fedbuff").mkdir()
    package = Path(__file__).parents[2] / "fedbuff"
    for source in package.rglob("*.py"):
        copy = tmp_path / "fedbuff" / source.relative_to(package)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    for folder in {path.parent for path in (tmp_path / "fedbuff").rglob("*.py")}:
        (folder / "__pycache__").write_text("")
    (tmp_path / "home").write_text("")
    home = str(tmp_path / "home")
    nowhere = {"HOME": home, "XDG_CACHE_HOME": home, "NUMBA_CACHE_DIR": ""}
    assert run(tmp_path, PYTHONDONTWRITEBYTECODE="1", **nowhere) == "NullCache 0"


def test_the_gil_is_released() -> None:
    """Python runs while a long call does."""
    problem = backend.bind(softmax("float32", n_features=200, n_rows=2000))
    w, out = np.zeros(400, np.float32), np.empty(400, np.float32)

    def call(steps: int) -> None:
        problem.local_sgd(LocalSpec(steps, 0.1), w, LocalTask(0, 0, 0, 0), out)

    call(1)
    worker = threading.Thread(target=call, args=(1000,))
    worker.start()
    ticks = 0
    while worker.is_alive():
        time.sleep(0.001)
        ticks += 1
    assert ticks > 20


def test_an_index_with_types_of_modules_that_are_gone_is_empty() -> None:
    """As an earlier version left it: pickles name the modules of the types that functions were compiled for."""
    compile = pytest.importorskip("fedbuff.backends.numba.compile")

    def load() -> Any:
        raise ModuleNotFoundError("No module named 'fedbuff.backends.numba.earlier'")

    assert compile._forgiving(load)() == {} and compile._forgiving(lambda: {1: 2})() == {1: 2}
    assert vectors.dot_float64._cache._cache_file._load_index.__name__ == "load_index"
