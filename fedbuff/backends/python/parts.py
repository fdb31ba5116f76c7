"""What `numba` and `reference` make alike: server, buffer and replay, each over the backend's kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..._rule.strategies import Rule
from ..spec import BoundProblem, ClientFunction, CompiledGradient, LocalSpec, ReplayEngine, SumRoles, SumSpec, Vector
from . import server
from .replay import SequentialReplay

__all__ = ["delta_buffer_over", "replay_engine_over", "server_over"]

EngineMaker = Callable[
    [
        Rule,
        Vector,
        BoundProblem | None,
        ClientFunction | CompiledGradient | None,
        LocalSpec | None,
        int,
        NDArray[np.int64] | None,
        int,
        SumSpec,
        SumRoles | None,
    ],
    ReplayEngine,
]


def server_over(functions: server.Kernels, module: str) -> type[server.Server]:
    """The class that a backend's module has under this name."""

    class Server(server.Server):
        __doc__ = server.Server.__doc__
        kernels = functions

    Server.__module__, Server.__qualname__ = module, "Server"
    return Server


def delta_buffer_over(functions: server.Kernels, module: str) -> type[server.DeltaBuffer]:
    """As `server_over`."""

    class DeltaBuffer(server.DeltaBuffer):
        __doc__ = server.DeltaBuffer.__doc__
        kernels = functions

    DeltaBuffer.__module__, DeltaBuffer.__qualname__ = module, "DeltaBuffer"
    return DeltaBuffer


def replay_engine_over(kernels: server.Kernels) -> EngineMaker:
    """`Backend.replay_engine`; there is no window, and no compiled gradient."""

    def replay_engine(
        rule: Rule,
        w0: Vector,
        bound: BoundProblem | None,
        function: ClientFunction | CompiledGradient | None,
        local: LocalSpec | None,
        seed: int,
        batch: NDArray[np.int64] | None,
        window_bytes: int,
        sums: SumSpec,
        roles: SumRoles | None,
    ) -> SequentialReplay:
        assert not isinstance(function, tuple), "a compiled gradient needs the cpp backend"
        return SequentialReplay(kernels, rule, w0, bound, function, local, seed, batch, sums, roles)

    return replay_engine
