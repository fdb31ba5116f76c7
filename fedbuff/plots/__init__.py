"""Pictures of traces, schedules, runs and sweeps; needs matplotlib (the extra `plot`).

Each function draws into `ax` (a new figure where it is None) and returns the axes; `ax.figure.savefig("x.svg")` writes
it. Lines differ in colour, in lightness and in dashes, so that they stay apart in grey and for the colour-blind.
"""

from ._curves import (
    bound,
    convergence,
    rate,
    sweep,
)
from ._grid import heat_map
from ._measures import (
    buffer_fill,
    contribution,
    in_flight,
    staleness,
    staleness_over_time,
    trace,
)
from ._timeline import schedule

__all__ = [
    "bound",
    "buffer_fill",
    "contribution",
    "convergence",
    "heat_map",
    "in_flight",
    "rate",
    "schedule",
    "staleness",
    "staleness_over_time",
    "sweep",
    "trace",
]
