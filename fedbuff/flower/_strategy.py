"""`FedBuff`: Flower's users' way to a `fedbuff.Server`."""

from __future__ import annotations

import io
import os
import random
import time
from collections.abc import Callable, Iterable
from logging import INFO
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from .._base.checks import count, number, path_of, seed_of
from .._base.files import file_format
from .._delays.arrival_log import ArrivalLog
from .._delays.columns import FORMATS
from .._rule.strategies import plain_rule_of
from ._evaluator import EvaluateFn
from ._run import Run, say

_NO_ROUNDS = "FedBuff has no rounds: call start(); a strategy that wraps others by their rounds does not fit"

AggregateMetrics = Callable[[list[RecordDict], str], MetricRecord]


class FedBuff(Strategy):  # type: ignore[misc]
    """Buffered asynchronous aggregation as a strategy of Flower, over `fedbuff.Server`.

        strategy = fedbuff.flower.FedBuff(fb.FedBuff(buffer_size=10), concurrency=100)
        result = strategy.start(grid, initial_arrays, num_rounds=500)

    It keeps `concurrency` nodes busy: a reply goes into the buffer as it comes, and an idle node gets the current model
    at once. ClientApps need no change: they reply with whole models, and what goes into the buffer is the arrays that
    were sent to them minus the arrays that came back.

    strategy               what the server computes: as for `fedbuff.Server`
    concurrency            nodes at work at a time; None is all that are there
    min_available_nodes    how many nodes must be there before the first gets a task
    weighted_by_key        the metric that a reply is weighted by, where the strategy's weighting says so
    arrayrecord_key, configrecord_key  the records of a message, as in Flower's strategies
    train_metrics_aggr_fn  makes the metrics of a server step from those of its replies; Flower's weighted mean
    evaluate_every         every so many server steps are evaluated
    fraction_evaluate, min_evaluate_nodes, evaluate_metrics_aggr_fn  evaluation by nodes, as in Flower's FedAvg; 0: none
    log_path               where the arrival log is written, with each checkpoint, at the end and after an error; None:
                           nowhere
    checkpoint             a file, written every checkpoint_every server steps and at the end; where it is there, the
                           run goes on from it
    max_failures_in_a_row  when so many tasks have failed and none has arrived between them, `start` raises RuntimeError
    seed                   of the choice of nodes

    After `start`, `log` is the `fedbuff.ArrivalLog` of the run and `failures` the number of tasks that were replaced.
    """

    log: ArrivalLog | None = None
    failures: int = 0

    def __init__(
        self,
        strategy: Any,
        concurrency: int | None = None,
        *,
        min_available_nodes: int = 1,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_every: int = 1,
        fraction_evaluate: float = 0.0,
        min_evaluate_nodes: int = 2,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None,
        log_path: str | os.PathLike[str] | None = "arrivals.csv",
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 100,
        max_failures_in_a_row: int = 100,
        seed: int = 0,
    ) -> None:
        self.strategy = strategy
        self.rule = plain_rule_of(strategy)
        self.concurrency = None if concurrency is None else count("concurrency", concurrency)
        self.min_available_nodes = count("min_available_nodes", min_available_nodes)
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key = arrayrecord_key
        self.configrecord_key = configrecord_key
        self.train_metrics_aggr_fn = train_metrics_aggr_fn or aggregate_metricrecords
        self.evaluate_every = count("evaluate_every", evaluate_every)
        self.fraction_evaluate = number("fraction_evaluate", fraction_evaluate, high=1.0)
        self.min_evaluate_nodes = count("min_evaluate_nodes", min_evaluate_nodes, low=0)
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn
        self.log_path = None if log_path is None else path_of("log_path", log_path)
        if self.log_path is not None:
            file_format(self.log_path, FORMATS, "log_path")
        self.checkpoint = None if checkpoint is None else path_of("checkpoint", checkpoint)
        self.checkpoint_every = count("checkpoint_every", checkpoint_every)
        self.max_failures_in_a_row = count("max_failures_in_a_row", max_failures_in_a_row)
        self.seed = seed_of(seed)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Trains for `num_rounds` server steps and returns Flower's Result, whose metrics go by server step.

        A node that has not replied `timeout` seconds after its task was sent is replaced, as is one that fails or is no
        longer listed. `evaluate_fn(step, arrays)` is called in a thread beside the training, one step after the other.
        """
        count("num_rounds", num_rounds)
        number("timeout", timeout, open_low=True)
        say(INFO, "Starting FedBuff:")
        self.summary()
        begin = time.monotonic()
        run = Run(
            self, grid, initial_arrays, timeout, train_config or ConfigRecord(), evaluate_config or ConfigRecord(),
            evaluate_fn,
        )  # fmt: skip
        try:
            result = run.to(num_rounds)
        finally:
            self.failures = run.failures
        say(INFO, "Strategy execution finished in %.2fs", time.monotonic() - begin)
        for line in io.StringIO(str(result)):
            say(INFO, "\t%s", line.rstrip("\n"))
        return result

    def summary(self) -> None:
        """Logs the options."""
        say(INFO, "\t├──> %s", self.rule)
        say(INFO, "\t├──> Concurrency: %s", "all nodes" if self.concurrency is None else self.concurrency)
        say(INFO, "\t├──> Weighted by: '%s'", self.weighted_by_key)
        say(INFO, "\t├──> Arrival log: %s", self.log_path)
        say(INFO, "\t└──> Checkpoint: %s", self.checkpoint)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Not for FedBuff, which has no rounds: TypeError. `start` sends tasks by itself."""
        raise TypeError(_NO_ROUNDS)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Not for FedBuff, which has no rounds: TypeError. `start` takes replies by itself."""
        raise TypeError(_NO_ROUNDS)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages with which a share of the nodes evaluates a server step: at least `min_evaluate_nodes`."""
        nodes = sorted(grid.get_node_ids()) if self.fraction_evaluate > 0.0 else []
        wanted = min(max(int(len(nodes) * self.fraction_evaluate), self.min_evaluate_nodes), len(nodes))
        chosen = random.Random(f"{self.seed} {server_round}").sample(nodes, wanted)
        config["server-round"] = server_round
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [Message(content, node, MessageType.EVALUATE, group_id=str(server_round)) for node in chosen]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The metrics of nodes that evaluated a server step, as Flower's FedAvg makes them."""
        flower = FedAvg(weighted_by_key=self.weighted_by_key, evaluate_metrics_aggr_fn=self.evaluate_metrics_aggr_fn)
        return flower.aggregate_evaluate(server_round, replies)
