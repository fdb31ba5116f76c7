"""Clipping, noise, and the accountant."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedbuff as fb
from fedbuff import backends
from fedbuff.backends.python.philox import Stream
from fedbuff.backends.spec import EncodeNumbers
from fedbuff.secure import FixedPoint, Gaussian, Simulate

DIM = 9


def updates(scale: float) -> fb.Callback:
    """Client i sends (i + 1) * scale in every coordinate."""

    def update(client: int, task: int, w: NDArray[Any], generator: Any) -> NDArray[Any]:
        return np.full_like(w, (client + 1) * scale)

    return fb.Callback(update, n_clients=4, w0=np.zeros(DIM))


def one_buffer(scale: float, **options: Any) -> NDArray[Any]:
    """The sum of a buffer to which clients 0..3 come once each."""
    log = fb.ArrivalLog([0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0], version=[0, 0, 0, 0])
    strategy = fb.FedBuff(4, server_lr=1.0, **options)
    run = fb.replay(updates(scale), fb.schedule(log, strategy), strategy=strategy, seed=8)
    return -run.w


@pytest.mark.parametrize("secure", [None, Simulate(encoding=FixedPoint(clip=64.0, bits=40, modulus=64))])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_updates_are_scaled_down_to_the_clip(secure: Any, momentum: float) -> None:
    """Norms are 3, 6, 9 and 12 times the scale; those above 7 become 7."""
    privacy = Gaussian(clip=7.0, noise_multiplier=0.0)
    got = one_buffer(1.0, privacy=privacy, secure=secure, optimizer=fb.SGD(momentum))
    np.testing.assert_allclose(got, np.full(DIM, (3 + 6 + 7 + 7) / 3), rtol=1e-9)


def test_noise_is_its_own_stream() -> None:
    quiet = one_buffer(1.0, privacy=Gaussian(clip=7.0, noise_multiplier=0.0))
    noisy = one_buffer(1.0, privacy=Gaussian(clip=7.0, noise_multiplier=2.0, source="simulated"))
    want = 14.0 * backends.current().normals(8, 0, 0, 0, Stream.PRIVACY_NOISE, DIM)
    np.testing.assert_allclose(noisy - quiet, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("source", ["simulated", "system"])
def test_noise_has_its_deviation_and_differs_by_step(source: Any) -> None:
    def nothing(client: int, task: int, w: NDArray[Any], generator: Any) -> NDArray[Any]:
        return np.zeros_like(w)

    dim, steps = 5001, 4
    problem = fb.Callback(nothing, n_clients=4, w0=np.zeros(dim))
    strategy = fb.FedBuff(2, server_lr=1.0, privacy=Gaussian(clip=0.5, noise_multiplier=3.0, source=source))
    schedule = fb.uniform_arrivals(4, 2, 0, steps)
    replay = fb.Replay(problem, schedule, strategy=strategy)
    seen = [replay.w]
    for _ in range(steps):
        replay.run(1)
        seen.append(replay.w)
    noise = -np.diff(seen, axis=0) / 1.5
    assert abs(noise.std() - 1) < 4 / math.sqrt(2 * noise.size)
    assert abs(noise.mean()) < 4 / math.sqrt(noise.size)
    assert abs(np.corrcoef(noise) - np.eye(steps)).max() < 5 / math.sqrt(dim)
    again = fb.replay(problem, schedule, strategy=strategy).w
    assert np.array_equal(again, seen[-1]) is (source == "simulated")


def test_rounding_is_taken_from_the_clip() -> None:
    """What is sent is no longer than the clip, also after rounding to coarse steps."""
    encoding = FixedPoint(clip=1.0, bits=8)
    privacy = Gaussian(clip=0.5, noise_multiplier=0.0)
    limit = privacy.clip_for(Simulate(encoding=encoding), 1000)
    assert limit == 0.5 - encoding.step / 2 * math.sqrt(1000)
    rng = np.random.default_rng(0)
    for _ in range(50):
        delta = rng.standard_normal(1000)
        words, sent = np.empty(1000, np.uint32), np.empty(1000)
        factor = min(1.0, limit / np.linalg.norm(delta))
        backends.current().encode_add(None, delta, EncodeNumbers(1, encoding.clip, encoding.step, factor), words)
        backends.current().decode(words, encoding.step, sent)
        assert limit < np.linalg.norm(sent) + encoding.step * math.sqrt(1000) and np.linalg.norm(sent) <= 0.5
    with pytest.raises(ValueError, match=r"leaves nothing of clip 0.5; use more bits"):
        privacy.clip_for(Simulate(encoding=encoding), 10**6)


def test_the_divisor_must_not_tell_of_the_clients() -> None:
    privacy = Gaussian(clip=1.0, noise_multiplier=1.0, source="simulated")
    for norm in ("weights", "scaled_weights"):
        with pytest.raises(ValueError, match=r"norm: .* privacy needs one, arrivals or clients"):
            fb.FedBuff(4, norm=norm, privacy=privacy)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="clip: expected a number > 0"):
        Gaussian(clip=0.0, noise_multiplier=1.0, source="simulated")
    with pytest.raises(ValueError, match="source: expected one of system, simulated"):
        Gaussian(clip=1.0, noise_multiplier=1.0, source="dice")  # type: ignore[arg-type]


# The accountant


def schedule_of(clients: list[int], buffer_size: int) -> fb.Schedule:
    rows = len(clients)
    version = np.arange(rows) // buffer_size
    log = fb.ArrivalLog(np.array(clients), np.arange(1.0, rows + 1), version=version, clients=max(clients) + 1)
    return fb.schedule(log, fb.FedBuff(buffer_size))


def test_epsilon_is_that_of_the_composed_mechanisms() -> None:
    """Client 1: once in the first buffer, twice in the second, once in the third."""
    accounting = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    schedule = schedule_of([1, 0, 1, 1, 0, 1], 2)
    spent = fb.secure.epsilon(schedule, Gaussian(clip=1.0, noise_multiplier=4.0, source="simulated"), delta=1e-6)
    assert (spent.client, spent.updates, spent.buffers, spent.delta) == (1, 4, 3, 1e-6)
    accountant = pld.PLDAccountant()
    for multiplier in (4.0, 2.0, 4.0):
        accountant.compose(accounting.GaussianDpEvent(multiplier))
    np.testing.assert_allclose(spent.epsilon, accountant.get_epsilon(1e-6), rtol=1e-3)


def test_more_noise_fewer_buffers_and_distinct_clients_spend_less() -> None:
    pytest.importorskip("dp_accounting")
    delays = fb.DelayModel(n_clients=30, compute=fb.Exponential(1.0))

    def spent(multiplier: float, steps: int, **options: Any) -> fb.secure.Spent:
        schedule = fb.schedule(delays, fb.FedBuff(10, **options), 20, server_steps=steps, seed=0)
        return fb.secure.epsilon(schedule, Gaussian(clip=1.0, noise_multiplier=multiplier))

    base = spent(4.0, 50)
    assert spent(8.0, 50).epsilon < base.epsilon < spent(4.0, 100).epsilon
    distinct = spent(4.0, 50, distinct_clients=True)
    assert distinct.updates == distinct.buffers
    assert distinct.epsilon < base.epsilon


def test_without_noise_or_updates_there_is_nothing_to_account_for() -> None:
    schedule = schedule_of([0, 1], 2)
    assert fb.secure.epsilon(schedule, Gaussian(clip=1.0, noise_multiplier=0.0)).epsilon == math.inf
    empty = schedule_of([0], 2)
    assert fb.secure.epsilon(empty, Gaussian(clip=1.0, noise_multiplier=1.0, source="simulated")).epsilon == 0.0
    with pytest.raises(ValueError, match="delta: expected a number"):
        fb.secure.epsilon(schedule, Gaussian(clip=1.0, noise_multiplier=1.0, source="simulated"), delta=0.0)
