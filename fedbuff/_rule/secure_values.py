"""How a sum hides its parts: fixed point under masks, clipping and noise. Plain values, for `fedbuff.secure`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np

from .._base.checks import choice, count, number

__all__ = ["Cipher", "FixedPoint", "Gaussian", "OneTimePad", "Simulate", "secure_of"]

Cipher = Literal["chacha20", "aes-ctr"]
Rounding = Literal["nearest", "stochastic"]
NoiseSource = Literal["system", "simulated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPoint:
    """Numbers as integers modulo 2^32 or 2^64, whose sums are exact and do not depend on the order.

    >>> import fedbuff as fb
    >>> encoding = fb.secure.FixedPoint(clip=1.0, bits=20)
    >>> encoding.step, encoding.capacity
    (1.9073486328125e-06, 4095)

    clip      numbers are cut to [-clip, clip]; taken down to the next float32, so that every dtype cuts alike
    bits      of an encoded number with its sign: the step is the power of two with clip <= 2^(bits - 1) step
    modulus   32 or 64: the bits of a word
    rounding  "nearest", or "stochastic": up or down by chance (Philox), in the mean the number itself
    """

    clip: float = 1.0
    bits: int = 20
    modulus: Literal[32, 64] = 32
    rounding: Rounding = "nearest"

    def __post_init__(self) -> None:
        clip = np.float32(number("clip", self.clip, low=1e-18, high=1e18))
        if float(clip) > self.clip:
            clip = np.nextafter(clip, np.float32(0))
        object.__setattr__(self, "clip", float(clip))
        if self.modulus not in (32, 64):
            raise ValueError(f"modulus: expected 32 or 64, got {self.modulus!r}")
        most = 31 if self.modulus == 32 else 51
        if count("bits", self.bits, low=2) > most:
            raise ValueError(f"bits: expected at most {most} with words of {self.modulus} bits, got {self.bits}")
        choice("rounding", self.rounding, get_args(Rounding))

    @property
    def step(self) -> float:
        """What one unit of an encoded number stands for."""
        mantissa, exponent = math.frexp(self.clip)  # clip = mantissa 2^exponent, 1/2 <= mantissa < 1
        return math.ldexp(1.0, exponent - (1 if mantissa == 0.5 else 0) - (self.bits - 1))

    @property
    def limit(self) -> int:
        """The largest encoded number."""
        units = self.clip / self.step
        return round(units) if self.rounding == "nearest" else math.ceil(units)

    @property
    def capacity(self) -> int:
        """The largest sum of weights for which no sum can leave the range of a signed word."""
        return ((1 << (self.modulus - 1)) - 1) // self.limit

    @property
    def word(self) -> np.dtype[np.unsignedinteger[Any]]:
        return np.dtype(np.uint32 if self.modulus == 32 else np.uint64)

    def error(self, weight: float = 1.0) -> float:
        """The most by which a decoded sum of numbers within the range misses their sum, weights that sum to `weight`:
        half a step for each, a whole one with stochastic rounding."""
        return weight * self.step * (0.5 if self.rounding == "nearest" else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulate:
    """The arithmetic of a secure sum without its ciphers: the same bits, for speed.

    encoding     how numbers become words
    weight_unit  the integer that a weight s e = 1 stands for: weights are rounded to 1 / weight_unit
    max_weight   the largest integer weight; None: weight_unit
    """

    encoding: FixedPoint = field(default_factory=FixedPoint)
    weight_unit: int = 1
    max_weight: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.encoding, FixedPoint):
            raise TypeError(f"encoding: expected fedbuff.secure.FixedPoint, got {type(self.encoding).__name__}")
        count("weight_unit", self.weight_unit)
        if self.max_weight is None:
            object.__setattr__(self, "max_weight", self.weight_unit)
        count("max_weight", self.most)

    @property
    def most(self) -> int:
        assert self.max_weight is not None
        return self.max_weight

    def check_capacity(self, buffer_size: int) -> None:
        """ValueError where a full buffer of the largest weights could overflow."""
        needed, capacity = buffer_size * self.most, self.encoding.capacity
        if needed > capacity:
            raise ValueError(
                f"secure: {buffer_size} updates of weight up to {self.most} may overflow: words of "
                f"{self.encoding.modulus} bits hold a weight of {capacity} at {self.encoding.bits} bits a number; "
                "use fewer bits or modulus=64"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTimePad(Simulate):
    """A secure sum with real pads: every replayed update goes through `secure.Client`, `Server` and `Aggregator`.

    cipher  that expands a seed into a pad: "chacha20", or "aes-ctr" (AES-256)
    """

    cipher: Cipher = "chacha20"

    def __post_init__(self) -> None:
        Simulate.__post_init__(self)
        choice("cipher", self.cipher, get_args(Cipher))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian:
    """Differential privacy for a buffer's sum: updates clipped in L2 norm, and normal noise added to their sum.

    >>> import fedbuff as fb
    >>> fb.secure.Gaussian(clip=0.5, noise_multiplier=2.0).deviation
    1.0

    clip              an update longer than this is scaled down to it; weights s e must be at most 1
    noise_multiplier  the noise's standard deviation in each coordinate of the sum, divided by clip; 0: no noise
    source            "system": from the operating system, and then no two runs are alike. "simulated": from the
                      replay's seed, repeatable, to see what noise does to a training; it keeps nothing private, as
                      whoever knows or guesses the seed subtracts it
    """

    clip: float
    noise_multiplier: float
    source: NoiseSource = "system"

    def __post_init__(self) -> None:
        number("clip", self.clip, open_low=True)
        number("noise_multiplier", self.noise_multiplier)
        choice("source", self.source, get_args(NoiseSource))

    @property
    def deviation(self) -> float:
        return self.noise_multiplier * self.clip

    @property
    def repeatable(self) -> bool:
        """Whether the same seed gives the same noise."""
        return self.source == "simulated" or self.noise_multiplier == 0

    def clip_for(self, secure: Simulate | None, dim: int) -> float:
        """What updates are clipped to: `clip`, less what rounding to fixed point may add to a norm."""
        if secure is None:
            return self.clip
        slack = secure.encoding.error() * _root_above(dim)
        if slack >= self.clip:
            raise ValueError(
                f"privacy: rounding to steps of {secure.encoding.step:g} may add {slack:g} to the norm of {dim} "
                f"numbers, which leaves nothing of clip {self.clip:g}; use more bits"
            )
        left = self.clip - slack
        return left if Fraction(left) + Fraction(slack) <= Fraction(self.clip) else math.nextafter(left, 0.0)


def _root_above(n: int) -> float:
    """The square root, rounded up."""
    root = math.sqrt(n)
    return root if Fraction(root) ** 2 >= n else math.nextafter(root, math.inf)


def secure_of(value: Any) -> Simulate | None:
    """What FedBuff's `secure` stands for."""
    if value == "simulate":
        return Simulate()
    if value is not None and not isinstance(value, Simulate):
        kind = repr(value) if isinstance(value, str) else type(value).__name__
        raise TypeError(f'secure: expected "simulate", fedbuff.secure.Simulate or OneTimePad, got {kind}')
    return value
