"""IDX files, plain or gzip: MNIST, Fashion-MNIST, EMNIST and their kin.

An IDX file is two zero bytes, a byte for the type, one for the number of dimensions, each dimension in four bytes, the
most significant first, and then the numbers, big-endian.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.checks import flag, path_of
from .._base.files import FileError, PathLike, Unpacked, open_plain, read_rest, reading
from ._dataset import Dataset

__all__ = ["read_idx", "read_mnist"]

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: PathLike) -> NDArray[Any]:
    """The array of an IDX file, plain or gzip.

    >>> import fedbuff as fb, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "labels")
    >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
    >>> fb.datasets.read_idx(path).tolist()
    [7, 2, 1]
    """
    file = path_of("path", path)
    with reading(file, "an IDX file"), open_plain(file) as stream:
        head = stream.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _TYPES or head[3] == 0:
            raise ValueError(f"it begins with {head.hex(' ') or 'nothing'}")
        lengths = stream.read(4 * head[3])
        if len(lengths) < 4 * head[3]:
            raise ValueError("it breaks off")
        shape = tuple(int(length) for length in np.frombuffer(lengths, ">u4"))
        kind = np.dtype(_TYPES[head[2]])
        n_bytes = math.prod(shape) * kind.itemsize
        size = os.stat(file).st_size
        raw = stream.raw
        if (n_bytes > raw.most) if isinstance(raw, Unpacked) else (n_bytes != size - 4 - len(lengths)):
            raise ValueError(f"{kind} {shape} takes {n_bytes} bytes, and the file has {size}")
        array: NDArray[Any] = read_rest(stream, n_bytes).view(kind).reshape(shape)
        return array.astype(kind.newbyteorder("="), copy=False)


def read_mnist(path: PathLike, labels: PathLike | None = None, *, transpose: bool = False) -> Dataset:
    """Pictures (rows, height, width) and labels from two IDX files, or from a folder with those of train and test.

    >>> import fedbuff as fb, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> head = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3])
    >>> _ = (folder / "train-images-idx3-ubyte").write_bytes(head + bytes(range(6)))
    >>> _ = (folder / "train-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 4, 9]))
    >>> fb.datasets.read_mnist(folder / "train-images-idx3-ubyte")
    <Dataset: 2 rows of (1, 3) uint8>

    labels     the file of the labels; None is the one beside, whose name has labels-idx1 in the place of images-idx3
    transpose  exchanges rows and columns of every picture: EMNIST's files hold them lying on their side
    """
    source, turned = path_of("path", path), flag("transpose", transpose)
    if not source.is_dir():
        return _pair(source, None if labels is None else path_of("labels", labels), turned)
    if labels is not None:
        raise ValueError("labels: expected None where path is a folder")
    train, test = (_images(source, words) for words in (("train",), ("t10k", "test")))
    if train is None:
        raise FileError("no folder of IDX files: it has no train-images-idx3-ubyte", source)
    rows = _pair(train, None, turned)
    held = None if test is None else _pair(test, None, turned)
    return Dataset(rows.X, rows.y, test=None if held is None else (held.X, held.y))


def _images(folder: Path, words: tuple[str, ...]) -> Path | None:
    """The file of a folder that holds the pictures of a split; plain before gzip."""
    names = sorted(file.name for file in folder.iterdir() if "images" in file.name and "idx3" in file.name)
    found = [name for name in names if any(word in name for word in words)]
    plain = sorted({name.removesuffix(".gz") for name in found})
    if len(plain) > 1:
        raise FileError(f"it has several: {', '.join(plain[:4])}; name the file", folder)
    return folder / found[0] if found else None


def _pair(images: Path, labels: Path | None, transpose: bool) -> Dataset:
    if labels is None:
        labels = images.with_name(images.name.replace("images", "labels").replace("idx3", "idx1"))
        if labels == images:
            raise ValueError(f"labels: missing; {images.name} does not say images-idx3, so name their file")
    X, y = read_idx(images), read_idx(labels)
    if X.ndim != 3:
        raise FileError(f"not pictures: its array is {X.shape}", images)
    if y.shape != X.shape[:1]:
        raise FileError(f"not the labels of {len(X)} pictures: its array is {y.shape}", labels)
    return Dataset(np.ascontiguousarray(X.transpose(0, 2, 1)) if transpose else X, y)
