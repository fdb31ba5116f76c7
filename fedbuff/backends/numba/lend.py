# mypy: allow-untyped-defs, allow-untyped-calls
"""Arrays whose owners are not counted: for functions that hand many of them on, a million times a second."""

from __future__ import annotations

from numba.core import cgutils, types
from numba.core.imputils import impl_ret_borrowed

from .compile import intrinsic

__all__ = ["lend", "read_only"]


def _without_owners(context, builder, kind, value):
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value=value)
        array.meminfo = cgutils.get_null_value(array.meminfo.type)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        for i in range(len(kind)):
            part = kind[i]  # type: ignore[index]
            lent = _without_owners(context, builder, part, builder.extract_value(value, i))
            value = builder.insert_value(value, lent, i)
    return value


@intrinsic
def lend(typing_context, given):
    """The array, or the tuple with the arrays in it, which somebody else keeps for as long as it is used."""

    def code(context, builder, signature, arguments):
        return _without_owners(context, builder, signature.args[0], arguments[0])

    return given(given), code


@intrinsic
def read_only(typing_context, array):
    """The array as one that is only read, which is another type."""
    made = types.Array(array.dtype, array.ndim, array.layout, readonly=True)

    def code(context, builder, signature, arguments):
        return impl_ret_borrowed(context, builder, signature.return_type, arguments[0])

    return made(array), code
