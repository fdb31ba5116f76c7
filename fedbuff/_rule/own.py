"""A server rule of the user's own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.addresses import address_of
from .._base.arrays import read_only
from .._base.checks import count

__all__ = ["OwnRule", "Step"]

Vector = NDArray[np.floating[Any]]
_ABI = 1
_FLOATS: dict[int, np.dtype[Any]] = {0: np.dtype(np.float32), 1: np.dtype(np.float64)}  # by fb_dtype


class _StepInput(ctypes.Structure):
    """fb_step_input of fedbuff.h."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("abi", ctypes.c_uint32),
        ("dtype", ctypes.c_int32),
        ("dim", ctypes.c_int64),
        ("version", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("delta", ctypes.POINTER(ctypes.c_void_p)),
        ("weight", ctypes.c_void_p),
        ("staleness", ctypes.c_void_p),
        ("client", ctypes.c_void_p),
        ("lr", ctypes.c_double),
        ("w", ctypes.c_void_p),
        ("n_state", ctypes.c_int64),
        ("state", ctypes.c_void_p),
        ("w_out", ctypes.c_void_p),
    )


_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(_StepInput))


@dataclass(slots=True, eq=False)
class Step:
    """What a function of Python gets: all deltas of the buffer, in the order of arrival. It writes `out`, the next
    model, which is NaN before, and may change `state`. The arrays are copies: it may keep them."""

    version: int  # that the step starts from
    lr: float  # the strategy's step size of this version
    w: Vector  # the present model
    deltas: tuple[Vector, ...]
    weights: NDArray[np.float64]  # s_j e_j
    staleness: NDArray[np.int64]
    clients: NDArray[np.int64]  # -1 where a server was not told
    state: NDArray[np.float64]
    out: Vector


class OwnRule:
    """A step that a function of yours makes: the deltas of a buffer are kept, and it gets them all at once.

    >>> import numpy as np, fedbuff as fb
    >>> def median(step):
    ...     step.out[:] = step.w - step.lr * np.median(step.deltas, axis=0)
    >>> server = fb.Server(np.zeros(2), fb.FedBuff(3, 1.0, own=fb.OwnRule(median)))
    >>> for delta in ([1.0, 0.0], [2.0, 5.0], [900.0, 1.0]):
    ...     version, _ = server.download()
    ...     stepped = server.upload(np.array(delta), version)
    >>> server.w
    array([-2., -1.])

    function  a function of Python, of a step with the fields `version`, `lr` (the strategy's step size), `w`,
              `deltas`, `weights` (s_j e_j), `staleness`, `clients` (-1 where a server was not told), `state` and `out`,
              for trying things out: it writes `out`, the next model, and may change `state`; or a compiled one, which
              runs without Python: an address (int), anything with an `address` (a `numba.cfunc`), or a capsule that
              holds the pointer, of

                  int32_t function(void* context, const fb_step_input* step)

              as fedbuff.h has it. It returns 0, or a code for which the step is not made
    n_state   numbers (float64) of its own that it keeps from step to step, zero at the start; they are saved with a
              server and a replay
    context   for a compiled one: an address, or an array that is kept alive
    """

    def __init__(self, function: Any, *, n_state: int = 0, context: Any = 0) -> None:
        self.n_state = count("n_state", n_state, low=0, high=2**40)
        self._error: BaseException | None = None
        self._keep: tuple[Any, ...] = (function, context)
        self.context_address = address_of("context", context)
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        if callable(function) and not hasattr(function, "address"):
            trampoline = _FUNCTION(self._python(function))
            self._keep = (function, trampoline)
            self.address = ctypes.cast(trampoline, ctypes.c_void_p).value or 0
        else:
            self.address = address_of("function", function)
        if self.address == 0:
            raise ValueError("function: its address is 0")

    def _python(self, function: Callable[[Step], Any]) -> Callable[[Any, Any], int]:
        def call(_: Any, given: Any) -> int:
            try:
                numbers = given.contents
                step = _step_of(numbers)
                function(step)
                _view(numbers.w_out, numbers.dim, _FLOATS[numbers.dtype])[:] = step.out
                _view(numbers.state, numbers.n_state, np.float64)[:] = step.state
            except BaseException as error:  # it cannot pass through compiled code
                self._error = error
                return 1
            return 0

        return call

    def raise_error(self) -> None:
        """Raises what a function of Python raised."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def step(
        self,
        version: int,
        lr: float,
        w: Vector,
        deltas: list[Vector],
        weights: NDArray[np.float64],
        staleness: NDArray[np.int64],
        clients: NDArray[np.int64],
        state: NDArray[np.float64],
    ) -> tuple[int, Vector, NDArray[np.float64]]:
        """What the function returned, and the model and state that it made."""
        out, after = np.empty_like(w), state.copy()
        addresses = (ctypes.c_void_p * max(1, len(deltas)))(*(delta.ctypes.data for delta in deltas))
        given = _StepInput(
            ctypes.sizeof(_StepInput), _ABI, 0 if w.dtype == np.float32 else 1, w.size, version, len(deltas),
            addresses, weights.ctypes.data, staleness.ctypes.data, clients.ctypes.data, lr, w.ctypes.data,
            self.n_state, after.ctypes.data, out.ctypes.data,
        )  # fmt: skip
        code = ctypes.cast(self.address, _FUNCTION)(self.context_address, ctypes.byref(given))
        return code, out, after


def _view(address: int | None, n: int, dtype: Any) -> NDArray[Any]:
    """n numbers at an address, which are the server's."""
    kind = np.dtype(dtype)
    memory = (ctypes.c_char * (n * kind.itemsize)).from_address(address) if n > 0 and address else bytearray()
    return np.frombuffer(memory, kind)


def _step_of(given: _StepInput) -> Step:
    kind, dim, n = _FLOATS[given.dtype], given.dim, given.n
    return Step(
        version=given.version,
        lr=given.lr,
        w=read_only(_view(given.w, dim, kind).copy()),
        deltas=tuple(read_only(_view(given.delta[k], dim, kind).copy()) for k in range(n)),
        weights=read_only(_view(given.weight, n, np.float64).copy()),
        staleness=read_only(_view(given.staleness, n, np.int64).copy()),
        clients=read_only(_view(given.client, n, np.int64).copy()),
        state=_view(given.state, given.n_state, np.float64).copy(),
        out=np.full(dim, np.nan, kind),
    )
