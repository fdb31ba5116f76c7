"""The hunt for cliffs finds a planted one, and looks at places that can be run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def cliffs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benches"))
    import cliffs

    return cliffs


def test_places_are_sound_and_neighbours_are_near(cliffs: Any) -> None:
    generator = np.random.default_rng(3)
    for _ in range(20):
        place = cliffs.draw(generator)
        assert place.is_sound and place.work("replay") > 0
        for change, other in cliffs.neighbours(place, generator):
            differ = {name for name in vars(place) if getattr(place, name) != getattr(other, name)}
            assert differ and differ <= {change.split()[0], "in_flight", "dtype"}
            assert other.is_sound and other.work("replay") <= 3 * place.work("replay")


@pytest.mark.parametrize("family", ["logistic", "softmax", "mlp", "quadratic"])
def test_a_place_runs(cliffs: Any, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cliffs, "AT_ONCE", 1e-4)
    outputs = {"softmax": 3, "mlp": 4}.get(family, 1)
    place = cliffs.Place(family, 5, outputs, 3 if family == "mlp" else 0, 6, 2, 2, 3, 7, 4)
    found = cliffs.factors(place, cliffs.replace(place, features=6), turns=1)
    assert set(found) == ({"schedule", "replay"} if family == "quadratic" else {"schedule", "replay", "evaluate"})
    assert all(0 < factor < 1000 for factor in found.values())


def test_a_planted_cliff_is_found_and_a_noise_is_not(cliffs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def planted(place: Any, other: Any, turns: int) -> dict[str, float]:
        calls.append(turns)
        noise = 5.0 if turns == cliffs.TURNS and other.batch != place.batch else 1.0
        slow = 3.0 if other.steps > place.steps else 1.0
        doubled = 0.4 if other.threads != place.threads else 3.9 if other.dtype != place.dtype else 1.0
        return {"replay": slow * noise * doubled, "schedule": 1.0}

    monkeypatch.setattr(cliffs, "factors", planted)
    found = cliffs.hunt(2, seed=1)
    assert found["places"] == 2 and found["pairs"] > 20 and cliffs.TURNS_AGAIN in calls
    assert found["cliffs"] and {cliff["change"].split()[0] for cliff in found["cliffs"]} == {"steps"}
    found |= {"setting": {"cpu": "a CPU", "level used": "avx2"}, "date": "2026-01-01"}
    text = cliffs.part(found)
    assert text.startswith("## Cliffs\n") and text.count("\n| replay | steps") == len(found["cliffs"])
