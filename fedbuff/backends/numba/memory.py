# mypy: allow-untyped-defs, allow-untyped-calls
"""Asking memory for what is read soon."""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types

from .compile import intrinsic

__all__ = ["prefetch"]


@intrinsic
def prefetch(typing_context, array, index):
    """Brings the line of the cache with this element, counted through the whole array, without waiting for it."""

    def code(context, builder, signature, arguments):
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        word = ir.IntType(32)
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        pointer = builder.bitcast(builder.gep(made.data, [arguments[1]]), byte)
        builder.call(function, [pointer, *(ir.Constant(word, number) for number in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.int64), code
