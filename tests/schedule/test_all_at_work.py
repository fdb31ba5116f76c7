"""Where all clients are at work, tasks are drawn ahead of those that end soon: the rows are those of one at a time."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends

LAWS: dict[str, dict[str, Any]] = {
    "exponential": {"compute": fb.Exponential(1.0)},
    "speeds": {"compute": fb.Exponential(1.0), "client_speed": fb.LogNormal(0.0, 1.0)},
    "parts": {"compute": fb.Uniform(0.1, 2.0), "upload": fb.Exponential(0.3), "download": fb.Constant(0.1)},
    "ties": {"compute": fb.Empirical(np.arange(1.0, 4.0))},
    "ties of some": {"compute": fb.Empirical(np.array([0.5, 1.0, 1.0, np.pi, np.e]))},
    "clusters": {"compute": fb.Pareto(1.0, 1.1)},
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("n", [1, 2, 17, 300, 3000])  # by a list, and by a calendar
@pytest.mark.parametrize("drawn", [False, True])
def test_rows_are_those_of_the_specification(monkeypatch: pytest.MonkeyPatch, law: str, n: int, drawn: bool) -> None:
    if backends.compiled() is None:
        pytest.skip("nothing was compiled")
    delays = fb.DelayModel(n_clients=n, **LAWS[law])
    how: dict[str, Any] = {"concurrency": n if drawn else None, "arrivals": 4 * n + 3000, "seed": 7}
    made = fb.schedule(delays, fb.FedBuff(3), **how)
    chunks = list(fb.iter_schedule(delays, fb.FedBuff(3), chunk=501, **how))
    monkeypatch.setattr(backends, "current", lambda: importlib.import_module("fedbuff.backends.reference"))
    expected = fb.schedule(delays, fb.FedBuff(3), **how)
    assert made == expected
    for name in ("client", "task", "version", "start_time", "arrive_time"):
        joined = np.concatenate([getattr(chunk, name) for chunk in chunks])
        assert joined.tobytes() == getattr(expected, name).tobytes()
