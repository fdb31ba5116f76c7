"""What `numba` and `reference` make alike: server, buffer and replay, each over the backend's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from ..spec import EngineSpec, ReplayEngine, ReplayRun, RunSpec
from . import server
from .replay import SequentialReplay
from .run import PythonEngine, Run

__all__ = ["parts_over"]

EngineMaker = Callable[[EngineSpec], ReplayEngine]
RunMaker = Callable[[ReplayEngine, RunSpec], ReplayRun]


def parts_over(
    functions: server.Kernels, module: str
) -> tuple[type[server.Server], type[server.DeltaBuffer], EngineMaker, RunMaker]:
    """`Server`, `DeltaBuffer`, `replay_engine` and `replay_run` of the backend in this module."""

    class Server(server.Server):
        __doc__ = server.Server.__doc__
        kernels = functions

    class DeltaBuffer(server.DeltaBuffer):
        __doc__ = server.DeltaBuffer.__doc__
        kernels = functions

    for made in (Server, DeltaBuffer):
        made.__module__, made.__qualname__ = module, made.__name__

    def replay_run(engine: ReplayEngine, spec: RunSpec) -> ReplayRun:
        return Run(cast(PythonEngine, engine), functions.dot, spec)

    return Server, DeltaBuffer, _replay_engine_over(functions), replay_run


def _replay_engine_over(kernels: server.Kernels) -> EngineMaker:
    """`Backend.replay_engine`; there is no window, and no compiled gradient."""

    def replay_engine(spec: EngineSpec) -> SequentialReplay:
        return SequentialReplay(kernels, spec)

    return replay_engine
