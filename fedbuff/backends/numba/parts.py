"""Server, buffer and replay over the compiled kernels."""

from __future__ import annotations

from ..python.compression import compressor
from ..python.parts import parts_over
from ..python.server import Kernels
from ..spec import EngineSpec, ReplayEngine
from .draws import normals
from .fixed_point import decode, encode_add
from .optimizers import optimizer_step
from .quantize import quantize
from .replay import CompiledReplay, can_replay
from .vectors import accumulate, adam_step, dot, sgd_step

__all__ = ["DeltaBuffer", "Server", "compress", "replay_engine", "replay_run"]

compress = compressor(dot, quantize)

Server, DeltaBuffer, _replay_step_by_step, replay_run = parts_over(
    Kernels(
        accumulate=accumulate, sgd_step=sgd_step, adam_step=adam_step, encode_add=encode_add, decode=decode, dot=dot,
        normals=normals, optimizer_step=optimizer_step, quantize=quantize, compress=compress,
    ),
    __package__,
)  # fmt: skip


def replay_engine(spec: EngineSpec) -> ReplayEngine:
    """`Backend.replay_engine`; what the compiled steps do not have is replayed step by step."""
    return CompiledReplay(spec) if can_replay(spec) else _replay_step_by_step(spec)
