# mypy: allow-untyped-defs, allow-untyped-calls
"""exp of numbers that are not above 0, without a call: LLVM makes vector code of loops over it."""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from ..python.portable_math import exp_sum
from . import random as _random  # noqa: F401  teaches Numba exp_sum

_LOWEST = np.float32(-87.0)
_LOG2_E = np.float32(1.44269504088896341)
_ROUNDER = np.float32(12582912.0)  # added and subtracted, it rounds to a whole number
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_C0, _C1, _C2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_C3, _C4, _C5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_ONE = np.float32(1.0)
_SHIFT, _BIAS = np.uint32(23), np.uint32(127 << 23)


def power(x):
    """exp(x) for x <= 0 or NaN; in float32 a number near 1e-38 instead of smaller ones."""
    raise NotImplementedError


@overload(power, jit_options={"forceinline": True})
def _power(x):
    def single(x):
        x = _LOWEST if x < _LOWEST else x
        shifted = x * _LOG2_E + _ROUNDER
        k = shifted - _ROUNDER
        r = (x - k * _LN2_HIGH) - k * _LN2_LOW
        y = ((((_C0 * r + _C1) * r + _C2) * r + _C3) * r + _C4) * r + _C5
        y = y * (r * r) + r + _ONE
        bits = np.float32(shifted).view(np.uint32)
        return y * np.uint32((bits << _SHIFT) + _BIAS).view(np.float32)

    def double(x):
        return exp_sum(x, 0.0)

    return single if x == types.float32 else double
