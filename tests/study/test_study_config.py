"""A run written down as tables: what it builds, and what it says where a key is wrong."""

from __future__ import annotations

import copy
import gzip
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._study.keys import refuse_unknown_removals
from fedbuff._study.tables import ConfigError, merged, parse_setting

QUADRATIC: dict[str, Any] = {
    "problem": {"kind": "quadratic", "centers": [[0.0, 0.0], [2.0, 0.0]]},
    "trace": {"kind": "model", "n_clients": 2, "compute": {"kind": "exponential", "scale": 1.0}},
    "strategy": {"kind": "fedbuff", "buffer_size": 2},
    "local": {"steps": 1, "lr": 0.5},
    "schedule": {"server_steps": 10},
}
DIGITS: dict[str, Any] = {
    **QUADRATIC,
    "problem": {
        "kind": "softmax",
        "data": "sample:digits",
        "test": 0.25,
        "partition": {"kind": "dirichlet", "n_clients": 8, "alpha": 0.5},
    },
    "trace": {"kind": "log", "file": "sample:recorded_log", "as_trace": True, "assign": True, "bootstrap": 50},
    "local": {"steps": 2, "lr": 0.1, "batch_size": 8},
}


def error_of(tables: dict[str, Any], changes: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        fb.StudyConfig(merged(tables, changes)).run()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_recorded_delays_of_imperfect_files(tmp_path) -> None:
    (tmp_path / "t.tsv").write_text("task\tcompute\n1\t2.5\n3\t\n4\t3.5\n")
    trace = {"kind": "recorded", "file": str(tmp_path / "t.tsv"), "client": "a", "tasks": "order", "missing": "drop"}
    config = fb.StudyConfig({**QUADRATIC, "trace": {**trace, "delimiter": "tab", "assign": True}})
    assert config.source.compute.tolist() == [2.5, 3.5] * 2


def test_a_run_is_what_the_python_calls_give() -> None:
    config = fb.StudyConfig(DIGITS)
    X, y = fb.sample_digits()
    order = np.random.Generator(np.random.Philox(0)).permutation(len(y))
    test, kept = np.sort(order[:449]), np.sort(order[449:])
    problem = fb.Softmax(X[kept], y[kept], fb.partition.dirichlet(y[kept], 8, alpha=0.5, seed=0))
    trace = fb.sample_log().as_trace().assign(8, 3).bootstrap(50, seed=3)
    strategy = fb.FedBuff(buffer_size=2)
    schedule = fb.schedule(trace, strategy, server_steps=10, seed=3)
    local = fb.LocalSGD(steps=2, lr=0.1, batch_size=8)
    options: dict[str, Any] = {"eval_every": 1, "metrics": ("loss", "accuracy"), "test": (X[test], y[test])}
    expected = fb.replay(problem, schedule, local, strategy=strategy, seed=3, **options)
    assert config.make_schedule(3) == schedule
    result = config.run(3)
    assert result.w.tobytes() == expected.w.tobytes()
    assert result.history["accuracy"].tolist() == expected.history["accuracy"].tolist()


NETWORK: dict[str, Any] = {
    **DIGITS,
    "problem": {
        **DIGITS["problem"],
        "kind": "network",
        "shape": [8, 8],
        "layers": [
            {"kind": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": "same"},
            "relu",
            {"kind": "max_pool2d", "kernel_size": [2, 2]},
            "flatten",
            {"kind": "dense", "out_features": 10},
        ],
    },
}


def test_a_network_of_tables() -> None:
    config = fb.StudyConfig(NETWORK)
    layers = [fb.layers.Conv2d(4, 3, padding="same"), fb.layers.ReLU(), fb.layers.MaxPool2d(2), fb.layers.Flatten()]
    X, y = fb.sample_digits()
    order = np.random.Generator(np.random.Philox(0)).permutation(len(y))
    kept = np.sort(order[449:])
    clients = fb.partition.dirichlet(y[kept], 8, alpha=0.5, seed=0)
    images = X[kept].reshape(-1, 8, 8)
    problem = fb.Network(images, y[kept], clients, layers=[*layers, fb.layers.Dense(10)])
    assert config.problem.layers == problem.layers and config.metrics == ("loss", "accuracy")
    w = problem.init(1)
    assert config.problem.grad(w).tobytes() == problem.grad(w).tobytes()
    assert config.held_out_rows is not None and config.held_out_rows.accuracy(w) <= 1
    again = pickle.loads(pickle.dumps(config))
    assert again.run().w.tobytes() == config.run().w.tobytes()
    swept = fb.sweep(NETWORK, grid={"problem.l2": [0.0, 0.1]}, seeds=[0, 1], progress=False)
    assert swept.column("status").tolist() == ["done"] * 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"problem.layers": None}, "problem.layers: expected a list of layers, got NoneType"),
        ({"problem.layers": "dense"}, "problem.layers: expected a list of layers, got str"),
        ({"problem.layers": [{"out_features": 3}]}, "problem.layers[0].kind: missing"),
        ({"problem.layers": ["pool"]}, "problem.layers[0].kind: expected one of"),
        ({"problem.layers": ["flatten", {"kind": "dense", "out_features": 0}]}, "problem.layers[1].out_features: "),
        ({"problem.layers": [{"kind": "conv2d", "out_channels": 3}]}, "problem.layers[0].kernel_size: missing"),
        ({"problem.layers": ["batch_norm"]}, "problem.layers[0]: BatchNorm: its running statistics"),
        ({"problem.layers": ["relu", {"kind": "dense", "out_features": 10}]}, "problem.layers[1] (Dense): expected"),
        ({"problem.shape": [8, 9]}, "problem.shape: [8, 9] is 72 numbers, but a row has 64"),
        ({"problem.shape": [0]}, "problem.shape: expected an int >= 1, got 0"),
        ({"problem.shape": [1, 1, 8, 8]}, "problem.shape: expected [channels, height, width]"),
        ({"problem.loss": "hinge"}, "problem.loss: expected one of"),
    ],
)  # fmt: skip
def test_bad_networks(changes: dict[str, Any], said: str) -> None:
    assert error_of(NETWORK, changes).startswith(said)


def tokens(tmp_path: Path, last: str) -> dict[str, Any]:
    """A network over a file of tokens, whose last row ends with this one."""
    rows = [f"{i % 4},{i % 3},{i % 5},{i % 2}" for i in range(29)] + [f"0,1,{last},1"]
    (tmp_path / "tokens.csv").write_text("\n".join(["a,b,c,label", *rows]) + "\n")
    problem = {
        "kind": "network",
        "data": "tokens.csv",
        "dtype": "float64",
        "partition": {"kind": "iid", "n_clients": 8},
        "layers": [
            {"kind": "embedding", "n_words": 5, "width": 3},
            "mean_over_time",
            {"kind": "dense", "out_features": 2},
        ],
    }
    return {**DIGITS, "problem": problem}


def test_tokens_of_a_file(tmp_path: Path) -> None:
    config = fb.StudyConfig(tokens(tmp_path, "4"), tmp_path)
    problem = config.problem
    assert isinstance(problem, fb.Network)
    assert problem.shapes == ((3,), (3, 3), (3,), (2,)) and problem.dtype == "float64"
    assert np.isfinite(config.run().history["loss"]).all()
    swept = fb.sweep(config, grid={"problem.l2": [0.0, 0.1]}, progress=False)
    assert swept.column("status").tolist() == ["done"] * 2


def test_bytes_of_a_file(tmp_path: Path) -> None:
    """Where the table has their scale or shift they stay bytes; else they are numbers from 0 to 255, as ever."""
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (30, 4, 4)).astype(np.uint8), np.arange(30) % 2
    np.savez(tmp_path / "pictures.npz", X=X, y=y, clients=np.arange(30) % 8)
    problem = {
        "kind": "network",
        "data": "pictures.npz",
        "layers": [
            {"kind": "random_crop", "padding": 1},
            "random_flip",
            "flatten",
            {"kind": "dense", "out_features": 2},
        ],
    }
    tables = {**DIGITS, "problem": problem}
    plain = fb.StudyConfig(tables, tmp_path).problem
    scaled = fb.StudyConfig({**DIGITS, "problem": {**problem, "scale": 0.5, "dtype": "float64"}}, tmp_path)
    assert isinstance(plain, fb.Network) and isinstance(scaled.problem, fb.Network)
    assert plain._spec.byte is None and scaled.problem._spec.byte is not None and scaled.problem.dtype == "float64"
    w = plain.init(1).astype(np.float64) * 0.01
    numbers = fb.Network(0.5 * X, y, np.arange(30) % 8, layers=plain.layers)
    assert scaled.problem.loss(w) == numbers.loss(w)
    swept = fb.sweep(scaled, grid={"problem.l2": [0.0, 0.1]}, progress=False)
    assert swept.column("status").tolist() == ["done"] * 2


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("0.5", "problem.data: expected whole numbers, as Embedding takes tokens, got others in row 29"),
        ("7", "problem: X: row "),
    ],
)
def test_bad_tokens_of_a_file(tmp_path: Path, last: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        _ = fb.StudyConfig(tokens(tmp_path, last), tmp_path).problem


def durations(config: fb.StudyConfig, seed: int) -> dict[tuple[int, int], float]:
    """How long each task took, by client and task."""
    made = config.make_schedule(seed)
    time = (made.arrive_time - made.start_time).round(9)
    return dict(zip(zip(made.client.tolist(), made.task.tolist(), strict=True), time.tolist(), strict=True))


@pytest.mark.parametrize(
    ("keys", "varies"),
    [
        ({"assign": True, "bootstrap": 50}, True),
        ({"assign": True, "bootstrap": 50, "assign_seed": 0}, True),
        ({"assign": True}, True),
        ({"assign": True, "assign_seed": 0}, False),
    ],
)
def test_a_seed_varies_recorded_delays(keys: dict[str, Any], varies: bool) -> None:
    trace = {"kind": "log", "file": "sample:recorded_log", "as_trace": True, **keys}
    config = fb.StudyConfig({**DIGITS, "trace": trace, "seeds": [0, 1], "schedule": {"server_steps": 40}})
    first, second = durations(config, 0), durations(config, 1)
    common = first.keys() & second.keys()
    assert len(common) > 40
    assert config.delays_by_seed == varies == any(first[task] != second[task] for task in common)
    plans, _ = config.plans([0, 1])
    assert np.array_equal(plans[0].row_duration, plans[1].row_duration) != varies


def test_the_delays_of_a_seed_do_not_depend_on_the_others() -> None:
    config = fb.StudyConfig({**DIGITS, "seeds": [5, 2]})
    assert config.make_schedule(2) == fb.StudyConfig({**DIGITS, "seed": 2}).make_schedule()
    assert config.source_of(5) is config.source and config.source_of(2) != config.source
    assert config.make_schedule(5) == fb.schedule(config.source, fb.FedBuff(2), server_steps=10, seed=5)


def test_it_pickles_and_does_not_change() -> None:
    config = fb.StudyConfig(QUADRATIC)
    before = copy.deepcopy(config.tables)
    other = config.changed({"local.lr": 0.25, "seeds": [4, 5]})
    assert config.tables == before and other.local.lr == 0.25 and other.seeds == (4, 5)
    _ = config.problem, config.source
    again = pickle.loads(pickle.dumps(config))
    assert again.sha256 == config.sha256 != other.sha256
    assert "problem" not in vars(again)
    assert again.run().w.tobytes() == config.run().w.tobytes()


def test_files_are_found_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "delays.csv").write_text("device,ms\na,100\nb,250\na,120\n")
    rows = "".join(f"{x},{-x},{'yes' if x > 0 else 'no'},{x % 2}\n" for x in range(-6, 7) if x)
    with gzip.open(tmp_path / "rows.csv.gz", "wt") as file:
        file.write("a,b,label,owner\n" + rows)
    (tmp_path / "run.toml").write_text(
        """
        seed = 7
        [problem]
        kind = "logistic"
        data = "rows.csv.gz"
        target = "label"
        divide_by = 2
        dtype = "float64"
        partition = { kind = "column", column = "owner" }
        [trace]
        kind = "recorded"
        file = "delays.csv"
        columns = { client = "device", total = "ms" }
        unit = "ms"
        [strategy]
        kind = "fedbuff"
        preset = "nguyen"
        buffer_size = 3
        staleness = "inverse_one_plus_sqrt"
        optimizer = { kind = "adam", betas = [0.8, 0.9] }
        [local]
        steps = 1
        lr = 0.1
        [schedule]
        max_time = 4.0
        [replay]
        metrics = ["loss"]
        stop = { updates = 9 }
        """
    )
    config = fb.StudyConfig.read(tmp_path / "run.toml", ["schedule.max_time=6.5", "local.steps = 2"])
    assert config.seeds == (7,) and config.local.steps == 2 and config.schedule_options == {"max_time": 6.5}
    assert config.strategy.norm == "arrivals" and config.strategy.optimizer == fb.Adam((0.8, 0.9))
    assert config.source.total.tolist() == [0.1, 0.12, 0.25]
    assert config.problem.dtype == np.float64 and config.problem.n_samples.tolist() == [6, 6]
    result = config.run()
    assert result.exit_reason == fb.ExitReason.UPDATES and result.version == 3


def test_other_rows(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "rows.npz", X=np.eye(4, dtype=int), y=[0, 1, 0, 1], clients=["b", "a", "b", "a"],
        X_test=np.eye(4)[:2], y_test=[0, 1],
    )  # fmt: skip
    (tmp_path / "rows.svm").write_text("1 1:1\n0 3:2\n1 2:1\n0 4:1\n")
    (tmp_path / "test.svm").write_text("1 1:1\n")
    base = merged(QUADRATIC, {"schedule.server_steps": 2})

    def problem(**table: Any) -> fb.StudyConfig:
        return fb.StudyConfig({**base, "problem": table}, tmp_path)

    dense = problem(kind="softmax", data="rows.npz")
    assert dense.problem.n_samples.tolist() == [2, 2] and dense.held_out[0].dtype == np.float32
    split = {"kind": "iid", "n_clients": 2}
    sparse = problem(kind="logistic", data="rows.svm", test="test.svm", partition=split)
    assert sparse.problem.dim == 4 and sparse.held_out[0].shape == (1, 4)
    assert problem(kind="mlp", hidden=[3], data="rows.svm", partition=split).problem.dim == 23
    squares = problem(kind="least_squares", data="rows.svm", dtype="float64", partition=split)
    assert squares.run().history["loss"].size == 3


def test_a_factory_makes_the_problem(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np, fedbuff as fb\ndef make(size):\n    return fb.Quadratic(np.ones((2, size)))\n"
    )
    table = {"kind": "factory", "function": "mine.py:make", "options": {"size": 3}}
    config = fb.StudyConfig({**QUADRATIC, "problem": table}, tmp_path, allow_code=True)
    assert config.problem.dim == 3
    with pytest.raises(ConfigError, match=r"^problem\.options\.sise: unknown key; did you mean size\?$"):
        _ = config.changed({"problem": {**table, "options": {"sise": 3}}}).problem
    with pytest.raises(ConfigError, match=r"^problem\.function: mine\.py: no function made$"):
        _ = config.changed({"problem": {**table, "function": "mine.py:made"}}).problem


def test_uniform_arrivals() -> None:
    config = fb.StudyConfig({**QUADRATIC, "trace": {"kind": "uniform", "n_clients": 2, "max_staleness": 3}})
    expected = fb.uniform_arrivals(n_clients=2, buffer_size=2, max_staleness=3, server_steps=10, seed=0)
    assert config.make_schedule() == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy.bufer_size": 3}, "strategy.bufer_size: unknown key; did you mean buffer_size?"),
        ({"strategies": {}}, "strategies: unknown key; did you mean strategy?"),
        ({"strategy.buffer_size": "ten"}, "strategy.buffer_size: expected an int, got str"),
        ({"strategy": {"kind": "fedbuff2"}}, "strategy.kind: expected one of fedbuff, fedasync, fedavg, "),
        ({"strategy": {"kind": "fedavg"}}, "strategy.clients_per_round, rate: expected exactly one of them"),
        ({"strategy.staleness": {"kind": "hinge", "slope": -1}}, "strategy.staleness.slope: expected a number >= 0"),
        ({"strategy.preset": "flsin"}, "strategy.preset: expected one of paper, nguyen,"),
        ({"local.lr": -1}, "local.lr: expected a number >= 0, got -1"),
        ({"local": 3}, "local: expected a table, got int"),
        ({"trace.compute": {"kind": "exponential", "scale": -1.0}}, "trace.compute: Exponential(scale=-1.0): scale"),
        ({"trace.compute": {"kind": "gamma"}}, "trace.compute.kind: expected one of constant,"),
        ({"trace.upload": -1}, "trace.upload: Constant(value=-1.0): value: expected a number >= 0"),
        ({"trace": {"kind": "recorded"}}, "trace.file: missing"),
        ({"trace": {"kind": "recorded", "file": "no.csv"}}, "trace.file: no.csv does not exist"),
        ({"schedule.concurrency": 5}, "schedule.concurrency: expected an int up to the 2 clients, got 5"),
        ({"schedule": {"server_stps": 3}}, "schedule.server_stps: unknown key; did you mean server_steps?"),
        ({"replay.metrics": ["los"]}, "replay.metrics: expected one of loss,"),
        ({"replay.eval_every": 0}, "replay.eval_every: expected an int >= 1, got 0"),
        ({"replay.stop": {"los": 1}}, "replay.stop.los: unknown key; did you mean loss?"),
        ({"seeds": 3}, "seeds: expected a list of ints"),
        ({"seeds": [1, 1]}, "seeds: a seed stands there twice"),
        ({"seed": -1}, "seed: expected an int >= 0, got -1"),
        ({"problem": {"kind": "softmax"}}, "problem.data: missing"),
        ({"problem": {"kind": "softmax", "data": "no.npz"}}, "problem.data: no.npz does not exist"),
        ({"problem": {"kind": "softmax", "data": "sample:digits"}}, "problem.partition: missing;"),
        ({"problem.kind": "softmax"}, "problem.data: missing"),
    ],
)  # fmt: skip
def test_messages_begin_with_the_path(changes: dict[str, Any], message: str) -> None:
    assert error_of(QUADRATIC, changes).startswith(message)


def test_more_messages_about_rows(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("a,b,label\n1,2,x\n3,oops,y\n")
    (tmp_path / "short.csv").write_text("1,2,0\n1,2\n")

    def message(**table: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            _ = fb.StudyConfig({**QUADRATIC, "problem": {"kind": "softmax", **table}}, tmp_path).problem
        return str(caught.value).replace(str(tmp_path), "")

    assert message(data="bad.csv") == "problem.data: /bad.csv: row 2: b 'oops' is not a number"
    assert message(data="bad.csv", target="lable") == "problem.data: /bad.csv has no column 'lable'; it has a, b, label"
    assert message(data="short.csv") == "problem.data: /short.csv: row 2 has 2 fields, the first line 3"
    assert message(data="sample:digits", test=0.0001).startswith("problem.test: a share of 0.0001 of 1797 rows")
    assert message(data="sample:digits", partition={"kind": "iid", "n_clients": 2000}).startswith(
        "problem.partition.n_clients: 1797 rows are too few"
    )


def test_syntax_errors_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('seed = 1\n[problem\nkind = "softmax"\n')
    with pytest.raises(ConfigError, match=r"run\.toml: not TOML: .*line 2"):
        fb.StudyConfig.read(path)
    with pytest.raises(ConfigError, match=r"run\.json: not JSON: .*line 2"):
        (tmp_path / "run.json").write_text('{\n"a" 1}')
        fb.StudyConfig.read(tmp_path / "run.json")


def test_settings() -> None:
    assert parse_setting("a.b=[1, 2]") == ("a.b", [1, 2])
    assert parse_setting("a = 1e-3") == ("a", 1e-3)
    assert parse_setting("trace.file=some/delays.csv") == ("trace.file", "some/delays.csv")
    for wrong in ("novalue", "=3", "a=", "a=[1"):
        with pytest.raises(ConfigError):
            parse_setting(wrong)
    with pytest.raises(ConfigError, match=r"a\.b\.c: a\.b is not a table"):
        merged({"a": {"b": 1}}, {"a.b.c": 2})


def test_a_change_removes_a_key() -> None:
    tables = {**QUADRATIC, "schedule": {"concurrency": 2, "server_steps": 9}}
    config = fb.StudyConfig(tables)
    for removed in (None, "unset"):
        for changes in ({"schedule.concurrency": removed}, {"schedule": {"concurrency": removed}}):
            assert config.changed(changes).tables["schedule"] == {"server_steps": 9}
    fedavg = {"kind": "fedavg", "clients_per_round": 2, "over_selection": None}
    with pytest.raises(ConfigError, match=r"^schedule\.concurrency: FedAvg starts its own rounds"):
        config.changed({"strategy": fedavg})
    made = config.changed({"strategy": fedavg, "schedule.concurrency": None})
    assert made.tables["strategy"] == {"kind": "fedavg", "clients_per_round": 2}
    assert made.run().version == 9
    assert config.tables == fb.StudyConfig(tables).tables


@pytest.mark.parametrize(
    ("tables", "path", "hint"),
    [
        ({}, "schedule.concurency", "did you mean concurrency"),
        ({}, "replay.stop.los", "did you mean loss"),
        ({}, "nothing.here", "known: "),
        ({}, "local.rate", "known: alpha, batch_size"),
        ({}, "local.rate.of", "known: alpha, batch_size"),
        ({}, "trace.compute.scael", "did you mean scale"),
        ({}, "strategy.stalenes", "did you mean staleness"),
        ({"strategy.staleness": {"kind": "polynomial"}}, "strategy.staleness.exponents", "did you mean exponent"),
        ({"strategy.preset": "appfl"}, "strategy.total_sample", "did you mean total_samples"),
        ({}, "problem.data", "known: "),
        ({}, "problem.centres", "did you mean centers"),
    ],
)
def test_a_key_that_cannot_be_is_not_removed(tables: dict[str, Any], path: str, hint: str) -> None:
    wrong = "local.rate" if path == "local.rate.of" else "nothing" if path == "nothing.here" else path
    base = merged(QUADRATIC, tables)
    for changes in ({path: None}, nested(path.split("."))):
        with pytest.raises(ConfigError, match=rf"^{re.escape(wrong)}: unknown key; {hint}"):
            refuse_unknown_removals(base, changes)


@pytest.mark.parametrize(
    "path",
    ["schedule.timeout", "replay.stop", "replay.stop.loss", "problem.dtype", "strategy.optimizer",
     "strategy.optimizer.beta", "strategy.privacy.source", "sweep.grid", "trace.wait", "trace.wait.scale", "name"],
)  # fmt: skip
def test_a_key_that_is_only_not_there_may_be_removed(path: str) -> None:
    refuse_unknown_removals(QUADRATIC, {path: None})


def nested(names: list[str]) -> Any:
    return {names[0]: nested(names[1:])} if names else None


def test_json_of_the_tables_reads_back(tmp_path: Path) -> None:
    config = fb.StudyConfig(DIGITS)
    (tmp_path / "config.json").write_text(json.dumps(config.tables))
    assert fb.StudyConfig.read(tmp_path / "config.json").sha256 == config.sha256


def test_variants_to_compare() -> None:
    entries = [
        {"name": "small", "strategy": {"buffer_size": 1}},
        {"strategy": {"kind": "fedasync"}, "try": {"strategy.mixing": [0.5, 1.0], "local.steps": [1, 2]}},
    ]
    (small,), tried = fb.StudyConfig({**QUADRATIC, "compare": entries}).compared()
    assert small.name == "small" and small.strategy == fb.FedBuff(1)
    assert [variant.name for variant in tried] == [
        "FedAsync, mixing 0.5, steps 1",
        "FedAsync, mixing 0.5, steps 2",
        "FedAsync, mixing 1.0, steps 1",
        "FedAsync, mixing 1.0, steps 2",
    ]
    assert tried[-1].strategy == fb.FedAsync(1.0) and tried[-1].local.steps == 2
    with pytest.raises(ConfigError, match=r"^compare\[0\]: strategy\.buffer_size: expected an int"):
        fb.StudyConfig({**QUADRATIC, "compare": [{"strategy": {"buffer_size": 0}}]}).compared()


def test_target() -> None:
    assert fb.StudyConfig({**QUADRATIC, "target": {"loss": 0.5}}).target == ("loss", 0.5)
    assert error_of(QUADRATIC, {"target": {"los": 1}}) == "target.los: unknown key; did you mean loss?"
    assert error_of(QUADRATIC, {"target": {"loss": "low"}}).startswith("target.loss: expected a number")


def test_another_name_builds_nothing_again() -> None:
    tables: dict[str, Any] = {
        "problem": {"kind": "quadratic", "centers": [[0.0, 0.0], [2.0, 0.0]]},
        "trace": {"kind": "model", "n_clients": 2, "compute": 1.0},
        "strategy": {"kind": "fedbuff", "buffer_size": 2},
        "local": {"steps": 1, "lr": 0.5},
        "schedule": {"server_steps": 3},
    }
    config = fb.StudyConfig(tables)
    problem = config.problem
    other = config.named("other")
    assert (other.name, config.name) == ("other", "FedBuff K=2")
    assert other.problem is problem and other.strategy is config.strategy
    assert other.tables == {**tables, "name": "other"} and "name" not in config.tables


def test_the_check_of_a_schedule_builds_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: Any) -> None:
        raise AssertionError("a plan was built")

    monkeypatch.setattr("fedbuff._schedule.plan.Request._make_plan", build)
    fb.StudyConfig(QUADRATIC).check_timing()
    with pytest.raises(ConfigError, match=r"schedule.concurrency: expected an int up to the 2 clients, got 3"):
        fb.StudyConfig(merged(QUADRATIC, {"schedule.concurrency": 3})).check_timing()
