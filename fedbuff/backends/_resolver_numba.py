"""The reference event loop compiled by Numba: the same source, the same bits, for where nothing else was compiled.

Importing this teaches Numba the helpers of the reference, and the three that differ between arrays and scalars.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types
from numba.extending import intrinsic, overload, register_jitable

from . import _philox, _portable_math
from . import _resolver_reference as reference


@intrinsic
def _to_bits(typing_context: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.uint64))

    return types.uint64(types.float64), generate


@intrinsic
def _to_double(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float64))

    return types.float64(types.uint64), generate


@overload(_portable_math.bits_of, strict=False)
def _bits_of(x: Any) -> Any:
    return lambda x: _to_bits(x)  # type: ignore[call-arg]


@overload(_portable_math.double_of, strict=False)
def _double_of(bits: Any) -> Any:
    return lambda bits: _to_double(bits)  # type: ignore[call-arg]


@overload(_portable_math.select, strict=False)
def _select(condition: Any, yes: Any, no: Any) -> Any:
    return lambda condition, yes, no: yes if condition else no


for _module, _names in (
    (_philox, ("philox_words", "unit_double", "multiply_high")),
    (
        _portable_math,
        (
            "reduce_argument",
            "log_positive",
            "exp_sum",
            "exact_product",
            "log_two_doubles",
            "pow",
            "sincos2pi",
            "standard_normal",
            "draw_words",
        ),
    ),
    (
        reference,
        (
            "period_of",
            "window_at",
            "available",
            "next_open",
            "work_until",
            "draw_component",
            "recorded_row",
            "wait_of",
            "duration_of",
            "tasks_left",
            "eligible",
            "selection_word",
            "draw_client",
            "next_opening",
            "start_time_of",
            "end_of_task",
        ),
    ),
):
    for _name in _names:
        register_jitable(getattr(_module, _name))

resolve = njit(nogil=True)(reference.resolve)
