"""Figures on a benchmark's record, and on the screen."""

from __future__ import annotations

from typing import Any


def note(benchmark: Any, **figures: float) -> None:
    """Keeps figures that were measured by other means than `benchmark` itself."""
    benchmark.extra_info.update({name: round(float(value), 4) for name, value in figures.items()})
    benchmark.pedantic(lambda: None, rounds=1)
    print("\n" + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
