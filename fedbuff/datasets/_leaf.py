"""LEAF's JSON: `users`, `num_samples`, and in `user_data` rows x and targets y of each user.

The text is walked user by user, and each user's lists become arrays before the next is read: numbers as Python objects
take many times the space of their text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import text_array
from .._base.checks import path_of
from .._base.files import FileError, PathLike, reading
from ._dataset import Dataset

__all__ = ["LETTERS", "read_leaf"]

# LEAF's letters for Shakespeare, in its order
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
_BLANKS = re.compile(r"[ \t\n\r]*")

Array = NDArray[Any]
UserRows = tuple[str, Array, Array]


def read_leaf(path: PathLike, *, letters: str = LETTERS) -> Dataset:
    """Rows, targets and clients of LEAF's JSON: a file, a folder of files, or a folder with `train` and `test` in it.

    >>> import fedbuff as fb, json, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "all_data.json")
    >>> rows = {"ann": {"x": [[0.0, 1.0]], "y": [3]}, "bob": {"x": [[1.0, 1.0], [0.5, 0.0]], "y": [1, 2]}}
    >>> _ = path.write_text(json.dumps({"users": ["ann", "bob"], "num_samples": [1, 2], "user_data": rows}))
    >>> data = fb.datasets.read_leaf(path)
    >>> data.X.shape, data.y.tolist(), data.clients.tolist(), data.names
    ((3, 2), [3, 1, 2], [0, 1, 1], ('ann', 'bob'))

    Numbers (FEMNIST, Synthetic) become float32. Texts with single letters as targets (Shakespeare) become the letters'
    places in `letters`, whose length stands for all others; the default is LEAF's list. Other texts (CelebA's names of
    pictures) stay texts. A user without rows is no client.
    """
    source = path_of("path", path)
    if not isinstance(letters, str) or not 0 < len(letters) < 255 or len(set(letters)) < len(letters):
        raise ValueError("letters: expected a text of 1 to 254 letters, none of them twice")
    if not source.is_dir():
        return _dataset(source, _users(source, letters), None)
    split = (source / "train").is_dir()
    test = None
    if split and (source / "test").is_dir():
        held = _dataset(source / "test", _folder(source / "test", letters), None)
        test = held.X, held.y
    folder = source / "train" if split else source
    return _dataset(folder, _folder(folder, letters), test)


def _folder(folder: Path, letters: str) -> Iterator[UserRows]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise FileError("no folder of LEAF's files: it has no .json", folder)
    for file in files:
        yield from _users(file, letters)


def _dataset(source: Path, users: Iterator[UserRows], test: tuple[Array, Array] | None) -> Dataset:
    named: list[str] = []
    X: list[Array] = []
    y: list[Array] = []
    for name, rows, targets in users:
        if X and (rows.shape[1:] != X[0].shape[1:] or rows.dtype.kind != X[0].dtype.kind):
            first = f"{X[0].dtype} {X[0].shape[1:]}"
            raise FileError(f"rows of {rows.dtype} {rows.shape[1:]}, those before of {first}", source, name)
        if y and targets.dtype.kind != y[0].dtype.kind:
            raise FileError(f"targets of {targets.dtype}, those before of {y[0].dtype}", source, name)
        named.append(name)
        X.append(rows)
        y.append(targets)
    if not X:
        raise FileError("it has no rows", source)
    with reading(source, "LEAF's JSON"):
        names, number = np.unique(text_array(named), return_inverse=True)
        rows, targets = _concatenated(X), _concatenated(y)
    clients = np.repeat(number.astype(np.int64), [len(targets) for targets in y])
    return Dataset(rows, targets, clients, tuple(names.tolist()), test)


def _concatenated(parts: list[Array]) -> Array:
    if parts[0].dtype.kind != "U":
        return np.concatenate(parts)
    return text_array([text for part in parts for text in part.tolist()])


def _users(file: Path, letters: str) -> Iterator[UserRows]:
    """Name, rows and targets of each user with rows; checks what the file declares of them."""
    declared: dict[str, Any] = {"users": None, "num_samples": None}
    n_rows: dict[str, int] = {}
    with reading(file, "LEAF's JSON"):
        walk = _Walk(file.read_text(encoding="utf-8"))
        for key in walk.members():
            if key == "user_data":
                for name in walk.members():
                    with reading(file, "LEAF's JSON", name):
                        if name in n_rows:
                            raise ValueError("the user is there twice")
                        rows, targets = _rows(walk.value(), letters)
                        n_rows[name] = len(targets)
                    if len(targets):
                        yield name, rows, targets
            else:
                value = walk.value()
                if key in declared:
                    declared[key] = value
        walk.end()
        users, sizes = declared["users"], declared["num_samples"]
        if not isinstance(users, list) or sorted(map(str, users)) != sorted(n_rows):
            raise ValueError("users are not those of user_data")
        if sizes is not None and (not isinstance(sizes, list) or sizes != [n_rows[str(user)] for user in users]):
            raise ValueError("num_samples are not the numbers of rows in user_data")


def _rows(user: Any, letters: str) -> tuple[Array, Array]:
    if not isinstance(user, dict) or not isinstance(user.get("x"), list) or not isinstance(user.get("y"), list):
        raise ValueError("expected lists x and y")
    x, y = user["x"], user["y"]
    if len(x) != len(y):
        raise ValueError(f"{len(x)} rows and {len(y)} targets")
    if not x:
        return np.empty(0), np.empty(0)
    as_letters = all(isinstance(target, str) and len(target) == 1 for target in y)
    targets = _numbers_of(y, letters)[:, 0].astype(np.int64) if as_letters else _targets(y)
    if all(isinstance(row, str) for row in x):
        return (_numbers_of(x, letters) if as_letters else text_array(x)), targets
    if not all(isinstance(row, list) for row in x):
        raise ValueError("expected rows that are all lists of numbers, or all texts")
    try:
        with np.errstate(over="ignore"):
            rows = np.array(x, np.float32)
    except (TypeError, ValueError):
        raise ValueError("expected rows of numbers, all of one length") from None
    if rows.size == 0 or not np.isfinite(rows).all():
        raise ValueError("expected rows of finite numbers")
    return rows, targets


def _targets(y: list[Any]) -> Array:
    if all(type(target) is int and abs(target) < 2**62 for target in y):
        return np.array(y, np.int64)
    if all(isinstance(target, (int, float)) for target in y):
        return np.array(y, np.float64)
    if all(isinstance(target, str) for target in y):
        return text_array(y)
    raise ValueError("expected targets that are all numbers, or all texts")


def _numbers_of(texts: list[str], letters: str) -> NDArray[np.uint8]:
    """Texts of one length as the places of their letters; a letter that is not there has the place after the last."""
    if len({len(text) for text in texts}) > 1:
        raise ValueError("expected texts of one length")
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    known = np.frombuffer(letters.encode("utf-32-le"), np.uint32)
    order = np.argsort(known)
    at = np.minimum(np.searchsorted(known[order], codes), len(known) - 1)
    places = np.where(known[order][at] == codes, order[at], len(known)).astype(np.uint8)
    return places.reshape(len(texts), -1)


class _Walk:
    """A JSON text, read value by value."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._decode = json.JSONDecoder(parse_constant=_refuse).raw_decode

    def _next(self) -> str:
        self._at = _BLANKS.match(self._text, self._at).end()  # type: ignore[union-attr]  # it matches nothing too
        return self._text[self._at : self._at + 1]

    def _take(self, wanted: str) -> None:
        if self._next() != wanted:
            raise ValueError(f"expected {wanted} at character {self._at}, got {self._next() or 'the end'}")
        self._at += 1

    def members(self) -> Iterator[str]:
        """The keys of the object that begins here; the value of each must be read before the next."""
        self._take("{")
        if self._next() == "}":
            self._at += 1
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise ValueError(f"expected a name before character {self._at}")
            self._take(":")
            yield key
            if self._next() == "}":
                self._at += 1
                return
            self._take(",")

    def value(self) -> Any:
        self._next()
        made, self._at = self._decode(self._text, self._at)
        return made

    def end(self) -> None:
        if self._next():
            raise ValueError(f"it goes on after its end, at character {self._at}")


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a finite number")
