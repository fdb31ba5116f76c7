"""Server, buffer and replay over the compiled kernels."""

from __future__ import annotations

from ..python.parts import delta_buffer_over, replay_engine_over, server_over
from ..python.server import Kernels
from .draws import normals
from .fixed_point import decode, encode_add
from .vectors import accumulate, adam_step, dot, sgd_step

__all__ = ["DeltaBuffer", "Server", "replay_engine"]

_KERNELS = Kernels(
    accumulate=accumulate,
    sgd_step=sgd_step,
    adam_step=adam_step,
    encode_add=encode_add,
    decode=decode,
    dot=dot,
    normals=normals,
)
Server = server_over(_KERNELS, __package__)
DeltaBuffer = delta_buffer_over(_KERNELS, __package__)
replay_engine = replay_engine_over(_KERNELS)
