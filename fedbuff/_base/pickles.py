"""Pickles from other programs, read without running anything: containers, strings, numbers and, if wanted, arrays.

A pickle is a program of opcodes. It is walked once before it is run: an opcode that asks for memory beyond the file's
own size, or tuples nested so deep that hashing one would overflow the stack, are refused.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

__all__ = ["PickledArray", "loads", "loads_arrays"]

_NESTED = 10_000  # tuples that hold containers; hashing nested tuples takes a C stack frame for each level

_FIXED, _LINE, _COUNTED = range(3)  # how an opcode's argument ends
_SCALAR, _TUPLE, _PUT, _GET, _MEMOIZE, _NEUTRAL, _MARK, _OTHER = range(8)  # what an opcode does, as far as we look
_SCALARS = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "STRING", "BINSTRING", "SHORT_BINSTRING",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "NONE", "NEWTRUE", "NEWFALSE", "UNICODE", "SHORT_BINUNICODE",
    "BINUNICODE", "BINUNICODE8", "FLOAT", "BINFLOAT",
}  # fmt: skip
_WIDTHS = {-2: 1, -3: 4, -4: 4, -5: 8}  # pickletools' codes for "as many bytes as the first 1, 4, 8 say"
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": None}


def _table() -> list[tuple[int, int, int] | None]:
    """For each byte: what it does, how its argument ends, and the bytes of the argument, or of its count."""
    table: list[tuple[int, int, int] | None] = [None] * 256
    for op in pickletools.opcodes:
        kind = _OTHER
        if op.name in _SCALARS:
            kind = _SCALAR
        elif op.name in _TUPLES:
            kind = _TUPLE
        elif op.name in ("PUT", "BINPUT", "LONG_BINPUT"):
            kind = _PUT
        elif op.name in ("GET", "BINGET", "LONG_BINGET"):
            kind = _GET
        elif op.name == "MEMOIZE":
            kind = _MEMOIZE
        elif op.name in ("PROTO", "FRAME"):
            kind = _NEUTRAL
        elif op.name == "MARK":
            kind = _MARK
        n = 0 if op.arg is None else op.arg.n
        if op.name in ("GLOBAL", "INST"):
            table[ord(op.code)] = (_OTHER, _LINE, 2)
        elif n >= 0:
            table[ord(op.code)] = (kind, _FIXED, n)
        else:
            table[ord(op.code)] = (kind, _LINE, 1) if n == -1 else (kind, _COUNTED, _WIDTHS[n])
    return table


_OPCODES = _table()
_WANTED = {ord(op.code): _TUPLES[op.name] for op in pickletools.opcodes if op.name in _TUPLES}
_STOP = ord(pickle.STOP)


def _check(data: bytes) -> None:
    """Refuses what would take more memory, or more of the stack, than the bytes justify."""
    at, size = 0, len(data)
    scalars, marked, nested = 0, False, 0  # numbers and strings since the last container; whether from a mark on
    memo: dict[int, bool] = {}  # whether a number or a string is stored there
    while at < size:
        code = data[at]
        entry = _OPCODES[code]
        if entry is None:
            raise pickle.UnpicklingError(f"byte {at}: there is no opcode {code}")
        kind, ends, n = entry
        begin = at + 1
        if ends == _FIXED:
            at = begin + n
        elif ends == _COUNTED:
            length = int.from_bytes(data[begin : begin + n], "little")
            at = begin + n + length
        else:
            at = begin
            for _ in range(n):
                at = data.find(b"\n", at) + 1
                if at == 0:
                    raise pickle.UnpicklingError(f"byte {begin - 1}: its line does not end")
        if at > size:
            raise pickle.UnpicklingError(f"byte {begin - 1}: it needs {at - begin} bytes, and {size - begin} are left")
        if kind == _SCALAR:
            scalars += 1
        elif kind == _MEMOIZE:
            memo[len(memo)] = scalars > 0
        elif kind in (_PUT, _GET):
            place = int(data[begin:at]) if ends == _LINE else int.from_bytes(data[begin:at], "little")
            if not 0 <= place <= begin:
                raise pickle.UnpicklingError(f"byte {begin - 1}: object {place} is meant, and not so many were stored")
            if kind == _PUT:
                memo[place] = scalars > 0
            elif memo.get(place, False):
                scalars += 1
            else:
                scalars, marked = 0, False
        elif kind == _TUPLE:
            wanted = _WANTED[code]
            nested += not (marked if wanted is None else scalars >= wanted)
            if nested > _NESTED:
                raise pickle.UnpicklingError(f"more than {_NESTED} tuples hold containers")
            scalars, marked = 0, False
        elif kind == _MARK:
            scalars, marked = 0, True
        elif kind == _OTHER:
            if code == _STOP:
                return
            scalars, marked = 0, False


class _Unpickler(pickle.Unpickler):
    """Only these two types come by name, in old protocols; other containers and numbers have opcodes of their own."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("builtins", "__builtin__") and name in ("set", "frozenset"):
            return {"set": set, "frozenset": frozenset}[name]
        called = f"{module}.{name}"
        raise pickle.UnpicklingError(f"it names {called[:100]}; only builtin containers and numbers are read")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to an object outside")


class PickledArray:
    """What a pickle says of a NumPy array of numbers, checked; `array` is a read-only view of the pickle's bytes.

    NumPy's own functions never see the pickle: what it calls are the stand-ins below.
    """

    __slots__ = ("array",)
    array: NDArray[Any]

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("the state of an array is not its five parts")
        _, shape, kind, fortran, data = state
        self.array = _array_of(data, kind, shape, bool(fortran))


class _PickledType:
    """A dtype of plain numbers."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = np.dtype(kind)

    def __setstate__(self, state: Any) -> None:
        order = _text(state[1]) if isinstance(state, tuple) and len(state) >= 2 else ""
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError("the state of a dtype has no byte order")
        self.kind = np.dtype(f"{order}{self.kind.str[1:]}") if order in "<>" else self.kind


class _Call:
    """Stands for a function that a pickle names; a pickle cannot change it."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> NoReturn:
        raise pickle.UnpicklingError("it changes a function")


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value if isinstance(value, str) else ""


def _array_of(data: Any, kind: Any, shape: Any, fortran: bool) -> NDArray[Any]:
    whole = isinstance(shape, tuple) and all(type(length) is int and length >= 0 for length in shape)
    if not isinstance(data, (bytes, bytearray)) or not isinstance(kind, _PickledType) or not whole or len(shape) > 32:
        raise pickle.UnpicklingError("the parts of an array are not its bytes, dtype and shape")
    n_bytes = math.prod(shape) * kind.kind.itemsize
    if n_bytes != len(data):
        raise pickle.UnpicklingError(f"{kind.kind} {shape} takes {n_bytes} bytes, and {len(data)} are there")
    array: NDArray[Any] = np.frombuffer(bytes(data), kind.kind) if n_bytes else np.empty(0, kind.kind)
    return array.reshape(shape, order="F" if fortran else "C")


def _dtype(kind: Any, *_: Any) -> _PickledType:
    name = _text(kind)
    if name not in ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"):
        raise pickle.UnpicklingError(f"an array of {name[:20]!r} is not one of numbers")
    return _PickledType(name)


def _reconstruct(*_: Any) -> PickledArray:
    return PickledArray()


def _frombuffer(data: Any, kind: Any, shape: Any, order: Any) -> PickledArray:
    made = PickledArray()
    made.array = _array_of(data, kind, shape, _text(order) == "F")
    return made


def _encode(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or _text(encoding) != "latin1":
        raise pickle.UnpicklingError("bytes are not written as latin1")
    return text.encode("latin1")


def _ndarray(*_: Any) -> NoReturn:
    raise pickle.UnpicklingError("it makes an array in another way than NumPy does")


_NUMPY = {
    ("numpy", "ndarray"): _Call(_ndarray),
    ("numpy", "dtype"): _Call(_dtype),
    ("_codecs", "encode"): _Call(_encode),
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Call(_reconstruct) for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _Call(_frombuffer) for core in ("core", "_core")},
}


class _ArrayUnpickler(_Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _NUMPY.get((module, name)) or super().find_class(module, name)


def loads(data: bytes) -> Any:
    """The object in a pickle of builtin containers, strings and numbers; any other raises."""
    _check(data)
    return _Unpickler(io.BytesIO(data)).load()


def loads_arrays(data: bytes) -> Any:
    """The same where arrays of numbers may stand, each as a `PickledArray`; texts that Python 2 wrote come as bytes."""
    _check(data)
    return _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
