"""A schedule that is made by a thread of its own, ahead of the replay: the same chunks, errors, and an end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._schedule.ahead import Ahead

DELAYS = fb.DelayModel(n_clients=50, compute=fb.Exponential(1.0))


def chunks() -> Iterator[fb.Schedule]:
    return fb.iter_schedule(DELAYS, fb.FedBuff(5), 20, arrivals=10_000, chunk=700)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "fedbuff-schedule"]


def test_chunks_are_the_same_and_the_thread_ends() -> None:
    made = Ahead(chunks())
    assert list(made) == list(chunks())
    assert list(made) == []
    made.close()
    assert not made.is_busy and not threads()


def test_a_reader_that_stops_lets_the_thread_end() -> None:
    made = Ahead(chunks())
    next(made)
    made.close()
    assert not made.is_busy and not threads()


def test_errors_come_where_they_would_have_been() -> None:
    def broken() -> Iterator[fb.Schedule]:
        yield next(chunks())
        raise KeyError("no more")

    made = Ahead(broken())
    assert next(made) == next(chunks())
    with pytest.raises(KeyError, match="no more"):
        next(made)
    with pytest.raises(StopIteration):
        next(made)
    made.close()


class Counted(Ahead):
    made = 0

    def __init__(self, *given: Any) -> None:
        Counted.made += 1
        super().__init__(*given)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[Counted]:
    from fedbuff._replay import loop

    monkeypatch.setattr(loop, "Ahead", Counted)
    monkeypatch.setattr(loop, "_WORTH_A_THREAD", 2000)
    monkeypatch.setattr(loop, "_CHUNK", 700)
    monkeypatch.setattr(Counted, "made", 0)
    return Counted


PROBLEM = fb.Quadratic(np.random.default_rng(0).standard_normal((50, 3)))
LOCAL = fb.LocalSGD(2, 0.05)


@pytest.mark.parametrize("options", [{}, {"max_staleness": 2}])
def test_a_long_run_has_the_same_bits(counted: type[Counted], options: dict[str, Any]) -> None:
    strategy, how = fb.FedBuff(5, **options), {"concurrency": 20, "server_steps": 600, "seed": 3}
    alone = fb.run(PROBLEM, DELAYS, strategy, LOCAL, threads=1, eval_every=100, **how)
    assert counted.made == 0
    both = fb.run(PROBLEM, DELAYS, strategy, LOCAL, threads=2, eval_every=100, **how)
    assert counted.made == 1 and not threads()
    assert both.w.tobytes() == alone.w.tobytes()
    assert both.version == 600 and (both.history["loss"] == alone.history["loss"]).all()


def test_what_needs_the_whole_schedule_gets_it(counted: type[Counted], tmp_path: Any) -> None:
    how: dict[str, Any] = {"concurrency": 20, "arrivals": 3000, "threads": 2}
    fb.run(PROBLEM, DELAYS, fb.FedBuff(5, weights="inverse_frequency"), LOCAL, **how)
    fb.run(PROBLEM, DELAYS, fb.FedBuff(5), LOCAL, checkpoint=tmp_path / "run.npz", **how)
    fb.run(PROBLEM, DELAYS, fb.FedBuff(5), LOCAL, **{**how, "arrivals": 100})
    fb.run(PROBLEM, DELAYS, fb.FedBuff(5), LOCAL, concurrency=20, max_time=5.0, threads=2)
    assert counted.made == 0
    with pytest.raises(ValueError, match=r"eval_every: stop and callback"):
        fb.run(PROBLEM, DELAYS, fb.FedBuff(5), LOCAL, stop=lambda row: True, **how)
    assert not threads()


def test_a_run_that_fails_or_stops_leaves_no_thread(counted: type[Counted]) -> None:
    how: dict[str, Any] = {"concurrency": 20, "arrivals": 50_000, "threads": 2, "eval_every": 10}

    def refuse(row: dict[str, float]) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        fb.run(PROBLEM, DELAYS, fb.FedBuff(5), LOCAL, callback=refuse, **how)
    run = fb.run(PROBLEM, DELAYS, fb.FedBuff(5), LOCAL, stop=fb.Stop(server_steps=20), **how)
    assert run.version == 20 and counted.made == 2 and not threads()
