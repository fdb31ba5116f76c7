"""SCAFFOLD and FedDyn: a state of every client that its tasks read and change, and the server's mean of it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends
from fedbuff._rule.strategies import rule_of

N, DIM = 7, 3
RNG = np.random.default_rng(5)
CENTERS = RNG.standard_normal((N, DIM))
SIZES = [5, 12, 4, 33, 8, 6, 9]
ALPHA = 0.3
compiled = pytest.mark.skipif(backends.compiled() is None, reason="needs the compiled backend")

Vectors = dict[int, Any]


def quadratic(dtype: Any = np.float64) -> fb.Quadratic:
    return fb.Quadratic(CENTERS.astype(dtype), curvature=0.7)


def rows(dtype: Any = np.float64) -> fb.LeastSquares:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((sum(SIZES), DIM)).astype(dtype)
    y = (X @ [1.0, -1.0, 0.5] + rng.standard_normal(len(X))).astype(dtype)
    return fb.LeastSquares(X, y, np.repeat(np.arange(N), SIZES), l2=0.1)


def local(method: str, **options: Any) -> fb.LocalSGD:
    extra = {"alpha": ALPHA} if method == "feddyn" else {}
    return fb.LocalSGD(**{"steps": 4, "lr": 0.05, "method": method, **extra, **options})


def strategy(method: str, K: int = 3, **options: Any) -> fb.FedBuff:
    extra = {"alpha": ALPHA} if method == "feddyn" else {}
    return fb.FedBuff(K, 0.9, norm="arrivals", n_clients=N, method=method, **extra, **options)


DELAYS = fb.DelayModel(N, compute=fb.Exponential(1.0), client_speed=fb.LogNormal(0.0, 1.0))


def make_schedule(rule: fb.FedBuff, steps: int = 40, concurrency: int | None = None, seed: int = 4) -> fb.Schedule:
    made = fb.schedule(DELAYS, rule, concurrency, server_steps=steps, seed=seed)
    assert isinstance(made, fb.Schedule)
    return made


def loop(
    method: str, schedule: fb.Schedule, K: int, steps: int, lr: float, server_lr: float
) -> tuple[Any, Any, Vectors]:
    """The papers' formulas, arrival by arrival in the order of the schedule; exact gradients of `quadratic`."""
    w, c = np.zeros(DIM), np.zeros(DIM)
    models, controls, own = {0: w}, {0: c}, {}
    deltas: list[Any] = []
    changes: list[Any] = []
    columns = (schedule.client, schedule.version, schedule.status)
    for client, version, status in zip(*(column.tolist() for column in columns), strict=True):
        if status not in (fb.Status.USED, fb.Status.TOO_STALE):
            continue
        start, before = models[version], own.get(client, np.zeros(DIM))
        x = start
        for _ in range(steps):
            gradient = 0.7 * (x - CENTERS[client])
            if method == "scaffold":
                gradient = gradient + controls[version] - before
            else:
                gradient = gradient - before + ALPHA * (x - start)
            x = x - lr * gradient
        if method == "scaffold":
            own[client] = before - controls[version] + (start - x) / (steps * lr)
        else:
            own[client] = before - ALPHA * (x - start)
        if status != fb.Status.USED:
            continue
        deltas.append(start - x)
        changes.append(own[client] - before)
        if len(deltas) == K:
            c = c + np.sum(changes, axis=0) / N
            w = w - server_lr * np.mean(deltas, axis=0)
            if method == "feddyn":
                w = w - c / ALPHA
            models[len(models)], controls[len(controls)] = w, c
            deltas, changes = [], []
    return w, c, own


@pytest.mark.parametrize("concurrency", [None, 4])
@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_it_is_the_loop_of_the_paper(method: str, concurrency: int | None) -> None:
    rule = strategy(method)
    schedule = make_schedule(rule, concurrency=concurrency)
    replay = fb.Replay(quadratic(), schedule, local(method), strategy=rule)
    replay.run()
    w, c, _ = loop(method, schedule, 3, 4, 0.05, 0.9)
    np.testing.assert_allclose(replay.w, w, rtol=0, atol=1e-10)
    np.testing.assert_allclose(replay._engine.rule_state()["control"], c, rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_tasks_that_were_too_stale_change_the_state(method: str) -> None:
    rule = strategy(method, max_staleness=1)
    schedule = make_schedule(rule, steps=60)
    stale = schedule.status == fb.Status.TOO_STALE
    assert stale.sum() > 20
    replay = fb.Replay(quadratic(), schedule, local(method), strategy=rule)
    replay.run()
    w, _, own = loop(method, schedule, 3, 4, 0.05, 0.9)
    np.testing.assert_allclose(replay.w, w, rtol=0, atol=1e-10)
    assert replay.updates == 60 * 3
    state = replay._engine.rule_state()
    last = np.flatnonzero(schedule.status == fb.Status.USED)[-1]
    seen = set(
        schedule.client[: last + 1][(schedule.status == fb.Status.USED)[: last + 1] | stale[: last + 1]].tolist()
    )
    assert state["state_client"].tolist() == sorted(seen)
    late = set(schedule.client[last + 1 :].tolist())
    for client, row in zip(state["state_client"].tolist(), state["state_rows"], strict=True):
        if client not in late:
            np.testing.assert_allclose(row, own[client], rtol=0, atol=1e-10)


def test_scaffold_with_equal_data_is_fedavg() -> None:
    """Equal clients, exact gradients, everybody in every round, no staleness: all corrections cancel."""
    made = fb.Quadratic(np.tile([1.0, -2.0, 0.5], (N, 1)), curvature=0.7)
    rule = strategy("scaffold", N, refill="step")
    delays = fb.DelayModel(N, compute=fb.Constant(1.0))
    schedule = fb.schedule(delays, rule, server_steps=15, seed=0)
    assert schedule.staleness.max() == 0
    average = fb.FedAvg(clients_per_round=N, server_lr=0.9, weights="equal")
    rounds = fb.schedule(delays, average, server_steps=15, seed=0)
    w = fb.replay(made, schedule, local("scaffold"), strategy=rule).w
    expected = fb.replay(made, rounds, fb.LocalSGD(steps=4, lr=0.05), strategy=average).w
    np.testing.assert_allclose(w, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_they_reach_the_optimum_that_plain_local_steps_miss(method: str) -> None:
    """Clients whose curvatures differ pull plain local SGD with many steps away from the minimiser."""
    curvature = np.linspace(0.2, 2.0, N)[:, None]
    made = fb.Quadratic(CENTERS, curvature=np.broadcast_to(curvature, (N, DIM)).copy(), per_client=True)
    optimum = (curvature * CENTERS).sum(axis=0) / curvature.sum()
    rule = strategy(method, N, refill="step")
    schedule = fb.schedule(DELAYS, rule, server_steps=400, seed=0)
    found = fb.replay(made, schedule, local(method, steps=10, lr=0.2), strategy=rule).w
    plain = fb.replay(made, schedule, fb.LocalSGD(steps=10, lr=0.2), strategy=fb.FedBuff(N, 0.9, norm="arrivals")).w
    assert np.linalg.norm(found - optimum) < 1e-6 < 1e-2 < np.linalg.norm(plain - optimum)


LOCALS: dict[str, dict[str, Any]] = {
    "full": {},
    "batches": {"batch_size": 3, "steps": [1, 2, 3, 4, 5, 6, 7], "lr": [0.01, 0.02, 0.03, 0.04, 0.02, 0.01, 0.03]},
    "epochs": {"epochs": 2, "batch_size": 4, "steps": None},
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("options", LOCALS)
@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_threads_pieces_streams_and_resumes_do_not_show(method: str, options: str, dtype: str, tmp_path: Path) -> None:
    rule, work, made = strategy(method, max_staleness=2), local(method, **LOCALS[options]), rows(np.dtype(dtype))
    schedule = make_schedule(rule, steps=50)
    assert (schedule.status == fb.Status.TOO_STALE).any()
    whole = fb.replay(made, schedule, work, strategy=rule, seed=3, threads=1, eval_every=10)
    expected = whole.w.tolist()
    for threads in (2, 4):
        again = fb.replay(made, schedule, work, strategy=rule, seed=3, threads=threads, eval_every=10)
        assert again.w.tolist() == expected
        assert again.history["loss"].tolist() == whole.history["loss"].tolist()
    for chunk in (11, 40):
        chunks = fb.iter_schedule(DELAYS, rule, server_steps=50, seed=4, chunk=chunk)
        assert fb.replay(made, chunks, work, strategy=rule, seed=3).w.tolist() == expected
    for stop in (1, 17, 49):
        part = fb.Replay(made, schedule, work, strategy=rule, seed=3, threads=3)
        part.run(max_steps=stop)
        part.check()
        part.save(tmp_path / "part.npz")
        resumed = fb.Replay.load(tmp_path / "part.npz", made, schedule, threads=2)
        resumed.run(max_steps=5)
        resumed.save(tmp_path / "again.npz")
        chunks = fb.iter_schedule(DELAYS, rule, server_steps=50, seed=4, chunk=25)
        last = fb.Replay.load(tmp_path / "again.npz", made, chunks, strategy=rule)
        last.run()
        assert last.w.tolist() == expected and last.updates == whole.history["updates"][-1]


@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_the_reference_agrees(method: str) -> None:
    from fedbuff._replay.feed import _Feed
    from fedbuff.backends import reference
    from fedbuff.backends.spec import EngineSpec, RunSpec, RunState, SumSpec

    rule, work, made = strategy(method, max_staleness=2), local(method, batch_size=3), rows()
    schedule = make_schedule(rule, steps=30)
    spec = EngineSpec(
        rule=rule_of(rule), w0=made.init(3), bound=reference.bind(made._spec), local=work.plan(made), seed=3,
        window_bytes=0, sums=SumSpec(),
    )  # fmt: skip
    engine = reference.replay_engine(spec)
    run = reference.replay_run(engine, RunSpec())
    feed = _Feed(schedule, rule_of(rule), np.ones(N), N, True)
    while (state := run.advance(100, 10.0, 1)) != RunState.SCHEDULE_END:
        if state == RunState.NEED_ROWS and not feed.give(run):
            run.close()
    replay = fb.Replay(made, schedule, work, strategy=rule, seed=3)
    replay.run()
    np.testing.assert_allclose(replay.w, engine.w(), rtol=0, atol=1e-12)
    ours, theirs = replay._engine.rule_state(), engine.rule_state()
    assert sorted(ours) == sorted(theirs) and replay.updates == run.updates()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_single_tasks_give_the_bits_of_the_replay(method: str, dtype: str) -> None:
    """problem.delta with state and control, and the server's two sums made by hand, with K = 1 and one client each."""
    rule, work, made = strategy(method, 1), local(method, batch_size=3), rows(np.dtype(dtype))
    schedule = make_schedule(rule, steps=25)
    kind = np.dtype(dtype).type
    w, c = made.init(3), np.zeros(DIM, dtype)
    models: dict[int, tuple[Any, Any]] = {0: (w, c)}
    own = {client: np.zeros(DIM, dtype) for client in range(N)}
    accumulate = backends.current().accumulate
    for client, task, version in zip(schedule.client, schedule.task, schedule.version, strict=True):
        start, control = models[version]
        before = own[client].copy()
        delta = made.delta(
            start, int(client), work, task=int(task), seed=3, state=own[client],
            control=control if method == "scaffold" else None,
        )  # fmt: skip
        change = own[client] - before
        after, mean = np.empty_like(w), np.empty_like(c)
        accumulate(w, delta, -0.9, None, None, after)
        accumulate(c, change, 1 / N, None, None, mean)
        if method == "feddyn":
            accumulate(after, mean, -kind(1 / ALPHA), None, None, after)
        w, c = after, mean
        models[len(models)] = (w, c)
    got = fb.replay(made, schedule, work, strategy=rule, seed=3).w
    np.testing.assert_allclose(got, w, rtol=4 * np.finfo(dtype).eps, atol=0)


def fed_by_hand(server: Any, schedule: fb.Schedule, made: Any, work: fb.LocalSGD, between: Any = None) -> Any:
    """The server after all rows of the schedule; `between` gives another one after an upload."""
    starts = np.bincount(schedule.version, minlength=schedule.n_steps + 1)
    models: dict[int, Any] = {}
    own = {client: np.zeros(DIM, made.dtype) for client in range(N)}

    def download() -> None:
        for _ in range(starts[server.version]):
            version, w, control = server.download()
            models[version] = w.copy(), control.copy()

    download()
    columns = (schedule.client, schedule.task, schedule.version)
    for client, task, version in zip(*(column.tolist() for column in columns), strict=True):
        start, control = models[version]
        before = own[client].copy()
        given = control if work.method == "scaffold" else None
        delta = made.delta(start, client, work, task=task, seed=3, state=own[client], control=given)
        stepped = server.upload(delta, version, change=own[client] - before)
        server = server if between is None else between(server)
        if stepped and server.version < schedule.n_steps:
            download()
        if server.version == schedule.n_steps:
            break
    return server


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_a_server_fed_by_hand_gives_the_replay(method: str, dtype: str, tmp_path: Path) -> None:
    from fedbuff.backends import reference

    rule, work, made = strategy(method, max_staleness=2), local(method, batch_size=3), rows(np.dtype(dtype))
    schedule = make_schedule(rule, steps=20)
    assert (schedule.status == fb.Status.TOO_STALE).any()
    replay = fb.Replay(made, schedule, work, strategy=rule, seed=3)
    replay.run()
    control = replay._engine.rule_state()["control"]
    server = fed_by_hand(fb.Server(made.init(3), rule), schedule, made, work)
    assert server.w.tolist() == replay.w.tolist() and server.download()[2].tolist() == control.tolist()

    def saved(server: Any) -> Any:
        server.save(tmp_path / "server.npz")
        return type(server).load(tmp_path / "server.npz")

    again = fed_by_hand(fb.Server(made.init(3), rule), schedule, made, work, saved)
    assert again.w.tolist() == replay.w.tolist() and again.download()[2].tolist() == control.tolist()
    plain = fed_by_hand(reference.Server(made.init(3), rule), schedule, made, work, saved)
    scale = 1e-12 if dtype == "float64" else 1e-4
    np.testing.assert_allclose(plain.w, replay.w, rtol=0, atol=scale)
    np.testing.assert_allclose(plain.download()[2], control, rtol=0, atol=scale)


@pytest.mark.parametrize("kind", ["compiled", "reference"])
def test_refused_changes_leave_a_server_as_it_was(kind: str) -> None:
    from fedbuff.backends import reference

    make = fb.Server if kind == "compiled" else reference.Server
    ones = np.ones(DIM)
    server = make(np.zeros(DIM), strategy("feddyn", 2))
    for _ in range(4):
        server.download()
    server.upload(ones, 0, change=ones)
    for change, error, text in (
        (None, ValueError, r"^change: feddyn needs what the client's state has changed by"),
        (ones[:-1], ValueError, r"^change: expected shape"),
        (ones.astype(np.float32), TypeError, r"^change: expected float64"),
        (ones * np.nan, ValueError, r"^change: element 0 is nan; nothing was added"),
    ):
        with pytest.raises(error, match=text):
            server.upload(ones, 0, change=change)
    server.upload(ones, 0, change=3 * ones)
    version, w, control = server.download()
    assert version == 1 and server.outstanding == 3
    np.testing.assert_allclose(control, 4 / N * ones, rtol=1e-15)
    np.testing.assert_allclose(w, -0.9 - 4 / N / ALPHA * ones, rtol=1e-15)
    with pytest.raises(OverflowError, match="does not fit"):
        server.upload(ones, 0, change=1.7e308 * ones)
        server.upload(ones, 0, change=1.7e308 * ones)
    plain = make(np.zeros(DIM), fb.FedBuff(1))
    plain.download()
    with pytest.raises(ValueError, match=r"^change: this rule has no control variate"):
        plain.upload(ones, 0, change=ones)
    with pytest.raises(ValueError, match=r"^unit: a control variate"):
        make(np.zeros(DIM), strategy("scaffold"), unit=0.1)


@compiled
def test_a_compiled_gradient_keeps_the_state_too() -> None:
    ctypes = pytest.importorskip("ctypes")
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.POINTER(ctypes.c_double),
        ctypes.POINTER(ctypes.c_double), ctypes.c_void_p,
    )  # fmt: skip

    def gradient(client: int, n: int, chosen: Any, w: Any, out: Any, context: Any) -> int:
        for j in range(DIM):
            out[j] = 0.7 * (w[j] - CENTERS[client, j])
        return 0

    address = ctypes.cast(kept := kind(gradient), ctypes.c_void_p).value
    made = fb.Custom(address, dim=DIM, n_samples=[1] * N, dtype=np.float64)
    for method in ("scaffold", "feddyn"):
        rule = strategy(method)
        schedule = make_schedule(rule, steps=15)
        w = fb.replay(made, schedule, local(method), strategy=rule).w
        np.testing.assert_allclose(w, loop(method, schedule, 3, 4, 0.05, 0.9)[0], rtol=0, atol=1e-10)
    assert kept is not None


TABLES: dict[str, Any] = {
    "problem": {"kind": "quadratic", "centers": CENTERS.tolist(), "curvature": 0.5},
    "trace": {"kind": "model", "n_clients": N},
    "strategy": {"kind": "feddyn", "buffer_size": 2, "n_clients": N, "alpha": 0.5},
    "local": {"steps": 2, "lr": 0.1, "method": "feddyn", "alpha": 0.5},
    "schedule": {"server_steps": 12},
}


def test_configurations_and_sweeps() -> None:
    loss = fb.StudyConfig(TABLES).run(seed=1).history["loss"][-1]
    assert fb.sweep(TABLES, {"local.lr": [0.1]}, seeds=[1]).column("loss").tolist() == [loss]
    scaffold = {
        **TABLES, "strategy": {"kind": "scaffold", "buffer_size": 2, "n_clients": N},
        "local": {"steps": 2, "lr": 0.1, "method": "scaffold"},
    }  # fmt: skip
    assert fb.StudyConfig(scaffold).run(seed=1).version == 12


def test_damaged_states_are_refused(tmp_path: Path) -> None:
    rule, made = strategy("scaffold"), quadratic()
    schedule = make_schedule(rule)
    replay = fb.Replay(made, schedule, local("scaffold"), strategy=rule)
    replay.run(max_steps=9)
    replay.save(tmp_path / "good.npz")
    from fedbuff._replay.checkpoint import _digest

    arrays = dict(np.load(tmp_path / "good.npz"))
    faults: dict[str, dict[str, Any]] = {
        "state_client: expected ascending": {"state_client": arrays["state_client"][::-1].copy()},
        "state_client: expected ascending numbers below": {"state_client": arrays["state_client"] + N},
        "state_rows: expected float64": {"state_rows": arrays["state_rows"].astype(np.float32)},
        "state_rows: the state of client": {"state_rows": arrays["state_rows"] * np.nan},
        "control is float64": {"control": arrays["control"][:-1]},
        "models is": {"models": arrays["models"][:, :DIM]},
    }
    for message, change in faults.items():
        broken = {name: value for name, value in (arrays | change).items() if name != "checksum"}
        np.savez(tmp_path / "bad.npz", **broken, checksum=np.frombuffer(_digest(broken), np.uint8))
        with pytest.raises(ValueError, match=message):
            fb.Replay.load(tmp_path / "bad.npz", made, schedule)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"method": "feddyn"}, TypeError, r"^alpha: feddyn needs it"),
        ({"method": "feddyn", "alpha": 0.0}, ValueError, r"^alpha: expected"),
        ({"method": "scaffold", "alpha": 0.1}, ValueError, r'^alpha: it is for method="feddyn"; scaffold has none'),
        ({"method": "scaffold", "lr": 0.0}, ValueError, r"^lr: scaffold divides by it"),
        ({"method": "scaffold", "lr": [0.1, 0.0]}, ValueError, r"^lr: scaffold divides by it"),
        *(
            ({"method": method, "alpha": alpha, name: value}, ValueError, rf"^{name}: {method} needs plain steps")
            for (method, alpha), (name, value) in itertools.product(
                [("scaffold", None), ("feddyn", 0.1)],
                [
                    ("momentum", 0.9), ("weight_decay", 0.1), ("prox", 0.1), ("lr_by_step", fb.LearningRate(1.0)),
                    ("lr_by_version", fb.LearningRate(1.0)),
                ],
            )
        ),
    ],
)  # fmt: skip
def test_refused_options(options: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        fb.LocalSGD(**{"steps": 2, "lr": 0.1, **options})


def test_refused_rules_and_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^n_clients: scaffold needs it"):
        fb.FedBuff(3, method="scaffold")
    with pytest.raises(ValueError, match=r"^table: scaffold needs what each client changed"):
        strategy("scaffold", table=fb.ClientTable())
    with pytest.raises(ValueError, match=r"^secure: feddyn needs what each client changed"):
        strategy("feddyn", secure="simulate")
    rule = strategy("feddyn")
    schedule = make_schedule(rule, steps=3)
    with pytest.raises(ValueError, match=r"^alpha: the strategy has 0\.3, LocalSGD has 0\.5; make them equal"):
        fb.replay(quadratic(), schedule, local("feddyn", alpha=0.5), strategy=rule)
    with pytest.raises(ValueError, match=r'^method: the strategy has "feddyn", its clients have "scaffold"'):
        fb.replay(quadratic(), schedule, local("scaffold"), strategy=rule)
    other = fb.algorithm("scaffold", buffer_size=3, n_clients=N + 1)
    with pytest.raises(ValueError, match=rf"^n_clients: scaffold has {N + 1}, the problem has {N}"):
        fb.replay(quadratic(), schedule, local("scaffold"), strategy=other)
    w = np.zeros(DIM)
    if backends.compiled() is not None:
        from fedbuff._local_sgd import LocalSGD

        with pytest.raises(ValueError, match=r"^local: this loop keeps no state of clients"):
            LocalSGD(quadratic(), local("feddyn"))
    with pytest.raises(TypeError, match=r"^state: feddyn needs it"):
        quadratic().delta(w, 0, local("feddyn"))
    with pytest.raises(TypeError, match=r"^control: scaffold needs it"):
        quadratic().delta(w, 0, local("scaffold"), state=np.zeros(DIM))
    with pytest.raises(ValueError, match=r'^state: method="sgd" has none'):
        quadratic().delta(w, 0, fb.LocalSGD(steps=1, lr=0.1), state=np.zeros(DIM))
    monkeypatch.setattr("fedbuff._replay.engine.free_memory", lambda: 100)
    n = len(np.unique(schedule.client))
    with pytest.raises(MemoryError, match=rf"^method: feddyn keeps 3 float64 of each of {n} clients, {24 * n} bytes"):
        fb.replay(quadratic(), schedule, local("feddyn"), strategy=rule)
