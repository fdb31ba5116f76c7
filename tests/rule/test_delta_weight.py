"""Weights from norms and angles, against plain loops in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_server import every_dtype, every_implementation

import fedbuff as fb

Array = NDArray[Any]
DIM, K = 5, 3

# q of (delta, model, start, last step, sum of the buffer so far)
WEIGHTS: dict[str, tuple[fb.DeltaWeight, Callable[[Array, Array, Array, Array, Array], float]]] = {
    "norm": (fb.DeltaWeight("norm", epsilon=0.5), lambda d, w, b, last, total: 1 / (np.linalg.norm(d) + 0.5)),
    "way": (fb.DeltaWeight("way", epsilon=0.5), lambda d, w, b, last, total: 1 / (np.linalg.norm(w - b) + 0.5)),
    "ratio": (
        fb.DeltaWeight("ratio", epsilon=0.5),
        lambda d, w, b, last, total: 1 / (np.linalg.norm(w - b) / np.linalg.norm(d) + 0.5),
    ),
    "last_step": (fb.DeltaWeight("last_step"), lambda d, w, b, last, total: half_cosine(d, last)),
    "sum": (fb.DeltaWeight("sum"), lambda d, w, b, last, total: half_cosine(d, total)),
    "clip": (fb.DeltaWeight(clip=1.5), lambda d, w, b, last, total: min(1, 1.5 / np.linalg.norm(d))),
}


def half_cosine(a: Array, b: Array) -> float:
    length = np.linalg.norm(a) * np.linalg.norm(b)
    return 0.5 * (1 + float(a @ b) / length) if length > 0 else 1.0


@every_implementation
@every_dtype
@pytest.mark.parametrize("base", ["start", "current"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_by_hand(backend: Any, dtype: str, base: Any, name: str, tmp_path: Any) -> None:
    made, weight = WEIGHTS[name]
    strategy = fb.FedBuff(
        K, 0.3, base=base, norm="scaled_weights", weights="samples", staleness=fb.staleness.Polynomial(1.0),
        weight_by=made,
    )  # fmt: skip
    rng = np.random.default_rng(3)
    server = backend.Server(np.ones(DIM, dtype), strategy)
    models, last = [np.ones(DIM)], np.zeros(DIM)
    total, norm = np.zeros(DIM), 0.0
    for k in range(12 * K):
        if k % K == 0:
            for _ in range(12 * K):
                server.download()
        if k == 5 * K + 1:  # a buffer that is not empty goes through a file
            server.save(tmp_path / "server.npz")
            server = backend.Server.load(tmp_path / "server.npz")
        t = len(models) - 1
        age, samples = min(t, int(rng.integers(3))), float(rng.integers(1, 5))
        delta = rng.standard_normal(DIM).astype(dtype)
        wide, w, start = delta.astype(float), models[t], models[t - age]
        p = samples / (1 + age) * weight(wide, w, start, last, total)
        total, norm = total + p * (wide + (w - start if base == "current" else 0)), norm + p
        server.upload(delta, t - age, n_samples=samples)
        if (k + 1) % K == 0:
            models.append(w - 0.3 * total / norm)
            last, total, norm = w - models[-1], np.zeros(DIM), 0.0
    tolerance = 1e-10 if dtype == "float64" else 2e-4
    np.testing.assert_allclose(server.w, models[-1], rtol=0, atol=tolerance)


@every_implementation
def test_old_models_are_kept_for_the_way_only(backend: Any) -> None:
    for by, live in (("ratio", 2), ("way", 2), ("norm", 1), ("last_step", 1)):
        server = backend.Server(np.zeros(2), fb.FedBuff(1, weight_by=fb.DeltaWeight(by)))
        server.download(), server.download()
        server.upload(np.ones(2), 0)
        assert server.live_versions == live


@every_implementation
def test_a_delta_that_is_not_finite_changes_nothing(backend: Any) -> None:
    for by in ("none", "norm", "ratio", "last_step", "sum"):
        strategy = fb.FedBuff(2, weight_by=fb.DeltaWeight(by, clip=1.0))
        server = backend.Server(np.zeros(2), strategy)
        for _ in range(3):
            server.download()
        server.upload(np.ones(2), 0)
        with pytest.raises(ValueError, match=r"^delta: element 1 is nan"):
            server.upload(np.array([1.0, np.nan]), 0)
        assert server.fill == 1 and server.upload(np.ones(2), 0) and np.isfinite(server.w).all()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: fb.DeltaWeight("cosine"), ValueError, r"^by: "),
        (lambda: fb.DeltaWeight("norm", epsilon=0.0), ValueError, r"^epsilon: "),
        (lambda: fb.DeltaWeight(clip=0.0), ValueError, r"^clip: "),
        (lambda: fb.FedBuff(2, weight_by="norm"), TypeError, r"^weight_by: "),
        (lambda: fb.FedBuff(2, weight_by=fb.DeltaWeight(clip=1.0), secure="simulate"), ValueError, r"^secure: "),
        (
            lambda: fb.FedBuff(
                2, weight_by=fb.DeltaWeight("norm"), privacy=fb.secure.Gaussian(clip=1.0, noise_multiplier=1.0)
            ),
            ValueError,
            r"^privacy: ",
        ),
        (
            lambda: fb.Server(np.zeros(2), fb.FedBuff(2, weight_by=fb.DeltaWeight("norm")), unit=0.5),
            ValueError,
            r"^unit: ",
        ),
    ],
)
def test_what_is_refused(make: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make()
