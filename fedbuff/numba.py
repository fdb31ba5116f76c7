"""The compiled core from `@njit` code, called by address: a server, a buffer, an event queue, local SGD, kernels.

>>> import numpy as np, fedbuff as fb
>>> from numba import njit
>>> from fedbuff import numba as fbn
>>> @njit
... def feed(server, delta, n):
...     w = np.empty_like(delta)
...     for _ in range(n):
...         version = fbn.download(server, w)
...         fbn.upload(server, delta, version)
>>> server = fb.Server(np.zeros(2), fb.FedBuff(buffer_size=2))
>>> feed(fbn.handle(server), np.array([1.0, 2.0]), 6)
>>> server.version, server.w
(3, array([-3., -6.]))

Objects are made in Python and handed over as `handle(object)`, an integer that is good for as long as the object lives.
Arrays must be contiguous vectors; their dtypes are looked at when the caller is compiled, their sizes when it runs. A
status of the C ABI other than FB_OK raises ValueError with its number.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from . import backends
from ._base.files import optional
from ._machine.embedding import library

_numba = optional("numba", "numba", "fedbuff.numba")
ir = optional("llvmlite.ir", "numba", "fedbuff.numba")
cgutils = optional("numba.core.cgutils", "numba", "fedbuff.numba")
extending = optional("numba.extending", "numba", "fedbuff.numba")
carray, njit, types = _numba.carray, _numba.njit, _numba.types

__all__ = [
    "accumulate",
    "add",
    "cancel",
    "delta",
    "download",
    "handle",
    "local_sgd",
    "own_rule",
    "pop",
    "push",
    "size",
    "step",
    "upload",
    "vector",
]

_library = ctypes.CDLL(library())
_I32, _I64, _F64, _ADDRESS = ctypes.c_int32, ctypes.c_int64, ctypes.c_double, ctypes.c_size_t
_OUT = ctypes.POINTER(ctypes.c_int64)
_CODES = {types.float32: 0, types.float64: 1, types.int32: 2, types.int64: 3}  # fb_dtype


def _function(name: str, *arguments: Any, result: Any = _I32) -> Any:
    """A function of fedbuff.h with its C types; handles and arrays go by address."""
    function = getattr(_library, name)
    function.argtypes, function.restype = arguments, result
    return function


_upload = _function("fb_server_upload_from", _ADDRESS, _I32, _I64, _ADDRESS, _I64, _F64, _I64, _I64, _OUT)
_download = _function("fb_server_download_to", _ADDRESS, _I32, _I64, _ADDRESS, _OUT)
_cancel = _function("fb_server_cancel", _ADDRESS, _I64)
_buffer_add = _function("fb_buffer_add", _ADDRESS, _I32, _I64, _ADDRESS, _F64, _I64)
_buffer_step = _function("fb_buffer_step", _ADDRESS, _I32, _I64, _ADDRESS, _F64, _ADDRESS)
_queue_push = _function("fb_queue_push", _ADDRESS, _F64, _I64, _I32)
_queue_pop = _function("fb_queue_pop", _ADDRESS, _OUT)
_queue_size = _function("fb_queue_size", _ADDRESS, result=_I64)
_local_delta = _function("fb_local_delta", _ADDRESS, _I32, _I64, _I64, ctypes.c_uint32, _ADDRESS, _ADDRESS)
_accumulate = _function("fb_accumulate", _I32, _I64, _ADDRESS, _ADDRESS, _F64, _ADDRESS)


def handle(part: Any) -> int:
    """The address of a `Server`, `DeltaBuffer`, `EventQueue` or `local_sgd`, for the functions of this module."""
    address = getattr(part, "_handle", None)
    if not isinstance(address, int):
        raise TypeError(f"part: expected a part of the compiled backend, got {type(part).__name__}")
    return address


def local_sgd(problem: Any, local: Any, *, seed: int = 0) -> Any:
    """What a client of the problem does, for `delta`: bits are those of `problem.delta` with this seed."""
    compiled = backends.compiled()
    if compiled is None:
        raise TypeError("problem: expected one of the compiled backend")
    return compiled.LocalSGD(problem, local, seed=seed)


# fb_step_input, whose pointers are addresses, and the signature of `fedbuff.OwnRule`'s function for `numba.cfunc`.
_STEP = np.dtype(
    [
        ("size", "u4"), ("abi", "u4"), ("dtype", "i4"), ("dim", "i8"), ("version", "i8"), ("n", "i8"), ("delta", "u8"),
        ("weight", "u8"), ("staleness", "u8"), ("client", "u8"), ("lr", "f8"), ("w", "u8"), ("n_state", "i8"),
        ("state", "u8"), ("w_out", "u8"),
    ],
    align=True,
)  # fmt: skip
own_rule = types.int32(types.voidptr, types.CPointer(_numba.from_dtype(_STEP)))


@extending.intrinsic  # type: ignore[untyped-decorator]
def _memory(typingctx: Any, address: Any) -> Any:
    """An address as a pointer."""
    if not isinstance(address, types.Integer):
        return None

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.uint64), codegen


@njit  # type: ignore[untyped-decorator]
def vector(address: int, n: int, dtype: Any) -> Any:
    """n numbers at an address, such as those of an `own_rule`'s step."""
    return carray(_memory(address), n, dtype)


@extending.intrinsic  # type: ignore[untyped-decorator]
def _place(typingctx: Any, n: Any) -> Any:
    """n zeros of 64 bits on the stack, by address; n is a literal."""
    if not isinstance(n, types.IntegerLiteral):
        return None
    count = n.literal_value

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        zeros = ir.Constant(ir.ArrayType(word, count), None)
        return builder.bitcast(cgutils.alloca_once_value(builder, zeros), word.as_pointer())

    return types.CPointer(types.int64)(n), codegen


def _code(array: Any) -> int:
    raise NotImplementedError("it is compiled")


@extending.overload(_code)
def _code_of(array):  # type: ignore[no-untyped-def]  # Numba compares the two signatures, annotations included
    vector = isinstance(array, types.Array) and array.ndim == 1 and array.layout == "C" and array.aligned
    if not vector or array.dtype not in _CODES:
        raise _numba.TypingError(f"expected a contiguous vector of float32, float64, int32 or int64, got {array}")
    code = _CODES[array.dtype]
    return lambda array: code


@njit  # type: ignore[untyped-decorator]
def _check(status: int) -> None:
    if status != 0:
        raise ValueError("fedbuff: the call gave this fb_status", status)


@njit  # type: ignore[untyped-decorator]
def download(server: int, w_out: Any) -> Any:
    """Copies the current model into `w_out`, of the model's dtype and size; its version, on which a task is due now."""
    version = _place(1)
    _check(_download(server, _code(w_out), w_out.size, w_out.ctypes.data, version))
    return carray(version, 1)[0]


@njit  # type: ignore[untyped-decorator]
def upload(server: int, delta: Any, version: int, e: float = 1.0, client: int = -1) -> Any:
    """Takes in a delta that counts `e` times: 0 where it was added, 1 where the server stepped, 2 where too stale.

    Rules that look at clients need to know the client.
    """
    outcome = _place(1)
    _check(_upload(server, _code(delta), delta.size, delta.ctypes.data, version, e, client, -1, outcome))
    return carray(outcome, 1)[0] & 0xFFFFFFFF


@njit  # type: ignore[untyped-decorator]
def cancel(server: int, version: int) -> None:
    """Gives up one download of the version."""
    _check(_cancel(server, version))


@njit  # type: ignore[untyped-decorator]
def add(buffer: int, delta: Any, weight: float = 1.0) -> None:
    """Adds weight * delta to a `DeltaBuffer`."""
    _check(_buffer_add(buffer, _code(delta), delta.size, delta.ctypes.data, weight, -1))


@njit  # type: ignore[untyped-decorator]
def step(buffer: int, w: Any, lr: float) -> None:
    """w <- w - lr * sum of a `DeltaBuffer`, which is empty then."""
    _check(_buffer_step(buffer, _code(w), w.size, w.ctypes.data, lr, w.ctypes.data))


@njit  # type: ignore[untyped-decorator]
def push(queue: int, time: float, item: int, kind: int = 0) -> None:
    """Adds an event to an `EventQueue`."""
    _check(_queue_push(queue, time, item, kind))


@njit  # type: ignore[untyped-decorator]
def pop(queue: int) -> tuple[float, int, int]:
    """The earliest event of an `EventQueue`, (time, item, kind), removed."""
    event = _place(3)
    _check(_queue_pop(queue, event))
    words = carray(event, 3)
    return words.view(np.float64)[0], words[1], words[2] & 0xFFFFFFFF


@njit  # type: ignore[untyped-decorator]
def size(queue: int) -> Any:
    """How many events an `EventQueue` holds."""
    return _queue_size(queue)


@njit  # type: ignore[untyped-decorator]
def delta(local: int, client: int, task: int, w: Any, delta_out: Any) -> None:
    """delta_out = w - (w after the client's local steps), by a `local_sgd`."""
    if w.size != delta_out.size or _code(w) != _code(delta_out):
        _check(10)
    _check(_local_delta(local, _code(w), w.size, client, task, w.ctypes.data, delta_out.ctypes.data))


@njit  # type: ignore[untyped-decorator]
def accumulate(total: Any, delta: Any, weight: float) -> None:
    """total <- total + weight * delta: the kernel alone."""
    if total.size != delta.size or _code(total) != _code(delta):
        _check(10)
    _check(_accumulate(_code(total), total.size, total.ctypes.data, delta.ctypes.data, weight, total.ctypes.data))
