"""Rules with a row per client against plain loops in float64, written from the papers; and what must be equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_server import every_dtype, every_implementation

import fedbuff as fb

Array = NDArray[Any]
N, DIM = 5, 7


def arrivals(n: int, dtype: str = "float64", clients: int = N) -> list[tuple[int, int, Array]]:
    """(client, age of the version, delta)."""
    rng = np.random.default_rng(4)
    return [
        (int(rng.integers(clients)), int(rng.integers(3)), rng.standard_normal(DIM).astype(dtype)) for _ in range(n)
    ]


def feed(server: Any, rows: list[tuple[int, int, Array]]) -> None:
    """Uploads the rows, on versions that are as old as they say, where the server had got so far."""
    first, known = server.version, server.version - 1
    for client, age, delta in rows:
        if server.version > known:
            known = server.version
            for _ in rows:
                server.download()
        server.upload(delta, max(first, known - age), client=client)


def ca2fl(K: int, lr: float, rows: list[tuple[int, int, Array]], seen_only: bool = False) -> Array:
    """Wang et al., ICLR 2024, Algorithm 2."""
    w, h_i, h = np.zeros(DIM), {}, np.zeros(DIM)
    total = np.zeros(DIM)
    for k, (client, _, delta) in enumerate(rows, 1):
        total += delta - h_i.get(client, np.zeros(DIM))
        h_i[client] = delta
        if k % K == 0:
            w = w - lr * (h + total / K)
            h = sum(h_i.values()) / (len(h_i) if seen_only else N)
            total = np.zeros(DIM)
    return w


def incremental(K: int, lr: float, rows: list[tuple[int, int, Array]], wait: bool = False) -> Array:
    """The incremental aggregated gradient: every arrival replaces its client's part of the mean."""
    w, h_i, h = np.zeros(DIM), {}, np.zeros(DIM)
    for client, _, delta in rows:
        h = h + (delta - h_i.get(client, np.zeros(DIM))) / N
        h_i[client] = delta
        if not wait or len(h_i) == N:
            w = w - lr * h
    return w


def fedstale(K: int, lr: float, rows: list[tuple[int, int, Array]]) -> Array:
    """Rodio and Neglia 2024, with beta 0.6 and every client's participation 0.4: the sum over all clients."""
    beta, p = 0.6, 0.4
    w, h = np.zeros(DIM), np.zeros((N, DIM))
    for begin in range(0, len(rows), K):
        direction = beta * h.mean(axis=0)
        for client, _, delta in rows[begin : begin + K]:
            direction = direction + (delta - beta * h[client]) / p / N
            h[client] = delta
        w = w - lr * direction
    return w


def strategy(K: int, norm: Any = "arrivals", scale: float = 1.0, **table: Any) -> fb.FedBuff:
    return fb.FedBuff(K, 0.3, norm=norm, weight_scale=scale, n_clients=N, table=fb.ClientTable(**table))


CASES: dict[str, tuple[fb.FedBuff, Callable[[list[tuple[int, int, Array]]], Array]]] = {
    "ca2fl": (strategy(4), lambda rows: ca2fl(4, 0.3, rows)),
    "ca2fl seen": (strategy(3, mean_over="seen"), lambda rows: ca2fl(3, 0.3, rows, seen_only=True)),
    "ia2sgd": (strategy(1, "clients"), lambda rows: incremental(1, 0.3, rows)),
    "ace": (strategy(1, "clients", wait=True), lambda rows: incremental(1, 0.3, rows, wait=True)),
    "fedstale": (strategy(2, "clients", 1 / 0.4, own=-0.6, mean=0.6), lambda rows: fedstale(2, 0.3, rows)),
}


@every_implementation
@pytest.mark.parametrize("name", CASES)
def test_rules_by_hand(backend: Any, name: str) -> None:
    made, loop = CASES[name]
    rows = arrivals(48)
    server = backend.Server(np.zeros(DIM), made)
    feed(server, rows)
    assert server.version == 48 // made.buffer_size
    np.testing.assert_allclose(server.w, loop(rows), rtol=0, atol=1e-10)


@every_implementation
@every_dtype
@pytest.mark.parametrize("name", CASES)
def test_one_client_alone_is_fedbuff(backend: Any, dtype: str, name: str) -> None:
    """With K = 1 and one client: its row is the mean of all, so delta - row + mean is the delta."""
    if name in ("fedstale",):
        made: Any = fb.FedBuff(1, 0.3, norm="clients", n_clients=1, table=fb.ClientTable(own=-0.6, mean=0.6))
    else:
        made = fb.FedBuff(1, 0.3, norm=CASES[name][0].norm, n_clients=1, table=CASES[name][0].table)
    rows = arrivals(20, dtype, clients=1)
    server, plain = backend.Server(np.zeros(DIM, dtype), made), backend.Server(np.zeros(DIM, dtype), fb.FedBuff(1, 0.3))
    feed(server, rows), feed(plain, rows)
    np.testing.assert_allclose(server.w, plain.w, rtol=0, atol=2000 * np.finfo(dtype).eps)


@every_implementation
@pytest.mark.parametrize("age", [0, 2])
def test_all_clients_in_every_buffer_is_fedbuff(backend: Any, age: int) -> None:
    """CA2FL where the buffer holds each client once: the rows cancel, at any staleness."""
    rng = np.random.default_rng(5)
    rows = [(int(c), age, rng.standard_normal(DIM)) for _ in range(6) for c in rng.permutation(N)]
    server = backend.Server(np.zeros(DIM), strategy(N))
    plain = backend.Server(np.zeros(DIM), fb.FedBuff(N, 0.3, norm="arrivals"))
    feed(server, rows), feed(plain, rows)
    np.testing.assert_allclose(server.w, plain.w, rtol=0, atol=1e-13)


@every_implementation
@every_dtype
@pytest.mark.parametrize("rows", ["full", "bfloat16"])
def test_a_file_keeps_rows_and_a_half_full_buffer(backend: Any, dtype: str, rows: Any, tmp_path: Path) -> None:
    made = fb.FedBuff(3, 0.3, norm="arrivals", n_clients=N, table=fb.ClientTable(rows=rows), optimizer=fb.AMSGrad())
    server = backend.Server(np.zeros(DIM, dtype), made)
    feed(server, arrivals(20, dtype))
    assert server.fill == 2
    server.save(tmp_path / "server.npz")
    again = backend.Server.load(tmp_path / "server.npz")
    for one in (server, again):
        feed(one, arrivals(13, dtype))
    assert server.version == again.version == 11
    np.testing.assert_array_equal(again.w, server.w, strict=True)


@every_implementation
def test_a_saved_table_goes_from_one_implementation_to_another(backend: Any, tmp_path: Path) -> None:
    from fedbuff.backends import reference

    server = backend.Server(np.zeros(DIM), strategy(4))
    feed(server, arrivals(21))
    server.save(tmp_path / "server.npz")
    plain = reference.Server.load(tmp_path / "server.npz")
    feed(server, arrivals(7)), feed(plain, arrivals(7))
    np.testing.assert_allclose(plain.w, server.w, rtol=0, atol=1e-12)


@every_implementation
@every_dtype
def test_rows_in_a_file_give_the_same_bits(backend: Any, dtype: str, tmp_path: Path) -> None:
    models = []
    for path in (None, str(tmp_path)):
        table = fb.ClientTable(path=path)
        made = fb.FedBuff(3, 0.3, norm="arrivals", n_clients=N, table=table)
        server = backend.Server(np.zeros(DIM, dtype), made)
        feed(server, arrivals(20, dtype))
        server.save(tmp_path / "server.npz")
        feed(server, arrivals(20, dtype))
        models.append(server.w)
    np.testing.assert_array_equal(models[0], models[1], strict=True)
    assert [path.name for path in tmp_path.iterdir()] == ["server.npz"]  # the rows' file has no name


@every_implementation
def test_bfloat16_rows_round_to_the_nearest(backend: Any) -> None:
    """A second delta of the same client shows the first row: delta - row + mean, with n = 2."""
    made = fb.FedBuff(1, 1.0, norm="arrivals", n_clients=2, table=fb.ClientTable(rows="bfloat16"))
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8 + 2**-20), 3.0e38, 1e-40, 0.1])
    server = backend.Server(np.zeros(7), made)
    feed(server, [(0, 0, values), (0, 0, np.zeros(7))])
    rounded = np.array([1.0, 1.0, 1 + 2**-6, -(1 + 2**-7), 3.00421e38, 1.01e-40, 0.10009765625])
    np.testing.assert_allclose(server.w, -values + rounded / 2, rtol=1e-2, atol=1e-38)
    np.testing.assert_allclose((server.w + values)[:4] * 2, rounded[:4], rtol=0, atol=1e-12)


@every_implementation
def test_what_is_refused(backend: Any) -> None:
    server = backend.Server(np.zeros(3), fb.FedBuff(1, n_clients=2, table=fb.ClientTable()))
    server.download()
    with pytest.raises(ValueError, match=r"^client: this rule must know whose delta it is"):
        server.upload(np.ones(3), 0)
    for client in (-1, 2, 2**70):
        with pytest.raises(ValueError, match=r"^client: expected an int from 0 to 1, got "):
            server.upload(np.ones(3), 0, client=client)
    with pytest.raises(TypeError, match=r"^client: "):
        server.upload(np.ones(3), 0, client=1.5)
    with pytest.raises(ValueError, match=r"^unit: "):
        backend.Server(np.zeros(3), fb.FedBuff(1, n_clients=2, table=fb.ClientTable()), unit=0.5)
    with pytest.raises(MemoryError, match=r"^table: 1000000000 rows of 1000 float64 take 8000000000000 bytes, and "):
        backend.Server(np.zeros(1000), fb.FedBuff(1, n_clients=10**9, table=fb.ClientTable()))
    with pytest.raises(FileNotFoundError, match=r"^table: path "):
        backend.Server(np.zeros(3), fb.FedBuff(1, n_clients=2, table=fb.ClientTable(path="/no/such/folder")))
    plain = backend.Server(np.zeros(3), fb.FedBuff(1))
    plain.download()
    assert plain.upload(np.ones(3), 0, client=7)  # a rule without a table needs none


@every_implementation
def test_a_refused_upload_changes_nothing(backend: Any) -> None:
    most = np.finfo(np.float64).max
    server = backend.Server(np.full(2, most), fb.FedBuff(1, 1.0, n_clients=2, table=fb.ClientTable()))
    other = backend.Server(np.full(2, most), fb.FedBuff(1, 1.0, n_clients=2, table=fb.ClientTable()))
    for one in (server, other):
        one.download(), one.download()
        one.upload(np.full(2, 1.0), 0, client=0)
        one.download(), one.download()
    with pytest.raises(OverflowError, match=r"^delta: after server step 1"):
        server.upload(np.full(2, -most), 1, client=1)
    with pytest.raises(ValueError, match=r"^delta: element 0 is nan"):
        server.upload(np.full(2, np.nan), 1, client=0)
    for one in (server, other):
        one.upload(np.full(2, 2.0), 1, client=1)
        one.upload(np.full(2, 3.0), 0, client=0)
    np.testing.assert_array_equal(server.w, other.w, strict=True)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: fb.FedBuff(2, table=fb.ClientTable()), ValueError, r"^n_clients: a rule with a table"),
        (lambda: fb.FedBuff(2, table="rows", n_clients=3), TypeError, r"^table: "),
        (lambda: fb.ClientTable(rows="float16"), ValueError, r"^rows: "),
        (lambda: fb.ClientTable(mean_over="all"), ValueError, r"^mean_over: "),
        (
            lambda: fb.FedBuff(2, n_clients=3, table=fb.ClientTable(), secure="simulate"),
            ValueError,
            r"^secure: a table",
        ),
        (
            lambda: fb.FedBuff(
                2, n_clients=3, table=fb.ClientTable(), privacy=fb.secure.Gaussian(clip=1.0, noise_multiplier=1.0)
            ),
            ValueError,
            r"^privacy: a table",
        ),
    ],
)
def test_bad_rules(make: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make()
