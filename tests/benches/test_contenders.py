"""The benches compare like with like: rivals reproduce fedbuff's update, ratios are ratios, the page adds up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHES = Path(__file__).parents[2] / "benches"


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHES))


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    import ours
    from rivals import data

    monkeypatch.setattr(data, "FOLDER", tmp_path)
    monkeypatch.setattr(ours, "FOLDER", tmp_path)
    return data


def test_rivals_reproduce_an_update_or_are_refused(data: Any) -> None:
    import ours
    from rivals import with_numpy

    ours.answer("W2")
    trainer = with_numpy.Trainer("W2")
    assert trainer.w.dim == 20
    path = data.answer_path("W2")
    with np.load(path) as file:
        wrong = {**file, "delta": file["delta"] * 1.001}
    np.savez(path, **wrong)
    with pytest.raises(AssertionError, match=r"W2: this rival's delta differs from fedbuff's by 0\.001"):
        with_numpy.Trainer("W2")


def test_rivals_learn_as_much(data: Any) -> None:
    import ours
    from rivals import with_numpy

    ours.answer("W2")
    w = data.workload("W2")
    losses = [data.loss_of(w, side.replay("W2", "20000")()["model"]) for side in (ours, with_numpy)]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert losses[0] < 0.5 * data.loss_of(w, data.initial_model(w))


@pytest.mark.parametrize("variant", ["plain", "bulk"])
def test_event_loops_have_the_same_staleness(data: Any, variant: str) -> None:
    import ours
    from rivals import with_heapq

    mine = ours.schedule("50", "20000")()["staleness"]
    assert with_heapq.schedule("50", "20000", variant)()["staleness"] == pytest.approx(mine, rel=0.02)


def test_sparse_rows_have_the_shape_of_the_data_set(data: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    w = data.workload("CSR")
    monkeypatch.setattr(data, "__file__", str(tmp_path / "data.py"))
    made = data.sparse_rows_of(w)
    assert not made.recorded and len(made.y) == w.n_clients * w.rows
    dense = made.dense(w.features)
    assert (dense.sum(1) == 14).all() and dense.max() == 1


def test_a_process_that_takes_turns() -> None:
    run = [sys.executable, str(BENCHES / "contend.py"), "heapq", "schedule", "5", "1000"]
    done = subprocess.run(run, input="\n\n", capture_output=True, text=True, check=True)
    ready, first, second = map(json.loads, done.stdout.splitlines())
    assert ready == {"ready": True} and first["amount"] == 1000 and first["staleness"] == second["staleness"]
    done = subprocess.run(run, input="0.05\n", capture_output=True, text=True, check=True)
    _, longer = map(json.loads, done.stdout.splitlines())
    assert longer["wall"] >= 0.05 and longer["amount"] > 1000 and longer["amount"] % 1000 == 0


def test_a_peer_that_is_there_and_does_not_import(tmp_path: Path) -> None:
    """FLSim's configurations are each other's defaults: that is let pass, and what else fails is told."""
    for name in ("torch", "omegaconf"):
        (tmp_path / f"{name}.py").write_text("OmegaConf = None\n")
    package = tmp_path / "flsim" / "clients"
    package.mkdir(parents=True)
    (package / "base_client.py").write_text(
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Inner: n: int = 1\n"
        "@dataclass\nclass ClientConfig: inner: Inner = Inner()\n"
        "raise ValueError('reached, ' + str(ClientConfig()))\n"
    )
    run = [sys.executable, str(BENCHES / "contend.py"), "flsim", "replay", "W1", "10"]
    done = subprocess.run(
        run, env={**os.environ, "PYTHONPATH": str(tmp_path)}, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    reason = "flsim is there and does not import: reached, ClientConfig(inner=Inner(n=1))"
    assert json.loads(done.stdout) == {"missing": reason}


@pytest.mark.parametrize(("name", "dim"), [("logistic-2", 2), ("softmax-100", 1010), ("mlp-128", 101_770)])
def test_sizes_by_name(data: Any, name: str, dim: int) -> None:
    import ours

    w = data.workload(name)
    assert w.dim == dim == len(data.initial_model(w))
    assert data.loss_of(w, ours.replay(name, "20")()["model"]) < data.loss_of(w, data.initial_model(w))
    with pytest.raises(ValueError, match="unknown workload 'mlp-x'"):
        data.workload("mlp-x")


def test_compare_in_turn() -> None:
    from compare import Missing, compare, present, python_with, ratio

    first, second = compare(["heapq schedule 5 4000", "heapq schedule 5 4000 plain"], turns=3)
    assert len(first.rates) == len(second.rates) == 3
    times = ratio(first, second)
    assert times.best == first.rate / second.rate and times.low <= times.high
    with pytest.raises(AssertionError, match="staleness differs"):
        compare(["heapq schedule 5 1000", "heapq schedule 50 1000"], turns=1)
    assert present(["heapq schedule 5 10", "no_such_library replay W1 10"]) == ["heapq schedule 5 10"]
    with pytest.raises(Missing, match="no_such_library is in no environment"):
        python_with("no_such_library")


def test_bars() -> None:
    from page import Bar, bars

    bar = Bar("x", 2.0, 1.5, 1.4, 1.6, "W2")
    aimed = Bar("z", 1.0, 1.4, 1.3, 1.5, "W5", aim=1.3).line()
    assert aimed == "| z | at least 1.00, 1.30 the aim | 1.40 | 1.30 to 1.50 | met, and the aim |"
    assert not bar.met and bar.line() == "| x | at least 2.00 | 1.50 | 1.40 to 1.60 | missed by 25% |"
    assert Bar("y", 1.1, 1.05, 0, 0, "", at_most=True).met
    duel = {
        "rates": {"ours replay W2 9": 3.0, "numba replay W2 9": 2.0},
        "ratios": {"numba replay W2 9": [1.5, 1.4, 1.6]},
    }
    (found,) = bars({"W2": {"data": {"numba": duel}}})
    assert (found.what, found.wanted, found.got, found.run) == ("W2 / Numba by hand", 1.5, 1.5, "ours replay W2 9")


def test_bars_of_sizes_and_scale() -> None:
    from page import bars

    rungs = [
        {"dim": dim, "run": f"ours replay {dim}", "share": [share, share - 0.1, share + 0.1]}
        for dim, share in ((1000, 0.5), (10_000, 0.3), (100_000, 0.6))
    ]
    sizes = {"aggregate": [], "softmax": rungs}
    runs = ["ours schedule 1 1", "ours schedule 1 2", "ours schedule 1 3"]
    ratios = {runs[1]: [1.2, 1.1, 1.3], runs[2]: [0.9, 0.8, 1.0]}
    scale = {"arrivals": {"rates": dict.fromkeys(runs, 1.0), "ratios": ratios, "sizes": [1, 2, 3], "runs": runs}}
    cost, fall = bars({"sizes": {"data": sizes}, "scale": {"data": scale}})
    assert (cost.got, cost.low, cost.high, cost.run, cost.met) == (1.2, 1.1, 1.3, runs[1], False)
    assert [fall.got, fall.low, fall.high] == pytest.approx([0.3 / 0.5, 0.2 / 0.6, 0.4 / 0.4])
    assert not fall.met and fall.what.startswith("middle") and fall.run == "ours replay 10000"


def test_a_contender_with_an_environment() -> None:
    from compare import Contender, parts_of

    text = "FEDBUFF_ISA=baseline OTHER_WORD= ours network W6 32"
    assert parts_of(text) == ({"FEDBUFF_ISA": "baseline", "OTHER_WORD": ""}, ["ours", "network", "W6", "32"])
    assert parts_of("heapq schedule 5 a=b") == ({}, ["heapq", "schedule", "5", "a=b"])
    one = Contender("OTHER_WORD=x heapq schedule 5 100")
    try:
        assert b"OTHER_WORD=x" in Path(f"/proc/{one.pid}/environ").read_bytes().split(b"\0")
    finally:
        one.close()


def test_networks_of_the_benches() -> None:
    import ours
    from rivals import networks

    for name in networks.ARCHITECTURES:
        w = networks.initial_model(name)
        assert ours.network_of(name).dim == len(w)
    assert networks.after_all(networks.ARCHITECTURES["ResNet-8"].layers, (3, 32, 32)) == (10, 1, 1)


def measured_network(ours: float, theirs: float) -> dict[str, Any]:
    """All parts of a network in one, were the slower of two rivals' rate half of `theirs`."""

    def duel(name: str, one: str, two: str) -> dict[str, Any]:
        rates = {name: ours, one: theirs, two: theirs / 2}
        return {"rates": rates, "ratios": {each: 3 * [ours / rates[each]] for each in (one, two)}}

    part = duel(
        "ours network W6 32", "torch_networks network W6 32 compile-last", "torch_networks network W6 32 module"
    )
    names = ("batch 32", "batch 10", "loss", "avx2", "baseline")
    errors = {f"rounding {batch}": {"ours": 3e-7, "theirs": 1e-7} for batch in (32, 10)}
    setting = {"cpu": "a CPU", "cores": 2, "level used": "avx2"}
    return {"setting": setting, **dict.fromkeys(names, part), **errors}


def test_the_part_on_networks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import network_report
    import page

    assert network_report.page({"W1": {"x": 1}, "W6-32": {"others": 0.5}}) == ""
    whole = measured_network(100.0, 25.0)
    text = network_report.page({"W6-32": {key: whole[key] for key in ("setting", "batch 32")} | {"others": 0.5}})
    assert "1 of 1 bars are met" in text and "so many cores' worth: W6-32 0.5." in text and "Evaluation" not in text
    text = network_report.page({"W6-32": whole, "W6-rest": whole})
    assert text.startswith("## Networks\n") and "6 of 7 bars are met" in text and "Other programs" not in text
    name = network_report.NAMES["W6"]
    assert f"| {name} | 32 | 10.0 | 40.0 | torch.compile, channels last | 4.00 (4.00 to 4.00) | 3.5 | met |" in text
    assert f"| {name} | 10 | 10.0 | 40.0 | torch.compile, channels last | 4.00 (4.00 to 4.00) | 5 | missed |" in text
    assert f"| {name} | 32 | 3.0e-07 | 1.0e-07 | 3.00 | 4 | met |" in text

    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    page.PAGE.write_text("# Performance\n\nWords.\n\n## One\n\n1\n\n## Last\n\n9\n")
    page.replace_part("## Networks\n\nold")
    page.replace_part("## Networks\n\nnew")
    assert page.PAGE.read_text() == "# Performance\n\nWords.\n\n## One\n\n1\n\n## Networks\n\nnew\n\n## Last\n\n9\n"
    assert page._part("Networks") == "## Networks\n\nnew" and page._part("Two") == ""


def test_lists_of_events_agree(data: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same loop and draws over each list: the same answer to the bit; other loops come near it."""
    import ours
    from rivals import with_cpp

    monkeypatch.setattr(with_cpp, "FOLDER", tmp_path)
    for loop, mine, key in ((with_cpp.mm1, ours.mm1, "stay"), (with_cpp.phold, ours.phold, "pace")):
        size = () if key == "stay" else ("200",)
        answers = [loop(*size, "100000", which)()[key] for which in ("standard", "four_ary")]
        answers.append(mine(*size, "100000", "queue")()[key])
        assert len(set(answers)) == 1
        assert mine(*size, "100000", "python")()[key] == pytest.approx(answers[0], rel=0.05)
    assert ours.mm1("100000", "schedule")()["customer"] == pytest.approx(1 / 0.75, rel=0.02)
    assert ours.phold("200", "100000", "schedule")()["pace"] == pytest.approx(1.0, rel=0.02)


def test_the_flat_rival_reproduces_an_update_and_learns(data: Any) -> None:
    import ours
    from rivals import with_numba

    ours.answer("W2")
    losses = [
        data.loss_of(data.workload("W2"), run()["model"])
        for run in (ours.replay("W2", "20000"), with_numba.replay("W2", "20000", "flat"))
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    with np.load(data.answer_path("W2")) as file:
        wrong = {**file, "delta": -file["delta"]}
    np.savez(data.answer_path("W2"), **wrong)
    with pytest.raises(AssertionError, match="W2: this rival's delta differs"):
        with_numba.replay("W2", "20000", "flat")


def test_parts_are_kept_one_by_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import report

    monkeypatch.setattr(report, "STORE", tmp_path)
    monkeypatch.setattr(report, "SECTIONS", {"a": {"x": lambda o: {"n": o.turns}, "y/z": None}, "b": {"": None}})
    how = {"core": "c", "quick": True}
    assert report.wanted_pieces([], how) == ["a/x", "a/y/z", "b"]
    report.measure_piece("a/x", report.Options(True), how)
    assert report.wanted_pieces([], how) == ["a/y/z", "b"]
    assert report.wanted_pieces(["a"], how, True) == ["a/y/z"] == report.wanted_pieces(["a/y/z"], how, True)
    assert report.wanted_pieces(["a"], how) == ["a/x", "a/y/z"] and report.wanted_pieces(["a/x"], how) == ["a/x"]
    assert report.whole("a")["data"] == {"x": {"n": 3}} and report.whole("b") is None
    assert report.wanted_pieces([], {**how, "core": "d"}) == ["a/x", "a/y/z", "b"]
    with pytest.raises(SystemExit, match="expected a section or a part of one, got 'c'"):
        report.wanted_pieces(["c"], how)


def test_bars_of_calls_follow_this_python() -> None:
    from page import bars

    def python(rate: float, empty: float) -> dict[str, Any]:
        parts = {"tiny_call": {"rates": {"ours tiny_call": rate, "ours empty_call": empty}, "ratios": {}}}
        return {"python": {"data": parts}}

    (fast,) = bars(python(1e4, 1e9 / 30))
    (slow,) = bars(python(1e4, 1e9 / 120))
    assert (fast.got, fast.wanted, fast.met) == (pytest.approx(100), 150, True)
    assert slow.wanted == pytest.approx(300)
    options = {"100": {"rates": {}, "ratios": {"ours option 'a recorded trace' 100 1": [2.5, 2.0, 3.0]}}}
    (half,) = bars({"options": {"data": options}})
    assert half.what == "schedule with a recorded trace, 100 in flight / plain" and half.got == 0.4 and not half.met


def test_the_part_on_the_numba_backend() -> None:
    import numba_report

    assert numba_report.page(None) == "" == numba_report.page({"data": {}})
    ours, by_hand, compiled = "FEDBUFF_BACKEND=numba ours replay W1 4000", "numba replay W1 4000", "ours replay W1 4000"
    rates = {ours: 900.0, f"{by_hand} loops": 1000.0, f"{by_hand} blas": 500.0, compiled: 2000.0}
    ratios = {text: [rates[ours] / rate] * 3 for text, rate in rates.items() if text != ours}
    pair = {"ratios": {"ours replay_alone W1 4000 1": [1.9, 1.7, 2.0]}}
    data = {"W1": {"rates": rates, "ratios": ratios}, "threads W1": pair, "first": {"empty": 31.2, "full": 0.7}}
    text = numba_report.page({"data": data, "others": 0.5})
    assert text.startswith("## The Numba backend\n") and "**Other programs ran meanwhile, 0.5 cores' worth.**" in text
    row = "900 updates | 1,000 updates | 0.90 (0.90 to 0.90) | 0.95 | missed | 2,000 |"
    assert f"| W1, softmax regression | {row}" in text
    assert "W1 1.90 (1.70 to 2.00), met." in text and "31 s where nothing" in text and "0.70 s where" in text
    assert "Philox" not in text
    run = f"{numba_report.OURS} schedule 100 3000000"
    counts, columns = ("numba schedule 100 3000000 counts", "numba schedule 100 3000000 columns")
    rates = {run: 2e7, counts: 1e7, columns: 4e6, "ours schedule 100 3000000": 4e7}
    ratios = {text: [rates[run] / rate] * 3 for text, rate in rates.items() if text != run}
    text = numba_report.page({"data": {"W5-100": {"rates": rates, "ratios": ratios}}})
    assert "2.00 (2.00 to 2.00) | 0.8 | met | 40,000,000 |" in text and "W5, 100 in flight 5.00." in text
    assert "Other programs" not in text


def test_a_long_stream_is_sampled() -> None:
    import long_run
    from page import bars

    made = long_run.stream(200_000)
    assert made["arrivals"] == 200_000 and len(made["rows"]) >= 10
    assert made["rows"][-1][0] == 200_000 and all(row[2] > 1 for row in made["rows"])
    assert 90 < made["staleness"] < 100
    steady = [[n, n / 1e6, 50.0 + (n > 90)] for n in range(101)]
    slower = [*steady[:91], *([n, 9e-5 + (n - 90) / 5e5, 80.0] for n in range(91, 101))]
    rate, memory = bars({"long": {"data": {"rows": steady}}})
    assert rate.got == pytest.approx(1.0) and memory.got == 1.0 and rate.met and memory.met
    rate, memory = bars({"long": {"data": {"rows": slower}}})
    assert rate.got == pytest.approx(0.5, rel=0.01) and not rate.met and not memory.met
