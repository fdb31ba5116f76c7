# mypy: allow-untyped-defs
"""Philox and the portable functions, compiled by Numba for scalars from the source that NumPy runs on arrays.

Importing this teaches Numba all of them, and the three helpers that differ between arrays and scalars.
"""

from __future__ import annotations

import numpy as np
from numba.extending import overload, register_jitable

from ..python import philox as _philox
from ..python import portable_math as _portable_math
from ..python.philox import key_words, philox_words, unit_double
from ..python.portable_math import log_positive, sincos2pi

__all__ = ["key_words", "log_positive", "philox_words", "sincos2pi", "unit_double"]


@overload(_portable_math.bits_of)
def _bits_of(x):
    return lambda x: np.float64(x).view(np.uint64)


@overload(_portable_math.double_of)
def _double_of(bits):
    return lambda bits: np.uint64(bits).view(np.float64)


@overload(_portable_math.select)
def _select(condition, yes, no):
    return lambda condition, yes, no: yes if condition else no


for _function in (
    _philox.philox_words,
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
