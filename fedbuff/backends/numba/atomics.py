# mypy: allow-untyped-defs, allow-untyped-calls
"""Words that threads share, in compiled code: int64 elements of an array."""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types

from .compile import intrinsic

__all__ = ["add", "load", "store", "try_lock", "yield_core"]

_WORDS = types.Array(types.int64, 1, "C")


def _word(context, builder, signature, arguments):
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]], inbounds=True)


@intrinsic
def load(typing_context, words, index):
    """What another thread stored, and all that it wrote before."""

    def code(context, builder, signature, arguments):
        return builder.load_atomic(_word(context, builder, signature, arguments), "acquire", 8)

    return types.int64(_WORDS, types.int64), code


@intrinsic
def store(typing_context, words, index, value):
    def code(context, builder, signature, arguments):
        builder.store_atomic(arguments[2], _word(context, builder, signature, arguments), "release", 8)
        return context.get_dummy_value()

    return types.void(_WORDS, types.int64, types.int64), code


@intrinsic
def add(typing_context, words, index, value):
    """Adds to a word; returns what it was."""

    def code(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _word(context, builder, signature, arguments), arguments[2], "acq_rel")

    return types.int64(_WORDS, types.int64, types.int64), code


@intrinsic
def try_lock(typing_context, words, index):
    """Makes 1 of a 0; whether it was 0. `store` of 0 unlocks."""

    def code(context, builder, signature, arguments):
        free, taken = ir.Constant(ir.IntType(64), 0), ir.Constant(ir.IntType(64), 1)
        pair = builder.cmpxchg(_word(context, builder, signature, arguments), free, taken, "acq_rel", "acquire")
        return context.cast(builder, builder.extract_value(pair, 1), types.boolean, types.boolean)

    return types.boolean(_WORDS, types.int64), code


@intrinsic
def yield_core(typing_context):
    """Lets another thread run on this core."""

    def code(context, builder, signature, arguments):
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.IntType(32), []), "sched_yield")
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), code
