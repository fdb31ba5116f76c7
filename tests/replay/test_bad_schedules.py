"""Nothing that enters a replay can crash it or make it run for ever: schedules, streams, checkpoints, files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends
from fedbuff._replay import checkpoint

N_CLIENTS = 12
STRATEGY = fb.FedBuff(3)
DELAYS = fb.DelayModel(n_clients=N_CLIENTS, compute=fb.Exponential(1.0))
PROBLEM = fb.Quadratic(np.arange(N_CLIENTS * 2, dtype=np.float64).reshape(N_CLIENTS, 2))
LOCAL = fb.LocalSGD(steps=1, lr=0.3)
CANNOT = "not a saved replay that can go on"
OTHER = "it was made with another schedule: other arrivals"
OPTIONS: dict[str, Any] = {"strategy": STRATEGY, "threads": 2, "progress": False}


def schedule(seed: int = 1, steps: int = 30) -> fb.Schedule:
    return fb.schedule(DELAYS, STRATEGY, concurrency=8, server_steps=steps, seed=seed)


def stream(seed: int = 1, steps: int = 30, chunk: int = 20) -> Iterator[fb.Schedule]:
    return fb.iter_schedule(DELAYS, STRATEGY, 8, server_steps=steps, seed=seed, chunk=chunk)


def changed(whole: fb.Schedule, **columns: tuple[int, Any]) -> fb.Schedule:
    state = whole._state()
    for name, (at, value) in columns.items():
        state[name] = state[name].copy()
        state[name][at] = value
    return fb.Schedule(**state)


BAD: dict[str, tuple[dict[str, tuple[int, Any]], str]] = {
    "client": ({"client": (5, -1)}, "arrival 5: its client is not one of 12"),
    "staleness": ({"staleness": (5, 2**40)}, "arrival 5: its staleness is not its step minus its version"),
    "step": ({"step": (5, 2**40), "staleness": (5, 2**40)}, "arrival 5: its step is not one of the schedule's"),
    "version": ({"version": (5, -(2**62))}, "arrival 5: its version is negative"),
    "started": ({"step_started": (2, 0)}, "version 3: the tasks started on it"),
    "status": ({"status": (5, 200)}, "arrival 5: its status is unknown"),
    "time": ({"step_time": (5, np.nan)}, "step 5: its time is not finite"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_schedule_made_by_hand_is_checked(name: str) -> None:
    columns, message = BAD[name]
    with pytest.raises(ValueError, match=f"^schedule: {message}"):
        fb.replay(PROBLEM, changed(schedule(), **columns), LOCAL, **OPTIONS)


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
@pytest.mark.parametrize("name", BAD)
def test_a_file_is_checked(name: str, ending: str, tmp_path: Path) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    columns, message = BAD[name]
    path = tmp_path / f"s{ending}"
    if name == "status" and ending == ".parquet":
        return  # statuses have names there
    changed(schedule(), **columns).save(path)
    with pytest.raises(ValueError, match=f"not a schedule, or not a whole one: {message}"):
        fb.load_schedule(path)


@pytest.mark.parametrize("name", BAD)
def test_a_stream_is_checked_chunk_by_chunk(name: str) -> None:
    columns, message = BAD[name]
    chunks = list(stream())
    at = chunks[1].first_step
    shifted = {key: (min(place, 3), value) for key, (place, value) in columns.items()}
    mixed = iter([chunks[0], changed(chunks[1], **shifted), *chunks[2:]])
    replay = fb.Replay(PROBLEM, mixed, LOCAL, strategy=STRATEGY)
    what = message.partition(": ")[2]
    for _ in range(2):  # and says it again, rather than to end as if all were well
        with pytest.raises(ValueError, match=rf"schedule: the chunk at step {at}: .*{what}"):
            replay.run()
    assert replay.version == at


def test_what_the_resolver_made_is_not_checked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checked = []
    for module in ("schedule", "load"):
        monkeypatch.setattr(f"fedbuff._schedule.{module}.check_columns", checked.append)
    whole = schedule()
    uniform = fb.uniform_arrivals(n_clients=N_CLIENTS, buffer_size=3, max_staleness=2, server_steps=5)
    for sound in (whole, whole[:7], uniform):
        fb.replay(PROBLEM, sound, LOCAL, **OPTIONS)
    assert not checked
    whole.save(tmp_path / "s.npz")
    loaded = fb.load_schedule(tmp_path / "s.npz")
    assert len(checked) == 1
    fb.replay(PROBLEM, loaded, LOCAL, **OPTIONS)
    assert len(checked) == 1
    fb.replay(PROBLEM, fb.Schedule(**whole._state()), LOCAL, **OPTIONS)
    log = fb.schedule(whole.arrival_log(), STRATEGY)
    fb.replay(PROBLEM, log, LOCAL, **OPTIONS)
    assert len(checked) == 3


def test_chunks_of_two_schedules_are_refused_by_name() -> None:
    ours, others = list(stream()), list(stream(seed=2))
    for mixed, what in (
        ([ours[0], others[1]], "its seed is 2, that of the first chunk is 1"),
        ([ours[0], ours[2]], "expected a chunk that begins at step"),
        ([ours[0], fb.schedule(DELAYS, fb.FedBuff(3, max_staleness=9), 8, server_steps=30, seed=1)[
            ours[1].first_step :]], "it was made with another strategy"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"schedule: .*{what}"):
            fb.replay(PROBLEM, iter(mixed), LOCAL, **OPTIONS)
    # the same description and seed, and yet other rows
    state = others[1]._state()
    state |= {"seed": 1, "description": ours[1].description, "first_step": ours[1].first_step}
    moved = ours[1].first_step - others[1].first_step
    state |= {name: state[name] + moved * (state[name] >= 0) for name in ("step", "version")}
    with pytest.raises(ValueError, match="schedule: the chunk at step"):
        fb.replay(PROBLEM, iter([ours[0], fb.Schedule(**state)]), LOCAL, **OPTIONS)
    with pytest.raises(ValueError, match="schedule: expected chunks of 12 clients, got 5"):
        few = fb.schedule(fb.DelayModel(n_clients=5), STRATEGY, server_steps=5)
        fb.replay(PROBLEM, iter([few]), LOCAL, **OPTIONS)


def test_a_streams_checkpoint_resumes_along_the_same_stream_only(tmp_path: Path) -> None:
    path = tmp_path / "c.npz"
    expected = fb.replay(PROBLEM, schedule(), LOCAL, **OPTIONS).w

    def begin() -> None:
        path.unlink(missing_ok=True)
        fb.replay(PROBLEM, stream(), LOCAL, **OPTIONS, checkpoint=path, stop=fb.Stop(server_steps=17))

    begin()
    for other in (stream(seed=2), stream(seed=3, chunk=7)):
        with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: {CANNOT}: {OTHER} up to server step 17$"):
            fb.replay(PROBLEM, other, LOCAL, **OPTIONS, checkpoint=path)
    with pytest.raises(ValueError, match="it ends before server step 17"):
        fb.replay(PROBLEM, stream(steps=9), LOCAL, **OPTIONS, checkpoint=path)
    for chunk in (1, 7, 20, 10**6):
        begin()
        np.testing.assert_array_equal(
            fb.replay(PROBLEM, stream(chunk=chunk), LOCAL, **OPTIONS, checkpoint=path).w, expected
        )
    begin()
    longer = fb.replay(PROBLEM, stream(steps=40), LOCAL, **OPTIONS, checkpoint=path)
    np.testing.assert_array_equal(longer.w, fb.replay(PROBLEM, schedule(steps=40), LOCAL, **OPTIONS).w)


def test_a_checkpoint_of_a_schedule_and_of_its_stream_fit_each_other(tmp_path: Path) -> None:
    expected = fb.replay(PROBLEM, schedule(), LOCAL, **OPTIONS).w
    sources: list[Callable[..., Any]] = [schedule, stream]
    for first in sources:
        for second in sources:
            replay = fb.Replay(PROBLEM, first(), LOCAL, strategy=STRATEGY)
            replay.run(13)
            replay.save(tmp_path / "r.npz")
            loaded = fb.Replay.load(tmp_path / "r.npz", PROBLEM, second())
            loaded.check()
            loaded.run()
            np.testing.assert_array_equal(loaded.w, expected)
            whole = first is schedule and second is schedule  # which are known by their hashes
            wrong = "it was made with another schedule" if whole else f"{CANNOT}: {OTHER} up to server step 13"
            with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path / 'r.npz'))}: {wrong}$"):
                fb.Replay.load(tmp_path / "r.npz", PROBLEM, second(seed=4))


def rewrite(
    path: Path, about: dict[str, Any] | None = None, replace_about: dict[str, Any] | None = None, **arrays: Any
) -> None:
    """The checkpoint with other content and a checksum that fits."""
    with np.load(path) as file:
        content = {name: file[name] for name in file.files if name != "checksum"}
    known = json.loads(content["about"].tobytes()) if replace_about is None else replace_about
    content["about"] = np.frombuffer(json.dumps({**known, **(about or {})}).encode(), np.uint8)
    content |= {name: value for name, value in arrays.items() if value is not None}
    for name, value in arrays.items():
        if value is None:
            del content[name]
    content["checksum"] = np.frombuffer(checkpoint._digest(content), np.uint8)
    with open(path, "wb") as stream:
        np.savez(stream, **content)


def as_bytes(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


@pytest.mark.parametrize("source", [schedule, stream])
def test_a_checkpoint_that_does_not_add_up_is_refused(source: Any, tmp_path: Path) -> None:
    strategy = fb.FedBuff(3, optimizer=fb.SGD(0.9))
    options: dict[str, Any] = {**OPTIONS, "strategy": strategy, "eval_every": 5, "metrics": ("loss", "distance")}
    path = tmp_path / "c.npz"
    fb.replay(PROBLEM, source(), LOCAL, **options, checkpoint=path, stop=fb.Stop(server_steps=17))
    original = path.read_bytes()
    with np.load(path) as file:
        live, models, rows = file["live"], file["models"], json.loads(file["history"].tobytes())
    assert live.size >= 2
    later = [*rows[:-1], {**rows[-1], "step": 99}]
    lies: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"version": 16}, {}),
        ({"version": 18}, {}),
        ({"version": 2**40}, {}),
        ({"version": -1}, {}),
        ({"version": 17.0}, {}),
        ({"version": "17"}, {}),
        ({"updates": 50}, {}),
        ({"updates": 10**12}, {}),
        ({"updates": None}, {}),
        ({"time": 3.0}, {}),
        ({"time": "soon"}, {}),
        ({"taken": "0" * 16}, {}),
        ({"secure": 3}, {}),
        ({"metrics": 3}, {}),
        ({}, {"live": live[1:], "models": models[1:]}),
        ({}, {"live": live[::-1].copy()}),
        ({}, {"live": np.append(live[:-1], 17)}),
        ({}, {"live": np.append(-1, live[1:])}),
        ({}, {"live": np.append(live[:-1], 2**60)}),
        ({}, {"live": live.astype(np.float64)}),
        ({}, {"models": models[1:]}),
        ({}, {"models": models.astype(np.float32)}),
        ({}, {"w": np.ones(3)}),
        ({}, {"w": np.array([np.nan, 1.0])}),
        ({}, {"w": np.ones(2, np.int64)}),
        ({}, {"w": None}),
        ({}, {"first": None}),
        ({}, {"first": np.ones(5)}),
        ({}, {"second": np.ones(2)}),
        ({}, {"evaluated": np.ones(5)}),
        ({}, {"history": as_bytes(later)}),
        ({}, {"history": as_bytes(rows[::-1])}),
        ({}, {"history": as_bytes([{**rows[0], "updates": 7}])}),
        ({}, {"history": as_bytes([*rows[:-1], {"step": 17}])}),
        ({}, {"history": as_bytes({"a": 1})}),
        ({}, {"history": as_bytes([{**row, "loss": "x"} for row in rows])}),
        ({}, {"history": np.zeros(5, np.uint8)}),
    ]
    for about, arrays in lies:
        path.write_bytes(original)
        rewrite(path, about, **arrays)
        changed = path.read_bytes()
        # a stream shows only later that a task in flight needs a model
        with pytest.raises(ValueError, match=r"c\.npz: " if source is schedule else r"c\.npz: |the model of version"):
            fb.replay(PROBLEM, source(), LOCAL, **options, checkpoint=path)
        assert path.read_bytes() == changed
    path.write_bytes(original)
    rewrite(path)
    assert fb.replay(PROBLEM, source(), LOCAL, **options, checkpoint=path).version == 30


def test_a_checkpoint_that_lacks_something_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.npz"
    replay = fb.Replay(PROBLEM, schedule(), LOCAL, strategy=STRATEGY)
    replay.run(9)
    replay.save(path)
    original = path.read_bytes()
    about = replay._about()
    for name in set(about) - {"format", "format_number"}:
        path.write_bytes(original)
        fewer = {key: value for key, value in about.items() if key != name}
        rewrite(path, replace_about=fewer)
        with pytest.raises(ValueError, match=rf"c\.npz: not a saved replay: it lacks '{name}'"):
            fb.Replay.load(path, PROBLEM, schedule())
    for name, value in (("seed", "x"), ("rule", "{}"), ("rule", "[1]"), ("local", {"steps": "x"}), ("local", 3)):
        path.write_bytes(original)
        rewrite(path, {name: value})
        with pytest.raises(ValueError, match=r"c\.npz: "):
            fb.Replay.load(path, PROBLEM, schedule())


def test_another_staleness_function_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.npz"

    def call(power: float, **options: Any) -> fb.Result:
        strategy = fb.FedBuff(3, staleness=lambda staleness: (1.0 + staleness) ** -power)
        return fb.replay(PROBLEM, schedule(), LOCAL, **{**OPTIONS, "strategy": strategy}, checkpoint=path, **options)

    call(0.5, stop=fb.Stop(server_steps=9))
    with pytest.raises(ValueError, match=rf"c\.npz: {CANNOT}: it was made with another rule: its staleness function"):
        call(0.75)
    assert call(0.5).version == 30


def test_another_client_function_is_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {**OPTIONS, "checkpoint": tmp_path / "c.npz"}

    def problem(function: Any) -> fb.Callback:
        return fb.Callback(function, w0=np.ones(2), n_clients=N_CLIENTS)

    fb.replay(problem(lambda c, t, w, g: 0.1 * w), schedule(), **options, stop=fb.Stop(server_steps=9))
    with pytest.raises(ValueError, match=r"c\.npz: it was made with another problem: its function has other code"):
        fb.replay(problem(lambda c, t, w, g: 0.2 * w), schedule(), **options)
    assert fb.replay(problem(lambda c, t, w, g: 0.1 * w), schedule(), **options).version == 30


def test_other_kernels_are_refused(tmp_path: Path) -> None:
    code = textwrap.dedent(
        """
        import sys
        sys.path.insert(0, sys.argv[2])
        from test_bad_schedules import LOCAL, OPTIONS, PROBLEM, schedule
        import fedbuff as fb
        stop = fb.Stop(server_steps=int(sys.argv[3]))
        try:
            print(fb.replay(PROBLEM, schedule(), LOCAL, **OPTIONS, checkpoint=sys.argv[1], stop=stop).version)
        except ValueError as error:
            print(error)
        """
    )

    def call(steps: int, **environment: str) -> str:
        command = [sys.executable, "-c", code, str(tmp_path / "c.npz"), str(Path(__file__).parent), str(steps)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
        return done.stdout

    if backends.current().name != "cpp":
        pytest.skip("one kind of kernels")
    assert call(5, FEDBUFF_ISA="baseline").strip() == "5"
    assert call(7, FEDBUFF_ISA="baseline").strip() == "7"
    assert "made with the kernels cpp baseline, and reference run" in call(9, FEDBUFF_BACKEND="reference")
    from fedbuff import _core

    for level in _core.available_levels():
        if level != "baseline":
            assert f"made with the kernels cpp baseline, and cpp {level} run" in call(9, FEDBUFF_ISA=level)


def test_a_huge_buffer_takes_no_memory_ahead() -> None:
    state = schedule()._state()
    strategy = fb.FedBuff(2**40)
    run = fb.replay(PROBLEM, fb.Schedule(**state), LOCAL, **{**OPTIONS, "strategy": strategy})
    assert run.version == 30
