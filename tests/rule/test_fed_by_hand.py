"""Every published algorithm: a server that is fed by hand gives the bits of the replay, saved and loaded on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_algorithms import needed
from test_server import every_dtype, every_implementation

import fedbuff as fb

N, DIM, STEPS = 4, 11, 24
DELAYS = fb.DelayModel(n_clients=N, compute=fb.Exponential(1.0), client_speed=np.array([1.0, 1.0, 2.0, 5.0]))


def strategy_of(name: str) -> Any:
    more = {"participation": 0.4} if name == "fedstale" else {}  # a server sees no schedule
    return fb.algorithm(name, **needed(name), **more)


def local_of(strategy: Any) -> fb.LocalSGD:
    """The clients' half."""
    return fb.LocalSGD(steps=2, lr=0.1, method=strategy.rule.method, alpha=strategy.rule.alpha)


def downloaded(server: Any) -> tuple[Any, Any]:
    """The model, and the control variate where there is one; the download is given up."""
    version, w, *control = server.download()
    server.cancel(version)
    return w.copy(), control[0].copy() if control else None


class Clients:
    """What clients do, and keep from task to task where their method does."""

    def __init__(self, problem: Any, strategy: Any) -> None:
        self.problem, self.local = problem, local_of(strategy)
        self.states: dict[int, Any] = {}

    def upload(self, client: int, task: int, start: tuple[Any, Any]) -> tuple[Any, dict[str, Any]]:
        """The delta, and what `Server.upload` must know beside it."""
        w, control = start
        if not self.local.keeps_state:
            return self.problem.delta(w, client, self.local, task=task, seed=0), {}
        state = self.states.setdefault(client, np.zeros_like(w))
        before, given = state.copy(), control if self.local.method == "scaffold" else None
        delta = self.problem.delta(w, client, self.local, task=task, seed=0, state=state, control=given)
        return delta, {"change": state - before}


def setting(name: str, dtype: str) -> tuple[Any, Any, fb.Schedule]:
    problem = fb.Quadratic(np.random.default_rng(1).standard_normal((N, DIM)).astype(dtype))
    strategy = strategy_of(name)
    return problem, strategy, fb.schedule(DELAYS, strategy, server_steps=STEPS, seed=5)


class Feeder:
    """Feeds a server what a schedule says, and steps at times when the schedule does."""

    def __init__(self, backend: Any, problem: Any, strategy: Any, schedule: fb.Schedule) -> None:
        self.backend, self.problem, self.schedule, self.strategy = backend, problem, schedule, strategy
        self.server, self.clients = backend.Server(np.zeros(DIM, problem.dtype), strategy), Clients(problem, strategy)
        used = schedule.status == fb.Status.USED
        self.tasks = np.bincount(schedule.version[used], minlength=STEPS + 1)
        self.rows = [np.flatnonzero(used & (schedule.step == t)) for t in range(STEPS)]
        self.models: list[Any] = []

    def step(self, t: int, path: Path | None = None) -> None:
        """The arrivals of step t; with a path the server is saved and loaded in their midst."""
        server, schedule = self.server, self.schedule
        self.models.append(downloaded(server))
        for _ in range(self.tasks[t]):
            server.download()
        for place, row in enumerate(self.rows[t]):
            client, version = int(schedule.client[row]), int(schedule.version[row])
            task, samples = int(schedule.task[row]), float(self.problem.n_samples[client])
            delta, more = self.clients.upload(client, task, self.models[version])
            stepped = server.upload(delta, version, samples, client=client, **more)
            assert not stepped or place == len(self.rows[t]) - 1
            if path is not None and place == len(self.rows[t]) // 2:
                server.save(path)
                server = self.server = self.backend.Server.load(path, self.strategy)
        if server.version == t:
            assert server.step() is True
        assert server.version == t + 1 and server.fill == 0


@every_implementation
@every_dtype
@pytest.mark.parametrize("name", fb.algorithms())
def test_the_bits_of_the_replay(backend: Any, dtype: str, name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(fb.backends, "current", lambda: backend)
    problem, strategy, schedule = setting(name, dtype)
    want = fb.Replay(problem, schedule, local_of(strategy), strategy=strategy, w0=np.zeros(DIM, dtype))
    feeder = Feeder(backend, problem, strategy, schedule)
    for t in range(STEPS):
        want.run(max_steps=1)
        feeder.step(t, tmp_path / "server.npz" if t % 5 == 2 else None)
        np.testing.assert_array_equal(feeder.server.w, want.w, strict=True)


@every_dtype
@pytest.mark.parametrize("name", fb.algorithms())
def test_the_same_bits_on_threads_and_after_a_resume(dtype: str, name: str, tmp_path: Path) -> None:
    problem, strategy, schedule = setting(name, dtype)
    given: dict[str, Any] = {"strategy": strategy, "w0": np.zeros(DIM, dtype)}
    local = local_of(strategy)
    whole = fb.replay(problem, schedule, local, **given).w
    np.testing.assert_array_equal(fb.replay(problem, schedule, local, threads=3, **given).w, whole, strict=True)
    for stop in (1, 7, 16):
        first = fb.Replay(problem, schedule, local, **given)
        first.run(max_steps=stop)
        first.save(tmp_path / "run.npz")
        second = fb.Replay.load(tmp_path / "run.npz", problem, schedule, strategy=strategy)
        second.run()
        np.testing.assert_array_equal(second.w, whole, strict=True)


@pytest.mark.parametrize("name", fb.algorithms())
def test_large_models_are_cut_the_same_way(name: str) -> None:
    """Above the chunks of a server: one thread with many chunks, and the replay, which has none."""
    dim = 20_001
    problem = fb.Quadratic(np.random.default_rng(1).standard_normal((N, dim)).astype(np.float32))
    strategy = strategy_of(name)
    schedule = fb.schedule(DELAYS, strategy, server_steps=6, seed=5)
    server, clients = fb.Server(np.zeros(dim, np.float32), strategy), Clients(problem, strategy)
    models = []
    for t in range(6):
        models.append(downloaded(server))
        for _ in range(100):
            server.download()
        for row in np.flatnonzero((schedule.status == fb.Status.USED) & (schedule.step == t)):
            client, version = int(schedule.client[row]), int(schedule.version[row])
            delta, more = clients.upload(client, int(schedule.task[row]), models[version])
            server.upload(delta, version, client=client, **more)
        if server.version == t:
            server.step()
    local = local_of(strategy)
    want = fb.replay(problem, schedule, local, strategy=strategy, w0=np.zeros(dim, np.float32), threads=2).w
    np.testing.assert_array_equal(server.w, want, strict=True)


@every_implementation
def test_a_step_by_hand(backend: Any) -> None:
    server = backend.Server(np.zeros(2), fb.FedBuff(3, 1.0, norm="arrivals"))
    assert server.step() is False and server.version == 0
    server.download(), server.download()
    server.upload(np.array([1.0, 0.0]), 0)
    assert server.step() is True and (server.version, server.fill) == (1, 0)
    np.testing.assert_array_equal(server.w, [-1.0, 0.0])
    server.upload(np.array([0.0, 4.0]), 0)
    server.download()
    server.upload(np.array([0.0, 2.0]), 1)
    assert server.step() is True
    np.testing.assert_array_equal(server.w, [-1.0, -3.0])
    with pytest.raises(ValueError, match=r"^step: trigger="):
        backend.Server(np.zeros(2), fb.algorithm("ringleader", n_clients=2)).step()
    server.close()
    with pytest.raises(ValueError, match="closed"):
        server.step()


@every_implementation
def test_what_should_stop_is_reported(backend: Any) -> None:
    server = backend.Server(np.zeros(2), fb.FedBuff(1, 1.0, stop_stale=2))
    for _ in range(3):
        server.download()
    assert server.overdue == {}
    server.upload(np.ones(2), 0)
    server.download()
    assert server.overdue == {}
    server.upload(np.ones(2), 1)
    assert server.overdue == {0: 2}
    server.download()
    assert server.upload(np.ones(2), 0) is False and server.dropped == 1  # it was to be stopped
    server.cancel(0)
    assert server.overdue == {} and server.outstanding == 1
    restarts = backend.Server(np.zeros(2), fb.FedBuff(2, restart="step"))
    for _ in range(3):
        restarts.download()
    restarts.upload(np.ones(2), 0), restarts.upload(np.ones(2), 0)
    assert restarts.overdue == {0: 1}


@every_implementation
def test_triggers_of_a_server_need_the_clients(backend: Any) -> None:
    for options in ({"trigger": "every_client"}, {"weights": "per_client"}, {"trigger": "ringleader"}):
        with pytest.raises(ValueError, match=r"^n_clients: "):
            backend.Server(np.zeros(2), fb.FedBuff(1, **options))
    server = backend.Server(np.zeros(2), fb.algorithm("malenia", n_clients=2))
    server.download()
    with pytest.raises(ValueError, match=r"^client: this rule must know"):
        server.upload(np.ones(2), 0)
    with pytest.raises(ValueError, match=r"^base: weights="):
        backend.Server(np.zeros(2), fb.FedBuff(2, weights="per_client", n_clients=2, base="current"))
    with pytest.raises(ValueError, match=r"^weights: .inverse_frequency. is known from a whole schedule"):
        backend.Server(np.zeros(2), fb.FedBuff(2, weights="inverse_frequency"))


@every_implementation
@pytest.mark.parametrize("name", ["ringleader", "malenia", "fedfa", "qafel"])
def test_a_refused_upload_changes_nothing(backend: Any, name: str) -> None:
    """At each arrival a delta that is not finite comes first."""
    problem, strategy, schedule = setting(name, "float64")
    plain, tried = (Feeder(backend, problem, strategy, schedule) for _ in range(2))
    upload = tried.server.upload

    class Trying:
        def __getattr__(self, attribute: str) -> Any:
            return getattr(tried_server, attribute)

        def upload(self, delta: Any, version: int, samples: float, client: int) -> bool:
            with pytest.raises(ValueError, match=r"^delta: element 0 is nan"):
                upload(np.full(DIM, np.nan), version, samples, client=client)
            return bool(upload(delta, version, samples, client=client))

    tried_server = tried.server
    tried.server = Trying()
    for t in range(STEPS):
        plain.step(t), tried.step(t)
        np.testing.assert_array_equal(tried.server.w, plain.server.w, strict=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fb.FedBuff(2, ring=3), r"^buffer_size: with ring "),
        (lambda: fb.FedBuff(1, 0.5, ring=3), r"^server_lr: with ring "),
        (lambda: fb.FedBuff(1, ring=3, base="current"), r"^base: with ring "),
        (lambda: fb.FedBuff(1, ring=3, weights="samples"), r"^weights: with ring "),
        (lambda: fb.FedBuff(1, ring=3, optimizer=fb.Nesterov()), r"^optimizer: with ring "),
        (lambda: fb.FedBuff(1, ring=3, secure="simulate"), r"^secure: a ring keeps single models"),
        (lambda: fb.FedBuff(1, ring=3, period=1.0), r"^period: a ring "),
        (lambda: fb.FedBuff(1, ring=0), r"^ring: "),
        (lambda: fb.FedBuff(2, hidden=fb.HiddenModel(3), base="current"), r"^hidden: "),
        (lambda: fb.HiddenModel(2**20 + 1), r"^levels: "),
        (lambda: fb.HiddenModel(3, seed=-1), r"^seed: "),
        (lambda: fb.FedBuff(1, client_weights=[1.0, 0.0]), r"^client_weights: "),
        (lambda: fb.FedBuff(1, client_weights=[]), r"^client_weights: "),
        (lambda: fb.FedBuff(1, n_clients=3, client_weights=[1.0, 2.0]), r"^client_weights: expected 3 numbers"),
        (
            lambda: fb.FedBuff(
                2, client_weights=[1.0, 2.0], privacy=fb.secure.Gaussian(clip=1.0, noise_multiplier=1.0)
            ),
            r"^client_weights: the noise of a private sum",
        ),
        (
            lambda: fb.FedBuff(
                1,
                norm="clients",
                n_clients=3,
                trigger="ringleader",
                table=fb.ClientTable(keeps="means"),
                weights="samples",
            ),
            r"^weights: with means ",
        ),
        (lambda: fb.FedBuff(1, n_clients=3, table=fb.ClientTable(keeps="means")), r"^table: keeps="),
        (lambda: fb.ClientTable(keeps="means", own=0.5), r"^own: "),
        (lambda: fb.algorithm("mindflayer", window=1.0, empty=1.0), r"^empty: "),
        (lambda: fb.algorithm("generalized_asyncsgd", probabilities=[0.0, 1.0]), r"^probabilities: "),
    ],
)
def test_bad_rules(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_memory_is_refused_beforehand() -> None:
    for name, options in (("fedfa", {"buffer_size": 10**9}), ("ringleader", {"n_clients": 5 * 10**8})):
        with pytest.raises(MemoryError, match=r"^(ring|table): 1000000000 rows of 1000 float64 take 8000000000000 byt"):
            fb.Server(np.zeros(1000), fb.algorithm(name, **options))


def test_a_schedule_of_another_trigger_is_refused() -> None:
    problem, strategy, _ = setting("ringleader", "float64")
    schedule = fb.schedule(DELAYS, fb.FedBuff(2), server_steps=6, seed=5)
    local = fb.LocalSGD(steps=2, lr=0.1)
    with pytest.raises(ValueError, match=r"^step 0: the schedule is not one of Ringleader's rounds"):
        fb.replay(problem, schedule, local, strategy=strategy)
    with pytest.raises(ValueError, match=r"^step 0: a ring of models takes one arrival"):
        fb.replay(problem, schedule, local, strategy=fb.algorithm("fedfa", buffer_size=2))
    with pytest.raises(ValueError, match=r"^client_weights: expected 4 numbers"):
        fb.replay(problem, schedule, local, strategy=fb.FedBuff(2, client_weights=[1.0, 2.0]))
