"""CIFAR-10 and CIFAR-100: the binary files and the pickles of the "python version".

A record of a binary file is one label byte (CIFAR-10) or two (CIFAR-100: coarse, fine), and then 3072 bytes of a
picture: red, green and blue planes of 32 x 32. A pickle is a dictionary with the same bytes under `data` and lists of
labels.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base import pickles
from .._base.checks import choice, path_of
from .._base.files import FileError, PathLike, read_rest, reading
from ._dataset import Dataset, joined

__all__ = ["read_cifar"]

_PIXELS = 3 * 32 * 32
_SHAPE = (3, 32, 32)
_TRAIN = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "train")
_TEST = ("test_batch", "test")


def read_cifar(path: PathLike, *, labels: str = "fine") -> Dataset:
    """Pictures (rows, 3, 32, 32) and labels of a CIFAR-10 or CIFAR-100 file, or of a folder with its batches.

    >>> import fedbuff as fb, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "data_batch_1.bin")
    >>> _ = path.write_bytes(bytes([3, *3072 * [0]]) + bytes([8, *3072 * [255]]))
    >>> data = fb.datasets.read_cifar(path)
    >>> data, data.y.tolist()
    (<Dataset: 2 rows of (3, 32, 32) uint8>, [3, 8])

    A folder gives data_batch_1 to data_batch_5 (or train) as rows, and test_batch (or test) as `test`. Binary files and
    pickles are told apart by their content; of a pickle nothing is run. labels: of CIFAR-100 the "fine" ones, of 100
    classes, or the "coarse" ones, of 20.
    """
    source = path_of("path", path)
    choice("labels", labels, ("fine", "coarse"))
    if not source.is_dir():
        return _read_file(source, labels)
    train, test = (
        [file for name in names for end in ("", ".bin") if (file := source / f"{name}{end}").is_file()]
        for names in (_TRAIN, _TEST)
    )
    if not train:
        raise FileError("no folder of CIFAR files: it has neither data_batch_1 nor train, plain or .bin", source)
    rows = joined([_read_file(file, labels) for file in train])
    held = joined([_read_file(file, labels) for file in test]) if test else None
    return Dataset(rows.X, rows.y, test=None if held is None else (held.X, held.y))


def _read_file(file: Path, labels: str) -> Dataset:
    with reading(file, "a CIFAR file"), file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        pickled = stream.read(1) == b"\x80"  # a pickle's first byte; no label of a record is as high
        stream.seek(0)
        data = read_rest(stream, size)
        return _from_pickle(data.tobytes(), labels) if pickled else _from_records(data, labels)


def _from_records(data: NDArray[np.uint8], labels: str) -> Dataset:
    ends = [n for n in (1, 2) if data.size and data.size % (n + _PIXELS) == 0]
    for n_labels in ends:
        records = data.reshape(-1, n_labels + _PIXELS)
        highest = records[:, :n_labels].max(axis=0).tolist()
        if highest[0] < (10 if n_labels == 1 else 20) and highest[-1] < (10 if n_labels == 1 else 100):
            which = 0 if n_labels == 1 or labels == "coarse" else 1
            if n_labels == 1 and labels == "coarse":
                raise ValueError("CIFAR-10 has no coarse labels")
            pictures = np.ascontiguousarray(records[:, n_labels:]).reshape(-1, *_SHAPE)
            return Dataset(pictures, records[:, which].astype(np.int64))
    if ends:
        raise ValueError("its labels are higher than CIFAR's")
    raise ValueError(f"{data.size} bytes are no records of {1 + _PIXELS} or {2 + _PIXELS}")


def _from_pickle(data: bytes, labels: str) -> Dataset:
    content = pickles.loads_arrays(data)
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, not a dictionary")
    parts: dict[str, Any] = {
        key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()
    }
    pictures = parts.get("data")
    if not isinstance(pictures, pickles.PickledArray):
        raise ValueError("it lacks the array data")
    name = "labels" if "labels" in parts else f"{labels}_labels"
    if name == "labels" and labels == "coarse":
        raise ValueError("CIFAR-10 has no coarse labels")
    given = parts.get(name)
    if not isinstance(given, list) or not all(type(label) is int and 0 <= label < 256 for label in given):
        raise ValueError(f"it lacks the list {name}")
    X = pictures.array
    if X.dtype != np.uint8 or X.shape != (len(given), _PIXELS) or not given:
        raise ValueError(f"data is {X.dtype} {X.shape}, expected uint8 ({len(given)}, {_PIXELS})")
    return Dataset(np.ascontiguousarray(X).reshape(-1, *_SHAPE), np.array(given, np.int64))
