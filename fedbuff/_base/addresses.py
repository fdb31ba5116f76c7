"""Addresses of compiled functions, and of memory for them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

__all__ = ["address_of"]


def address_of(name: str, value: Any) -> int:
    """The address that a number, an array, a `numba.cfunc` or a capsule stands for."""
    if isinstance(value, np.ndarray):
        return int(value.ctypes.data)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if hasattr(value, "address"):
        return int(value.address)
    if type(value).__name__ == "PyCapsule":
        get_name = ctypes.pythonapi.PyCapsule_GetName
        get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
        get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
        get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        return int(get_pointer(value, get_name(value)) or 0)
    raise TypeError(f"{name}: expected an address, a numba.cfunc or a capsule, got {type(value).__name__}")
