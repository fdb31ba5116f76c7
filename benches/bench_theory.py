"""The theorem's own length: one seed with every gradient norm, and part (a) of the study.

`pytest benches/bench_theory.py -s`. The bars are in seconds, on one core and on two; the answers are asserted too.
"""

from __future__ import annotations

import runpy
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record import note

import fedbuff as fb

STUDY = Path(__file__).parents[1] / "examples" / "theorem.py"
TURNS = 3


def test_one_seed(benchmark: Any) -> None:
    """Q = 1, tau = 5, L = 1, K = 10, n = 20, d = 20: 276,480 server steps, 2.8 million updates; bar 5 s, one core."""
    problem = fb.Quadratic(np.random.default_rng(0).normal(size=(20, 20)), 1.0, noise_variance=1.0)
    T = fb.theory.min_server_steps(L=1.0, Q=1, tau=5)
    eta, beta = fb.theory.step_sizes(L=1.0, T=T, Q=1, K=10)
    seconds, drawing = [], []
    for _ in range(TURNS):
        began = time.perf_counter()
        schedule = fb.uniform_arrivals(20, 10, 5, T, seed=0)
        drawing.append(time.perf_counter() - began)
        local = fb.LocalSGD(steps=1, lr=eta, batch_size=1)
        replay = fb.Replay(problem, schedule, local, strategy=fb.FedBuff(10, beta), threads=1)
        replay.record_gradients()
        replay.run()
        seconds.append(time.perf_counter() - began)
    gradients = replay.gradients
    assert gradients.size == T == 276_480
    # after the start, noise and heterogeneity: eta (sigma^2 + gamma^2) / (2 K), to a few per cent
    gamma2 = problem.constants().gamma2.value
    assert gradients[T // 10 :].mean() == pytest.approx(eta * (1.0 + gamma2) / 20, rel=0.1)
    note(benchmark, seconds=min(seconds), bar=5.0, drawing_arrivals=min(drawing))


def test_part_a(benchmark: Any) -> None:
    """At least 200 configurations of 8 seeds; bar 300 s, two cores."""
    study = runpy.run_path(str(STUDY))
    began = time.perf_counter()
    cases = study["bound_holds"](study["FULL"])
    seconds = time.perf_counter() - began
    assert len(cases) >= 200 and not any(case.found.violated for case in cases)
    note(benchmark, seconds=seconds, bar=300.0, configurations=len(cases))
