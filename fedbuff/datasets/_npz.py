"""NPZ: X and y, with clients and held-out rows where they are there; or Keras's x_train, y_train, x_test, y_test."""

from __future__ import annotations

import numpy as np

from .._base.files import FileError, NpzReader, PathLike, open_npz, reading
from ..partition import by_column
from ._dataset import Dataset

__all__ = ["read_npz"]

_NAMES = (("X", "y", "X_test", "y_test"), ("x_train", "y_train", "x_test", "y_test"))


def read_npz(path: PathLike, *, client_column: str | None = None) -> Dataset:
    """The arrays X and y (or x_train and y_train) of an .npz file, `clients` and X_test, y_test where it has them.

    >>> import fedbuff as fb, numpy as np, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "rows.npz")
    >>> np.savez(path, X=np.zeros((3, 2)), y=[0, 1, 0], user=["bob", "ann", "bob"])
    >>> data = fb.datasets.read_npz(path, client_column="user")
    >>> data.clients.tolist(), data.names
    ([1, 0, 1], ('ann', 'bob'))

    client_column  the array that says whose a row is; None is `clients`, where it is there
    """
    what = "a data file"
    with open_npz(path, what) as arrays, reading(path, what):
        x_name, y_name, x_test, y_test = _NAMES[1] if "X" not in arrays and "x_train" in arrays else _NAMES[0]
        for name in (x_name, y_name, *([client_column] if client_column is not None else [])):
            _demand(arrays, path, name)
        X, y = arrays[x_name], arrays[y_name]
        if X.ndim < 2 or y.shape != X.shape[:1]:
            raise ValueError(f"{x_name} is {X.shape} and {y_name} {y.shape}, expected (rows, ...) and (rows)")
        test = None
        if x_test in arrays:
            _demand(arrays, path, y_test)
            test = arrays[x_test], arrays[y_test]
        column = client_column or ("clients" if "clients" in arrays else None)
        if column is None:
            return Dataset(X, y, test=test)
        values = arrays[column]
        if values.shape != y.shape:
            raise ValueError(f"{column} is {values.shape}, expected one value for each of {len(y)} rows")
        return Dataset(X, y, by_column(values), tuple(str(value) for value in np.unique(values)), test)


def _demand(arrays: NpzReader, path: PathLike, name: str) -> None:
    if name not in arrays:
        raise FileError(f"it has no array {name}; it has {', '.join(arrays.files)}", path)
