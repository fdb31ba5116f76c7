# mypy: allow-untyped-defs, allow-untyped-calls
"""Philox and the portable functions, compiled by Numba for scalars from the source that NumPy runs on arrays.

Importing this teaches Numba all of them, and the three helpers that differ between arrays and scalars.
"""

from __future__ import annotations

import numpy as np
from numba.extending import overload, register_jitable

from ..python import philox as _philox
from ..python import portable_math as _portable_math
from ..python.philox import key_words, multiply_high, philox_words, unit_double
from ..python.portable_math import bits_of, double_of, log_positive, sincos2pi

__all__ = [
    "bits_of",
    "double_of",
    "key_words",
    "log_positive",
    "multiply_high",
    "philox_words",
    "sincos2pi",
    "unit_double",
]

_MASK, _U32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_M0, _M1, _W0, _W1 = _philox.M0, _philox.M1, _philox.W0, _philox.W1


@overload(_portable_math.bits_of)
def _bits_of(x):
    return lambda x: np.float64(x).view(np.uint64)


@overload(_portable_math.double_of)
def _double_of(bits):
    return lambda bits: np.uint64(bits).view(np.float64)


@overload(_portable_math.select)
def _select(condition, yes, no):
    return lambda condition, yes, no: yes if condition else no


@register_jitable
def _round(c0, c1, c2, c3, k0, k1):
    p0, p1 = _M0 * c0, _M1 * c2
    return (p1 >> _U32) ^ c1 ^ k0, p1 & _MASK, (p0 >> _U32) ^ c3 ^ k1, p0 & _MASK


@register_jitable
def _next_key(k0, k1):
    return (k0 + _W0) & _MASK, (k1 + _W1) & _MASK


@overload(_philox.philox_words, jit_options={"forceinline": True})
def _philox_words(k0, k1, c0, c1, c2, c3):
    """The rounds written out and inlined: LLVM makes vector code of a loop around them."""

    def words(k0, k1, c0, c1, c2, c3):
        c0, c1, c2, c3 = _round(c0 & _MASK, c1, c2 & _MASK, c3, k0, k1)
        k0, k1 = _next_key(k0, k1)
        c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
        k0, k1 = _next_key(k0, k1)
        c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
        k0, k1 = _next_key(k0, k1)
        c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
        k0, k1 = _next_key(k0, k1)
        c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
        k0, k1 = _next_key(k0, k1)
        c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
        k0, k1 = _next_key(k0, k1)
        c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
        k0, k1 = _next_key(k0, k1)
        c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
        k0, k1 = _next_key(k0, k1)
        c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
        k0, k1 = _next_key(k0, k1)
        return _round(c0, c1, c2, c3, k0, k1)

    return words


for _function in (
    _philox.unit_double,
    _philox.multiply_high,
    _portable_math.reduce_argument,
    _portable_math.log_positive,
    _portable_math.log_two_doubles,
    _portable_math.exact_product,
    _portable_math.exp_sum,
    _portable_math.pow,
    _portable_math.sincos2pi,
    _portable_math.standard_normal,
    _portable_math.draw_words,
):
    register_jitable(_function)
