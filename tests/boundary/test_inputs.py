"""What users pass by mistake, to every public callable that takes arrays: the error's type, and a text that names the
argument. `tests/rule/test_server.py` does the same for the deltas of servers and buffers on every backend."""

from __future__ import annotations

import array
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedbuff as fb
from fedbuff import backends

Array = NDArray[Any]
DIM = 3


def good() -> Array:
    return np.array([1.0, 2.0, 3.0])


def unaligned(values: Array) -> Array:
    return np.frombuffer(bytearray(b"?" + values.tobytes()), np.uint8)[1:].view(values.dtype)


def frozen(values: Array) -> Array:
    values.flags.writeable = False
    return values


class Dlpack:
    """An array that shows itself through DLPack alone."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


class ElsewhereDlpack(Dlpack):
    """An array on some other device."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("not on the CPU")

    def __dlpack_device__(self) -> Any:
        return (2, 0)


def problem() -> fb.Problem:
    return fb.LeastSquares(np.eye(DIM), np.ones(DIM), [0, 1, 3])


LOCAL = fb.LocalSGD(steps=2, lr=0.1)

# Each takes one vector of DIM float64 numbers that it only reads.
READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "loss": ("w", lambda v: problem().loss(v)),
    "grad": ("w", lambda v: problem().grad(v)),
    "client_loss": ("w", lambda v: problem().client_loss(0, v)),
    "client_grad": ("w", lambda v: problem().client_grad(0, v)),
    "delta": ("w", lambda v: problem().delta(v, 0, LOCAL)),
    "accuracy": ("w", lambda v: fb.Logistic(np.eye(DIM), [0, 1, 1], [0, 3]).accuracy(v)),
    "aggregate w": ("w", lambda v: fb.aggregate(v, [np.zeros(DIM)])),
    "aggregate delta": ("deltas[1]", lambda v: fb.aggregate(np.zeros(DIM), [np.zeros(DIM), v])),
    "DeltaBuffer.add": ("delta", lambda v: fb.DeltaBuffer(DIM).add(v)),
    "DeltaBuffer.step": ("w", lambda v: fb.DeltaBuffer(DIM).step(v, 0.1)),
    "Server.upload": ("delta", lambda v: busy_server().upload(v, 0)),
}
# Each writes into the vector that it is given.
WRITERS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda v: problem().grad(good(), out=v),
    "client_grad": lambda v: problem().client_grad(0, good(), out=v),
    "delta": lambda v: problem().delta(good(), 0, LOCAL, out=v),
    "aggregate": lambda v: fb.aggregate(good(), [good()], out=v),
    "DeltaBuffer.step": lambda v: fb.DeltaBuffer(DIM).step(good(), 0.1, out=v),
}


def busy_server() -> Any:
    server = fb.Server(np.zeros(DIM), fb.FedBuff(buffer_size=2))
    server.download()
    return server


MISFITS: list[tuple[str, Any, type[Exception], str]] = [
    ("float32", good().astype(np.float32), TypeError, "expected float64, got float32"),
    ("ints", np.ones(DIM, np.int64), TypeError, "expected float64, got int64"),
    ("complex", np.ones(DIM, np.complex128), TypeError, "expected float64, got complex128"),
    ("objects", np.ones(DIM, object), TypeError, "expected float64, got object"),
    ("byte-swapped", good().astype(">f8"), TypeError, "byte-swapped"),
    ("a list", [1.0, 2.0, 3.0], TypeError, "expected an array"),
    ("None", None, TypeError, "expected an array"),
    ("a number", 1.0, TypeError, "expected an array"),
    ("text", "123", TypeError, "expected an array"),
    ("too long", np.ones(DIM + 1), ValueError, "expected shape (3,), got (4,)"),
    ("empty", np.empty(0), ValueError, "expected shape (3,), got (0,)"),
    ("a column", np.ones((DIM, 1)), ValueError, "expected shape (3,), got (3, 1)"),
    ("strided", np.ones(2 * DIM)[::2], ValueError, "not contiguous"),
    ("reversed", good()[::-1], ValueError, "not contiguous"),
    ("unaligned", unaligned(good()), ValueError, "not aligned"),
    ("on a device", ElsewhereDlpack(good()), TypeError, "DLPack gave no view"),
]
# These take their size from the vector itself, or take any dtype that is float32 or float64.
FREE_SIZE = {"aggregate w"}


@pytest.mark.parametrize("case", MISFITS, ids=[case[0] for case in MISFITS])
@pytest.mark.parametrize("reader", READERS)
def test_readers_refuse(reader: str, case: tuple[str, Any, type[Exception], str]) -> None:
    name, call = READERS[reader]
    what, value, kind, text = case
    if reader in FREE_SIZE and what in ("float32", "ints", "complex", "objects", "too long", "empty", "a column"):
        text = ""
        kind = TypeError if isinstance(value, np.ndarray) and value.dtype.kind != "f" else ValueError
        if what == "float32":
            name, kind = "deltas[0]", TypeError
        elif what in ("too long", "empty"):
            name = "deltas[0]"
    with pytest.raises(kind) as caught:
        call(value)
    assert str(caught.value).startswith(f"{name}: ")
    assert text in str(caught.value)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "make",
    [
        good,
        lambda: frozen(good()),
        lambda: memoryview(good()),
        lambda: array.array("d", [1.0, 2.0, 3.0]),
        lambda: Dlpack(good()),
        lambda: np.stack([good(), good()])[1],
        lambda: np.stack([good(), good()], axis=1).copy("F")[:, 0],
    ],
    ids=["array", "read-only", "memoryview", "array.array", "DLPack", "a row", "a column in Fortran order"],
)
def test_readers_take_anything_that_fits(reader: str, make: Callable[[], Any]) -> None:
    _, call = READERS[reader]
    want, got = call(good()), call(make())
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("case", MISFITS, ids=[case[0] for case in MISFITS])
@pytest.mark.parametrize("writer", WRITERS)
def test_writers_refuse(writer: str, case: tuple[str, Any, type[Exception], str]) -> None:
    what, value, kind, text = case
    if what == "None":
        return  # out=None is a fresh array
    with pytest.raises(kind) as caught:
        WRITERS[writer](value)
    assert str(caught.value).startswith("out: ")
    assert text in str(caught.value)


@pytest.mark.parametrize("writer", WRITERS)
def test_writers_refuse_what_cannot_be_written(writer: str) -> None:
    for value in (frozen(good()), np.frombuffer(bytes(8 * DIM))):
        with pytest.raises(ValueError, match=r"^out: read-only"):
            WRITERS[writer](value)


@pytest.mark.parametrize("writer", ["grad", "client_grad", "delta"])
def test_out_is_not_the_input(writer: str) -> None:
    w = good()
    call: dict[str, Callable[[], Any]] = {
        "grad": lambda: problem().grad(w, out=w),
        "client_grad": lambda: problem().client_grad(0, w, out=w),
        "delta": lambda: problem().delta(w, 0, LOCAL, out=w),
    }
    with pytest.raises(ValueError, match=r"^out: shares memory with an input"):
        call[writer]()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_aggregate_has_the_same_bits_on_any_number_of_threads(dtype: str) -> None:
    generator = np.random.default_rng(7)
    w, *deltas = generator.standard_normal((5, 200_003)).astype(dtype)
    want = fb.aggregate(w, deltas, [0.5, 1.0, -2.0, 0.1], lr=0.1)
    for threads in (2, 3, 8):
        got = fb.aggregate(w, deltas, [0.5, 1.0, -2.0, 0.1], lr=0.1, threads=threads)
        np.testing.assert_array_equal(got, want)
    with pytest.raises(ValueError, match="threads"):
        fb.aggregate(w, deltas, threads=0)
    np.testing.assert_array_equal(fb.aggregate(w, deltas, threads=10**12), fb.aggregate(w, deltas))


def test_a_loss_beyond_the_numbers_is_infinite_and_not_a_nan() -> None:
    rows = np.ones((10, 1))  # as many clients, of which some of the parts that are summed on threads get none
    problem = fb.LeastSquares(rows, np.zeros(10), np.arange(10), l2=1.0)
    assert problem.loss(np.array([1e160])) == np.inf


def test_aggregate_in_place() -> None:
    w, deltas = good(), [good(), 2 * good()]
    want = fb.aggregate(w, deltas, [0.5, 1.0], lr=0.1)
    assert fb.aggregate(w, deltas, [0.5, 1.0], lr=0.1, out=w) is w
    np.testing.assert_array_equal(w, want)
    with pytest.raises(ValueError, match=r"^out: shares memory with a delta"):
        fb.aggregate(w, deltas, out=deltas[1])


def test_models_that_are_not_finite_are_computed_with() -> None:
    """A model that diverged is not an error of the call: the answer says so."""
    for bad in (math.nan, math.inf):
        w = good()
        w[1] = bad
        assert not math.isfinite(problem().loss(w))
        assert not np.isfinite(problem().grad(w)).all()


# Constructors

X, Y, CLIENTS = np.arange(12.0).reshape(4, 3), np.array([0.0, 1.0, 1.0, 0.0]), [0, 0, 1, 1]
FAMILIES: dict[str, Callable[..., Any]] = {
    "LeastSquares": fb.LeastSquares,
    "Logistic": fb.Logistic,
    "Softmax": fb.Softmax,
    "MLP": lambda *a, **k: fb.MLP(*a, **{"hidden": (2,), **k}),
}


def with_nan(values: Any, *where: int) -> Array:
    copy = np.array(values, float)
    copy[where] = np.nan
    return copy


BAD_ROWS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("X of ints", {"X": np.ones((4, 3), int)}, TypeError, "X: expected float32 or float64, got int64"),
    ("X byte-swapped", {"X": X.astype(">f8")}, TypeError, "X: >f8 is byte-swapped"),
    ("X a list", {"X": X.tolist()}, TypeError, "X: expected an array"),
    ("X a vector", {"X": np.ones(4)}, ValueError, "X: expected shape (rows, features)"),
    ("X without rows", {"X": np.empty((0, 3))}, ValueError, "X: expected at least one row"),
    ("X without features", {"X": np.empty((4, 0))}, ValueError, "X: expected at least one row"),
    ("X with a NaN", {"X": with_nan(X, 2, 1)}, ValueError, "X: row 2 is not finite"),
    ("y short", {"y": Y[:3]}, ValueError, "y: expected shape (4,)"),
    ("y a column", {"y": Y[:, None]}, ValueError, "y: expected shape (4,)"),
    ("clients short", {"clients": [0, 1, 1]}, ValueError, "clients: expected 4 client numbers"),
    ("clients with a gap", {"clients": [0, 0, 2, 2]}, ValueError, "clients: client 1 has no rows"),
    ("clients negative", {"clients": [0, -1, 1, 1]}, ValueError, "clients: row 1 has client -1"),
    ("clients too many", {"clients": [0, 9, 1, 1]}, ValueError, "clients: row 1 has client 9"),
    ("clients of floats", {"clients": [0.0, 0.0, 1.0, 1.0]}, TypeError, "clients: expected one int per row"),
    ("clients empty", {"clients": []}, TypeError, "clients: expected one int per row"),
    ("an empty client", {"clients": [0, 2, 2, 4]}, ValueError, "clients: offsets must increase; client 1"),
    ("l2 negative", {"l2": -1.0}, ValueError, "l2: expected a number >= 0"),
    ("l2 text", {"l2": "much"}, TypeError, "l2: expected a number"),
    ("weights unknown", {"client_weights": "size"}, ValueError, "client_weights: expected one of equal, samples"),
    ("weights short", {"client_weights": [1.0]}, ValueError, "client_weights: expected 2 numbers"),
    ("weights zero", {"client_weights": [0.0, 0.0]}, ValueError, "client_weights: expected finite numbers >= 0"),
    (
        "unsorted in place",
        {"clients": [1, 0, 1, 0], "copy": False},
        ValueError,
        "clients: expected rows sorted by client",
    ),
    ("strided in place", {"X": np.ones((4, 6))[:, ::2], "copy": False}, ValueError, "X: expected C-contiguous"),
]


@pytest.mark.parametrize("case", BAD_ROWS, ids=[case[0] for case in BAD_ROWS])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_refused(family: str, case: tuple[str, dict[str, Any], type[Exception], str]) -> None:
    _, change, kind, text = case
    given = {"X": X, "y": Y, "clients": CLIENTS, **change}
    with pytest.raises(kind) as caught:
        FAMILIES[family](given.pop("X"), given.pop("y"), given.pop("clients"), **given)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_accepted(family: str) -> None:
    """Strided and read-only rows are copied; so are those behind a buffer or DLPack."""
    make = FAMILIES[family]
    w = make(X, Y, CLIENTS).init(1)
    want = make(X, Y, CLIENTS).grad(w)
    wide = np.repeat(X, 2, axis=1)
    for rows in (wide[:, ::2], frozen(X.copy()), X.copy("F"), memoryview(X), Dlpack(X)):
        np.testing.assert_array_equal(make(rows, Y, CLIENTS).grad(w), want)
    mine = X.copy()
    kept = make(mine, Y, CLIENTS)
    mine[:] = np.nan
    np.testing.assert_array_equal(kept.grad(w), want)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: fb.LeastSquares(X, Y.astype(np.float32), CLIENTS), TypeError, "y: expected float64, as X"),
        (lambda: fb.LeastSquares(X, with_nan(Y, 1), CLIENTS), ValueError, "y: row 1 is not finite"),
        (lambda: fb.Logistic(X, [0, 1, 2, 0], CLIENTS), ValueError, "y: expected two classes, got 3"),
        (lambda: fb.Logistic(X, Y, CLIENTS, nonconvex=-1), ValueError, "nonconvex: "),
        (lambda: fb.Softmax(X, [1, 1, 1, 1], CLIENTS), ValueError, "y: expected at least two classes"),
        (lambda: fb.MLP(X, Y, CLIENTS, hidden=(0,)), ValueError, "hidden: "),
        (lambda: fb.MLP(X, Y, CLIENTS, hidden=(2.5,)), TypeError, "hidden: "),  # type: ignore[arg-type]
        (lambda: fb.MLP(X, Y, CLIENTS, hidden=(2,) * 16), ValueError, "hidden: expected at most 15"),
        (lambda: fb.MLP(X, Y, CLIENTS, activation="elu"), ValueError, "activation: "),  # type: ignore[arg-type]
        (lambda: fb.Quadratic([[1.0]]), TypeError, "centers: expected an array"),
        (lambda: fb.Quadratic(np.ones((2, 2), int)), TypeError, "centers: "),
        (lambda: fb.Quadratic(np.ones(3)), ValueError, "centers: expected shape"),
        (lambda: fb.Quadratic(np.empty((0, 3))), ValueError, "centers: expected shape"),
        (lambda: fb.Quadratic(with_nan(np.ones((3, 2)), 1, 0)), ValueError, "centers: client 1 is not finite"),
        (lambda: fb.Quadratic(np.ones((3, 2)), -1.0), ValueError, "curvature: expected numbers >= 0"),
        (lambda: fb.Quadratic(np.ones((3, 2)), [[0, 1], [1, 0]]), ValueError, "curvature: expected eigenvalues >= 0"),
        (lambda: fb.Quadratic(np.ones((3, 2)), [[1, 1], [0, 1]]), ValueError, "curvature: expected symmetric matrices"),
        (lambda: fb.Quadratic(np.ones((3, 2)), np.ones(5)), ValueError, "curvature: expected a number"),
        (lambda: fb.Quadratic(np.ones((3, 2)), np.nan), ValueError, "curvature: expected finite numbers"),
        (lambda: fb.Quadratic(np.ones((3, 2)), 1.0, per_client=True), ValueError, "curvature: per_client=True"),
        (lambda: fb.Quadratic(np.ones((3, 2)), noise_variance=-1), ValueError, "noise_variance: "),
        (lambda: fb.LocalSGD(steps=0, lr=0.1), ValueError, "steps: "),
        (lambda: fb.LocalSGD(steps=1.5, lr=0.1), TypeError, "steps: "),  # type: ignore[arg-type]
        (lambda: fb.LocalSGD(steps=1, lr=math.nan), ValueError, "lr: "),
        (lambda: fb.LocalSGD(steps=1, lr=-1), ValueError, "lr: "),
        (lambda: fb.LocalSGD(steps=1, lr="fast"), TypeError, "lr: "),  # type: ignore[arg-type]
        (lambda: fb.LocalSGD(steps=1, lr=1, momentum=-1), ValueError, "momentum: "),
        (lambda: fb.LocalSGD(steps=1, lr=1, weight_decay=math.inf), ValueError, "weight_decay: "),
        (lambda: fb.LocalSGD(steps=1, lr=1, prox=-1), ValueError, "prox: "),
        (lambda: fb.LocalSGD(steps=1, lr=1, batch_size=0), ValueError, "batch_size: "),
        (lambda: fb.LocalSGD(steps=1, lr=1, batch_size=[1, 0]), ValueError, "batch_size: client 1"),
        (lambda: fb.LocalSGD(steps=1, lr=1, batch_size=[]), (TypeError, ValueError), "batch_size: "),
        (lambda: fb.LocalSGD(steps=1, lr=1, batch_size=[1.5]), TypeError, "batch_size: "),  # type: ignore[list-item]
        (lambda: fb.LocalSGD(steps=1, lr=1, batch_size=2.0), TypeError, "batch_size: "),  # type: ignore[arg-type]
        (lambda: problem().client_grad(2, good()), IndexError, "client: there are 2 clients, got 2"),
        (lambda: problem().client_grad(-1, good()), ValueError, "client: "),
        (lambda: problem().client_grad(0.0, good()), TypeError, "client: "),  # type: ignore[arg-type]
        (lambda: problem().grad(good(), threads=0), ValueError, "threads: "),
        (lambda: problem().delta(good(), 0, LOCAL, task=-1), ValueError, "task: "),
        (lambda: problem().delta(good(), 0, LOCAL, task=2**32), ValueError, "task: "),
        (lambda: problem().delta(good(), 0, LOCAL, seed=-1), ValueError, "seed: "),
        (lambda: problem().delta(good(), 0, LOCAL, seed=2**64), ValueError, "seed: "),
        (lambda: problem().delta(good(), 0, LOCAL, batches=[0, 0]), ValueError, "batches: expected shape (2, any)"),
        (lambda: problem().delta(good(), 0, LOCAL, batches=[[0.5], [0.5]]), TypeError, "batches: expected integers"),
        (lambda: problem().delta(good(), 0, LOCAL, batches=[[0], [1]]), IndexError, "batches: client 0 has rows 0"),
        (lambda: problem().delta(good(), 0, LOCAL, batches=[[0], [-1]]), IndexError, "batches: client 0 has rows 0"),
        (lambda: fb.Quadratic(np.ones((2, 3))).delta(good(), 0, LOCAL, batches=[[0]] * 2), ValueError, "batches: "),
        (lambda: fb.MLP(X, Y, CLIENTS, hidden=(2,)).init(-1), ValueError, "seed: "),
        (lambda: fb.aggregate(good(), [good()], [1.0, 2.0]), ValueError, "weights: expected 1 numbers"),
        (lambda: fb.aggregate(good(), [good()], [math.nan]), ValueError, "weights: number 0 is not finite"),
        (lambda: fb.aggregate(good(), [good()], lr=math.nan), ValueError, "lr: "),
        (lambda: fb.Server([1.0], fb.FedBuff(1)), TypeError, "w0: expected an array"),
        (lambda: fb.Server(np.ones(3, int), fb.FedBuff(1)), TypeError, "w0: expected float32 or float64"),
        (lambda: fb.Server(np.ones(3, ">f8"), fb.FedBuff(1)), TypeError, "w0: >f8 is byte-swapped"),
        (lambda: fb.Server(np.empty(0), fb.FedBuff(1)), ValueError, "w0: expected a vector"),
        (lambda: fb.Server(with_nan(good(), 2), fb.FedBuff(1)), ValueError, "w0: element 2 is not finite"),
        (lambda: fb.Server(good(), "fedbuff"), TypeError, "strategy: expected a strategy"),
        (lambda: busy_server().upload(good(), 1), ValueError, "version 1 was never given out"),
        (lambda: busy_server().upload(good(), 2**70), ValueError, f"version {2**70} was never given out"),
        (lambda: busy_server().upload(good(), -(2**70)), ValueError, f"version {-(2**70)} was never given out"),
        (lambda: busy_server().cancel(2**70), ValueError, f"version {2**70} was never given out"),
        (lambda: busy_server().upload(good(), 0.0), TypeError, ""),
        (lambda: busy_server().upload(good(), 0, n_samples=0), ValueError, "n_samples: "),
        (lambda: busy_server().upload(with_nan(good(), 1), 0), ValueError, "delta: element 1 is nan"),
        (lambda: fb.DeltaBuffer(0), ValueError, "dim: "),
        (lambda: fb.DeltaBuffer(3, np.int64), TypeError, "dtype: "),
        (lambda: fb.DeltaBuffer(3).add(good(), math.inf), ValueError, "weight: "),
        (lambda: fb.DeltaBuffer(3).step(good(), math.nan), ValueError, "lr: "),
    ],
)
def test_refusals(call: Callable[[], Any], kind: Any, text: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value).startswith(text)


class Csr:
    format = "csr"

    def __init__(self, data: Any, indices: Any, indptr: Any, shape: tuple[int, int]) -> None:
        self.data, self.indices, self.indptr, self.shape = np.array(data), np.array(indices), np.array(indptr), shape


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (Csr([1.0, 2.0], [0, 5], [0, 1, 2], (2, 3)), "X: row 1 has column 5, of 3"),
        (Csr([1.0, 2.0], [0, -1], [0, 1, 2], (2, 3)), "X: row 1 has column -1, of 3"),
        (Csr([1.0, np.nan], [0, 1], [0, 1, 2], (2, 3)), "X: row 1 is not finite"),
        (Csr([1.0, 2.0], [0, 1], [0, 1], (2, 3)), "X: expected an indptr of n_rows + 1 numbers"),
        (Csr([1.0, 2.0], [0, 1], [0, 2, 1], (2, 3)), "X: expected an indptr of n_rows + 1 numbers"),
        (Csr([1.0, 2.0], [0, 1], [1, 1, 2], (2, 3)), "X: expected an indptr of n_rows + 1 numbers"),
        (Csr([1.0, 2.0], [0, 1], [0, 1, 9], (2, 3)), "X: expected an indptr of n_rows + 1 numbers"),
        (Csr([1.0, 2.0], [0], [0, 1, 2], (2, 3)), "X: expected a column for each of 2 stored values, got 1"),
    ],
)
def test_csr_refusals(rows: Csr, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        fb.Logistic(rows, [0, 1], [0, 1])
    assert str(caught.value).startswith(text)


def test_other_sparse_formats_are_named() -> None:
    rows = Csr([1.0], [0], [0, 1, 1], (2, 3))
    rows.format = "coo"
    with pytest.raises(TypeError, match=r"^X: expected dense or CSR rows, got coo"):
        fb.Logistic(rows, [0, 1], [0, 1])
    rows.format = "csr"
    for family in (fb.LeastSquares, fb.Softmax):
        with pytest.raises(TypeError, match=r"^X: .* takes dense rows"):
            family(rows, np.array([0.0, 1.0]), [0, 1])


@pytest.mark.parametrize("wrong", [1.9, 2.0, np.float32(1.9), "1"])
def test_an_int_is_an_int(wrong: Any) -> None:
    made = fb.uniform_arrivals(n_clients=4, buffer_size=2, max_staleness=1, server_steps=5, seed=0)._state()
    for name in ("n_clients", "buffer_size", "concurrency", "seed", "started_on_0", "first_step"):
        with pytest.raises(TypeError, match=f"^{name}: expected an int, got {type(wrong).__name__}$"):
            fb.Schedule(**{**made, name: wrong})
    for one in (problem(), fb.Callback(lambda *given: None, w0=good(), n_clients=1)):
        with pytest.raises(TypeError, match=r"^seed: expected an int"):
            one.init(wrong)


@pytest.mark.skipif(backends.current().name != "cpp", reason="the compiled module")
@pytest.mark.parametrize("wrong", [1.9, np.float32(1.9), Decimal("1.9")])
def test_the_compiled_module_cuts_nothing_to_an_int(wrong: Any) -> None:
    from fedbuff import _core

    words = np.zeros((1, 4), np.uint32)
    bound = _core.ProblemF64(problem()._spec)
    for call in (
        lambda: _core.philox(wrong, words, words),
        lambda: _core.batch_rows(0, wrong, 0, 0, 1, 1),
        lambda: _core.normals(0, 0, 0, 0, 0, wrong),
        lambda: bound.client_gradient(wrong, good(), None),
        lambda: bound.gradient(good(), None, wrong),
    ):
        with pytest.raises(TypeError):
            call()
