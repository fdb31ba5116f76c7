"""fb.Recorder and fb.sample_log."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_rows(tmp_path: Path) -> None:
    clock = Clock()
    recorder = fb.Recorder(3, clock=clock)
    for now, call, *arguments in [
        (0.0, "started", 0, 0),
        (0.5, "started", 2, 0),
        (1.0, "arrived", 2),
        (1.0, "started", 2, 1),
        (1.0, "arrived", 0),
        (2.5, "cancelled", 2),
        (3.0, "started", 2, 2),
        (4.0, "arrived", 2),
    ]:
        clock.now = now
        getattr(recorder, call)(*arguments)
    log = recorder.log()
    assert log == fb.ArrivalLog([2, 0, 2], [1.0, 1.0, 4.0], version=[0, 0, 2], start_time=[0.5, 0.0, 3.0], clients=3)
    assert log.n_clients == 3 and len(recorder) == 3 and recorder.in_flight == []
    for name in ("log.csv", "log.csv.gz", "log.npz"):
        recorder.save(tmp_path / name)
        assert fb.read_arrival_log(tmp_path / name, clients=3) == log


def test_times_of_the_monotonic_clock_rise() -> None:
    recorder = fb.Recorder()
    for _ in range(200):
        recorder.started("a")
        recorder.arrived("a")
    log = recorder.log()
    assert log.version is None and log.start_time is not None
    times = np.column_stack([log.start_time, log.arrive_time]).ravel()
    assert times[0] >= 0 and (np.diff(times) > 0).all()


def refused(call: Any, error: Any, text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text


def test_misuse_names_the_client() -> None:
    clock = Clock()
    recorder = fb.Recorder(clock=clock)
    refused(recorder.log, ValueError, "nothing has arrived yet: the log would be empty")
    refused(lambda: recorder.arrived(3), ValueError, "client 3: it arrived without a start")
    recorder.started(3, version=0)
    refused(
        lambda: recorder.started(3, version=0),
        ValueError,
        "client 3: its task that started at 0.0 has not arrived; where it is lost, call cancelled(client) first",
    )
    refused(lambda: recorder.started(4), ValueError, "client 4: version: expected one at every start or at none")
    refused(lambda: recorder.started(4, -1), ValueError, "client 4: version: expected an int >= 0, got -1")
    refused(lambda: recorder.started(4, 1.0), TypeError, "client 4: version: expected an int, got float")  # type: ignore[arg-type]
    refused(lambda: recorder.started("x", 0), TypeError, "client 'x': expected ids that are all ints or all strings")
    refused(lambda: recorder.started(-1, 0), ValueError, "client: expected an int from 0 to 2**63 - 1, got -1")
    refused(lambda: recorder.started(1.5, 0), TypeError, "client: expected an int or a string, got float")  # type: ignore[arg-type]
    refused(lambda: recorder.cancelled(4), ValueError, "client 4: it was cancelled without a start")
    clock.now = -1.0
    why = "clock: expected finite times from 0 that never go back, got "
    refused(lambda: recorder.arrived(3), ValueError, why + "-1.0 before 0")
    clock.now = 2.0
    recorder.arrived(3)  # the refused call left the task open
    refused(lambda: recorder.arrived(3), ValueError, "client 3: it arrived without a start")
    clock.now = 1.0
    refused(lambda: recorder.started(3, 0), ValueError, why + "1.0 after 2.0")
    assert len(recorder) == 1 and recorder.in_flight == []


def test_a_text_among_many_numbered_clients_is_refused_at_once() -> None:
    recorder = fb.Recorder(2**40)
    with pytest.raises(ValueError, match="expected one of the given clients, got 'phone'"):
        recorder.started("phone")
    recorder.started(2**39)


def test_known_clients() -> None:
    recorder = fb.Recorder(["b", "a"])
    refused(lambda: recorder.started("c"), ValueError, "client: expected one of the given clients, got 'c'")
    recorder.started(np.str_("a"))
    recorder.arrived("a")
    assert recorder.log().client.tolist() == [1] and recorder.log().n_clients == 2
    refused(lambda: fb.Recorder(2).started(2), ValueError, "client: expected one of the given clients, got 2")
    refused(lambda: fb.Recorder().started(""), ValueError, "client: expected an id, got an empty text")
    refused(lambda: fb.Recorder().started(True), TypeError, "client: expected an int or a string, got bool")


def test_numpy_ids() -> None:
    recorder = fb.Recorder()
    recorder.started(np.int64(5), np.int64(0))  # type: ignore[arg-type]
    assert recorder.in_flight == [5]
    recorder.arrived(np.int32(5))  # type: ignore[arg-type]
    assert recorder.log().client_ids.tolist() == [5]


def test_threads_and_the_servers_own_order() -> None:
    problem = fb.Quadratic(np.arange(12.0).reshape(6, 2))
    server = fb.Server(problem.init(), fb.FedBuff(buffer_size=2))
    local = fb.LocalSGD(steps=2, lr=0.1)
    recorder = fb.Recorder(6)

    def work(client: int) -> None:
        for task in range(40):
            with recorder.lock:
                version, w = server.download()
                recorder.started(client, version)
            delta = problem.delta(w, client, local, task=task)
            with recorder.lock:
                server.upload(delta, version)
                recorder.arrived(client)

    threads = [threading.Thread(target=work, args=(client,)) for client in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log = recorder.log()
    assert np.bincount(log.client).tolist() == [40] * 6 and server.version == 120
    schedule = fb.schedule(log, fb.FedBuff(buffer_size=2))
    schedule.check()
    # The times alone say the same versions
    timed = fb.ArrivalLog(log.client, log.arrive_time, start_time=log.start_time)
    np.testing.assert_array_equal(fb.schedule(timed, fb.FedBuff(buffer_size=2)).version, log.version)


def test_sample_log() -> None:
    log = fb.sample_log()
    assert log.n_clients == 4 and log.client.size == 300 and log.version is not None and log.start_time is not None
    schedule = fb.schedule(log, fb.FedBuff(buffer_size=3))
    schedule.check()
    assert schedule.n_steps == 100 and schedule.tau >= 2
    timed = fb.ArrivalLog(log.client, log.arrive_time, start_time=log.start_time)
    np.testing.assert_array_equal(fb.schedule(timed, fb.FedBuff(buffer_size=3)).version, log.version)
    file = Path(fb.__file__).parent / "data" / "recorded_log.csv"
    assert file.stat().st_size < 20_000


def test_goes_on_with_an_earlier_log() -> None:
    first = fb.Recorder(clients=2, clock=iter([0.0, 1.0, 2.0, 3.0]).__next__)
    for client in (1, 0):
        first.started(client, version=0)
    for client in (0, 1):
        first.arrived(client)
    times = iter([3.0, 4.5])
    second = fb.Recorder(clients=2, clock=times.__next__, log=first.log())
    second.started(0, version=1)
    second.arrived(0)
    log = second.log()
    assert log.client.tolist() == [0, 1, 0] and log.arrive_time.tolist() == [2.0, 3.0, 4.5]
    assert log.version is not None and log.version.tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match="version: expected one at every start or at none"):
        second.started(1)
    with pytest.raises(ValueError, match="clock: expected finite times"):
        fb.Recorder(clock=lambda: 1.0, log=first.log()).started(0, version=1)


def test_the_own_clock_goes_on_where_an_earlier_log_ends() -> None:
    earlier = fb.ArrivalLog(["a"], [1000.5], start_time=[0.0])
    recorder = fb.Recorder(log=earlier)
    recorder.started("a")
    recorder.arrived("a")
    log = recorder.log()
    assert log.start_time is not None and 1000.5 < log.start_time[1] < log.arrive_time[1] < 2000.0
    with pytest.raises(TypeError, match="expected ids that are all ints or all strings"):
        recorder.started(3)


def test_a_log_that_does_not_fit_is_refused() -> None:
    with pytest.raises(TypeError, match="log: expected an ArrivalLog, got str"):
        fb.Recorder(log="log.csv")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="log: expected one with start times"):
        fb.Recorder(log=fb.ArrivalLog([0], [1.0], version=[0]))
    with pytest.raises(ValueError, match="client: expected one of the given clients, got 5"):
        fb.Recorder(clients=2, log=fb.ArrivalLog([5], [1.0], start_time=[0.0]))
