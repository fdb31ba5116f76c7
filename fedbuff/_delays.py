"""Delay distributions and `DelayModel`: how slow each client is, as a model.

Parameters are those of numpy.random. A distribution is a description only: its draws are a function of
(seed, client, task, component) and are made where the schedule is resolved, with the same bits everywhere.
"""

from __future__ import annotations

import hashlib
import math
import operator
from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arrays import to_array
from ._checks import shown
from ._trace import Availability, Immutable, update_hash

# A uniform has 53 bits, so 1 - u >= 2^-53: no exponential draw exceeds scale * _LOG_MAX, and no normal _NORMAL_MAX.
_LOG_MAX = 53 * math.log(2.0)
_NORMAL_MAX = math.sqrt(2.0 * _LOG_MAX)
_ACCEPTANCE_MIN = 1e-3


def _number(owner: str, name: str, value: Any) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{owner}: {name} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{owner}: {name} is beyond what a float64 holds") from None
    if math.isnan(number):
        raise ValueError(f"{owner}: {name} is NaN")
    return number


@dataclass(frozen=True)
class Distribution(Immutable):
    """A delay distribution: `kind` names it, `params` are its numbers in the order of the constructor."""

    kind: ClassVar[str]

    @property
    def params(self) -> tuple[float, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    def describe(self) -> dict[str, Any]:
        """What it is, as JSON can hold it."""
        return {"kind": self.kind, "params": list(self.params)}

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _number(type(self).__name__, field.name, getattr(self, field.name)))
        self._validate()
        if not math.isfinite(self._largest()):
            raise ValueError(f"{self!r} can draw delays beyond what a float64 holds")

    def _validate(self) -> None:
        """Refuses parameters that mean nothing, or that could give a negative delay."""

    @abstractmethod
    def _largest(self) -> float:
        """An upper bound of what it can draw."""

    def _need(self, condition: bool, what: str) -> None:
        if not condition:
            raise ValueError(f"{self!r}: {what}")


@dataclass(frozen=True)
class Constant(Distribution):
    """Always `value`."""

    kind: ClassVar[str] = "constant"
    value: float

    def _validate(self) -> None:
        self._need(self.value >= 0, "value must not be negative")

    def _largest(self) -> float:
        return self.value


@dataclass(frozen=True)
class Uniform(Distribution):
    """Uniform on [low, high)."""

    kind: ClassVar[str] = "uniform"
    low: float = 0.0
    high: float = 1.0

    def _validate(self) -> None:
        self._need(0 <= self.low <= self.high, "0 <= low <= high must hold")

    def _largest(self) -> float:
        return self.high


@dataclass(frozen=True)
class Exponential(Distribution):
    """Exponential with mean `scale`."""

    kind: ClassVar[str] = "exponential"
    scale: float = 1.0

    def _validate(self) -> None:
        self._need(self.scale >= 0, "scale must not be negative")

    def _largest(self) -> float:
        return self.scale * _LOG_MAX


@dataclass(frozen=True)
class HalfNormal(Distribution):
    """low + |N(0, 1)| * scale."""

    kind: ClassVar[str] = "half_normal"
    scale: float = 1.0
    low: float = 0.0

    def _validate(self) -> None:
        self._need(self.scale >= 0, "scale must not be negative")
        self._need(self.low >= 0, "low must not be negative")

    def _largest(self) -> float:
        return self.low + self.scale * _NORMAL_MAX


@dataclass(frozen=True)
class TruncatedNormal(Distribution):
    """N(loc, scale) given that it falls into [low, high]; at least one draw in a thousand must."""

    kind: ClassVar[str] = "truncated_normal"
    loc: float
    scale: float
    low: float = 0.0
    high: float = math.inf

    def _validate(self) -> None:
        self._need(math.isfinite(self.loc), "loc must be finite")
        self._need(self.scale > 0, "scale must be positive (no spread: Constant)")
        self._need(0 <= self.low < self.high, "0 <= low < high must hold")
        below, above = ((bound - self.loc) / (self.scale * math.sqrt(2.0)) for bound in (self.low, self.high))
        inside = 0.5 * (math.erfc(below) - math.erfc(above))
        self._need(inside >= _ACCEPTANCE_MIN, f"only a share {inside:.2g} of the normal lies between low and high")

    def _largest(self) -> float:
        return min(self.high, abs(self.loc) + self.scale * _NORMAL_MAX)


@dataclass(frozen=True)
class LogNormal(Distribution):
    """exp(N(mean, sigma)): mean and sigma are those of the logarithm."""

    kind: ClassVar[str] = "log_normal"
    mean: float = 0.0
    sigma: float = 1.0

    def _validate(self) -> None:
        self._need(math.isfinite(self.mean), "mean must be finite")
        self._need(self.sigma >= 0, "sigma must not be negative")

    def _largest(self) -> float:
        exponent = self.mean + self.sigma * _NORMAL_MAX
        return math.exp(exponent) if exponent < 709.0 else math.inf


@dataclass(frozen=True)
class Pareto(Distribution):
    """The classical Pareto: scale / (1 - u)^(1/shape), never below scale (numpy.random.pareto is this minus 1)."""

    kind: ClassVar[str] = "pareto"
    shape: float
    scale: float = 1.0

    def _validate(self) -> None:
        self._need(0 < self.shape < math.inf, "shape must be positive and finite")
        self._need(self.scale > 0, "scale must be positive")

    def _largest(self) -> float:
        exponent = _LOG_MAX / self.shape + math.log(self.scale)
        return math.exp(exponent) if exponent < 709.0 else math.inf


@dataclass(frozen=True)
class Weibull(Distribution):
    """scale * (-log(1 - u))^(1/shape)."""

    kind: ClassVar[str] = "weibull"
    shape: float
    scale: float = 1.0

    def _validate(self) -> None:
        self._need(0 < self.shape < math.inf, "shape must be positive and finite")
        self._need(self.scale >= 0, "scale must not be negative")

    def _largest(self) -> float:
        exponent = math.log(_LOG_MAX) / self.shape
        return self.scale * math.exp(exponent) if exponent < 709.0 else math.inf


@dataclass(frozen=True, eq=False)
class Empirical(Distribution):
    """One of `samples`, each as likely; kept sorted."""

    kind: ClassVar[str] = "empirical"
    samples: NDArray[np.float64]

    def __init__(self, samples: ArrayLike) -> None:
        values = to_array("samples", samples)
        if values.dtype.kind not in "iuf":
            raise TypeError(f"Empirical: samples must be numbers, not {values.dtype}")
        if values.ndim != 1 or values.size == 0:
            raise ValueError(f"Empirical: samples must be a non-empty vector, not of shape {values.shape}")
        ordered = np.sort(values.astype(np.float64))
        if not (ordered[0] >= 0 and ordered[-1] < np.inf):  # sorting puts NaN last
            raise ValueError("Empirical: samples must be finite and not negative")
        ordered.flags.writeable = False
        object.__setattr__(self, "samples", ordered)

    @property
    def params(self) -> tuple[float, ...]:
        return ()

    def _largest(self) -> float:
        return float(self.samples[-1])

    def describe(self) -> dict[str, Any]:
        digest = hashlib.sha256(self.samples.astype("<f8").tobytes()).hexdigest()
        return {"kind": self.kind, "samples": self.samples.size, "sha256": digest}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Empirical) and np.array_equal(self.samples, other.samples)

    def __hash__(self) -> int:
        return hash((self.kind, self.samples.tobytes()))


def _per_client(owner: str, name: str, values: ArrayLike, n_clients: int, kinds: str) -> NDArray[Any]:
    array = to_array(name, values)
    if array.dtype.kind not in kinds:
        wanted = "integers" if "f" not in kinds else "numbers"
        raise TypeError(f"{owner}: {name} must be {wanted}, not {array.dtype}")
    if array.shape != (n_clients,):
        raise ValueError(f"{owner}: {name} must have one value per client, shape ({n_clients},), not {array.shape}")
    array = array.astype(np.float64 if "f" in kinds else np.int64)
    bad = np.flatnonzero(~((array >= 0) & np.isfinite(array)))
    if bad.size:
        value = array[bad[0]]
        raise ValueError(f"{owner}: {name} of client {bad[0]} is {value}; it must be finite and not negative")
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class DelayModel(Immutable):
    """Delays drawn from distributions.

    A task of client i takes wait, then download + compute * factor_i + upload, where factor_i is the client's
    `client_speed` (2 means twice as slow; a distribution is drawn once per client) times its `n_samples`, each 1 where
    not given: with `n_samples`, `compute` is the time of one sample.
    """

    n_clients: int
    wait: Distribution = Constant(0.0)
    download: Distribution = Constant(0.0)
    compute: Distribution = Constant(1.0)
    upload: Distribution = Constant(0.0)
    client_speed: Distribution | NDArray[np.float64] | None = None
    n_samples: NDArray[np.int64] | None = None
    availability: Availability | None = None

    def __post_init__(self) -> None:
        try:
            n_clients = operator.index(self.n_clients)
        except TypeError:
            raise TypeError(f"DelayModel: n_clients must be an int, not {type(self.n_clients).__name__}") from None
        if not 1 <= n_clients < 2**31:
            raise ValueError(f"DelayModel: n_clients is {shown(n_clients)}; it must be in 1 .. 2^31 - 1")
        object.__setattr__(self, "n_clients", n_clients)
        for name in ("wait", "download", "compute", "upload"):
            value = getattr(self, name)
            if not isinstance(value, Distribution):
                raise TypeError(f"DelayModel: {name} must be a distribution such as Constant(1.0), not {shown(value)}")
        if self.client_speed is not None and not isinstance(self.client_speed, Distribution):
            speed = _per_client("DelayModel", "client_speed", self.client_speed, n_clients, "iuf")
            object.__setattr__(self, "client_speed", speed)
        if self.n_samples is not None:
            sizes = _per_client("DelayModel", "n_samples", self.n_samples, n_clients, "iu")
            object.__setattr__(self, "n_samples", sizes)
        if self.availability is not None:
            if not isinstance(self.availability, Availability):
                raise TypeError(f"DelayModel: availability must be an Availability, not {shown(self.availability)}")
            if self.availability.n_clients != n_clients:
                raise ValueError(
                    f"DelayModel: availability is for {self.availability.n_clients} clients, the model has {n_clients}"
                )

    def describe(self) -> dict[str, Any]:
        """What it is, as JSON can hold it; long arrays by their SHA-256."""

        def digest(array: NDArray[Any]) -> str:
            state = hashlib.sha256()
            update_hash(state, np.ascontiguousarray(array))
            return state.hexdigest()

        speed = self.client_speed
        return {
            "kind": "delay_model",
            "n_clients": self.n_clients,
            **{name: getattr(self, name).describe() for name in ("wait", "download", "compute", "upload")},
            "client_speed": speed.describe()
            if isinstance(speed, Distribution)
            else None
            if speed is None
            else digest(speed),
            "n_samples": None if self.n_samples is None else digest(self.n_samples),
            "availability": None if self.availability is None else self.availability.describe(),
        }
