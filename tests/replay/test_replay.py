"""The main job: the same bits on any number of threads, in any pieces and after a resume; and the right numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends
from fedbuff.backends import reference
from fedbuff.backends.spec import EngineSpec, SumSpec, UsedRows

N_CLIENTS, ROWS, FEATURES, CLASSES = 20, 12, 7, 3
LOCAL = fb.LocalSGD(steps=5, lr=0.1, batch_size=5)  # not so little that the engine would keep to one thread

STRATEGIES = {
    "paper": fb.FedBuff(4),
    "nguyen": fb.FedBuff.preset("nguyen", buffer_size=4),
    "momentum": fb.FedBuff(4, optimizer=fb.SGD(0.9)),
    "adam": fb.FedBuff(4, server_lr=0.01, optimizer=fb.Adam()),
    "yogi": fb.FedBuff(4, server_lr=fb.LearningRate(0.1, "cosine", 40, warm_up=5), optimizer=fb.Yogi()),
    "fadas": fb.FedBuff(4, server_lr=0.3, norm="arrivals", optimizer=fb.AMSGrad(), tau_c=3),
    "delayed_nesterov": fb.FedBuff(4, optimizer=fb.DelayedNesterov(5, activation=0.1)),
    "fedscale": fb.FedBuff.preset("fedscale", buffer_size=4),
    "samples": fb.FedBuff.preset("flower_pr", buffer_size=4),
    "fedasync": fb.FedAsync(0.5, fb.staleness.Polynomial(0.5)),
    "max_staleness": fb.FedBuff(4, max_staleness=2),
    "ca2fl": fb.algorithm("ca2fl", buffer_size=4, n_clients=N_CLIENTS),
    "ca2fl seen": fb.algorithm("ca2fl", buffer_size=4, n_clients=N_CLIENTS, variant="seen", table="bfloat16"),
    "ace": fb.algorithm("ace", n_clients=N_CLIENTS, server_lr=0.3),
    "asyncfeded": fb.FedBuff(2, 0.05, weight_by=fb.DeltaWeight("ratio", epsilon=0.5)),
    "last step": fb.FedBuff(4, 1.0, norm="scaled_weights", weight_by=fb.DeltaWeight("last_step", clip=0.1)),
    "cosine with the sum": fb.FedBuff(3, 1.0, base="current", norm="scaled_weights", weight_by=fb.DeltaWeight("sum")),
    "weights and rows": fb.FedBuff(
        4,
        0.1,
        n_clients=N_CLIENTS,
        weight_by=fb.DeltaWeight("norm", epsilon=0.1),
        table=fb.ClientTable(),
    ),
    "rows and moments": fb.FedBuff(
        4,
        0.1,
        base="current",
        norm="scaled_weights",
        staleness=fb.staleness.Polynomial(0.5),
        n_clients=N_CLIENTS,
        optimizer=fb.AMSGrad(),
        table=fb.ClientTable(own=-0.5, mean=0.5),
    ),
}


def make_problem(dtype: str = "float32") -> fb.Softmax:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_CLIENTS * ROWS, FEATURES)).astype(dtype)
    y = rng.integers(0, CLASSES, len(X))
    clients = np.sort(rng.integers(0, N_CLIENTS, len(X) - N_CLIENTS).tolist() + list(range(N_CLIENTS)))
    return fb.Softmax(X, y, clients)


def make_schedule(strategy: Any, steps: int = 60, **options: Any) -> fb.Schedule:
    delays = fb.DelayModel(n_clients=N_CLIENTS, compute=fb.Exponential(1.0), client_speed=fb.LogNormal(0.0, 0.5))
    options.setdefault("concurrency", None if strategy.kind == "fedavg" else 10)
    return fb.schedule(delays, strategy, server_steps=steps, seed=3, **options)


PROBLEM = make_problem()


def by_hand(problem: Any, schedule: fb.Schedule, strategy: Any, seed: int = 5) -> np.ndarray:
    """`fb.Server`, fed in the order of the schedule."""
    server = fb.Server(problem.init(seed), strategy)
    arrived = np.isin(schedule.status, [fb.Status.USED, fb.Status.TOO_STALE])
    starts = Counter(schedule.version[arrived].tolist())
    models: dict[int, np.ndarray] = {}

    def download() -> None:
        for _ in range(starts[server.version]):
            _, models[server.version] = server.download()

    download()
    for client, task, version in zip(
        schedule.client[arrived].tolist(),
        schedule.task[arrived].tolist(),
        schedule.version[arrived].tolist(),
        strict=True,
    ):
        delta = problem.delta(models[version], client, LOCAL, task=task, seed=seed)
        if server.upload(delta, version, n_samples=int(problem.n_samples[client]), client=client):
            download()
    assert server.version == schedule.n_steps
    return server.w


@pytest.mark.parametrize("name", STRATEGIES)
def test_any_threads_and_pieces_give_the_bits_of_a_server_fed_by_hand(name: str) -> None:
    strategy = STRATEGIES[name]
    schedule = make_schedule(strategy)
    expected = by_hand(PROBLEM, schedule, strategy)
    for threads in (1, 2, 3, 8):
        for piece in (1, 7, 10**6):
            replay = fb.Replay(PROBLEM, schedule, LOCAL, strategy=strategy, seed=5, threads=threads)
            while replay.run(piece) == fb.ExitReason.SERVER_STEPS:
                replay.check()
            assert replay.version == schedule.n_steps
            assert replay.updates == np.count_nonzero(schedule.status == fb.Status.USED)
            np.testing.assert_array_equal(replay.w, expected, strict=True)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("chunk", [1, 50, 10**6])
def test_a_schedule_in_chunks_gives_the_same_bits(name: str, chunk: int) -> None:
    strategy = STRATEGIES[name]
    whole = fb.replay(PROBLEM, make_schedule(strategy), LOCAL, strategy=strategy, seed=5)
    delays = fb.DelayModel(n_clients=N_CLIENTS, compute=fb.Exponential(1.0), client_speed=fb.LogNormal(0.0, 0.5))
    chunks = fb.iter_schedule(delays, strategy, 10, server_steps=60, seed=3, chunk=chunk)
    streamed = fb.replay(PROBLEM, chunks, LOCAL, strategy=strategy, seed=5)
    np.testing.assert_array_equal(streamed.w, whole.w, strict=True)
    assert streamed.version == whole.version == 60
    # A stream counts all tasks that start on a version, so it keeps at most what is in flight longer.
    assert streamed.stats["live_versions"] <= whole.stats["live_versions"] + 10


@pytest.mark.parametrize("name", STRATEGIES)
def test_float64_agrees_with_the_sequential_oracle(name: str) -> None:
    strategy = STRATEGIES[name]
    problem = make_problem("float64")
    schedule = make_schedule(strategy, steps=25)
    got = fb.replay(problem, schedule, LOCAL, strategy=strategy, seed=5).w
    used = schedule.status == fb.Status.USED
    s = np.array([strategy.rule.staleness_weight(t) for t in range(schedule.tau + 1)])[schedule.staleness[used]]
    e = np.array([strategy.rule.sample_weight(n) for n in problem.n_samples])[schedule.client[used]]
    engine = reference.replay_engine(
        EngineSpec(
            rule=strategy.rule, w0=problem.init(5), bound=reference.bind(problem._spec), local=LOCAL.plan(problem),
            seed=5, window_bytes=0, sums=SumSpec(),
        )
    )  # fmt: skip
    references = np.bincount(schedule.version[used], minlength=25)[:25]
    rows = UsedRows(*(getattr(schedule, c)[used] for c in ("client", "task", "version", "step")), s, e)
    engine.add(rows, references, np.empty(0, np.int64))
    assert engine.run(25, 1) == 0
    # 25 steps of 4 x 3 local steps: each rounds at the scale of the model, and nothing here amplifies.
    np.testing.assert_allclose(got, engine.w(), rtol=0, atol=1e-12 * np.abs(got).max())


def test_fedavg_is_the_textbook_loop() -> None:
    problem = make_problem("float64")
    strategy = fb.FedAvg(clients_per_round=5)
    schedule = make_schedule(strategy, steps=10)
    w = problem.init()
    tasks: Counter[int] = Counter()
    for t in range(10):
        rows = np.flatnonzero(schedule.step == t)
        clients = schedule.client[rows]
        weights = problem.n_samples[clients] / problem.n_samples[clients].sum()
        deltas = [
            problem.delta(w, int(c), LOCAL, task=int(k)) for c, k in zip(clients, schedule.task[rows], strict=True)
        ]
        tasks.update(clients.tolist())
        w = w - sum(weight * delta for weight, delta in zip(weights, deltas, strict=True))
    got = fb.replay(problem, schedule, LOCAL, strategy=strategy).w
    np.testing.assert_allclose(got, w, rtol=0, atol=1e-13 * np.abs(w).max())


def test_one_client_and_k_1_is_sequential_sgd() -> None:
    rng = np.random.default_rng(1)
    problem = fb.LeastSquares(rng.standard_normal((9, 4)), rng.standard_normal(9), np.zeros(9, int))
    strategy = fb.FedBuff(1)
    schedule = fb.schedule(fb.DelayModel(n_clients=1), strategy, server_steps=12, seed=0)
    local = fb.LocalSGD(steps=2, lr=0.05, batch_size=3)
    w = problem.init()
    for task in range(12):
        w = w - problem.delta(w, 0, local, task=task)
    np.testing.assert_array_equal(fb.replay(problem, schedule, local, strategy=strategy).w, w)


def test_a_buffer_larger_than_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = fb.FedBuff(40)
    schedule = make_schedule(strategy, steps=5)
    expected = fb.replay(PROBLEM, schedule, LOCAL, strategy=strategy).w
    monkeypatch.setattr("fedbuff._replay.engine.WINDOW_BYTES", 1)
    for threads in (1, 2):
        replay = fb.Replay(PROBLEM, schedule, LOCAL, strategy=strategy, threads=threads)
        replay.run()
        replay.check()
        np.testing.assert_array_equal(replay.w, expected)
        assert replay.stats["most_window"] <= 2 * threads


def test_memory_is_bounded_by_live_versions_window_and_threads() -> None:
    delays = fb.DelayModel(n_clients=3000, compute=fb.Exponential(1.0))
    strategy = fb.FedBuff(10)
    schedule = fb.schedule(delays, strategy, concurrency=2000, server_steps=600, seed=0)
    problem = fb.Quadratic(np.zeros((3000, 2)))
    replay = fb.Replay(problem, schedule, fb.LocalSGD(1, 0.1), strategy=strategy, threads=2)
    replay.run()
    used = schedule.status == fb.Status.USED
    version, step = schedule.version[used], schedule.step[used]
    last = np.zeros(schedule.n_steps + 1, np.int64)
    np.maximum.at(last, version, step)
    needed = max(np.count_nonzero(last[: t + 1] >= t) for t in range(schedule.n_steps))
    assert replay.stats["most_versions"] <= needed + 2
    assert replay.stats["live_versions"] == 1


# History, metrics, stopping


def test_history_and_metrics() -> None:
    strategy = fb.FedBuff(4)
    schedule = make_schedule(strategy)
    X = np.random.default_rng(9).standard_normal((30, FEATURES)).astype(np.float32)
    y = np.arange(30) % CLASSES
    metrics = ("loss", "grad_norm_sq", "accuracy", "distance", "step_norm")
    run = fb.replay(PROBLEM, schedule, LOCAL, strategy=strategy, eval_every=25, metrics=metrics, test=(X, y))
    history = run.history
    assert history["step"].tolist() == [0, 25, 50, 60]
    assert history["updates"].tolist() == [0, 100, 200, 240]
    assert history["time"].tolist() == [0.0, *schedule.step_time[[24, 49, 59]].tolist()]
    middle = fb.replay(PROBLEM, schedule, LOCAL, strategy=strategy, stop=fb.Stop(server_steps=50)).w
    before = fb.replay(PROBLEM, schedule, LOCAL, strategy=strategy, stop=fb.Stop(server_steps=25)).w
    assert history["loss"][2] == PROBLEM.loss(middle)
    gradient = PROBLEM.grad(middle).astype(np.float64)
    assert history["grad_norm_sq"][2] == pytest.approx(gradient @ gradient, rel=1e-12)
    assert history["grad_norm_sq_mean"][2] == pytest.approx(history["grad_norm_sq"][:3].mean())
    assert history["accuracy"][2] == PROBLEM.accuracy(middle, (X, y))
    assert history["distance"][2] == pytest.approx(np.linalg.norm((middle - before).astype(np.float64)), rel=1e-6)
    almost = fb.replay(PROBLEM, schedule, LOCAL, strategy=strategy, stop=fb.Stop(server_steps=49)).w
    assert history["step_norm"][2] == pytest.approx(np.linalg.norm((middle - almost).astype(np.float64)), rel=1e-6)
    assert history["step_norm"][0] == 0
    used = (schedule.step >= 25) & (schedule.step < 50)
    assert history["staleness_mean"][2] == pytest.approx(schedule.staleness[used].mean())
    assert history["staleness_max"][2] == schedule.staleness[used].max()
    assert run.stats["eval_seconds"] > 0
    frame = history.to_pandas()
    assert frame["step"].tolist() == [0, 25, 50, 60]
    with pytest.raises(KeyError, match="the history has step"):
        history["nothing"]


@pytest.mark.parametrize(
    ("stop", "reason", "version"),
    [
        (fb.Stop(server_steps=17), "server_steps", 17),
        (fb.Stop(updates=41), "updates", 10),
        (fb.Stop(updates=0), "updates", 0),
        (fb.Stop(server_steps=10**9), "schedule_end", 60),
        (fb.Stop(accuracy=0.0), "accuracy", 0),
        (fb.Stop(loss=1e9), "loss", 0),
        (fb.Stop(grad_norm_sq=1e9), "grad_norm_sq", 0),
        (lambda row: row["step"] >= 20, "stop_function", 20),
    ],
)
def test_stopping(stop: Any, reason: str, version: int) -> None:
    strategy = fb.FedBuff(4)
    metrics = ("loss", "accuracy", "grad_norm_sq")
    run = fb.replay(
        PROBLEM, make_schedule(strategy), LOCAL, strategy=strategy, eval_every=10, metrics=metrics, stop=stop
    )
    assert (run.exit_reason.value, run.version) == (reason, version)
    assert run.history["step"][-1] == version


def test_stopping_by_time_and_time_to() -> None:
    strategy = fb.FedBuff(4)
    schedule = make_schedule(strategy)
    limit = float(schedule.step_time[29]) + 1e-9
    run = fb.replay(PROBLEM, schedule, LOCAL, strategy=strategy, eval_every=1, stop=fb.Stop(time=limit))
    assert (run.exit_reason, run.version) == (fb.ExitReason.TIME, 30)
    target = float(run.history["loss"][20])
    first = int(np.argmax(run.history["loss"] <= target))
    assert run.time_to("loss", target) == run.history["time"][first]
    assert run.updates_to("loss", target) == 4 * first
    assert run.time_to("loss", -1.0) is None


def test_divergence_keeps_the_history_and_names_the_arrival() -> None:
    problem = fb.Quadratic(np.ones((N_CLIENTS, 3)))
    schedule = make_schedule(fb.FedBuff(4), steps=60)
    with pytest.warns(RuntimeWarning, match=r"not finite after server step \d+, arrival \d+: client \d+, version \d+, "
                      r"local step size 1e\+20, server step size 0.25"):  # fmt: skip
        run = fb.replay(problem, schedule, fb.LocalSGD(1, 1e20), eval_every=1)
    assert run.exit_reason == fb.ExitReason.DIVERGED
    assert np.isfinite(run.w).all()
    assert run.history["step"][-1] == run.version < 60


# Python functions as clients


def test_a_callback_equals_the_built_in_problem() -> None:
    strategy = fb.FedBuff(4)
    schedule = make_schedule(strategy)

    def client(number: int, task: int, w: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        assert not w.flags.writeable
        return PROBLEM.delta(w, number, LOCAL, task=task, seed=5)

    problem = fb.Callback(client, w0=PROBLEM.init(), n_clients=N_CLIENTS, loss=lambda w: PROBLEM.loss(w))
    expected = fb.replay(PROBLEM, schedule, LOCAL, strategy=strategy, seed=5, eval_every=30)
    for threads in (1, 3):
        run = fb.replay(problem, schedule, strategy=strategy, seed=5, threads=threads, eval_every=30)
        np.testing.assert_array_equal(run.w, expected.w)
        np.testing.assert_array_equal(run.history["loss"], expected.history["loss"])


def test_a_callbacks_generator_depends_on_seed_client_and_task_alone() -> None:
    schedule = make_schedule(fb.FedBuff(4), steps=10)
    runs = []
    for threads in (1, 4, 4):
        drawn: dict[tuple[int, int], float] = {}

        def client(
            number: int, task: int, w: np.ndarray, generator: np.random.Generator, drawn: Any = drawn
        ) -> np.ndarray:
            drawn[number, task] = generator.random()
            return np.zeros_like(w)

        fb.replay(fb.Callback(client, w0=np.ones(2), n_clients=N_CLIENTS), schedule, threads=threads, seed=1)
        runs.append(drawn)
    used = schedule.step >= 0
    expected = set(zip(schedule.client[used].tolist(), schedule.task[used].tolist(), strict=True))
    assert all(set(run) >= expected for run in runs)
    assert all(runs[0][key] == run[key] for run in runs for key in expected)
    assert len(set(runs[0].values())) == len(runs[0])


def test_a_failing_client_propagates_with_the_result_and_the_replay_can_go_on() -> None:
    schedule = make_schedule(fb.FedBuff(4), steps=20)
    broken = {"on": True}

    def client(number: int, task: int, w: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        if broken["on"] and task == 2:
            raise RuntimeError("client died")
        return 0.1 * w

    problem = fb.Callback(client, w0=np.ones(2), n_clients=N_CLIENTS)
    with pytest.raises(RuntimeError, match="client died") as caught:
        fb.replay(problem, schedule, threads=2)
    result = caught.value.result  # type: ignore[attr-defined]
    assert 0 <= result.version < 20
    replay = fb.Replay(problem, schedule, threads=2)
    with pytest.raises(RuntimeError, match="client died"):
        replay.run()
    replay.check()
    broken["on"] = False
    assert replay.run() == fb.ExitReason.SCHEDULE_END
    np.testing.assert_array_equal(replay.w, fb.replay(problem, schedule, threads=1).w)


def test_a_wrong_delta_is_refused() -> None:
    schedule = make_schedule(fb.FedBuff(4), steps=2)
    problem = fb.Callback(lambda c, t, w, g: np.zeros(3), w0=np.ones(2), n_clients=N_CLIENTS)
    with pytest.raises(ValueError, match=r"function: expected a delta of shape \(2,\), got \(3,\)"):
        fb.replay(problem, schedule)


def test_a_failing_callback_carries_the_result() -> None:
    def callback(row: dict[str, float]) -> None:
        if row["step"] == 20:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        fb.replay(PROBLEM, make_schedule(fb.FedBuff(4)), LOCAL, eval_every=10, callback=callback)
    result = caught.value.result  # type: ignore[attr-defined]
    assert result.version == 20
    assert result.history["step"].tolist() == [0, 10, 20]


# Interruption, checkpoints, processes


def test_ctrl_c_keeps_what_was_done() -> None:
    schedule = make_schedule(fb.FedBuff(4), steps=60)

    def client(number: int, task: int, w: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        time.sleep(0.01)
        return 0.1 * w

    problem = fb.Callback(client, w0=np.ones(2), n_clients=N_CLIENTS)
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(fb.Interrupted) as caught:
        fb.replay(problem, schedule, threads=1)
    timer.join()
    assert isinstance(caught.value, KeyboardInterrupt)
    result = caught.value.result
    assert 0 < result.version < 60
    expected = fb.Replay(fb.Callback(lambda c, t, w, g: 0.1 * w, w0=np.ones(2), n_clients=N_CLIENTS), schedule)
    expected.run(result.version)
    np.testing.assert_array_equal(result.w, expected.w)


@pytest.mark.parametrize("name", STRATEGIES)
def test_saved_and_loaded_anywhere_it_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    strategy = STRATEGIES[name]
    schedule = make_schedule(strategy)
    expected = fb.replay(PROBLEM, schedule, LOCAL, strategy=strategy, seed=5).w
    replay = fb.Replay(PROBLEM, schedule, LOCAL, strategy=strategy, seed=5, threads=2)
    while replay.run(7) == fb.ExitReason.SERVER_STEPS:
        replay.save(tmp_path / "r.npz")
        replay = fb.Replay.load(tmp_path / "r.npz", PROBLEM, schedule, threads=2)
        replay.check()
    np.testing.assert_array_equal(replay.w, expected)
    assert replay.updates == np.count_nonzero(schedule.status == fb.Status.USED)
    assert os.listdir(tmp_path) == ["r.npz"]


def test_a_checkpoint_of_a_stream_resumes(tmp_path: Path) -> None:
    strategy = fb.FedBuff(4)
    delays = fb.DelayModel(n_clients=N_CLIENTS, compute=fb.Exponential(1.0))

    def stream() -> Any:
        return fb.iter_schedule(delays, strategy, 10, server_steps=60, seed=3, chunk=30)

    options: dict[str, Any] = {"strategy": strategy, "eval_every": 7, "metrics": ("loss", "distance")}
    expected = fb.replay(PROBLEM, stream(), LOCAL, **options)
    path = tmp_path / "c.npz"
    fb.replay(PROBLEM, stream(), LOCAL, **options, checkpoint=path, stop=fb.Stop(server_steps=31))
    resumed = fb.replay(PROBLEM, stream(), LOCAL, **options, checkpoint=path)
    np.testing.assert_array_equal(resumed.w, expected.w)
    steps = resumed.history["step"].tolist()
    assert steps == sorted({*expected.history["step"].tolist(), 31})


def test_a_foreign_truncated_or_changed_checkpoint_is_refused(tmp_path: Path) -> None:
    schedule = make_schedule(fb.FedBuff(4))
    path = tmp_path / "c.npz"
    fb.replay(PROBLEM, schedule, LOCAL, checkpoint=path, stop=fb.Stop(server_steps=10))
    content = path.read_bytes()
    for change, name in (
        ({"seed": 1}, "seed"),
        ({"local": fb.LocalSGD(3, 0.2, 5)}, "local"),
        ({"strategy": fb.FedBuff(4, server_lr=0.7)}, "rule"),
        ({"schedule": make_schedule(fb.FedBuff(4), steps=61)}, "schedule"),
        ({"w0": np.ones(PROBLEM.dim, np.float32)}, "w0"),
        ({"eval_every": 5}, "metrics"),
    ):
        given = {"schedule": schedule, "local": LOCAL, **change}
        with pytest.raises(ValueError, match=rf"made with (another|other) {name}"):
            fb.replay(PROBLEM, given.pop("schedule"), given.pop("local"), checkpoint=path, **given)
    with pytest.raises(ValueError, match="made with another problem"):
        fb.replay(make_problem("float64"), schedule, LOCAL, checkpoint=path)
    flipped = bytearray(content)
    with np.load(path) as file:
        flipped[content.index(file["models"].tobytes()) + 5] ^= 1
    for bad in (content[: len(content) // 2], b"", bytes(flipped)):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match="not a saved replay"):
            fb.replay(PROBLEM, schedule, LOCAL, checkpoint=path)
        assert path.read_bytes() == bad


KILLED = textwrap.dedent(
    """
    import sys
    sys.path.insert(0, sys.argv[2])
    from test_replay import LOCAL, PROBLEM, make_schedule
    import fedbuff as fb
    import numpy as np
    strategy = fb.FedBuff(4)
    print("ready", flush=True)
    run = fb.replay(PROBLEM, make_schedule(strategy, steps=4000), LOCAL, strategy=strategy, threads=2,
                    checkpoint=sys.argv[1], checkpoint_every=20, eval_every=500)
    np.save(sys.argv[1] + ".npy", run.w)
    """
)


def test_killed_at_random_moments_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    strategy = fb.FedBuff(4)
    expected = fb.replay(PROBLEM, make_schedule(strategy, steps=4000), LOCAL, strategy=strategy)
    path = tmp_path / "c.npz"
    command = [sys.executable, "-c", KILLED, str(path), str(Path(__file__).parent)]
    rng = np.random.default_rng(int(os.environ.get("FEDBUFF_KILL_SEED", "0")))
    kills = 0
    for _ in range(int(os.environ.get("FEDBUFF_KILLS", "20"))):
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(float(rng.uniform(0.0, 0.15)))
        process.kill()
        kills += process.wait() == -signal.SIGKILL
        process.stdout.close()
    assert kills > 0
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    np.testing.assert_array_equal(np.load(f"{path}.npy"), expected.w)


def test_a_replay_after_fork_works() -> None:
    strategy = fb.FedBuff(4)
    schedule = make_schedule(strategy)
    expected = fb.replay(PROBLEM, schedule, LOCAL, strategy=strategy, threads=2).w
    code = textwrap.dedent(
        """
        import os, sys
        sys.path.insert(0, sys.argv[1])
        from test_replay import LOCAL, PROBLEM, make_schedule
        import fedbuff as fb
        strategy = fb.FedBuff(4)
        schedule = make_schedule(strategy)
        fb.replay(PROBLEM, schedule, LOCAL, strategy=strategy, threads=2)
        child = os.fork()
        if child == 0:
            run = fb.replay(PROBLEM, schedule, LOCAL, strategy=strategy, threads=2)
            sys.stdout.write(run.w.tobytes().hex())
            sys.stdout.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """
    )
    done = subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)], check=True, capture_output=True)
    np.testing.assert_array_equal(np.frombuffer(bytes.fromhex(done.stdout.decode()), np.float32), expected)


# Bad input


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"local": None}, TypeError, "local: expected fedbuff.LocalSGD"),
        ({"w0": np.zeros(3, np.float32)}, ValueError, "w0: expected shape"),
        ({"w0": np.zeros(PROBLEM.dim)}, TypeError, "w0: expected float32"),
        ({"seed": -1}, ValueError, "seed: "),
        ({"seed": 2**64}, ValueError, r"seed: expected an int below 2\*\*64"),
        ({"threads": 0}, ValueError, "threads: "),
        ({"eval_every": 0}, ValueError, "eval_every: "),
        ({"metrics": ("nonsense",), "eval_every": 1}, ValueError, "metrics: expected one of"),
        ({"stop": fb.Stop(accuracy=0.5)}, ValueError, "eval_every: "),
        ({"stop": fb.Stop(accuracy=0.5), "eval_every": 1}, ValueError, "metrics: stop looks at 'accuracy'"),
        ({"stop": 3}, TypeError, "stop: "),
        ({"strategy": 3}, TypeError, "strategy: "),
        ({"checkpoint_every": 0}, ValueError, "checkpoint_every: "),
        ({"test": (1, 2), "eval_every": 1}, ValueError, "test: "),
    ],
)
def test_bad_arguments(change: dict[str, Any], error: type[Exception], text: str) -> None:
    given = {"local": LOCAL, **change}
    with pytest.raises(error, match=text):
        fb.replay(PROBLEM, make_schedule(fb.FedBuff(4), steps=2), given.pop("local"), **given)


def test_sizes_that_do_not_match() -> None:
    schedule = fb.schedule(fb.DelayModel(n_clients=7), fb.FedBuff(4), server_steps=3, seed=0)
    with pytest.raises(ValueError, match="it has 7 clients, the problem 20"):
        fb.replay(PROBLEM, schedule, LOCAL)
    with pytest.raises(ValueError, match="begins at a later step"):
        fb.replay(PROBLEM, make_schedule(fb.FedBuff(4))[3:9], LOCAL)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_schedules_own_strategy_is_the_default(name: str, tmp_path: Path) -> None:
    schedule = make_schedule(STRATEGIES[name], steps=10)
    expected = fb.replay(PROBLEM, schedule, LOCAL, strategy=STRATEGIES[name]).w
    np.testing.assert_array_equal(fb.replay(PROBLEM, schedule, LOCAL).w, expected)
    schedule.save(tmp_path / "s.npz")
    np.testing.assert_array_equal(fb.replay(PROBLEM, fb.load_schedule(tmp_path / "s.npz"), LOCAL).w, expected)


def test_a_staleness_function_of_ones_own_must_be_given_again() -> None:
    strategy = fb.FedBuff(4, staleness=lambda staleness: 1.0 / (1.0 + staleness))
    schedule = make_schedule(strategy, steps=3)
    with pytest.raises(ValueError, match=r"strategy: the schedule's own cannot be used: .* is the user's own"):
        fb.replay(PROBLEM, schedule, LOCAL)
    assert fb.replay(PROBLEM, schedule, LOCAL, strategy=strategy).version == 3


def test_a_loaded_replay_with_its_own_start_saves_for_replay(tmp_path: Path) -> None:
    schedule = make_schedule(fb.FedBuff(4))
    w0 = np.full(PROBLEM.dim, 0.1, np.float32)
    expected = fb.replay(PROBLEM, schedule, LOCAL, w0=w0).w
    first = fb.Replay(PROBLEM, schedule, LOCAL, w0=w0)
    first.run(5)
    first.save(tmp_path / "r.npz")
    second = fb.Replay.load(tmp_path / "r.npz", PROBLEM, schedule)
    second.run(5)
    second.save(tmp_path / "r.npz")
    np.testing.assert_array_equal(fb.replay(PROBLEM, schedule, LOCAL, w0=w0, checkpoint=tmp_path / "r.npz").w, expected)


def test_run_is_schedule_and_replay() -> None:
    delays = fb.DelayModel(n_clients=N_CLIENTS, compute=fb.Exponential(1.0), client_speed=fb.LogNormal(0.0, 0.5))
    strategy = fb.FedBuff(4)
    run = fb.run(PROBLEM, delays, strategy, LOCAL, concurrency=10, server_steps=60, seed=3)
    schedule = make_schedule(strategy)
    np.testing.assert_array_equal(run.w, fb.replay(PROBLEM, schedule, LOCAL, strategy=strategy, seed=3).w)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 10, "timeout": 1.5, "selection": "longest_idle", "max_uses": 40},
        {"concurrency": 10, "queues": True, "server_time": 0.01, "uplink": 4.0},
        {"start_rate": 8.0, "start_process": "poisson", "in_flight": "skip"},
    ],
)
def test_run_takes_all_options_of_a_schedule(options: dict[str, Any]) -> None:
    delays = fb.DelayModel(n_clients=N_CLIENTS, compute=fb.Exponential(1.0), upload=fb.Exponential(0.2))
    strategy = fb.FedBuff(4)
    schedule = fb.schedule(delays, strategy, server_steps=30, seed=3, **options)
    run = fb.run(PROBLEM, delays, strategy, LOCAL, server_steps=30, seed=3, **options, eval_every=10)
    replayed = fb.replay(PROBLEM, schedule, LOCAL, strategy=strategy, seed=3, eval_every=10)
    np.testing.assert_array_equal(run.w, replayed.w)
    np.testing.assert_array_equal(run.history["loss"], replayed.history["loss"])
    with pytest.raises(ValueError, match="timeout: expected"):
        fb.run(PROBLEM, delays, strategy, LOCAL, server_steps=30, timeout=-1.0)


def test_the_compiled_engine_is_what_runs() -> None:
    if backends.current().name != "cpp":
        pytest.skip(f"the {backends.current().name} backend runs")
    replay = fb.Replay(PROBLEM, make_schedule(fb.FedBuff(4)), LOCAL)
    assert type(replay._engine.engine).__name__ == "ReplayF32"
