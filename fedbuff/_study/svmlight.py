"""Reading svmlight (LIBSVM) text, plain or gzip: `target index:value index:value ... # comment`, a row a line.

A block of lines is checked and parsed by whole-array operations. Only where that fails are its lines walked, to say
which one is wrong and why.
"""

from __future__ import annotations

import gzip
import math
import os
import re
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .._base.arrays import model_dtype, pick_lists
from .._base.checks import (
    count,
    path_of,
    shortened,
    shown,
)
from .._base.files import FileError, open_plain

__all__ = ["CSR", "read_svmlight"]

Floats = NDArray[np.floating]

_BLOCK = 1 << 24  # bytes of text parsed at a time; the working memory is about ten times as much
_MOST_FEATURES = 2**31 - 1

_BLANK, _NEWLINE, _COLON, _DIGIT, _OTHER = range(5)
_KINDS = bytes(
    _NEWLINE if c == 10 else _BLANK if c in b" \t\r\v\f" else _COLON if c == 58 else _DIGIT if 48 <= c < 58 else _OTHER
    for c in range(256)
)
_COLON_TO_BLANK = bytes.maketrans(b":", b" ")
_COMMENT = re.compile(rb"#[^\n]*")
_QUERY = re.compile(rb"^([^\S\n]*[^\s:]+[^\S\n]+)qid:[0-9]+(?=\s)", re.MULTILINE)
_NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INDEX = re.compile(rb"[0-9]+")


@dataclass(frozen=True, eq=False, repr=False)
class CSR:
    """Sparse rows: row r has values data[indptr[r]:indptr[r + 1]] in columns indices[indptr[r]:indptr[r + 1]].

    `fedbuff.Logistic` takes it; `scipy.sparse.csr_array((X.data, X.indices, X.indptr), X.shape)` is SciPy's.
    """

    format: ClassVar[str] = "csr"

    data: Floats
    indices: NDArray[np.int32]
    indptr: NDArray[np.int64]
    shape: tuple[int, int]

    @property
    def dtype(self) -> np.dtype[np.floating]:
        return self.data.dtype

    @property
    def nnz(self) -> int:
        """How many values are stored."""
        return int(self.data.size)

    def toarray(self) -> Floats:
        """The rows as a dense array."""
        dense = np.zeros(self.shape, self.dtype)
        dense[np.repeat(np.arange(self.shape[0]), np.diff(self.indptr)), self.indices] = self.data
        return dense

    def take(self, rows: NDArray[np.int64]) -> CSR:
        """Some of the rows, in this order."""
        where, starts = pick_lists(self.indptr, rows)
        return CSR(self.data[where], self.indices[where], starts, (len(rows), self.shape[1]))

    def __repr__(self) -> str:
        return f"<CSR: {self.shape[0]} x {self.shape[1]}, {self.nnz} {self.dtype} values>"


@dataclass(frozen=True)
class _Block:
    """Parsed lines: line number and target of each row, values per row, and all indices as written and values."""

    line: NDArray[np.int64]
    target: Floats
    length: NDArray[np.int64]
    index: NDArray[np.int64]
    value: Floats


def read_svmlight(
    path: str | os.PathLike[str],
    *,
    dtype: DTypeLike = np.float32,
    n_features: int | None = None,
    zero_based: bool | Literal["auto"] = "auto",
) -> tuple[CSR, Floats]:
    """Reads sparse rows X and targets y, both of `dtype`, from an svmlight (LIBSVM) file, plain or gzip.

    >>> import fedbuff as fb, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "two.txt")
    >>> _ = path.write_text("+1 1:0.5 3:2  # a comment\\n-1 2:1\\n")
    >>> X, y = fb.read_svmlight(path)
    >>> X.toarray().tolist(), y.tolist()
    ([[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]], [1.0, -1.0])

    n_features  columns of X; None is the largest index in the file. Give it where files belong together (a test set
                may lack the last features).
    zero_based  whether indices count from 0; "auto" says yes where the file has an index 0

    Comments, blank lines and `qid:` are skipped. A FileError names the line (from 1) of a number that cannot be read
    or is not finite, of indices that do not rise, and of a line that is cut.
    """
    kind = model_dtype("dtype", dtype)
    if not isinstance(zero_based, bool) and not (isinstance(zero_based, str) and zero_based == "auto"):
        error = ValueError if isinstance(zero_based, str) else TypeError
        raise error(f"zero_based: expected True, False or 'auto', got {shown(zero_based)}")
    width = None if n_features is None else count("n_features", n_features)
    if width is not None and width > _MOST_FEATURES:
        raise ValueError(f"n_features: expected at most {_MOST_FEATURES}, got {width}")
    file = path_of("path", path)
    blocks = [_parse(text, line, kind, file) for text, line in _blocks_of_lines(file)]
    if not sum(block.target.size for block in blocks):
        raise FileError("the file has no rows", file)
    line, target, length, index, value = (
        np.concatenate([getattr(block, name) for block in blocks])
        for name in ("line", "target", "length", "index", "value")
    )
    indptr = np.concatenate(([0], np.cumsum(length)))
    first = 0 if zero_based is True or (zero_based == "auto" and index.size and index.min() == 0) else 1
    largest = int(index.max(initial=first - 1)) - first + 1
    if width is None:
        width = max(largest, 1)
    if largest > width or index.min(initial=first) < first:
        wrong = int(np.argmax((index < first) | (index >= first + width)))
        where = line[np.searchsorted(indptr, wrong, side="right") - 1]
        why = "indices count from 1" if index[wrong] < first else f"there are {width} features, counted from {first}"
        raise FileError(f"line {where}: index {index[wrong]}: {why}", file)
    index -= first
    return CSR(value, index.astype(np.int32), indptr, (int(target.size), width)), target


def _blocks_of_lines(path: Path) -> Iterator[tuple[bytes, int]]:
    """Whole lines, about a block at a time, with the number of the first."""
    held: list[bytes] = []
    size, line = 0, 1
    try:
        with open_plain(path) as file:
            while more := file.read1(_BLOCK):
                held.append(more)
                size += len(more)
                if size >= _BLOCK and b"\n" in more:
                    head, newline, tail = more.rpartition(b"\n")
                    text = b"".join([*held[:-1], head, newline])
                    yield text, line
                    line += text.count(b"\n")
                    held, size = [tail], len(tail)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        line += sum(piece.count(b"\n") for piece in held)
        raise FileError(f"line {line}: the compressed file breaks off here: {error}", path) from error
    rest = b"".join(held)
    if rest:
        yield rest if rest.endswith(b"\n") else rest + b"\n", line


def _parse(text: bytes, line: int, dtype: np.dtype[np.floating], path: Path) -> _Block:
    plain = _COMMENT.sub(b"", text) if b"#" in text else text
    if b"qid:" in plain:
        plain = _QUERY.sub(rb"\1", plain)
    block = _parse_fast(plain, line, dtype)
    if block is None:
        _locate_error(plain, line, dtype, path)
        raise FileError(f"lines from {line}: cannot be read", path)
    return block


def _parse_fast(text: bytes, line: int, dtype: np.dtype[np.floating]) -> _Block | None:
    """The block, or None where anything in it is wrong."""
    kind = np.frombuffer(text.translate(_KINDS), np.uint8)
    solid = kind >= _COLON
    begins = np.flatnonzero(solid[1:] & ~solid[:-1]) + 1  # of words
    if solid[0]:
        begins = np.concatenate(([0], begins))
    at_line = np.searchsorted(np.flatnonzero(kind == _NEWLINE), begins)
    is_target = np.append(True, at_line[1:] != at_line[:-1])[: begins.size]
    is_pair = ~is_target

    # Every word but the first of a line has one colon, with digits alone before it and something after it
    colons = np.flatnonzero(kind == _COLON)
    pairs = np.flatnonzero(is_pair)
    if not np.array_equal(np.searchsorted(begins, colons, side="right") - 1, pairs):
        return None
    digits = np.concatenate(([0], np.cumsum(kind == _DIGIT, dtype=np.int64)))
    width = colons - begins[pairs]
    if not ((width > 0) & (digits[colons] - digits[begins[pairs]] == width) & solid[colons + 1]).all():
        return None

    numbers = _numbers(text.translate(_COLON_TO_BLANK), begins.size + pairs.size)
    if numbers is None:
        return None
    place = np.arange(begins.size) + np.cumsum(is_pair) - is_pair
    at_index = place[pairs]
    written = numbers[at_index]
    with np.errstate(over="ignore"):
        target, value = numbers[place[is_target]].astype(dtype), numbers[at_index + 1].astype(dtype)
    if not (np.isfinite(target).all() and np.isfinite(value).all()) or written.max(initial=0) > _MOST_FEATURES:
        return None
    index = written.astype(np.int64)
    rises = index[1:] > index[:-1]
    starts = pairs[1:] != pairs[:-1] + 1  # the first pair of a line: the word before it is a target
    if not (rises | starts).all():
        return None
    rows = np.flatnonzero(is_target)
    length = np.diff(np.append(rows, begins.size)) - 1
    return _Block(line + at_line[is_target].astype(np.int64), target, length.astype(np.int64), index, value)


def _numbers(text: bytes, expected: int) -> NDArray[np.float64] | None:
    """The numbers between blanks, where there are as many as expected and nothing else."""
    if expected == 0:
        return np.empty(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            numbers = np.fromstring(cast(Any, text), dtype=np.float64, sep=" ")
        except (DeprecationWarning, ValueError):  # something that is no number came before the end
            return None
    return numbers if numbers.size == expected else None


def _locate_error(text: bytes, line: int, dtype: np.dtype[np.floating], path: Path) -> None:
    """Walks the lines to the first that is wrong and raises; returns where there is none."""
    for number, content in enumerate(text.split(b"\n"), line):
        words = content.split()
        if not words:
            continue
        why = _wrong_number("target", words[0], dtype)
        previous = -1
        for word in words[1:]:
            if why:
                break
            index, colon, value = word.partition(b":")
            shown = shortened(word.decode(errors="replace"))
            if not colon or not value:
                why = f"{shown!r} is not index:value: is the line cut?"
            elif not _INDEX.fullmatch(index):
                negative = index.startswith(b"-") and _INDEX.fullmatch(index[1:])
                why = f"the index of {shown!r} is {'negative' if negative else 'not an integer'}"
            elif len(index.lstrip(b"0")) > 10 or int(index) > _MOST_FEATURES:
                why = f"the index of {shown!r} is above {_MOST_FEATURES}"
            elif int(index) <= previous:
                why = f"index {int(index)} comes after {previous}; indices must rise"
            else:
                why = _wrong_number(f"the value of index {int(index)},", value, dtype)
                previous = int(index)
        if why:
            raise FileError(f"line {number}: {why}", path)


def _wrong_number(what: str, word: bytes, dtype: np.dtype[np.floating]) -> str:
    shown = shortened(word.decode(errors="replace"))
    if _NUMBER.fullmatch(word):
        return "" if abs(float(word)) <= float(np.finfo(dtype).max) else f"{what} {shown!r} is too large for {dtype}"
    try:
        finite = math.isfinite(float(word))
    except ValueError:
        finite = True
    return f"{what} {shown!r} is {'not a number' if finite else 'not finite'}"
