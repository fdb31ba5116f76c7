"""Closed forms that a replay must meet. A check is given the function that trains, so that a faulty one can fail it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedbuff as fb

Floats = NDArray[np.float64]
Train = Callable[..., fb.Replay]


def train(
    problem: fb.Quadratic,
    schedule: fb.Schedule,
    local: fb.LocalSGD,
    *,
    strategy: fb.FedBuff | None = None,
    w0: Any,
    seed: int = 0,
) -> fb.Replay:
    """The paper's algorithm, ready to run."""
    strategy = strategy or fb.FedBuff(schedule.buffer_size)
    return fb.Replay(problem, schedule, local, strategy=strategy, w0=w0, seed=seed)


def decay(local: fb.LocalSGD, curvature: float) -> float:
    """What Q local steps leave of the way to the client's optimum."""
    return float((1.0 - local.lr * curvature) ** local.steps)


def delta_variance(local: fb.LocalSGD, curvature: float, noise: float) -> float:
    """The variance of a coordinate of a delta, for batch noise of this variance."""
    kept = 1.0 - local.lr * curvature
    return float(local.lr**2 * noise * (1.0 - kept ** (2 * local.steps)) / (1.0 - kept**2))


def check_stationary_variance(training: Train) -> None:
    """Staleness 0: E|grad f|^2 = a^2 V per coordinate, V = [(1-r)^2 Var(c) + noise] / (K (1 - r^2)); within 1 %."""
    a, K, dim, steps, batch = 0.5, 3, 24, 40_000, 2
    local = fb.LocalSGD(steps=2, lr=0.4, batch_size=batch)
    centers = np.random.default_rng(0).normal(size=(5, dim))
    s2 = 1.5  # variance of the batch's noise in a coordinate
    problem = fb.Quadratic(centers, a, noise_variance=s2 * dim * batch)
    r = decay(local, a)
    V = ((1 - r) ** 2 * centers.var(axis=0) + delta_variance(local, a, s2)) / (K * (1 - r**2))
    replay = training(problem, fb.uniform_arrivals(5, K, 0, steps, seed=1), local, w0=centers.mean(axis=0), seed=2)
    replay.record_gradients()
    replay.run()
    measured = replay.gradients[100:].mean()
    assert abs(measured / (a**2 * V.sum()) - 1) < 0.01


def check_stationary_gradient(training: Train) -> None:
    """`theory.stationary_gradient` in its special case, for several K, b, eta and gamma^2: within 2 %."""
    L, dim, n, steps = 0.5, 60, 7, 8000
    centers = np.random.default_rng(10).normal(size=(n, dim))
    centers -= centers.mean(axis=0)
    for K, b, eta, spread in ((1, 1, 0.2, 1.0), (4, 2, 0.8, 30.0), (16, 8, 0.4, 0.05)):
        problem = fb.Quadratic(math.sqrt(spread) * centers, L, noise_variance=40.0)
        known = problem.constants()
        law = fb.theory.stationary_gradient(L, eta, K, known.gamma2.value, known.sigma2.value, b)
        local = fb.LocalSGD(steps=1, lr=eta, batch_size=b)
        replay = training(problem, fb.uniform_arrivals(n, K, 0, steps, seed=11), local, w0=np.zeros(dim), seed=12)
        replay.record_gradients()
        replay.run()
        assert abs(replay.gradients[200:].mean() / law - 1) < 0.02


def moments(
    schedule: fb.Schedule, local: fb.LocalSGD, centers: Floats, curvature: float, noise: float, w0: float
) -> tuple[Floats, Floats]:
    """Mean and variance of every version of one coordinate, along a schedule with delays.

    w^{t+1} = w^t - (1/K) sum_k [(1 - r) (w^{v_k} - c_{i_k}) + noise_k], linear in the versions: so the mean follows the
    same recursion, and the covariance of w^{t+1} with each earlier version is that of the right-hand side.
    """
    steps, K = schedule.n_steps, schedule.buffer_size
    r, variance = decay(local, curvature), delta_variance(local, curvature, noise)
    mean, covariance = np.zeros(steps + 1), np.zeros((steps + 1, steps + 1))
    mean[0] = w0
    for t in range(steps):
        rows = slice(t * K, (t + 1) * K)
        versions, clients = schedule.version[rows], schedule.client[rows]
        mean[t + 1] = mean[t] - (1 - r) / K * (mean[versions] - centers[clients]).sum()
        weights = np.zeros(t + 1)
        weights[t] = 1.0
        np.subtract.at(weights, versions, (1 - r) / K)
        covariance[t + 1, : t + 1] = weights @ covariance[: t + 1, : t + 1]
        covariance[: t + 1, t + 1] = covariance[t + 1, : t + 1]
        covariance[t + 1, t + 1] = weights @ covariance[: t + 1, : t + 1] @ weights + variance / K
    return mean, covariance.diagonal()


def check_recursion_along_a_schedule(training: Train) -> None:
    """With delays: without noise every version to rounding, with noise the mean and variance over many coordinates."""
    a, K, steps, dim, batch, s2 = 0.8, 3, 40, 60_000, 4, 2.0
    local = fb.LocalSGD(steps=3, lr=0.2, batch_size=batch)
    centers = np.array([-1.0, 0.5, 2.0, 4.0])
    schedule = fb.uniform_arrivals(4, K, 5, steps, seed=3, staleness="max")
    assert schedule.tau == 5 and schedule.staleness.mean() > 0.5
    mean, variance = moments(schedule, local, centers, a, s2, w0=3.0)
    exact = fb.LocalSGD(steps=local.steps, lr=local.lr)
    replay = training(fb.Quadratic(centers[:, None], a), schedule, exact, w0=np.array([3.0]))
    for t in range(steps):
        assert math.isclose(replay.w[0], mean[t], rel_tol=1e-12, abs_tol=1e-12)
        replay.run(1)
    problem = fb.Quadratic(np.repeat(centers[:, None], dim, axis=1), a, noise_variance=s2 * dim * batch)
    noisy = training(problem, schedule, local, w0=np.full(dim, 3.0), seed=4)
    for t in (1, 6, 15, steps):
        noisy.run(t - noisy.version)
        deviation = math.sqrt(variance[t] / dim)
        assert abs(noisy.w.mean() - mean[t]) < 5 * deviation
        assert abs(noisy.w.var() / variance[t] - 1) < 5 * math.sqrt(2 / dim)


def check_stability_limit(training: Train) -> None:
    """K = 1 and staleness constantly tau: stable just below h = 2 sin(pi / (2 (2 tau + 1))), and not just above."""
    for tau, Q, steps in ((0, 1, 1500), (3, 2, 4000), (8, 1, 12_000)):
        limit = 2.0 * math.sin(math.pi / (2 * (2 * tau + 1)))
        count = np.arange(steps)
        log = fb.ArrivalLog(np.zeros(steps, int), count + 1.0, version=np.maximum(0, count - tau), clients=1)
        schedule = fb.schedule(log, fb.FedBuff(buffer_size=1))
        assert schedule.tau == tau
        for factor, stable in ((0.99, True), (1.01, False)):
            h = factor * limit
            # h = 1 - (1 - eta a)^Q, where it is below 1; a single step may go beyond
            eta = h if Q == 1 else 1.0 - (1.0 - h) ** (1.0 / Q)
            replay = training(fb.Quadratic(np.zeros((1, 1))), schedule, fb.LocalSGD(Q, eta), w0=np.ones(1))
            replay.record_gradients()
            replay.run()
            late = float(replay.gradients[-100:].max())
            assert late < 1e-3 if stable else late > 1e3, (tau, factor, late)


CHECKS = (
    check_stationary_variance,
    check_stationary_gradient,
    check_recursion_along_a_schedule,
    check_stability_limit,
)
