"""Rows of a problem from files: features, targets, and where the file says so the client of each row."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import aligned_copy, all_finite, text_array
from .._base.checks import count, is_number, number, share_of
from .._base.files import (
    MOST_EXPANSION,
    SMALL,
    FileError,
    file_format,
    open_plain,
    reading,
)
from ..datasets import Dataset, read_celeba, read_cifar, read_leaf, read_mnist, read_npz
from ..partition import by_column
from .svmlight import CSR, read_svmlight
from .tables import parameters_of, pop_kind, refuse_unknown

__all__ = ["SAMPLE", "RowReader", "Rows", "hold_out", "load_rows", "sample_digits", "save_rows"]

HeldOut = tuple[Any, Any]

SAMPLE = "sample:"  # begins the names of files that ship with the package
_DATASETS: dict[str, Callable[..., Dataset]] = {
    "npz": read_npz,
    "mnist": read_mnist,
    "cifar": read_cifar,
    "leaf": read_leaf,
    "celeba": read_celeba,
}
_FORMATS = {
    ".npz": "npz",
    "-ubyte": "mnist",
    "-ubyte.gz": "mnist",
    ".bin": "cifar",
    ".json": "leaf",
    ".csv": "csv",
    ".csv.gz": "csv",
    **{name + end: "svmlight" for name in (".svm", ".svmlight", ".libsvm") for end in ("", ".gz")},
}


@dataclass(frozen=True, slots=True)
class Rows:
    """X, y, a client number per row where the file has one, and held-out rows where the file has them.

    copy  whether a problem is to have a copy of them; not of rows that are in order, and mapped from files
    """

    X: Any
    y: NDArray[Any]
    clients: NDArray[np.int64] | None = None
    test: HeldOut | None = None
    copy: bool = True

    def in_order(self) -> Rows:
        """The rows by client, so that many problems can work on them without a copy; as they are where one is bad."""
        sparse = not isinstance(self.X, np.ndarray)
        if self.clients is None or not all_finite(self.X.data if sparse else self.X):
            return self
        order = None if (np.diff(self.clients) >= 0).all() else np.argsort(self.clients, kind="stable")
        X = (self.X if order is None else self.X.take(order)) if sparse else aligned_copy(self.X, order)
        y, clients = (self.y, self.clients) if order is None else (self.y[order], self.clients[order])
        return Rows(X, y, clients, self.test, copy=False)


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads what `fedbuff.datasets` reads, .csv (numbers; the target may be text) and svmlight files.

    flat       pictures become rows of numbers
    sparse     svmlight rows stay sparse
    labels     targets are labels, which keep their type; else numbers of `dtype`
    bytes      features of uint8 stay so
    form       the format, where the file's name does not say it: a name, or a table with options of its reader
    target     the column of a .csv with the targets: a name, or a number (from 0; -1 is the last)
    divide_by  features are divided by this number
    """

    flat: bool
    sparse: bool
    labels: bool
    dtype: np.dtype[Any]
    bytes: bool
    form: str | Mapping[str, Any] | None
    target: Any
    divide_by: float

    def read(self, folder: Path, name: Any, *, client_column: Any = None, n_features: int | None = None) -> Rows:
        """The rows of a file in the folder, or of a sample."""
        if not isinstance(name, str):
            raise TypeError(f"data: expected a file name, got {type(name).__name__}")
        if name == f"{SAMPLE}digits":
            X, y = sample_digits()
            return Rows(X.astype(self.dtype, copy=False), y)
        if name.startswith(SAMPLE):
            raise ValueError(f"data: expected a file or {SAMPLE}digits, got {SAMPLE}{name}")
        file = folder / name
        if not file.exists():
            raise ValueError(f"data: {file} does not exist")
        form, options = (file_format(file, _FORMATS), {}) if self.form is None else format_of(self.form)
        if form == "svmlight":
            sparse, targets = read_svmlight(file, dtype=self.dtype, n_features=n_features)
            return Rows(sparse if self.sparse else _dense(file, sparse), targets)
        divisor = number("divide_by", self.divide_by, open_low=True)
        if form == "csv":
            rows = _read_csv(file, self.target, client_column)
        else:
            rows = _read_dataset(file, form, options, client_column)
        with reading(file, "rows of numbers"):
            test = None if rows.test is None else (self._features(rows.test[0], divisor), rows.test[1])
            y = rows.y if self.labels else rows.y.astype(self.dtype)
            return Rows(self._features(rows.X, divisor), y, rows.clients, test)

    def _features(self, values: NDArray[Any], divisor: float) -> NDArray[Any]:
        rows = values.reshape(len(values), -1) if self.flat and values.ndim > 2 else values
        if self.bytes and rows.dtype == np.uint8 and divisor == 1.0:
            return rows
        return np.asarray(rows / divisor if divisor != 1.0 else rows).astype(self.dtype)


def format_of(form: Any) -> tuple[str, dict[str, Any]]:
    """The name of a format and the options of its reader, of a name or a table with a `kind`."""
    options = dict(form) if isinstance(form, Mapping) else {"kind": form}
    name = pop_kind("problem.format", options, (*_DATASETS, "csv", "svmlight"))
    known = [*parameters_of(_DATASETS[name])][1:] if name in _DATASETS else []
    refuse_unknown("problem.format", options, [key for key in known if key != "client_column"])
    return name, options


def _wrong(file: Path, what: str) -> FileError:
    """An error that begins with the key of a configuration that names the file."""
    error = FileError(f"data: {file}{what}")
    error.path = file
    return error


_NAMES_OF_FILES = {"mnist": "labels", "celeba": "identities"}  # options that name a file beside


def _read_dataset(file: Path, form: str, options: dict[str, Any], client_column: Any) -> Rows:
    beside = _NAMES_OF_FILES.get(form)
    if beside in options and isinstance(options[beside], str):
        options = {**options, beside: file.parent / options[beside]}
    if form == "npz":
        options = {"client_column": client_column}
    elif client_column is not None:
        raise ValueError(f"data: {file}: {form} has no column {client_column}")
    try:
        data = _DATASETS[form](file, **options)
    except FileError as error:
        raise _wrong(file, f": {error.reason}" if error.path == file else f": {error}") from error
    return Rows(data.X, data.y, data.clients, data.test)


def _read_csv(file: Path, target: Any, client_column: Any) -> Rows:
    """Comma-separated numbers, with or without a line of names; target and client may be text."""
    with reading(file, "a table of numbers"), open_plain(file) as stream:
        text = stream.read().decode()  # whole before it is parsed: a row takes many times its text
        lines = [line for line in csv.reader(io.StringIO(text, newline="")) if line]
    has_names = bool(lines) and not any(is_number(field) for field in lines[0])
    names = lines.pop(0) if has_names else [str(at) for at in range(len(lines[0]) if lines else 0)]
    if not lines:
        raise _wrong(file, " has no rows")
    for at, line in enumerate(lines):
        if len(line) != len(names):
            raise _wrong(file, f": row {at + 1} has {len(line)} fields, the first line {len(names)}")
    chosen = [_column(file, names, column) for column in (target, client_column) if column is not None]
    inside = [at for at in range(len(names)) if at not in chosen]
    table = np.empty((len(lines), len(names)), np.object_)
    table[:] = lines
    try:
        X = table[:, inside].astype(np.float64)
    except ValueError:
        row, at = next((r, c) for r, line in enumerate(lines) for c in inside if not is_number(line[c]))
        raise _wrong(file, f": row {row + 1}: {names[at]} {lines[row][at]!r} is not a number") from None
    with reading(file, "a table of numbers"):
        y: NDArray[Any] = text_array(table[:, chosen[0]].tolist())
        if all(is_number(value) for value in np.unique(y)):
            y = y.astype(np.float64)
        owners = None if client_column is None else by_column(text_array(table[:, chosen[1]].tolist()))
    return Rows(X, y, owners)


def _dense(file: Path, sparse: CSR) -> NDArray[Any]:
    """Sparse rows as dense ones; one index that is large by mistake asks for any amount of memory."""
    n_bytes = sparse.shape[0] * sparse.shape[1] * sparse.dtype.itemsize
    if n_bytes > max(SMALL, MOST_EXPANSION * file.stat().st_size):
        raise _wrong(
            file,
            f": {sparse.shape[0]} rows of {sparse.shape[1]} features take {n_bytes} bytes where they are dense; "
            "use a problem of sparse rows, such as logistic",
        )
    return sparse.toarray()


def _column(file: Path, names: list[str], wanted: Any) -> int:
    if isinstance(wanted, int) and not isinstance(wanted, bool) and -len(names) <= wanted < len(names):
        return wanted % len(names)
    if wanted in names:
        return names.index(wanted)
    known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    raise _wrong(file, f" has no column {wanted!r}; it has {known}")


def hold_out(rows: Rows, share: float, seed: int) -> tuple[Rows, HeldOut]:
    """The rows without a share of them, and that share, drawn by the seed."""
    n = len(rows.y)
    n_test = share_of(share, n)
    if not 0 < n_test < n:
        raise ValueError(f"test: a share of {share:g} of {n} rows leaves none on one side")
    if not isinstance(rows.X, np.ndarray):
        raise ValueError("test: a share is for dense rows; give a file")
    order = np.random.Generator(np.random.Philox(count("test_seed", seed, low=0))).permutation(n)
    test, kept = np.sort(order[:n_test]), np.sort(order[n_test:])
    clients = None if rows.clients is None else rows.clients[kept]
    return Rows(rows.X[kept], rows.y[kept], clients), (rows.X[test], rows.y[test])


def save_rows(folder: Path, rows: Rows) -> None:
    """Writes every array of the rows as a .npy file of its own, for `load_rows`."""
    folder.mkdir(parents=True)
    test_x, test_y = rows.test if rows.test is not None else (None, None)
    for name, array in {"y": rows.y, "clients": rows.clients, "y_test": test_y}.items():
        if array is not None:
            np.save(folder / f"{name}.npy", array)
    for name, X in {"X": rows.X, "X_test": test_x}.items():
        if isinstance(X, CSR):
            for part in ("data", "indices", "indptr"):
                np.save(folder / f"{name}.{part}.npy", getattr(X, part))
            np.save(folder / f"{name}.shape.npy", np.array(X.shape))
        elif X is not None:
            np.save(folder / f"{name}.npy", X)
    (folder / "in_order").write_text("no" if rows.copy else "yes", encoding="utf-8")


def load_rows(folder: Path) -> Rows:
    """The rows that `save_rows` wrote, mapped into memory: processes share their pages."""

    def array(name: str) -> Any:
        file = folder / f"{name}.npy"
        return np.load(file, mmap_mode="r", allow_pickle=False) if file.exists() else None

    def features(name: str) -> Any:
        shape = array(f"{name}.shape")
        if shape is None:
            return array(name)
        n_rows, n_features = shape.tolist()
        return CSR(array(f"{name}.data"), array(f"{name}.indices"), array(f"{name}.indptr"), (n_rows, n_features))

    test = (features("X_test"), array("y_test")) if array("y_test") is not None else None
    copy = (folder / "in_order").read_text(encoding="utf-8") == "no"
    return Rows(features("X"), array("y"), array("clients"), test, copy)


def sample_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """1,797 handwritten digits of 8 x 8 pixels, from 0 to 1, and which digit each is; the package ships them.

    >>> import fedbuff as fb
    >>> X, y = fb.sample_digits()
    >>> X.shape, X.dtype, sorted(set(y.tolist()))
    ((1797, 64), dtype('float32'), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])

    They are the test set of E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
    Repository, CC BY 4.0, https://doi.org/10.24432/C50P49.
    """
    with np.load(Path(__file__).parents[1] / "data" / "digits.npz", allow_pickle=False) as file:
        return (file["X"] / 16.0).astype(np.float32), file["y"].astype(np.int64)
