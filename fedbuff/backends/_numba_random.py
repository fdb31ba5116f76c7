# mypy: allow-untyped-defs
"""Philox and the portable log and sincos, compiled by Numba for scalars from the source that NumPy runs on arrays."""

from __future__ import annotations

import numpy as np
from numba.extending import overload, register_jitable

from . import _portable_math
from ._philox import key_words, philox_words, unit_double
from ._portable_math import log_positive, sincos2pi

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


for _function in (philox_words, unit_double, _portable_math.reduce_argument, log_positive, sincos2pi):
    register_jitable(_function)
