"""Other people's formats: FedScale, FLASH, delay matrices, gradient ages; and hostile pickles."""

from __future__ import annotations

import json
import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import fedbuff as fb

CAPACITY = {
    7: {"computation": 162.0, "communication": 5648.0},
    3: {"computation": 20, "communication": 1000},
}
BEHAVIOUR = {
    1: {"duration": 90, "active": [10, 50, 90], "inactive": [20, 50, 100], "finish_time": 100, "model": "A"},
    2: {"duration": 40, "active": [0, 150], "inactive": [30], "finish_time": 172800, "model": "B"},
}


def dump(path: Path, value: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_fedscale(tmp_path, protocol) -> None:
    trace = fb.traces.from_fedscale(
        dump(tmp_path / "capacity", CAPACITY, protocol),
        dump(tmp_path / "behave", BEHAVIOUR, protocol),
        model_bytes=125_000,
        samples_per_task=100,
    )
    assert trace.client_ids.tolist() == [3, 7]
    assert trace.compute.tolist() == pytest.approx([3 * 100 * 0.020, 3 * 100 * 0.162])
    assert trace.download.tolist() == pytest.approx([1.0, 1000 / 5648])
    assert np.array_equal(trace.upload, trace.download)
    windows = trace.availability
    assert windows.period.tolist() == [100.0, 172800.0]
    assert windows.available(0, [9, 10, 19, 20, 50, 89, 90, 100, 110]).tolist() == [0, 1, 1, 0, 0, 0, 1, 0, 1]
    assert windows.available(1, [0, 30, 149, 150, 172799, 172800]).tolist() == [1, 0, 0, 1, 1, 1]


def test_fedscale_options_and_more_clients_than_behaviours() -> None:
    capacity = {i: {"computation": 10.0, "communication": 8000.0} for i in range(5)}
    trace = fb.traces.from_fedscale(
        capacity,
        BEHAVIOUR,
        model_bytes=1e6,
        upload_bytes=0.5e6,
        samples_per_task=10,
        training_factor=1.0,
        policy="abort",
    )
    assert trace.compute.tolist() == pytest.approx([0.1] * 5)
    assert trace.upload.tolist() == pytest.approx([0.5] * 5)
    assert trace.availability.policy == "abort"
    assert trace.availability.periods.tolist() == [100.0, 172800.0] * 2 + [100.0]


@pytest.mark.parametrize(
    ("capacity", "message"),
    [
        ({0: {"computation": 1.0}}, "row 1: communication is not a number but None"),
        ({0: {"computation": 1.0, "communication": 0.0}}, "row 1: communication 0.0 is not positive"),
        (
            {0: {"computation": 1.0, "communication": 1.0}, 1: {"computation": "x", "communication": 1}},
            "row 2: computation is not a number",
        ),
        ({0: {"computation": -1.0, "communication": 1.0}}, "row 1: compute -"),
        ([1, 2], "not a dictionary of devices"),
    ],
)
def test_fedscale_bad_devices(tmp_path, capacity, message) -> None:
    with pytest.raises(fb.TraceError) as caught:
        fb.traces.from_fedscale(dump(tmp_path / "c", capacity), model_bytes=1, samples_per_task=1)
    assert str(caught.value).startswith(message)


def test_fedscale_bad_behaviour() -> None:
    bad = {1: {"active": [10], "inactive": [5], "finish_time": 100}}
    with pytest.raises(fb.TraceError, match=r"row 1: inactive 5.0 comes before active"):
        fb.traces.from_fedscale(CAPACITY, bad, model_bytes=1, samples_per_task=1)
    for times in ([[1, 2]], ["x"], 7, [None]):
        wrong = {1: BEHAVIOUR[1], 2: {"active": times, "inactive": times, "finish_time": 100}}
        with pytest.raises(fb.TraceError, match="row 2: active is not a list of times"):
            fb.traces.from_fedscale(CAPACITY, wrong, model_bytes=1, samples_per_task=1)
    with pytest.raises(fb.TraceError, match="row 1: 3 times active but 1 inactive"):
        lengths = {1: {"active": [1, 3, 5], "inactive": [2], "finish_time": 9}}
        fb.traces.from_fedscale(CAPACITY, lengths, model_bytes=1, samples_per_task=1)
    overlapping = {1: BEHAVIOUR[1], 2: {"active": [0, 5], "inactive": [10, 20], "finish_time": 100}}
    with pytest.raises(fb.TraceError, match=r"row 2: .*overlaps"):
        fb.traces.from_fedscale(CAPACITY, overlapping, model_bytes=1, samples_per_task=1)


class Hostile:
    def __init__(self, call, *arguments) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize(
    "make",
    [
        lambda path: Hostile(os.system, f"touch {path}"),
        lambda path: Hostile(eval, f"open({str(path)!r}, 'w')"),
        lambda path: Hostile(getattr, Path(path), "touch"),
        lambda path: np.float64(1.0),
        lambda path: Path(path),
    ],
)
def test_hostile_pickles_are_refused(tmp_path, make, protocol) -> None:
    trap = tmp_path / "trap"
    file = dump(tmp_path / "capacity", {0: {"computation": make(trap), "communication": 1.0}}, protocol)
    with pytest.raises(fb.TraceError, match=r"the pickle is refused: it names .*\(capacity\)"):
        fb.traces.from_fedscale(file, model_bytes=1, samples_per_task=1)
    assert not trap.exists()


def test_broken_pickles_are_refused(tmp_path) -> None:
    file = dump(tmp_path / "capacity", CAPACITY)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(fb.TraceError, match="the pickle is refused"):
        fb.traces.load_pickle(file)
    file.write_bytes(b"\x80\x04\x8c\x01a\x51.")  # a persistent id
    with pytest.raises(fb.TraceError, match="refers to an object outside"):
        fb.traces.load_pickle(file)


def nested(depth: int) -> list[object]:
    """Lists that each hold the one before twice: few bytes, and a text of 2**depth characters."""
    made: list[object] = []
    for _ in range(depth):
        made = [made, made]
    return made


GREEDY = {
    "a place in the memo": b"\x80\x04Nr\xff\xff\xff\x7f.",
    "the same in text": b"Np2147483646\n.",
    "bytes that are not there": b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b"ab.",
    "a string that is not there": b"\x80\x04X\xff\xff\xff\x7fab.",
    "a line without end": b"I12",
    "no such opcode": b"\x80\x04\xff.",
    "a key that overflows the stack": b"\x80\x04})" + b"\x85" * 300_000 + b"Ns.",
    "the same from marks": b"\x80\x04}" + b"(" * 100_000 + b"t" * 100_000 + b"Ns.",
}


@pytest.mark.parametrize("case", GREEDY)
def test_greedy_pickles_are_refused(tmp_path, case) -> None:
    file = tmp_path / "capacity"
    file.write_bytes(GREEDY[case])
    tracemalloc.start()
    try:
        with pytest.raises(fb.TraceError, match="the pickle is refused"):
            fb.traces.load_pickle(file)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(GREEDY[case]) + 2**20
    finally:
        tracemalloc.stop()


def test_messages_stay_short(tmp_path) -> None:
    file = dump(tmp_path / "capacity", {0: {"computation": nested(40), "communication": 1.0}})
    with pytest.raises(fb.TraceError, match="computation is not a number but") as caught:
        fb.traces.from_fedscale(file, model_bytes=1, samples_per_task=1)
    assert len(str(caught.value)) < 400
    file.write_bytes(b"\x80\x04\x8c\x02os\x94X" + (10**6).to_bytes(4, "little") + b"a" * 10**6 + b"\x93.")
    with pytest.raises(fb.TraceError, match=r"it names os\.aaa") as caught:
        fb.traces.load_pickle(file)
    assert len(str(caught.value)) < 400


def test_one_list_of_many_devices(tmp_path) -> None:
    times = list(range(2000))
    windows = {"active": times, "inactive": [time + 0.5 for time in times], "finish_time": 2000}
    shared = dump(tmp_path / "windows", {device: {**windows} for device in range(2000)})
    capacity = {0: {"computation": 1.0, "communication": 1.0}}
    with pytest.raises(fb.TraceError, match="4000000 times active are more than the file can hold"):
        fb.traces.from_fedscale(capacity, shared, model_bytes=1, samples_per_task=1)


@pytest.mark.parametrize("protocol", [0, 2, 3, 5])
def test_many_small_tuples_pass(tmp_path, protocol) -> None:
    value = [(number, float(number), "same", str(number), None) for number in range(20_000)] + [()] + [(1,)] * 3
    assert fb.traces.load_pickle(dump(tmp_path / "p", value, protocol)) == value


@pytest.mark.parametrize("protocol", [0, 2, 3, 5])
def test_containers_and_numbers_pass(tmp_path, protocol) -> None:
    value = {"a": [1, 2.5, None, True], "b": ({1, 2}, frozenset([3])), "c": "text", 4: 10**30}
    assert fb.traces.load_pickle(dump(tmp_path / "p", value, protocol)) == value


def flash_device(lines, model="M1"):
    return {"model": model, "guid": "g", "messages": "\n".join(f"{t}\t{s}" for t, s in lines)}


def test_flash_ready_windows() -> None:
    device = flash_device(
        [
            ("2020-01-28 00:00:00", "battery_charged_on"),
            ("2020-01-28 00:00:10", "WIFI"),
            ("2020-01-28 00:00:20", "screen_lock"),
            ("2020-01-28 00:00:20", "87.0%"),
            ("2020-01-28 00:00:50", "4G"),
            ("2020-01-28 00:01:00", "wifi"),
            ("2020-01-28 00:01:00", "screen_off"),
            ("2020-01-28 00:01:30", "screen_unlock"),
            ("2020-01-28 00:01:40", "screen_lock"),
            ("2020-01-28 00:01:40", "battery_charged_off"),
            ("2020-01-28 00:02:00", "screen_on"),
        ]
    )
    trace = fb.traces.from_flash({"d": device}, compute=3.0)
    windows = trace.availability
    assert windows.policy == "pause"
    assert windows.period == 120.0
    assert list(zip(windows.begin, windows.end, strict=True)) == [(20.0, 50.0), (60.0, 90.0)]
    assert trace.compute.tolist() == [3.0]


def test_flash_without_lock_events_takes_screen_off() -> None:
    device = flash_device(
        [(0, "wifi"), (0, "battery_charged_on"), (5, "screen_off"), (30, "screen_unlock"), (40, "3g")]
    )
    windows = fb.traces.from_flash({"d": device}, compute=1.0).availability
    assert (windows.begin.tolist(), windows.end.tolist()) == ([5.0], [30.0])


def test_flash_keeps_the_calendar_of_devices_that_start_later() -> None:
    always = [(0, "battery_charged_on"), (0, "wifi"), (0, "screen_lock"), (100, "screen_unlock"), (200, "screen_on")]
    later = [
        (130, "battery_charged_on"),
        (130, "wifi"),
        (160, "screen_lock"),
        (200, "screen_unlock"),
        (210, "screen_on"),
    ]
    windows = fb.traces.from_flash({"a": flash_device(always), "b": flash_device(later)}, compute=1.0).availability
    assert windows.period.tolist() == [200.0, 80.0]
    time = np.arange(0, 700.0, 5.0)
    ready = (time - 130) % 80 + 130
    assert windows.available(1, time).tolist() == ((ready >= 160) & (ready < 200)).tolist()


def test_flash_open_window_ends_with_the_recording_and_wraps() -> None:
    lines = [(30, "battery_charged_on"), (30, "wifi"), (90, "screen_lock"), (130, "screen_on")]
    first = [(0, "screen_on"), (10, "screen_on")]
    windows = fb.traces.from_flash({"a": flash_device(first), "b": flash_device(lines)}, compute=1.0).availability
    time = np.arange(0, 400.0, 1.0)
    ready = (time - 30) % 100 + 30
    assert windows.available(1, time).tolist() == (ready >= 90).tolist()
    assert not windows.available(0, time).any()


def test_flash_speeds_and_models(tmp_path) -> None:
    lines = [(0, "wifi"), (10, "screen_on")]
    states = {f"d{i}": flash_device(lines, model=f"M{i % 2}") for i in range(40)}
    (tmp_path / "states.json").write_text(json.dumps(states))
    speeds = {
        "u": {"down_u": 2048.0, "down_sigma": 0.0, "up_u": 1024.0, "up_sigma": 300.0},
        "v": {"down_u": 512.0, "down_sigma": 0.0, "up_u": 1024.0, "up_sigma": 300.0},
    }
    (tmp_path / "speeds.json").write_text(json.dumps(speeds))
    trace = fb.traces.from_flash(
        tmp_path / "states.json",
        compute={"M0": 1.0, "M1": 4.0},
        speeds=tmp_path / "speeds.json",
        model_bytes=1024 * 1024,
        tasks=50,
        seed=3,
    )
    assert np.diff(trace.offsets).tolist() == [50] * 40
    assert trace.compute[trace.offsets[:-1]].tolist() == [1.0 if i[-1] in "02468" else 4.0 for i in trace.client_ids]
    per_device = trace.download.reshape(40, 50)
    assert set(per_device.ravel()) == {0.5, 2.0}
    assert (per_device == per_device[:, :1]).all()
    rate = 1.0 / trace.upload
    assert abs(rate.mean() - 1.0) < 0.03
    assert trace.upload.std() > 0.1
    with pytest.raises(fb.TraceError, match="compute has no time for the model 'M1'"):
        fb.traces.from_flash(states, compute={"M0": 1.0})


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ({"messages": 3}, "row 1: the device has no text"),
        ({"messages": "1 wifi"}, "row 1: messages: expected lines of time<TAB>state"),
        (flash_device([(0, "wifi"), (1, "flying")]), "row 1: state 'flying' is unknown"),
        (flash_device([("noon", "wifi")]), "row 1: a time is neither seconds nor a date"),
    ],
)
def test_flash_refusals(device, message) -> None:
    with pytest.raises(fb.TraceError) as caught:
        fb.traces.from_flash({"d": device}, compute=1.0)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("text", ["1,2\n3,4\n5,6\n", "a,b\n1,2\n3,4\n5,6\n", "1 2\n3\t4\n5   6\n", "1; 2\n3;4\n5;6"])
def test_delay_matrix_text(tmp_path, text) -> None:
    (tmp_path / "m.txt").write_text(text)
    trace = fb.traces.from_delay_matrix(tmp_path / "m.txt", unit="ms", end="stop")
    assert trace.compute.tolist() == [0.001, 0.003, 0.005, 0.002, 0.004, 0.006]
    assert trace.offsets.tolist() == [0, 3, 6]
    assert trace.end == "stop"


def test_delay_matrix_refusals(tmp_path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("1,2\n3\n")
    with pytest.raises(fb.TraceError, match=r"line 2: 1 values where the first row has 2 \(m.csv\)"):
        fb.traces.from_delay_matrix(path)
    path.write_text("1,2\n3,x\n")
    with pytest.raises(fb.TraceError, match="line 2: worker 1 'x' is not a number"):
        fb.traces.from_delay_matrix(path)
    with pytest.raises(fb.TraceError, match=r"row 2: the delay -1\.0 of worker 1 is negative"):
        fb.traces.from_delay_matrix([[1.0, 2.0], [3.0, -1.0]])
    with pytest.raises(ValueError, match="rounds x workers"):
        fb.traces.from_delay_matrix([1.0, 2.0])
    np.save(tmp_path / "m.npy", np.ones((2, 3)))
    assert fb.traces.from_delay_matrix(tmp_path / "m.npy").n_clients == 3


def test_gradient_ages() -> None:
    # one arrival an iteration: worker (t mod 3), made on the version it saw three iterations before
    ages = np.array([[0, 5, 5], [1, 1, 6], [2, 2, 2], [2, 3, 3], [3, 2, 4]])
    log = fb.traces.from_gradient_ages(ages, seconds_per_iteration=0.5)
    assert log.client.tolist() == [0, 1, 2, 0, 1]
    assert log.version.tolist() == [0, 0, 0, 1, 2]
    assert log.arrive_time.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert log.n_clients == 3
    with pytest.raises(fb.TraceError, match="row 2: an age of 3 at iteration 1 is from before the start"):
        fb.traces.from_gradient_ages([[0, 0], [1, 3]])
    with pytest.raises(fb.TraceError, match="row 2: an age is not a whole number"):
        fb.traces.from_gradient_ages([[0, 0], [1, 0.5]])


@pytest.mark.parametrize(
    "text",
    [
        ",A,B\n0,1,2\n1,3,4\n2,5,6\n",
        "Unnamed: 0,A,B\n0,1,2\n1,3,4\n2,5,6\n",
        "Unnamed: 0.1,Unnamed: 0,A,B\n0,0,1,2\n1,1,3,4\n2,2,5,6\n",
        ";A;B\n2020-01-01;1;2\n2020-01-02;3;4\n2020-01-03;5;6\n",
        '"A" "B"\n"1" 1 2\n"2" 3 4\n"3" 5 6\n',
        "\tA\tB\n0\t1\t2\n1\t3\t4\n2\t5\t6\n",
        "# seconds\n|A|B\n\n0|1|2\n1|3|4\n2|5|6\n",
    ],
)
def test_delay_matrix_index_and_names(tmp_path, text) -> None:
    (tmp_path / "m.csv").write_text(text)
    trace = fb.traces.from_delay_matrix(tmp_path / "m.csv")
    assert trace.client_ids.tolist() == ["A", "B"]
    assert trace.compute.tolist() == [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]


def test_delay_matrix_names_of_other_kinds(tmp_path) -> None:
    path = tmp_path / "m.csv"
    path.write_text(",0,1\n0,5,6\n1,7,8\n")
    trace = fb.traces.from_delay_matrix(path)
    assert (trace.client_ids.tolist(), trace.compute.tolist()) == ([0, 1], [5.0, 7.0, 6.0, 8.0])
    path.write_text("w10,w9\n1,2\n")  # client i is column i
    trace = fb.traces.from_delay_matrix(path)
    assert (trace.client_ids.tolist(), trace.compute.tolist()) == (["w10", "w9"], [1.0, 2.0])
    path.write_text("0,1\n2,3\n")
    with pytest.raises(fb.TraceError, match=r"^line 1: the first row is 0 to 1, .*; header=True .* \(m.csv\)$"):
        fb.traces.from_delay_matrix(path)
    assert fb.traces.from_delay_matrix(path, header=True).compute.tolist() == [2.0, 3.0]
    assert fb.traces.from_delay_matrix(path, header=False).compute.tolist() == [0.0, 2.0, 1.0, 3.0]
    path.write_text("A,A\n2,3\n")
    with pytest.raises(fb.TraceError, match="column 'A' appears twice"):
        fb.traces.from_delay_matrix(path)
    path.write_text("A,,B\n2,3,4\n")
    with pytest.raises(fb.TraceError, match="column 2 has no name"):
        fb.traces.from_delay_matrix(path)


def test_delay_matrix_of_a_data_frame(tmp_path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"B": [1.0, 2.0], "A": [3.0, 4.0]}, index=["x", "y"])
    trace = fb.traces.from_delay_matrix(frame)
    assert (trace.client_ids.tolist(), trace.compute.tolist()) == (["B", "A"], [1.0, 2.0, 3.0, 4.0])
    frame.to_csv(tmp_path / "m.csv")
    assert fb.traces.from_delay_matrix(tmp_path / "m.csv") == trace


def test_delay_matrix_missing(tmp_path) -> None:
    path = tmp_path / "m.tsv"
    path.write_text("A\tB\n1\t2\n\t3\nnan\t-4\n5\tx\n")
    with pytest.raises(fb.TraceError) as caught:
        fb.traces.from_delay_matrix(path)
    assert str(caught.value) == (
        "line 3: the delay of worker A is missing; line 4: the delay -4.0 of worker B is negative; "
        "line 5: worker B 'x' is not a number: 3 bad rows; missing='drop' (--missing drop) leaves it out (m.tsv)"
    )
    path.write_text("A\tB\n1\t2\n\t3\nnan\t4\n5\t6\n")
    trace = fb.traces.from_delay_matrix(path, missing="drop")
    assert (trace.offsets.tolist(), trace.compute.tolist()) == ([0, 2, 6], [1.0, 5.0, 2.0, 3.0, 4.0, 6.0])
    assert fb.traces.from_delay_matrix([[1.0, np.nan], [2.0, 3.0]], missing="drop").compute.tolist() == [1.0, 2.0, 3.0]
    path.write_text(",2\n1,3\n")  # a value is missing: this is no header
    assert fb.traces.from_delay_matrix(path, missing="drop").compute.tolist() == [1.0, 2.0, 3.0]
    (tmp_path / "m.npy").write_bytes(b"not an array")
    with pytest.raises(fb.TraceError, match="not a whole NPY file"):
        fb.traces.from_delay_matrix(tmp_path / "m.npy")


def recorded_ages(rounds: int = 400, workers: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Ages of workers that answer at random, several in one iteration, none in some; and which of them arrived."""
    rng = np.random.default_rng(0)
    arrives = rng.random((rounds, workers)) < 0.4
    arrives[0] = True
    begun = np.zeros(workers, dtype=int)  # the iteration whose model each worker has
    latest = np.zeros(workers, dtype=int)
    ages = np.zeros((rounds, workers), dtype=int)
    for t in range(rounds):
        latest[arrives[t]] = begun[arrives[t]]
        begun[arrives[t]] = t + 1
        ages[t] = t - latest
    return ages, arrives


def test_gradient_ages_give_the_recorded_staleness(tmp_path) -> None:
    ages, arrives = recorded_ages()
    arrives &= np.vstack([ages[:1] == 0, ages[1:] != ages[:-1] + 1])  # an arrival as old as that before shows as none
    whole = arrives.any(axis=1)
    log = fb.traces.from_gradient_ages(ages, seconds_per_iteration=0.5)
    assert log.step.tolist() == (np.cumsum(whole) - 1)[np.nonzero(arrives)[0]].tolist()
    schedule = fb.schedule(log, fb.FedBuff(5, max_wait=0.5))
    schedule.check()
    assert schedule.n_steps == whole.sum()
    steps = np.append(0, np.cumsum(whole))
    t, worker = np.nonzero(arrives)
    assert schedule.staleness.tolist() == (steps[t] - steps[t - ages[t, worker]]).tolist()
    assert schedule.step_time.tolist() == (np.flatnonzero(whole) * 0.5).tolist()
    for name in ("log.csv", "log.npz"):
        log.save(tmp_path / name)
        assert fb.read_arrival_log(tmp_path / name) == log
    with pytest.raises(ValueError, match=r"strategy: the log's .* took 1 to 5 arrivals each, which buffer_size=1"):
        fb.schedule(log, fb.FedBuff(1))
    with pytest.raises(ValueError, match=r"buffer_size=7 cannot make; FedBuff\(buffer_size=5, max_wait=\.\.\.\) takes"):
        fb.schedule(log, fb.FedBuff(7))
    with pytest.raises(ValueError, match=r"strategy: max_staleness=1 would drop row \d+, with staleness \d"):
        fb.schedule(log, fb.FedBuff(5, max_wait=0.5, max_staleness=1))
    cut = fb.schedule(log, fb.FedBuff(5, max_wait=0.5), arrivals=int(np.flatnonzero(log.step == 20)[0]) + 1)
    cut.check()
    assert cut.n_steps == 20 or log.step[cut.n_arrivals] > 20


def test_gradient_ages_with_names_and_an_index(tmp_path) -> None:
    (tmp_path / "ages.csv").write_text(",A,B\n0,0,5\n1,1,1\n2,1,2\n")
    log = fb.traces.from_gradient_ages(tmp_path / "ages.csv")
    assert log.client_ids.tolist() == ["A", "B"]
    assert (log.client.tolist(), log.version.tolist()) == ([0, 1, 0], [0, 0, 1])
    assert fb.schedule(log, fb.FedBuff(1)).staleness.tolist() == [0, 1, 1]
    (tmp_path / "ages.csv").write_text("A,B\n0,0\n1,x\n\n2,0.5\n")
    with pytest.raises(fb.TraceError, match=r"^line 3: worker B 'x' is not .*; line 5: an age is not .*: 2 bad rows"):
        fb.traces.from_gradient_ages(tmp_path / "ages.csv")


def test_steps_of_a_log_are_checked() -> None:
    for step, message in (
        ([1, 1, 2], "row 1: step 1 is the first: steps begin at 0"),
        ([0, 2, 3], "row 2: step 2 follows step 0: steps rise by 0 or 1"),
        ([0, 1, 0], "row 3: step 0 follows step 1: steps rise by 0 or 1"),
        ([0, 0, 0], "row 3: version 1 is newer than step 0, which it enters"),
    ):
        with pytest.raises(fb.TraceError) as caught:
            fb.ArrivalLog([0, 1, 0], [1.0, 2.0, 3.0], version=[0, 0, 1], step=step)
        assert str(caught.value) == message
    log = fb.ArrivalLog([0, 1, 0, 1], [1.0, 2.0, 3.0, 4.0], version=[0, 0, 1, 1], step=[0, 0, 1, 2])
    with pytest.raises(ValueError, match="took 1 to 2 arrivals each"):
        fb.schedule(log, fb.FedBuff(2))
    log = fb.ArrivalLog([0, 1, 0], [1.0, 2.0, 3.0], version=[0, 0, 1], step=[0, 0, 1])
    schedule = fb.schedule(log, fb.FedBuff(2))  # the log ends before the second step
    schedule.check()
    assert schedule.step.tolist() == [0, 0, -1]


def test_a_rule_that_did_not_make_the_log_is_warned_of() -> None:
    log = fb.sample_log()  # with buffers of 3
    assert fb.schedule(log, fb.FedBuff(3)).n_steps == 100
    with pytest.warns(RuntimeWarning, match=r"buffer_size=1 is not the rule .*: \d+ of 300 tasks began on"):
        fb.schedule(log, fb.FedBuff(1))
    timeless = fb.ArrivalLog(log.client, log.arrive_time, version=log.version)
    assert fb.schedule(timeless, fb.FedBuff(3)).n_steps == 100
    for size in (1, 2):
        with pytest.warns(RuntimeWarning, match=f"buffer_size={size} is not the rule .*: versions fall ever"):
            fb.schedule(timeless, fb.FedBuff(size))
    late = np.maximum(0, np.arange(100) - 30)  # several tasks of one client at once: no warning
    assert fb.schedule(fb.ArrivalLog(np.zeros(100, int), np.arange(100.0), version=late), fb.FedBuff(1)).tau >= 30
