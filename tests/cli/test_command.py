"""The command `fedbuff`: what it prints and writes, its exit codes, and what it says about bad input."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import fedbuff as fb
from fedbuff._cli import cli
from fedbuff._study.run_folder import find_runs, load_run, run_study

Run = Callable[..., Any]

THEORY = importlib.util.find_spec("fedbuff.theory") is not None


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, group
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ALL = dict(commands())


def examples(command: click.Command) -> list[str]:
    return re.findall(r"^ *(fedbuff .*)$", command.help or "", re.MULTILINE)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_has_examples(path: tuple[str, ...], fedbuff: Run) -> None:
    ran = fedbuff(*path, "--help")
    assert ran.code == 0 and ran.out.startswith(f"Usage: {' '.join(('fedbuff', *path))}")
    assert "Example" in ran.out and examples(ALL[path])


def test_every_example_works(fedbuff: Run, folder: Path) -> None:
    """As a reader would type them, one after the other; those left out have tests of their own."""
    (folder / "matrix.txt").write_text("0.5 1.0\n0.6 1.5\n")
    (folder / "rates.csv").write_text("d,ours,theirs,limit\n1e4,8,4,10\n1e6,9,4,10\n")
    given = [text for path, command in sorted(ALL.items()) for text in examples(command) if path[:1] != ("bench",)]
    first = [
        text for text in given if re.search(" (replay|sweep|tune) ", text) and not re.search("--resume|plot", text)
    ]
    done: set[str] = set()
    for text in [*first, *given]:
        words = shlex.split(text)[1:]
        theorem = words[0] == "theory" or words[:2] == ["plot", "bound"]
        if text in done or words[0] in ("demo", "completion") or (theorem and not THEORY):
            continue
        done.add(text)
        for name in re.findall(r"-o (runs/\S+)", text):
            if "--resume" not in text and (folder / name).exists():
                words += ["--resume"]  # an example that stands in two places
        ran = fedbuff(*words)
        assert ran.code == 0, (text, ran.err)
    assert len(done) > 25


def test_info(fedbuff: Run) -> None:
    facts = json.loads(fedbuff("info", "--json").out)
    assert facts["version"] == fb.__version__ and "plot" in facts["extras"]
    assert fedbuff("--version").out == f"fedbuff {fb.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(fedbuff: Run, shell: str) -> None:
    assert "_FEDBUFF_COMPLETE" in fedbuff("completion", shell).out


def test_trace_info_and_fit(fedbuff: Run) -> None:
    facts = json.loads(fedbuff("trace", "info", "delays.csv", "--json").out)
    assert facts["n_clients"] == 3 and facts["rows"] == 24
    assert facts == json.loads(json.dumps(fb.read_trace("delays.csv").summary()))
    text = fedbuff(
        "trace", "info", "phones.csv", "--column", "client=device", "--column", "total=ms", "--unit", "ms"
    ).out
    assert re.search(r"^total \(s\) +mean 0\.1775 ", text, re.MULTILINE)
    fits = json.loads(fedbuff("trace", "fit", "delays.csv", "--json").out)
    assert [fit["gap"] for fit in fits] == sorted(fit["gap"] for fit in fits) and ":" in fits[0]["law"]


def test_trace_generate_and_convert(fedbuff: Run) -> None:
    laws = ("--compute", "weibull:0.8,2", "--upload", "0.25", "--client-speed", "log_normal:0,1")
    assert fedbuff("trace", "generate", "made.csv", "--clients", "5", "--tasks", "3", *laws, "--seed", "9").code == 0
    assert fedbuff("trace", "convert", "made.csv", "made.npz").code == 0
    trace = fb.read_trace("made.npz")
    assert trace == fb.read_trace("made.csv") and trace.n_rows == 15
    model = fb.DelayModel(
        5, compute=fb.Weibull(0.8, 2.0), upload=fb.Constant(0.25), client_speed=fb.LogNormal(0.0, 1.0)
    )
    schedule = fb.schedule(model, fb.FedBuff(2), arrivals=40, seed=9)
    early = schedule.task < 3
    compute = schedule.parts(model)["compute"][early]
    assert np.array_equal(compute, trace.compute[schedule.client[early] * 3 + schedule.task[early]])
    fb.sample_log().save("log.csv")
    assert fedbuff("trace", "convert", "log.csv", "dealt.npz", "--log", "--as-trace", "--assign", "7").code == 0
    assert fb.read_trace("dealt.npz").n_clients == 7


def test_trace_of_imperfect_files(fedbuff: Run) -> None:
    Path("odd.tsv").write_text("task\tcompute\n1\t2.5\n3\t\n4\t3.5\n")
    ran = fedbuff("trace", "info", "odd.tsv", "--client", "phone")
    assert ran.code == 2 and "line 3: compute is empty; missing='drop' (--missing drop) leaves out" in ran.err
    ran = fedbuff("trace", "info", "odd.tsv", "--client", "phone", "--missing", "drop")
    assert ran.code == 2 and "(--tasks order) takes the numbers by their order" in ran.err
    options = ("--client", "phone", "--missing", "drop", "--tasks", "order", "--delimiter", "tab")
    assert fedbuff("trace", "convert", "odd.tsv", "odd.csv", *options).code == 0
    trace = fb.read_trace("odd.csv")
    assert (trace.client_ids.tolist(), trace.compute.tolist()) == (["phone"], [2.5, 3.5])
    assert fedbuff("schedule", "odd.tsv", *options, "-K", "1", "--server-steps", "3").code == 0
    assert fedbuff("trace", "convert", "odd.tsv", "odd.npz", "--client", "7", *options[2:]).code == 0
    assert fb.read_trace("odd.npz").client_ids.tolist() == [7]
    Path("log.csv").write_text("start_time,arrive_time\n0,1\n")
    ran = fedbuff("trace", "info", "log.csv", "--log", "--client", "phone", "--tasks", "order")
    assert ran.code == 2 and "--tasks is not for this kind of file" in ran.err


def test_trace_convert_matrices(fedbuff: Run) -> None:
    Path("m.csv").write_text(",A,B\n0,1,2\n1,,4\n")
    assert fedbuff("trace", "convert", "m.csv", "made.csv", "--from", "delays", "--missing", "drop").code == 0
    trace = fb.read_trace("made.csv")
    assert (trace.client_ids.tolist(), trace.compute.tolist()) == (["A", "B"], [1.0, 2.0, 4.0])
    Path("m.csv").write_text("0,1\n2,3\n")
    assert "--no-header" in fedbuff("trace", "convert", "m.csv", "made.csv", "--from", "delays").err
    assert fedbuff("trace", "convert", "m.csv", "made.csv", "--from", "delays", "--header").code == 0
    assert fb.read_trace("made.csv").compute.tolist() == [2.0, 3.0]
    Path("ages.csv").write_text("A,B\n0,0\n1,1\n1,2\n")
    assert fedbuff("trace", "convert", "ages.csv", "log.csv", "--from", "ages").code == 0
    assert "buffer_size=1 cannot make" in fedbuff("schedule", "log.csv", "--log", "-K", "1").err
    assert fedbuff("schedule", "log.csv", "--log", "-K", "2", "--max-wait", "1").code == 0


def test_schedule(fedbuff: Run) -> None:
    ran = fedbuff(
        "schedule", "delays.csv", "-K", "2", "-C", "2", "--server-steps", "9", "--seed", "3", "-o", "s.npz", "--json"
    )
    expected = fb.schedule(fb.read_trace("delays.csv"), fb.FedBuff(2), 2, server_steps=9, seed=3)
    assert fb.load_schedule("s.npz") == expected
    assert json.loads(ran.out)["tau"] == expected.tau
    assert json.loads(fedbuff("schedule", "s.npz", "--json").out) == json.loads(ran.out)
    of_config = json.loads(fedbuff("schedule", "run.toml", "--set", "schedule.server_steps=7", "--json").out)
    assert of_config["server_steps"] == 7
    fedavg = fedbuff("schedule", "delays.csv", "--strategy", "fedavg", "-K", "3", "--max-time", "9", "--json")
    assert json.loads(fedavg.out)["staleness"]["max"] == 0


def test_replay_writes_a_run(fedbuff: Run, folder: Path) -> None:
    ran = fedbuff("replay", "run.toml", "-o", "run", "--set", "seeds=[3, 4]", "--json")
    assert ran.code == 0 and [row["seed"] for row in json.loads(ran.out)["seeds"]] == [3, 4]
    run = load_run("run")
    assert run.provenance["inputs"].keys() == {"delays.csv"} and run.config.seeds == (3, 4)
    expected = fb.StudyConfig.read("run.toml", ["seeds=[3, 4]"]).run(4)
    assert run.seeds[1].history["loss"].tolist() == expected.history["loss"].tolist()
    assert np.array_equal(np.load("run/seed-4/checkpoint.npz")["w"], expected.w)
    assert not list(folder.rglob("*.part"))
    again = fedbuff("replay", "run/config.json", "-o", "again", "--set", "trace.file=../delays.csv")
    assert again.code == 0
    assert load_run("again").seeds[0].result["model_sha256"] == run.seeds[0].result["model_sha256"]


def test_replay_and_compare_say_the_same(fedbuff: Run) -> None:
    """Staleness under one name is one number, of the whole run; also where a run ends before its schedule."""
    stop = ("--set", "replay.stop={server_steps = 13}", "--set", "local.steps=1")
    (row,) = json.loads(fedbuff("replay", "run.toml", "-o", "run", *stop, "--json").out)["seeds"]
    (compared,) = json.loads(fedbuff("compare", "run.toml", "-o", "all", "-K", "2", *stop, "--json").out)["rows"]
    names = ("staleness", "stalest", "loss", "accuracy")
    assert [row[name] for name in names] == [compared[name] for name in names]
    schedule = load_run("run").seeds[0].schedule
    used = schedule.staleness[(schedule.status == fb.Status.USED) & (schedule.step < 13)]
    assert (row["staleness"], row["stalest"]) == (used.mean(), used.max())
    assert not [name for name in row if name.startswith("staleness_")]


def test_counts_are_printed_as_counts(fedbuff: Run) -> None:
    long = ("--set", "schedule.server_steps=53400", "--set", "replay.metrics=[]", "--set", "local.steps=1")
    options = ("--set", "seed=12345", "--set", "local.batch_size=1", *long)
    names, row = (
        re.split(r" {2,}", line) for line in fedbuff("replay", "run.toml", "-o", "run", *options).out.splitlines()
    )
    found = dict(zip(names, row, strict=True))
    assert (found["seed"], found["server steps"], found["client updates"]) == ("12345", "53,400", "106,800")
    table = fedbuff("compare", "run.toml", "-o", "all", "-K", "2", *options).out.splitlines()
    assert "53,400" in table[1].split()
    assert load_run("run").seeds[0].result["last"]["updates"] == 106_800


def test_every_command_calls_it_output() -> None:
    for path, command in ALL.items():
        for option in (parameter for parameter in command.params if isinstance(parameter, click.Option)):
            if {"-o", "--out", "--output"} & set(option.opts):
                assert option.opts == ["-o", "--output"], path


@pytest.mark.parametrize(
    ("words", "local_steps"),
    [
        (("delays.csv", "-K", "2", "--server-steps", "4"), 1),
        (("delays.csv", "-K", "2", "--server-steps", "4", "--local-steps", "3"), 3),
        (("run.toml",), 2),
        (("run.toml", "--set", "local.steps=5"), 5),
        (("run.toml", "-Q", "4"), 4),
        (("run",), 2),
    ],
)
def test_plot_schedule_draws_local_steps(
    words: tuple[str, ...], local_steps: int, fedbuff: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    drawn = []
    real = fb.plots.schedule

    def record(schedule: Any, source: Any, **options: Any) -> Any:
        drawn.append((source, options["local_steps"]))
        return real(schedule, source, **options)

    monkeypatch.setattr(fb.plots, "schedule", record)
    fedbuff("replay", "run.toml", "-o", "run", "--set", "replay.metrics=[]")
    assert fedbuff("plot", "schedule", *words, "-o", "s.svg").code == 0
    ((source, steps),) = drawn
    assert steps == local_steps and isinstance(source, fb.Trace)
    (folder / "delays.csv").write_text("client,task,compute\nx,0,1\n")  # no more the delays of the run
    if words == ("run",):
        assert fedbuff("plot", "schedule", "run", "-o", "s.svg").code == 0 and drawn[1] == (None, 1)


def test_resume(fedbuff: Run) -> None:
    fedbuff("replay", "run.toml", "-o", "whole")
    short = fb.StudyConfig.read("run.toml", ["replay.checkpoint_every=5"])
    with pytest.raises(RuntimeError, match="power cut"):
        _cut_short(short)
    ran = fedbuff("replay", "run.toml", "-o", "cut", "--set", "replay.checkpoint_every=5", "--resume")
    assert ran.code == 0 and "resumed" in ran.err
    whole, cut = (load_run(name).seeds[0] for name in ("whole", "cut"))
    assert whole.result["model_sha256"] == cut.result["model_sha256"]
    assert whole.history["loss"].tolist() == cut.history["loss"].tolist()
    done = fedbuff("replay", "run.toml", "-o", "cut", "--set", "replay.checkpoint_every=5", "--resume")
    assert done.code == 0 and "done before" in done.err


def test_a_run_killed_in_its_first_moments_goes_on(fedbuff: Run) -> None:
    assert fedbuff("replay", "run.toml", "-o", "whole").code == 0
    begun = Path("begun")
    begun.mkdir()
    (begun / "provenance.json").write_text("{}")
    (begun / ".config.json.0123456789abcdef.part").write_text("{")
    assert fedbuff("replay", "run.toml", "-o", "begun", "--resume").code == 0
    whole, late = (load_run(name).seeds[0] for name in ("whole", "begun"))
    assert whole.result["model_sha256"] == late.result["model_sha256"]
    (begun / "config.json").unlink()
    refused = fedbuff("replay", "run.toml", "-o", "begun", "--resume")
    assert refused.code == 2 and "not a run folder: it has no config.json" in refused.err


def _cut_short(config: fb.StudyConfig) -> None:
    """A run that loses its power at server step 10."""

    def cut(row: dict[str, float]) -> None:
        if row["step"] == 10:
            raise RuntimeError("power cut")

    make = fb.StudyConfig.make_replay
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fb.StudyConfig, "make_replay", lambda *args, **options: make(*args, **options, callback=cut))
        run_study(config, "cut")


def test_resume_refuses_another_configuration(fedbuff: Run) -> None:
    fedbuff("replay", "run.toml", "-o", "run")
    assert fedbuff("replay", "run.toml", "-o", "run").err.startswith("fedbuff: run: it is there already;")
    ran = fedbuff("replay", "run.toml", "-o", "run", "--resume", "--set", "local.lr=0.2")
    assert ran.code == 2 and ran.err.startswith("fedbuff: local.lr: run was made with 0.1, this is 0.2")


def test_a_kill_leaves_whole_files_and_resumes(folder: Path, fedbuff: Run) -> None:
    settings = ["--set", "schedule.server_steps=200000", "--set", "replay.checkpoint_every=50"]
    command = [sys.executable, "-m", "fedbuff", "replay", "run.toml", "-o", "run", *settings]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (folder / "run" / "seed-0" / "checkpoint.npz").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL
    assert load_run("run").seeds == []
    with pytest.raises(ValueError, match="no run that is done"):
        find_runs("run")
    fb.Replay.load(
        "run/seed-0/checkpoint.npz", load_run("run").config.problem, fb.load_schedule("run/seed-0/schedule.npz")
    )


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_keep_what_was_done(folder: Path, sent: signal.Signals, code: int) -> None:
    command = [
        sys.executable,
        "-m",
        "fedbuff",
        "replay",
        "run.toml",
        "-o",
        "run",
        "--set",
        "schedule.server_steps=200000",
    ]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    saved = folder / "run" / "seed-0" / "checkpoint.npz"
    while not saved.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(sent)
    _, error = process.communicate(timeout=60)
    assert process.returncode == code
    found = re.search(r"^fedbuff: interrupted at server step (\d+)", error, re.MULTILINE)
    assert found
    with np.load(saved) as file:
        assert json.loads(file["about"].tobytes())["version"] == int(found[1])


@pytest.mark.skipif(not THEORY, reason="fedbuff.theory is not here")
def test_theory(fedbuff: Run) -> None:
    theorem = importlib.import_module("fedbuff.theory")
    numbers = ("-L", "0.5", "-Q", "2", "-K", "10", "--tau", "3")
    variances = ("-n", "100", "--gap", "1", "--sigma2", "2", "--gamma2", "0.5", "-b", "32")
    found = json.loads(fedbuff("theory", *numbers, *variances, "--json").out)
    least = theorem.min_server_steps(0.5, 2, 3)
    assert found["server_steps"] == least and found["eta"] == theorem.step_sizes(0.5, least, 2, 10).eta
    expected = theorem.bound(0.5, least, 2, 3, 100, 1.0, 2.0, 0.5, 32)
    assert found["bound"]["total"] == expected.total and found["outside"] == []
    assert all(row["holds"] for row in found["conditions"])
    of_config = json.loads(fedbuff("theory", "run.toml", "--json").out)
    assert of_config["server_steps"] == 20 < of_config["server_steps_demanded"] and of_config["outside"]
    assert fedbuff("theory", "-L", "1").err.startswith("fedbuff: give a CONFIG, or --local-steps")
    assert fedbuff("theory", *numbers, "--gap", "1").err.startswith("fedbuff: the bound needs --clients too")


def test_flags_for_compilers(fedbuff: Run) -> None:
    from fedbuff._machine import embedding as _embedding

    assert fedbuff("--cflags", "--libs").out == f"{_embedding.cflags()} {_embedding.libs()}\n"
    assert fedbuff("--cmakedir").out == f"{_embedding.get_cmake_dir()}\n"


def test_divergence_is_exit_code_3(fedbuff: Run) -> None:
    quadratic = '{kind = "quadratic", centers = [[0.0], [1.0], [2.0]], curvature = 9.0}'
    settings = ["--set", f"problem={quadratic}", "--set", "trace.assign=false", "--set", "local={steps = 9, lr = 99}"]
    settings += ["--set", 'replay.metrics=["loss"]']
    ran = fedbuff("replay", "run.toml", "-o", "run", *settings, "--set", "schedule.server_steps=200")
    assert ran.code == 3 and "not finite" in ran.err
    assert load_run("run").seeds[0].result["exit_reason"] == "diverged"


def test_compare(fedbuff: Run) -> None:
    options = ("--strategy", "fedbuff", "--strategy", "fedasync", "--strategy", "fedavg", "-K", "2,3", "-C", "2,4")
    ran = fedbuff("compare", "run.toml", "-o", "all", *options, "--target", "accuracy=0.2", "--json")
    found = json.loads(ran.out)
    names = [row["name"] for row in found["rows"]]
    buffered = [f"FedBuff K={size}, C={at_work}" for size in (2, 3) for at_work in (2, 4)]
    assert names == [*buffered, "FedAsync, C=2", "FedAsync, C=4", "FedAvg m=2", "FedAvg m=4"]
    assert [row["at work"] for row in found["rows"]] == [2, 4] * 4
    assert found["target"] == ["accuracy", 0.2]
    for run, row in zip(find_runs("all"), found["rows"], strict=True):
        at = run.seeds[0].first("accuracy", 0.2)
        assert row["time to target"] == (None if at is None else run.seeds[0].history["time"][at])
    schedules = [run.seeds[0].schedule for run in find_runs("all") if run.name.endswith("C=2")]
    tasks = [
        {(c, k): e - s for c, k, s, e in zip(s_.client, s_.task, s_.start_time, s_.arrive_time, strict=True)}
        for s_ in schedules
    ]
    common = tasks[0].keys() & tasks[1].keys()
    assert common and all(tasks[0][key] == pytest.approx(tasks[1][key], abs=1e-12) for key in common)


ALL_THREE = ("--strategy", "fedbuff", "--strategy", "fedasync", "--strategy", "fedavg")


@pytest.mark.parametrize(
    ("options", "names", "at_work"),
    [
        (ALL_THREE, ["FedBuff K=2", "FedAsync", "FedAvg rate=1"], [6, 6, 6]),
        ((*ALL_THREE, "--set", "schedule.concurrency=3"), ["FedBuff K=2", "FedAsync", "FedAvg m=3"], [3, 3, 3]),
        (
            (*ALL_THREE, "-C", "3", "--clients-per-round", "2,5"),
            ["FedBuff K=2, C=3", "FedAsync, C=3", "FedAvg m=2", "FedAvg m=5"],
            [3, 3, 2, 5],
        ),
        (
            (*ALL_THREE[2:], "--set", 'strategy={kind="fedavg", clients_per_round=4}'),
            ["FedAsync", "FedAvg m=4"],
            [4, 4],
        ),
        (("-C", "2,3", "--set", 'strategy={kind="fedavg", rate=0.5}'), ["FedAvg m=2", "FedAvg m=3"], [2, 3]),
    ],
)
def test_compare_has_as_many_clients_at_work(
    options: tuple[str, ...], names: list[str], at_work: list[int], fedbuff: Run
) -> None:
    short = ("--set", "schedule.server_steps=3", "--set", "replay.metrics=[]")
    ran = fedbuff("compare", "run.toml", "-o", "all", *options, *short, "--json")
    rows = json.loads(ran.out)["rows"]
    assert [row["name"] for row in rows] == names and [row["at work"] for row in rows] == at_work
    table = fedbuff("compare", "run.toml", "-o", "all", *options, *short, "--resume").out.splitlines()
    assert "  at work  " in table[0]


def test_fedavg_of_a_trace_has_the_concurrency_at_work(fedbuff: Run) -> None:
    words = ("schedule", "delays.csv", "--strategy", "fedavg", "--max-time", "9", "--json")
    for options, at_work in (((), 3), (("-C", "2"), 2), (("-C", "2", "--clients-per-round", "1"), 1)):
        assert json.loads(fedbuff(*words, *options).out)["at_work"] == at_work


def test_compare_removes_a_key(fedbuff: Run, folder: Path) -> None:
    table = '[[compare]]\nstrategy = { kind = "fedavg", clients_per_round = 3 }\n'
    text = (folder / "run.toml").read_text().replace("[schedule]", "[schedule]\nconcurrency = 3")
    (folder / "run.toml").write_text(text + table)
    ran = fedbuff("compare", "run.toml", "-o", "one")
    assert ran.code == 2 and ran.err.startswith("fedbuff: compare[0]: schedule.concurrency: FedAvg starts its own")
    assert not (folder / "one").exists()
    (folder / "run.toml").write_text(text + table + 'schedule = { concurrency = "unset" }\n')
    assert fedbuff("compare", "run.toml", "-o", "one").code == 0
    ran = fedbuff("replay", "run.toml", "-o", "two", "--set", "schedule.concurrency=unset", "--json")
    assert load_run("two").seeds[0].schedule.concurrency == 6


def test_compare_tables_and_the_best_of_tried(fedbuff: Run, folder: Path) -> None:
    with (folder / "run.toml").open("a") as file:
        file.write(
            "[target]\naccuracy = 0.3\n"
            '[[compare]]\nname = "small"\ntry = { "strategy.server_lr" = [0.0001, 1.0] }\n'
            '[[compare]]\nstrategy = { kind = "fedasync" }\n'
        )
    ran = fedbuff("compare", "run.toml", "-o", "both", "--json")
    rows = json.loads(ran.out)["rows"]
    assert [row["name"] for row in rows] == ["small, server_lr 1.0", "FedAsync"]
    assert len(list((folder / "both").glob("*/config.json"))) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("trace info no.csv", r"fedbuff: Invalid value for 'FILE': .*no\.csv.* does not exist"),
        ("trace info phones.csv", r"fedbuff: no column 'client'; the file has 'device', 'ms'"),
        ("trace info delays.csv --column client", r"fedbuff: Invalid value for --column: expected NAME=VALUE"),
        ("trace convert delays.csv out.xlsx", r"fedbuff: path: expected a name that ends in"),
        ("trace convert delays.csv no/out.csv", r"fedbuff: no/.*: No such file or directory"),
        ("trace generate x.csv --clients 3 --compute expo:1", r"fedbuff: Invalid value for '--compute'"),
        ("trace generate x.csv --clients 0", r"fedbuff: DelayModel: n_clients: expected an int from 1 to .*, got 0"),
        ("schedule delays.csv", r"fedbuff: server_steps, max_time, arrivals: expected at least one"),
        ("schedule delays.csv --server-steps 3 -C 9", r"fedbuff: concurrency: expected an int up to the 3 clients"),
        ("schedule run.toml --set schedule.server_stps=3", r"fedbuff: schedule\.server_stps: unknown key"),
        ("replay run.toml -o run --set strategy.buffer_size=0", r"fedbuff: strategy\.buffer_size: expected an int"),
        ("replay run.toml -o run --set trace.assign=false", r"fedbuff: trace: it is for 3 clients, the problem has 6"),
        ("replay run.toml -o run --set replay.metrics=[1]", r"fedbuff: replay\.metrics: expected a list of names"),
        ("replay run.toml -o run --set 'replay.metrics=[\"los\"]'", r"fedbuff: replay\.metrics: expected one of loss"),
        ("replay run.toml -o run --set local.batch_size=[1,2]", r"fedbuff: local\.batch_size: expected 6 ints"),
        ("replay run.toml -o run --set replay.metrics=[] --set replay.stop={grad_norm_sq=1}", r"fedbuff: replay\.m"),
        ("replay run.toml -o delays.csv/run", r"fedbuff: delays\.csv/run: Not a directory"),
        ("replay broken.toml -o run", r"fedbuff: broken\.toml: not TOML: .*line 2"),
        ("replay run.toml", r"fedbuff: Missing option '-o' / '--output'"),
        ("compare run.toml -o run", r"fedbuff: compare: nothing to compare"),
        ("compare run.toml -o run -K 2,x", r"fedbuff: Invalid value for '--buffer-size'.*: '2,x'"),
        ("compare run.toml -o run -K 2,0", r"fedbuff: strategy\.buffer_size: expected an int >= 1"),
        ("compare run.toml -o run -K 2 -C 9", r"fedbuff: schedule\.concurrency: expected an int up to the 6 clients"),
        ("compare run.toml -o run --clients-per-round 2", r"fedbuff: clients_per_round: expected fedavg among"),
        ("compare run.toml -o run --strategy fedavg -K 2", r"fedbuff: buffer_size: FedAvg has no buffer"),
        ("schedule run.toml --set schedule.concurency=unset", r"fedbuff: schedule\.concurency: unknown key; did you m"),
        ("compare run.toml -o run -K 2 --target speed=3", r"fedbuff: target\.speed: unknown key"),
        ("tune run.toml -o run -K 1,2", r"fedbuff: target: missing"),
        ("tune run.toml -o run --target accuracy=0.9", r"fedbuff: grid: expected two arms or more"),
        ("tune run.toml -o run -K 1,2 --target accuracy=0.9 --eta 1", r"fedbuff: eta: expected an int >= 2"),
        ("tune run.toml -o run -K 1,2 --target accuracy=0.9 --seeds x", r"fedbuff: Invalid value for --seeds"),
        ("plot sweep . -o s.svg", r"fedbuff: \.: "),
        ("plot schedule delays.csv --server-steps 3 -o s.bmp", r"fedbuff: path: expected a name that ends in"),
        ("plot convergence . -o s.svg", r"fedbuff: \.: no run that is done"),
        ("report .", r"fedbuff: \.: no run that is done"),
        ("frobnicate", r"fedbuff: No such command 'frobnicate'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_writes_nothing(arguments: str, message: str, fedbuff: Run, folder: Path) -> None:
    (folder / "broken.toml").write_text("seed = 1\n[problem\n")
    before = sorted(folder.rglob("*"))
    ran = fedbuff(*shlex.split(arguments))
    assert ran.code == 2 and re.match(message, ran.err), ran.err
    assert ran.err.count("\n") == 1 and ran.out == ""
    assert sorted(folder.rglob("*")) == before


def test_tune(fedbuff: Run, folder: Path) -> None:
    words = ("tune", "run.toml", "-o", "tuned", "-K", "1,2,4,-1", "--seeds", "0:4", "--eta", "2", "--target")
    ran = fedbuff(*words, "accuracy=0.5", "--json")
    about = json.loads(ran.out)
    assert ran.code == 4 and about == json.loads((folder / "tuned" / "tune.json").read_text())
    assert about["winner"] == {"strategy.buffer_size": about["ranking"][0]["strategy.buffer_size"]}
    assert about["notes"][-1] == "1 of 4 arms could not run: buffer_size=-1"
    again = fedbuff(*words, "accuracy=0.5")
    assert again.code == 4 and "best: buffer_size=" in again.out
    pictured = fedbuff("plot", "sweep", "tuned/rung-2", "--metric", "accuracy", "-o", "arms.svg")
    assert pictured.code == 0 and (folder / "arms.svg").stat().st_size > 5000
    assert pictured.out.splitlines()[1].split() == ["strategy.buffer_size", "n", "mean", "low", "high"]
    other = fedbuff(*words, "accuracy=0.6")
    assert other.code == 2 and "replay.stop.accuracy" in other.err


def test_a_traceback_on_request(fedbuff: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBUFF_TRACEBACK", "1")
    with pytest.raises(ValueError, match="server_steps, max_time, arrivals: expected at least one"):
        from fedbuff._cli import main

        main(["schedule", "delays.csv"])


def test_importing_fedbuff_does_not_import_click() -> None:
    code = "import sys, fedbuff; fedbuff.StudyConfig; sys.exit('click' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}).returncode == 0


def test_demo(fedbuff: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("plotly")
    from fedbuff._cli import demo

    monkeypatch.setitem(demo.TABLES, "schedule", {"max_time": 0.25})
    ran = fedbuff("demo", "-o", "d")
    assert ran.code == 0
    rows = [line.split() for line in ran.out.splitlines() if line.startswith("Fed")]
    assert [row[0].strip(",") for row in rows] == ["FedBuff", "FedAsync", "FedAvg"]
    assert (
        str((folder / "d" / "report.html").resolve()) in ran.out and (folder / "d" / "report.html").stat().st_size > 1e6
    )
    assert all(0.6 < float(row[-1]) <= 1.0 for row in rows)
    assert fedbuff("demo", "-o", "d").code == 0  # over its own folder


@pytest.mark.parametrize("arguments", [("demo", "-o", "made"), ("plot", "staleness", "made.npz", "-o", "made.svg")])
def test_a_missing_package_is_exit_code_5(fedbuff: Run, monkeypatch: pytest.MonkeyPatch, arguments: Any) -> None:
    fb.schedule(fb.sample_log(), fb.FedBuff(buffer_size=3)).save("made.npz")
    for module in ("plotly.offline", "matplotlib", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, module, None)
    before = set(Path().iterdir())
    ran = fedbuff(*arguments)
    assert ran.code == 5 and re.search(r"needs (plotly|matplotlib): pip install fedbuff\[(demo|plot)\]", ran.err)
    assert set(Path().iterdir()) == before
