"""`DelayModel`: delays that are drawn."""

from __future__ import annotations

import hashlib
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.arrays import to_array
from .._base.checks import count, seed_of, shown
from ..backends.python.portable_math import (
    COMPONENT_COMPUTE,
    COMPONENT_DOWNLOAD,
    COMPONENT_SPEED,
    COMPONENT_UPLOAD,
    COMPONENT_WAIT,
    draw,
)
from .availability import Availability
from .distributions import Constant, Distribution
from .immutable import Immutable, update_hash
from .task_delay import TaskDelay

_NO_TIME, _ONE_SECOND = Constant(0.0), Constant(1.0)


def _per_client(owner: str, name: str, values: ArrayLike, n_clients: int, kinds: str) -> NDArray[Any]:
    array = to_array(name, values)
    if array.dtype.kind not in kinds:
        wanted = "integers" if "f" not in kinds else "numbers"
        raise TypeError(f"{owner}: {name}: expected {wanted}, got {array.dtype}")
    if array.shape != (n_clients,):
        raise ValueError(f"{owner}: {name}: expected one value per client, shape ({n_clients},), got {array.shape}")
    array = array.astype(np.float64 if "f" in kinds else np.int64)
    bad = np.flatnonzero(~((array >= 0) & np.isfinite(array)))
    if bad.size:
        value = array[bad[0]]
        raise ValueError(f"{owner}: {name}: expected finite numbers >= 0, got {value} for client {bad[0]}")
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class DelayModel(Immutable):
    """Delays drawn from distributions.

    A task of client i takes wait, then download + compute * factor_i + upload, where factor_i is the client's
    `client_speed` (2 means twice as slow; a distribution is drawn once per client) times its `n_samples` and its
    `local_steps`, each 1 where not given: with `n_samples`, `compute` is the time of one sample; with `local_steps`
    (`LocalSGD.steps_of` gives them), that of one local step.
    """

    n_clients: int
    wait: Distribution = _NO_TIME
    download: Distribution = _NO_TIME
    compute: Distribution = _ONE_SECOND
    upload: Distribution = _NO_TIME
    client_speed: Distribution | NDArray[np.float64] | None = None
    n_samples: NDArray[np.int64] | None = None
    availability: Availability | None = None
    local_steps: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        try:
            n_clients = operator.index(self.n_clients)
        except TypeError:
            raise TypeError(f"DelayModel: n_clients: expected an int, got {type(self.n_clients).__name__}") from None
        if not 1 <= n_clients < 2**31:
            raise ValueError(f"DelayModel: n_clients: expected an int from 1 to 2^31 - 1, got {shown(n_clients)}")
        object.__setattr__(self, "n_clients", n_clients)
        for name in ("wait", "download", "compute", "upload"):
            value = getattr(self, name)
            if not isinstance(value, Distribution):
                raise TypeError(
                    f"DelayModel: {name}: expected a distribution such as Constant(1.0), got {shown(value)}"
                )
        if self.client_speed is not None and not isinstance(self.client_speed, Distribution):
            speed = _per_client("DelayModel", "client_speed", self.client_speed, n_clients, "iuf")
            object.__setattr__(self, "client_speed", speed)
        for name in ("n_samples", "local_steps"):
            if getattr(self, name) is not None:
                counts = _per_client("DelayModel", name, getattr(self, name), n_clients, "iu")
                object.__setattr__(self, name, counts)
        if self.availability is not None:
            if not isinstance(self.availability, Availability):
                raise TypeError(f"DelayModel: availability: expected an Availability, got {shown(self.availability)}")
            if self.availability.n_clients != n_clients:
                raise ValueError(
                    f"DelayModel: availability: expected {n_clients} clients, got {self.availability.n_clients}"
                )

    def delay(self, client: int, task: int, seed: int = 0) -> TaskDelay:
        """The delays of a client's task 0, 1, 2, ..., as a schedule of this seed draws them, bit for bit.

        >>> import fedbuff as fb
        >>> model = fb.DelayModel(n_clients=2, compute=fb.Exponential(2.0), client_speed=[1.0, 3.0])
        >>> model.delay(1, 4, seed=7) == model.delay(1, 4, seed=7)
        True
        """
        client = count("client", client, low=0, high=self.n_clients - 1)
        task = count("task", task, low=0, high=2**32 - 1)
        seed = seed_of(seed)

        def drawn(law: Distribution, number: int, component: int) -> float:
            return float(draw(law.kind, law.params, getattr(law, "samples", None), seed, client, number, component))

        compute = drawn(self.compute, task, COMPONENT_COMPUTE)
        factor = self.compute_factor(np.array([client]), seed)
        if factor is not None:
            compute *= float(factor[0])
        return TaskDelay(
            drawn(self.wait, task, COMPONENT_WAIT),
            drawn(self.download, task, COMPONENT_DOWNLOAD),
            compute,
            drawn(self.upload, task, COMPONENT_UPLOAD),
        )

    def compute_factor(self, client: NDArray[np.integer[Any]], seed: int) -> NDArray[np.float64] | None:
        """What multiplies the compute time of each of these clients; None where nothing does."""
        if self.client_speed is None and self.n_samples is None and self.local_steps is None:
            return None
        factor = np.ones(client.size)
        speed = self.client_speed
        if isinstance(speed, Distribution):
            samples = getattr(speed, "samples", None)
            factor[:] = draw(speed.kind, speed.params, samples, seed, client, 0, COMPONENT_SPEED)
        elif speed is not None:
            factor *= speed[client]
        for counts in (self.n_samples, self.local_steps):
            if counts is not None:
                factor *= counts[client]
        return factor

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
            **({} if self.local_steps is None else {"local_steps": digest(self.local_steps)}),
        }
