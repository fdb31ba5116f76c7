"""`delay(client, task, seed)` of traces and models: the delays that a schedule has."""

from __future__ import annotations

import numpy as np
import pytest

import fedbuff as fb

LAWS = [
    fb.Constant(1.5),
    fb.Uniform(0.5, 2.0),
    fb.Exponential(2.0),
    fb.HalfNormal(1.0, 0.1),
    fb.TruncatedNormal(1.0, 0.5, 0.2, 3.0),
    fb.LogNormal(0.1, 0.7),
    fb.Pareto(2.5),
    fb.Weibull(1.3, 2.0),
    fb.Empirical([0.5, 1.0, 4.0]),
]


def ends_by_hand(source: fb.Trace | fb.DelayModel, client: int, n: int, seed: int) -> list[float]:
    """When the client's first n tasks end where it starts each as soon as the one before has ended."""
    now, ends = 0.0, []
    for task in range(n):
        delay = source.delay(client, task, seed)
        now = now + delay.wait + delay.duration
        ends.append(now)
    return ends


def ends_of_schedule(source: fb.Trace | fb.DelayModel, client: int, n: int, seed: int) -> list[float]:
    schedule = fb.schedule(source, fb.FedBuff(buffer_size=1), arrivals=40 * source.n_clients, seed=seed)
    mine = schedule.client == client
    return schedule.arrive_time[mine][:n].tolist()


@pytest.mark.parametrize("law", LAWS, ids=[law.kind for law in LAWS])
def test_a_model_gives_the_delays_of_its_schedule_to_the_bit(law: fb.Distribution) -> None:
    model = fb.DelayModel(
        n_clients=3, wait=fb.Uniform(), download=fb.Exponential(0.1), compute=law, upload=fb.LogNormal(-2.0),
        client_speed=fb.Pareto(3.0), n_samples=np.array([1, 2, 3]),
    )  # fmt: skip
    for client in range(3):
        assert ends_by_hand(model, client, 8, seed=2**40 + 3) == ends_of_schedule(model, client, 8, seed=2**40 + 3)


def test_a_list_of_speeds_counts() -> None:
    model = fb.DelayModel(n_clients=2, compute=fb.Exponential(), client_speed=np.array([1.0, 3.7]))
    assert ends_by_hand(model, 1, 8, seed=5) == ends_of_schedule(model, 1, 8, seed=5)


def test_a_trace_gives_its_rows_and_starts_over() -> None:
    trace = fb.Trace([0, 0, 1], [1.0, 2.0, 4.0], wait=[0.0, 0.5, 0.0], upload=[0.25, 0.0, 0.0], ok=[True, False, True])
    assert trace.delay(0, 0) == (0.0, 0.0, 1.0, 0.25, True)
    assert trace.delay(0, 1) == trace.delay(0, 3, seed=9) == (0.5, 0.0, 2.0, 0.0, False)
    assert trace.delay(np.int64(1), 7).duration == 4.0


def test_what_is_not_there_is_refused() -> None:
    stop = fb.Trace([0, 0], [1.0, 2.0], end="stop", clients=2)
    with pytest.raises(ValueError, match="task: client 0 has 2 recorded tasks, got 2"):
        stop.delay(0, 2)
    with pytest.raises(ValueError, match="task: client 1 has 0 recorded tasks, got 0"):
        stop.delay(1, 0)
    for source in (stop, fb.DelayModel(n_clients=2)):
        with pytest.raises(ValueError, match="client: expected an int below 2"):
            source.delay(2, 0)
        with pytest.raises(ValueError, match="task: expected an int >= 0"):
            source.delay(0, -1)
        with pytest.raises(TypeError, match="client: expected an int"):
            source.delay("a", 0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="seed: expected an int >= 0"):
            source.delay(0, 0, -1)
