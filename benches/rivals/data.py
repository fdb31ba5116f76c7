"""The workloads: sizes, rows, a model to start from, its loss. NumPy only, the same bytes in every environment."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(tempfile.gettempdir()) / "fedbuff-bench-data"


@dataclass(frozen=True)
class Workload:
    name: str
    n_clients: int
    rows: int  # per client; CSR: on average
    features: int
    outputs: int  # 1: logistic
    hidden: int
    steps: int
    batch: int
    lr: float = 0.05
    buffer_size: int = 10
    in_flight: int = 100
    intercept: bool = True
    sparse: bool = False

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(in, out) of each weight matrix."""
        sizes = (self.features, *((self.hidden,) if self.hidden else ()), self.outputs)
        return list(pairwise(sizes))

    @property
    def dim(self) -> int:
        return sum(n_in * n_out + (n_out if self.intercept else 0) for n_in, n_out in self.layers)

    @property
    def flops(self) -> float:
        """Multiplications and additions of one client's update, every drawn row counted."""
        forward_and_weights = sum(4 * n_in * n_out for n_in, n_out in self.layers)
        back = sum(2 * n_in * n_out for n_in, n_out in self.layers[1:])
        return float(self.steps * self.batch * (forward_and_weights + back))

    @property
    def executed_flops(self) -> float:
        """The same of what is executed: a row that a batch holds twice is visited once and counts twice."""
        different = self.rows * (1 - (1 - 1 / self.rows) ** self.batch)  # drawn rows, in the mean
        return self.flops * different / self.batch

    @property
    def gradient_flops(self) -> float:
        """The same of one gradient over all rows of all clients."""
        return self.flops / (self.steps * self.batch) * self.n_clients * self.rows


_W1 = Workload("W1", 1000, 60, 784, 10, 0, 10, 32)
_W2 = Workload("W2", 10_000, 20, 20, 1, 0, 1, 4, intercept=False)
_W3 = Workload("W3", 200, 60, 784, 10, 128, 10, 32)
WORKLOADS = {
    w.name: w
    for w in (
        _W1,
        _W2,
        _W3,
        replace(_W1, name="W1-odd", features=783, outputs=11, batch=33, steps=7),
        replace(_W3, name="W3-odd", features=783, outputs=11, batch=33, steps=7),
        Workload("CSR", 100, 325, 123, 1, 0, 10, 32, intercept=False, sparse=True),
    )
}


# Updates that take about a second on one core, beside which it does not count that threads have to start.
A_SECOND = {"W1": 8000, "W2": 4_000_000, "W3": 800, "CSR": 100_000}


def workload(name: str) -> Workload:
    """By name; or logistic-D, of D inputs; softmax-D, of D inputs and 10 classes; mlp-H, of 784 inputs, H hidden units
    and 10 classes: a ladder of sizes, with batches of 32 and ten steps, on twenty clients."""
    if name in WORKLOADS:
        return WORKLOADS[name]
    kind, _, size = name.partition("-")
    if kind in _LADDER and size.isdigit():
        return _LADDER[kind](Workload(name, 20, 64, 784, 10, 0, 10, 32, in_flight=10), int(size))
    raise ValueError(f"unknown workload {name!r}: expected one of {', '.join(WORKLOADS)}, logistic-D, softmax-D, mlp-H")


_LADDER: dict[str, Callable[[Workload, int], Workload]] = {
    "logistic": lambda w, size: replace(w, features=size, outputs=1, intercept=False),
    "softmax": lambda w, size: replace(w, features=size),
    "mlp": lambda w, size: replace(w, hidden=size),
}


def rows_of(w: Workload) -> tuple[np.ndarray, np.ndarray]:
    """X (clients, rows, features) float32 and y (clients, rows): normals, shifted for each client; planted labels."""
    generator = np.random.default_rng(11)
    X = generator.standard_normal((w.n_clients, w.rows, w.features), dtype=np.float32)
    X += 0.5 * generator.standard_normal((w.n_clients, 1, w.features), dtype=np.float32)
    planted = generator.standard_normal((w.features, w.outputs), dtype=np.float32)
    scores = X @ planted
    if w.outputs == 1:
        y = (scores[..., 0] + 0.5 * generator.standard_normal(scores.shape[:2]) > 0).astype(np.float32)
    else:
        y = (scores + 5 * generator.standard_normal(scores.shape)).argmax(-1).astype(np.int32)
        X *= np.float32(0.3)
    return X, y


@dataclass(frozen=True)
class Sparse:
    """Rows in CSR form, grouped by client: client i owns rows offsets[i]:offsets[i + 1]."""

    values: np.ndarray  # float32
    columns: np.ndarray  # int32
    starts: np.ndarray  # int64 (rows + 1)
    y: np.ndarray  # float32
    offsets: np.ndarray  # int64 (clients + 1)
    recorded: bool

    def dense(self, n_features: int) -> np.ndarray:
        rows = np.repeat(np.arange(len(self.y)), np.diff(self.starts))
        X = np.zeros((len(self.y), n_features), np.float32)
        X[rows, self.columns] = self.values
        return X


def sparse_rows_of(w: Workload) -> Sparse:
    """The data set a9a, in its own order, where a folder above has it; else rows of the same shape: 14 ones of 123."""
    offsets = np.linspace(0, w.n_clients * w.rows, w.n_clients + 1).astype(np.int64)
    for folder in Path(__file__).resolve().parents:
        found = sorted((folder / "shared" / "data" / "libsvm").glob("a9a*gz"))
        found = [path for path in found if not path.name.startswith("a9a.t")]
        if found:
            with gzip.open(found[0], "rt") as file:
                lines = [line.split() for line in file][: w.n_clients * w.rows]
            parts = [[item.split(":") for item in line[1:]] for line in lines]
            y = np.array([float(line[0]) > 0 for line in lines], np.float32)
            columns = np.array([int(index) - 1 for part in parts for index, _ in part], np.int32)
            values = np.array([float(value) for part in parts for _, value in part], np.float32)
            starts = np.cumsum([0, *map(len, parts)]).astype(np.int64)
            return Sparse(values, columns, starts, y, offsets, True)
    generator = np.random.default_rng(12)
    n = w.n_clients * w.rows
    columns = np.sort(generator.random((n, w.features)).argpartition(14, axis=1)[:, :14], axis=1).astype(np.int32)
    planted = generator.standard_normal(w.features)
    y = (planted[columns].sum(1) + generator.standard_normal(n) > 0).astype(np.float32)
    starts = np.arange(n + 1, dtype=np.int64) * 14
    return Sparse(np.ones(14 * n, np.float32), columns.ravel(), starts, y, offsets, False)


def initial_model(w: Workload) -> np.ndarray:
    """Layer by layer, weight (out, in) and then bias: zeros, or He normals where there is a hidden layer."""
    model = np.zeros(w.dim, np.float32)
    if w.hidden:
        generator = np.random.default_rng(13)
        at = 0
        for n_in, n_out in w.layers:
            model[at : at + n_in * n_out] = generator.standard_normal(n_in * n_out) * np.sqrt(2 / n_in)
            at += n_in * n_out + n_out
    return model


def parts_of(w: Workload, model: Any) -> list[Any]:
    """Views of the weights (..., out, in) and biases (..., out) of one model or of a stack of them."""
    parts, at = [], 0
    for n_in, n_out in w.layers:
        parts.append(model[..., at : at + n_in * n_out].reshape(*model.shape[:-1], n_out, n_in))
        at += n_in * n_out
        if w.intercept:
            parts.append(model[..., at : at + n_out])
            at += n_out
    return parts


def loss_of(w: Workload, model: np.ndarray, n_clients: int = 100) -> float:
    """The loss over the first clients, in float64."""
    if w.sparse:
        sparse = sparse_rows_of(w)
        X, y = sparse.dense(w.features).astype(np.float64), sparse.y
    else:
        rows, labels = rows_of(w)
        X, y = rows[:n_clients].reshape(-1, w.features).astype(np.float64), labels[:n_clients].ravel()
    parts = parts_of(w, np.asarray(model, np.float64))
    if w.outputs == 1:
        z = X @ parts[0][0]
        return float(np.mean(np.logaddexp(0, z) - y * z))
    if w.hidden:
        X = np.maximum(X @ parts[0].T + parts[1], 0)
    z = X @ parts[-2].T + parts[-1]
    z -= z.max(1, keepdims=True)
    return float(np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]))


def answer_path(name: str) -> Path:
    return FOLDER / f"answer-{name}.npz"


def check_delta(name: str, delta_of: Any) -> None:
    """Compares delta_of(model, client, batches) with what fedbuff wrote for the same model, client and batches."""
    with np.load(answer_path(name)) as file:
        w, client, batches, expected = file["w"], int(file["client"]), file["batches"], file["delta"]
    got = np.asarray(delta_of(w, client, batches), np.float64)
    error = np.abs(got - expected).max() / np.abs(expected).max()
    if not error < 1e-4:
        raise AssertionError(f"{name}: this rival's delta differs from fedbuff's by {error:.2g} of its largest number")


def learning(w: Workload, run: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """The run, once it was seen to learn: a peer's algorithm is another, so that its loss is another too."""
    before, after = loss_of(w, initial_model(w)), loss_of(w, run().pop("end"))
    if not after < before:
        raise AssertionError(f"{w.name}: the loss went from {before:.3f} to {after:.3f}")

    def turn() -> dict[str, Any]:
        result = run()
        result.pop("end")
        return result

    return turn
