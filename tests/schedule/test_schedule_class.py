"""The Schedule class: immutability, files, hash, slices, summary, exports, and a check() that finds every fault."""

from __future__ import annotations

import heapq
import json
import pickle

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._schedule.columns import IN_FLIGHT_COLUMNS, ROW_COLUMNS, STEP_COLUMNS
from fedbuff._schedule.file import ScheduleWriter


def columns_of(rows, steps, flying):
    """Lists of tuples as the columns of a Schedule."""
    columns = {}
    for group, values in ((ROW_COLUMNS, rows), (STEP_COLUMNS, steps), (IN_FLIGHT_COLUMNS, flying)):
        for place, (name, dtype) in enumerate(group.items()):
            columns[name] = np.array([row[place] for row in values], dtype=dtype)
    return columns


def buffered(n=6, k=3, steps=8, seed=0, max_staleness=None, failing=0.0, extra=0) -> fb.Schedule:
    """Every client always at work, exponential delays, in plain Python; `extra` arrivals after the last step."""
    rng = np.random.default_rng(seed)
    delay = rng.exponential(1.0 + np.arange(n)[:, None] / n, (n, 400))
    fails = rng.random((n, 400)) < failing
    queue = [(delay[c, 0], c, 0, 0, 0.0) for c in range(n)]
    heapq.heapify(queue)
    rows, made, started, version, fill, left = [], [], [n] + [0] * steps, 0, [], extra
    while len(made) < steps or left > 0:
        left -= len(made) == steps
        now, c, task, on, start = heapq.heappop(queue)
        stale = version - on
        if fails[c, task]:
            rows.append([c, task, on, -1, stale, start, now, 5])
        elif max_staleness is not None and stale > max_staleness:
            rows.append([c, task, on, -1, stale, start, now, 2])
        else:
            fill.append(len(rows))
            rows.append([c, task, on, version if len(made) < steps else -1, stale, start, now, 0])
            if len(fill) == k:
                made.append(now)
                version += 1
                fill = []
        if len(made) == steps and left <= 0 and not fill:
            flying = sorted((c, task, on, start) for _, c, task, on, start in queue)
            break
        heapq.heappush(queue, (now + delay[c, task + 1], c, task + 1, version, now))
        started[version] += 1
    else:
        flying = sorted((c, task, on, start) for _, c, task, on, start in queue)
    for row in fill:
        rows[row][3], rows[row][7] = -1, 1
    return fb.Schedule(
        **columns_of(rows, list(zip(made, started[1:], strict=True)), flying),
        n_clients=n,
        buffer_size=k,
        concurrency=n,
        seed=seed,
        started_on_0=started[0],
        description={
            "source": {"kind": "trace"},
            "strategy": {"kind": "fedbuff", "max_wait": None, "max_staleness": max_staleness},
        },
    )


def rounds(n=5, m=3, started=4, steps=4, seed=1) -> fb.Schedule:
    """FedAvg that starts `started` clients a round and keeps the first m."""
    rng = np.random.default_rng(seed)
    rows, made, now, task = [], [], 0.0, np.zeros(n, dtype=int)
    for step in range(steps):
        clients = rng.permutation(n)[:started]
        finish = now + rng.exponential(size=started)
        order = np.argsort(finish)
        end = finish[order[m - 1]]
        for place, which in enumerate(order):
            c, used = clients[which], place < m
            rows.append(
                (
                    c,
                    task[c],
                    step,
                    step if used else -1,
                    0 if used else 1,
                    now,
                    min(finish[which], end),
                    0 if used else 3,
                )
            )
            task[c] += 1
        made.append((end, started if step + 1 < steps else 0))
        now = end
    return fb.Schedule(
        **columns_of(rows, made, []),
        n_clients=n,
        buffer_size=0,
        concurrency=started,
        seed=seed,
        started_on_0=started,
        description={"strategy": {"kind": "fedavg"}},
    )


MADE = {
    "buffered": buffered(),
    "sequential": buffered(n=1, k=1),
    "left": buffered(extra=2),
    "drops": buffered(n=9, k=2, steps=30, max_staleness=4),
    "failures": buffered(n=9, k=2, steps=30, failing=0.3),
    "fedavg": rounds(),
}


@pytest.mark.parametrize("name", MADE)
def test_check_passes(name) -> None:
    MADE[name].check()


def test_examples_have_what_they_are_for() -> None:
    assert np.count_nonzero(MADE["left"].status == fb.Status.LEFT_IN_BUFFER) == 2
    assert np.any(MADE["drops"].status == fb.Status.TOO_STALE)
    assert np.any(MADE["failures"].status == fb.Status.FAILED)
    assert np.count_nonzero(MADE["fedavg"].status == fb.Status.DISCARDED) == 4
    assert MADE["sequential"].tau == 0
    assert MADE["fedavg"].tau == 0


def test_tau_counts_tasks_in_flight() -> None:
    schedule = MADE["buffered"]
    oldest = schedule.n_steps - schedule.in_flight_version.min()
    assert schedule.tau == max(schedule.staleness[schedule.step >= 0].max(), oldest)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_save_and_load(tmp_path, name, ending) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"s{ending}"
    MADE[name].save(path)
    loaded = fb.load_schedule(path)
    assert loaded == MADE[name]
    assert loaded.sha256 == MADE[name].sha256
    assert loaded.description == MADE[name].description
    assert not loaded.client.flags.writeable
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    loaded.check()


def test_chunks_written_to_parquet_are_the_whole(tmp_path) -> None:
    pytest.importorskip("pyarrow")
    whole = MADE["failures"]
    with ScheduleWriter(tmp_path / "s.parquet") as writer:
        for begin in range(0, 30, 7):
            chunk = whole[begin : begin + 7]
            columns = {name: getattr(chunk, name) for group in (ROW_COLUMNS, IN_FLIGHT_COLUMNS) for name in group}
            columns["step_time"] = whole.step_time[begin : begin + 7]
            columns["step_started"] = whole.step_started[begin : begin + 7]
            scalars = {
                name: getattr(chunk, name) for name in ("n_clients", "buffer_size", "concurrency", "seed", "first_step")
            }
            part = fb.Schedule(**columns, **scalars, started_on_0=chunk.started_on_0, description=whole.description)
            writer.write(part)
    assert fb.load_schedule(tmp_path / "s.parquet") == whole


def test_a_writer_that_fails_leaves_nothing(tmp_path) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(KeyboardInterrupt), ScheduleWriter(tmp_path / "s.parquet") as writer:
        writer.write(MADE["buffered"])
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="no chunk"), ScheduleWriter(tmp_path / "s.parquet"):
        pass
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"expected a \.parquet file"):
        ScheduleWriter(tmp_path / "s.npz")


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_foreign_and_cut_files_are_refused(tmp_path, ending) -> None:
    path = tmp_path / f"s{ending}"
    if ending == ".parquet":
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.table({"a": [1]}), path)
    else:
        np.savez(path, a=[1])
    with pytest.raises(ValueError, match=f"s{ending}: not a schedule, or not a whole one"):
        fb.load_schedule(path)
    MADE["buffered"].save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="not a schedule, or not a whole one"):
        fb.load_schedule(path)


def test_a_later_format_is_refused(tmp_path) -> None:
    path = tmp_path / "s.npz"
    MADE["buffered"].save(path)
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays["fedbuff_schedule"]))
    arrays["fedbuff_schedule"] = np.array(json.dumps({**header, "format": 99}))
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="its format is 99, this version reads 1"):
        fb.load_schedule(path)


def test_immutable() -> None:
    schedule = MADE["buffered"]
    with pytest.raises(ValueError):
        schedule.client[0] = 1
    with pytest.raises(AttributeError, match="immutable"):
        schedule.client = schedule.client
    schedule.description["strategy"]["kind"] = "other"
    assert schedule.description["strategy"]["kind"] == "fedbuff"


def test_equality_hash_and_pickle() -> None:
    again = buffered()
    assert again == MADE["buffered"]
    assert hash(again) == hash(MADE["buffered"])
    assert again.sha256 == MADE["buffered"].sha256
    assert buffered(seed=3) != again
    assert pickle.loads(pickle.dumps(again)) == again
    assert len({schedule.sha256 for schedule in MADE.values()}) == len(MADE)
    assert again != "a schedule"


def test_hash_is_of_the_content_only() -> None:
    state = MADE["buffered"]._state()
    other = fb.Schedule(**{**state, "description": {"made": "elsewhere"}})
    assert other == MADE["buffered"]
    assert other.sha256 == MADE["buffered"].sha256
    moved = fb.Schedule(**{**state, "step_time": state["step_time"] + 1e-9})
    assert moved != other
    assert moved.sha256 != other.sha256


def test_hash_is_stable_over_versions() -> None:
    empty = {
        name: np.zeros(0, dtype)
        for group in (ROW_COLUMNS, STEP_COLUMNS, IN_FLIGHT_COLUMNS)
        for name, dtype in group.items()
    }
    schedule = fb.Schedule(
        **empty,
        n_clients=2,
        buffer_size=1,
        concurrency=2,
        seed=0,
        started_on_0=0,
        description={"source": {"kind": "trace"}},
    )
    assert schedule.sha256 == "e0b9fa21e56a7f9b7430425cc82b94aceadc714e3ae85ada36959a1f71c9f304"
    assert schedule.tau == 0
    assert schedule.summary()["staleness"] is None
    schedule.check()


def test_constructor_refuses_wrong_types_and_shapes() -> None:
    state = MADE["buffered"]._state()
    with pytest.raises(TypeError, match="client: expected an array of int32, got int64"):
        fb.Schedule(**{**state, "client": state["client"].astype(np.int64)})
    with pytest.raises(TypeError, match="client: expected an array of int32, got list"):
        fb.Schedule(**{**state, "client": [1, 2]})
    with pytest.raises(ValueError, match="task: expected shape"):
        fb.Schedule(**{**state, "task": state["task"][:-1]})


@pytest.mark.parametrize("name", MADE)
def test_slices_are_sound_and_prefixes_exact(name) -> None:
    schedule = MADE[name]
    for begin in range(schedule.n_steps + 1):
        for end in range(begin, schedule.n_steps + 1):
            part = schedule[begin:end]
            part.check()
            assert part.n_steps == end - begin
            inside = (schedule.step >= begin) & (schedule.step < end)
            assert np.array_equal(part.step[part.step >= 0], schedule.step[inside])
            assert np.array_equal(part.client[part.step >= 0], schedule.client[inside])


def test_a_prefix_is_the_shorter_run() -> None:
    whole = buffered(n=9, k=2, steps=30, failing=0.3)
    for steps in (1, 7, 29):
        assert whole[:steps] == buffered(n=9, k=2, steps=steps, failing=0.3)
    assert whole[:] is whole
    assert rounds(steps=4)[:2] == rounds(steps=2)
    assert whole[5:20][3:7].client.tolist() == whole[8:12].client.tolist()
    with pytest.raises(TypeError, match="steps: expected a slice of server steps"):
        whole[3]


def test_summary() -> None:
    schedule = MADE["drops"]
    summary = schedule.summary()
    used = schedule.staleness[schedule.status == 0]
    assert summary["staleness"]["mean"] == used.mean()
    assert summary["staleness"]["max"] == used.max()
    assert summary["server_steps"] == 30
    assert summary["steps_per_second"] == 30 / schedule.step_time[-1]
    assert summary["status"] == {"used": 60, "too_stale": schedule.n_arrivals - 60}
    assert np.mean(summary["participation_by_speed"]) == pytest.approx(1.0)
    # every client is always at work until the arrival that made the last step
    assert summary["utilisation"] == pytest.approx(1.0)
    duration = schedule.arrive_time - schedule.start_time
    assert summary["wasted"] == pytest.approx(duration[schedule.status == 2].sum() / duration.sum())


def schedule_of_uses(uses: list[int], n_clients: int) -> fb.Schedule:
    """Client c ends uses[c] tasks of 1 + c seconds, all of them used."""
    rows = [(c, task, 0, 0, 0, 0.0, 1.0 + c, 0) for c, n in enumerate(uses) for task in range(n)]
    return fb.Schedule(
        **columns_of(rows, [(1.0 + len(uses), 0)], []),
        n_clients=n_clients,
        buffer_size=len(rows),
        concurrency=n_clients,
        seed=0,
        started_on_0=len(rows),
        description={},
    )


def test_participation_by_speed_finds_the_slow() -> None:
    summary = schedule_of_uses([6, 3, 1], n_clients=20).summary()
    assert summary["clients_never_ended"] == 17
    assert summary["participation_by_speed"] == pytest.approx([0.6 * 3, 0.3 * 3, 0.1 * 3])


@pytest.mark.parametrize("n", [1, 4, 10, 14, 37])
def test_equal_participation_is_1_in_every_group(n: int) -> None:
    assert schedule_of_uses([2] * n, n_clients=n).summary()["participation_by_speed"] == [1.0] * min(10, n)


def test_participation_by_speed_of_unused_arrivals_is_empty() -> None:
    columns = columns_of([(0, 0, 0, -1, 0, 0.0, 1.0, int(fb.Status.FAILED))], [], [])
    given = {"n_clients": 1, "buffer_size": 2, "concurrency": 1, "seed": 0, "started_on_0": 1, "description": {}}
    assert fb.Schedule(**columns, **given).summary()["participation_by_speed"] == []


def test_arrival_log_has_what_arrived() -> None:
    log = MADE["failures"].arrival_log()
    assert log.client.size == 60
    log.check_versions(2)


def test_parts_of_a_trace_wrap() -> None:
    trace = fb.Trace([0, 0, 1], [1.0, 2.0, 5.0], upload=[0.1, 0.2, 0.3])
    rows = [(0, k, 0, -1, 0, 0.0, 1.0, 5) for k in range(5)] + [(1, k, 0, -1, 0, 0.0, 1.0, 5) for k in range(2)]
    schedule = fb.Schedule(
        **columns_of(rows, [], []), n_clients=2, buffer_size=1, concurrency=2, seed=0, started_on_0=7, description={}
    )
    parts = schedule.parts(trace)
    assert parts["compute"].tolist() == [1.0, 2.0, 1.0, 2.0, 1.0, 5.0, 5.0]
    assert parts["upload"].tolist() == [0.1, 0.2, 0.1, 0.2, 0.1, 0.3, 0.3]
    model = fb.DelayModel(2, compute=fb.Constant(2.0), client_speed=[1.0, 3.0], n_samples=[10, 20])
    assert schedule.parts(model)["compute"].tolist() == [20.0] * 5 + [120.0] * 2


def test_to_pandas() -> None:
    pytest.importorskip("pandas")
    frame = MADE["drops"].to_pandas()
    assert list(frame.columns) == list(ROW_COLUMNS)
    assert (frame["status"] == "too_stale").sum() == np.count_nonzero(MADE["drops"].status == 2)


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_chrome_trace(tmp_path, ending) -> None:
    import gzip

    trace = fb.Trace(np.arange(6), np.full(6, 0.1), download=np.full(6, 0.01))
    path = tmp_path / f"t{ending}"
    MADE["buffered"].to_chrome_trace(path, trace)
    text = gzip.decompress(path.read_bytes()).decode() if ending.endswith("gz") else path.read_text()
    events = json.loads(text)["traceEvents"]
    tasks = [event for event in events if "args" in event and event["ph"] == "X"]
    assert len(tasks) == MADE["buffered"].n_arrivals
    assert tasks[0]["dur"] == pytest.approx(
        1e6 * (MADE["buffered"].arrive_time[0] - MADE["buffered"].start_time[0]), abs=1e-3
    )
    assert sum(event["ph"] == "i" for event in events) == 8
    assert {event["name"] for event in events if event["ph"] == "X" and "args" not in event} == {"download", "compute"}
    with pytest.raises(ValueError, match=r"path: expected a name that ends in \.json"):
        MADE["buffered"].to_chrome_trace(tmp_path / "t.txt")


def change(name, row, value):
    def apply(state):
        state[name] = state[name].copy()
        state[name][row] = value

    return apply


def set_scalar(name, value):
    def apply(state):
        state[name] = value

    return apply


@pytest.mark.parametrize(
    ("schedule", "fault", "message"),
    [
        ("buffered", change("client", 3, 99), "arrival 3: its client is not one of 6"),
        ("buffered", change("status", 3, 9), "arrival 3: its status is unknown"),
        ("buffered", change("version", 3, -1), "arrival 3: its version is negative"),
        ("buffered", change("step", 3, -1), "arrival 3: a step is given where"),
        ("buffered", change("step", 3, 77), "arrival 3: its step is not one of the schedule's"),
        ("buffered", change("arrive_time", 3, np.nan), "arrival 3: its arrive_time is not finite"),
        ("buffered", change("arrive_time", 3, 1e9), "arrival 4: it arrives before the one above"),
        ("buffered", change("start_time", 3, 1e9), "arrival 3: it starts after it arrives"),
        ("buffered", change("in_flight_client", 0, -1), "task in flight 0: its client"),
        ("buffered", change("in_flight_version", 0, 99), "task in flight 0: its version does not exist"),
        ("buffered", change("step_time", 2, np.inf), "step 2: its time is not finite"),
        ("buffered", change("step_time", 2, 1e9), "step 3: it comes before the one above"),
        ("buffered", set_scalar("buffer_size", 2), "step 0: more than 2 arrivals enter it"),
        ("buffered", change("step", 3, 0), "arrival 3: it arrives after the step that it enters"),
        ("buffered", change("step", 3, 4), "arrival 4: it enters an earlier step"),
        ("buffered", change("step_time", 0, 0.0), "arrival 0: it arrives after the step that it enters"),
        ("buffered", set_scalar("buffer_size", 4), "step 0: fewer than 4 arrivals enter it"),
        ("buffered", change("staleness", 3, 9), "arrival 3: its staleness is not its step minus its version"),
        ("buffered", change("staleness", 3, -1), "arrival 3: its staleness is negative"),
        ("drops", None, None),
        ("buffered", change("step_started", 0, 99), "version 1: the tasks started on it"),
        ("buffered", set_scalar("started_on_0", 5), "version 0: the tasks started on it"),
        ("buffered", change("task", 3, 9), "its client's tasks are not numbered"),
        ("buffered", change("start_time", -1, 0.0), "its version is not the one there was at its start"),
        ("buffered", set_scalar("concurrency", 5), "concurrency: expected at most 5 tasks at work, got 6 at 0.0"),
        ("fedavg", change("version", 5, 0), "arrival 5: "),
        ("left", change("status", -1, 2), "arrival"),
    ],
)
def test_check_finds_the_fault(schedule, fault, message) -> None:
    state = MADE[schedule]._state()
    if fault is None:  # a used arrival above the bound, and a dropped one below it
        for bound, text in ((2, "used with a staleness above 2"), (99, "up to 99 is not too stale")):
            description = {"strategy": {"max_staleness": bound}}
            with pytest.raises(ValueError, match=text):
                fb.Schedule(**{**state, "description": description}).check()
        return
    fault(state)
    if schedule == "left":
        state["description"] = {"strategy": {"max_staleness": 50}}
    with pytest.raises(ValueError) as caught:
        fb.Schedule(**state).check()
    assert message in str(caught.value)


def test_check_refuses_a_client_at_two_tasks_unless_allowed() -> None:
    rows = [(0, 0, 0, 0, 0, 0.0, 2.0, 0), (0, 1, 0, 1, 1, 1.0, 3.0, 0)]
    state = {
        **columns_of(rows, [(2.0, 0), (3.0, 0)], []),
        "n_clients": 1,
        "buffer_size": 1,
        "concurrency": 2,
        "seed": 0,
        "started_on_0": 2,
    }
    fb.Schedule(**state, description={"in_flight": "allow"}).check()
    with pytest.raises(ValueError, match="arrival 1: it starts while its client is at work"):
        fb.Schedule(**state, description={}).check()


def test_check_with_a_time_trigger() -> None:
    rows = [(0, 0, 0, 0, 0, 0.0, 2.0, 0), (1, 0, 0, 1, 1, 0.0, 4.0, 0)]
    state = {
        **columns_of(rows, [(3.0, 0), (5.0, 0)], []),
        "n_clients": 2,
        "buffer_size": 9,
        "concurrency": 2,
        "seed": 0,
        "started_on_0": 2,
    }
    fb.Schedule(**state, description={"strategy": {"max_wait": 3.0}}).check()
    with pytest.raises(ValueError, match="step 0: fewer than 9 arrivals"):
        fb.Schedule(**state, description={}).check()
