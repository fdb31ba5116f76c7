"""`FedBuff` on Flower: what it computes, what it survives, and that its log replays to the same bits."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower")

import small_app
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedbuff as fb
from fedbuff.flower import FedBuff, VirtualGrid

PAPER = fb.FedBuff(buffer_size=4)
MODEL = fb.DelayModel(n_clients=small_app.N_CLIENTS, compute=fb.LogNormal(0.0, 1.0))


def run(strategy: Any = PAPER, delays: Any = MODEL, app: Any = small_app.app, **options: Any) -> tuple[Any, Any, Any]:
    """The strategy, its result and its grid after a run."""
    start = {name: options.pop(name) for name in ("timeout", "evaluate_fn", "num_rounds") if name in options}
    grid = VirtualGrid(app, delays, seed=1)
    made = FedBuff(strategy, **{"log_path": None, **options})
    return made, made.start(grid, small_app.initial(), **{"num_rounds": 30, **start}), grid


def replayed(strategy: Any, log: fb.ArrivalLog) -> bytes:
    return fb.replay(small_app.problem(), fb.schedule(log, strategy), threads=1, metrics=()).w.tobytes()


def lossy_trace() -> fb.Trace:
    rng = np.random.default_rng(3)
    client = np.repeat(np.arange(small_app.N_CLIENTS), 9)
    return fb.Trace(client, rng.exponential(size=client.size), ok=rng.random(client.size) < 0.8)


@pytest.mark.parametrize(
    "strategy",
    [
        PAPER,
        fb.FedBuff.preset("nguyen", buffer_size=3),
        fb.FedBuff(buffer_size=3, weights="samples", norm="weights", server_lr=1.0),
        fb.FedBuff.preset("fedscale", buffer_size=3),
        fb.FedBuff(buffer_size=3, optimizer=fb.Adam(), server_lr=0.1),
        fb.FedBuff(buffer_size=2, max_staleness=2),
        fb.FedAsync(mixing=0.5),
    ],
    ids=["paper", "nguyen", "samples", "fedscale", "adam", "max_staleness", "fedasync"],
)
@pytest.mark.parametrize("concurrency", [1, 7, None])
def test_the_log_replays_to_the_same_bits(strategy: Any, concurrency: int | None) -> None:
    made, result, _ = run(strategy, concurrency=concurrency)
    assert small_app.vector(result.arrays).tobytes() == replayed(strategy, made.log)
    assert made.failures == 0


def test_lost_tasks_are_replaced_and_the_log_still_replays() -> None:
    made, result, _ = run(delays=lossy_trace(), concurrency=5)
    assert made.failures > 10 and made.log.client.size == 30 * 4
    assert small_app.vector(result.arrays).tobytes() == replayed(PAPER, made.log)


def test_with_all_clients_at_work_it_is_our_own_schedule() -> None:
    made, _, grid = run()
    schedule = fb.schedule(MODEL, PAPER, server_steps=30, seed=1)
    assert np.array_equal(made.log.client, schedule.client)
    assert np.array_equal(made.log.version, schedule.version)
    assert made.log.arrive_time.tobytes() == schedule.arrive_time.tobytes()
    assert grid.time == schedule.arrive_time[-1]


def test_the_result_is_what_flowers_users_expect() -> None:
    evaluated: list[int] = []

    def evaluate(step: int, arrays: ArrayRecord) -> MetricRecord | None:
        evaluated.append(step)
        return MetricRecord({"norm": float(np.linalg.norm(small_app.vector(arrays)))}) if step != 20 else None

    made, result, _ = run(evaluate_fn=evaluate, evaluate_every=10, fraction_evaluate=0.5)
    assert evaluated == [0, 10, 20, 30] and list(result.evaluate_metrics_serverapp) == [0, 10, 30]
    assert list(result.evaluate_metrics_clientapp) == [10, 20, 30]
    assert list(result.train_metrics_clientapp) == list(range(1, 31))
    first = made.log.client[:4]
    weights = [small_app.n_examples(client) for client in first.tolist()]
    assert result.train_metrics_clientapp[1]["client"] == pytest.approx(np.average(first, weights=weights))
    assert list(result.arrays) == ["0", "1"] and result.arrays["0"].numpy().shape == small_app.SHAPES[0]
    norm = float(np.linalg.norm(small_app.vector(result.arrays)))
    assert result.evaluate_metrics_serverapp[30]["norm"] == norm


def test_a_run_is_a_function_of_its_arguments() -> None:
    (one, first, _), (two, again, _), (_, other, _) = run(concurrency=5), run(concurrency=5), run(concurrency=5, seed=9)
    assert one.log == two.log and small_app.vector(first.arrays).tobytes() == small_app.vector(again.arrays).tobytes()
    assert small_app.vector(first.arrays).tobytes() != small_app.vector(other.arrays).tobytes()


def test_a_resumed_run_goes_on_with_its_log_and_metrics(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    options: dict[str, Any] = {"concurrency": 5, "checkpoint": path, "checkpoint_every": 3}

    class Died(Exception):
        pass

    def die(step: int, arrays: ArrayRecord) -> MetricRecord:
        if step == 11:
            raise Died
        return MetricRecord({"step": step})

    with pytest.raises(Died):
        run(evaluate_fn=die, log_path=tmp_path / "died.csv", **options)
    died = fb.read_arrival_log(tmp_path / "died.csv", clients=small_app.N_CLIENTS)
    made, result, _ = run(evaluate_fn=lambda step, arrays: MetricRecord({"step": step}), **options)
    kept = 9 * 4  # the last checkpoint
    assert made.log.client.size == 120 and np.array_equal(made.log.client[:kept], died.client[:kept])
    assert list(result.train_metrics_clientapp) == list(range(1, 31))
    assert [int(each["step"]) for each in result.evaluate_metrics_serverapp.values()] == list(range(31))
    assert np.all(np.diff(made.log.arrive_time) >= 0)

    again = fb.schedule(made.log, PAPER)
    assert again.n_steps == 30
    # Client apps began anew with the new grid: their task numbers did too.
    counts = np.bincount(made.log.client[:kept], minlength=small_app.N_CLIENTS)

    def task_of(client: int, row: int) -> int:
        return row - counts[client] if row >= counts[client] else row

    problem = fb.Callback(
        lambda client, task, w, generator: w - small_app.trained(client, task_of(client, task), w),
        w0=np.zeros(small_app.DIM, np.float32),
        n_clients=small_app.N_CLIENTS,
    )
    w = fb.replay(problem, again, threads=1, metrics=()).w
    assert w.tobytes() == small_app.vector(result.arrays).tobytes()

    finished, same, _ = run(**options)  # nothing is left to do
    assert finished.log == made.log and small_app.vector(same.arrays).tobytes() == w.tobytes()


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    run(checkpoint=path, num_rounds=2)
    with pytest.raises(fb.FileError, match="buffer_size"):
        run(fb.FedBuff(buffer_size=5), checkpoint=path)
    grid = VirtualGrid(small_app.app, MODEL)
    with pytest.raises(fb.FileError, match="its model has other arrays"):
        FedBuff(PAPER, checkpoint=path, log_path=None).start(grid, ArrayRecord([np.zeros(3, np.float32)]))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(fb.FileError, match="not a checkpoint"):
        run(checkpoint=path)


def test_nodes_that_take_too_long_are_replaced() -> None:
    delays = fb.Trace(np.arange(4), [1.0, 1.5, 100.0, 2.0])
    made, result, grid = run(delays=delays, timeout=3.0, num_rounds=5)
    assert made.failures >= 3 and 2 not in made.log.client and grid.time < 30
    assert list(result.train_metrics_clientapp) == [1, 2, 3, 4, 5] and made.log.client.size == 20


def reply_with(make: Any) -> ClientApp:
    """Client 0 replies as `make(message)` says, the others as they should."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 0:
            return Message(make(message), reply_to=message)
        return small_app.app(message, context)

    return app


def good(message: Message, **changes: Any) -> RecordDict:
    metrics = MetricRecord({"num-examples": 1})
    return RecordDict({"arrays": message.content["arrays"], "metrics": metrics, **changes})


def arrays_with(message: Message, array: Array) -> RecordDict:
    return good(message, arrays=ArrayRecord({**message.content["arrays"], "1": array}))


NAN = np.array([1, 2, np.nan, 4, 5], np.float32)
CUT = Array("float32", (5,), "numpy.ndarray", Array(np.zeros(5, np.float32)).data[:-3])
BAD = {
    "raises": (lambda message: 1 / 0, "division by zero"),
    "shape": (lambda message: arrays_with(message, Array(np.zeros((5, 1), np.float32))), r"floats of shape \(5,\)"),
    "ints": (lambda message: arrays_with(message, Array(np.zeros(5, np.int32))), "got int32"),
    "nan": (lambda message: arrays_with(message, Array(NAN)), "nan"),
    "cut": (lambda message: arrays_with(message, CUT), "takes 20 bytes, and 17 are there"),
    "junk": (lambda m: arrays_with(m, Array("float32", (5,), "numpy.ndarray", b"junk")), "not an array of NumPy"),
    "pickle": (lambda m: arrays_with(m, Array("float32", (5,), "pickle", b"junk")), "serialisation numpy.ndarray"),
    "names": (lambda message: good(message, arrays=ArrayRecord([NAN])), "its arrays are"),
    "no metrics": (lambda m: RecordDict({"arrays": m.content["arrays"]}), "one ArrayRecord and one MetricRecord"),
    "no weight": (lambda m: good(m, metrics=MetricRecord({"loss": 1.0})), "no 'num-examples'"),
    "list": (lambda m: good(m, metrics=MetricRecord({"num-examples": [1]})), "not one number"),
    "zero": (lambda m: good(m, metrics=MetricRecord({"num-examples": 0})), "finite number > 0, got 0"),
}


@pytest.mark.parametrize("make,words", BAD.values(), ids=BAD)
def test_a_bad_reply_is_replaced_and_its_reason_is_said(make: Any, words: str, monkeypatch: Any) -> None:
    said: list[str] = []
    monkeypatch.setattr("fedbuff.flower._run.say", lambda level, text, *values: said.append(text % values))
    made, result, _ = run(app=reply_with(make), num_rounds=8)
    assert made.failures > 0 and 0 not in made.log.client
    assert any(re.search(words, line) for line in said if "of node 0" in line), said
    assert small_app.vector(result.arrays).tobytes() == replayed(PAPER, made.log)


def test_a_run_in_which_everything_fails_ends() -> None:
    with pytest.raises(RuntimeError, match="20 tasks failed in a row, the last of node"):
        run(delays=fb.Trace([0, 1], [1.0, 1.0], ok=[False, False]), max_failures_in_a_row=20)


def test_a_trace_that_ends_ends_the_run() -> None:
    made, result, _ = run(delays=fb.Trace(np.repeat([0, 1], 5), np.ones(10), end="stop"))
    assert made.log.client.size == 10 and list(result.train_metrics_clientapp) == [1, 2]


def test_arrays_of_other_dtypes() -> None:
    """float64 makes the model float64, float16 is rounded as it is sent, and what is not a float is passed on."""
    start = ArrayRecord(
        {
            "half": Array(np.ones(3, np.float16)),
            "count": Array(np.array(0, np.int64)),
            "double": Array(np.asfortranarray(np.arange(6.0).reshape(2, 3))),
            "empty": Array(np.zeros((0, 4), np.float32)),
            "mask": Array(np.array([True, False])),
        }
    )
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        got = {name: array.numpy() for name, array in message.content["arrays"].items()}
        assert got["half"].dtype == np.float16 and got["mask"].dtype == bool
        sent = {
            **got,
            "half": got["half"] * np.float16(0.7),
            "double": np.asfortranarray(got["double"] * 0.9),
            "count": np.asarray(got["count"] + 1),
        }
        arrays = ArrayRecord({name: Array(values) for name, values in sent.items()})
        return Message(good(message, arrays=arrays), reply_to=message)

    grid = VirtualGrid(app, fb.DelayModel(n_clients=1))
    result = FedBuff(fb.FedBuff(buffer_size=1), log_path=None).start(grid, start, num_rounds=3)
    half, double = np.ones(3), np.arange(6.0).reshape(2, 3)
    for _ in range(3):
        seen = half.astype(np.float16)
        half, double = half - (seen.astype(float) - (seen * np.float16(0.7)).astype(float)), double * 0.9
    assert list(result.arrays) == list(start)
    np.testing.assert_array_equal(result.arrays["half"].numpy(), half.astype(np.float16))
    np.testing.assert_allclose(result.arrays["double"].numpy(), double, rtol=1e-14)
    assert result.arrays["count"].numpy() == 3 and result.arrays["mask"].numpy().tolist() == [True, False]
    assert result.arrays["empty"].numpy().shape == (0, 4)


def test_replies_are_read_without_a_copy() -> None:
    from fedbuff.flower._records import array_of

    array = Array(np.arange(5.0))
    values = array_of("x", array)
    assert not values.flags.writeable and not values.flags.owndata
    assert values.base is not None and memoryview(values).obj is not None
    begin = np.frombuffer(array.data, np.uint8).__array_interface__["data"][0]
    assert begin < values.__array_interface__["data"][0] < begin + len(array.data)


def test_evaluation_on_a_real_grid_is_off_the_critical_path() -> None:
    """A grid that is no VirtualGrid: evaluate_fn runs in a thread while uploads go on."""
    gate, started = threading.Event(), threading.Event()

    class Threaded:
        """Replies at once; the third step is only pulled when the first evaluation has begun."""

        def __init__(self) -> None:
            self.inner = VirtualGrid(small_app.app, MODEL)

        def get_node_ids(self) -> list[int]:
            return self.inner.get_node_ids()

        def push_messages(self, messages: Any) -> list[str]:
            return self.inner.push_messages(messages)

        def pull_messages(self, ids: Any) -> list[Message]:
            if strategy_steps() >= 3:
                gate.set()  # the server went on to step 3 while step 0 was being evaluated
            return self.inner.pull_messages(ids)

    def strategy_steps() -> int:
        return max(seen, default=0)

    seen: list[int] = []

    def evaluate(step: int, arrays: ArrayRecord) -> MetricRecord:
        started.set()
        assert gate.wait(30)
        return MetricRecord({"step": step})

    def aggregate(contents: Any, key: str) -> MetricRecord:
        seen.append(len(seen) + 1)
        return MetricRecord({"n": len(contents)})

    made = FedBuff(PAPER, 4, log_path=None, train_metrics_aggr_fn=aggregate, evaluate_every=5)
    result = made.start(Threaded(), small_app.initial(), num_rounds=10, evaluate_fn=evaluate)  # type: ignore[arg-type]
    assert started.is_set() and list(result.evaluate_metrics_serverapp) == [0, 5, 10]
    assert all(isinstance(each, str) for each in made.log.client_ids.tolist())  # real nodes' ids are texts


def test_a_node_that_vanishes_and_comes_back() -> None:
    """On a real grid, a node that is no longer listed loses its task; it is asked again when it is listed again."""
    clock = {"now": 0.0}

    class Flaky:
        def __init__(self) -> None:
            self.inner = VirtualGrid(small_app.app, fb.DelayModel(n_clients=2))
            self.pushed: list[tuple[int, float]] = []
            self.silent: set[str] = set()

        def get_node_ids(self) -> list[int]:
            return [0] if 2.0 <= clock["now"] < 4.0 else [0, 1]

        def push_messages(self, messages: Any) -> list[str]:
            ids = self.inner.push_messages(messages)
            for message, each in zip(messages, ids, strict=True):
                self.pushed.append((message.metadata.dst_node_id, clock["now"]))
                if message.metadata.dst_node_id == 1 and clock["now"] < 4.0:
                    self.silent.add(each)
            return ids

        def pull_messages(self, ids: Any) -> list[Message]:
            clock["now"] += 0.5
            return self.inner.pull_messages([each for each in ids if each not in self.silent])

    grid = Flaky()
    made = FedBuff(fb.FedBuff(buffer_size=2), log_path=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedbuff.flower._clock.time.monotonic", lambda: clock["now"])
        patch.setattr("fedbuff.flower._clock.time.sleep", lambda seconds: None)
        made.start(grid, small_app.initial(), num_rounds=10)  # type: ignore[arg-type]
    times = [at for node, at in grid.pushed if node == 1]
    assert made.failures == 1 and times[0] == 0.0 and times[1] >= 4.0
    assert "1" in made.log.client_ids and made.log.client.size == 20


def test_the_clients_are_told_the_round_and_the_config() -> None:
    seen: list[tuple[int, float]] = []

    def spy(message: Message, context: Context) -> Message:
        config = message.content["config"]
        seen.append((int(config["server-round"]), float(config["lr"])))
        return small_app.app(message, context)

    grid = VirtualGrid(spy, fb.DelayModel(n_clients=1))
    config = ConfigRecord({"lr": 0.5})
    FedBuff(fb.FedBuff(buffer_size=1), log_path=None).start(grid, small_app.initial(), 3, train_config=config)
    assert seen == [(1, 0.5), (2, 0.5), (3, 0.5)] and dict(config) == {"lr": 0.5}


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    for options, kind, words in [
        ({"concurrency": 0}, ValueError, "concurrency: expected an int >= 1, got 0"),
        ({"strategy": "FedBuff"}, TypeError, "strategy: expected a strategy such as"),
        ({"fraction_evaluate": 1.5}, ValueError, "fraction_evaluate: expected"),
        ({"log_path": "log.txt"}, ValueError, "log_path"),
        ({"checkpoint_every": 0}, ValueError, "checkpoint_every: expected an int >= 1"),
        ({"timeout": 0.0}, ValueError, "timeout: expected a number > 0"),
        ({"num_rounds": 0}, ValueError, "num_rounds: expected an int >= 1"),
    ]:
        with pytest.raises(kind, match=words):
            run(**options)
    grid = VirtualGrid(small_app.app, MODEL)
    for arrays, words in [({"0": 1}, "initial_arrays: expected an ArrayRecord"), (ArrayRecord(), "an array of floats")]:
        with pytest.raises((TypeError, ValueError), match=words):
            FedBuff(PAPER, log_path=None).start(grid, arrays)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="FedBuff has no rounds"):
        FedBuff(PAPER).configure_train(1, small_app.initial(), ConfigRecord(), grid)
