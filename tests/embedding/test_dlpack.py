"""Arrays of others go in, and models come out, without a copy."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

import fedbuff as fb


def servers(dtype: Any = np.float32) -> Any:
    server = fb.Server(np.zeros(5, dtype), fb.FedBuff(buffer_size=1))
    return server, *server.download()


def test_buffer_protocol_both_ways() -> None:
    server, version, w = servers(np.float64)
    server.upload(array.array("d", [1, 2, 3, 4, 5]), version)
    shown = memoryview(w)
    assert shown.readonly and shown.nbytes == 40 and np.frombuffer(shown).ctypes.data == w.ctypes.data
    assert server.w.tolist() == [-1, -2, -3, -4, -5]


def test_numpy_dlpack_shows_the_memory() -> None:
    _, _, w = servers()
    shown = np.from_dlpack(w)
    assert shown.ctypes.data == w.ctypes.data and not shown.flags.writeable


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    server, version, w = servers()
    shown = torch.from_dlpack(w)
    assert shown.data_ptr() == w.ctypes.data
    server.upload(torch.arange(5, dtype=torch.float32), version)
    assert server.w.tolist() == [0, -1, -2, -3, -4] and shown.tolist() == [0] * 5
    server.download()
    with pytest.raises(TypeError, match="delta: expected float32, got float64"):
        server.upload(torch.zeros(5, dtype=torch.float64), 1)
    with pytest.raises(TypeError, match="delta: DLPack gave no view"):
        server.upload(torch.zeros(5, requires_grad=True), 1)
    fixed = fb.Server(np.zeros(2), fb.FedBuff(buffer_size=1), unit=0.5)
    fixed.upload(torch.tensor([2, 4], dtype=torch.int32), fixed.download()[0])
    assert fixed.w.tolist() == [-1, -2]


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    server, version, w = servers()
    server.upload(jax.numpy.arange(5, dtype=jax.numpy.float32), version)
    assert server.w.tolist() == [0, -1, -2, -3, -4]
    assert jax.dlpack.from_dlpack(w).tolist() == [0] * 5
