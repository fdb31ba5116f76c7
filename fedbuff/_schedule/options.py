"""The options of a schedule: how tasks start, and what ends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.checks import choice, count, flag, number, shown
from .._delays.distributions import Constant, Distribution, takes_no_time

StartProcess = Literal["constant", "poisson"]
Order = Literal["uniform", "round_robin", "longest_idle"]
Selection = Order | ArrayLike
InFlight = Literal["redraw", "skip", "allow"]


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """What `schedule` takes beside source, strategy and seed, each checked by itself; `schedule` says what each means.

    Whether they fit the source and the strategy is checked by `Request`.
    """

    concurrency: int | None = None
    server_steps: int | None = None
    max_time: float | None = None
    arrivals: int | None = None
    start_rate: float | None = None
    start_process: StartProcess = "constant"
    in_flight: InFlight = "redraw"
    timeout: float | None = None
    selection: Selection = "uniform"
    max_uses: int | None = None
    queues: bool = False
    server_time: float | Distribution | None = None
    uplink: float | None = None

    def __post_init__(self) -> None:
        checked: dict[str, float | None] = {
            name: None if value is None else count(name, value)
            for name, value in (
                ("server_steps", self.server_steps),
                ("arrivals", self.arrivals),
                ("concurrency", self.concurrency),
                ("max_uses", self.max_uses),
            )
        }
        checked["max_time"] = None if self.max_time is None else number("max_time", self.max_time)
        for name, value in (
            ("timeout", self.timeout),
            ("start_rate", self.start_rate),
            ("uplink", self.uplink),
        ):
            checked[name] = None if value is None else number(name, value, open_low=True)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        choice("start_process", self.start_process, ("constant", "poisson"))
        if isinstance(self.selection, str):
            choice("selection", self.selection, get_args(Order))
        else:
            object.__setattr__(self, "selection", _probabilities(self.selection))
        flag("queues", self.queues)
        if self.server_time is not None:
            object.__setattr__(self, "server_time", _server_time(self.server_time))
        choice("in_flight", self.in_flight, ("redraw", "skip", "allow"))
        if self.start_rate is None and (self.start_process, self.in_flight) != ("constant", "redraw"):
            raise ValueError("start_process, in_flight: they are for the open loop; give start_rate")
        if self.concurrency is not None and self.start_rate is not None:
            raise ValueError("concurrency, start_rate: expected one of them (closed or open loop), got both")

    @property
    def has_end(self) -> bool:
        """Whether something ends the schedule."""
        return self.server_steps is not None or self.max_time is not None or self.arrivals is not None


def _server_time(given: float | Distribution) -> Distribution:
    if not isinstance(given, Distribution):
        if isinstance(given, bool) or not isinstance(given, int | float | np.integer | np.floating):
            raise TypeError(f"server_time: expected seconds or a distribution of them, got {shown(given)}")
        return Constant(number("server_time", float(given), open_low=True))
    if takes_no_time(given):
        raise ValueError(f"server_time: expected times > 0, got {given!r}, which are all 0")
    return given


def _probabilities(given: ArrayLike) -> NDArray[np.float64]:
    try:
        values = np.array(given, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"selection: expected a name or a probability per client, got {given!r}") from None
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
        raise ValueError("selection: expected a probability per client, finite numbers >= 0")
    total = float(values.sum())
    if abs(total - 1.0) > 1e-9:
        raise ValueError(f"selection: expected probabilities that sum to 1, got a sum of {total:.12g}")
    values.flags.writeable = False
    return values
