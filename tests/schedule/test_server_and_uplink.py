"""Servers that need time and uplinks that are shared: small cases, closed forms, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedbuff as fb
from fedbuff import FedBuff, Status

P = np.array([0.3, 0.25, 0.2, 0.15, 0.1])
FACTOR = np.array([0.7, 1.0, 1.4, 1.1, 3.0])


def rows(made: fb.Schedule, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(getattr(made, name).tolist() for name in names), strict=True))


def test_uploads_wait_at_the_server() -> None:
    made = fb.schedule(fb.Trace([0, 1, 2], [1.0, 1.25, 9.0]), FedBuff(1), arrivals=4, server_time=0.5)
    made.check()
    assert rows(made, "client", "version", "start_time", "arrive_time") == [
        (0, 0, 0.0, 1.5),
        (1, 0, 0.0, 2.0),  # there at 1.25, handled from 1.5 on
        (0, 1, 1.5, 3.0),
        (1, 2, 2.0, 3.75),
    ]
    assert made.description["server_time"] == {"kind": "constant", "params": [0.5]}


def test_failed_tasks_pass_over_the_server_and_timeouts_end_there() -> None:
    trace = fb.Trace([0, 1, 2], [1.0, 1.25, 9.0], ok=[True, False, True])
    made = fb.schedule(trace, FedBuff(1), arrivals=3, server_time=5.0, timeout=2.0)
    assert rows(made, "client", "arrive_time", "status") == [
        (1, 1.25, Status.FAILED),
        (2, 2.0, Status.TIMED_OUT),
        (1, 2.5, Status.FAILED),
    ]
    made = fb.schedule(trace, FedBuff(1), max_time=6.0, server_time=5.0, timeout=2.0)
    assert made.arrive_time[made.status == Status.USED].tolist() == [6.0]  # longer than the timeout, at the server


def test_a_stop_takes_an_upload_out_of_the_line() -> None:
    trace = fb.Trace([0, 1, 2, 3], [1.0, 1.1, 1.2, 1.3])
    made = fb.schedule(trace, FedBuff(1, stop_stale=2), server_steps=3, server_time=1.0)
    made.check()
    assert rows(made, "client", "arrive_time", "status")[:4] == [
        (0, 2.0, Status.USED),
        (1, 3.0, Status.USED),
        (2, 3.0, Status.STOPPED),  # being handled,
        (3, 3.0, Status.STOPPED),  # waiting
    ]
    assert made.arrive_time[-1] == 4.0 and made.client[-1] == 0  # its upload was there at 3, and the server free


def test_transfers_share_the_uplink() -> None:
    """Two of size 1 from 1 on, a third from 2 on."""
    trace = fb.Trace([0, 1, 2], [1.0, 1.0, 2.0], upload=[1.0, 1.0, 1.0])
    made = fb.schedule(trace, FedBuff(3), 3, arrivals=3, uplink=1.0)
    np.testing.assert_allclose(made.arrive_time, [3.5, 3.5, 4.0], rtol=1e-15)
    faster = fb.schedule(trace, FedBuff(3), 3, arrivals=3, uplink=2.0)
    np.testing.assert_allclose(faster.arrive_time, [2.0, 2.0, 3.0], rtol=1e-15)
    between = fb.schedule(trace, FedBuff(3), 3, arrivals=3, uplink=1.5)
    np.testing.assert_allclose(between.arrive_time, [2.5, 2.5, 3.25], rtol=1e-15)


def test_a_transfer_is_given_up_at_its_timeout_and_frees_the_link() -> None:
    trace = fb.Trace([0, 1], [1.0, 1.0], upload=[1.0, 3.0])
    made = fb.schedule(trace, FedBuff(1), arrivals=2, uplink=1.0, timeout=2.5)
    assert rows(made, "client", "arrive_time", "status") == [(0, 2.5, 4), (1, 2.5, 4)]
    made = fb.schedule(trace, FedBuff(1), arrivals=2, uplink=1.0, timeout=3.0)
    assert rows(made, "client", "arrive_time", "status") == [(0, 3.0, 0), (1, 3.0, 4)]  # exactly the timeout arrives


def test_windows_act_on_the_work_and_not_on_an_upload() -> None:
    windows = fb.Availability([0], [0.0], [1.5], n_clients=1, period=10.0, policy="abort")
    made = fb.schedule(fb.Trace([0], [1.0], upload=[2.0], availability=windows), FedBuff(1), arrivals=1, uplink=1.0)
    assert made.arrive_time.tolist() == [3.0] and made.status.tolist() == [Status.USED]


def processor_sharing(start: NDArray[Any], size: NDArray[Any], capacity: float) -> NDArray[np.float64]:
    """When transfers end, from what is left of each at every event: slow, and without virtual time."""
    left: dict[int, float] = {}
    ends, now, following = np.zeros(start.size), 0.0, 0
    while following < start.size or left:
        speed = min(1.0, capacity / max(len(left), 1))
        first = min(left, key=lambda i: left[i], default=-1)
        finish = now + left[first] / speed if left else math.inf
        begins = following < start.size and start[following] <= finish
        event = float(start[following]) if begins else finish
        for i in left:
            left[i] -= (event - now) * speed
        if not begins:
            ends[first] = event
            del left[first]
        else:
            left[following] = float(size[following])
            following += 1
        now = event
    return ends


@pytest.mark.parametrize("capacity", [1.0, 2.5, 6.0])
def test_an_uplink_is_what_every_transfer_left_over_gives(capacity: float) -> None:
    rng = np.random.default_rng(4)
    start, size = np.sort(rng.uniform(0, 100, 400)), rng.pareto(1.5, 400) * 0.3
    trace = fb.Trace(np.arange(400), start, upload=size, end="stop")
    made = fb.schedule(trace, FedBuff(1), arrivals=400, uplink=capacity)
    ends = np.empty(400)
    ends[made.client] = made.arrive_time
    np.testing.assert_allclose(ends, processor_sharing(start, size, capacity), rtol=1e-9)


@pytest.mark.parametrize(("load", "law"), [(0.5, "constant"), (0.7, "exponential"), (0.6, "uniform")])
def test_an_open_loop_on_an_uplink_is_a_queue_with_processor_sharing(load: float, law: str) -> None:
    """M/G/1-PS with capacity 1: a transfer of size x takes x / (1 - rho) in the mean, whatever the law of sizes."""
    made_of: dict[str, fb.Distribution] = {
        "constant": fb.Constant(1.0),
        "exponential": fb.Exponential(1.0),
        "uniform": fb.Uniform(0.0, 2.0),
    }
    model = fb.DelayModel(n_clients=10**5, compute=fb.Constant(0.25), upload=made_of[law])
    made = fb.schedule(
        *(model, FedBuff(10)), arrivals=400_000, start_rate=load, start_process="poisson", in_flight="allow", uplink=1.0
    )
    size = made.parts(model)["upload"]
    spent = made.arrive_time - made.start_time - 0.25
    assert spent.mean() == pytest.approx(1.0 / (1.0 - load), rel=0.03)
    for low, high in ((0.0, 0.5), (0.5, 1.5), (1.5, 4.0)):
        some = (size >= low) & (size < high)
        if some.sum() > 10_000:
            assert (spent[some].sum() / size[some].sum()) == pytest.approx(1.0 / (1.0 - load), rel=0.04)


@pytest.mark.parametrize("capacity", [2.0, 3.0])
def test_an_uplink_of_several_is_a_queue_of_as_many_servers(capacity: float) -> None:
    """Poisson starts and exponential sizes: as many are on their way as in M/M/c."""
    load = 0.75
    model = fb.DelayModel(n_clients=10**5, compute=fb.Constant(0.0), upload=fb.Exponential(1.0))
    rate = load * capacity
    made = fb.schedule(
        *(model, FedBuff(10)),
        arrivals=400_000,
        start_rate=rate,
        start_process="poisson",
        in_flight="allow",
        uplink=capacity,
    )
    c = int(capacity)
    terms = [rate**k / math.factorial(k) for k in range(c)]
    last = rate**c / (math.factorial(c) * (1 - load))
    waits = last / (sum(terms) + last)  # Erlang's formula
    assert (made.arrive_time - made.start_time).mean() == pytest.approx(1.0 + waits / (c - rate), rel=0.03)


def test_a_server_with_poisson_uploads_is_m_d_1() -> None:
    model = fb.DelayModel(n_clients=10**5, compute=fb.Exponential(1.0))
    made = fb.schedule(
        *(model, FedBuff(10)),
        arrivals=400_000,
        start_rate=0.8,
        start_process="poisson",
        in_flight="allow",
        server_time=1.0,
    )
    spent = made.arrive_time - made.start_time
    assert spent.mean() == pytest.approx(1.0 + 1.0 + 0.8 / (2 * 0.2), rel=0.03)


@pytest.mark.parametrize("tasks", [1, 4, 25])
def test_a_server_is_a_station_of_the_closed_network(tasks: int) -> None:
    """Clients with queues and a server with exponential times: Jackson's network, by mean value analysis."""
    model = fb.DelayModel(n_clients=5, compute=fb.Exponential(1.0), client_speed=FACTOR)
    made = fb.schedule(
        *(model, FedBuff(3), tasks), arrivals=400_000, selection=P, queues=True, seed=5, server_time=fb.Exponential(0.3)
    )
    made[:2000].check()
    visits, service, number = np.append(P, 1.0), np.append(FACTOR, 0.3), np.zeros(6)
    for m in range(1, tasks + 1):
        sojourn = service * (1.0 + number)
        throughput = m / (visits @ sojourn)
        number = throughput * visits * sojourn
    assert made.n_arrivals / made.end_time == pytest.approx(throughput, rel=0.01)
    spent = made.arrive_time - made.start_time
    for client in range(5):
        assert spent[made.client == client].mean() == pytest.approx(sojourn[client] + sojourn[5], rel=0.04)


@pytest.mark.parametrize("options", [{"server_time": 0.01}, {"uplink": 3.0}, {"uplink": 3.0, "server_time": 0.01}])
def test_mean_staleness_does_not_depend_on_what_tasks_wait_for(options: dict[str, Any]) -> None:
    """(M - 1) / K over all used tasks, for any delays with no ties and no task dropped."""
    model = fb.DelayModel(n_clients=90, compute=fb.LogNormal(0.0, 1.0), upload=fb.Exponential(0.1))
    made = fb.schedule(model, FedBuff(4), 30, arrivals=40_000, **options)
    ages = made.n_steps - made.in_flight_version
    assert made.staleness.sum() + ages.sum() == 29 * made.n_steps
    assert made.staleness.mean() == pytest.approx(29 / 4, rel=0.01)


@pytest.mark.parametrize(
    "strategy", [FedBuff(4), FedBuff(2, stop_stale=2), fb.FedAvg(clients_per_round=4, over_selection=0.5)], ids=str
)
def test_files_slices_streams_and_replays(strategy: Any, tmp_path: Path) -> None:
    model = fb.DelayModel(n_clients=7, wait=fb.Exponential(0.01), compute=fb.Exponential(1.0), upload=fb.Uniform(0, 1))
    options: dict[str, Any] = {"server_steps": 40, "seed": 2, "server_time": fb.Exponential(0.1), "uplink": 1.5}
    if isinstance(strategy, FedBuff):
        options["concurrency"] = 5
    made = fb.schedule(model, strategy, **options)
    made.check()
    for name in ("s.npz", "s.parquet"):
        made.save(tmp_path / name)
        assert fb.load_schedule(tmp_path / name) == made
    chunks = list(fb.iter_schedule(model, strategy, chunk=9, **options))
    np.testing.assert_array_equal(np.concatenate([part.start_time for part in chunks]), made.start_time)
    made[10:20].check()
    problem = fb.Quadratic(np.random.default_rng(0).standard_normal((7, 3)), 1.0, noise_variance=0.1)
    local = fb.LocalSGD(2, 0.1, batch_size=1)
    whole = fb.replay(problem, made, local, strategy=strategy, threads=1)
    streamed = fb.replay(problem, iter(chunks), local, strategy=strategy, threads=2)
    np.testing.assert_array_equal(whole.w, streamed.w)
    other = fb.schedule(model, strategy, **{**options, "uplink": 1.4})
    assert other.sha256 != made.sha256


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"server_time": 0.0}, ValueError, "server_time: expected a number > 0, got 0.0"),
        ({"server_time": math.nan}, ValueError, "server_time: expected a number > 0, got nan"),
        ({"server_time": math.inf}, ValueError, "server_time: expected a number > 0"),
        ({"server_time": True}, TypeError, "server_time: expected seconds or a distribution"),
        ({"server_time": "fast"}, TypeError, "server_time: expected seconds or a distribution"),
        ({"server_time": fb.Empirical([0.0, 0.0])}, ValueError, "server_time: expected times > 0"),
        ({"uplink": 0.0}, ValueError, "uplink: expected a number > 0"),
        ({"uplink": -1.0}, ValueError, "uplink: expected a number > 0"),
        ({"uplink": math.nan}, ValueError, "uplink: expected a number > 0"),
        ({"uplink": math.inf}, ValueError, "uplink: expected a number > 0"),
        ({"uplink": "1"}, TypeError, "uplink: expected a number"),
        ({"uplink": 2.0}, ValueError, "uplink: expected uploads that take time"),
    ],
    ids=str,
)
def test_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    for source in (fb.Trace(np.arange(5), np.ones(5)), fb.DelayModel(n_clients=5)):
        with pytest.raises(error, match=message):
            fb.schedule(source, FedBuff(2), arrivals=9, **options)


@pytest.mark.parametrize("options", [{"server_time": 1.0}, {"uplink": 2.0}])
def test_a_log_has_neither(options: dict[str, Any]) -> None:
    log = fb.ArrivalLog([0, 1], [1.0, 2.0], version=[0, 0])
    with pytest.raises(ValueError, match="server_time, uplink: an arrival log is replayed as it happened"):
        fb.schedule(log, FedBuff(1), **options)
