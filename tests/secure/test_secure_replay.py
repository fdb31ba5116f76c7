"""Secure sums in a replay: simulated and real, the same bits, and what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedbuff as fb
from fedbuff import backends
from fedbuff.secure import (
    Aggregator,
    Client,
    FixedPoint,
    OneTimePad,
    Parameters,
    Server,
    Simulate,
)

N_CLIENTS = 12
LOCAL = fb.LocalSGD(steps=5, lr=0.1, batch_size=5)  # not so little that the engine would keep to one thread
FINE = {"encoding": FixedPoint(clip=0.5, bits=24, modulus=64), "weight_unit": 64}
COARSE = {"encoding": FixedPoint(clip=0.05, bits=8, rounding="stochastic"), "weight_unit": 8}


def make_problem(dtype: str = "float32") -> fb.Softmax:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_CLIENTS * 8, 7)).astype(dtype)
    return fb.Softmax(X, rng.integers(0, 3, len(X)), np.repeat(np.arange(N_CLIENTS), 8))


PROBLEM = make_problem()
DELAYS = fb.DelayModel(n_clients=N_CLIENTS, compute=fb.Exponential(1.0))


def strategy_with(secure: Any, **options: Any) -> fb.FedBuff:
    return fb.FedBuff(4, **{"staleness": fb.staleness.Polynomial(0.5), "secure": secure, **options})


def replayed(strategy: Any, problem: Any = PROBLEM, steps: int = 20, **options: Any) -> fb.Result:
    schedule = fb.schedule(DELAYS, strategy, 8, server_steps=steps, seed=3)
    return fb.replay(problem, schedule, LOCAL, strategy=strategy, **{"seed": 5, "eval_every": 5, **options})


def same(a: fb.Result, b: fb.Result) -> None:
    np.testing.assert_array_equal(a.w, b.w, strict=True)
    for name in a.history:
        if name != "secure_seconds":
            np.testing.assert_array_equal(a.history[name], b.history[name], err_msg=name)


@pytest.mark.parametrize("how", [FINE, COARSE], ids=["fine", "coarse"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_real_and_simulated_give_the_same_bits(dtype: str, how: dict[str, Any]) -> None:
    pytest.importorskip("cryptography")
    problem = make_problem(dtype)
    simulated = replayed(strategy_with(Simulate(**how)), problem)
    same(replayed(strategy_with(OneTimePad(**how)), problem), simulated)
    same(replayed(strategy_with(OneTimePad(**how, cipher="aes-ctr")), problem, threads=1), simulated)
    assert simulated.history["cut"][-1] > 0 or how is FINE


def test_real_pads_of_unequal_clients_and_of_chunks() -> None:
    pytest.importorskip("cryptography")
    rng = np.random.default_rng(1)
    sizes = rng.integers(3, 9, N_CLIENTS)
    X = rng.standard_normal((sizes.sum(), 7)).astype(np.float32)
    problem = fb.Softmax(X, rng.integers(0, 3, len(X)), np.repeat(np.arange(N_CLIENTS), sizes))
    options = {"weights": "samples", "weight_scale": 1 / 8, "norm": "arrivals"}
    simulated, real = (strategy_with(cls(**FINE), **options) for cls in (Simulate, OneTimePad))
    whole = replayed(simulated, problem)
    same(replayed(real, problem), whole)
    chunks = fb.iter_schedule(DELAYS, real, 8, server_steps=20, seed=3, chunk=7)
    same(fb.replay(problem, chunks, LOCAL, strategy=real, seed=5, eval_every=5), whole)


def test_the_word_simulate_is_the_default_encoding() -> None:
    same(replayed(fb.FedBuff(4, secure="simulate")), replayed(fb.FedBuff(4, secure=Simulate())))


@pytest.mark.parametrize(
    "privacy", [None, fb.secure.Gaussian(clip=0.05, noise_multiplier=0.3, source="simulated")], ids=["", "private"]
)
@pytest.mark.parametrize("secure", [None, Simulate(**COARSE)], ids=["", "secure"])
def test_the_same_bits_for_threads_chunks_and_a_resume(secure: Any, privacy: Any, tmp_path: Path) -> None:
    strategy = strategy_with(secure, privacy=privacy)
    whole = replayed(strategy, threads=1)
    same(replayed(strategy, threads=3), whole)
    chunks = fb.iter_schedule(DELAYS, strategy, 8, server_steps=20, seed=3, chunk=7)
    same(fb.replay(PROBLEM, chunks, LOCAL, strategy=strategy, seed=5, eval_every=5), whole)
    file = tmp_path / "half.npz"
    replayed(strategy, checkpoint=file, stop=fb.Stop(server_steps=11))
    resumed = replayed(strategy, checkpoint=file)
    np.testing.assert_array_equal(resumed.w, whole.w, strict=True)
    kept = [row for row in resumed.history._rows if row["step"] != 11]  # the stop was evaluated too
    for got, want in zip(kept, whole.history._rows, strict=True):
        for name in ("loss", *(n for n in want if n == "cut" or n.startswith("bytes"))):
            assert got[name] == want[name], name


def test_a_resume_under_real_pads(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    strategy = strategy_with(OneTimePad(**COARSE))
    whole = replayed(strategy)
    file = tmp_path / "half.npz"
    replayed(strategy, checkpoint=file, stop=fb.Stop(server_steps=10))
    np.testing.assert_array_equal(replayed(strategy, checkpoint=file).w, whole.w)
    with pytest.raises(ValueError, match="another rule"):
        replayed(strategy_with(OneTimePad(**FINE)), checkpoint=file)


def test_roles_fed_by_hand_give_the_bits_of_the_replay() -> None:
    pytest.importorskip("cryptography")
    secure = OneTimePad(**COARSE)
    strategy = strategy_with(secure)
    schedule = fb.schedule(DELAYS, strategy, 8, server_steps=6, seed=3)
    want = fb.replay(PROBLEM, schedule, LOCAL, strategy=strategy, seed=5).w
    table = tuple(strategy.rule.staleness_weight(t) for t in range(100))
    agreed = Parameters(dim=PROBLEM.dim, buffer_size=4, secure=secure, staleness_weights=table)
    aggregator = Aggregator(agreed)
    server = Server(agreed, aggregator.hello, dtype=np.float32)
    models = [PROBLEM.init(5)]
    used = schedule.status == fb.Status.USED
    columns = (schedule.client, schedule.task, schedule.version)
    for client, task, version in zip(*(column[used].tolist() for column in columns), strict=True):
        delta = PROBLEM.delta(models[version], client, LOCAL, task=task, seed=5)
        upload = Client(agreed, aggregator.hello, client, seed=5).upload(delta, task=task, version=version)
        if server.settle(aggregator.admit(server.receive(upload))) == 4:
            total = server.open(aggregator.release(server.request()))
            new = np.empty_like(models[-1])
            backends.current().sgd_step(models[-1], total, strategy.rule.lr, 1.0, 0.0, None, new)
            models.append(new)
    np.testing.assert_array_equal(models[-1], want)


@pytest.mark.parametrize("how", [FINE, COARSE], ids=["fine", "coarse"])
def test_the_sequential_engine_agrees(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaussian noise, clipping and fixed point in plain NumPy: the specification."""
    if backends.current().name != "cpp":
        pytest.skip(f"the {backends.current().name} backend runs")
    from fedbuff.backends import reference

    problem = make_problem("float64")
    strategy = strategy_with(
        Simulate(**how), privacy=fb.secure.Gaussian(clip=0.5, noise_multiplier=0.1, source="simulated")
    )
    got = replayed(strategy, problem)
    monkeypatch.setattr(backends, "current", lambda: reference)
    want = replayed(strategy, make_problem("float64"))
    # One step that a rounding decides otherwise would show as a whole unit; there is none here.
    np.testing.assert_allclose(got.w, want.w, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(got.history["cut"], want.history["cut"])


def test_one_step_misses_the_plain_one_by_no_more_than_the_bound() -> None:
    secure = Simulate(encoding=FixedPoint(clip=1.0, bits=12))
    plain = replayed(fb.FedBuff(4), make_problem("float64"), steps=1)
    coded = replayed(fb.FedBuff(4, secure=secure), make_problem("float64"), steps=1)
    bound = secure.encoding.error(4) / 4 + 1e-15
    error = np.abs(coded.w - plain.w).max()
    assert 0 < error <= bound


def test_the_history_counts_bytes_and_time() -> None:
    secure = Simulate(**FINE)
    run = replayed(strategy_with(secure))
    bytes_ = fb.secure.traffic(PROBLEM.dim, secure)
    last = run.history.last
    assert last["updates"] == 80 and last["step"] == 20
    assert last["bytes_to_server"] == bytes_.to_server(80) == 80 * (192 + 8 * PROBLEM.dim)
    assert last["bytes_to_aggregator"] == bytes_.to_aggregator(80, 20)
    assert last["bytes_from_aggregator"] == bytes_.from_aggregator(80, 20)
    assert last["secure_seconds"] > 0
    assert not any(name.startswith("bytes") for name in replayed(fb.FedBuff(4)).history)


@pytest.mark.parametrize("real", [False, True], ids=["simulated", "real"])
def test_an_update_that_is_not_finite_ends_the_replay_by_name(real: bool) -> None:
    if real:
        pytest.importorskip("cryptography")

    def update(client: int, task: int, w: NDArray[Any], generator: Any) -> NDArray[Any]:
        return np.full_like(w, np.nan if client == 3 and task == 1 else 0.1)

    problem = fb.Callback(update, n_clients=N_CLIENTS, w0=np.zeros(6))
    strategy = fb.FedBuff(4, secure=OneTimePad() if real else "simulate")
    schedule = fb.schedule(DELAYS, strategy, 8, server_steps=20, seed=3)
    row = int(np.flatnonzero((schedule.client == 3) & (schedule.task == 1))[0])
    with pytest.warns(RuntimeWarning, match=f"arrival {row}: client 3"):
        run = fb.replay(problem, schedule, strategy=strategy)
    assert run.exit_reason == fb.ExitReason.DIVERGED
    assert run.version == schedule.step[row]


def test_a_schedule_keeps_its_secure_rule(tmp_path: Path) -> None:
    strategy = strategy_with(
        Simulate(**COARSE), privacy=fb.secure.Gaussian(clip=0.05, noise_multiplier=0.1, source="simulated")
    )
    schedule = fb.schedule(DELAYS, strategy, 8, server_steps=5, seed=3)
    schedule.save(tmp_path / "s.npz")
    loaded = fb.load_schedule(tmp_path / "s.npz")
    want = fb.replay(PROBLEM, schedule, LOCAL, strategy=strategy)
    np.testing.assert_array_equal(fb.replay(PROBLEM, loaded, LOCAL).w, want.w)


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"s e = 0\.\d+ of staleness \d+ is 0 units of 1 / 1; expected 1 to 1"):
        replayed(strategy_with("simulate"), steps=40)
    with pytest.raises(ValueError, match="s e = 8 of staleness 0 is 8 units"):
        replayed(fb.FedBuff(4, weights="samples", norm="weights", secure="simulate"))
    with pytest.raises(ValueError, match="privacy: the weight s e = 8 of staleness 0 is above 1"):
        replayed(
            fb.FedBuff(
                4, weights="samples", privacy=fb.secure.Gaussian(clip=1.0, noise_multiplier=1.0, source="simulated")
            )
        )


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"secure": "simulate", "base": "current"}, ValueError, "base: .* it needs base"),
        ({"secure": "simulate", "max_wait": 1.0}, ValueError, "max_wait: a secure sum is released for a full buffer"),
        ({"secure": "simulated"}, TypeError, "secure: expected .*, got 'simulated'"),
        ({"secure": OneTimePad}, TypeError, "secure: expected"),
        ({"privacy": 1.0}, TypeError, "privacy: expected fedbuff.secure.Gaussian, got float"),
    ],
)
def test_strategies_that_make_no_sense_are_refused(options: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        fb.FedBuff(4, **options)


def test_a_server_that_sees_every_update_refuses() -> None:
    with pytest.raises(ValueError, match=r"secure: this server sees every update; use fedbuff\.secure\.Server"):
        fb.Server(np.zeros(3), fb.FedBuff(2, secure="simulate"))
    with pytest.raises(ValueError, match="privacy: this server sees every update"):
        fb.Server(
            np.zeros(3), fb.FedBuff(2, privacy=fb.secure.Gaussian(clip=1.0, noise_multiplier=1.0, source="simulated"))
        )
