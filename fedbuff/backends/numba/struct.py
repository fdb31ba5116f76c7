# mypy: allow-untyped-defs, allow-untyped-calls
"""Objects with fields that compiled code changes: a class of Python, compiled for a struct of its attributes.

`struct_kind` makes a Numba type of named fields, held by reference, and lets compiled code call the methods of a Python
class on it. A field that is an array is read without counting its owners: the struct owns it, and a method that puts
another in its place keeps no older one. So a field costs a load and, unlike a jitclass, what was compiled can be kept
on disk.
"""

from __future__ import annotations

import hashlib
import inspect
from typing import Any

from numba.core import cgutils, imputils, types
from numba.core.datamodel import models
from numba.core.datamodel.registry import default_manager
from numba.core.extending import infer_getattr, lower_getattr_generic, lower_setattr_generic, overload_method
from numba.core.typing.templates import AttributeTemplate
from numba.experimental import structref


class Struct(types.StructRef):
    """A type of named fields; its name is short, since it becomes part of the name of every compiled function."""

    def __init__(self, fields):
        super().__init__(fields)
        self.name = f"{self._typename}_{hashlib.sha256(self.name.encode()).hexdigest()[:16]}"


new: Any = structref.new  # a struct of this type, its fields still 0; for compiled code


class Held(structref.StructRefProxy):
    """A struct of compiled code, held by Python."""


def struct_kind(kind: Any, source: type) -> Any:
    """Registers a subclass of Struct. Compiled code may call the methods of the class `source` on it."""
    default_manager.register(kind, models.StructRefModel)

    @infer_getattr
    class _Attribute(AttributeTemplate):
        key = kind

        def generic_resolve(self, typ, attr):  # type: ignore[override]
            return typ.field_dict.get(attr)

    def payload(context, builder, typ, value):
        return structref._Utils(context, builder, typ).get_data_struct(value)

    @lower_getattr_generic(kind)
    def _get(context, builder, typ, value, attr):
        field = typ.field_dict[attr]
        read = getattr(payload(context, builder, typ, value), attr)
        if isinstance(field, types.Array):
            array = context.make_array(field)(context, builder, value=read)
            array.meminfo = cgutils.get_null_value(array.meminfo.type)
            return array._getvalue()
        return imputils.impl_ret_borrowed(context, builder, field, read)

    @lower_setattr_generic(kind)
    def _set(context, builder, sig, args, attr):
        typ, given_type = sig.args
        field = typ.field_dict[attr]
        data = payload(context, builder, typ, args[0])
        given = context.cast(builder, args[1], given_type, field)
        before = getattr(data, attr)
        context.nrt.incref(builder, field, given)
        context.nrt.decref(builder, field, before)
        setattr(data, attr, given)

    for name, method in vars(source).items():
        if inspect.isfunction(method) and not name.startswith("__"):
            _teach(kind, name, method)
    return kind


def _teach(kind: Any, name: str, method: Any) -> None:
    def compiled_method(*_: Any) -> Any:
        return method

    compiled_method.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    overload_method(kind, name)(compiled_method)
