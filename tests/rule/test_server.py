"""Server and DeltaBuffer, one suite for every implementation: values, exceptions and their texts."""

from __future__ import annotations

import array
import importlib
import math
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedbuff import FileError, staleness
from fedbuff._rule import strategies as _strategy
from fedbuff._rule.optimizers import SGD, Adam
from fedbuff._rule.strategies import FedAsync, FedBuff

IMPLEMENTATIONS = ("reference", "numba", "cpp")  # modules of fedbuff.backends with a Server and a DeltaBuffer

Array = NDArray[Any]


def implementations() -> list[Any]:
    found = []
    for name in IMPLEMENTATIONS:
        try:
            found.append(pytest.param(importlib.import_module(f"fedbuff.backends.{name}"), id=name))
        except ImportError as error:
            found.append(pytest.param(None, id=name, marks=pytest.mark.skip(reason=str(error))))
    return found


every_implementation = pytest.mark.parametrize("backend", implementations())
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])
deterministic = settings(max_examples=40, deadline=None, derandomize=True)


def vector(*values: float, dtype: str = "float64") -> Array:
    return np.array(values, dtype)


# The machine


@every_implementation
@every_dtype
def test_one_arrival(backend: Any, dtype: str) -> None:
    server = backend.Server(vector(1, 2, dtype=dtype), FedBuff(buffer_size=2))
    assert (server.version, server.fill, server.dim, server.dtype, server.dropped) == (0, 0, 2, np.dtype(dtype), 0)
    version, w = server.download()
    server.download()
    assert version == 0 and w.dtype == dtype
    assert server.upload(vector(1, 0, dtype=dtype), 0) is False
    assert (server.version, server.fill) == (0, 1)
    assert server.upload(vector(0, 4, dtype=dtype), version) is True
    assert (server.version, server.fill) == (1, 0)
    np.testing.assert_array_equal(server.w, vector(0.5, 0, dtype=dtype), strict=True)


@every_implementation
def test_the_first_model_is_copied(backend: Any) -> None:
    w0 = vector(1, 2)
    server = backend.Server(w0, FedBuff(buffer_size=1))
    w0[:] = 9
    np.testing.assert_array_equal(server.w, [1, 2])


@every_implementation
def test_a_download_stays_as_it_was(backend: Any) -> None:
    server = backend.Server(np.zeros(3), FedBuff(buffer_size=1))
    held = []
    for step in range(5):
        version, w = server.download()
        held.append((version, w, server.w))
        assert not w.flags.writeable
        with pytest.raises(ValueError):
            w[0] = 1
        server.upload(np.full(3, -1.0), step)
    for version, w, view in held:
        np.testing.assert_array_equal(w, np.full(3, float(version)))
        np.testing.assert_array_equal(view, np.full(3, float(version)))
    del server
    np.testing.assert_array_equal(held[3][1], np.full(3, 3.0))


@every_implementation
def test_versions_are_counted(backend: Any) -> None:
    server = backend.Server(np.zeros(1), FedBuff(buffer_size=1))
    for version in (7, -1):
        with pytest.raises(ValueError, match=f"^version {version} was never given out; the server is at version 0$"):
            server.upload(np.zeros(1), version)
    with pytest.raises(ValueError, match=r"^version 0 has no download left to return$"):
        server.upload(np.zeros(1), 0)
    server.download()
    server.upload(np.zeros(1), np.int64(0))
    with pytest.raises(ValueError, match=r"^version 0 has no download left to return$"):
        server.cancel(0)
    with pytest.raises(ValueError, match=r"^version 2 was never given out; the server is at version 1$"):
        server.cancel(2)
    with pytest.raises(TypeError):
        server.upload(np.zeros(1), 1.0)
    server.download()
    server.cancel(1)
    with pytest.raises(ValueError, match="no download left"):
        server.upload(np.zeros(1), 1)


@every_implementation
def test_stale_arrivals_are_dropped(backend: Any) -> None:
    server = backend.Server(np.zeros(1), FedBuff(buffer_size=1, max_staleness=1))
    for _ in range(3):
        server.download()
    assert server.upload(np.ones(1), 0)
    server.download()
    assert server.upload(np.ones(1), 0)  # staleness 1
    before = server.w.copy()
    assert server.upload(np.ones(1), 0) is False  # staleness 2
    assert (server.dropped, server.version, server.fill) == (1, 2, 0)
    np.testing.assert_array_equal(server.w, before)
    with pytest.raises(ValueError, match="no download left"):
        server.upload(np.ones(1), 0)
    assert server.upload(np.ones(1), 1)


@every_implementation
def test_models_are_kept_only_where_the_rule_needs_them(backend: Any) -> None:
    plain = backend.Server(np.zeros(2), FedBuff(buffer_size=1))
    mixing = backend.Server(np.zeros(2), FedAsync(mixing=0.5))
    for server in (plain, mixing):
        for step in range(4):
            server.download()
            server.download()
            server.upload(np.ones(2), step)
    assert plain.live_versions == 1
    assert mixing.live_versions == 5
    mixing.cancel(0)
    assert mixing.live_versions == 4
    mixing.upload(np.ones(2), 2)
    assert mixing.live_versions == 3
    mixing.cancel(1)
    mixing.cancel(3)
    assert mixing.live_versions == 1


# The arithmetic


def by_hand(rule: _strategy.Rule, w0: Array, arrivals: list[tuple[Array, int, float]]) -> Array:
    """The rule in float64, as it is written down: arrivals are (delta, version, n_samples)."""
    models = [w0.astype(np.float64)]
    buffer: list[tuple[float, float, Array]] = []
    momentum = np.zeros(len(w0))
    second = np.zeros(len(w0))
    for delta, version, samples in arrivals:
        w = models[-1]
        s = rule.staleness(len(models) - 1 - version)
        raw = {"equal": 1.0, "samples": samples, "sqrt_samples": samples**0.5, "log_samples": math.log10(1 + samples)}
        e = rule.weight_scale * raw[rule.weighting]
        end = models[version] - delta.astype(np.float64)
        buffer.append((s, e, (w if rule.base == "current" else models[version]) - end))
        if len(buffer) < rule.buffer_size:
            continue
        norms = {
            "one": 1.0,
            "arrivals": len(buffer),
            "weights": sum(e for _, e, _ in buffer),
            "scaled_weights": sum(s * e for s, e, _ in buffer),
            "clients": rule.n_clients or 0,
        }
        direction = sum((s * e * part for s, e, part in buffer), np.zeros(len(w0))) / norms[rule.norm]
        if isinstance(rule.optimizer, Adam):
            b1, b2 = rule.optimizer.betas
            direction = direction + rule.optimizer.weight_decay * w
            momentum = b1 * momentum + (1 - b1) * direction
            second = b2 * second + (1 - b2) * direction**2
            step = len(models)
            scale = np.sqrt(second / (1 - b2**step)) + rule.optimizer.epsilon
            models.append(w - rule.lr / (1 - b1**step) * momentum / scale)
        else:
            momentum = rule.optimizer.momentum * momentum + direction
            models.append(w - rule.lr * momentum)
        buffer = []
    return models[-1]


RULES: dict[str, Any] = {
    **{
        name: FedBuff.preset(name, buffer_size=3, **({"n_clients": 9} if name == "appfl" else {}))
        for name in FedBuff.presets()
    },
    "fedasync": FedAsync(mixing=0.5, staleness=staleness.Polynomial(0.5)),
    "momentum": FedBuff(buffer_size=3, optimizer=SGD(momentum=0.9), staleness=staleness.Hinge(2.0, 1.0)),
    "adam": FedBuff(buffer_size=3, server_lr=0.1, optimizer=Adam(weight_decay=0.1), norm="arrivals"),
    "clients": FedBuff(buffer_size=3, norm="clients", n_clients=7, weights="log_samples", weight_scale=2.0),
    "adam_current": FedBuff(buffer_size=2, server_lr=0.1, optimizer=Adam(), base="current", weights="sqrt_samples"),
}


@every_implementation
@every_dtype
@pytest.mark.parametrize("name", RULES)
def test_rules_by_hand(backend: Any, dtype: str, name: str) -> None:
    rng = np.random.default_rng(0)
    strategy, w0 = RULES[name], rng.standard_normal(5).astype(dtype)
    server = backend.Server(w0, strategy)
    in_flight = [server.download()[0] for _ in range(4)]
    arrivals = []
    for _ in range(12):
        version = in_flight.pop(int(rng.integers(4)))
        delta, samples = rng.standard_normal(5).astype(dtype), float(rng.integers(1, 50))
        arrivals.append((delta, version, samples))
        server.upload(delta, version, n_samples=samples)
        in_flight.append(server.download()[0])
    want = by_hand(strategy.rule, w0, arrivals)
    # every number here is below 100, and nothing is summed more than a hundred times
    assert np.abs(server.w - want).max() <= 100 * 100 * np.finfo(dtype).eps
    assert server.version == 12 // strategy.rule.buffer_size


@every_implementation
@every_dtype
def test_exact_order_of_operations(backend: Any, dtype: str) -> None:
    """The weight is the float64 product rounded once; the norm is summed in float64; the deltas in arrival order."""
    t = np.dtype(dtype).type
    strategy = FedBuff(
        buffer_size=3, server_lr=0.3, norm="scaled_weights", weights="samples", staleness=staleness.Polynomial(0.7)
    )
    server = backend.Server(np.zeros(1, dtype), strategy)
    versions = [0, 0, 0]
    for _ in range(3):
        server.download()
    total, norm = t(0), 0.0
    for version, samples, value in zip(versions, (3.0, 1.7, 11.0), (0.1, 1e-5, -0.7), strict=True):
        se = strategy.rule.staleness_weight(0) * samples
        norm += se
        total = total + t(se) * t(value)
        server.upload(np.array([value], dtype), version, samples)
    want = t(0) - t(0.3 / norm) * total
    assert abs(server.w[0] - want) <= np.spacing(abs(want))  # a fused multiply-add may round once less


@every_implementation
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("base", ["start", "current"])
def test_models_in_parts_are_uploaded_as_their_deltas(backend: Any, dtype: str, base: Any) -> None:
    """The same outcomes and bits as one upload after the other; bad ones are refused and the others taken."""
    rng = np.random.default_rng(3)
    strategy = FedBuff(buffer_size=4, base=base, max_staleness=1, weights="samples", norm="weights")
    w0 = rng.standard_normal(20_000).astype(dtype)
    servers = [backend.Server(w0, strategy), backend.Server(w0, strategy)]
    replies = []
    for k in range(21):
        start = rng.standard_normal(20_000).astype(dtype)
        model = start + rng.standard_normal(20_000).astype(dtype)
        if k == 2:
            model[19_000] = np.nan
        replies.append((start, np.split(model, [0, 7, 7, 9000 + 100 * (k % 3)]), 5 if k == 11 else k % 2, 1.0 + k % 3))
    for server in servers:
        for version in range(2):
            for _ in range(30):
                server.download()
            if version == 0:
                for _ in range(4):
                    server.upload(np.ones(20_000, dtype), 0)
    together = servers[0]._upload_models(replies)
    alone: list[Any] = []
    for start, parts, version, samples in replies:
        dropped = servers[1].dropped
        try:
            stepped = servers[1].upload(start - np.concatenate(parts), version, samples)
            alone.append(stepped if servers[1].dropped == dropped else None)
        except ValueError as error:
            alone.append(error)
    said = [[str(outcome).partition("; the server is at")[0] for outcome in each] for each in (together, alone)]
    assert said[0] == said[1]
    assert {type(outcome) for outcome in together} == {bool, type(None), ValueError}
    a, b = servers
    assert (a.version, a.fill, a.dropped, a.outstanding) == (b.version, b.fill, b.dropped, b.outstanding)
    assert a.version > 2 and a.w.tobytes() == b.w.tobytes()


@every_implementation
def test_weights_that_sum_to_zero(backend: Any) -> None:
    strategy = FedBuff(buffer_size=1, norm="scaled_weights", staleness=staleness.Threshold(0, after=0.0))
    server = backend.Server(np.zeros(1), strategy)
    server.download(), server.download()
    server.upload(np.ones(1), 0)
    with pytest.raises(ValueError, match=r"^the weights of this buffer sum to zero"):
        server.upload(np.ones(1), 0)
    assert (server.fill, server.version) == (0, 1)
    server.cancel(0)


@every_implementation
@given(
    seed=st.integers(0, 2**32 - 1),
    buffer_size=st.integers(1, 4),
    concurrency=st.integers(1, 6),
    base=st.sampled_from(["start", "current"]),
)
@deterministic
def test_implementations_agree(backend: Any, seed: int, buffer_size: int, concurrency: int, base: Any) -> None:
    """A random history gives every implementation the numbers of the reference, and the same counts."""
    reference = importlib.import_module("fedbuff.backends.reference")
    rng = np.random.default_rng(seed)
    strategy = FedBuff(buffer_size, base=base, staleness=staleness.Polynomial(0.5), max_staleness=3)
    w0 = rng.standard_normal(4)
    servers = [backend.Server(w0, strategy), reference.Server(w0, strategy)]

    def download() -> int:
        (version,) = {server.download()[0] for server in servers}
        return int(version)

    in_flight = [download() for _ in range(concurrency)]
    for _ in range(30):
        version = in_flight.pop(int(rng.integers(concurrency)))
        delta = 0.1 * rng.standard_normal(4)
        if rng.random() < 0.1:
            for server in servers:
                server.cancel(version)
        else:
            stepped = {server.upload(delta, version) for server in servers}
            assert len(stepped) == 1
        in_flight.append(download())
        states = {(s.version, s.fill, s.dropped, s.live_versions, s.outstanding) for s in servers}
        assert len(states) == 1
        assert servers[0].outstanding == concurrency
    assert np.abs(servers[0].w - servers[1].w).max() <= 30 * 8 * np.finfo(np.float64).eps


# What goes in


class _DLPack:
    """An array that shows itself through DLPack alone."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


@every_implementation
@pytest.mark.parametrize(
    "make", [np.asarray, memoryview, lambda a: array.array("d", a), _DLPack, lambda a: a.reshape(1, 3)[0]]
)
def test_anything_with_a_buffer_goes_in(backend: Any, make: Any) -> None:
    server = backend.Server(np.zeros(3), FedBuff(buffer_size=1))
    version, _ = server.download()
    assert server.upload(make(np.array([1.0, 2.0, 3.0])), version)
    np.testing.assert_array_equal(server.w, [-1, -2, -3])


@every_implementation
def test_read_only_deltas_go_in(backend: Any) -> None:
    server = backend.Server(np.zeros(3), FedBuff(buffer_size=1))
    delta = np.ones(3)
    delta.flags.writeable = False
    server.download()
    assert server.upload(delta, 0)


def unaligned(values: Array) -> Array:
    return np.frombuffer(bytearray(b"?" + values.tobytes()), np.uint8)[1:].view(values.dtype)


BAD_DELTAS = [
    (np.ones(3, np.float32), TypeError, "delta: expected float64, got float32; pass delta.astype(np.float64)"),
    (np.ones(3, np.int64), TypeError, "delta: expected float64, got int64; pass delta.astype(np.float64)"),
    (np.ones(3, ">f8"), TypeError, "delta: >f8 is byte-swapped; pass delta.astype(np.float64)"),
    (b"12345678", TypeError, "delta: expected float64, got uint8; pass delta.astype(np.float64)"),
    (
        [1.0, 2.0, 3.0],
        TypeError,
        "delta: expected an array (buffer protocol or DLPack), got list; pass np.asarray(delta)",
    ),
    (None, TypeError, "delta: expected an array (buffer protocol or DLPack), got NoneType; pass np.asarray(delta)"),
    (np.ones(4), ValueError, "delta: expected shape (3,), got (4,)"),
    (np.ones((3, 1)), ValueError, "delta: expected shape (3,), got (3, 1)"),
    (np.empty(0), ValueError, "delta: expected shape (3,), got (0,)"),
    (np.float64(1), ValueError, "delta: expected shape (3,), got ()"),
    (np.ones(6)[::2], ValueError, "delta: not contiguous; pass np.ascontiguousarray(delta)"),
    (np.ones(3)[::-1], ValueError, "delta: not contiguous; pass np.ascontiguousarray(delta)"),
    (unaligned(np.ones(3)), ValueError, "delta: not aligned; pass delta.copy()"),
    (vector(1, math.nan, 1), ValueError, "delta: element 1 is nan; nothing was added"),
    (vector(1, 2, -math.inf), ValueError, "delta: element 2 is -inf; nothing was added"),
]


@every_implementation
@pytest.mark.parametrize(("delta", "kind", "text"), BAD_DELTAS, ids=[str(i) for i in range(len(BAD_DELTAS))])
def test_a_bad_delta_changes_nothing(backend: Any, delta: Any, kind: type[Exception], text: str) -> None:
    server = backend.Server(np.zeros(3), FedBuff(buffer_size=2))
    buffer = backend.DeltaBuffer(3)
    server.download(), server.download()
    server.upload(np.ones(3), 0)
    buffer.add(np.ones(3))
    calls: list[Any] = [lambda: server.upload(delta, 0), lambda: buffer.add(delta)]
    for call in calls:
        with pytest.raises(kind) as caught:
            call()
        assert str(caught.value) == text
    assert (server.fill, server.version, server.outstanding, buffer.count) == (1, 0, 1, 1)
    np.testing.assert_array_equal(buffer.sum, np.ones(3))
    assert server.upload(np.ones(3), 0)
    np.testing.assert_array_equal(server.w, -np.ones(3))


@every_implementation
@pytest.mark.parametrize("samples", [0, -1, math.nan, math.inf])
def test_sample_counts_are_positive(backend: Any, samples: float) -> None:
    server = backend.Server(np.zeros(3), FedBuff(buffer_size=2))
    server.download()
    with pytest.raises(ValueError, match=r"^n_samples: expected a finite number > 0, got "):
        server.upload(np.ones(3), 0, samples)
    assert (server.fill, server.outstanding) == (0, 1)


@every_implementation
def test_a_staleness_function_that_fails_changes_nothing(backend: Any) -> None:
    server = backend.Server(np.zeros(1), FedBuff(buffer_size=1, staleness=lambda staleness: math.nan))
    server.download()
    with pytest.raises(ValueError, match=r"^staleness: the function gave nan for staleness 0"):
        server.upload(np.ones(1), 0)
    assert (server.fill, server.version, server.outstanding) == (0, 0, 1)


@every_implementation
@pytest.mark.parametrize(
    ("w0", "kind", "text"),
    [
        (np.zeros(3, np.int32), TypeError, "w0: expected float32 or float64, got int32"),
        (np.zeros(3, np.float16), TypeError, "w0: expected float32 or float64, got float16"),
        (np.zeros(3, ">f4"), TypeError, "w0: >f4 is byte-swapped; pass w0.astype(np.float32)"),
        ([0.0, 1.0], TypeError, "w0: expected an array"),
        (np.zeros((2, 2)), ValueError, "w0: expected a vector of at least one number, got shape (2, 2)"),
        (np.zeros(0), ValueError, "w0: expected a vector of at least one number, got shape (0,)"),
        (vector(0, math.inf), ValueError, "w0: element 1 is not finite"),
    ],
)
def test_bad_first_models(backend: Any, w0: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        backend.Server(w0, FedBuff(buffer_size=1))
    assert str(caught.value).startswith(text)


@every_implementation
def test_a_strategy_is_needed(backend: Any) -> None:
    with pytest.raises(TypeError, match=r"^strategy: expected a strategy such as fedbuff.FedBuff, got dict$"):
        backend.Server(np.zeros(1), {"buffer_size": 2})


@every_implementation
def test_threads_may_share_a_server(backend: Any) -> None:
    server = backend.Server(np.zeros(1000), FedBuff(buffer_size=4))

    def work() -> None:
        for _ in range(100):
            version, w = server.download()
            assert w.min() == w.max()
            server.upload(np.full(1000, -1.0), version)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (server.version, server.fill, server.outstanding) == (100, 0, 0)
    np.testing.assert_array_equal(server.w, np.full(1000, 100.0))


# Files


def busy_server(backend: Any, strategy: Any, dtype: str = "float64") -> Any:
    """A server in the middle of everything."""
    server = backend.Server(np.arange(3, dtype=dtype), strategy)
    for step in range(5):
        for _ in range(3):
            version, _ = server.download()
        server.upload(np.full(3, 0.5 + step, dtype), version, n_samples=step + 1)
    return server


STATE = ("version", "fill", "dropped", "live_versions", "outstanding", "dim", "dtype")


@every_implementation
@every_dtype
@pytest.mark.parametrize("name", RULES)
def test_a_saved_server_goes_on_alike(backend: Any, dtype: str, name: str, tmp_path: Path) -> None:
    server = busy_server(backend, RULES[name], dtype)
    server.save(tmp_path / "server.npz")
    assert os.listdir(tmp_path) == ["server.npz"]
    again = backend.Server.load(tmp_path / "server.npz")
    for state in STATE:
        assert getattr(again, state) == getattr(server, state)
    for version in (server.version, 0, 0, 0, server.version):
        for one in (server, again):
            one.download()
            if version == 0:
                one.cancel(server.version)
    for one in (server, again):
        for delta in range(4):
            one.upload(np.full(3, delta - 2.5, dtype), one.download()[0], n_samples=2)
        one.upload(np.full(3, 0.1, dtype), 0)
    np.testing.assert_array_equal(again.w, server.w, strict=True)


@every_implementation
def test_a_file_goes_from_one_implementation_to_another(backend: Any, tmp_path: Path) -> None:
    reference = importlib.import_module("fedbuff.backends.reference")
    for first, second in ((backend, reference), (reference, backend)):
        server = busy_server(first, RULES["adam_current"])
        server.save(tmp_path / "server.npz")
        again = second.Server.load(tmp_path / "server.npz")
        for state in STATE:
            assert getattr(again, state) == getattr(server, state)
        np.testing.assert_array_equal(again.w, server.w, strict=True)


@every_implementation
def test_a_users_staleness_function_must_be_given_again(backend: Any, tmp_path: Path) -> None:
    strategy = FedBuff(buffer_size=2, staleness=lambda staleness: 0.5**staleness)
    server = busy_server(backend, strategy)
    path = tmp_path / "server.npz"
    server.save(path)
    with pytest.raises(ValueError, match="pass strategy= to load it"):
        backend.Server.load(path)
    assert backend.Server.load(path, strategy).version == server.version
    with pytest.raises(ValueError, match="its rule has buffer_size 2, the given strategy 3"):
        backend.Server.load(path, FedBuff(buffer_size=3))


@every_implementation
@pytest.mark.parametrize(
    "damage", ["truncated", "empty", "text", "other", "array", "newer", "missing", "shape", "counts"]
)
def test_damaged_files_are_refused(backend: Any, damage: str, tmp_path: Path) -> None:
    path = tmp_path / "server.npz"
    busy_server(backend, RULES["fedasync"]).save(path)
    content = path.read_bytes()
    with np.load(path) as file:
        arrays = dict(file)
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("client,compute\n0,1.5\n")
    elif damage == "other":
        np.savez(path, a=np.zeros(3))
    elif damage == "array":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    else:
        change: dict[str, dict[str, Any]] = {
            "newer": {"format_number": 2},
            "missing": {},
            "shape": {"total": np.zeros(4)},
            "counts": {"outstanding_count": arrays["outstanding_count"] * 0},
        }
        arrays.update(change[damage])
        if damage == "missing":
            del arrays["w"]
        np.savez(path, **arrays)
    with pytest.raises(ValueError) as caught:
        backend.Server.load(path)
    assert str(caught.value).startswith(f"{path}: not a saved server: ")


@every_implementation
def test_a_file_that_is_not_there(backend: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        backend.Server.load(tmp_path / "server.npz")
    server = backend.Server(np.zeros(1), FedBuff(buffer_size=1))
    with pytest.raises(FileNotFoundError):
        server.save(tmp_path / "folder" / "server.npz")


@every_implementation
def test_a_failed_save_leaves_the_old_file(backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "server.npz"
    server = busy_server(backend, RULES["paper"])
    server.save(path)
    content = path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        server.save(path)
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["server.npz"]


# DeltaBuffer


@every_implementation
@every_dtype
def test_delta_buffer(backend: Any, dtype: str) -> None:
    buffer = backend.DeltaBuffer(2, dtype)
    assert (buffer.count, buffer.dim, buffer.dtype) == (0, 2, np.dtype(dtype))
    buffer.add(vector(1, 2, dtype=dtype))
    buffer.add(vector(2, 0, dtype=dtype), weight=0.5)
    assert buffer.count == 2
    np.testing.assert_array_equal(buffer.sum, vector(2, 2, dtype=dtype), strict=True)
    with pytest.raises(ValueError):
        buffer.sum[0] = 1
    w = vector(1, 1, dtype=dtype)
    np.testing.assert_array_equal(buffer.step(w, 0.5), vector(0, 0, dtype=dtype), strict=True)
    np.testing.assert_array_equal(w, vector(1, 1, dtype=dtype))
    assert buffer.count == 0
    np.testing.assert_array_equal(buffer.sum, np.zeros(2))
    buffer.add(vector(1, 2, dtype=dtype))
    assert buffer.step(w, 1.0, out=w) is w
    np.testing.assert_array_equal(w, [0, -1])
    buffer.add(vector(1, 2, dtype=dtype))
    buffer.clear()
    assert buffer.count == 0 and not buffer.sum.any()


@every_implementation
def test_delta_buffer_refuses(backend: Any) -> None:
    with pytest.raises(ValueError, match=r"^dim: expected an int >= 1, got 0$"):
        backend.DeltaBuffer(0)
    with pytest.raises(TypeError, match=r"^dtype: expected float32 or float64, got int64"):
        backend.DeltaBuffer(3, np.int64)
    buffer = backend.DeltaBuffer(2)
    buffer.add(np.ones(2))
    with pytest.raises(ValueError, match=r"^weight: expected a finite number, got nan$"):
        buffer.add(np.ones(2), math.nan)
    with pytest.raises(ValueError, match=r"^lr: expected a finite number, got inf$"):
        buffer.step(np.zeros(2), math.inf)
    with pytest.raises(TypeError, match=r"^w: expected float64, got float32; pass w.astype\(np.float64\)$"):
        buffer.step(np.zeros(2, np.float32), 1.0)
    with pytest.raises(ValueError, match=r"^w: expected shape \(2,\), got \(3,\)$"):
        buffer.step(np.zeros(3), 1.0)
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out: read-only; pass an array that may be written$"):
        buffer.step(np.zeros(2), 1.0, out=frozen)
    assert buffer.count == 1


def far_server(backend: Any, path: Path, version: int, base: str = "start") -> Any:
    """A server that was saved early, with a download out, and whose file then says a far later version."""
    strategy = FedBuff(buffer_size=1, staleness=staleness.Polynomial(0.5), base=base, server_lr=1.0)
    server = backend.Server(np.zeros(3), strategy)
    server.download()
    server.download()
    server.upload(np.zeros(3), 0)
    server.download()
    server.save(path)
    with np.load(path) as file:
        arrays = dict(file)
    newest = arrays["outstanding_version"] == arrays["version"]
    arrays["outstanding_version"] = np.where(newest, version, arrays["outstanding_version"])
    arrays["version"] = np.int64(version)
    np.savez(path, **arrays)
    return backend.Server.load(path)


@every_implementation
@pytest.mark.parametrize("base", ["start", "current"])
def test_a_download_of_long_ago_takes_no_memory(backend: Any, base: str, tmp_path: Path) -> None:
    version = 2**40  # one entry a version would be 16 TB
    server = far_server(backend, tmp_path / "server.npz", version, base)
    assert (server.version, server.outstanding) == (version, 2)
    server.save(tmp_path / "again.npz")
    server = backend.Server.load(tmp_path / "again.npz")
    with pytest.raises(ValueError, match="version 1 has no download left to return"):
        server.upload(np.ones(3), 1)
    server.upload(np.ones(3), 0)
    assert (server.version, server.outstanding, server.live_versions) == (version + 1, 1, 1 + (base == "current"))
    np.testing.assert_allclose(server.w, -((1.0 + version) ** -0.5), rtol=1e-15)
    with pytest.raises(ValueError, match="version 0 has no download left to return"):
        server.cancel(0)
    server.cancel(version)
    assert server.outstanding == 0


@every_implementation
def test_a_server_that_runs_past_a_lost_client(backend: Any) -> None:
    server = backend.Server(np.zeros(1), FedBuff(buffer_size=1))
    server.download()
    steps = 70_000 if backend.name == "cpp" else 100  # beyond what lies side by side in memory
    for _ in range(steps):
        version, _ = server.download()
        server.upload(np.ones(1), version)
    assert (server.version, server.outstanding) == (steps, 1)
    server.upload(np.ones(1), 0)
    assert (server.version, server.outstanding) == (steps + 1, 0)
    assert server.w[0] == -(steps + 1)


@every_implementation
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("version", np.int64(2**62 + 1), "beyond"),
        ("dropped", np.int64(2**63 - 1), "beyond"),
        ("outstanding_count", np.array([2**62 + 1]), "beyond"),
        ("outstanding_version", np.array([0.5]), "outstanding_version is float64"),
        ("w", np.array([np.nan, 0.0]), "w is not finite"),
        ("total", np.array([np.inf, 0.0]), "total is not finite"),
        ("weight_sum", np.float64(np.nan), "weight_sum"),
        ("scaled_weight_sum", np.float64(-1.0), "scaled_weight_sum"),
        ("second", np.array([-1.0, 0.0]), "second"),
        ("rule", np.array("[]"), ""),
        ("rule", np.array('{"buffer_size": 1e99}'), ""),
        ("w", np.array([object(), None]), "Python objects"),
    ],
)
def test_numbers_that_cannot_be(backend: Any, name: str, value: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "server.npz"
    server = backend.Server(np.zeros(2), FedBuff(buffer_size=3, optimizer=Adam()))
    server.download()
    server.save(path)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, allow_pickle=True, **{**arrays, name: value})
    with pytest.raises(FileError, match=f"not a saved server: .*{reason}"):
        backend.Server.load(path)
