"""`VirtualGrid`: unmodified apps and strategies of Flower in virtual time."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower")

import small_app
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

import fedbuff as fb
from fedbuff.flower import FedBuff, VirtualGrid

MODEL = fb.DelayModel(n_clients=small_app.N_CLIENTS, compute=fb.LogNormal(0.0, 1.0), upload=fb.Exponential(0.1))


def trace(ok: float = 1.0, **options: Any) -> fb.Trace:
    rng = np.random.default_rng(3)
    client = np.repeat(np.arange(small_app.N_CLIENTS), 7)
    return fb.Trace(client, rng.exponential(size=client.size), ok=rng.random(client.size) < ok, **options)


def message(node: int, kind: str = MessageType.TRAIN) -> Message:
    return Message(RecordDict({"arrays": small_app.initial(), "config": ConfigRecord()}), node, kind)


def test_replies_come_in_the_order_of_the_delays_and_time_moves_on() -> None:
    grid = VirtualGrid(small_app.app, MODEL, seed=5)
    ids = grid.push_messages([message(node) for node in (4, 0, 7)])
    ends = {node: MODEL.delay(node, 0, 5).duration for node in (4, 0, 7)}
    for node in sorted(ends, key=lambda each: ends[each]):
        (reply,) = grid.pull_messages(ids)
        assert (reply.metadata.src_node_id, grid.time) == (node, ends[node])
        assert reply.metadata.reply_to_message_id in ids
        expected = small_app.trained(node, 0, np.zeros(small_app.DIM, np.float32))
        assert small_app.vector(reply.content["arrays"]).tobytes() == expected.tobytes()
    assert grid.pull_messages(ids) == [] and grid.next_arrival(ids) == math.inf


def test_a_node_handles_one_message_after_the_other() -> None:
    grid = VirtualGrid(small_app.app, MODEL)
    first, second = grid.push_messages([message(2), message(2)])
    grid.pull_messages([second])
    assert grid.time == MODEL.delay(2, 0).duration + MODEL.delay(2, 1).duration
    (reply,) = grid.pull_messages([first])  # was there all the while
    expected = small_app.trained(2, 0, np.zeros(small_app.DIM, np.float32))
    assert small_app.vector(reply.content["arrays"]).tobytes() == expected.tobytes()


def test_a_lost_task_is_an_error_at_its_time_and_a_client_that_raises_too() -> None:
    delays = fb.Trace([0, 1], [2.0, 1.0], ok=[False, True])
    grid = VirtualGrid(small_app.app, delays)
    (lost,) = grid.send_and_receive([message(0)])
    assert lost.has_error() and "lost" in lost.error.reason and grid.time == 2.0
    (raised,) = grid.send_and_receive([message(1, MessageType.QUERY)])
    assert raised.has_error() and "no query today" in raised.error.reason and grid.time == 2.0


def test_a_timeout_leaves_late_replies_for_later() -> None:
    grid = VirtualGrid(small_app.app, fb.Trace([0, 1], [1.0, 5.0]))
    replies = grid.send_and_receive([message(0), message(1)], timeout=3.0)
    assert [reply.metadata.src_node_id for reply in replies] == [0] and grid.time == 3.0


def test_what_a_client_does_to_its_message_stays_there() -> None:
    def careless(received: Message, context: Any) -> Message:
        received.content["config"]["lr"] = 0.5
        del received.content["arrays"]["0"]
        return Message(RecordDict(), reply_to=received)

    grid, sent = VirtualGrid(careless, MODEL), message(0)
    grid.send_and_receive([sent])
    assert dict(sent.content["config"]) == {} and list(sent.content["arrays"]) == ["0", "1"]


def flower_fedavg(processes: int = 0) -> tuple[bytes, float, dict[int, Any]]:
    random.seed(11)  # Flower's strategies draw nodes from it
    app = "small_app:app" if processes else small_app.app
    with VirtualGrid(app, MODEL, seed=2, processes=processes) as grid:
        strategy = FedAvg(fraction_train=0.5, fraction_evaluate=0.25, min_evaluate_nodes=1)
        result = strategy.start(grid, small_app.initial(), num_rounds=4)
        return small_app.vector(result.arrays).tobytes(), grid.time, result.evaluate_metrics_clientapp


def test_flowers_fedavg_is_deterministic() -> None:
    first = flower_fedavg()
    assert first == flower_fedavg() and first[1] > 0 and list(first[2]) == [1, 2, 3, 4]


def test_worker_processes_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert flower_fedavg(processes=2) == flower_fedavg()


def test_nodes_leave_a_trace_that_stops() -> None:
    delays = fb.Trace([0, 0, 1], [1.0, 1.0, 1.0], end="stop")
    grid = VirtualGrid(small_app.app, delays)
    grid.send_and_receive([message(1)])
    assert grid.get_node_ids() == [0]
    with pytest.raises(ValueError, match="node 1 has no task left"):
        grid.push_messages([message(1)])


def test_time_does_not_go_back() -> None:
    grid = VirtualGrid(small_app.app, MODEL)
    grid.advance(2.5)
    assert grid.time == 2.5
    with pytest.raises(ValueError, match="until: expected a time from"):
        grid.advance(1.0)


def test_bad_arguments_are_named() -> None:
    windows = fb.Availability([0], [0.0], [1.0], n_clients=1)
    for arguments, options, kind, words in [
        ((small_app.app, "delays.csv"), {}, TypeError, "delays: expected a Trace or a DelayModel, got str"),
        ((small_app.app, MODEL, 13), {}, ValueError, "n_clients: expected at most 12, as delays has, got 13"),
        ((small_app.app, MODEL), {"processes": 2}, TypeError, "client_app: expected its name"),
        (("small_app", MODEL), {}, ValueError, 'client_app: expected "module:attribute"'),
        (("small_app:DIM", MODEL), {}, TypeError, "client_app: expected a ClientApp, got small_app:DIM of type int"),
        ((17, MODEL), {}, TypeError, "client_app: expected a ClientApp or its name, got int"),
        ((small_app.app, fb.DelayModel(1, availability=windows)), {}, ValueError, "delays: expected some without"),
    ]:
        with pytest.raises(kind, match=words):
            VirtualGrid(*arguments, **options)
    grid = VirtualGrid(small_app.app, MODEL, 3)
    with pytest.raises(ValueError, match=r"messages: expected nodes 0 .. 2, got 3"):
        grid.push_messages([message(3)])


def test_the_run_config_is_each_clients_own() -> None:
    seen = []

    def app(received: Message, context: Any) -> Message:
        seen.append((context.node_config["num-partitions"], context.run_config["lr"]))
        context.run_config["lr"] = 7.0
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=received)

    grid = VirtualGrid(app, MODEL, run_config={"lr": 0.5})
    grid.send_and_receive([message(0), message(1)])
    assert seen == [(12, 0.5), (12, 0.5)]


def test_strategies_meet_on_one_clock() -> None:
    """FedBuff needs less time than FedAvg for as many uploads: it does not wait for the slowest."""
    random.seed(0)
    rounds = VirtualGrid(small_app.app, MODEL)
    FedAvg(fraction_evaluate=0.0, min_evaluate_nodes=0).start(rounds, small_app.initial(), num_rounds=5)
    buffered = VirtualGrid(small_app.app, MODEL)
    strategy = FedBuff(fb.FedBuff(buffer_size=small_app.N_CLIENTS), log_path=None)
    strategy.start(buffered, small_app.initial(), num_rounds=5)
    assert buffered.time < rounds.time
